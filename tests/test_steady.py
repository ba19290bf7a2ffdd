"""A number's activation, and a draw's tokens, do not depend on what stands beside them: any size, any threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import FalconConfig, FalconForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.activations import ACT2FN

import tiny
from dapo.rollout.slot_cache import READ_BLOCK, _two_products
from dapo.rollout.steady import Steady, activations, is_whole, steady
from dapo.rollout.torch_engine import TorchEngine
from dapo.rollout.weights import packs
from helpers_engine import collect, ids, params
from tiny import prompt

THREADS = [1, 2, 3, 5, 7, 16]
NAMES = ["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "quick_gelu", "sigmoid", "relu", "relu2", "tanh", "mish"]
SIZES = [1, 31, 64, 4800, 16384, 16385, 32832, 100_003, 4864 * 67]


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def in_company_of_itself(function: Callable[[Tensor], Tensor], numbers: Tensor) -> Tensor:
    """The oracle: each number where it fills whole vectors."""
    return torch.stack([function(number.repeat(64))[0] for number in numbers])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_a_numbers_result_does_not_depend_on_the_others(
    name: str, dtype: torch.dtype, threads: Callable[[int], None]
) -> None:
    """Bit for bit, at both ends of tensors of any size and at the seams between threads."""
    module = ACT2FN[name]
    ours, generator = Steady(module.forward), torch.Generator().manual_seed(0)
    for size in SIZES:
        numbers = (torch.randn(size, generator=generator) * 3).to(dtype)
        seams = {size * part // count for count in THREADS for part in range(count + 1)}
        near = sorted({place + by for place in seams for by in (-33, -9, -1, 0, 1, 8) if 0 <= place + by < size})
        expected = in_company_of_itself(module, numbers[near])
        for count in THREADS:
            threads(count)
            assert torch.equal(ours(numbers)[near], expected), (size, count)


def test_plain_activations_do_depend_on_it(threads: Callable[[int], None]) -> None:
    """What this is for: once torch's own are steady, the file can go."""
    numbers = torch.randn(100_003, generator=torch.Generator().manual_seed(0)) * 3
    threads(7)
    steadily = Steady(nn.SiLU().forward)(numbers)
    assert not torch.equal(nn.SiLU()(numbers), steadily)
    assert float((nn.SiLU()(numbers) - steadily).abs().max()) < 1e-6


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 4), (1,), (2, 3, 48), (5, 1, 64)])
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    """Those of nothing too, and those that do not stand in one piece."""
    numbers = torch.randn(shape)
    assert Steady(nn.SiLU().forward)(numbers).shape == shape
    if len(shape) > 1:
        turned = numbers.transpose(0, 1)
        torch.testing.assert_close(Steady(nn.SiLU().forward)(turned), nn.SiLU()(turned))


def test_what_is_whole_is_left_to_torch() -> None:
    """Real widths on few threads cost nothing."""
    for width in (1536, 4864, 5632, 8960, 11008):
        for rows in (1, 8, 37, 64, 256):
            assert is_whole(width * rows, 1)
            assert is_whole(width * rows, 2)
    assert not is_whole(48, 1)
    assert not is_whole(4864 * 300, 7)


def test_activations_of_models_are_found() -> None:
    """As modules, once each; softmax is none of them."""
    found = activations(tiny.model(0).modules())
    assert [type(module).__name__ for module in found] == ["SiLUActivation"] * 2
    falcon = FalconForCausalLM(FalconConfig(vocab_size=9, hidden_size=32, num_hidden_layers=3, num_attention_heads=4))
    assert len(activations(falcon.modules())) == 3
    assert len(activations([nn.Softmax(dim=-1), nn.GLU(), nn.LogSoftmax(dim=-1), nn.Linear(2, 2), nn.GELU()])) == 1
    model = tiny.model(0)
    steady(model)
    first = model.model.layers[0].mlp.act_fn.forward
    steady(model)
    assert model.model.layers[0].mlp.act_fn.forward is first


OWN = [1, 5, 63, 64, 65, 128, 129, 191, 193, 257, 300, 321, 511, 513, 700, 1025]


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("size", [8, 36, 64, 128])
@pytest.mark.parametrize(("heads", "group"), [(1, 1), (1, 4), (3, 3), (2, 7), (8, 1)])
def test_attention_does_not_depend_on_what_longer_rows_read(
    heads: int, group: int, size: int, count: int, threads: Callable[[int], None]
) -> None:
    """Bit for bit: a row that has only its own positions read, and one beside rows of any length."""
    threads(count)
    generator = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, len(OWN), heads, max(OWN) + READ_BLOCK, size, generator=generator)
    queries = torch.randn(len(OWN), heads, group, size, generator=generator)

    def attended(rows: list[int], longest: int) -> Tensor:
        filled = -(-longest // READ_BLOCK) * READ_BLOCK
        beyond = torch.arange(filled) >= torch.tensor([OWN[row] for row in rows]).unsqueeze(1)
        mask = torch.zeros(beyond.shape).masked_fill(beyond, float("-inf"))[:, None, None, :]
        given = queries[rows], keys[rows][:, :, :filled], values[rows][:, :, :filled], mask
        return _two_products(*given, size**-0.5).reshape(len(rows), heads, group, size)

    together = attended(list(range(len(OWN))), max(OWN))
    for row, own in enumerate(OWN):
        assert torch.equal(attended([row] * 8, own)[0], together[row]), own
        expected = scaled_dot_product(queries[row], keys[row, :, :own], values[row, :, :own])
        torch.testing.assert_close(together[row].double(), expected, atol=2e-6, rtol=1e-5)


def scaled_dot_product(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The formula, in float64."""
    scores = query.double() @ key.double().transpose(1, 2) / query.shape[-1] ** 0.5
    return scores.softmax(dim=-1) @ value.double()


def odd_qwen() -> Any:
    """Biases; no width is a multiple of a vector's."""
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=53,
        hidden_size=36,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).float().eval().requires_grad_(False)


def wide_llama() -> Any:
    """Products over more than 1024 numbers, one key-value head."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=1088,
        intermediate_size=1100,
        num_hidden_layers=1,
        num_attention_heads=17,
        num_key_value_heads=1,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).float().eval().requires_grad_(False)


@pytest.mark.parametrize("count", THREADS)
@pytest.mark.parametrize("make", [odd_qwen, wide_llama, lambda: tiny.model(2, kv_heads=1)], ids=["odd", "wide", "tiny"])
def test_a_draw_alone_is_the_draw_in_company(
    make: Callable[[], Any], count: int, threads: Callable[[int], None]
) -> None:
    """Law 5: tokens and log-probs, bit for bit, of prompts of one token and of hundreds."""
    if not packs(torch.zeros(1)):
        pytest.skip("this machine's torch has no oneDNN")
    threads(count)
    lengths = [1, 1, 2, 5, 17, 1, 180, 3, 64, 1, 300, 40]
    prompts = [np.random.default_rng(i).integers(4, 50, n).tolist() for i, n in enumerate(lengths)]

    def sampled(draws: list[int]) -> dict[int, list[tuple[list[int], list[float]]]]:
        engine = TorchEngine(make(), eos_ids=(), slots=64, max_tokens=330)
        for draw in draws:
            engine.submit(draw, prompt(prompts[draw]), params(24, n=5))
        found = collect(engine, draws)
        return {draw: [(ids(one), one.engine_logprobs.tolist()) for one in found[draw]] for draw in draws}

    together = sampled(list(range(len(prompts))))
    for draw in range(len(prompts)):
        assert sampled([draw])[draw] == together[draw], f"draw {draw}, {lengths[draw]} tokens of prompt"
