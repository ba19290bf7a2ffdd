"""The learner's log-probs and entropies against float64 and the plain form in algorithm.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dapo.algorithm import collision, token_logprobs
from dapo.learner.logprobs import ROWS
from dapo.learner.logprobs import token_logprobs as fused

INF = float("inf")


def case(rows: int, vocabulary: int, dtype: torch.dtype, scale: float = 5.0) -> tuple[Tensor, Tensor]:
    """Logits [N, V] and tokens [N]."""
    generator = torch.Generator().manual_seed(rows * vocabulary)
    logits = torch.randn(rows, vocabulary, generator=generator) * scale
    return logits.to(dtype), torch.randint(vocabulary, (rows,), generator=generator)


def outcome(function: object, logits: Tensor, tokens: Tensor, temperature: float, entropy: bool) -> list[Tensor]:
    """Log-probs, entropies and the gradient of a sum of the first (and of the second)."""
    leaf = logits.clone().requires_grad_(True)
    logprobs, entropies, *_ = function(leaf * 1, tokens, temperature)  # type: ignore[operator]
    weights = torch.linspace(-2, 3, len(tokens))
    loss = (weights * logprobs).sum() + ((weights.flip(0) * entropies).sum() if entropy else 0.0)
    loss.backward()
    assert leaf.grad is not None
    return [logprobs.detach(), entropies.detach(), leaf.grad.float()]


def exact(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The definition, in float64."""
    all_NV = torch.log_softmax(logits.double() / temperature, dim=-1)
    entropies = -(all_NV.exp() * all_NV.clamp_min(torch.finfo(torch.float64).min)).sum(-1)
    return all_NV.gather(1, tokens.unsqueeze(1)).squeeze(1), entropies


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 1), (1, 7), (ROWS, 50), (ROWS + 1, 50), (3 * ROWS - 1, 1001)])
def test_the_definition(rows: int, vocabulary: int, dtype: torch.dtype, temperature: float, entropy: bool) -> None:
    """Values to 1e-5, gradients to 3e-5: logits of size 30 are 2e-6 apart in float32 (bfloat16: its own rounding)."""
    logits, tokens = case(rows, vocabulary, dtype)
    got = outcome(fused, logits, tokens, temperature, entropy)
    expected = [part.float() for part in outcome(exact, logits, tokens, temperature, entropy)]
    for a, b in zip(got[:2], expected[:2], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-6)
    bound = 3e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got[2], expected[2], atol=bound, rtol=bound)


def test_the_plain_form() -> None:
    """What algorithm.py documents and the learner runs are one function."""
    logits, tokens = case(40, 200, torch.float32, scale=2.0)
    for temperature in (1.0, 0.7):
        got = outcome(fused, logits, tokens, temperature, True)
        expected = outcome(lambda x, y, t: token_logprobs(x, y, t, True), logits, tokens, temperature, True)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
def test_the_chance_of_one_token_twice(scale: float, temperature: float) -> None:
    """sum_v p_v^2, of flat and of sharp distributions; and by it the norm of the gradient over the logits."""
    logits, tokens = case(3 * ROWS - 1, 101, torch.float32, scale)
    got = fused(logits.clone(), tokens, temperature)[2]
    p = torch.softmax(logits.double() / temperature, dim=-1)
    torch.testing.assert_close(got.double(), p.square().sum(-1), atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(collision(logits, temperature), got, atol=1e-7, rtol=1e-5)
    leaf = logits.double().requires_grad_(True)
    torch.log_softmax(leaf / temperature, -1).gather(1, tokens.unsqueeze(1)).sum().backward()
    assert leaf.grad is not None
    p_y = p.gather(1, tokens.unsqueeze(1)).squeeze(1)
    norm = (1 - 2 * p_y + got.double()).clamp_min(0).sqrt() / temperature
    torch.testing.assert_close(leaf.grad.norm(dim=1), norm, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_extreme_logits(temperature: float) -> None:
    """Shut-off tokens (-inf), a certain one, and large offsets give finite, right values and finite gradients."""
    logits = torch.tensor([[0.0, -INF, 1.0, -INF], [1e4, 0.0, -1e4, 1.0], [3e4, 3e4, -INF, 3e4]])
    tokens = torch.tensor([2, 0, 1])
    for entropy in (False, True):
        got = outcome(fused, logits, tokens, temperature, entropy)
        assert all(bool(part.isfinite().all()) for part in got)
        logprobs, entropies = exact(logits, tokens, temperature)
        # log Z = 3e4 + log 3 has a step of 2e-3 (4e-3 at T = 0.5) in float32; the entropy does not go through it.
        torch.testing.assert_close(got[0].double(), logprobs, atol=4e-3, rtol=0)
        torch.testing.assert_close(got[1].double(), entropies, atol=1e-6, rtol=0)


def test_the_input_is_left_alone_in_the_forward_pass() -> None:
    """Only backward writes over the logits."""
    logits, tokens = case(20, 30, torch.float32)
    before = logits.clone()
    fused(logits, tokens, 0.7)
    fused(logits, tokens, 1.0)
    assert torch.equal(logits, before)


def test_gradients_by_finite_differences() -> None:
    """Not only against the other implementation: the derivative itself, of both results."""
    logits, tokens = case(3, 5, torch.float32, scale=1.0)
    got = outcome(fused, logits, tokens, 1.3, True)[2]
    weights = torch.linspace(-2, 3, 3)

    def loss(x: Tensor) -> float:
        logprobs, entropies = token_logprobs(x.double().float(), tokens, 1.3, True)
        return float((weights * logprobs).double().sum() + (weights.flip(0) * entropies).double().sum())

    step = 1e-2
    for n in range(3):
        for v in range(5):
            shift = torch.zeros_like(logits)
            shift[n, v] = step
            slope = (loss(logits + shift) - loss(logits - shift)) / (2 * step)
            assert float(got[n, v]) == pytest.approx(slope, abs=2e-3)
