"""A public fake engine: responses from a function, finishing in any order asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Literal

import numpy as np

from dapo.errors import EngineError
from dapo.types import Finish, FinishedDraw, Prompt, Response, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

# (draw, prompt, g) -> (token ids, finish); or only token ids, which then stop.
Script = Callable[[int, Prompt, int], "list[int] | tuple[list[int], Finish]"]
Order = Literal["fifo", "lifo", "shortest"] | Callable[[list[FinishedDraw]], int]


class ScriptedEngine:
    """An engine without a model, for tests of everything above engines.

    Args:
        script: gives the tokens of response g of a draw.
        order: which waiting draw a poll returns: fifo, lifo, shortest (fewest tokens first, the
            order that biases careless systems), or a function from the waiting draws to an index.
        logprob: the log-probability reported for every token.
    """

    reproducible = True

    def __init__(self, script: Script, *, order: Order = "fifo", logprob: float = -1.0) -> None:
        self._script, self._order, self._logprob = script, order, logprob
        self._waiting: list[FinishedDraw] = []
        self.version = 0
        self.submitted: list[int] = []

    def submit(self, draw: int, prompt: Prompt, params: SamplingParams) -> None:
        """See RolloutEngine."""
        if any(waiting.draw == draw for waiting in self._waiting):
            raise EngineError(f"draw {draw} is already in flight")
        self.submitted.append(draw)
        responses = tuple(self._response(draw, prompt, g, params) for g in range(params.n))
        self._waiting.append(FinishedDraw(draw=draw, responses=responses))

    def _response(self, draw: int, prompt: Prompt, g: int, params: SamplingParams) -> Response:
        result = self._script(draw, prompt, g)
        tokens, finish = result if isinstance(result, tuple) else (result, Finish.STOP)
        if len(tokens) > params.max_new_tokens:
            tokens, finish = tokens[: params.max_new_tokens], Finish.LENGTH
        return Response(
            token_ids=np.asarray(tokens, dtype=np.int32),
            generated=np.ones(len(tokens), dtype=bool),
            engine_logprobs=np.full(len(tokens), self._logprob, dtype=np.float32),
            finish=finish,
            token_versions=((self.version, len(tokens)),),
        )

    def poll(self) -> list[FinishedDraw]:
        """See RolloutEngine: one draw at a time, in the order asked for."""
        if not self._waiting:
            raise EngineError("poll with nothing in flight would wait for ever")
        return [self._waiting.pop(self._next())]

    def _next(self) -> int:
        if callable(self._order):
            return self._order(self._waiting)
        if self._order == "shortest":
            sizes = [sum(r.num_tokens for r in draw.responses) for draw in self._waiting]
            return int(np.argmin(sizes))
        return 0 if self._order == "fifo" else len(self._waiting) - 1

    def cancel(self, draws: Collection[int]) -> int:
        """See RolloutEngine. Every response of a waiting draw counts as sampled."""
        gone = [waiting for waiting in self._waiting if waiting.draw in draws]
        self._waiting = [waiting for waiting in self._waiting if waiting.draw not in draws]
        return sum(response.num_tokens for waiting in gone for response in waiting.responses)

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]], *, recompute: bool = False) -> None:
        """Only the version is kept."""
        self.version = version

    def weight_samples(self) -> None:
        """It has no weights."""

    def close(self) -> None:
        """See RolloutEngine."""
        self._waiting.clear()
