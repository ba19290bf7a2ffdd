"""How fast decoding and training go: derived from a device's figures, or stated. `measured` reads them off a run."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from dapo.plan.lengths import Lengths
from dapo.plan.shapes import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """Seconds of one decode step of an engine: rows R, each giving one token, with C tokens in the cache.

    overlap: max(fixed, row R) + cached C, else fixed + row R + cached C.
    block: rows are computed in multiples of this.
    prefill: seconds that a draw's prompt takes, once.
    """

    fixed: float = 0.0
    row: float = 0.0
    cached: float = 0.0
    overlap: bool = False
    block: int = 1
    prefill: float = 0.0

    def linear(self, rows: int) -> float:
        """The part of a step that does not depend on the cache."""
        padded = ceil(rows / self.block) * self.block
        return max(self.fixed, self.row * padded) if self.overlap else self.fixed + self.row * padded

    def seconds(self, rows: int, cached: float, steps: int) -> float:
        """Of so many steps of the same rows:  sum over i < steps of step(rows, cached + i rows)."""
        whole = steps * cached + rows * steps * (steps - 1) / 2
        return steps * self.linear(rows) + self.cached * whole

    def rate(self, rows: int, cached: float) -> float:
        """Tokens a second of one engine in a steady state."""
        step = self.seconds(rows, cached, 1)
        return rows / step if step else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Learn:
    """What the learner does in a second, all ranks together, and what each update and step takes beside it.

    forward, backward: FLOP/s. optimiser: seconds of an update. sync, other: seconds of a step. grade: of a response.
    """

    forward: float
    backward: float
    optimiser: float = 0.0
    sync: float = 0.0
    other: float = 0.0
    grade: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the learner computes in a step, in forward FLOP.

    tokens: of all positions that go through the body. forward: of one pass. backward: as a multiple of it.
    passes: forward passes without gradient (old and reference log-probs).
    """

    tokens: float
    forward: float
    backward: float
    passes: int

    def seconds(self, learn: Learn, updates: int) -> tuple[float, float]:
        """(of log-probs, of updates)."""
        updating = self.forward / learn.forward + self.forward * self.backward / learn.backward
        return self.passes * self.forward / learn.forward, updating + updates * learn.optimiser


def work(
    shape: Shape,
    groups: float,
    size: float,
    prompt: float,
    response: float,
    response_square: float,
    *,
    shared: bool,
    backward: float,
    passes: int,
) -> Work:
    """FLOP of one forward pass over a step's batch.

        2 (body T + head N) + 4 layers heads head_dim sum over tokens of the tokens that each sees

    Args:
        shape: of the model. T all tokens, prompts once a group where they are shared; N response tokens.
        groups, size: of the batch.
        prompt, response, response_square: mean tokens of a prompt, of a response, and their square's mean.
        shared: train.packing = "shared_prompt".
        backward, passes: see Work.
    """
    responses = groups * size
    prompts = groups if shared else responses
    tokens = prompts * prompt + responses * response
    seen = prompts * prompt**2 / 2 + responses * (response * prompt + response_square / 2)
    attention = 4.0 * shape.layers * shape.heads * shape.head_dim * seen
    linear = 2.0 * (shape.multiplied * tokens + shape.head * responses * response)
    return Work(tokens=tokens, forward=linear + attention, backward=backward, passes=passes)


def backward_multiple(*, checkpointing: bool, adapters: bool) -> float:
    """Backward over forward: 2; 1 where only adapters have weight gradients; a forward pass more with checkpointing."""
    return (1.0 if adapters else 2.0) + (1.0 if checkpointing else 0.0)


def derived_decode(
    shape: Shape, lengths: Lengths, prompt: float, *, flops: float, bandwidth: float, bytes_each: int, block: int
) -> Decode:
    """A decode step bounded by reading the weights (with many rows, by multiplying them) and by reading the cache.

    Args:
        shape, lengths, prompt: of the model, of responses, mean prompt tokens.
        flops, bandwidth: FLOP/s and bytes/s that the engine's devices reach together.
        bytes_each: of a weight and of a number in the cache.
        block: see Decode.
    """
    per_token = 2.0 * (shape.multiplied + shape.head)
    read = shape.total if shape.experts > 1 else shape.multiplied + shape.head  # of many rows, all experts are read
    return Decode(
        fixed=read * bytes_each / bandwidth,
        row=per_token / flops,
        cached=shape.kv_numbers * bytes_each / bandwidth,
        overlap=True,
        block=block,
        prefill=per_token * prompt / flops,
    )
