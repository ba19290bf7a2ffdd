"""The algorithm against derivations, a plain-Python oracle, finite differences and identities.

Suffixes as in algorithm.py: P prompts, G responses of each, B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference as ref
from dapo import algorithm as alg
from dapo.clipping import clip_statistics

LOW, HIGH = 0.2, 0.28
JUNK = (math.nan, math.inf, -math.inf, 1e30, -1e30)
checked = settings(max_examples=40, deadline=None, derandomize=True)


# --- rows of the oracle as tensors of the package -------------------------------------------------


def padded(lists: Sequence[Sequence[Any]], fill: float | bool, width: int) -> Tensor:
    """Ragged lists as [B, T], float64 or bool, padded on the right with `fill`."""
    kind = torch.bool if isinstance(fill, bool) else torch.float64
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in lists], dtype=kind).reshape(-1, width)


def as_inputs(rows: Sequence[ref.Row], pad: int = 1, junk: float = 0.0) -> alg.ObjectiveInputs:
    """float64 inputs, `pad` columns wider than the longest row, with `junk` wherever the mask is off."""
    width = max((len(row["logp"]) for row in rows), default=0) + pad
    mask_BT = padded([row["mask"] for row in rows], False, width)
    logprobs_BT = padded([row["logp"] for row in rows], 0.0, width).masked_fill(~mask_BT, junk)
    return alg.ObjectiveInputs(
        logprobs_BT=logprobs_BT.requires_grad_(True),
        old_logprobs_BT=padded([row["old"] for row in rows], 0.0, width).masked_fill(~mask_BT, junk),
        advantages_BT=torch.tensor([row["advantage"] for row in rows], dtype=torch.float64)[:, None].expand(
            mask_BT.shape
        ),
        mask_BT=mask_BT,
    )


def weights_of(
    rows: Sequence[ref.Row],
    reduction: str,
    constant: int | None = None,
    cut: Sequence[Sequence[int]] | None = None,
) -> Tensor:
    """The package's row weights for the oracle's rows."""
    tokens_B = torch.tensor([sum(row["mask"]) for row in rows], dtype=torch.int64)
    draw_B = torch.tensor([row["draw"] for row in rows], dtype=torch.int64)
    return alg.row_weights(
        tokens_B,
        draw_B,
        reduction,  # type: ignore[arg-type]
        constant_tokens=constant,
        microbatches=cut,
    )


def loss_and_gradient(inputs: alg.ObjectiveInputs, weights_B: Tensor, **objective: Any) -> tuple[float, Tensor]:
    """The package's loss of a batch and d loss / d logprob [B, T]."""
    loss_BT = alg.dapo_objective(inputs, **{"clip_low": LOW, "clip_high": HIGH, **objective})
    loss = alg.weighted_loss(loss_BT, inputs.mask_BT, weights_B)
    (gradient_BT,) = torch.autograd.grad(loss, inputs.logprobs_BT)
    return loss.item(), gradient_BT


def row(draw: int, advantage: float, ratios: Sequence[float], mask: Sequence[bool] | None = None) -> ref.Row:
    """A row whose tokens have these ratios to an old log-prob of -1."""
    return {
        "draw": draw,
        "advantage": advantage,
        "logp": [-1.0 + math.log(r) for r in ratios],
        "old": [-1.0] * len(ratios),
        "mask": [True] * len(ratios) if mask is None else list(mask),
    }


# Ratios with a kink (the clips, the dual bound, the clamp) have no gradient to compare.
KINKS = (math.log(1 - LOW), math.log(1 + HIGH), math.log(3.0), 1.5, -1.5)
log_ratios = st.floats(-2.5, 2.5).filter(lambda x: min(abs(x - kink) for kink in KINKS) > 1e-3)


@st.composite
def batches(draw: st.DrawFn) -> list[ref.Row]:
    """1 to 5 rows of 0 to 4 tokens with any mask: empty rows, filtered rows and whole batches of them."""
    rows: list[ref.Row] = []
    for _ in range(draw(st.integers(1, 5))):
        length = draw(st.integers(0, 4))
        old = draw(st.lists(st.floats(-6.0, 0.0), min_size=length, max_size=length))
        ratios = draw(st.lists(log_ratios, min_size=length, max_size=length))
        masks = st.lists(st.booleans(), min_size=length, max_size=length)
        rows.append(
            {
                "draw": draw(st.sampled_from([0, 3, 7_000_000_000])),
                "advantage": draw(st.floats(-3.0, 3.0)),
                "logp": [p + x for p, x in zip(old, ratios, strict=True)],
                "old": old,
                "mask": draw(masks | st.just([True] * length) | st.just([False] * length)),
            }
        )
    return rows


@st.composite
def cuts(draw: st.DrawFn, rows: int) -> list[list[int]]:
    """Any cut of the rows into micro-batches, in any order."""
    order = draw(st.permutations(range(rows)))
    ends = sorted(draw(st.sets(st.integers(1, rows - 1)))) if rows > 1 else []
    return [list(order[a:b]) for a, b in itertools.pairwise([0, *ends, rows])]


