"""The batch against the groups that it was made of, told again from the responses themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dapo.checks.findings import Finding
from dapo.config.schema import Config
from dapo.types import Batch, Collected, Finish, Group

Bools = NDArray[np.bool_]


def _finding(check: str, message: str, count: int) -> list[Finding]:
    return [Finding(check=check, message=message, value=float(count), bound=0.0)] if count else []


def fits(batch: Batch, groups: Sequence[Group]) -> bool:
    """Whether the batch has a row for each response, wide enough for it."""
    lengths = [len(group.prompt.token_ids) + r.response.num_tokens for group in groups for r in group.rollouts]
    return batch.num_rows == len(lengths) and int(batch.token_ids.shape[1]) >= max(lengths, default=0)


def expected_mask(batch: Batch, groups: Sequence[Group], eos_ids: Sequence[int], config: Config) -> tuple[Bools, Bools]:
    """(loss mask, generated tokens that are an EOS), bool [B, T], by the responses of the groups."""
    pairs = [(group, rollout.response) for group in groups for rollout in group.rollouts]
    begin = np.array([len(group.prompt.token_ids) for group, _ in pairs])[:, None]
    end = begin + np.array([response.num_tokens for _, response in pairs])[:, None]
    token_ids = batch.token_ids.numpy()
    places = np.arange(token_ids.shape[1])[None, :]
    generated: Bools = (places >= begin) & (places < end)
    for row, (group, response) in enumerate(pairs):
        if not response.generated.all():
            start = len(group.prompt.token_ids)
            generated[row, start : start + response.num_tokens] = response.generated
    is_eos: Bools = np.isin(token_ids, np.asarray(eos_ids)) & generated
    first = np.where(is_eos.any(axis=1), is_eos.argmax(axis=1), token_ids.shape[1])[:, None]
    mask: Bools = generated & (places <= first)
    if "filter" in config.reward.overlong:
        mask[[response.finish is Finish.LENGTH for _, response in pairs]] = False
    return mask, is_eos


def masks(
    batch: Batch, groups: Sequence[Group], eos_ids: Sequence[int], config: Config, wanted: Sequence[str]
) -> list[Finding]:
    """eos_mask and response_mask, those that are wanted."""
    if not fits(batch, groups):
        return []  # told by `rows_of_groups`
    expected, is_eos = expected_mask(batch, groups, eos_ids, config)
    mask = batch.loss_mask.numpy()
    found: list[Finding] = []
    if "eos_mask" in wanted:
        held = (np.isin(batch.token_ids.numpy(), np.asarray(eos_ids)) & mask).sum(axis=1)
        wrong = int((held != (expected & is_eos).sum(axis=1)).sum())
        found += _finding("eos_mask", "responses whose loss mask does not hold just the EOS that they ended by", wrong)
    if "response_mask" in wanted:
        wrong = int((mask != expected).sum())
        found += _finding("response_mask", "tokens that are in the loss mask and should not be, or the reverse", wrong)
    return found


def kept_groups(collected: Collected, config: Config) -> list[Finding]:
    """The first N groups with a signal among those taken; fewer only where the filling was short."""
    rule, wanted = config.sampling.filter, config.sampling.prompts_per_step
    expected = [group.draw for group in collected.taken if _has_signal(group, rule)]
    if not collected.short and len(expected) < wanted:
        expected += [-1] * (wanted - len(expected))  # missing ones
    kept = [group.draw for group in collected.kept]
    wrong = len(set(kept) ^ set(expected[:wanted])) or int(kept != expected[:wanted])
    return _finding("filter", f'groups that sampling.filter = "{rule}" keeps and were not kept, or the reverse', wrong)


def _has_signal(group: Group, rule: str) -> bool:
    if rule == "off":
        return True
    if rule == "nonzero_std":
        rewards = [rollout.score.reward for rollout in group.rollouts]
        return max(rewards) - min(rewards) > 1e-6
    right = [rollout.score.correct is True for rollout in group.rollouts]
    return 0 < sum(right) < len(right)


def rows_of_groups(
    batch: Batch, groups: Sequence[Group], minibatches: Sequence[Batch], config: Config
) -> list[Finding]:
    """G rows of each group, with its prompt; every row in one mini-batch, every group whole."""
    if not fits(batch, groups):
        rows = sum(len(group.rollouts) for group in groups)
        message = f"rows of a batch that was made of {rows} responses, or of one too narrow for them"
        return [Finding(check="groups", message=message, value=float(batch.num_rows), bound=float(rows))]
    sampling = config.sampling
    most = sampling.responses_per_prompt
    least = sampling.min_responses_per_prompt or most
    odd = sum(not least <= len(group.rollouts) <= most for group in groups)
    odd += len(groups) - len({group.draw for group in groups})
    found = _finding("groups", f"groups that are not of {least} to {most} responses, or stand twice", odd)
    found += _finding("groups", "rows that stand in another group, or beside another prompt", _strays(batch, groups))
    return found + _cut(batch, groups, minibatches, config)


def _strays(batch: Batch, groups: Sequence[Group]) -> int:
    draws, lengths, token_ids = batch.draw.numpy(), batch.prompt_lengths.numpy(), batch.token_ids.numpy()
    strays = row = 0
    for group in groups:
        own, prompt = slice(row, row + len(group.rollouts)), group.prompt.token_ids
        right = (draws[own] == group.draw) & (lengths[own] == len(prompt))
        strays += int((~(right & (token_ids[own, : len(prompt)] == prompt).all(axis=1))).sum())
        row = own.stop
    return strays


def _cut(batch: Batch, groups: Sequence[Group], minibatches: Sequence[Batch], config: Config) -> list[Finding]:
    parts = [part.draw.tolist() for part in minibatches]
    expected = {group.draw: len(group.rollouts) for group in groups}
    whole = {draw: rows.count(draw) for rows in map(list, parts) for draw in set(rows)}
    twice = sum(map(len, map(set, parts))) - len(whole)
    count = abs(len(parts) - min(config.train.updates_per_step, len(groups)))
    wrong = twice + count + len(whole.keys() - expected.keys())
    wrong += sum(whole.get(draw) != rows for draw, rows in expected.items())
    return _finding("groups", "mini-batches that are missing, or groups that are not whole in one", wrong)


def double_bos(groups: Sequence[Group], bos_id: int | None) -> list[Finding]:
    """Prompts that begin with two BOS tokens."""
    if bos_id is None:
        return []
    count = sum(group.prompt.token_ids[:2].tolist() == [bos_id, bos_id] for group in groups)
    return _finding("double_bos", "prompts of kept groups that begin with two BOS tokens", count)
