"""The sampler against a slow float64 oracle, goldens at the edges of the CDF, and chi-square tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from dapo.rng import Purpose, uniform
from dapo.rollout.sampler import sample

BELOW_ONE = 1.0 - 2.0**-53  # the largest number that rng.uniform can give
NONE = -math.inf
LOGPROB_BOUND = 5e-6  # float32 rounding of logits up to about 10 in magnitude

Numbers = Sequence[float] | NDArray[np.float64]


def draw(
    logits: torch.Tensor, u: Numbers, temperature: float | Numbers = 1.0, top_p: float | Numbers = 1.0
) -> tuple[list[int], list[float]]:
    """`sample` with plain numbers in and out; one logits row serves every uniform if only one is given."""
    rows = len(u)
    tokens, logprobs = sample(
        logits.expand(rows, -1),
        torch.as_tensor(np.asarray(u, dtype=np.float64)),
        torch.as_tensor(np.broadcast_to(np.float32(temperature), rows).copy()),
        torch.as_tensor(np.broadcast_to(np.float32(top_p), rows).copy()),
    )
    assert tokens.dtype == torch.int64
    assert logprobs.dtype == torch.float32
    assert tokens.shape == logprobs.shape == (rows,)
    return tokens.tolist(), logprobs.tolist()


def distribution(logits: Sequence[float], temperature: float, top_p: float) -> list[float]:
    """Python's own floats: softmax(z / T), the smallest set of most likely tokens of mass top_p, renormalised."""
    top = max(logits)
    mass = [math.exp((z - top) / temperature) for z in logits]
    kept: set[int] = set()
    for token in sorted(range(len(mass)), key=lambda v: (-mass[v], v)):
        if math.fsum(mass[v] for v in kept) >= top_p * math.fsum(mass):
            break
        kept.add(token)
    total = math.fsum(mass[v] for v in kept)
    return [m / total if v in kept else 0.0 for v, m in enumerate(mass)]


def invert(p: Sequence[float], u: float) -> int:
    """The first token at which the running sum exceeds u."""
    for v in range(len(p)):
        if math.fsum(p[: v + 1]) > u:
            return v
    raise AssertionError("u is not below the sum")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("top_p", [1.0, 0.7, 0.95])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.5])
@pytest.mark.parametrize("vocabulary", [1, 7, 61])
def test_equals_the_slow_oracle(vocabulary: int, temperature: float, top_p: float, dtype: torch.dtype) -> None:
    """Token and log-prob are those of the definition, for random logits (some -inf) and uniforms."""
    rng = np.random.default_rng([vocabulary, int(temperature * 10), int(top_p * 100)])
    logits = torch.as_tensor(rng.normal(0, 2, (24, vocabulary))).to(dtype)
    logits[:, 1:][torch.as_tensor(rng.random((24, vocabulary - 1)) < 0.2)] = NONE
    u = rng.random(24)
    tokens, logprobs = draw(logits, u, temperature, top_p)
    for row in range(24):
        p = distribution(logits[row].double().tolist(), temperature, top_p)
        assert tokens[row] == invert(p, u[row])
        assert logprobs[row] == pytest.approx(math.log(p[tokens[row]]), abs=LOGPROB_BOUND)


# V equal logits: every mass is exactly 1, the running sum at token v exactly v + 1, the total V. The
# token is the first with v + 1 > u V, so u = k/V (exact for V a power of two) gives k, not k - 1, and
# the number just below gives k - 1.
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("k", range(1, 8))
def test_ties_split_the_interval_evenly(k: int, dtype: torch.dtype) -> None:
    """A uniform exactly on an edge of the CDF belongs to the token above, one ulp below to the token below."""
    logits = torch.full((1, 8), 1.25, dtype=dtype)
    tokens, logprobs = draw(logits, [k / 8, math.nextafter(k / 8, 0.0)])
    assert tokens == [k, k - 1]
    assert logprobs == pytest.approx([-math.log(8)] * 2, abs=1e-6)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("low", [NONE, -200.0], ids=["-inf", "underflow"])
