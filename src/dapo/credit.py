"""Which responses an update's gradient comes from, by length, correctness, truncation and sign of the advantage.

Descriptive, not causal: it says where the gradient of one update came from, not what training would
have been without those responses.

Legend: B rows of a mini-batch, T their width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dapo.algorithm import ObjectiveInputs, importance_weights, masked, row_mean
from dapo.clipping import clip_flags
from dapo.config.schema import Config
from dapo.learner.base import Credit, Trace
from dapo.neighbours import sequence_importance_weights
from dapo.objectives import clip_bounds
from dapo.types import Batch

SIGNS = {1: "+", -1: "-", 0: "0"}
ANSWERS = {1: True, 0: False, -1: None}
SHARE = "credit/proxy_{}_share"
SHARES = tuple(map(SHARE.format, ("positive", "right", "truncated", "longest")))


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of a mini-batch's rows.

    quartiles: three lengths in tokens; a response shorter than quartiles[0] is in the first, and so on.
    number_B: i64 [B], of each row. names: what a number stands for: length 0..3, right, truncated, advantage.
    """

    quartiles: tuple[float, float, float]
    number_B: Tensor
    names: Mapping[int, Mapping[str, Any]]


def response_lengths(batch: Batch) -> Tensor:
    """i64 [B], response tokens of each row."""
    return batch.lengths - batch.prompt_lengths