# --- golden numbers, each with its derivation -----------------------------------------------------

# Row 1: A = +1, r = 1.5: loss -min(1.5, 1.28) = -1.28, and no gradient, being clipped.
# Row 2: A = -1, r = .5, 1, 2: loss max(r, .8) = .8, 1, 2; only the last two move with r.
GOLDEN = [row(1, +1.0, [1.5]), row(2, -1.0, [0.5, 1.0, 2.0])]


@pytest.mark.parametrize(
    ("reduction", "high", "expected"),
    [
        ("minibatch", 0.28, 0.63),  # (-1.28 + .8 + 1 + 2) / 4
        ("minibatch", 0.20, 0.65),  # (-1.20 + .8 + 1 + 2) / 4
        ("sequence", 0.28, -0.02 / 3),  # (-1.28 + 3.8 / 3) / 2 = -.0067
        ("group", 0.28, -0.02 / 3),  # two draws of one row each: as by sequence
        ("microbatch", 0.28, -0.02 / 3),  # the cut {1}, {2}: shares 1/2 and 1/2
        ("constant", 0.28, 0.252),  # (-1.28 + 3.8) / (2 rows x 5)
    ],
)
def test_golden_loss(reduction: str, high: float, expected: float) -> None:
    """The four tokens of STYLE's golden, reduced in every scope."""
    weights_B = weights_of(GOLDEN, reduction, constant=5, cut=[[0], [1]])
    loss, _ = loss_and_gradient(as_inputs(GOLDEN), weights_B, clip_high=high)
    assert loss == pytest.approx(expected, abs=1e-12)


def test_golden_gradient() -> None:
    """d loss / d logprob = w d(-r A)/d log r = w |A| r / 4 tokens where not clipped: 0 | 0, 1/4, 2/4."""
    _, gradient_BT = loss_and_gradient(as_inputs(GOLDEN, pad=0), weights_of(GOLDEN, "minibatch"))
    expected = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.25, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(gradient_BT, expected, rtol=0, atol=1e-12)


def test_golden_group_of_both_rows() -> None:
    """One draw of both rows is one group: its token mean is the batch's, .63."""
    rows: list[ref.Row] = [{**r, "draw": 9} for r in GOLDEN]
    loss, _ = loss_and_gradient(as_inputs(rows), weights_of(rows, "group"))
    assert loss == pytest.approx(0.63, abs=1e-12)


@pytest.mark.parametrize(
    ("correction", "right", "wrong"),
    [
        (1, 0.5, -1.5),  # mean .5; deviations .5 x3, -1.5; std sqrt(3 / 3) = 1
        (0, 0.5 / math.sqrt(0.75), -1.5 / math.sqrt(0.75)),  # std sqrt(3 / 4): .5774, -1.7321
    ],
)
def test_golden_advantages(correction: int, right: float, wrong: float) -> None:
    """Rewards (1, 1, 1, -1) without eps."""
    got = alg.group_advantages(torch.tensor([[1.0, 1.0, 1.0, -1.0]]), std_correction=correction, eps=0.0)
    assert got[0].tolist() == pytest.approx([right] * 3 + [wrong], abs=1e-6)
    if correction == 0:
        assert (right, wrong) == pytest.approx((0.5774, -1.7321), abs=5e-5)


def test_golden_one_right_of_sixteen() -> None:
    """mean -.875; deviations 1.875 and -.125 x15; variance (3.515625 + .234375) / 15 = .25, so 3.75, -.25.

    The code's eps of 1e-6 takes 3.75 to 1.875 / .500001 = 3.7499925.
    """
    rewards_PG = torch.tensor([[1.0] + [-1.0] * 15])
    exact = alg.group_advantages(rewards_PG, std_correction=1, eps=0.0)[0]
    assert exact.tolist() == [3.75] + [-0.25] * 15
    with_eps = alg.group_advantages(rewards_PG, std_correction=1, eps=1e-6)[0, 0].item()
    assert with_eps == pytest.approx(1.875 / 0.500001, abs=5e-7)


@pytest.mark.parametrize(
    ("length", "limit", "expected"),
    [
        (16384, 20480, 0.0),  # the buffer starts behind 20480 - 4096 = 16384
        (16385, 20480, -1 / 4096),
        (18432, 20480, -0.5),  # (16384 - 18432) / 4096
        (20480, 20480, -1.0),
        (30000, 20480, -1.0),  # never below -1
        (14336, 16384, -0.5),  # (12288 - 14336) / 4096: a right answer keeps .5
        (13000, 16384, -712 / 4096),  # (12288 - 13000) / 4096 = -.174
    ],
)
def test_golden_overlong(length: int, limit: int, expected: float) -> None:
    """Eq. 13 with Lcache 4096."""
    got = alg.overlong_penalty(torch.tensor([length]), max_tokens=limit, buffer_tokens=4096)
    assert got.tolist() == [expected]
    assert round(-712 / 4096, 3) == -0.174


