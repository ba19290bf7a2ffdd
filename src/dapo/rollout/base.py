"""The seam of rollout engines."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dapo.errors import EngineError
from dapo.types import FinishedDraw, Prompt, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor


class RolloutEngine(Protocol):
    """Samples responses. A draw is one request for n responses to one prompt.

    `reproducible`: the tokens of a draw are a function of the weights, the prompt, the sampling
    parameters and the draw index alone, whatever else is in flight.
    """

    reproducible: bool

    def submit(self, draw: int, prompt: Prompt, params: SamplingParams) -> None:
        """Queue a draw. Raises EngineError when the draw is already in flight, or too long."""

    def poll(self) -> list[FinishedDraw]:
        """Draws finished since the last call. Waits for one, but may come back with none after a
        while (a second or so), so that the caller can look at signals.

        Raises EngineError when nothing is in flight.
        """

    def cancel(self, draws: Collection[int]) -> int:
        """Forget draws; those not in flight are ignored. Returns the tokens sampled for them in vain."""

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]], *, recompute: bool = False) -> None:
        """Take the policy of a version, between two tokens of what is in flight.

        recompute: keys and values that older weights made are computed anew; else they are kept.

        Raises EngineError when a weight is missing or unknown.
        """

    def weight_samples(self) -> Iterable[tuple[str, Tensor]] | None:
        """`weight_sample` of every weight as it is decoded with, by its plain name and in the engine's own type.

        A weight that is held twice comes twice. None when weights can't be read back.
        """

    def close(self) -> None:
        """Free what the engine holds. Safe to call twice."""


@runtime_checkable
class Resting(Protocol):
    """An engine that can share its device with the learner."""

    def rest(self) -> None:
        """Gives memory back until the next `load_weights`, where it was made to do so. Nothing may be in flight."""


def check_request(draw: int, prompt: Prompt, params: SamplingParams, *, max_tokens: int, decodes: bool) -> None:
    """Whether an engine can take a draw. Raises EngineError.

    Args:
        draw, prompt, params: see RolloutEngine.submit.
        max_tokens: longest prompt + response of the engine.
        decodes: whether it can turn tokens into text, for stop strings.
    """
    total = len(prompt.token_ids) + params.max_new_tokens
    if total > max_tokens:
        raise EngineError(f"draw {draw}: prompt and response may take {total} tokens of {max_tokens}")
    if not len(prompt.token_ids):
        raise EngineError(f"draw {draw}: the prompt is empty")
    if params.max_new_tokens < 1 or params.n < 1:
        raise EngineError(f"draw {draw}: at least one response of at least one token")
    if params.stop and not decodes:
        raise EngineError("stop strings need an engine with a decode function")


COLUMNS = 4  # of a weight, spread over its width


def sampled_columns(width: int) -> list[int]:
    """Which columns of a weight of this width are compared.

    >>> sampled_columns(16), sampled_columns(2)
    ([2, 6, 10, 14], [0, 1])
    """
    return sorted({width * (2 * i + 1) // (2 * COLUMNS) for i in range(COLUMNS)}) if width else []


def weight_sample(weight: Tensor) -> Tensor:
    """A weight's sampled columns, [..., in] -> [..., columns]; all of one that has a single dimension."""
    return weight if weight.dim() < 2 else weight[..., sampled_columns(weight.shape[-1])]
