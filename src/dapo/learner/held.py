"""How a learner of one transformers model holds its weights, and what it says of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


class Held:
    """How trained weights and their gradients are held: each whole, in this process."""

    def part(self, tensor: Tensor) -> Tensor:
        """What of a weight or gradient is here, without a copy."""
        return tensor

    def whole(self, part: Tensor, weight: Tensor) -> Tensor:
        """The gradient of a weight, of what of it is here."""
        return part

    def sum(self, value: float) -> float:
        """The sum of a number over everybody who holds a part."""
        return value

    def norm(self, weights: Iterable[Tensor]) -> float:
        """The norm of the gradients of these weights."""
        return float(torch.nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None]))


class HoldsModel:
    """A learner whose weights are those of `model`."""

    model: Any

    def parameters(self) -> Iterator[tuple[str, Tensor, bool]]:
        """See Learner."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach(), parameter.requires_grad
