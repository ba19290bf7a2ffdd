"""KL estimates, the entropy's gradient and the clip statistics by sequence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import reference as dapo_ref
import reference_neighbours as ref
from dapo import algorithm as alg
from dapo import neighbours as nb
from dapo.clipping import clip_statistics
from helpers_neighbours import (
    HIGH,
    LOW,
    Case,
    cases,
    checked,
    close,
    grids,
    junk_values,
    kinky,
    masks,
    tensor,
    value_and_gradient,
)

ESTIMATORS = ("k1", "k2", "k3")
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


# --- KL -------------------------------------------------------------------------------------------


@every_estimator
@checked
@given(data=st.data(), junk=junk_values)
def test_kl_estimates_are_the_oracles(estimator: str, data: st.DataObject, junk: float) -> None:
    """Value and slope per token; 0 outside the mask, whatever lies there."""
    mask = data.draw(masks())
    logp, base = data.draw(grids(mask)), data.draw(grids(mask))
    logprobs_BT = tensor(logp, mask, junk).requires_grad_()
    kl_BT = alg.kl_estimate(logprobs_BT, tensor(base, mask, junk), tensor(mask), estimator)
    (gradient_BT,) = torch.autograd.grad(kl_BT.sum(), logprobs_BT)
    values, slopes = ref.zeros(mask), ref.zeros(mask)
    for b, t in ref.inside(mask):
        values[b][t], slopes[b][t] = ref.kl_estimate(logp[b][t], base[b][t], estimator)
    close(kl_BT, values)
    close(gradient_BT, slopes)
    if estimator == "k3":
        default_BT = alg.kl_estimate(logprobs_BT, tensor(base, mask, junk), tensor(mask))
        assert torch.equal(default_BT, kl_BT)


def test_golden_kl_estimates() -> None:
    """pi = 2 ref: k1 = log 2, k2 = log(2)^2 / 2, k3 = 1/2 - 1 + log 2 (and 2 - 1 - log 2 the other way)."""
    policy, base = torch.tensor([[math.log(0.5), math.log(0.25)]]), torch.tensor([[math.log(0.25), math.log(0.5)]])
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    k1, k2, k3 = (alg.kl_estimate(policy, base, mask_BT, name)[0].tolist() for name in ESTIMATORS)
    two = math.log(2)
    assert k1 == pytest.approx([two, -two])
    assert k2 == pytest.approx([two**2 / 2] * 2)
    assert k3 == pytest.approx([two - 0.5, 1 - two], abs=1e-6)


def test_an_unknown_estimator_is_refused() -> None:
    """Never a silent k3."""
    one = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="k4"):
        alg.kl_estimate(one, one, one.bool(), "k4")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float32),
        torch.float64,
    ],
)
def test_k3_is_never_negative(dtype: torch.dtype) -> None:
    """exp(x) >= 1 + x, near 0 too, where rounding is larger than x^2 / 2."""
    x = torch.cat([torch.linspace(-1e-2, 1e-2, 20001), torch.linspace(-30, 30, 2001)]).to(dtype).unsqueeze(0)
    k3_BT = alg.kl_estimate(torch.zeros_like(x), x, torch.ones_like(x, dtype=torch.bool), "k3")
    assert k3_BT.min().item() >= 0.0


@every_estimator
def test_extreme_kl_estimates(estimator: str) -> None:
    """A token that pi all but lost (log pi = -1e4, ref 0) and one that ref did: inf at most for k3's first."""
    logprobs_BT = torch.tensor([[-1e4, 0.0]], dtype=torch.float64, requires_grad=True)
    kl_BT = alg.kl_estimate(logprobs_BT, torch.tensor([[0.0, -1e4]]).double(), torch.ones(1, 2).bool(), estimator)
    (slope_BT,) = torch.autograd.grad(kl_BT.sum(), logprobs_BT)
    expected = {"k1": (1e4, 1.0), "k2": (5e7, 1e4), "k3": (9999.0, 1.0)}[estimator]
    assert (kl_BT[0, 1].item(), slope_BT[0, 1].item()) == pytest.approx(expected)
    first = {"k1": (-1e4, 1.0), "k2": (5e7, -1e4), "k3": (math.inf, -math.inf)}[estimator]
    assert (kl_BT[0, 0].item(), slope_BT[0, 0].item()) == pytest.approx(first)


logits = st.lists(st.floats(-2.0, 2.0, width=32), min_size=2, max_size=6)


def estimate(policy_V: Tensor, base_V: Tensor, estimator: str) -> Tensor:
    """The estimate of every token of the vocabulary."""
    every = torch.ones(1, len(policy_V), dtype=torch.bool)
    return alg.kl_estimate(policy_V.unsqueeze(0), base_V.unsqueeze(0), every, estimator)[0]  # type: ignore[arg-type]


