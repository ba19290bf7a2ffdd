"""Scoring in actors: it begins when a draw has finished, while the driver waits for others."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from dapo.cluster.engines import Launcher
from dapo.cluster.replies import Actor, Died, Reply, receive
from dapo.config.schema import Config
from dapo.reward import Scorers
from dapo.reward.grader import WRONG
from dapo.reward.pool import lost_workers
from dapo.rollout.base import RolloutEngine
from dapo.types import Finish, FinishedDraw, Prompt, SamplingParams, Score, Verdict

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

BEGUN = 4096  # scores that nobody has asked for yet; beyond them the oldest are let go, and made again if asked for


class GraderActor(Actor):
    """Scores of responses, by the run's configuration."""

    def start(self, config: Config) -> Reply:
        """Loads reward functions and judges."""
        self._scorers = Scorers.of(config)
        return self._reply()

    def score(self, prompt: Prompt, texts: Sequence[str], token_ids: Sequence[Sequence[int]]) -> Reply:
        """(scores, grading processes that died unasked since the last call)."""
        return self._reply((self._scorers.score(prompt, texts, token_ids), lost_workers()))


class RemoteScores:
    """A `grading.ScoreFunction` over k actors. One that dies is replaced, and what it had is scored once more.

    Responses whose actor ends twice while they are scored get errors (Verdict.ERROR), as of a function that raises.
    Called from several threads: an evaluation's beside the one that samples ahead.

    Args:
        launcher: starts actors.
        config: of the run.
        size: k.
        judged: whether scores say right or wrong.
    """

    def __init__(self, launcher: Launcher, config: Config, size: int, *, judged: bool) -> None:
        self._launcher, self._config, self._judged = launcher, config, judged
        self._actors = [self._fresh(number) for number in range(size)]
        self._turn = count()
        self._begun: OrderedDict[bytes, _Begun] = OrderedDict()  # by the responses
        self._lost = 0
        self._lock = threading.Lock()

    def begin(self, prompt: Prompt, texts: Sequence[str], token_ids: Sequence[Sequence[int]]) -> None:
        """Starts scoring; a call with the same arguments takes the result."""
        with self._lock:
            self._begun[_key(prompt, texts, token_ids)] = self._start(prompt, texts, token_ids)
            while len(self._begun) > BEGUN:
                self._begun.popitem(last=False)

    def __call__(self, prompt: Prompt, texts: Sequence[str], token_ids: Sequence[Sequence[int]]) -> list[Score]:
        """See grading.ScoreFunction."""
        key = _key(prompt, texts, token_ids)
        for _ in range(2):
            with self._lock:
                begun = self._begun.pop(key, None) or self._start(prompt, texts, token_ids)
            try:
                scores, lost = receive(begun.reply, f"grader {begun.number}")
            except Died as error:
                self._replace(begun, error)
                continue
            with self._lock:
                self._lost += lost
            return scores  # type: ignore[no-any-return]
        logger.warning("responses to %r ended two graders; their scores are errors", prompt.id)
        correct = False if self._judged else None
        return [Score(verdict=Verdict.ERROR, correct=correct, reward=WRONG, stage="the grader died")] * len(texts)

    def lost_workers(self) -> int:
        """Grading processes that died unasked since the last call."""
        with self._lock:
            lost, self._lost = self._lost, 0
        return lost

    def close(self) -> None:
        """Ends the actors. Safe to call twice."""
        with self._lock:
            actors, self._actors = self._actors, []
        for actor in actors:
            self._launcher.stop(actor)

    def _start(self, prompt: Prompt, texts: Sequence[str], token_ids: Sequence[Sequence[int]]) -> _Begun:
        if not self._actors:
            raise RuntimeError("the graders are closed")
        number = next(self._turn) % len(self._actors)
        actor = self._actors[number]
        return _Begun(number, actor, actor.score.remote(prompt, texts, token_ids))

    def _fresh(self, number: int) -> Any:
        actor = self._launcher.start(number)
        actor.start.remote(self._config)  # what it loads was loaded in the driver already, and so can be
        return actor

    def _replace(self, begun: _Begun, error: Died) -> None:
        """A dead actor's other calls are forgotten with it, and made again when they are asked for."""
        with self._lock:
            if not self._actors or self._actors[begun.number] is not begun.actor:
                return  # closed, or another thread has seen it first
            logger.warning("grader %d died (%s); it is replaced", begun.number, error)
            self._launcher.stop(begun.actor)
            self._actors[begun.number] = self._fresh(begun.number)
            self._begun = OrderedDict((key, one) for key, one in self._begun.items() if one.actor is not begun.actor)


@dataclass(frozen=True, slots=True)
class _Begun:
    """Scoring that goes on in an actor: of which number, which actor, and its reply."""

    number: int
    actor: Any
    reply: Any


class ScoredAhead:
    """An engine whose finished draws are scored from the moment they come back. See RolloutEngine.

    Args:
        engine: samples.
        begin: told each finished draw with its prompt.
    """

    def __init__(self, engine: RolloutEngine, begin: Callable[[FinishedDraw, Prompt], None]) -> None:
        self._engine, self._begin = engine, begin
        self._prompts: dict[int, Prompt] = {}
        self.reproducible = engine.reproducible

    def submit(self, draw: int, prompt: Prompt, params: SamplingParams) -> None:
        """See RolloutEngine."""
        self._engine.submit(draw, prompt, params)
        self._prompts[draw] = prompt

    def poll(self) -> list[FinishedDraw]:
        """See RolloutEngine."""
        done = self._engine.poll()
        for finished in done:
            prompt = self._prompts.pop(finished.draw)
            if all(response.finish is not Finish.ABORT for response in finished.responses):
                self._begin(finished, prompt)
        return done

    def cancel(self, draws: Collection[int]) -> int:
        """See RolloutEngine."""
        for draw in draws:
            self._prompts.pop(draw, None)
        return self._engine.cancel(draws)

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]], **more: Any) -> None:
        """See RolloutEngine."""
        self._engine.load_weights(version, tensors, **more)

    def weight_samples(self) -> Iterable[tuple[str, Tensor]] | None:
        """See RolloutEngine."""
        return self._engine.weight_samples()

    def close(self) -> None:
        """See RolloutEngine."""
        self._prompts.clear()
        self._engine.close()


def _key(prompt: Prompt, texts: Sequence[str], token_ids: Sequence[Sequence[int]]) -> bytes:
    """Of all that scores are a function of."""
    digest = hashlib.blake2b(repr((prompt.id, prompt.grading, list(texts))).encode("utf-8", "surrogatepass"))
    for ids in token_ids:
        digest.update(np.asarray(ids, dtype=np.int64).tobytes() + b"/")
    return digest.digest()