@pytest.mark.parametrize(("right", "expected"), [(0.01, 0.148542), (0.1, 0.814698), (0.5, 0.999969)])
def test_golden_acceptance(right: float, expected: float) -> None:
    """1 - p^16 - (1-p)^16 is the weight of the groups that `informative` keeps, of all 2^16 there are."""
    assert ref.acceptance(right, 16) == pytest.approx(expected, abs=5e-7)
    bits = torch.arange(2**16).unsqueeze(1) >> torch.arange(16)
    correct_PG = (bits & 1).bool()
    chance_P = torch.where(correct_PG, right, 1 - right).double().prod(dim=1)
    assert chance_P[alg.informative(correct_PG)].sum().item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("lengths", "expected"), [((900, 100), 0.8), ((100, 900), -0.8)])
def test_golden_length_weighted_advantage(lengths: tuple[int, int], expected: float) -> None:
    """A = +1, -1 at ratio 1: the token mean pays (900 - 100) / 1000 = .8 to length, the sequence mean 0."""
    rows = [row(0, a, [1.0] * n) for a, n in zip((1.0, -1.0), lengths, strict=True)]
    loss, _ = loss_and_gradient(as_inputs(rows), weights_of(rows, "minibatch"))
    assert -loss == pytest.approx(expected, abs=1e-12)
    by_sequence, _ = loss_and_gradient(as_inputs(rows), weights_of(rows, "sequence"))
    assert by_sequence == pytest.approx(0.0, abs=1e-12)


def test_golden_microbatch_token_weights() -> None:
    """verl's token-mean on micro-batches of 2 long (20400 tokens) and 50 short sequences (19000).

    A token of the first weighs (2/52) / 20400, of the second (50/52) / 19000, in units of a true
    token mean's 1/39400: .0743 and 1.9939.
    """
    tokens_B, draw_B = torch.tensor([10200] * 2 + [380] * 50), torch.arange(52)
    cut = [range(2), range(2, 52)]
    relative = alg.row_weights(tokens_B, draw_B, "microbatch", microbatches=cut) * 39400
    assert relative[0].item() == pytest.approx(2 / 52 * 39400 / 20400, rel=1e-12)
    assert [round(relative[i].item(), 2) for i in (0, 1, 2, 51)] == [0.07, 0.07, 1.99, 1.99]
    exact = alg.row_weights(tokens_B, draw_B, "minibatch") * 39400
    assert exact.tolist() == pytest.approx([1.0] * 52)


@pytest.mark.parametrize(("dual", "expected"), [(None, 30.0), (10.0, 10.0)])
def test_golden_dual_clip(dual: float | None, expected: float) -> None:
    """r = 30: A = -1 costs 30, or c = 10 and then without gradient; A = +1 is clipped at 1.28 anyway."""
    rows = [row(0, -1.0, [30.0]), row(0, 1.0, [30.0])]
    inputs = as_inputs(rows, pad=0)
    loss_BT = alg.dapo_objective(inputs, clip_low=LOW, clip_high=HIGH, clip_dual=dual)
    assert loss_BT.flatten().tolist() == pytest.approx([expected, -1.28])
    (gradient_BT,) = torch.autograd.grad(loss_BT.sum(), inputs.logprobs_BT)
    assert gradient_BT.flatten().tolist() == pytest.approx([30.0 if dual is None else 0.0, 0.0])


# --- the oracle: values and gradients -------------------------------------------------------------


@pytest.mark.parametrize("reduction", ref.REDUCTIONS)
@pytest.mark.parametrize("knobs", [{}, {"dual": 3.0}, {"clamp": 1.5}])
@checked
@given(data=st.data())
def test_loss_and_gradient_are_the_oracles(reduction: str, knobs: dict[str, float], data: st.DataObject) -> None:
    """Value, and autograd against central differences of the oracle, token by token."""
    rows = data.draw(batches())
    cut = data.draw(cuts(len(rows)))
    inputs = as_inputs(rows)
    loss, gradient_BT = loss_and_gradient(
        inputs,
        weights_of(rows, reduction, constant=7, cut=cut),
        clip_dual=knobs.get("dual"),
        log_ratio_clamp=knobs.get("clamp"),
    )

    def oracle() -> float:
        scope: dict[str, Any] = {"constant": 7, "microbatches": cut, "low": LOW, "high": HIGH}
        return ref.batch_loss(rows, reduction, **scope, **knobs)

    assert loss == pytest.approx(oracle(), rel=1e-9, abs=1e-12)
    expected_BT, step = torch.zeros_like(gradient_BT), 1e-5
    for b, oracle_row in enumerate(rows):
        for t, logp in enumerate(list(oracle_row["logp"])):
            sides = []
            for side in (step, -step):
                oracle_row["logp"][t] = logp + side
                sides.append(oracle())
            oracle_row["logp"][t] = logp
            expected_BT[b, t] = (sides[0] - sides[1]) / (2 * step)
    torch.testing.assert_close(gradient_BT, expected_BT, rtol=1e-6, atol=1e-8)


