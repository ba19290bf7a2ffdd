"""The oracle: DAPO's arithmetic in plain Python loops, straight from the equations.

Nothing here looks like the package: no tensors, no masks by multiplication, no handed-in
weights. One token, one row, one group at a time, in the order in which the paper says it, so
that a mistake in the package's algebra is not repeated here. Equation numbers are those of
arXiv 2503.14476. A row's tokens are lists; `mask` says which of them belong to the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypedDict

REDUCTIONS = ("minibatch", "group", "sequence", "microbatch", "constant")


class Row(TypedDict):
    """One response: its group, its advantage, and per token the two log-probs and the mask."""

    draw: int
    advantage: float
    logp: list[float]
    old: list[float]
    mask: list[bool]


def log_softmax(logits: Sequence[float], token: int, temperature: float = 1.0) -> float:
    """log pi(y) = z_y / T - log sum_v exp(z_v / T)."""
    scaled = [z / temperature for z in logits]
    top = max(scaled)
    return scaled[token] - top - math.log(sum(math.exp(z - top) for z in scaled))


def entropy(logits: Sequence[float], temperature: float = 1.0) -> float:
    """H = -sum_v pi_v log pi_v, where 0 log 0 = 0."""
    total = 0.0
    for token in range(len(logits)):
        log_p = log_softmax(logits, token, temperature)
        if log_p > -math.inf:
            total -= math.exp(log_p) * log_p
    return total


def acceptance(right: float, group_size: int) -> float:
    """Chance that a group is informative: 1 - p^G - (1-p)^G."""
    return 1.0 - right**group_size - (1.0 - right) ** group_size


def overlong_penalty(length: int, max_tokens: int, buffer_tokens: int, factor: float = 1.0) -> float:
    """Eq. 13, its three cases; then the factor."""
    if length <= max_tokens - buffer_tokens:
        return 0.0
    if length <= max_tokens:
        return factor * (max_tokens - buffer_tokens - length) / buffer_tokens
    return -factor


def group_advantages(rewards: Sequence[float], correction: int, eps: float) -> list[float]:
    """Eq. 9 for one group: (R - mean) / (std + eps); all 0 when the rewards are one value."""
    if max(rewards) - min(rewards) <= 1e-6:
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    variance = math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - correction)
    return [(r - mean) / (math.sqrt(variance) + eps) for r in rewards]


def token_objective(
    logp: float,
    old: float,
    advantage: float,
    low: float,
    high: float,
    dual: float | None = None,
    clamp: float | None = None,
) -> float:
    """Eq. 10 for one token, negated: -min(r A, clip(r, 1-low, 1+high) A); dual: -max(that min, c A)."""
    log_ratio = logp - old
    if clamp is not None:
        log_ratio = max(-clamp, min(clamp, log_ratio))
    ratio = math.exp(log_ratio)
    clipped = max(1.0 - low, min(ratio, 1.0 + high))
    objective = min(ratio * advantage, clipped * advantage)
    if dual is not None and advantage < 0:
        objective = max(objective, dual * advantage)
    return -objective


def kl_k3(logp: float, ref: float) -> float:
    """k3 estimator: exp(x) - x - 1 with x = log ref - log pi."""
    x = ref - logp
    return math.exp(x) - x - 1.0


def importance_weight(old: float, engine: float, cap: float) -> float:
    """w = min(exp(log p - log b), C)."""
    return min(math.exp(old - engine), cap)


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing: what has no loss tokens has no mean and is not averaged over."""
    return math.fsum(values) / len(values) if values else None


def mean_of_means(parts: Sequence[Sequence[float]]) -> float:
    """The mean in each part that holds something, then over those parts; 0 if none does."""
    means = [m for part in parts if (m := mean(part)) is not None]
    return mean(means) or 0.0


def reduced(
    losses: Sequence[Sequence[float]],
    rows: Sequence[Row],
    reduction: str,
    *,
    constant: int | None = None,
    microbatches: Sequence[Sequence[int]] | None = None,
) -> float:
    """Eq. 12 by its scope: one number from every row's token losses (DESIGN section 4).

    minibatch: mean over all loss tokens. group: token mean in each group, over groups with loss
    tokens. sequence: mean in each row, over rows with loss tokens. constant: sum over rows with
    loss tokens times L. microbatch: masked mean of each micro-batch times its share of sequences.
    """
    kept = [
        [x for x, inside in zip(row_losses, row["mask"], strict=True) if inside]
        for row_losses, row in zip(losses, rows, strict=True)
    ]
    if reduction == "minibatch":
        return mean([x for row in kept for x in row]) or 0.0
    if reduction == "sequence":
        return mean_of_means(kept)
    if reduction == "group":
        groups: dict[int, list[float]] = {}
        for row, row_losses in zip(rows, kept, strict=True):
            groups.setdefault(row["draw"], []).extend(row_losses)
        return mean_of_means(list(groups.values()))
    if reduction == "constant":
        assert constant is not None
        rows_with_tokens = sum(1 for row in kept if row)
        total = math.fsum(x for row in kept for x in row)
        return total / (rows_with_tokens * constant) if rows_with_tokens else 0.0
    assert reduction == "microbatch"
    assert microbatches is not None
    total = 0.0
    for cut in microbatches:
        share = len(cut) / len(rows)
        total += share * (mean([x for i in cut for x in kept[i]]) or 0.0)
    return total


def token_losses(rows: Sequence[Row], loss: Callable[[float, float, float], float]) -> list[list[float]]:
    """Every row's token losses; `loss` takes (logp, old, advantage). Tokens outside the mask give 0."""
    result = []
    for row in rows:
        tokens = zip(row["logp"], row["old"], row["mask"], strict=True)
        result.append([loss(logp, old, row["advantage"]) if inside else 0.0 for logp, old, inside in tokens])
    return result


def batch_loss(
    rows: Sequence[Row],
    reduction: str,
    *,
    low: float,
    high: float,
    dual: float | None = None,
    clamp: float | None = None,
    constant: int | None = None,
    microbatches: Sequence[Sequence[int]] | None = None,
) -> float:
    """The scalar loss of a mini-batch: Eq. 10 for each token, then Eq. 12 in the named scope."""
    losses = token_losses(rows, lambda p, q, a: token_objective(p, q, a, low, high, dual, clamp))
    return reduced(losses, rows, reduction, constant=constant, microbatches=microbatches)


def clip_counts(
    rows: Sequence[Row], low: float, high: float, dual: float | None = None, clamp: float | None = None
) -> dict[str, float]:
    """DESIGN section 10's clip metrics as sums over loss tokens, counted one token at a time."""
    names = (
        "clip/high",
        "clip/low",
        "clip/dual",
        "ratio/outside",
        "ratio/clamped",
        "ratio/mean",
        "ratio/max",
    )
    counts = dict.fromkeys(names, 0.0)
    for row in rows:
        for logp, old, inside in zip(row["logp"], row["old"], row["mask"], strict=True):
            if not inside:
                continue
            bound = math.inf if clamp is None else clamp
            ratio = math.exp(max(-bound, min(bound, logp - old)))
            counts["clip/high"] += row["advantage"] > 0 and ratio > 1 + high
            counts["clip/low"] += row["advantage"] < 0 and ratio < 1 - low
            counts["clip/dual"] += dual is not None and row["advantage"] < 0 and ratio > dual
            counts["ratio/outside"] += not 1 - low <= ratio <= 1 + high
            counts["ratio/clamped"] += abs(logp - old) > bound
            counts["ratio/mean"] += ratio
            counts["ratio/max"] = max(counts["ratio/max"], ratio)
    return counts
