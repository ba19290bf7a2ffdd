"""The seam between sampling and updates, and its simplest form."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from dapo.sampling import Collector
from dapo.types import Collected, TrainState

Stopped = Callable[[], bool]


def never() -> bool:
    """Nobody asks for an end."""
    return False


class Supply(Protocol):
    """Fills batches. A context: on leaving it nothing is in flight any more.

    The order of calls in a step: collect, proceed, (updates), settle, exclusive and published (new weights),
    quiet (an evaluation).
    """

    def __enter__(self) -> Supply: ...

    def __exit__(self, *error: object) -> None: ...

    def collect(self, state: TrainState, stopped: Stopped) -> Collected:
        """The filling of the step after a state; see `Collector.collect` for what it raises."""

    def proceed(self, state: TrainState, stopped: Stopped) -> None:
        """A batch is made, `state.pending`: the engine may go on for the steps after it.

        stopped: says that a filling need not be finished any more.
        """

    def settle(self, state: TrainState) -> TrainState:
        """The state with what was sampled ahead of it, for the engine's next weights or for a checkpoint.

        Raises what went wrong while sampling.
        """

    def exclusive(self) -> AbstractContextManager[None]:
        """Nobody else uses the engine inside; draws may be in flight."""

    def published(self, version: int) -> None:
        """The engine has the weights of a version."""

    def quiet(self, stopped: Stopped = never) -> AbstractContextManager[None]:
        """Nobody else uses the engine inside, and nothing is in flight.

        Raises Interrupted where `stopped` says, before that is so, that it is not wanted any more.
        """

    def metrics(self) -> dict[str, float]:
        """Seconds that each side waited for the other since the last call, and how old the batch was."""


class Cores:
    """Threads of torch for each side, where both compute on one processor: two full teams would wait for each other.

    Args:
        each: so many for sampling and for updates; None leaves them alone.
    """

    def __init__(self, each: int | None = None) -> None:
        self._each = each
        self._before: int | None = None

    def take(self) -> None:
        """For the thread that calls; what it had first is remembered."""
        if self._each is not None:
            self._before = self._before or torch.get_num_threads()
            torch.set_num_threads(self._each)

    def give_back(self) -> None:
        """What the first thread had."""
        if self._before is not None:
            torch.set_num_threads(self._before)


class Turns:
    """Sampling and updates take turns: pipeline.max_staleness = 0."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is in flight between two calls."""

    def collect(self, state: TrainState, stopped: Stopped) -> Collected:
        """See Supply."""
        return self._collector.collect(state, stopped)

    def proceed(self, state: TrainState, stopped: Stopped) -> None:
        """See Supply."""

    def settle(self, state: TrainState) -> TrainState:
        """See Supply."""
        return state

    def exclusive(self) -> AbstractContextManager[None]:
        """See Supply."""
        return nullcontext()

    def published(self, version: int) -> None:
        """See Supply."""

    def quiet(self, stopped: Stopped = never) -> AbstractContextManager[None]:
        """See Supply."""
        return nullcontext()

    def metrics(self) -> dict[str, float]:
        """See Supply."""
        return {}