@checked
@given(batches(), st.floats(0.05, 0.9), st.floats(0.01, 3.0), st.none() | st.floats(1.01, 4.0))
def test_objective_is_the_oracles_for_any_clips(
    rows: list[ref.Row], low: float, high: float, dual: float | None
) -> None:
    """Per token, for clips on either side of each other and of the dual bound."""
    inputs = as_inputs(rows)
    loss_BT = alg.dapo_objective(inputs, clip_low=low, clip_high=high, clip_dual=dual)
    losses = ref.token_losses(rows, lambda p, q, a: ref.token_objective(p, q, a, low, high, dual))
    expected_BT = padded(losses, 0.0, loss_BT.shape[1])
    torch.testing.assert_close(loss_BT, expected_BT, rtol=1e-12, atol=1e-12)


@checked
@given(batches(), st.floats(0.5, 3.0))
def test_kl_and_importance_are_the_oracles(rows: list[ref.Row], cap: float) -> None:
    """Both per token; KL's gradient is 1 - exp(x); the weight is detached; off the mask 0 and 1."""
    inputs = as_inputs(rows)
    kl_BT = alg.kl_estimate(inputs.logprobs_BT, inputs.old_logprobs_BT, inputs.mask_BT)
    expected = ref.token_losses(rows, lambda p, q, _: ref.kl_k3(p, q))
    torch.testing.assert_close(kl_BT, padded(expected, 0.0, kl_BT.shape[1]), rtol=1e-9, atol=1e-12)
    assert kl_BT.min() >= 0
    (gradient_BT,) = torch.autograd.grad(kl_BT.sum(), inputs.logprobs_BT)
    slopes = ref.token_losses(rows, lambda p, q, _: 1 - math.exp(q - p))
    torch.testing.assert_close(gradient_BT, padded(slopes, 0.0, kl_BT.shape[1]), rtol=1e-9, atol=1e-12)

    weights_BT = alg.importance_weights(inputs.logprobs_BT, inputs.old_logprobs_BT, inputs.mask_BT, cap)
    assert not weights_BT.requires_grad
    expected_w = ref.token_losses(rows, lambda p, q, _: ref.importance_weight(p, q, cap))
    expected_BT = padded(expected_w, 0.0, weights_BT.shape[1]).masked_fill(~inputs.mask_BT, min(1.0, cap))
    torch.testing.assert_close(weights_BT, expected_BT, rtol=1e-12, atol=0)


@checked
@given(batches(), st.none() | st.just(3.0), st.none() | st.just(1.5))
def test_clip_statistics_are_the_oracles(rows: list[ref.Row], dual: float | None, clamp: float | None) -> None:
    """Sums over loss tokens, whatever lies outside the mask."""
    knobs: dict[str, Any] = {"clip_low": LOW, "clip_high": HIGH, "clip_dual": dual, "log_ratio_clamp": clamp}
    expected = ref.clip_counts(rows, LOW, HIGH, dual, clamp)
    for junk in (0.0, *JUNK):
        got = clip_statistics(as_inputs(rows, junk=junk), **knobs)
        assert {name: value.item() for name, value in got.items()} == pytest.approx(expected, rel=1e-12)


@checked
@given(
    st.lists(st.floats(-20.0, 20.0), min_size=1, max_size=8),
    st.integers(0, 7),
    st.floats(0.25, 4.0),
)
def test_token_logprobs_are_the_oracles(logits: list[float], token: int, temperature: float) -> None:
    """log-softmax, its gradient (onehot - pi) / T, and the entropy, which carries none."""
    token %= len(logits)
    logits_NV = torch.tensor([logits, logits[::-1]], requires_grad=True)
    tokens_N = torch.tensor([token, len(logits) - 1 - token])
    logprobs_N, entropy_N = alg.token_logprobs(logits_NV, tokens_N, temperature)
    stored = logits_NV[0].tolist()
    log_pi = [ref.log_softmax(stored, v, temperature) for v in range(len(logits))]
    assert logprobs_N.tolist() == pytest.approx([log_pi[token]] * 2, abs=5e-5)
    top = max(abs(z) for z in stored) / temperature
    tolerance = 2e-6 + 2e-7 * top**2  # log_z is good to eps * top, and multiplies sum p z
    assert entropy_N.tolist() == pytest.approx([ref.entropy(stored, temperature)] * 2, abs=tolerance)
    assert not entropy_N.requires_grad
    (gradient_NV,) = torch.autograd.grad(logprobs_N[0], logits_NV)
    slopes = [((v == token) - math.exp(log_pi[v])) / temperature for v in range(len(logits))]
    assert gradient_NV[0].tolist() == pytest.approx(slopes, abs=5e-5)
    assert gradient_NV[1].eq(0).all()


