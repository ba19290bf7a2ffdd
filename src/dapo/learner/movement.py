"""How far an optimiser step moves the weights, from a sample of them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from dapo.learner.held import Held

ENTRIES = 4096  # of each tensor, evenly spread


class Movement:
    """Looks at the weights before a step; `norms` looks again.

    The sums over a tensor are estimated by numel / entries times the sums over its sample, exact for tensors of
    up to ENTRIES entries. Sampling keeps this under a thousandth of a step, without a second copy of the weights.
    """

    def __init__(self, parameters: Iterable[Tensor], held: Held | None = None) -> None:
        self._held = held or Held()
        self._parameters = [self._held.part(parameter) for parameter in parameters]
        self._before = [_sample(parameter) for parameter in self._parameters]

    def norms(self) -> dict[str, float]:
        """train/update_norm, the norm of what the step added; train/parameter_norm, that of the weights after it."""
        moved = size = 0.0
        for parameter, before in zip(self._parameters, self._before, strict=True):
            after = _sample(parameter)
            scale = parameter.numel() / max(1, len(after))
            moved += scale * float((after.double() - before.double()).square().sum())
            size += scale * float(after.double().square().sum())
        moved, size = self._held.sum(moved), self._held.sum(size)
        return {"train/update_norm": moved**0.5, "train/parameter_norm": size**0.5}


def _sample(parameter: Tensor) -> Tensor:
    """Up to ENTRIES entries, a copy: strides of a flat view, never a copy of the whole.

    A stride that shares a factor with the rows' width would meet some columns again and again and others never.
    """
    flat = parameter.detach().view(-1) if parameter.is_contiguous() else parameter.detach().reshape(-1)
    step = max(1, -(-flat.numel() // ENTRIES))
    while math.gcd(step, parameter.shape[-1] if parameter.dim() else 1) > 1:
        step += 1
    return flat[::step].to(torch.float32, copy=True)
