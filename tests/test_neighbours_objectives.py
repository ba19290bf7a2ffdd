"""The neighbours' per-token losses: the oracle's values and hand-derived slopes, identities, extremes.

Suffixes as in algorithm.py: P prompts, G responses of each, B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import reference_neighbours as ref
from dapo import algorithm as alg
from dapo import neighbours as nb
from helpers_neighbours import (
    CLAMP,
    DUAL,
    HIGH,
    LOW,
    Case,
    cases,
    checked,
    close,
    junk_values,
    kinky,
    log_ratios,
    one_token,
    one_token_rows,
    value_and_gradient,
)

CLIPS: dict[str, Any] = {"clip_low": LOW, "clip_high": HIGH}
OBJECTIVES: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "dapo": (alg.dapo_objective, CLIPS),
    "dapo, no lower bound": (alg.dapo_objective, {**CLIPS, "clip_low": None}),
    "gspo": (nb.gspo_objective, CLIPS),
    "cispo": (nb.cispo_objective, {**CLIPS, "clip_low": None}),
    "cispo, two bounds": (nb.cispo_objective, CLIPS),
    "clip_cov": (nb.clip_cov_objective, CLIPS),
    "kl_cov": (nb.kl_cov_objective, {"kl_coef": 0.7}),
}
every_objective = pytest.mark.parametrize("name", OBJECTIVES)


def flat_rows(case: Case) -> bool:
    """Whether a row's mean log-ratio lies away from the kinks."""
    for b, row in enumerate(case.mask):
        places = [t for t, kept in enumerate(row) if kept]
        if places and kinky(math.fsum(case.logp[b][t] - case.old[b][t] for t in places) / len(places)):
            return False
    return True


def expected_of(name: str, case: Case) -> tuple[ref.Grid, ref.Grid]:
    """The oracle of an entry of OBJECTIVES."""
    return {
        "dapo": lambda: ref.dapo(*case.oracle, LOW, HIGH),
        "dapo, no lower bound": lambda: ref.dapo(*case.oracle, None, HIGH),
        "gspo": lambda: ref.gspo(*case.oracle, LOW, HIGH),
        "cispo": lambda: ref.cispo(*case.oracle, None, HIGH),
        "cispo, two bounds": lambda: ref.cispo(*case.oracle, LOW, HIGH),
        "clip_cov": lambda: ref.dapo(*case.oracle, LOW, HIGH, selected=case.selected),
        "kl_cov": lambda: ref.kl_cov(*case.oracle, case.selected, 0.7),
    }[name]()


# --- the oracle -----------------------------------------------------------------------------------