@checked
@given(logits, logits)
def test_expected_estimates_over_a_small_vocabulary(policy: list[float], base: list[float]) -> None:
    """E[k1] = E[k3] = KL. As a loss: grad E[k2] = grad KL, grad E[k1] = 0, grad E[k3] = grad KL(ref || pi)."""
    size = min(len(policy), len(base))
    theta_V = torch.tensor(policy[:size], dtype=torch.float64, requires_grad=True)
    log_pi_V = theta_V.log_softmax(0)
    log_ref_V = torch.tensor(base[:size], dtype=torch.float64).log_softmax(0)
    pi_V = log_pi_V.exp()
    kl = (pi_V * (log_pi_V - log_ref_V)).sum()
    backward_kl = (log_ref_V.exp() * (log_ref_V - log_pi_V)).sum()
    expected = {name: (pi_V.detach() * estimate(log_pi_V, log_ref_V, name)).sum() for name in ESTIMATORS}
    assert expected["k1"].item() == pytest.approx(kl.item(), abs=1e-12)
    assert expected["k3"].item() == pytest.approx(kl.item(), abs=1e-12)

    def slope(of: Tensor) -> Tensor:
        return torch.autograd.grad(of, theta_V, retain_graph=True)[0]

    torch.testing.assert_close(slope(expected["k1"]), torch.zeros_like(theta_V), rtol=0, atol=1e-12)
    torch.testing.assert_close(slope(expected["k2"]), slope(kl), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slope(expected["k3"]), slope(backward_kl), rtol=1e-9, atol=1e-12)


@checked
@given(logits, st.lists(st.floats(-0.1, 0.1), min_size=6, max_size=6))
def test_estimates_agree_to_second_order(policy: list[float], push: list[float]) -> None:
    """By token |k3 - k2| <= |x|^3 / 5; in the mean all three are KL up to the third order; k1 is of the first."""
    log_pi_V = torch.tensor(policy, dtype=torch.float64).log_softmax(0)
    log_ref_V = (log_pi_V + torch.tensor(push[: len(policy)], dtype=torch.float64)).log_softmax(0)
    x_V = log_ref_V - log_pi_V
    k1_V, k2_V, k3_V = (estimate(log_pi_V, log_ref_V, name) for name in ESTIMATORS)
    third_V = x_V.abs() ** 3 / 5 + 1e-15  # sum over n >= 3 of |x|^n / n! for |x| <= .2
    assert (k3_V - k2_V).abs().le(third_V).all()
    means = [(log_pi_V.exp() * k_V).sum() for k_V in (k1_V, k2_V, k3_V)]
    bound = (log_pi_V.exp() * third_V).sum() + 1e-14
    assert all((a - b).abs() <= bound for a in means for b in means)


# --- entropy --------------------------------------------------------------------------------------

VOCABULARIES = st.lists(st.floats(-8.0, 8.0, width=32), min_size=2, max_size=7)


