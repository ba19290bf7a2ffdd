"""Advantages, each token's weight in the loss, and finite numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dapo.checks.findings import Finding
from dapo.checks.rows import fits
from dapo.config.schema import Config
from dapo.types import Batch, Group

SAME_REWARD = 1e-6  # rewards of a group within this of each other are one value
OFF_CENTRE = 1e-4  # |mean| of a group's advantages, in parts of the largest
ROW_WEIGHT = 1e-9  # relative difference of two row weights
SUMS = 1e-4  # relative rounding of a float32 sum over a mini-batch's tokens
AT_ONE = ("dapo", "gspo")  # objectives whose loss is -A where the ratio is 1

Floats = NDArray[np.float64]


# --- advantages -----------------------------------------------------------------------------------


def advantages(batch: Batch, groups: Sequence[Group], config: Config) -> list[Finding]:
    """Centred in each group, and not all zero in one whose shaped rewards differ.

    Left out: one standard deviation and mean for the whole batch (advantage = "batch"), which centres no group;
    of the second, rewards that are clipped or normalised, which may make two of them one.
    """
    if config.algorithm.advantage == "batch" or batch.advantages.dim() != 1 or not fits(batch, groups):
        return []
    values = batch.advantages.double().numpy()
    as_they_are = config.reward.clip is None and config.reward.normalisation == "off"
    worst, lost, row = 0.0, 0, 0
    for group in groups:
        own = values[row : row + len(group.rollouts)]
        row += len(own)
        largest = float(np.abs(own).max())
        if not math.isfinite(largest):
            continue  # told by `finite`
        if largest > 0:
            worst = max(worst, abs(float(own.mean())) / largest)
        shaped = [rollout.shaped_reward for rollout in group.rollouts]
        lost += as_they_are and largest == 0 and max(shaped) - min(shaped) > SAME_REWARD
    found: list[Finding] = []
    if worst > OFF_CENTRE:
        message = "a group's advantages are not centred; |mean| in parts of the largest"
        found.append(Finding(check="advantages", message=message, value=worst, bound=OFF_CENTRE))
    if lost:
        message = "groups whose rewards differ and whose advantages are all 0"
        found.append(Finding(check="advantages", message=message, value=float(lost), bound=0.0))
    return found


# --- the reduction --------------------------------------------------------------------------------


def expected_weights(
    tokens_B: Floats, draw_B: NDArray[np.int64], config: Config, microbatches: Sequence[Sequence[int]] | None
) -> Floats:
    """f64 [B]: one over the denominator, from the numbers of loss tokens, their groups and the cut alone."""
    reduction, there = config.algorithm.reduction, tokens_B > 0
    below = np.ones_like(tokens_B)
    if reduction == "minibatch":
        below[:] = tokens_B.sum()
    elif reduction == "sequence":
        below = there.sum() * tokens_B
    elif reduction == "constant":
        below[:] = there.sum() * float(config.algorithm.constant_tokens or math.nan)
    elif reduction == "group":
        of_group = {int(draw): float(tokens_B[draw_B == draw].sum()) for draw in np.unique(draw_B)}
        below = np.array([of_group[int(draw)] for draw in draw_B]) * sum(count > 0 for count in of_group.values())
    else:
        for rows in microbatches or ():
            below[list(rows)] = tokens_B[list(rows)].sum() * len(tokens_B) / len(rows)
    return np.divide(1.0, below, out=np.zeros_like(tokens_B), where=there & (below > 0))


def row_weights(minibatch: Batch, config: Config, microbatches: Sequence[Sequence[int]] | None) -> list[Finding]:
    """The weight of every token in the loss, against that of algorithm.reduction."""
    tokens = minibatch.loss_tokens.double().numpy()
    expected = expected_weights(tokens, minibatch.draw.numpy(), config, microbatches)
    got = minibatch.row_weights.double().numpy()
    there = tokens > 0  # other rows have no tokens to weigh
    if not there.any():
        return []
    worst = float(np.max(np.abs(got[there] / expected[there] - 1.0)))
    if worst <= ROW_WEIGHT:
        return []
    message = f'row weights are not those of algorithm.reduction = "{config.algorithm.reduction}"; relative difference'
    return [Finding(check="reduction", message=message, value=worst, bound=ROW_WEIGHT)]


def loss_at_one(minibatch: Batch, metrics: Mapping[str, float], config: Config) -> list[Finding]:
    """The loss of a step's first update: -sum of weight * advantage, to the rounding of sums and ratios.

    So it sees what the learner makes of the weights. Only where nothing else is in the loss.
    """
    algorithm = config.algorithm
    plain = algorithm.kl.place != "loss" and not algorithm.entropy_coef and algorithm.importance_cap is None
    loss, gap = metrics.get("loss/policy"), metrics.get("ratio/logprob_abs_mean")
    if loss is None or gap is None or not plain or algorithm.objective not in AT_ONE:
        return []
    mask, weights = minibatch.loss_mask, minibatch.row_weights.unsqueeze(1)
    terms = torch.where(mask, minibatch.token_advantages.double(), 0.0) * weights
    size, largest = float(terms.abs().sum()), float(terms.abs().max())
    bound = SUMS * size + 2 * largest * gap * float(mask.sum())  # |r - 1| is |log r| to first order
    off = abs(loss + float(terms.sum()))
    if off <= bound or not math.isfinite(loss + gap):
        return []  # what is not finite is told by `finite_updates`
    message = "the first update's loss is not that of its advantages and row weights; the difference"
    return [Finding(check="reduction", message=message, value=off, bound=bound)]


# --- finite numbers -------------------------------------------------------------------------------


def finite(batch: Batch, minibatches: Sequence[Batch]) -> list[Finding]:
    """Of what is trained on: on the loss mask, and of every row."""
    parts: dict[str, Tensor] = {"old log-probs": batch.old_logprobs} if batch.old_logprobs is not None else {}
    if batch.ref_logprobs is not None:
        parts["reference log-probs"] = batch.ref_logprobs
    if batch.advantages.dim() == 2:
        parts["advantages"] = batch.advantages
    counts = {name: _not_finite(values[batch.loss_mask]) for name, values in parts.items()}
    if batch.advantages.dim() == 1:
        counts["advantages"] = _not_finite(batch.advantages)
    counts["row weights"] = sum(_not_finite(part.row_weights) for part in minibatches)
    return [
        Finding(check="finite", message=f"{name} that are not finite numbers", value=float(count), bound=0.0)
        for name, count in counts.items()
        if count
    ]


def _not_finite(values: Tensor) -> int:
    return int(values.numel() - torch.isfinite(values).sum())


def finite_updates(metrics: Mapping[str, float]) -> list[Finding]:
    """Of one update."""
    names = [name for name in ("loss/policy", "grad/norm") if not math.isfinite(metrics.get(name, 0.0))]
    if not names and not metrics.get("grad/nonfinite"):
        return []
    message = f"{' and '.join(names) or 'the gradient'} of an update is not a finite number"
    return [Finding(check="finite_updates", message=message, value=float(max(1, len(names))), bound=0.0)]


def learning_rate(rate: float, step: int, config: Config) -> list[Finding]:
    """0 is right at step 1 of a warm-up from zero, and nowhere else."""
    train = config.train
    from_zero = train.warmup_from_zero and train.warmup_rollout_steps > 0 and step <= 1
    if rate > 0 or from_zero:
        return []
    return [Finding(check="learning_rate", message="an update at this learning rate", value=rate, bound=0.0)]
