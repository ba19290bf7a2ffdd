"""One step ahead, between draws: the engine samples step s + 1 while the learner updates in step s.

Step s starts from version s - 1. While its updates run, the engine still has version s - 1, and samples all of
step s + 1 with it; it takes version s when both are done. So every step but a run's first is trained on tokens
that are exactly one version old, whatever takes how long: the same seed gives the same run. What is sampled
depends on the fillings before and on no update, which is why it can be done that early.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from dapo.errors import Interrupted
from dapo.pipeline.base import Cores, Stopped, never
from dapo.sampling import Collector
from dapo.types import Collected, TrainState


class Ahead:
    """See Supply: pipeline.swap = "between_draws".

    A run that starts, or goes on where nothing was sampled ahead, samples one step in turn.

    Args:
        collector: fills batches.
        num_steps: nothing is sampled for steps past this one.
        cores: see Cores.
    """

    def __init__(self, collector: Collector, num_steps: int, cores: Cores | None = None) -> None:
        self._collector, self._num_steps, self._cores = collector, num_steps, cores or Cores()
        self._thread: threading.Thread | None = None
        self._found: Collected | None = None
        self._error: BaseException | None = None
        self._closing = False
        self._ended: float | None = None  # when the last filling was done
        self._learner_wait_s = self._engine_wait_s = 0.0
        self._age_s: float | None = None

    def __enter__(self) -> Ahead:
        self._cores.take()
        return self

    def __exit__(self, *error: object) -> None:
        """What is being sampled is given up."""
        self._closing = True
        if self._thread is not None:
            self._thread.join()
        self._cores.give_back()

    def collect(self, state: TrainState, stopped: Stopped) -> Collected:
        """See Supply."""
        start = time.perf_counter()
        if state.ahead is not None and state.ahead.whole:
            self._age_s = None if self._ended is None else start - self._ended
            return state.ahead
        try:
            return self._collector.collect(state, stopped)
        finally:
            self._ended, self._age_s = time.perf_counter(), 0.0
            self._learner_wait_s += self._ended - start

    def proceed(self, state: TrainState, stopped: Stopped) -> None:
        """See Supply. After an update of the step the engine's version is gone, and nothing is sampled ahead."""
        pending, there = state.pending, state.ahead is not None and state.ahead.whole
        if pending is None or pending.updates or there or state.step + 2 > self._num_steps:
            return
        start = time.perf_counter()
        self._engine_wait_s += 0.0 if self._ended is None else start - self._ended
        after = replace(state, step=state.step + 1, pending=None)
        self._thread = threading.Thread(target=self._fill, args=(after, stopped), name="dapo-sample")
        self._thread.start()

    def _fill(self, state: TrainState, stopped: Stopped) -> None:
        self._cores.take()
        try:
            self._found = self._collector.collect(state, lambda: self._closing or stopped())
        except BaseException as error:
            self._error = error
        self._ended = time.perf_counter()

    def settle(self, state: TrainState) -> TrainState:
        """See Supply. Waits for the filling, unless it is given up."""
        if self._thread is None:
            return state
        start = time.perf_counter()
        self._thread.join()
        self._learner_wait_s += time.perf_counter() - start
        error, found = self._error, self._found
        self._thread = self._error = self._found = None
        if error is not None and not isinstance(error, Interrupted):
            raise error
        return replace(state, ahead=found)

    def exclusive(self) -> AbstractContextManager[None]:
        """See Supply: asked for when nothing is being sampled."""
        assert self._thread is None
        return nullcontext()

    def published(self, version: int) -> None:
        """See Supply."""

    def quiet(self, stopped: Stopped = never) -> AbstractContextManager[None]:
        """See Supply: asked for when nothing is being sampled."""
        assert self._thread is None
        return nullcontext()

    def metrics(self) -> dict[str, float]:
        """See Supply."""
        found = {
            "pipeline/learner_wait_s": self._learner_wait_s,
            "pipeline/engine_wait_s": self._engine_wait_s,
        } | ({} if self._age_s is None else {"pipeline/batch_age_s": self._age_s})
        self._learner_wait_s = self._engine_wait_s = 0.0
        return found
