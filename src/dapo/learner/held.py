"""What a learner of one transformers model says of the weights it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


class HoldsModel:
    """A learner whose weights are those of `model`."""

    model: Any

    def parameters(self) -> Iterator[tuple[str, Tensor, bool]]:
        """See Learner."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach(), parameter.requires_grad
