"""A stand-in for vLLM's engine that records calls, for what can be tested without vLLM, or without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dapo.config.scale import VllmConfig
from dapo.rollout import vllm_engine
from dapo.rollout.vllm_engine import VllmEngine
from tiny import model

TOKEN = 5  # what the stand-in always samples


@dataclass
class Request:
    """One request: what was asked, and how many tokens it has been given."""

    prompt: dict[str, Any]
    params: Any
    given: int = 0


@dataclass
class FakeLLM:
    """Gives TOKEN to each of its first `slots` requests at each step, and notes what is asked of it."""

    slots: int
    calls: list[Any] = field(default_factory=list)
    loaded: dict[str, torch.Tensor] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    aborting: set[str] = field(default_factory=set)  # requests that it gives up at the next step
    logprob: float = -1.0  # of every token

    @property
    def engine_core(self) -> Any:
        """Of which only the end is asked."""
        return SimpleNamespace(shutdown=lambda: self.calls.append("shutdown"))

    def add_request(self, name: str, prompt: dict[str, Any], params: Any) -> None:
        """Queues a request."""
        assert name not in self.requests
        self.requests[name] = Request(prompt, params)

    def has_unfinished_requests(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self.requests)

    def step(self) -> list[Any]:
        """One token each."""
        outputs = []
        for name in list(self.requests)[: self.slots]:
            request = self.requests[name]
            request.given += 1
            reason = "abort" if name in self.aborting else None
            if reason is None and request.given == request.params.max_tokens:
                reason = "length"
            new = SimpleNamespace(
                token_ids=[TOKEN], logprobs=[{TOKEN: SimpleNamespace(logprob=self.logprob)}], finish_reason=reason
            )
            outputs.append(SimpleNamespace(request_id=name, outputs=[new], finished=reason is not None))
            if reason is not None:
                del self.requests[name]
        return outputs

    def abort_request(self, names: Iterable[str]) -> None:
        """Forgets requests."""
        for name in names:
            self.requests.pop(name, None)

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        """Takes new weights."""
        self.calls.append(method)
        self.loaded = dict(kwargs["weights_iterator"])

    def apply_model(self, function: Callable[[Any], Any]) -> list[Any]:
        """Notes what is called on the model, which isn't there."""
        self.calls.append(function.__name__)
        return [None]

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> None:
        """Notes it."""
        self.calls.append(("reset_prefix_cache", reset_running_requests))

    def sleep(self, level: int) -> None:
        """Notes it."""
        self.calls.append(("sleep", level))

    def wake_up(self, tags: list[str]) -> None:
        """Notes it."""
        self.calls.append(("wake_up", *tags))


def fake_engine(
    patch: pytest.MonkeyPatch, *, slots: int = 8, sleep: bool = False, **how: Any
) -> tuple[VllmEngine, FakeLLM]:
    """An engine of the tiny model over a stand-in."""
    fake = FakeLLM(slots)
    patch.setattr(vllm_engine, "need_vllm", lambda: None)
    patch.setattr(vllm_engine, "start", lambda *arguments: fake)
    patch.setattr(
        vllm_engine,
        "request_params",
        lambda params, seed, eos_ids: SimpleNamespace(max_tokens=params.max_new_tokens, seed=seed),
    )
    settings = VllmConfig(sleep=sleep)
    how = {"dtype": torch.float32, "device": "cpu", "eos_ids": [2], "max_tokens": 64} | how
    return VllmEngine(model(4), slots=slots, settings=settings, **how), fake