def length_quartile(length_B: Tensor) -> tuple[tuple[float, float, float], Tensor]:
    """The quartiles of these lengths, and the quarter 0..3 of each; those of one length are in the same.

    One at an edge is in the upper quarter: truncated responses are the longest ones, however many there are.
    """
    edges = torch.quantile(length_B.double(), torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    first, second, third = edges.tolist()
    return (first, second, third), torch.bucketize(length_B.double(), edges, right=True)


def row_advantages(batch: Batch) -> Tensor:
    """f64 [B], of each row; where tokens have their own, their mean over loss tokens."""
    if batch.advantages.dim() == 1:
        return batch.advantages.double()
    return row_mean(batch.advantages.double(), batch.loss_mask)


def make_buckets(minibatch: Batch) -> Buckets:
    """Length quartile x right, wrong or neither x truncated x sign of the advantage."""
    quartiles, quarter_B = length_quartile(response_lengths(minibatch))
    zeros_B = torch.zeros(minibatch.num_rows, dtype=torch.long)
    answer_B = zeros_B - 1 if minibatch.correct is None else minibatch.correct.long()
    truncated_B = zeros_B if minibatch.truncated is None else minibatch.truncated.long()
    sign_B = row_advantages(minibatch).sign().long()
    number_B = ((quarter_B * 3 + answer_B + 1) * 2 + truncated_B) * 3 + sign_B + 1
    parts = zip(
        *(x.tolist() for x in (number_B, quarter_B, answer_B, truncated_B, sign_B)),
        strict=True,
    )
    names = {
        number: {"length": length, "right": ANSWERS[answer], "truncated": bool(cut), "advantage": SIGNS[sign]}
        for number, length, answer, cut, sign in sorted(parts)
    }
    return Buckets(quartiles, number_B, names)


def proxy(minibatch: Batch, trace: Trace, config: Config) -> Tensor:
    """f64 [B]: what bounds a response's share of the gradient over the logits, at no cost of its own.

    sum over its loss tokens of w |A| r 1[not clipped] sqrt(1 - 2 p_y + sum_v p_v^2): its tokens' weight in the
    loss (importance weights in it) times the norm of the objective's gradient over the logits that predict them,
    as if none cancelled. Without what a KL or the entropy adds, and up to 1 / temperature.
    """
    assert trace.logprobs is not None
    assert trace.collision is not None
    mask = minibatch.loss_mask
    p = masked(trace.logprobs.double(), mask).exp()
    norm = (1 - 2 * p + masked(trace.collision.double(), mask)).clamp_min(0).sqrt()
    terms = _pull(minibatch, trace, config) * masked(minibatch.token_advantages.double(), mask).abs()
    return minibatch.row_weights * (terms * norm * mask).sum(1)


def _pull(minibatch: Batch, trace: Trace, config: Config) -> Tensor:
    """f64 [B, T]: what multiplies |A| in a token's gradient: its ratio, or 0 where it gets none."""
    algorithm, flags = config.algorithm, flags_of(minibatch, trace, config)
    ratio = flags["ratio"].double()
    if algorithm.objective == "cispo":  # there a clipped ratio still weighs
        floor = 1 - (1.0 if algorithm.clip_low is None else algorithm.clip_low)
        pull = ratio.clamp(floor, math.inf if algorithm.clip_high is None else 1 + algorithm.clip_high)
    else:
        held = flags["clip/high"] | flags["clip/low"] | flags["clip/dual"] | flags["ratio/clamped"]
        if algorithm.objective == "clip_cov" and minibatch.selected is not None:
            held |= minibatch.selected
        pull = ratio.masked_fill(held, 0.0)
    if algorithm.importance_cap is not None and minibatch.old_logprobs is not None:
        weigh = sequence_importance_weights if algorithm.importance_level == "sequence" else importance_weights
        engine, mask = minibatch.engine_logprobs, minibatch.loss_mask
        pull = pull * weigh(minibatch.old_logprobs, engine, mask, algorithm.importance_cap)
    return pull.nan_to_num(posinf=0.0)


def flags_of(minibatch: Batch, trace: Trace, config: Config) -> dict[str, Tensor]:
    """`clip_flags` of an update, by the run's bounds."""
    assert trace.logprobs is not None
    assert minibatch.old_logprobs is not None
    inputs = ObjectiveInputs(
        logprobs_BT=trace.logprobs,
        old_logprobs_BT=minibatch.old_logprobs,
        advantages_BT=minibatch.token_advantages,
        mask_BT=minibatch.loss_mask,
    )
    return clip_flags(inputs, **clip_bounds(config.algorithm))


def proxy_metrics(minibatch: Batch, proxy_B: Tensor) -> dict[str, float]:
    """Shares of the proxy: of right, positive, truncated responses, and of the longest quarter. NaN where it is 0."""
    total = proxy_B.sum()
    _, quarter_B = length_quartile(response_lengths(minibatch))
    parts = {"positive": row_advantages(minibatch) > 0, "longest": quarter_B == 3}
    if minibatch.correct is not None and bool((minibatch.correct >= 0).any()):
        parts["right"] = minibatch.correct == 1
    if minibatch.truncated is not None:
        parts["truncated"] = minibatch.truncated
    return {SHARE.format(name): float(proxy_B[rows].sum() / total) for name, rows in parts.items()}


def table(minibatch: Batch, buckets: Buckets, credit: Credit, proxy_B: Tensor) -> dict[str, Any]:
    """The credit table as JSON: for each bucket share = <g_b, g> / |g|^2 (they sum to 1), |g_b|, cosine.

    `matched` compares right and wrong responses by the share of a token: plainly, and within each quarter of
    length, averaged by the quarter's tokens over the quarters that have both. Within a quarter lengths are about
    the same, so that what is left there does not come from a re-weighting by length.
    """
    square, total = credit.norm**2, float(proxy_B.sum())
    tokens_B = minibatch.loss_tokens
    rows = []
    for number, (product, norm) in credit.buckets.items():
        member_B = (buckets.number_B == number) & (tokens_B > 0)
        rows.append(
            {
                **buckets.names[number],
                "responses": int(member_B.sum()),
                "tokens": int(tokens_B[member_B].sum()),
                "share": product / square,
                "norm": norm,
                "cosine": product / (norm * credit.norm) if norm else None,
                "proxy": float(proxy_B[member_B].sum()) / total if total else None,
            }
        )
    return {
        "length_quartiles": list(buckets.quartiles),
        "gradient_norm": credit.norm,
        "buckets": rows,
        "matched": _matched(rows),
    }


def _matched(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    def per_token(right: bool, quarter: int | None) -> float | None:
        found = [row for row in rows if row["right"] is right and quarter in (None, row["length"])]
        tokens = sum(row["tokens"] for row in found)
        return sum(row["share"] for row in found) / tokens if tokens else None

    both = [q for q in range(4) if per_token(True, q) is not None and per_token(False, q) is not None]
    weight = {q: sum(row["tokens"] for row in rows if row["length"] == q) for q in both}
    result: dict[str, float | None] = {}
    for name, right in (("right", True), ("wrong", False)):
        result[f"{name}_per_token"] = per_token(right, None)
        sums = [weight[q] * (per_token(right, q) or 0.0) for q in both]
        result[f"{name}_matched"] = sum(sums) / sum(weight.values()) if both else None
    return result
