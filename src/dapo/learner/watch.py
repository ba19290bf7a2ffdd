"""What an update is told by: sums over its loss tokens, micro-batch by micro-batch, and their means.

Legend: B rows of a micro-batch, T their width, N loss tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dapo.algorithm import ObjectiveInputs
from dapo.clipping import clip_flags, clip_statistics
from dapo.learner.settings import LearnerSettings

SUMS_OF_ROWS = ("loss/policy", "ratio/max")  # already what they should be
NAMES = {  # of sums over loss tokens, once they are means
    "clip/high": "clip/high_fraction",
    "clip/low": "clip/low_fraction",
    "clip/dual": "clip/dual_fraction",
    "clip/selected": "clip/selected_fraction",
    "ratio/outside": "ratio/outside_fraction",
    "ratio/clamped": "ratio/clamped_fraction",
}


@torch.no_grad()
def watched(inputs: ObjectiveInputs, entropy_BT: Tensor, settings: LearnerSettings) -> dict[str, float]:
    """Sums over the loss tokens of a micro-batch; ratio/max is a maximum."""
    mask_BT = inputs.mask_BT
    bounds = {
        "clip_low": settings.clip_low,
        "clip_high": settings.clip_high,
        "clip_dual": settings.clip_dual,
        "log_ratio_clamp": settings.log_ratio_clamp,
    }
    sums = clip_statistics(inputs, **bounds, level=settings.ratio_level)
    high_BT = clip_flags(inputs, **bounds, level=settings.ratio_level)["clip/high"]
    sums["clip/high_old_probability"] = inputs.old_logprobs_BT[high_BT].double().exp().sum()
    if inputs.selected_BT is not None:
        sums["clip/selected"] = (inputs.selected_BT & mask_BT).double().sum()
    difference = (inputs.logprobs_BT - inputs.old_logprobs_BT)[mask_BT].double()
    sums["policy/entropy"] = entropy_BT[mask_BT].double().sum()
    sums["policy/mean_token_probability"] = inputs.logprobs_BT[mask_BT].double().exp().sum()
    sums["policy/kl_to_old"] = (torch.exp(-difference) - 1 + difference).nan_to_num(posinf=0.0).sum()
    sums["ratio/logprob_abs_mean"] = difference.abs().sum()
    return {name: float(value) for name, value in sums.items()}


def weight_sums(weights_N: Tensor, cap: float) -> dict[str, float]:
    """Sums over the truncated importance weights of loss tokens."""
    return {
        "importance/mean": float(weights_N.sum()),
        "importance/capped_fraction": float((weights_N >= cap).sum()),
        "importance/square": float(weights_N.square().sum()),
    }


def add(totals: dict[str, float], sums: Mapping[str, float]) -> None:
    """Adds a micro-batch's sums; of ratio/max the larger stays."""
    for name, value in sums.items():
        before = totals.get(name, 0.0)
        totals[name] = max(before, value) if name == "ratio/max" else before + value


def averages(totals: Mapping[str, float], tokens: int) -> dict[str, float]:
    """Sums over loss tokens into means; fractions get their unit's name."""
    result = {}
    for key, value in totals.items():
        result[NAMES.get(key, key)] = value if key in SUMS_OF_ROWS else value / max(tokens, 1)
    if "importance/square" in result:
        square = result.pop("importance/square")
        result["importance/effective_fraction"] = result["importance/mean"] ** 2 / max(square, 1e-12)
    if (old := result.pop("clip/high_old_probability", 0.0)) and result["clip/high_fraction"]:
        result["clip/high_old_probability_mean"] = old / result["clip/high_fraction"]
    return result