@pytest.mark.parametrize("seed", range(8))
def test_first_and_last_token_with_mass(seed: int, low: float, top_p: float) -> None:
    """u = 0 takes the first token with mass, u just below 1 the last; tokens around them without mass stay out."""
    rng = np.random.default_rng(seed)
    inner = rng.normal(0, 1, 50)
    logits = torch.as_tensor(np.concatenate([[low] * 3, inner, [low] * 3]), dtype=torch.float32).unsqueeze(0)
    p = distribution(logits[0].tolist(), 1.0, top_p)
    support = [v for v, mass in enumerate(p) if mass > 1e-30]
    tokens, logprobs = draw(logits, [0.0, BELOW_ONE], 1.0, top_p)
    assert tokens == [support[0], support[-1]]
    assert np.isfinite(logprobs).all()


@pytest.mark.parametrize("seed", range(5))
def test_tokens_without_mass_are_never_chosen(seed: int) -> None:
    """Half the vocabulary is forbidden; a fine grid of uniforms finds every other token and no forbidden one."""
    rng = np.random.default_rng(seed)
    logits = torch.as_tensor(rng.normal(0, 1, (1, 16)), dtype=torch.float32)
    forbidden = rng.permutation(16)[:8]
    logits[0, forbidden] = NONE
    grid = np.concatenate([[0.0], (np.arange(4000) + 0.5) / 4000, [BELOW_ONE]])
    tokens, _ = draw(logits, grid)
    assert set(tokens) == set(range(16)) - set(forbidden.tolist())
    assert tokens == sorted(tokens)  # vocabulary order


def test_the_cdf_is_summed_in_float64() -> None:
    """A heavy head does not swallow a long tail of tokens, each below float32's resolution of the sum.

    Masses: 1, then 100 000 times m = exp(-18) = 1.523e-8 < 2^-25, which float32 adds to 1 without
    effect. The total is 1.001523; u = 0.9999 lies in the tail, at token 1 + (0.9999 total - 1) / m
    = 1 + 93 423.
    """
    logits = torch.full((1, 100_001), -18.0)
    logits[0, 0] = 0.0
    m = math.exp(-18.0)
    total = 1.0 + 100_000 * m
    tokens, logprobs = draw(logits, [0.9999])
    assert tokens[0] == pytest.approx(1 + (0.9999 * total - 1) / m, abs=2)
    assert tokens[0] == pytest.approx(93_424, abs=5)
    assert logprobs[0] == pytest.approx(-18.0 - math.log(total), abs=LOGPROB_BOUND)


# Equal logits: sums are exact. V = 4, top_p = 1/2: two tokens hold exactly half, so two are kept, the
# lower ones (ties in vocabulary order). top_p just above needs a third. The most likely token is
# always kept: top_p far below 1/V leaves one.
@pytest.mark.parametrize(("top_p", "kept"), [(0.5, [0, 1]), (0.500001, [0, 1, 2]), (1e-6, [0]), (1.0, [0, 1, 2, 3])])
def test_nucleus_edge(top_p: float, kept: list[int]) -> None:
    """The nucleus is the smallest set that holds top_p, no token more and none fewer."""
    grid = (np.arange(400) + 0.5) / 400
    tokens, logprobs = draw(torch.zeros(1, 4), grid, 1.0, top_p)
    assert sorted(set(tokens)) == kept
    assert logprobs == pytest.approx([-math.log(len(kept))] * 400, abs=1e-6)


def test_top_p_one_cuts_nothing_beside_a_row_that_is_cut() -> None:
    """Token 0 has mass e^-40 = 4e-18, lost in a sum that starts from the largest; u = 0 still selects it."""
    logits = torch.tensor([[-40.0, 0.0]])
    assert draw(logits, [0.0, 0.0], 1.0, [1.0, 0.5])[0] == [0, 1]


def nucleus(p: NDArray[np.float64], top_p: float) -> NDArray[np.float64]:
    """In numpy: cut after the first sorted token whose cumulative mass reaches top_p; renormalise."""
    order = np.argsort(-p, kind="stable")
    size = int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1
    cut = np.zeros_like(p)
    cut[order[:size]] = p[order[:size]]
    return cut / cut.sum()


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.7), (0.5, 0.7), (1.5, 0.9)])
def test_frequencies_follow_the_distribution(temperature: float, top_p: float) -> None:
    """Chi-square of 20 000 tokens on 12 symbols, with the engine's own uniforms: p > 0.001, none outside."""
    draws = 20_000
    logits = np.array([1.3, -0.4, 0.2, 2.0, -1.5, 0.9, 0.0, 1.9, -0.2, 0.6, -3.0, 1.1])
    z = np.exp(logits / temperature)
    expected = nucleus(z / z.sum(), top_p)
    u = uniform(11, Purpose.TOKEN, np.arange(draws), 0, 0)
    tokens, logprobs = draw(torch.as_tensor(logits, dtype=torch.float32).unsqueeze(0), u, temperature, top_p)
    counts = np.bincount(tokens, minlength=12)
    support = expected > 0
    assert counts[~support].sum() == 0
    assert support.sum() == 12 if top_p == 1 else support.sum() < 12
    assert stats.chisquare(counts[support], expected[support] * draws).pvalue > 1e-3
    np.testing.assert_allclose(logprobs, np.log(expected[tokens]), atol=LOGPROB_BOUND)


