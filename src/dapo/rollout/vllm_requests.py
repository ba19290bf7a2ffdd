"""Draws whose responses are requests of their own, token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from dapo.errors import EngineError
from dapo.types import Finish, Prompt, Response, SamplingParams


@dataclass(slots=True)
class DrawInFlight:
    """A draw in flight."""

    draw: int
    prompt: Prompt
    params: SamplingParams
    rows: list[RowInFlight] = field(default_factory=list)  # g -> response


@dataclass(slots=True)
class RowInFlight:
    """A response that vLLM decodes, or has decoded."""

    owner: DrawInFlight
    g: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)  # (version, tokens)
    finish: Finish | None = None

    def take(self, token: int, logprob: float, version: int) -> None:
        """One more token, sampled by this version of the policy. Raises EngineError where its log-prob is NaN."""
        if math.isnan(logprob):
            raise EngineError(f"draw {self.owner.draw}: vLLM gives a token a log-probability that is no number")
        self.tokens.append(token)
        self.logprobs.append(min(0.0, logprob))
        if self.runs and self.runs[-1][0] == version:
            self.runs[-1] = (version, self.runs[-1][1] + 1)
        else:
            self.runs.append((version, 1))

    def response(self) -> Response:
        """As the seam has it."""
        assert self.finish is not None
        return Response(
            token_ids=np.asarray(self.tokens, dtype=np.int32),
            generated=np.ones(len(self.tokens), dtype=bool),
            engine_logprobs=np.asarray(self.logprobs, dtype=np.float32),
            finish=self.finish,
            token_versions=tuple(self.runs),
        )
