"""From groups to what the learner trains on: the batch of a step and its mini-batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dapo.advantages import step_advantages
from dapo.algorithm import row_weights
from dapo.config.schema import Config
from dapo.neighbours import pick_clip_cov, pick_kl_cov, token_covariance
from dapo.rng import Purpose, uniform
from dapo.types import Batch, Finish, Group, Rollout

CODES = {True: 1, False: 0, None: -1}  # of Batch.correct
CutFunction = Callable[[Batch], list[list[int]]]


def make_batch(groups: Sequence[Group], eos_ids: Sequence[int], config: Config) -> Batch:
    """The rows of all groups, group by group. Advantages and row weights are still zero.

    The loss mask holds generated tokens up to and including the first EOS. Under overlong
    filtering a LENGTH-finished response has an empty mask: it leaves the loss, numerator and
    denominator, but its reward stays in its group's statistics.
    """
    rows = [(group, rollout) for group in groups for rollout in group.rollouts]
    lengths = [len(group.prompt.token_ids) + rollout.response.num_tokens for group, rollout in rows]
    shape = (len(rows), max(lengths))
    token_ids = np.zeros(shape, dtype=np.int64)
    mask = np.zeros(shape, dtype=bool)
    engine_logprobs = np.zeros(shape, dtype=np.float32)
    for index, (group, rollout) in enumerate(rows):
        prompt, response = group.prompt.token_ids, rollout.response
        begin, end = len(prompt), lengths[index]
        token_ids[index, :begin] = prompt
        token_ids[index, begin:end] = response.token_ids
        engine_logprobs[index, begin:end] = response.engine_logprobs
        if not (_filters_overlong(config) and response.finish is Finish.LENGTH):
            mask[index, begin:end] = _loss_mask(rollout, eos_ids)
    return Batch(
        draw=torch.tensor([group.draw for group, _ in rows]),
        prompt_lengths=torch.tensor([len(group.prompt.token_ids) for group, _ in rows]),
        lengths=torch.tensor(lengths),
        token_ids=torch.from_numpy(token_ids),
        loss_mask=torch.from_numpy(mask),
        engine_logprobs=torch.from_numpy(engine_logprobs),
        advantages=torch.zeros(len(rows)),
        row_weights=torch.zeros(len(rows), dtype=torch.float64),
        response=torch.tensor([g for group in groups for g in range(len(group.rollouts))]),
        correct=torch.tensor([CODES[rollout.score.correct] for _, rollout in rows], dtype=torch.int8),
        truncated=torch.tensor([rollout.response.finish is Finish.LENGTH for _, rollout in rows]),
    )


def _filters_overlong(config: Config) -> bool:
    return config.reward.overlong in ("filter", "soft+filter")


def _loss_mask(rollout: Rollout, eos_ids: Sequence[int]) -> NDArray[np.bool_]:
    """bool [L]: generated tokens up to and including the first EOS."""
    response = rollout.response
    is_eos = np.isin(response.token_ids, eos_ids) & response.generated
    eos_before: NDArray[np.int64] = np.cumsum(is_eos) - is_eos
    return np.asarray(response.generated & (eos_before == 0), dtype=bool)


def with_advantages(
    batch: Batch, groups: Sequence[Group], config: Config, totals: Mapping[str, float] = MappingProxyType({})
) -> Batch:
    """The batch with the advantages of `algorithm.advantage`; see `advantages.step_advantages`."""
    return replace(batch, advantages=step_advantages(batch, groups, config, totals))


def minibatches(batch: Batch, config: Config, cut: CutFunction) -> Iterator[Batch]:
    """mu mini-batches of whole groups, in the batch's order, each with its denominator handed in.

    A batch with fewer groups than updates_per_step (on_exhausted = "train_short") gives as many
    mini-batches as it has groups.
    """
    algorithm = config.algorithm
    draws = list(dict.fromkeys(batch.draw.tolist()))
    for part in np.array_split(np.arange(len(draws)), min(config.train.updates_per_step, len(draws))):
        wanted = {draws[i] for i in part}
        minibatch = batch.take([row for row, draw in enumerate(batch.draw.tolist()) if draw in wanted])
        weights = row_weights(
            minibatch.loss_tokens,
            minibatch.draw,
            algorithm.reduction,
            constant_tokens=algorithm.constant_tokens,
            microbatches=cut(minibatch) if algorithm.reduction == "microbatch" else None,
        )
        yield replace(minibatch, row_weights=weights, selected=_selected(minibatch, config))


def _selected(minibatch: Batch, config: Config) -> Tensor | None:
    """The tokens that the objective's entropy control picks, by the policy at the step's start."""
    algorithm, mask = config.algorithm, minibatch.loss_mask
    if algorithm.objective not in ("clip_cov", "kl_cov"):
        return None
    assert minibatch.old_logprobs is not None
    settings = algorithm.covariance
    covariance = token_covariance(minibatch.old_logprobs, minibatch.token_advantages, mask)
    if algorithm.objective == "kl_cov":
        return pick_kl_cov(covariance, mask, fraction=settings.fraction)
    return pick_clip_cov(
        covariance,
        mask,
        _token_uniforms(minibatch, config.train.seed),
        fraction=settings.fraction,
        low=settings.low,
        high=settings.high,
    )


def _token_uniforms(batch: Batch, seed: int) -> Tensor:
    """f64 [B, T]: a number of each token, a function of (seed, draw, response of the draw, token) alone."""
    seen: Counter[int] = Counter()
    rows = []
    for draw, prompt in zip(batch.draw.tolist(), batch.prompt_lengths.tolist(), strict=True):
        tokens = np.maximum(np.arange(batch.token_ids.shape[1]) - prompt, 0)
        rows.append(uniform(seed, Purpose.TOKEN_CHOICE, draw, seen[draw], tokens))
        seen[draw] += 1
    return torch.from_numpy(np.stack(rows))