@every_objective
@checked
@given(case=cases())
def test_value_and_gradient_are_the_oracles(name: str, case: Case) -> None:
    """Each token's loss and slope, with advantages that differ within a row."""
    assume(name != "gspo" or flat_rows(case))
    objective, knobs = OBJECTIVES[name]
    loss_BT, gradient_BT = value_and_gradient(objective, case.inputs(), case.weights, **knobs)
    losses, slopes = expected_of(name, case)
    close(loss_BT, losses)
    close(gradient_BT, slopes)


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if not name.startswith("cispo")])
@checked
@given(case=cases())
def test_autograd_is_the_finite_difference(name: str, case: Case) -> None:
    """gradcheck on every token at once (CISPO's weight is detached: its slope is the oracle's alone)."""
    assume(flat_rows(case))
    objective, knobs = OBJECTIVES[name]
    inputs = case.inputs()

    def loss(logprobs_BT: Tensor) -> Tensor:
        return objective(case.inputs(logprobs_BT=logprobs_BT), **knobs)

    assert torch.autograd.gradcheck(loss, (inputs.logprobs_BT,), eps=1e-6, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("clamp", [None, CLAMP])
@pytest.mark.parametrize("dual", [None, DUAL])
@checked
@given(case=cases())
def test_dual_clip_and_clamp(dual: float | None, clamp: float | None, case: Case) -> None:
    """Clip-Cov and DAPO take both, with and without a lower bound in DAPO."""
    knobs: dict[str, Any] = {"clip_high": HIGH, "clip_dual": dual, "log_ratio_clamp": clamp}
    for low, selected in ((LOW, None), (None, None), (LOW, case.selected)):
        objective = alg.dapo_objective if selected is None else nb.clip_cov_objective
        got = value_and_gradient(objective, case.inputs(), case.weights, clip_low=low, **knobs)
        expected = ref.dapo(*case.oracle, low, HIGH, dual, clamp, selected)
        close(got[0], expected[0])
        close(got[1], expected[1])


@checked
@given(cases(), st.sampled_from([0.1, CLAMP]))
def test_clamp_of_cispo_and_kl_cov(case: Case, clamp: float) -> None:
    """The clamp bounds CISPO's weight (its slope goes on) and stops KL-Cov's slope."""
    gaps = [abs(case.logp[b][t] - case.old[b][t]) for b, t in ref.inside(case.mask)]
    assume(all(abs(gap - clamp) > 1e-6 for gap in gaps))
    got = value_and_gradient(nb.cispo_objective, case.inputs(), case.weights, **CLIPS, log_ratio_clamp=clamp)
    expected = ref.cispo(*case.oracle, LOW, HIGH, clamp)
    close(got[0], expected[0])
    close(got[1], expected[1])
    got = value_and_gradient(nb.kl_cov_objective, case.inputs(), case.weights, kl_coef=0.3, log_ratio_clamp=clamp)
    expected = ref.kl_cov(*case.oracle, case.selected, 0.3, clamp)
    close(got[0], expected[0])
    close(got[1], expected[1])


@checked
@given(cases(one_token_rows))
def test_clamp_of_gspo(case: Case) -> None:
    """In a row of one token, the token's clamp and the sequence's are the same."""
    got = value_and_gradient(nb.gspo_objective, case.inputs(), case.weights, **CLIPS, log_ratio_clamp=CLAMP)
    expected = ref.dapo(*case.oracle, LOW, HIGH, clamp=CLAMP)
    close(got[0], expected[0])
    close(got[1], expected[1])


def test_golden_gspo() -> None:
    """Log-ratios .1, .3 and a masked 9: s = e^.2 = 1.2214 < 1.28, A = 2.

    Every token's loss is -2 e^.2; under "sequence" (weights 1/(2 rows * 2 tokens)) the slope of each
    token is -2 e^.2 * (1/4 + 1/4) / 2 tokens. With A = -2 and a mean of -.3 (e^-.3 = .74 < .8): clipped.
    """
    mask = [[True, False, True], [True, True, False]]
    old = [[-1.0] * 3] * 2
    logp = [[-0.9, 8.0, -0.7], [-1.0, -1.6, 3.0]]
    case = Case(mask, logp, old, [[2.0] * 3, [-2.0] * 3], [[False] * 3] * 2)
    weights_B = alg.row_weights(torch.tensor([2, 2]), torch.tensor([0, 1]), "sequence")
    loss_BT, gradient_BT = value_and_gradient(nb.gspo_objective, case.inputs(), weights_B.unsqueeze(1), **CLIPS)
    s = math.exp(0.2)
    close(loss_BT, [[-2 * s, 0.0, -2 * s], [1.6, 1.6, 0.0]])
    close(gradient_BT, [[-s / 2, 0.0, -s / 2], [0.0, 0.0, 0.0]])


def test_golden_cispo_and_kl_cov() -> None:
    """log r = log 2, log pi = -1, A = 3: CISPO -1.28 * 3 * -1 = 3.84, slope -3.84, while DAPO's is 0.

    KL-Cov with coefficient 10: -2 * 3 + 10 (2 - 1 - log 2) = -6 + 3.0685; slope -6 + 10 (2 - 1) = 4.
    """
    inputs = one_token(math.log(2), 3.0, old=-1 - math.log(2))
    loss, slope = value_and_gradient(nb.cispo_objective, inputs, [[1.0]], clip_low=None, clip_high=HIGH)
    assert (loss.item(), slope.item()) == pytest.approx((3.84, -3.84))
    assert value_and_gradient(alg.dapo_objective, inputs, [[1.0]], **CLIPS)[1].item() == 0
    loss, slope = value_and_gradient(nb.kl_cov_objective, inputs, [[1.0]], kl_coef=10.0)
    assert (loss.item(), slope.item()) == pytest.approx((4 - 10 * math.log(2), 4.0))


# --- identities -----------------------------------------------------------------------------------


def grpo_without_kl(logp: list[Any], old: list[Any], rewards: list[list[float]], eps: float, ddof: int) -> Tensor:
    """DeepSeekMath's objective, negated: 1/P sum over groups 1/G sum_i 1/|o_i| sum_t min(r A, clip(r) A)."""
    total = torch.zeros((), dtype=torch.float64)
    for p, group in enumerate(rewards):
        values = torch.tensor(group, dtype=torch.float64)
        for i in range(len(group)):
            a = (values[i] - values.mean()) / values.std(correction=ddof)
            for new, before in zip(logp[p][i], old[p][i], strict=True):
                r = torch.exp(new - before)
                term = torch.minimum(r * a, torch.clip(r, 1 - eps, 1 + eps) * a)
                total = total - term / len(logp[p][i]) / len(group) / len(rewards)
    return total


@pytest.mark.parametrize("ddof", [0, 1])
@checked
@given(data=st.data(), eps=st.floats(0.05, 0.5))
def test_equal_clips_and_sequence_means_are_grpo(ddof: int, data: st.DataObject, eps: float) -> None:
    """From rewards to the gradient: any groups, lengths and ratios."""
    prompts, group, width = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 3)), 4
    lengths = data.draw(st.lists(st.integers(1, width), min_size=prompts * group, max_size=prompts * group))
    flat = st.lists(st.integers(-8, 8).map(float), min_size=group, max_size=group)
    rewards = data.draw(st.lists(flat.filter(lambda r: len(set(r)) > 1), min_size=prompts, max_size=prompts))
    tokens = st.lists(log_ratios, min_size=width, max_size=width)
    gaps = data.draw(st.lists(tokens, min_size=prompts * group, max_size=prompts * group))
    assume(all(min(abs(x - math.log(1 - eps)), abs(x - math.log(1 + eps))) > 1e-6 for row in gaps for x in row))

    old_BT = -torch.rand(prompts * group, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logprobs_BT = (old_BT + torch.tensor(gaps, dtype=torch.float64)).requires_grad_(True)
    mask_BT = torch.arange(width) < torch.tensor(lengths).unsqueeze(1)
    advantages_PG = alg.group_advantages(torch.tensor(rewards), std_correction=ddof, eps=0.0)
    inputs = alg.ObjectiveInputs(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=old_BT,
        advantages_BT=advantages_PG.flatten().unsqueeze(1).expand(-1, width),
        mask_BT=mask_BT,
    )
    draw_B = torch.arange(prompts * group) // group
    weights_B = alg.row_weights(mask_BT.sum(dim=1), draw_B, "sequence")
    loss = alg.weighted_loss(alg.dapo_objective(inputs, clip_low=eps, clip_high=eps), mask_BT, weights_B)

    def cut(grid_BT: Tensor) -> list[list[Tensor]]:
        rows = [row_T[:n] for row_T, n in zip(grid_BT, lengths, strict=True)]
        return [rows[p * group : (p + 1) * group] for p in range(prompts)]

    expected = grpo_without_kl(cut(logprobs_BT), cut(old_BT), rewards, eps, ddof)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
    slopes = [torch.autograd.grad(x, logprobs_BT)[0] for x in (loss, expected)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-6, atol=1e-7)


@checked
@given(cases(one_token_rows))
def test_gspo_of_one_token_responses_is_grpo(case: Case) -> None:
    """A sequence of one token has the token's ratio: value and gradient."""
    got = value_and_gradient(nb.gspo_objective, case.inputs(), case.weights, **CLIPS)
    expected = value_and_gradient(alg.dapo_objective, case.inputs(), case.weights, **CLIPS)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15)


