"""Draws in flight on an engine: what is aborted or lost is run again whole, never skipped."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

from dapo.errors import DapoError, EngineError
from dapo.rollout.base import RolloutEngine
from dapo.types import Finish, FinishedDraw, Prompt, SamplingParams

logger = logging.getLogger(__name__)


class Flight:
    """Submits draws and hands out those that finished.

    Failure goes with length, so a draw that the engine refuses, aborts, or forgets when it raises is run
    again under its own index. After `reruns` of these for one draw, or polls that raise in a row, the run
    stops.

    Attributes:
        failures: aborted draws and exceptions of the engine.
        lost_tokens: sampled for draws that were aborted or cancelled.
    """

    def __init__(self, engine: RolloutEngine, params: SamplingParams, reruns: int) -> None:
        self._engine, self._params, self._reruns = engine, params, reruns
        self._prompts: dict[int, Prompt] = {}
        self._sizes: dict[int, int] = {}  # of draws whose group is not params.n responses
        self._aborted: Counter[int] = Counter()
        self._raised_in_a_row = 0
        self.failures = 0
        self.lost_tokens = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def submit(self, draw: int, prompt: Prompt, size: int | None = None) -> None:
        """Starts a draw, of `size` responses where that is not params.n.

        Raises EngineError when the engine keeps refusing it.
        """
        self._prompts[draw] = prompt
        if size is not None:
            self._sizes[draw] = size
        params = replace(self._params, n=self._sizes.get(draw, self._params.n))
        for attempt in range(self._reruns + 1):
            try:
                self._engine.submit(draw, prompt, params)
            except Exception as error:
                self._count(error, attempt + 1, f"draw {draw} is submitted again")
                self._forget([draw])
            else:
                return

    def poll(self) -> list[FinishedDraw]:
        """Draws that finished whole since the last call; maybe none.

        Raises EngineError for a draw that was not asked for, or after too many failures.
        """
        try:
            finished = self._engine.poll()
        except Exception as error:
            self._raised_in_a_row += 1
            self._count(error, self._raised_in_a_row, "its draws are run again")
            self._start_again()
            return []
        done = []
        for draw in finished:
            if draw.draw not in self._prompts:
                raise EngineError(f"the engine finished draw {draw.draw}, which was not asked for")
            if any(response.finish is Finish.ABORT for response in draw.responses):
                self._abort(draw)
                continue
            del self._prompts[draw.draw]
            done.append(draw)
        if done:
            self._raised_in_a_row = 0
        return done

    def cancel(self) -> None:
        """Forgets every draw in flight; none of them will be looked at."""
        if self._prompts:
            self._forget(list(self._prompts))
        self._prompts.clear()

    def _forget(self, draws: list[int]) -> None:
        """An engine that has failed may not be able to cancel either; what it failed with first is told."""
        try:
            self.lost_tokens += self._engine.cancel(draws) or 0
        except Exception as error:
            logger.warning("the engine could not cancel (%s: %s)", type(error).__name__, error)

    def _abort(self, draw: FinishedDraw) -> None:
        self.failures += 1
        self.lost_tokens += sum(response.num_tokens for response in draw.responses)
        self._aborted[draw.draw] += 1
        if self._aborted[draw.draw] > self._reruns:
            raise EngineError(f"the engine aborted draw {draw.draw} {self._reruns + 1} times (engine.reruns)")
        logger.warning("the engine aborted draw %d; it is run again", draw.draw)
        self.submit(draw.draw, self._prompts[draw.draw])

    def _start_again(self) -> None:
        """Every draw in flight is asked for anew, in draw order."""
        waiting = dict(sorted(self._prompts.items()))
        self.cancel()
        for draw, prompt in waiting.items():
            self.submit(draw, prompt)

    def _count(self, error: Exception, times: int, what: str) -> None:
        """Notes an exception of the engine. Raises it as an EngineError after too many."""
        if isinstance(error, DapoError) and not isinstance(error, EngineError):
            raise error
        self.failures += 1
        if times > self._reruns:
            if isinstance(error, EngineError):
                raise error
            raise EngineError(
                f"the engine failed {times} times in a row (engine.reruns = {self._reruns}); "
                f"the last time with {type(error).__name__}: {error}"
            ) from error
        logger.warning("the engine failed (%s: %s); %s", type(error).__name__, error, what)
