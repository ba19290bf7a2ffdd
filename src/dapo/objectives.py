"""The objectives that `algorithm.objective` can name, each as (settings, inputs) -> per-token loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dapo.algorithm import ObjectiveInputs, dapo_objective
from dapo.config.schema import AlgorithmConfig
from dapo.neighbours import cispo_objective, clip_cov_objective, gspo_objective, kl_cov_objective


def clip_bounds(a: AlgorithmConfig) -> dict[str, Any]:
    """The arguments of `clip_flags` by which an objective's clip is told. kl_cov has no clip."""
    clipped = a.objective != "kl_cov"
    return {
        "clip_low": a.clip_low if clipped else None,
        "clip_high": a.clip_high if clipped else None,
        "clip_dual": a.clip_dual,
        "log_ratio_clamp": a.log_ratio_clamp,
        "level": "sequence" if a.objective == "gspo" else "token",
    }


def _dapo(a: AlgorithmConfig, inputs: ObjectiveInputs) -> Tensor:
    return dapo_objective(
        inputs,
        clip_low=a.clip_low,
        clip_high=a.clip_high,
        clip_dual=a.clip_dual,
        log_ratio_clamp=a.log_ratio_clamp,
    )


def _gspo(a: AlgorithmConfig, inputs: ObjectiveInputs) -> Tensor:
    return gspo_objective(inputs, clip_low=a.clip_low, clip_high=a.clip_high, log_ratio_clamp=a.log_ratio_clamp)


def _cispo(a: AlgorithmConfig, inputs: ObjectiveInputs) -> Tensor:
    return cispo_objective(inputs, clip_low=a.clip_low, clip_high=a.clip_high, log_ratio_clamp=a.log_ratio_clamp)


def _clip_cov(a: AlgorithmConfig, inputs: ObjectiveInputs) -> Tensor:
    return clip_cov_objective(
        inputs,
        clip_low=a.clip_low,
        clip_high=a.clip_high,
        clip_dual=a.clip_dual,
        log_ratio_clamp=a.log_ratio_clamp,
    )


def _kl_cov(a: AlgorithmConfig, inputs: ObjectiveInputs) -> Tensor:
    return kl_cov_objective(inputs, kl_coef=a.covariance.kl_coef, log_ratio_clamp=a.log_ratio_clamp)


BUILT_IN: dict[str, Callable[[AlgorithmConfig, ObjectiveInputs], Tensor]] = {
    "dapo": _dapo,
    "gspo": _gspo,
    "cispo": _cispo,
    "clip_cov": _clip_cov,
    "kl_cov": _kl_cov,
}