@checked
@given(cases())
def test_at_ratio_one_cispo_and_gspo_are_reinforce(case: Case) -> None:
    """CISPO: -A per token. GSPO under "sequence", advantages of a row alike: -A / (rows * tokens)."""
    case.old = case.logp
    inputs = case.inputs()
    loss_BT, gradient_BT = value_and_gradient(nb.cispo_objective, inputs, case.weights, **CLIPS)
    weighted_BT = -inputs.advantages_BT * torch.tensor(case.weights, dtype=torch.float64)
    torch.testing.assert_close(gradient_BT, torch.where(inputs.mask_BT, weighted_BT, 0.0))
    torch.testing.assert_close(loss_BT, torch.where(inputs.mask_BT, -inputs.advantages_BT * inputs.logprobs_BT, 0.0))

    case.advantages = [[row[0]] * len(row) for row in case.advantages]
    inputs = case.inputs()
    tokens_B = inputs.mask_BT.sum(dim=1)
    weights_B1 = alg.row_weights(tokens_B, torch.arange(len(tokens_B)), "sequence").unsqueeze(1)
    _, gradient_BT = value_and_gradient(nb.gspo_objective, inputs, weights_B1, **CLIPS)
    torch.testing.assert_close(gradient_BT, torch.where(inputs.mask_BT, -inputs.advantages_BT * weights_B1, 0.0))


