"""The engine's packed linear layers: the same numbers, no second copy, and a way back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

import tiny
from dapo.errors import EngineError
from dapo.rollout import weights as engine_weights
from dapo.rollout.weights import EngineWeights, PackedLinear, packs

needs_packing = pytest.mark.skipif(not packs(torch.zeros(1)), reason="this machine's torch has no oneDNN")


def qwen(seed: int) -> Any:
    """A tiny model whose query, key and value layers have biases."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=seed % 2 == 0,
    )
    model = Qwen2ForCausalLM(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.normal_()
    return model


MODELS = {
    "tied": lambda seed: tiny.model(seed, tied=True),
    "untied": lambda seed: tiny.model(seed, tied=False),
    "with biases": lambda seed: qwen(2 * seed),
    "with biases, untied": lambda seed: qwen(2 * seed + 1),
}


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    """Of a few tokens."""
    result: torch.Tensor = model(input_ids=torch.arange(3, 40).unsqueeze(0), use_cache=False).logits
    return result


@needs_packing
@pytest.mark.parametrize("kind", MODELS)
def test_the_same_logits_before_and_after_new_weights(kind: str) -> None:
    """Packing changes rounding alone; every weight and bias that comes later arrives."""
    model, plain, other = MODELS[kind](2), MODELS[kind](2), MODELS[kind](3)
    weights = EngineWeights(model)
    assert weights.packed == sum(type(module) is nn.Linear for module in plain.modules())
    torch.testing.assert_close(logits(model), logits(plain), atol=2e-5, rtol=1e-5)
    assert (logits(other) - logits(plain)).abs().max() > 0.1
    weights.load(other.named_parameters())
    torch.testing.assert_close(logits(model), logits(other), atol=2e-5, rtol=1e-5)


@needs_packing
def test_matrices_that_are_no_linear_layers_are_known() -> None:
    """Of GPT-2 only the head is one: packed rows are each their own, the others' are not."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=1, n_head=2)
    gpt2 = EngineWeights(GPT2LMHeadModel(config).eval().requires_grad_(False))
    assert not gpt2.all_packed
    for kind in MODELS.values():
        assert EngineWeights(kind(0)).all_packed


@needs_packing
def test_no_second_copy() -> None:
    """Only what something else than a linear layer reads stays in its plain form."""
    for tied in (True, False):
        model = tiny.model(0, tied=tied)
        EngineWeights(model)
        plain = [name for name, weight in model.named_parameters() if weight.device.type != "meta"]
        assert all("norm" in name or "embed_tokens" in name for name in plain), plain


@needs_packing
@pytest.mark.parametrize("shape", [(64, 64), (100, 256), (576, 192), (576, 1536), (1536, 576), (64, 4099)])
def test_a_rows_result_does_not_depend_on_the_others(shape: tuple[int, int]) -> None:
    """Bit for bit, for any number of rows: what makes a draw's tokens independent of what else is in flight."""
    linear = nn.Linear(*shape).requires_grad_(False)
    packed = PackedLinear(linear)
    hidden = torch.randn(200, shape[0], generator=torch.Generator().manual_seed(0))
    whole = packed(hidden)
    for rows in (1, 2, 3, 7, 8, 15, 16, 33, 64, 136, 199):
        assert torch.equal(packed(hidden[:rows]), whole[:rows])
        assert torch.equal(packed(hidden[-rows:].unsqueeze(1)).squeeze(1), whole[-rows:])


class ReadsWeights(nn.Module):
    """A model that uses a linear layer's weight beside calling the layer."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    def forward(self, **kwargs: Any) -> Any:
        """The inner model's, shifted by the sum of a weight."""
        output = self.inner(**kwargs)
        output.logits = output.logits + self.inner.lm_head.weight.sum()
        return output


@needs_packing
def test_a_model_that_reads_its_weights_keeps_them(caplog: pytest.LogCaptureFixture) -> None:
    """It decodes with plain layers, says so, and takes new weights."""
    model, plain, other = (ReadsWeights(tiny.model(seed, tied=False)) for seed in (0, 0, 1))
    weights = EngineWeights(model)
    assert weights.packed == 0
    assert "packed" in caplog.text
    assert torch.equal(logits(model), logits(plain))
    weights.load(other.named_parameters())
    assert torch.equal(logits(model), logits(other))


def test_a_model_that_packing_would_change_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed layers that computed something else would be found out before any token is sampled."""
    monkeypatch.setattr(PackedLinear, "__call__", lambda self, hidden: hidden @ torch.ones(hidden.shape[-1], 1))
    model = tiny.model(0)
    assert EngineWeights(model).packed == 0
    assert torch.equal(logits(model), logits(tiny.model(0)))


def test_rounding_that_one_position_blows_up_is_no_reason_to_give_up() -> None:
    """As seen with a trained model; a layer that computes something else changes nearly all positions."""
    plain = torch.randn(1, 16, 50, generator=torch.Generator().manual_seed(0))
    for changed, same in ((0, True), (1, True), (7, True), (9, False), (16, False)):
        packed = plain.clone()
        packed[0, :changed] += 1e-2
        assert engine_weights._close(packed, plain) is same
    assert engine_weights._close(plain + 1e-6, plain)


@needs_packing
def test_one_wrong_layer_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest there is: one matrix of the last layer, off by a thousandth."""
    model, take, made = tiny.model(0), PackedLinear.take, []

    def off(self: PackedLinear, weight: torch.Tensor) -> None:
        made.append(self)
        take(self, weight * 1.001 if len(made) == len(linears) else weight)

    linears = [module for module in model.modules() if type(module) is torch.nn.Linear]
    assert EngineWeights(tiny.model(0)).packed > 0
    monkeypatch.setattr(PackedLinear, "take", off)
    assert EngineWeights(model).packed == 0


def test_wrong_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed or not: unknown, missing, misshapen."""
    for packing in (True, False):
        if not packing:
            monkeypatch.setattr(engine_weights, "packs", lambda weight: False)
        weights = EngineWeights(tiny.model(0))
        good = dict(tiny.model(1).named_parameters())
        with pytest.raises(EngineError, match="unknown weight x"):
            weights.load([*good.items(), ("x", torch.zeros(1))])
        with pytest.raises(EngineError, match="1 weights missing"):
            weights.load(list(good.items())[:-1])
        name = "model.layers.0.mlp.up_proj.weight"
        with pytest.raises(EngineError, match="has shape"):
            weights.load((good | {name: good[name].T}).items())