def test_token_logprobs_compute_in_float32() -> None:
    """bfloat16 logits give what their float32 values give; huge ones stay finite."""
    logits_NV = torch.tensor([[1.5, -2.25, 3.0], [1e4, 0.0, -1e4]], dtype=torch.bfloat16)
    tokens_N = torch.tensor([0, 2])
    got = alg.token_logprobs(logits_NV, tokens_N)
    wide = alg.token_logprobs(logits_NV.float(), tokens_N)
    for a, b in zip(got, wide, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)
        assert a.isfinite().all()


def test_entropy_of_a_token_that_cannot_be() -> None:
    """A logit of -inf (a vocabulary's unused ids) has probability 0, and 0 log 0 = 0: H of two equals."""
    _, entropy_N = alg.token_logprobs(torch.tensor([[0.0, 0.0, -math.inf]]), torch.tensor([0]))
    assert entropy_N.item() == pytest.approx(ref.entropy([0.0, 0.0, -math.inf]))
    assert entropy_N.item() == pytest.approx(math.log(2))


@checked
@given(st.integers(0, 3000), st.integers(1, 1000), st.data(), st.floats(0.01, 1.99))
def test_overlong_penalty_is_the_oracles(length: int, limit: int, data: st.DataObject, factor: float) -> None:
    """All three cases; in [-factor, 0]; with a factor under 2 a right answer stays over a wrong one."""
    buffer = data.draw(st.integers(1, limit))
    got = alg.overlong_penalty(torch.tensor([[length]]), max_tokens=limit, buffer_tokens=buffer, factor=factor).item()
    assert got == pytest.approx(ref.overlong_penalty(length, limit, buffer, factor), abs=1e-6)
    assert -factor - 1e-6 <= got <= 0
    assert 1 + got > -1


# --- advantages -----------------------------------------------------------------------------------

groups = st.lists(st.sampled_from([-1.0, 1.0]) | st.floats(-5.0, 5.0), min_size=2, max_size=16)


@checked
@given(groups, st.sampled_from([0, 1]), st.sampled_from([0.0, 1e-6, 0.1]))
def test_advantages_are_the_oracles(rewards: list[float], correction: int, eps: float) -> None:
    """Each group by itself: the neighbours below must not leak in."""
    spread = max(rewards) - min(rewards)
    assume(spread == 0 or spread > 1e-3)
    rewards_PG = torch.tensor([rewards, [0.0] * len(rewards), rewards[::-1]], dtype=torch.float64)
    got = alg.group_advantages(rewards_PG, std_correction=correction, eps=eps)
    expected = ref.group_advantages(rewards, correction, eps)
    assert got[0].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert got[1].tolist() == [0.0] * len(rewards)
    assert got[2].tolist() == pytest.approx(expected[::-1], rel=1e-5, abs=1e-6)
    assert abs(got[0].double().sum().item()) < 1e-5 * len(rewards)
    if correction == 0:
        assert got.abs().max() <= math.sqrt(len(rewards) - 1) * (1 + 1e-6)


@pytest.mark.parametrize("group_size", [2, 8, 16])
def test_binary_closed_form(group_size: int) -> None:
    """ddof 0, k right of G: right sqrt((G-k)/k), wrong -sqrt(k/(G-k)); the bound is met at k = 1."""
    for k in range(1, group_size):
        rewards_PG = torch.tensor([[1.0] * k + [-1.0] * (group_size - k)])
        got = alg.group_advantages(rewards_PG, std_correction=0, eps=0.0)[0].tolist()
        right, wrong = math.sqrt((group_size - k) / k), -math.sqrt(k / (group_size - k))
        assert got == pytest.approx([right] * k + [wrong] * (group_size - k), rel=1e-6)
        if k == 1:
            assert max(got) == pytest.approx(math.sqrt(group_size - 1), rel=1e-6)


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("correction", [0, 1])
def test_rewards_of_one_value_are_no_signal(correction: int, eps: float) -> None:
    """.95 eight times, in float32 and with float noise: exactly 0, not noise over a tiny deviation."""
    same = torch.full((1, 8), 0.95)
    noisy = 0.95 + torch.arange(8, dtype=torch.float64).unsqueeze(0) * 1e-8
    summed = torch.tensor([[1.0 - 0.05, 0.95, 0.7 + 0.25, 0.9 + 0.05] * 2], dtype=torch.float64)
    for rewards_PG in (same, noisy, summed, -noisy):
        got = alg.group_advantages(rewards_PG, std_correction=correction, eps=eps)
        assert torch.equal(got, torch.zeros(1, 8))
        assert alg.spread(rewards_PG).tolist() == [False]
    wider = 0.95 + torch.tensor([[0.0, 4e-6]], dtype=torch.float64)
    assert alg.spread(wider).tolist() == [True]
    assert alg.group_advantages(wider, std_correction=correction, eps=eps).abs().min() > 0.1


