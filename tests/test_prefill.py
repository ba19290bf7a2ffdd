"""Prompts prefilled together are prompts prefilled alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM, Qwen2Config, Qwen2ForCausalLM

from dapo.rollout.prefill import TOKENS, Prefill, Prefilled
from dapo.rollout.steady import steady
from dapo.rollout.torch_engine import TorchEngine
from dapo.rollout.weights import EngineWeights, packs
from helpers_engine import SIZE, Responses, collect, params, plain_logits, watch
from tiny import model, prompt

LENGTHS = [[5, 5], [1, 1], [1, 7, 2], [40, 1, 33, 64, 9, 17], [1] * 20, [TOKENS - 1, 1]]


def qwen() -> Any:
    """Biases, and another rotary base."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_theta=500.0,
    )
    return Qwen2ForCausalLM(config).eval().requires_grad_(False)


def falcon() -> Any:
    """A model with an attention of its own, which no registered function replaces."""
    torch.manual_seed(0)
    config = FalconConfig(
        vocab_size=SIZE, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=False, multi_query=False
    )
    return FalconForCausalLM(config).eval().requires_grad_(False)


MODELS: dict[str, Callable[[], Any]] = {"llama": lambda: model(0), "qwen": qwen, "falcon": falcon}


def engine_of(kind: str, slots: int = 8) -> TorchEngine:
    """An engine that never ends a response early."""
    return TorchEngine(MODELS[kind](), eos_ids=(), slots=slots, max_tokens=TOKENS + 90)


def prefill_of(kind: str, pack: bool = True) -> Prefill:
    """As the engine makes it; with packed linear layers, or plain ones."""
    policy = MODELS[kind]()
    engine_of(kind)  # registers the attention function
    policy.set_attn_implementation("dapo_slots")
    steady(policy)
    if pack:
        EngineWeights(policy)
    return Prefill(policy)


def words(lengths: list[int]) -> list[list[int]]:
    """Random prompts."""
    return [np.random.default_rng([i, n]).integers(4, SIZE, n).tolist() for i, n in enumerate(lengths)]


def difference(a: Prefilled, b: Prefilled) -> float:
    """The largest, over the logits and every layer's keys and values."""
    pairs = [
        (a.logits, b.logits),
        *((x, y) for p, q in zip(a.cache, b.cache, strict=True) for x, y in zip(p, q, strict=True)),
    ]
    assert all(x.shape == y.shape for x, y in pairs)
    return max(float((x - y).abs().max()) for x, y in pairs)


