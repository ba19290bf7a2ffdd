"""What a learner is told beside the model and the objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dapo.algorithm import KLEstimator
from dapo.learner.packing import Packing

Level = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """What the learner needs to know; see the configuration fields of the same names."""

    temperature: float = 1.0
    tokens_per_microbatch: int = 16384
    packing: Packing = "shared_prompt"
    logits_chunk_tokens: int = 512
    gradient_checkpointing: bool = False
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-8
    max_grad_norm: float | None = 1.0
    clip_low: float | None = 0.2
    clip_high: float | None = 0.28
    clip_dual: float | None = None
    log_ratio_clamp: float | None = None
    ratio_level: Level = "token"  # of the clip fractions
    importance_cap: float | None = None
    importance_level: Level = "token"
    kl_coef: float = 0.0  # of the KL in the loss
    kl_estimator: KLEstimator = "k3"
    entropy_coef: float = 0.0
