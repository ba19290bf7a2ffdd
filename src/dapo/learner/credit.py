"""Gradients of parts of a mini-batch, one part at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dapo.learner.base import Credit
from dapo.learner.held import Held


def bucket_gradients(
    backward: Callable[[list[int]], None],
    parameters: Sequence[Tensor],
    bucket_B: Tensor,
    rows: Sequence[int],
    held: Held,
) -> Credit:
    """<g_b, g> and |g_b| of every bucket b of rows, g = sum_b g_b being the gradient that stands in `parameters`.

    The gradients are as they were afterwards. Takes one more forward and backward pass over all rows, and host
    memory for one more set of gradients: on a device nothing more is held than in an update.

    Args:
        backward: adds the gradient of these rows' share of the loss to `parameters`.
        parameters: the trained weights, with gradients.
        bucket_B: i64 [B], the bucket of each row.
        rows: those that have loss tokens.
        held: how the weights are.
    """
    norm = held.norm(parameters)
    whole = [None if p.grad is None else held.part(p.grad).cpu() for p in parameters]  # on a CPU no copy
    buckets: dict[int, tuple[float, float]] = {}
    try:
        for number in sorted({int(bucket_B[row]) for row in rows}):
            for parameter in parameters:
                parameter.grad = None
            backward([row for row in rows if int(bucket_B[row]) == number])
            pairs = [(held.part(p.grad), g) for p, g in zip(parameters, whole, strict=True) if p.grad is not None]
            product = sum(
                float(torch.dot(own.flatten(), g.to(own.device).flatten())) for own, g in pairs if g is not None
            )
            buckets[number] = held.sum(product), held.norm(parameters)
    finally:
        for parameter, gradient in zip(parameters, whole, strict=True):
            parameter.grad = None if gradient is None else held.whole(gradient.to(parameter.device), parameter)
    return Credit(norm=norm, buckets=buckets)