def test_rows_do_not_influence_each_other() -> None:
    """Temperatures, top-p and greedy rows mixed in one call give, bit for bit, what each row gives alone."""
    rng = np.random.default_rng(3)
    rows = 40
    logits = torch.as_tensor(rng.normal(0, 2, (rows, 33)), dtype=torch.float32)
    u, temperature = rng.random(rows), rng.choice([0.0, 0.5, 0.7, 1.0, 1.5], rows)
    top_p = rng.choice([0.3, 0.7, 0.9, 1.0], rows)
    together = draw(logits, u, temperature, top_p)
    for row in range(rows):
        alone = draw(logits[row : row + 1], u[row : row + 1], temperature[row : row + 1], top_p[row : row + 1])
        assert ([together[0][row]], [together[1][row]]) == alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [2, 31, 1000, 40_000])
def test_greedy_takes_the_lowest_of_tied_tokens(size: int, dtype: torch.dtype) -> None:
    """Ties are common in bf16; the winner must not depend on how a reduction is vectorised."""
    logits = torch.zeros(3, size, dtype=dtype)
    logits[1, size // 2 :] = 3.0
    logits[2, [size // 3, size - 1]] = 5.0
    assert draw(logits, [BELOW_ONE] * 3, 0.0)[0] == [0, size // 2, size // 3]


@pytest.mark.parametrize("top_p", [1.0, 0.1])
@pytest.mark.parametrize("u", [0.0, 0.5, BELOW_ONE])
def test_greedy_log_prob_is_at_temperature_one(u: float, top_p: float) -> None:
    """Temperature 0 ignores the uniform and top-p; log p = z - logsumexp(z) = 2 - log(e^2 + e^1 + 1)."""
    tokens, logprobs = draw(torch.tensor([[1.0, 2.0, 0.0]]), [u], 0.0, top_p)
    assert tokens == [1]
    assert logprobs == pytest.approx([2.0 - math.log(math.e**2 + math.e + 1.0)], abs=1e-6)


def test_sampling_leaves_the_logits_alone() -> None:
    """The prefill's logits serve every response of a draw, so a call must not write into them."""
    logits = torch.tensor([[0.3, -1.0, 2.0]])
    before = logits.clone()
    tokens, _ = draw(logits, [0.1, 0.9], 0.5, 0.7)
    assert tokens == [2, 2]
    assert torch.equal(logits, before)


@pytest.mark.parametrize("vocabulary", [1, 5, 127, 128, 129, 300, 1000])
def test_a_token_without_mass_is_never_chosen(vocabulary: int) -> None:
    """At every edge between blocks, and next to 1: sums taken in two orders differ in their last bit."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(400, vocabulary, generator=generator) * 3
    shut = torch.rand(400, vocabulary, generator=generator) < 0.4
    shut[:, vocabulary // 2 :] |= torch.rand(400, 1, generator=generator) < 0.5
    shut[torch.arange(400), torch.randint(vocabulary, (400,), generator=generator)] = False
    logits = logits.masked_fill(shut, float("-inf"))
    mass = torch.exp(logits - logits.amax(dim=1, keepdim=True)).double()
    edges = (torch.cumsum(mass, 1)[:, [min(127, vocabulary - 1)]] / mass.sum(1, keepdim=True)).squeeze(1)
    near = [edges, torch.nextafter(edges, torch.zeros(400).double()), torch.full((400,), 1 - 2**-53).double()]
    for u in [*near, torch.zeros(400).double()]:
        tokens, logprobs = sample(logits, u.clamp_max(1 - 2**-53), torch.ones(400), torch.ones(400))
        assert bool((mass.gather(1, tokens.unsqueeze(1)) > 0).all())
        assert bool(logprobs.isfinite().all())
