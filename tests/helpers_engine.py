"""What the engine tests share: polling to the end, plain forward passes, a model that counts, a forward log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from dapo.rollout.base import RolloutEngine
from dapo.rollout.slot_cache import SlotCache
from dapo.types import Response, SamplingParams
from tiny import VOCABULARY, model

SIZE = len(VOCABULARY)

Responses = dict[int, tuple[Response, ...]]


def params(
    max_new_tokens: int = 12,
    *,
    n: int = 1,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 5,
    stop: Sequence[str] = (),
) -> SamplingParams:
    """Sampling parameters with a test's defaults."""
    return SamplingParams(
        max_new_tokens=max_new_tokens, n=n, temperature=temperature, top_p=top_p, seed=seed, stop=tuple(stop)
    )


def collect(engine: RolloutEngine, draws: Collection[int]) -> Responses:
    """Polls until all these draws are in; fails on a draw that comes twice or was not asked for."""
    done: Responses = {}
    in_vain = 0  # a poll may come back with nothing after a second, on a slow machine
    while set(done) != set(draws):
        finished = engine.poll()
        in_vain = 0 if finished else in_vain + 1
        assert in_vain < 60, "nothing finishes"
        for result in finished:
            assert result.draw in draws
            assert result.draw not in done
            done[result.draw] = result.responses
    return done


def ids(response: Response) -> list[int]:
    """A response's tokens as plain numbers."""
    return [int(token) for token in response.token_ids]


@torch.no_grad()
def plain_logits(policy: Any, prompt: Sequence[int], response: Sequence[int]) -> NDArray[np.float64]:
    """[L, V]: logits behind each response token, from one uncached forward pass over the whole row."""
    row = torch.tensor([[*prompt, *response]])
    logits = policy(input_ids=row, use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1].double().numpy()


@torch.no_grad()
def cached_logits(policies: Mapping[int, Any], prompt: Sequence[int], response: Response) -> NDArray[np.float64]:
    """[L, V]: token by token with transformers' own cache, each token by the policy version it records."""
    versions = [version for version, count in response.token_versions for _ in range(count)]
    cache, rows, fed = DynamicCache(), [], list(prompt)
    for version, token in zip(versions, ids(response), strict=True):
        output = policies[version](input_ids=torch.tensor([fed]), past_key_values=cache, use_cache=True)
        rows.append(output.logits[0, -1].double().numpy())
        fed = [token]
    return np.stack(rows)


def log_softmax(logits: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """log softmax(z / T) over the last axis, in float64."""
    scaled = logits / temperature
    scaled = scaled - scaled.max(axis=-1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))


def counting_model() -> Any:
    """A tiny Llama that always says token + 1 (mod V), with a probability of 1 to rounding.

    Attention and MLP add nothing, so the last hidden state is the token's own embedding e, scaled
    to norm sqrt(32). Row w of the head is 20 e(w - 1) / |e(w - 1)|: the logit of w is 20 sqrt(32) cos,
    at its largest (113) where the cosine is 1.
    """
    policy = model(0, tied=False)
    embedding = policy.model.embed_tokens.weight.normal_()  # the padding token's would be zero
    for layer in policy.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    unit = embedding / embedding.norm(dim=1, keepdim=True)
    policy.lm_head.weight.copy_(20.0 * unit.roll(1, dims=0))
    return policy


@dataclass(frozen=True)
class Forward:
    """One forward pass: what it was, and how many rows and tokens of each went in."""

    decode: bool
    rows: int
    tokens: int


def watch(policy: Any) -> list[Forward]:
    """Logs every forward pass of an engine's model from now on; decode steps are those with the slot cache."""
    log: list[Forward] = []
    inner: Callable[..., Any] = policy.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        rows, tokens = kwargs["input_ids"].shape
        log.append(Forward(isinstance(kwargs["past_key_values"], SlotCache), rows, tokens))
        return inner(*args, **kwargs)

    policy.forward = forward
    return log