@checked
@given(groups, st.randoms(use_true_random=False), st.sampled_from([0, 1]))
def test_advantages_follow_their_responses(rewards: list[float], random: Any, correction: int) -> None:
    """Permuting a group permutes its advantages; a shift of all rewards changes none."""
    spread = max(rewards) - min(rewards)
    assume(spread == 0 or spread > 1e-3)
    order = random.sample(range(len(rewards)), len(rewards))
    rewards_PG = torch.tensor([rewards], dtype=torch.float64)
    got = alg.group_advantages(rewards_PG, std_correction=correction, eps=1e-6)
    moved = alg.group_advantages(rewards_PG[:, order] + 3.0, std_correction=correction, eps=1e-6)
    torch.testing.assert_close(moved, got[:, order], rtol=1e-5, atol=1e-6)


def test_informative_looks_at_correctness_alone() -> None:
    """0 < right < G."""
    correct_PG = torch.tensor([[0, 0, 0], [0, 0, 1], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    assert alg.informative(correct_PG).tolist() == [False, True, True, False]


# --- masks, cuts and orders -----------------------------------------------------------------------


@pytest.mark.parametrize("junk", JUNK)
@checked
@given(rows=batches(), data=st.data())
def test_nothing_outside_the_mask_gets_in(junk: float, rows: list[ref.Row], data: st.DataObject) -> None:
    """Padding of NaN, inf or 1e30 changes no value and no gradient, and gets a gradient of exactly 0."""
    reduction = data.draw(st.sampled_from(ref.REDUCTIONS))
    dual, clamp = data.draw(st.sampled_from([(None, None), (3.0, None), (None, 1.5), (3.0, 1.5)]))
    weights_B = weights_of(rows, reduction, constant=7, cut=[range(len(rows))])
    knobs: dict[str, Any] = {"clip_dual": dual, "log_ratio_clamp": clamp}
    dirty = as_inputs(rows, pad=2, junk=junk)
    loss, gradient_BT = loss_and_gradient(dirty, weights_B, **knobs)
    clean_loss, clean_BT = loss_and_gradient(as_inputs(rows, pad=2), weights_B, **knobs)
    assert loss == clean_loss
    assert torch.equal(gradient_BT, clean_BT)
    assert gradient_BT[~dirty.mask_BT].eq(0).all()

    for other in (junk, 0.0):  # junk - junk is NaN, junk - 0 is junk
        other_BT = dirty.old_logprobs_BT.masked_fill(~dirty.mask_BT, other)
        kl_BT = alg.kl_estimate(dirty.logprobs_BT, other_BT, dirty.mask_BT)
        kl = alg.weighted_loss(kl_BT, dirty.mask_BT, weights_B)
        (kl_gradient_BT,) = torch.autograd.grad(kl, dirty.logprobs_BT)
        assert kl_BT[~dirty.mask_BT].eq(0).all()
        assert kl_gradient_BT.isfinite().all()
        assert kl_gradient_BT[~dirty.mask_BT].eq(0).all()
        importance_BT = alg.importance_weights(dirty.logprobs_BT, other_BT, dirty.mask_BT, cap=2.0)
        assert importance_BT[~dirty.mask_BT].eq(1).all()


@pytest.mark.parametrize("reduction", ref.REDUCTIONS)
def test_no_loss_tokens_at_all(reduction: str) -> None:
    """L3: zero, finite, with a gradient of zero: an empty step must not poison the optimiser."""
    rows = [row(d, 1.0, [1.5, 0.5], [False, False]) for d in (0, 0, 1)] + [row(2, -1.0, [])]
    weights_B = weights_of(rows, reduction, constant=7, cut=[[0, 1], [2, 3]])
    assert weights_B.tolist() == [0.0] * 4
    loss, gradient_BT = loss_and_gradient(as_inputs(rows, junk=math.nan), weights_B)
    assert loss == 0.0
    assert gradient_BT.eq(0).all()


@pytest.mark.parametrize("reduction", ["minibatch", "group", "sequence", "constant"])
@checked
@given(rows=batches(), data=st.data())
def test_filtered_rows_leave_numerator_and_denominator(
    reduction: str, rows: list[ref.Row], data: st.DataObject
) -> None:
    """L2, overlong filtering: a batch with rows masked out is the batch without them."""
    keep = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)).filter(any))
    filtered: list[ref.Row] = [
        r if k else {**r, "mask": [False] * len(r["mask"])} for r, k in zip(rows, keep, strict=True)
    ]
    rest = [r for r, k in zip(rows, keep, strict=True) if k]
    width = max(len(r["logp"]) for r in rows) + 1
    all_in = as_inputs(filtered)
    loss, gradient_BT = loss_and_gradient(all_in, weights_of(filtered, reduction, constant=7))
    short = as_inputs(rest, pad=width - max(len(r["logp"]) for r in rest))
    expected, expected_BT = loss_and_gradient(short, weights_of(rest, reduction, constant=7))
    assert loss == pytest.approx(expected, rel=1e-12, abs=1e-15)
    kept_B = torch.tensor(keep)
    torch.testing.assert_close(gradient_BT[kept_B], expected_BT, rtol=1e-12, atol=1e-15)
    assert gradient_BT[~kept_B].eq(0).all()


