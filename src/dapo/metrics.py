"""What a step's batch and updates are told by; what was sampled is in `ledger`."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence

from dapo.algorithm import kl_estimate, masked, row_mean
from dapo.config.schema import CheckpointConfig, Config
from dapo.grading import mean_or_nan
from dapo.types import Batch, Pending


def batch_metrics(batch: Batch, mismatch: float | None) -> dict[str, float]:
    """Of what a step trains on, before its updates."""
    advantages, mask = batch.token_advantages.double(), batch.loss_mask
    of_rows = batch.advantages.double() if batch.advantages.dim() == 1 else row_mean(advantages, mask)
    metrics = {
        "tokens/loss": float(mask.sum()),
        "advantage/abs_mean": float(of_rows.abs().mean()),
        "advantage/length_weighted_mean": float(masked(advantages, mask).sum() / mask.sum().clamp_min(1)),
    }
    return metrics if mismatch is None else metrics | {"mismatch/logprob_abs_mean": mismatch}


def kl_metrics(batch: Batch, config: Config) -> dict[str, float]:
    """Of the KL in the reward, by the policy at the step's start: its mean over loss tokens, in nats."""
    if config.algorithm.kl.place != "reward" or batch.old_logprobs is None or batch.ref_logprobs is None:
        return {}
    mask = batch.loss_mask
    kl = kl_estimate(batch.old_logprobs, batch.ref_logprobs, mask, config.algorithm.kl.estimator)
    return {"policy/kl_to_reference": float(kl.double().sum() / mask.sum().clamp_min(1))}


def update_metrics(pending: Pending) -> dict[str, float]:
    """Means over the step's updates; maxima and counts where the name says so."""
    updates: Sequence[Mapping[str, float]] = pending.updates
    names = sorted({name for one in updates for name in one})
    metrics = {name: mean_or_nan([one[name] for one in updates if name in one]) for name in names}
    metrics["ratio/max"] = max((one.get("ratio/max", 0.0) for one in updates), default=0.0)
    metrics["grad/nonfinite_updates"] = sum(one["grad/nonfinite"] for one in updates)
    metrics.pop("grad/nonfinite", None)
    if "mismatch/logprob_abs_mean" not in pending.metrics:
        metrics["mismatch/logprob_abs_mean"] = updates[0].get("ratio/logprob_abs_mean", 0.0) if updates else 0.0
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


def peak_memory_gb() -> float:
    """Peak resident memory of this process, in GB (2**30 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