@checked
@given(cases())
def test_without_a_selection(case: Case) -> None:
    """Clip-Cov is DAPO; KL-Cov is the unclipped policy gradient, -r A in value and slope."""
    none_BT = torch.zeros_like(case.inputs().mask_BT)
    got = value_and_gradient(nb.clip_cov_objective, case.inputs(selected_BT=none_BT), case.weights, **CLIPS)
    expected = value_and_gradient(alg.dapo_objective, case.inputs(), case.weights, **CLIPS)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    inputs = case.inputs(selected_BT=none_BT)
    loss_BT, gradient_BT = value_and_gradient(nb.kl_cov_objective, inputs, case.weights, kl_coef=5.0)
    with torch.no_grad():
        ratio_BT = torch.exp(inputs.logprobs_BT - inputs.old_logprobs_BT)
        expected_BT = torch.where(inputs.mask_BT, -ratio_BT * inputs.advantages_BT, 0.0)
    torch.testing.assert_close(loss_BT, expected_BT)
    torch.testing.assert_close(gradient_BT, expected_BT * torch.tensor(case.weights, dtype=torch.float64))


def test_clip_cov_leaves_the_denominators() -> None:
    """Two tokens at ratio 1 with A = 1, one selected: the mini-batch's mean is -1/2, not -1."""
    ones = [[1.0, 1.0]]
    case = Case([[True, True]], [[-1.0, -1.0]], [[-1.0, -1.0]], ones, [[True, False]])
    inputs = case.inputs()
    weights_B = alg.row_weights(inputs.mask_BT.sum(dim=1), torch.tensor([0]), "minibatch")
    loss = alg.weighted_loss(nb.clip_cov_objective(inputs, **CLIPS), inputs.mask_BT, weights_B)
    assert loss.item() == -0.5


# --- masks, cuts, orders --------------------------------------------------------------------------


@every_objective
@checked
@given(case=cases(), junk=junk_values)
def test_nothing_outside_the_mask_gets_in(name: str, case: Case, junk: float) -> None:
    """NaN, inf or 1e30 in log-probs and advantages: no value and no slope changes, outside both are 0."""
    objective, knobs = OBJECTIVES[name]
    for clamp in (None, CLAMP):
        inputs = case.inputs(junk)
        got = value_and_gradient(objective, inputs, case.weights, **knobs, log_ratio_clamp=clamp)
        clean = value_and_gradient(objective, case.inputs(), case.weights, **knobs, log_ratio_clamp=clamp)
        for grid_BT, clean_BT in zip(got, clean, strict=True):
            assert torch.equal(grid_BT, clean_BT)
            assert grid_BT[~inputs.mask_BT].eq(0).all()