@pytest.mark.parametrize("reduction", ref.REDUCTIONS)
@checked
@given(rows=batches(), data=st.data())
def test_micro_batches_with_handed_in_weights_sum_to_the_whole(
    reduction: str, rows: list[ref.Row], data: st.DataObject
) -> None:
    """Law 2: for any cut and row order the parts' losses and gradients add up to the whole's."""
    cut = data.draw(cuts(len(rows)))
    packer = data.draw(cuts(len(rows)))  # what "microbatch" was weighted by; not the cut tried here
    weights_B = weights_of(rows, reduction, constant=7, cut=packer)
    whole, whole_BT = loss_and_gradient(as_inputs(rows), weights_B)
    total, parts_BT = 0.0, torch.full_like(whole_BT, math.nan)
    for part in cut:
        picked = [rows[i] for i in part]
        inputs = as_inputs(picked, pad=whole_BT.shape[1] - max(len(r["logp"]) for r in picked))
        loss, parts_BT[part] = loss_and_gradient(inputs, weights_B[part])
        total += loss
    assert total == pytest.approx(whole, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(parts_BT, whole_BT, rtol=1e-12, atol=0)


@checked
@given(batches(), st.randoms(use_true_random=False))
def test_row_order_and_draw_numbers_do_not_matter(rows: list[ref.Row], random: Any) -> None:
    """Weights move with their rows, and a draw's number is a name, not a quantity."""
    order = random.sample(range(len(rows)), len(rows))
    names = {0: 5, 3: -2, 7_000_000_000: 0}
    moved: list[ref.Row] = [{**rows[i], "draw": names[rows[i]["draw"]]} for i in order]
    for reduction in ("minibatch", "group", "sequence", "constant"):
        weights_B = weights_of(rows, reduction, constant=7)
        assert weights_of(moved, reduction, constant=7).tolist() == pytest.approx(weights_B[order].tolist())


@checked
@given(batches(), st.data())
def test_weights_are_means(rows: list[ref.Row], data: st.DataObject) -> None:
    """Constant losses come back as themselves: weights times tokens sum to 1 (where there are any).

    With everything in one micro-batch, "microbatch" is "minibatch".
    """
    tokens_B = torch.tensor([float(sum(r["mask"])) for r in rows], dtype=torch.float64)
    for reduction in ("minibatch", "group", "sequence"):
        weights_B = weights_of(rows, reduction)
        assert weights_B.dtype == torch.float64
        total = (weights_B * tokens_B).sum().item()
        assert total == pytest.approx(1.0 if tokens_B.any() else 0.0)
        assert weights_B[tokens_B == 0].eq(0).all()
    one = [data.draw(st.permutations(range(len(rows))))]
    by_cut = weights_of(rows, "microbatch", cut=one).tolist()
    assert by_cut == pytest.approx(weights_of(rows, "minibatch").tolist(), rel=1e-12)


@pytest.mark.parametrize("junk", [5.0, *JUNK])
def test_the_reduction_masks_a_users_objective(junk: float) -> None:
    """Masking and dividing stay ours: (1 + 2 + 4) / 3 tokens, whatever the objective gives elsewhere."""
    mask_BT = torch.tensor([[True, True, False], [False, True, False]])
    loss_BT = torch.tensor([[1.0, 2.0, 9.0], [9.0, 4.0, 9.0]]).masked_fill(~mask_BT, junk).requires_grad_(True)
    weights_B = alg.row_weights(mask_BT.sum(dim=1), torch.tensor([0, 0]), "minibatch")
    loss = alg.weighted_loss(loss_BT, mask_BT, weights_B)
    assert loss.item() == pytest.approx(7 / 3)
    (gradient_BT,) = torch.autograd.grad(loss, loss_BT)
    torch.testing.assert_close(gradient_BT, mask_BT / 3)


def test_importance_leaves_the_denominator_alone() -> None:
    """w multiplies the token's term only: w = 2 everywhere doubles the loss."""
    inputs = as_inputs(GOLDEN)
    loss_BT = alg.dapo_objective(inputs, clip_low=LOW, clip_high=HIGH)
    engine_BT = inputs.old_logprobs_BT - math.log(2.0)
    w_BT = alg.importance_weights(inputs.old_logprobs_BT, engine_BT, inputs.mask_BT, cap=5.0)
    loss = alg.weighted_loss(w_BT * loss_BT, inputs.mask_BT, weights_of(GOLDEN, "minibatch"))
    assert loss.item() == pytest.approx(2 * 0.63, abs=1e-12)


# --- identities and extremes ----------------------------------------------------------------------


@checked
@given(st.lists(st.lists(log_ratios, min_size=1, max_size=4), min_size=4, max_size=4), st.floats(0.05, 0.5))
def test_equal_clips_and_sequence_means_are_grpo(log_r: list[list[float]], clip: float) -> None:
    """DeepSeekMath's Eq. 3 without its KL, for two groups of two responses (one right, one wrong):

    J = 1/2 sum_groups 1/2 sum_i 1/|o_i| sum_t min(r A, clip(r, 1-eps, 1+eps) A).
    """
    advantages = ref.group_advantages([1.0, -1.0], 1, 1e-6) * 2
    objective = 0.0
    for a, tokens in zip(advantages, log_r, strict=True):
        terms = [min(math.exp(x) * a, max(1 - clip, min(math.exp(x), 1 + clip)) * a) for x in tokens]
        objective += sum(terms) / len(terms) / 2 / 2
    rows = [row(i // 2, a, [math.exp(x) for x in log_r[i]]) for i, a in enumerate(advantages)]
    loss, _ = loss_and_gradient(as_inputs(rows), weights_of(rows, "sequence"), clip_low=clip, clip_high=clip)
    assert -loss == pytest.approx(objective, rel=1e-9, abs=1e-12)


@checked
@given(batches())
def test_on_policy_gradient_is_reinforce(rows: list[ref.Row]) -> None:
    """At r = 1 nothing is clipped: d loss / d logprob = -w A, and every ratio is exactly 1."""
    same: list[ref.Row] = [{**r, "logp": list(r["old"])} for r in rows]
    inputs, weights_B = as_inputs(same), weights_of(same, "minibatch")
    _, gradient_BT = loss_and_gradient(inputs, weights_B)
    expected_BT = -weights_B.unsqueeze(1) * inputs.advantages_BT * inputs.mask_BT
    torch.testing.assert_close(gradient_BT, expected_BT, rtol=1e-12, atol=0)
    assert alg.masked_log_ratio(inputs).eq(0).all()


@pytest.mark.parametrize(
    ("advantage", "dual", "value"),
    [
        (1.0, None, -1.28),  # clipped above: min(inf, 1.28)
        (-1.0, 10.0, 10.0),  # the dual bound holds it
        (0.0, None, 0.0),  # no advantage, no loss, whatever the ratio
    ],
)
def test_a_ratio_over_float32_is_clipped_not_nan(advantage: float, dual: float | None, value: float) -> None:
    """A valid token with log r = 100 (exp is inf in float32) has a finite loss and a gradient of 0."""
    logprobs_BT = torch.tensor([[0.0]], requires_grad=True)
    inputs = alg.ObjectiveInputs(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=torch.tensor([[-100.0]]),
        advantages_BT=torch.full((1, 1), advantage),
        mask_BT=torch.tensor([[True]]),
    )
    loss_BT = alg.dapo_objective(inputs, clip_low=LOW, clip_high=HIGH, clip_dual=dual)
    (gradient_BT,) = torch.autograd.grad(loss_BT.sum(), logprobs_BT)
    assert loss_BT.item() == pytest.approx(value, abs=1e-6)
    assert gradient_BT.item() == 0.0


# --- wrong arguments ------------------------------------------------------------------------------

REWARDS, TOKENS, DRAWS = torch.zeros(1, 1), torch.tensor([1, 2]), torch.tensor([0, 0])
LENGTHS = torch.tensor([1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: alg.group_advantages(REWARDS, std_correction=1, eps=0.0), "a group of 1"),
        (lambda: alg.overlong_penalty(LENGTHS, max_tokens=8, buffer_tokens=0), "buffer_tokens"),
        (lambda: alg.overlong_penalty(LENGTHS, max_tokens=8, buffer_tokens=9), "buffer_tokens"),
        (lambda: alg.overlong_penalty(LENGTHS, max_tokens=8, buffer_tokens=4, factor=0.0), "factor"),
        (lambda: alg.overlong_penalty(LENGTHS, max_tokens=8, buffer_tokens=4, factor=2.0), "factor"),
        (lambda: alg.informative(torch.tensor([[1, 0]])), "bool"),
        (lambda: alg.informative(torch.tensor([[1.0, -1.0]])), "bool"),
        (lambda: alg.row_weights(TOKENS, DRAWS, "constant"), "constant_tokens"),
        (lambda: alg.row_weights(TOKENS, DRAWS, "constant", constant_tokens=0), "constant_tokens"),
        (lambda: alg.row_weights(TOKENS, DRAWS, "constant", constant_tokens=-3), "constant_tokens"),
        (lambda: alg.row_weights(TOKENS, DRAWS, "microbatch"), "cut"),
        (lambda: alg.row_weights(TOKENS, DRAWS, "microbatch", microbatches=[[0]]), "every row"),
        (lambda: alg.row_weights(TOKENS, DRAWS, "microbatch", microbatches=[[0, 1], [1]]), "every row"),
        (lambda: alg.row_weights(TOKENS, DRAWS, "tokens"), "tokens"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    """An argument that can't be meant is an error that names it."""
    with pytest.raises(ValueError, match=message):
        call()


def test_a_singleton_has_no_advantage() -> None:
    """D7: with ddof 0 a group of one is a group of one value: exactly 0."""
    assert alg.group_advantages(torch.tensor([[1.0]]), std_correction=0, eps=0.0).tolist() == [[0.0]]