@checked
@given(VOCABULARIES, st.sampled_from([0.5, 1.0, 2.0]))
def test_entropy_gradient_is_the_oracles(row: list[float], temperature: float) -> None:
    """d H / d z_k = -p_k (log p_k + H) / T; values and the log-probs' gradient are those without it."""
    logits_NV = torch.tensor([row, row[::-1]], requires_grad=True)
    ids_N = torch.tensor([0, 1])
    plain_N, plain_entropy_N = alg.token_logprobs(logits_NV, ids_N, temperature)
    logprobs_N, entropy_N = alg.token_logprobs(logits_NV, ids_N, temperature, entropy_gradient=True)
    torch.testing.assert_close(logprobs_N, plain_N, rtol=0, atol=1e-6)
    torch.testing.assert_close(entropy_N.detach(), plain_entropy_N, rtol=1e-5, atol=1e-6)
    assert not plain_entropy_N.requires_grad
    weights_N = torch.tensor([1.0, -3.0])
    (slope_NV,) = torch.autograd.grad((entropy_N * weights_N).sum(), logits_NV, retain_graph=True)
    forward = ref.entropy_slopes(logits_NV[0].tolist(), temperature)
    expected = [forward, [-3 * x for x in forward[::-1]]]
    close(slope_NV, expected, rtol=1e-3, atol=2e-5)
    slopes = [torch.autograd.grad(x.sum(), logits_NV, retain_graph=True)[0] for x in (plain_N, logprobs_N)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("small", [-200.0, -1e4, -math.inf])
def test_entropy_gradient_beside_impossible_tokens(small: float) -> None:
    """Tokens of probability 0 (0 log 0) have no slope, and give none of NaN; the rest is as without them."""
    logits_NV = torch.tensor([[1.0, 0.0, small]], requires_grad=True)
    logprobs_N, entropy_N = alg.token_logprobs(logits_NV, torch.tensor([0]), entropy_gradient=True)
    (slope_NV,) = torch.autograd.grad((entropy_N + 0 * logprobs_N).sum(), logits_NV)
    expected = [*ref.entropy_slopes([1.0, 0.0], 1.0), 0.0]
    assert entropy_N.item() == pytest.approx(dapo_ref.entropy([1.0, 0.0]), abs=1e-6)
    assert slope_NV[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_entropy_gradient_of_one_sure_token() -> None:
    """All on one token: H = 0 and no slope."""
    logits_NV = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    _, entropy_N = alg.token_logprobs(logits_NV, torch.tensor([2]), entropy_gradient=True)
    (slope_NV,) = torch.autograd.grad(entropy_N.sum(), logits_NV)
    assert entropy_N.item() == 0
    assert slope_NV.eq(0).all()


# --- clip statistics ------------------------------------------------------------------------------


def oracle_rows(case: Case) -> list[dapo_ref.Row]:
    """The case's rows for the oracle of DAPO, one advantage each."""
    grids_of = zip(case.logp, case.old, case.advantages, case.mask, strict=True)
    return [{"draw": 0, "advantage": a[0], "logp": p, "old": q, "mask": m} for p, q, a, m in grids_of]


def flattened(rows: list[dapo_ref.Row]) -> list[dapo_ref.Row]:
    """Every token has the mean log-ratio of its row."""
    result: list[dapo_ref.Row] = []
    for row in rows:
        gaps = [p - q for p, q, kept in zip(row["logp"], row["old"], row["mask"], strict=True) if kept]
        mean = sum(gaps) / len(gaps) if gaps else 0.0
        result.append({**row, "logp": [mean] * len(row["old"]), "old": [0.0] * len(row["old"])})
    return result


@pytest.mark.parametrize("level", ["token", "sequence"])
@checked
@given(case=cases(constant_rows=True), dual=st.none() | st.just(1.6), junk=junk_values)
def test_clip_statistics_by_level(level: Any, case: Case, dual: float | None, junk: float) -> None:
    """By token as ever; by sequence as if each token had its row's mean log-ratio."""
    rows = oracle_rows(case) if level == "token" else flattened(oracle_rows(case))
    gaps = [p - q for row in rows for p, q in zip(row["logp"], row["old"], strict=True)]
    assume(not any(kinky(x) or abs(x - math.log(1.6)) < 1e-6 for x in gaps))
    knobs: dict[str, Any] = {"clip_low": LOW, "clip_high": HIGH, "clip_dual": dual, "level": level}
    got = clip_statistics(case.inputs(junk), **knobs)
    expected = dapo_ref.clip_counts(rows, LOW, HIGH, dual)
    assert {name: value.item() for name, value in got.items()} == pytest.approx(expected, rel=1e-9)
    if level == "token":
        knobs.pop("level")
        assert clip_statistics(case.inputs(junk), **knobs) == got


def test_golden_clip_statistics_by_sequence() -> None:
    """Log-ratios .6, 0 (mean .3 > log 1.28 = .247): by token one of two is clipped, by sequence both."""
    case = Case([[True, True]], [[-0.4, -1.0]], [[-1.0, -1.0]], [[1.0, 1.0]], [[False, False]])
    by_token = clip_statistics(case.inputs(), clip_low=LOW, clip_high=HIGH)
    assert by_token["clip/high"].item() == 1
    got = clip_statistics(case.inputs(), clip_low=LOW, clip_high=HIGH, level="sequence")
    assert got["clip/high"].item() == got["ratio/outside"].item() == 2
    assert got["ratio/mean"].item() == pytest.approx(2 * math.exp(0.3))
    assert got["ratio/max"].item() == pytest.approx(math.exp(0.3))


def test_clip_statistics_describe_gspo_under_a_clamp() -> None:
    """A token counted as clipped has no gradient, under whichever clamp: log-ratios 2 and -.4, clamp .5.

    Clamped token by token the mean is .05, free; as a mean .8 clamped to .5 it is clipped.
    """
    case = Case([[True, True]], [[1.0, -1.4]], [[-1.0, -1.0]], [[1.0, 1.0]], [[False, False]])
    knobs: dict[str, Any] = {"clip_low": LOW, "clip_high": HIGH, "log_ratio_clamp": 0.5}
    _, gradient_BT = value_and_gradient(nb.gspo_objective, case.inputs(), [[1.0, 1.0]], **knobs)
    clipped = clip_statistics(case.inputs(), **knobs, level="sequence")["clip/high"].item()
    assert (clipped == 2) == bool(gradient_BT.eq(0).all())


def test_clip_statistics_without_a_lower_bound() -> None:
    """clip_low None: a ratio of e^-5 lies inside; e^5 does not."""
    case = Case([[True, True]], [[-6.0, 4.0]], [[-1.0, -1.0]], [[-1.0, -1.0]], [[False, False]])
    got = clip_statistics(case.inputs(), clip_low=None, clip_high=HIGH)
    assert (got["clip/low"].item(), got["ratio/outside"].item()) == (0, 1)
