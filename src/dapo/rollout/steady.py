"""Activations that give a number the same result wherever it stands, and whatever stands beside it.

On a CPU torch runs an elementwise function over blocks of vector width and what is left over one number at a time,
and cuts large tensors into a piece for each thread. silu, gelu, sigmoid and softplus round differently in the two
ways (4 to 35% of random float32 differ in the last bit), so that a token's hidden state would depend on how many
others are in flight, and on how many threads there are. exp, sin, cos, tanh, erf, softmax and the norms do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

UNIT = 64  # numbers: a multiple of what any vector loop takes at a time
ALONE = 2**14  # numbers that every activation works on in one thread
GRAIN = 2**15  # numbers for which most take one thread more
ROOMS = ("transformers.activations", "torch.nn.modules.activation")
NOT_ELEMENTWISE = {"Softmax", "Softmax2d", "Softmin", "LogSoftmax", "GLU", "PReLU", "MultiheadAttention"}


def steady(model: nn.Module) -> None:
    """Changes the activation modules of a model on the CPU, in place. Nothing is changed elsewhere.

    Activations that a model calls as functions are left as they are.
    """
    if next(model.parameters()).device.type == "cpu":
        for module in activations(model.modules()):
            if not isinstance(module.forward, Steady):
                module.forward = Steady(module.forward)


def activations(modules: Iterable[nn.Module]) -> list[Any]:
    """Those that compute one number from one number."""
    kinds = ((module, type(module)) for module in modules)
    return [module for module, kind in kinds if kind.__module__ in ROOMS and kind.__name__ not in NOT_ELEMENTWISE]


class Steady:
    """An elementwise function, on whole vectors alone."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __call__(self, hidden: Tensor) -> Tensor:
        """plain(hidden), of any shape."""
        count = hidden.numel()
        if count == 0 or (hidden.is_contiguous() and is_whole(count, torch.get_num_threads())):
            return self._plain(hidden)  # type: ignore[no-any-return]
        padded = nn.functional.pad(hidden.reshape(-1), (0, -count % UNIT))
        return torch.cat([self._plain(block) for block in torch.split(padded, ALONE)])[:count].view(hidden.shape)


def is_whole(count: int, threads: int) -> bool:
    """Whether so many numbers, cut for so many threads, are whole vectors in each piece.

    >>> is_whole(4864 * 300, 2), is_whole(4864 * 300, 7), is_whole(33, 1)
    (True, False, False)
    """
    pieces = {1} if count <= ALONE else {1, threads, min(threads, -(-count // GRAIN))}
    return all(count % (UNIT * number) == 0 for number in pieces)
