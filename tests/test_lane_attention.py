"""Attention over lanes is attention under the dense mask it stands for."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import FalconConfig, FalconForCausalLM

from dapo.algorithm import dapo_objective
from dapo.errors import ModelError
from dapo.learner.lane_attention import LaneMask, Layout, Run, lane_attention, lay_out
from dapo.learner.settings import LearnerSettings
from dapo.learner.torch_learner import TorchLearner

checked = settings(max_examples=60, deadline=None, derandomize=True)
lane = st.tuples(st.integers(1, 90), st.lists(st.integers(0, 90), min_size=0, max_size=4))
CPU = torch.device("cpu")


def runs_of(lanes: list[tuple[int, list[int]]]) -> tuple[list[Run], Tensor]:
    """Prompts and the responses behind them, and the dense bool mask [N, N] of who sees whom."""
    tokens = sum(prompt + sum(responses) for prompt, responses in lanes)
    dense = torch.zeros(tokens, tokens, dtype=torch.bool)
    runs, place = [], 0
    for prompt, responses in lanes:
        first = place
        runs.append(Run(first, prompt))
        dense[first : first + prompt, first : first + prompt] = torch.ones(prompt, prompt).tril().bool()
        place += prompt
        for count in responses:
            runs.append(Run(place, count, (first, prompt)))
            dense[place : place + count, first : first + prompt] = True
            dense[place : place + count, place : place + count] = torch.ones(count, count).tril().bool()
            place += count
    return runs, dense


def heads(tokens: int, count: int, seed: int) -> Tensor:
    """[1, heads, N, D]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, count, tokens, 8, generator=generator, dtype=torch.float64).requires_grad_(True)


def with_gradients(attend: Any, tensors: list[Tensor]) -> list[Tensor]:
    """The output [N, Q, D] and the gradients of a fixed sum of it."""
    output = attend(*tensors)
    factor = torch.randn(output.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return [output.detach(), *torch.autograd.grad((output * factor).sum(), tensors)]


def by_layout(layout: Layout, scaling: float | None = None) -> Any:
    """lane_attention as transformers calls it."""
    mask = LaneMask.of(layout, CPU)
    return lambda q, k, v: lane_attention(nn.Identity(), q, k, v, mask, scaling)[0][0]


def densely(mask_NN: Tensor, scaling: float | None = None) -> Any:
    """The plain form: repeated heads, softmax over all of the row."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        scores = (q @ k.transpose(2, 3)) * (scaling or q.shape[3] ** -0.5)
        return (torch.softmax(scores.masked_fill(~mask_NN, float("-inf")), -1) @ v)[0].transpose(0, 1)

    return attend


@checked
@given(lanes=st.lists(lane, min_size=1, max_size=4), groups=st.sampled_from([(2, 2), (4, 2), (3, 1)]))
def test_parts_are_the_dense_mask(lanes: list[tuple[int, list[int]]], groups: tuple[int, int]) -> None:
    """Any mixture of long and short prompts and responses: outputs and gradients to 1e-12 in float64."""
    runs, dense = runs_of(lanes)
    tokens = len(dense)
    tensors = [heads(tokens, groups[0], 1), heads(tokens, groups[1], 2), heads(tokens, groups[1], 3)]
    got = with_gradients(by_layout(lay_out(runs, tokens)), tensors)
    expected = with_gradients(densely(dense), tensors)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


def test_the_scale_is_the_models_own() -> None:
    """Models that scale their scores otherwise pass their factor."""
    runs, dense = runs_of([(3, [2, 4])])
    tensors = [heads(9, 2, 1), heads(9, 2, 2), heads(9, 2, 3)]
    got, expected = (attend(*tensors) for attend in (by_layout(lay_out(runs, 9), 0.7), densely(dense, 0.7)))
    torch.testing.assert_close(got, expected)
    assert not torch.allclose(got, densely(dense)(*tensors))


def test_runs_of_unlike_lengths_do_not_pad_each_other() -> None:
    """One long run among many short ones: the rectangles are hardly larger than the tokens."""
    runs, dense = runs_of([(40, [1000, *[30] * 20]), (50, [600])])
    layout = lay_out(runs, len(dense))
    area = sum(part.places_RL.numel() for part in layout.parts)
    assert len(dense) <= area < 1.1 * len(dense)
    assert sorted(layout.result_N.tolist()) == sorted(set(layout.result_N.tolist()))


def test_long_prompts_do_not_pad_short_ones() -> None:
    """One long prompt beside many short ones: keys are gathered about as often as they are read."""
    lanes = [(4000, [64] * 4), *[(20, [64] * 4)] * 40]
    runs, place = [], 0
    for prompt, responses in lanes:
        runs.append(Run(place, prompt))
        runs += [Run(place + prompt + 64 * i, 64, (place, prompt)) for i in range(len(responses))]
        place += prompt + sum(responses)
    layout = lay_out(runs, place)
    gathered = sum(p.owner_R.shape[0] * p.prefix_nP.shape[1] for p in layout.parts if p.prefix_nP is not None)
    assert gathered == 4 * 4000 + 160 * 20


def test_a_model_with_attention_of_its_own_is_refused() -> None:
    """Falcon does not take registered functions: it would let responses see each other, so it has to be padded."""
    torch.manual_seed(0)
    config = FalconConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        alibi=False,
        multi_query=True,
        attn_implementation="sdpa",
    )
    objective = partial(dapo_objective, clip_low=0.2, clip_high=0.28)
    with pytest.raises(ModelError, match=r"train\.packing"):
        TorchLearner(FalconForCausalLM(config), LearnerSettings(), objective)
    TorchLearner(FalconForCausalLM(config), LearnerSettings(packing="padded"), objective)


def test_without_a_mask_it_is_causal() -> None:
    """The padded form brings none."""
    q, k, v = heads(7, 4, 1), heads(7, 2, 2), heads(7, 2, 3)
    got = lane_attention(nn.Identity(), q, k, v, None)[0][0]
    torch.testing.assert_close(got, densely(torch.ones(7, 7).tril().bool())(q, k, v))


@pytest.mark.parametrize(
    "change", [lambda m: m.clone(), lambda m: m.float(), lambda m: m[:, :, :, :1]], ids=["copied", "as floats", "cut"]
)
def test_a_mask_that_lost_its_layout_is_refused(change: Any) -> None:
    """A model that rebuilds the mask would let responses see each other."""
    runs, _ = runs_of([(3, [2, 4])])
    mask = change(LaneMask.of(lay_out(runs, 9), CPU))
    with pytest.raises(ModelError, match=r"train\.packing"):
        lane_attention(nn.Identity(), heads(9, 2, 1), heads(9, 2, 2), heads(9, 2, 3), mask)