@every_objective
@checked
@given(case=cases(), random=st.randoms(use_true_random=False))
def test_rows_in_any_order_and_any_cut(name: str, case: Case, random: Any) -> None:
    """Permuted rows and micro-batches of them give each row what it had in the whole."""
    objective, knobs = OBJECTIVES[name]
    tokens_B = torch.tensor(case.mask).sum(dim=1)
    weights_B = alg.row_weights(tokens_B, torch.arange(len(tokens_B)), "minibatch")
    whole = value_and_gradient(objective, case.inputs(), weights_B.unsqueeze(1), **knobs)
    whole_loss = alg.weighted_loss(whole[0], torch.tensor(case.mask), weights_B)
    order = random.sample(range(len(case.mask)), len(case.mask))
    end = random.randint(1, len(order))
    total = 0.0
    for part in (order[:end], order[end:]):
        if not part:
            continue
        inputs = case.rows(part).inputs()
        loss_BT, gradient_BT = value_and_gradient(objective, inputs, weights_B[part].unsqueeze(1), **knobs)
        torch.testing.assert_close(loss_BT, whole[0][part], rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(gradient_BT, whole[1][part], rtol=1e-12, atol=1e-15)
        total += alg.weighted_loss(loss_BT, inputs.mask_BT, weights_B[part]).item()
    assert total == pytest.approx(whole_loss.item(), rel=1e-9, abs=1e-12)


# --- extremes -------------------------------------------------------------------------------------

EXTREMES = [
    # A, log r, -> dapo value, slope
    (1.0, 1e4, -1.28, 0.0),
    (1.0, -1e4, 0.0, 0.0),
    (-1.0, -1e4, 0.8, 0.0),
    (0.0, 1e4, 0.0, 0.0),
    (0.0, -1e4, 0.0, 0.0),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("advantage", "log_ratio", "value", "slope"), EXTREMES)
@pytest.mark.parametrize("objective", [alg.dapo_objective, nb.gspo_objective])
def test_huge_ratios_meet_the_clip(
    objective: Callable[..., Tensor],
    advantage: float,
    log_ratio: float,
    value: float,
    slope: float,
    dtype: torch.dtype,
) -> None:
    """A ratio too large or small for a float has the bound's loss and no slope, never NaN."""
    got = value_and_gradient(objective, one_token(log_ratio, advantage, dtype=dtype), [[1.0]], **CLIPS)
    assert (got[0].item(), got[1].item()) == pytest.approx((value, slope), abs=1e-6)


@pytest.mark.parametrize("objective", [alg.dapo_objective, nb.gspo_objective])
def test_no_lower_bound_is_none_at_all(objective: Callable[..., Tensor]) -> None:
    """clip_low None, A = -1, log r = -10: loss and slope are e^-10."""
    got = value_and_gradient(objective, one_token(-10.0, -1.0), [[1.0]], clip_low=None, clip_high=HIGH)
    assert (got[0].item(), got[1].item()) == pytest.approx((math.exp(-10), math.exp(-10)), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_ratios_in_the_others(dtype: torch.dtype) -> None:
    """CISPO's weight is bounded; KL-Cov falls to -log r."""

    def both(objective: Callable[..., Tensor], log_ratio: float, advantage: float, **knobs: Any) -> tuple[float, float]:
        got = value_and_gradient(objective, one_token(log_ratio, advantage, -0.5, dtype), [[1.0]], **knobs)
        return got[0].item(), got[1].item()

    bounds: dict[str, Any] = {"clip_low": None, "clip_high": HIGH}
    # log pi = 9999.5 and -10000.5
    assert both(nb.cispo_objective, 1e4, -1.0, **bounds) == pytest.approx((1.28 * 9999.5, 1.28), rel=1e-6)
    assert both(nb.cispo_objective, -1e4, -1.0, **bounds) == pytest.approx((0.0, 0.0))
    assert both(nb.cispo_objective, -1e4, -1.0, **CLIPS) == pytest.approx((-0.8 * 10000.5, 0.8), rel=1e-6)
    for advantage in (-1.0, 0.0, 1.0):
        # 1/2 (0 - 1 + 1e4), slope 1/2 (0 - 1)
        assert both(nb.kl_cov_objective, -1e4, advantage, kl_coef=0.5) == pytest.approx((4999.5, -0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("advantage", [pytest.param(-1.0), 0.0, 1.0])
def test_a_selected_token_of_clip_cov_is_gone_whatever_it_holds(advantage: float, dtype: torch.dtype) -> None:
    """A ratio over the float on a selected token: 0 in value and in slope, not 0 * inf."""
    got = value_and_gradient(nb.clip_cov_objective, one_token(1e4, advantage, dtype=dtype), [[1.0]], **CLIPS)
    assert (got[0].item(), got[1].item()) == (0.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_ratio", [-1e4, -100.0, 100.0, 1e4])
@pytest.mark.parametrize("advantage", [-2.0, 0.0, 2.0])
@every_objective
def test_with_a_clamp_everything_is_finite(name: str, advantage: float, log_ratio: float, dtype: torch.dtype) -> None:
    """Beside an ordinary token, any ratio under a clamp of 20 gives a finite value and slope."""
    objective, knobs = OBJECTIVES[name]
    inputs = alg.ObjectiveInputs(
        logprobs_BT=torch.tensor([[log_ratio - 1.0, -1.1]], dtype=dtype, requires_grad=True),
        old_logprobs_BT=torch.tensor([[-1.0, -1.0]], dtype=dtype),
        advantages_BT=torch.tensor([[advantage, advantage]], dtype=dtype),
        mask_BT=torch.tensor([[True, True]]),
        selected_BT=torch.tensor([[True, False]]),
    )
    loss_BT, gradient_BT = value_and_gradient(objective, inputs, [[1.0, 1.0]], **knobs, log_ratio_clamp=20.0)
    assert loss_BT.isfinite().all()
    assert gradient_BT.isfinite().all()
    assert loss_BT.abs().max() < 3e9  # 2 e^20 is 9.7e8


def test_kl_cov_of_no_advantage_and_no_selection_is_nothing() -> None:
    """A = 0 and a ratio over the float: 0 r is 0, not NaN, in value and slope."""
    inputs = one_token(1e4, 0.0, selected=False)
    got = value_and_gradient(nb.kl_cov_objective, inputs, [[1.0]], kl_coef=1.0)
    assert (got[0].item(), got[1].item()) == (0.0, 0.0)
