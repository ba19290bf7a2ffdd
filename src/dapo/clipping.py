"""Which tokens the clip bounds hold, and how many."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from dapo.algorithm import ObjectiveInputs, masked, masked_log_ratio, row_mean

Level = Literal["token", "sequence"]


def clip_flags(
    inputs: ObjectiveInputs,
    *,
    clip_low: float | None,
    clip_high: float | None,
    clip_dual: float | None = None,
    log_ratio_clamp: float | None = None,
    level: Level = "token",
) -> dict[str, Tensor]:
    """bool [B, T] by name, and the ratios "ratio" that decide them; all False, and 0, outside the mask.

    clip/high: A > 0 and r > 1 + high. clip/low: A < 0 and r < 1 - low. ratio/outside: r outside
    the range, blind to the sign (the paper's clip fraction). clip/dual: the dual bound holds the
    token. ratio/clamped: |log r| over the clamp. Of level "sequence" every token counts with its
    response's ratio, the exp of its mean log r, which the clamp then bounds.
    """
    mask_BT, advantages_BT = inputs.mask_BT, masked(inputs.advantages_BT, inputs.mask_BT)
    raw_BT = masked_log_ratio(inputs).detach()
    if level == "sequence":
        raw_BT = masked(row_mean(raw_BT, mask_BT).unsqueeze(1).expand_as(raw_BT), mask_BT)
    log_ratio_BT = raw_BT if log_ratio_clamp is None else raw_BT.clamp(-log_ratio_clamp, log_ratio_clamp)
    ratio_BT = torch.exp(log_ratio_BT)
    above_BT = ratio_BT > (math.inf if clip_high is None else 1.0 + clip_high)
    below_BT = ratio_BT < (-math.inf if clip_low is None else 1.0 - clip_low)
    flags = {
        "clip/high": above_BT & (advantages_BT > 0),
        "clip/low": below_BT & (advantages_BT < 0),
        "clip/dual": (advantages_BT < 0) & (ratio_BT > (clip_dual or math.inf)),
        "ratio/outside": above_BT | below_BT,
        "ratio/clamped": raw_BT.abs() > (log_ratio_clamp or math.inf),
    }
    return {name: flag & mask_BT for name, flag in flags.items()} | {"ratio": ratio_BT * mask_BT}


def clip_statistics(inputs: ObjectiveInputs, **bounds: Any) -> dict[str, Tensor]:
    """Sums over loss tokens of `clip_flags`, whose arguments it takes, to be divided by their number at the end.

    Also ratio/mean, and ratio/max, which is a maximum and not a sum.
    """
    flags = clip_flags(inputs, **bounds)
    ratio_BT = flags.pop("ratio")
    result = {name: flag.double().sum() for name, flag in flags.items()}
    return result | {"ratio/mean": ratio_BT.double().sum(), "ratio/max": ratio_BT.max().double()}
