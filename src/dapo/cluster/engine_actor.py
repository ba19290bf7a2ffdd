"""A rollout engine in a process of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dapo.cluster.replies import Actor, Reply
from dapo.cluster.session import need_ray
from dapo.cluster.weights import WeightTransport
from dapo.errors import EngineError
from dapo.rollout.base import RolloutEngine
from dapo.types import FinishedDraw, Prompt, SamplingParams


@dataclass(frozen=True, slots=True)
class Job:
    """A draw to be sampled. attempt: tells this submission from earlier ones of the same draw."""

    draw: int
    attempt: int
    prompt: Prompt
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of one turn: (attempt, draw) of what finished, and the first draw that was refused."""

    finished: tuple[tuple[int, FinishedDraw], ...] = ()
    refused: str | None = None


class EngineActor(Actor):
    """Builds an engine and calls it. Calls come one after the other, in the order in which they were made."""

    _engine: RolloutEngine

    def start(self, make: Callable[[], RolloutEngine]) -> Reply:
        """Builds the engine anew; the reply says whether it is reproducible."""
        self._engine = make()
        self._attempts: dict[int, int] = {}
        return self._reply(bool(self._engine.reproducible))

    def turn(self, jobs: Sequence[Job]) -> Reply:
        """Takes draws, then lets the engine work until one has finished, or for a second or so."""
        refused = None
        for job in jobs:
            try:
                self._engine.submit(job.draw, job.prompt, job.params)
            except EngineError as error:
                refused = refused or error.message
            else:
                self._attempts[job.draw] = job.attempt
        if refused is not None or not self._attempts:
            return self._reply(Turn(refused=refused))
        finished = []
        for draw in self._engine.poll():
            if draw.draw not in self._attempts:
                raise EngineError(f"the engine finished draw {draw.draw}, which was not asked for")
            finished.append((self._attempts.pop(draw.draw), draw))
        return self._reply(Turn(tuple(finished)))

    def cancel(self, draws: Collection[int]) -> Reply:
        """Forgets draws; the reply is the number of tokens that were sampled for them."""
        if not hasattr(self, "_engine"):
            return self._reply(0)  # it could not be built, which the reply of `start` says
        for draw in draws:
            self._attempts.pop(draw, None)
        return self._reply(self._engine.cancel(draws) or 0)

    def load_weights(
        self, version: int, parts: Sequence[Any], transport: WeightTransport, recompute: bool | None
    ) -> Reply:
        """Takes a version, part by part, out of the object store."""
        ray = need_ray()
        more = {} if recompute is None or not _takes_recompute(self._engine) else {"recompute": recompute}
        self._engine.load_weights(version, transport.receive(ray.get(part) for part in parts), **more)
        return self._reply()

    def weight_samples(self) -> Reply:
        """See RolloutEngine; copies on the CPU, or None."""
        found = getattr(self._engine, "weight_samples", lambda: None)()
        samples: list[tuple[str, Tensor]] | None = None
        if found is not None:
            samples = [(name, sample.detach().to("cpu", copy=True)) for name, sample in found]
        return self._reply(samples)

    def close(self) -> Reply:
        """See RolloutEngine."""
        self._engine.close()
        self._attempts.clear()
        return self._reply()


def _takes_recompute(engine: RolloutEngine) -> bool:
    return "recompute" in inspect.signature(engine.load_weights).parameters