@pytest.mark.skipif(not packs(torch.zeros(1)), reason="this machine's torch has no oneDNN")
@pytest.mark.parametrize("kind", ["llama", "qwen"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_together_is_alone_bit_for_bit(kind: str, lengths: list[int]) -> None:
    """Law 5 on a CPU: what is in flight beside a prompt changes no bit of it."""
    prefill, prompts = prefill_of(kind), words(lengths)
    assert prefill.fits(lengths)
    for one, together in zip(prompts, prefill(prompts), strict=True):
        assert difference(prefill([one])[0], together) == 0.0


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_together_is_alone_to_rounding_where_layers_are_plain(lengths: list[int]) -> None:
    """Keys and logits of magnitude 10 at most."""
    prefill, prompts = prefill_of("llama", pack=False), words(lengths)
    for one, together in zip(prompts, prefill(prompts), strict=True):
        assert difference(prefill([one])[0], together) < 2e-5


def test_the_logits_are_those_of_a_plain_pass() -> None:
    """Against the model as it comes, without cache or packing."""
    prompts = words([3, 30, 1])
    for one, together in zip(prompts, prefill_of("llama")(prompts), strict=True):
        expected = plain_logits(model(0), one, [0])[0]
        np.testing.assert_allclose(together.logits.numpy(), expected, atol=2e-5)


def test_a_model_with_its_own_attention_has_its_prompts_alone() -> None:
    """Side by side they would see each other; the engine finds that out by trying."""
    prefill = prefill_of("falcon")
    assert not prefill.fits([2, 2])
    assert prefill.fits([9])
    assert prefill_of("llama").fits([2, 2])


def test_a_model_may_give_the_logits_of_every_token() -> None:
    """What is asked for by logits_to_keep is not what each model gives; the last token's are meant either way."""
    prefill, prompts = prefill_of("llama"), words([3, 30, 1])
    expected = prefill(prompts) + prefill(prompts[1:2])
    inner = prefill._model.forward
    prefill._model.forward = lambda logits_to_keep, **given: inner(**given)
    for one, other in zip(expected, prefill(prompts) + prefill(prompts[1:2]), strict=True):
        assert difference(one, other) < 2e-5


def test_a_pass_holds_what_fits_and_a_long_prompt_is_alone() -> None:
    """At most 256 tokens together, in the order of submission; a longer prompt still goes, by itself."""
    engine = engine_of("llama")
    log = watch(engine._model)
    lengths = [100, 100, 100, TOKENS + 4, 30, 30]
    for draw, tokens in enumerate(words(lengths)):
        engine.submit(draw, prompt(tokens), params(2, n=3))
    collect(engine, range(6))
    assert [entry.tokens for entry in log if not entry.decode] == [200, 100, TOKENS + 4, 60]


def results(engine: TorchEngine, lengths: list[int]) -> Responses:
    """Three responses of nine tokens to each prompt."""
    for draw, tokens in enumerate(words(lengths)):
        engine.submit(draw, prompt(tokens), params(9, n=3))
    return collect(engine, range(len(lengths)))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("slots", [8, 24])
def test_the_tokens_are_those_of_prompts_one_by_one(kind: str, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simple form, a prompt a pass, is the oracle."""
    lengths = [3, 50, 1, 22, 8, 8, 31]
    got = results(engine_of(kind, slots), lengths)
    monkeypatch.setattr(Prefill, "fits", lambda self, lengths: len(lengths) == 1)
    expected = results(engine_of(kind, slots), lengths)
    for draw in expected:
        for a, b in zip(got[draw], expected[draw], strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)
            np.testing.assert_allclose(a.engine_logprobs, b.engine_logprobs, atol=2e-5)


def test_a_prompt_prefilled_ahead_is_prefilled_again_by_new_weights() -> None:
    """Draw 1 went through the old policy beside draw 0 and has not begun when new weights come."""
    engine = engine_of("llama")
    engine.submit(0, prompt([5, 6]), params(3, n=8))
    engine.submit(1, prompt([7, 8]), params(4, n=8))
    engine.submit(2, prompt([9, 5]), params(4, n=8))
    collect(engine, [0])  # all eight leave in one step: nothing else has entered
    engine.load_weights(1, [(name, weight.clone()) for name, weight in model(1).named_parameters()])
    fresh = TorchEngine(model(1), eos_ids=(), slots=8, max_tokens=TOKENS + 90)
    for draw, tokens in ((1, [7, 8]), (2, [9, 5])):
        fresh.submit(draw, prompt(tokens), params(4, n=8))
    got, expected = collect(engine, [1, 2]), collect(fresh, [1, 2])
    for draw in (1, 2):
        for a, b in zip(got[draw], expected[draw], strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)
            assert a.token_versions == ((1, 4),)


def test_a_cancelled_draw_leaves_those_prefilled_with_it() -> None:
    """Its neighbours of the pass go on from their own keys."""
    expected = results(engine_of("llama"), [3, 4, 5, 6])
    engine = engine_of("llama")
    for draw, tokens in enumerate(words([3, 4, 5, 6])):
        engine.submit(draw, prompt(tokens), params(9, n=3))
    assert not engine._finished
    engine._admit()
    engine.cancel([0, 2])
    got = collect(engine, [1, 3])
    for draw in (1, 3):
        for a, b in zip(got[draw], expected[draw], strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)
