"""What a step's batch and updates are told by; what was sampled is in `ledger`."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from dapo.algorithm import kl_estimate
from dapo.config.schema import CheckpointConfig, Config
from dapo.credit import SHARES, length_quartile, proxy, proxy_metrics, row_advantages
from dapo.grading import mean_or_nan
from dapo.learner.base import Trace
from dapo.types import Batch, Pending

if TYPE_CHECKING:
    from torch import Tensor

GAP = (
    "mismatch/logprob_abs_mean",
    "mismatch/logprob_abs_max",
    "mismatch/logprob_abs_p999",
    "mismatch/probability_correlation",
)


def gap_metrics(learner_BT: Tensor, engine_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """How far the engine's log-probs are from the learner's of the same tokens and weights, over the mask's tokens.

    Mean, largest and 99.9th percentile of |log p - log p'|; the correlation of p with p' (NaN where one has no
    spread). NaN of no tokens.
    """
    learner, engine = (tensor[mask_BT].double() for tensor in (learner_BT, engine_BT))
    gap = (learner - engine).abs()
    if not len(gap):
        return dict.fromkeys(GAP, float("nan"))
    rank = max(1, math.ceil(0.999 * len(gap)))
    correlation = torch.corrcoef(torch.stack([learner.exp(), engine.exp()]))[0, 1] if len(gap) > 1 else math.nan
    values = (gap.mean(), gap.max(), gap.kthvalue(rank).values, correlation)
    return {name: float(value) for name, value in zip(GAP, values, strict=True)}


def batch_metrics(batch: Batch) -> dict[str, float]:
    """Of what a step trains on, before its updates.

    advantage/length_weighted_mean: sum(L A) / sum(L), L loss tokens of a response, which is what a mean over tokens
    weighs its advantage with. advantage/length_matched_mean: the same, where within each quarter of length every
    response has the quarter's mean L; what differs comes from lengths within quarters.
    """
    of_rows, tokens = row_advantages(batch), batch.loss_tokens.double()
    _, quarter = length_quartile(tokens)
    size = torch.zeros(4, dtype=torch.float64).index_add_(0, quarter, tokens)
    count = torch.bincount(quarter, minlength=4).clamp_min(1)
    matched = (size / count)[quarter]
    return {
        "tokens/loss": float(tokens.sum()),
        "advantage/abs_mean": float(of_rows.abs().mean()),
        "advantage/length_weighted_mean": float((tokens * of_rows).sum() / tokens.sum().clamp_min(1)),
        "advantage/length_matched_mean": float((matched * of_rows).sum() / matched.sum().clamp_min(1)),
        **_token_weights(batch),
    }


def _token_weights(batch: Batch) -> dict[str, float]:
    """weight/token_to_sample_*: L_i / mean L of its group, by which a mean over tokens weighs a response's tokens
    against a mean over responses; the largest, and the means of right and of wrong responses."""
    tokens = batch.loss_tokens.double()
    _, group = torch.unique(batch.draw, return_inverse=True)
    size = torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add_(0, group, tokens)
    mean = size / torch.bincount(group)
    ratio = tokens / torch.where(mean > 0, mean, 1.0)[group]
    metrics = {"weight/token_to_sample_max": float(ratio.max())}
    if batch.correct is not None:
        for name, code in (("right", 1), ("wrong", 0)):
            metrics[f"weight/token_to_sample_{name}_mean"] = mean_or_nan(ratio[batch.correct == code].tolist())
    return metrics


def traced_metrics(minibatch: Batch, trace: Trace, config: Config, *, first: bool) -> dict[str, float]:
    """Of what an update saw of each token; nothing from a learner that does not trace.

    first: of the step, where the weights are still those that sampled: with old_logprobs = "engine" the only
    place where the gap to the engine shows.
    """
    if trace.logprobs is None or trace.collision is None:
        return {}
    metrics = proxy_metrics(minibatch, proxy(minibatch, trace, config))
    if first and config.algorithm.old_logprobs == "engine":
        metrics |= gap_metrics(trace.logprobs, minibatch.engine_logprobs, minibatch.loss_mask)
    return metrics


def kl_metrics(batch: Batch, config: Config) -> dict[str, float]:
    """Of the KL in the reward, by the policy at the step's start: its mean over loss tokens, in nats."""
    if config.algorithm.kl.place != "reward" or batch.old_logprobs is None or batch.ref_logprobs is None:
        return {}
    mask = batch.loss_mask
    kl = kl_estimate(batch.old_logprobs, batch.ref_logprobs, mask, config.algorithm.kl.estimator)
    return {"policy/kl_to_reference": float(kl.double().sum() / mask.sum().clamp_min(1))}


def update_metrics(pending: Pending) -> dict[str, float]:
    """Means over the step's updates; maxima and counts where the name says so.

    A share of nothing, which is NaN, leaves the shares of the other updates alone.
    """
    updates: Sequence[Mapping[str, float]] = pending.updates
    names = sorted({name for one in updates for name in one})
    there = {name: [one[name] for one in updates if name in one] for name in names}
    shares = {name: [v for v in values if not math.isnan(v)] for name, values in there.items() if name in SHARES}
    metrics = {name: mean_or_nan(values) for name, values in (there | shares).items()}
    metrics["ratio/max"] = max((one.get("ratio/max", 0.0) for one in updates), default=0.0)
    metrics["grad/nonfinite_updates"] = sum(one["grad/nonfinite"] for one in updates)
    metrics.pop("grad/nonfinite", None)
    if GAP[0] not in pending.metrics and GAP[0] not in metrics:  # of a learner that does not trace
        metrics[GAP[0]] = updates[0].get("ratio/logprob_abs_mean", 0.0) if updates else 0.0
    metrics["train/updates"] = float(len(updates))
    return metrics


BEST = {"avg": ("accuracy", "reward_mean"), "pass": ("pass_at_k",), "maj": ("maj_at_k",), "reward": ("reward_mean",)}


def score(metrics: Mapping[str, float], settings: CheckpointConfig) -> float | None:
    """What `checkpoint.keep_best` compares: best_metric of the set best_on; None without an evaluation."""
    area = "eval" if "eval/reward_mean" in metrics else f"eval/{settings.best_on}"
    for name in BEST[settings.best_metric]:
        value = metrics.get(f"{area}/{name}", float("nan"))
        if value == value:
            return value
    return None


def peak_memory() -> dict[str, float]:
    """memory/peak_gb: peak resident memory of this process, in GB (2**30 bytes); with CUDA also
    memory/device_peak_gb, the most that torch has held on the device."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"memory/peak_gb": peak / (2**30 if sys.platform == "darwin" else 2**20)}
    if torch.cuda.is_available():
        found["memory/device_peak_gb"] = torch.cuda.max_memory_allocated() / 2**30
    return found
