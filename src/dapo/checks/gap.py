"""Engine against learner, and the first update against the step's start: the same tokens, the same log-probs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapo.checks.findings import Finding
from dapo.types import Batch, Group

GAP = "checks/gap_p999_nats"  # of TrainState.totals: recorded at the first step
FACTOR = 4.0  # later means may be so many times what was recorded
PROBE_TOKENS = 128  # of the rows that a first step looks at where old_logprobs = "engine", a group's prompt once


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """In nats. first: of the first step's mean gap. least: what counts as recorded at least. rounding: of ratios."""

    first: float
    least: float
    rounding: float

    @classmethod
    def of(cls, dtype: torch.dtype, temperature: float) -> Bounds:
        """Of a compute type; a temperature below 1 enlarges what logits differ by."""
        base, scale = BFLOAT16 if dtype == torch.bfloat16 else FLOAT32, max(1.0, 1.0 / temperature)
        return cls(first=base.first * scale, least=base.least * scale, rounding=base.rounding * scale)


FLOAT32 = Bounds(first=0.01, least=2.5e-4, rounding=1e-4)
BFLOAT16 = Bounds(first=0.2, least=0.025, rounding=0.05)


def fresh_rows(groups: Sequence[Group], version: int) -> list[int]:
    """Rows of `make_batch` whose tokens were all sampled by this version."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return [
        row for row, rollout in enumerate(rollouts) if all(v == version for v, _ in rollout.response.token_versions)
    ]


def probe_rows(batch: Batch, rows: Sequence[int], most: int = PROBE_TOKENS) -> list[int]:
    """The first of these rows with loss tokens, up to so many tokens together; one at least, where there is one.

    Responses of a group share its prompt, which counts once.
    """
    taken: list[int] = []
    prompts: set[int] = set()
    tokens = 0
    for row in rows:
        if not bool(batch.loss_mask[row].any()):
            continue
        draw, prompt = int(batch.draw[row]), int(batch.prompt_lengths[row])
        tokens += int(batch.lengths[row]) - (prompt if draw in prompts else 0)
        prompts.add(draw)
        if taken and tokens > most:
            break
        taken.append(row)
    return taken


def gaps(batch: Batch, logprobs_BT: Tensor, rows: Sequence[int]) -> Tensor:
    """f64 [N], |learner - engine| over the loss tokens of these rows."""
    index = list(rows)
    mask = batch.loss_mask[index]
    return (logprobs_BT[index][mask] - batch.engine_logprobs[index][mask]).double().abs()


def percentile(gaps_N: Tensor, share: float = 0.999) -> float:
    """The smallest gap that at least this share of the tokens keep to. NaN counts as the largest."""
    place = max(1, math.ceil(share * len(gaps_N)))
    return float(gaps_N.kthvalue(place).values)


def first_gap(gaps_N: Tensor, bounds: Bounds) -> list[Finding]:
    """At the first step, when nothing was recorded yet."""
    return _over(float(gaps_N.mean()), bounds.first)


def later_gap(mean: float, recorded: float, bounds: Bounds) -> list[Finding]:
    """At later steps, by the 99.9th percentile of the first one."""
    return _over(mean, FACTOR * max(recorded, bounds.least))


def _over(mean: float, bound: float) -> list[Finding]:
    if mean <= bound:
        return []
    message = "engine and learner give the sampled tokens other log-probs, on average by that many nats"
    return [Finding(check="engine_gap", message=message, value=mean, bound=bound)]


def ratio_one(mean_log_ratio: float, *, exact: bool, bounds: Bounds) -> list[Finding]:
    """Of the first update of a step whose old log-probs came from the learner.

    Args:
        mean_log_ratio: mean |log r| over the loss tokens.
        exact: whether both passes had the same micro-batches, on a device where those give the same bits.
        bounds: of the compute type.
    """
    bound = 0.0 if exact else bounds.rounding
    if mean_log_ratio <= bound:
        return []
    message = "the first update's ratios are not 1; mean |log ratio|"
    return [Finding(check="ratio_one", message=message, value=mean_log_ratio, bound=bound)]


def same_bits(minibatch: Batch, device: torch.device, updates_per_step: int) -> bool:
    """Whether a step's only update runs the very micro-batches that its old log-probs came from.

    Both passes cut the same rows by the same rule, but an update leaves rows without loss tokens out.
    """
    return device.type == "cpu" and updates_per_step == 1 and bool((minibatch.loss_tokens > 0).all())
