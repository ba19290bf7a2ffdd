"""The neighbours' advantages, selections and weights against plain-Python equations and identities.

Suffixes as in algorithm.py: P prompts, G responses of each, B rows, T tokens.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import reference_neighbours as ref
from dapo import algorithm as alg
from dapo import neighbours as nb
from helpers_neighbours import checked, close, close32, grids, junk_values, masks, tensor

# Multiples of 1/8: sums and shifts by whole numbers are exact, and no spread is near 1e-6.
rewards = st.integers(-40, 40).map(lambda n: n / 8)
ddofs = pytest.mark.parametrize("ddof", [0, 1])
epsilons = st.sampled_from([0.0, 1e-6, 0.1])
uniforms = st.floats(0.0, 1.0, exclude_max=True)
fractions = st.sampled_from([1e-4, 0.2, 0.29, 0.5, 1.0]) | st.floats(0.0, 1.0)


@st.composite
def reward_groups(draw: st.DrawFn, smallest: int = 1) -> list[list[float]]:
    """1 to 4 groups of one size."""
    size = draw(st.integers(smallest, 6))
    return draw(st.lists(st.lists(rewards, min_size=size, max_size=size), min_size=1, max_size=4))


@st.composite
def ragged_rewards(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    """Rows of groups of any sizes, in any order."""
    values = draw(st.lists(rewards, min_size=2, max_size=9))
    names = st.sampled_from([0, 3, -1, 7_000_000_000])
    return values, draw(st.lists(names, min_size=len(values), max_size=len(values)))


# --- advantages by response -----------------------------------------------------------------------


@checked
@given(reward_groups())
def test_mean_advantages_are_the_oracles(groups: list[list[float]]) -> None:
    """R - mean, which sums to 0 in each group; a singleton has 0."""
    got = nb.mean_advantages(torch.tensor(groups))
    close32(got, [ref.mean_advantages(group) for group in groups])
    assert got.double().sum(dim=1).abs().max() < 1e-5


@checked
@given(reward_groups(smallest=2))
def test_leave_one_out_advantages_are_the_oracles(groups: list[list[float]]) -> None:
    """R_i minus the mean of the others: G / (G - 1) times R - mean."""
    got = nb.leave_one_out_advantages(torch.tensor(groups))
    close32(got, [ref.leave_one_out_advantages(group) for group in groups])
    size = len(groups[0])
    scaled = nb.mean_advantages(torch.tensor(groups)).double() * size / (size - 1)
    torch.testing.assert_close(got.double(), scaled, rtol=1e-6, atol=1e-12)


def test_golden_advantages() -> None:
    """1, 0, 0, 0: mean 1/4; the others' means 0 and 1/3. Another group must not show."""
    groups = torch.tensor([[1.0, 0.0, 0.0, 0.0], [7.0, 7.0, 7.0, 7.0]])
    assert nb.mean_advantages(groups).tolist() == [[0.75, -0.25, -0.25, -0.25], [0.0] * 4]
    assert nb.leave_one_out_advantages(groups)[0].tolist() == pytest.approx([1.0] + [-1 / 3] * 3)
    # the batch: mean of squares around 29/8: (1 + 4 * 49) / 8 - (29/8)^2 = 24.625 - 13.140625 = 11.484375
    got = nb.batch_std_advantages(groups.flatten(), torch.tensor([5] * 4 + [2] * 4), std_correction=0, eps=0.0)
    assert got.tolist() == pytest.approx([0.75 / math.sqrt(11.484375)] + [-0.25 / math.sqrt(11.484375)] * 3 + [0.0] * 4)


def test_one_response_leaves_none_out() -> None:
    """RLOO has no baseline in a group of one."""
    with pytest.raises(ValueError, match="1"):
        nb.leave_one_out_advantages(torch.tensor([[1.0], [0.0]]))


@pytest.mark.parametrize("far", [2.0**24, 1e8])
def test_advantages_are_computed_in_float64(far: float) -> None:
    """Around 2^24, where float32 steps by 2, a mean in float32 would be off by up to 1."""
    group = torch.tensor([[0.0, 0.0, 1.0, 4.0]], dtype=torch.float64) + far
    centred, row = [-1.25, -1.25, -0.25, 2.75], torch.zeros(4, dtype=torch.int64)
    assert nb.mean_advantages(group)[0].tolist() == centred
    assert nb.leave_one_out_advantages(group)[0].tolist() == pytest.approx([x * 4 / 3 for x in centred], rel=1e-7)
    scale = math.sqrt(sum(x * x for x in centred) / 3)
    expected = pytest.approx([x / scale for x in centred], rel=1e-7)
    assert nb.batch_std_advantages(group[0], row, std_correction=1, eps=0.0).tolist() == expected
    mask_BT = torch.ones(1, 4, dtype=torch.bool)
    assert nb.batch_advantages(group, mask_BT, std_correction=1, eps=0.0)[0].tolist() == expected


@ddofs
@checked
@given(batch=ragged_rewards(), eps=epsilons)
def test_batch_std_advantages_are_the_oracles(ddof: int, batch: tuple[list[float], list[int]], eps: float) -> None:
    """The mean of the group, the standard deviation of every row."""
    values, draws = batch
    got = nb.batch_std_advantages(torch.tensor(values), torch.tensor(draws), std_correction=ddof, eps=eps)
    close32(got, ref.batch_std_advantages(values, draws, ddof, eps))


@ddofs
@checked
@given(groups=reward_groups(smallest=2), eps=epsilons)
def test_batch_std_is_mean_over_the_batchs_deviation(ddof: int, groups: list[list[float]], eps: float) -> None:
    """With groups of one size, (R - mean) / (std of all + eps); with one group, the group-relative advantage."""
    flat = torch.tensor(groups).flatten()
    assume(flat.min() < flat.max())
    draw_B = torch.arange(len(groups)).repeat_interleave(len(groups[0]))
    got = nb.batch_std_advantages(flat, draw_B, std_correction=ddof, eps=eps)
    scale = flat.double().std(correction=ddof) + eps
    expected = nb.mean_advantages(torch.tensor(groups)).double().flatten() / scale
    torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=1e-12)
    if len(set(groups[0])) > 1:
        alone = nb.batch_std_advantages(torch.tensor(groups[0]), draw_B[: len(groups[0])], std_correction=ddof, eps=eps)
        grouped = alg.group_advantages(torch.tensor(groups[:1]), std_correction=ddof, eps=eps)[0]
        torch.testing.assert_close(alone, grouped, rtol=1e-6, atol=1e-12)


@ddofs
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_one_value_is_no_signal(ddof: int, eps: float) -> None:
    """All within 1e-6: exactly 0 by response and by token, not noise over noise. A little wider: a signal."""
    noise = torch.arange(6, dtype=torch.float64) * 1e-7 + 0.95
    draw_B, mask_BT = torch.tensor([0, 1, 0, 1, 1, 0]), torch.ones(2, 3, dtype=torch.bool)
    for values in (noise, -noise, torch.full((6,), 0.95)):
        assert nb.batch_std_advantages(values, draw_B, std_correction=ddof, eps=eps).tolist() == [0.0] * 6
        tokens_BT = nb.batch_advantages(values.reshape(2, 3), mask_BT, std_correction=ddof, eps=eps)
        assert tokens_BT.tolist() == [[0.0] * 3] * 2
    wide = noise * 10
    assert nb.batch_std_advantages(wide, draw_B, std_correction=ddof, eps=eps).abs().max() > 0.3
    assert nb.batch_advantages(wide.reshape(2, 3), mask_BT, std_correction=ddof, eps=eps).abs().max() > 0.3


@ddofs
def test_a_uniform_group_among_others_has_zero_and_counts(ddof: int) -> None:
    """Lite PPO: the group of 1, 1 has no advantage itself, yet its rewards widen the deviation of all."""
    values, draws = [1.0, 1.0, 0.0, 2.0], [0, 0, 1, 1]
    got = nb.batch_std_advantages(torch.tensor(values), torch.tensor(draws), std_correction=ddof, eps=0.0)
    scale = math.sqrt(2 / (4 - ddof))  # deviations 0, 0, -1, 1 around 1
    assert got.tolist() == pytest.approx([0.0, 0.0, -1 / scale, 1 / scale])


@checked
@given(batch=ragged_rewards(), random=st.randoms(use_true_random=False))
def test_groups_lie_in_any_order_under_any_name(batch: tuple[list[float], list[int]], random: Any) -> None:
    """Permuting rows permutes advantages; a draw's number is a name."""
    values, draws = batch
    order = random.sample(range(len(values)), len(values))
    names = {0: 9, 3: -(10**12), -1: 0, 7_000_000_000: 3}
    knobs: dict[str, Any] = {"std_correction": 1, "eps": 1e-6}
    got = nb.batch_std_advantages(torch.tensor(values), torch.tensor(draws), **knobs)
    moved = nb.batch_std_advantages(
        torch.tensor([values[i] for i in order]), torch.tensor([names[draws[i]] for i in order]), **knobs
    )
    torch.testing.assert_close(moved, got[order], rtol=1e-6, atol=1e-12)


@checked
@given(reward_groups(smallest=2), st.integers(-9, 9), st.randoms(use_true_random=False))
def test_shifts_and_orders_of_a_group(groups: list[list[float]], shift: int, random: Any) -> None:
    """A constant on one group's rewards changes no group-relative advantage; orders are kept."""
    plain = torch.tensor(groups)
    moved = plain.clone()
    moved[0] += shift
    columns = random.sample(range(plain.shape[1]), plain.shape[1])
    prompts = random.sample(range(len(groups)), len(groups))
    for advantages in (
        nb.mean_advantages,
        nb.leave_one_out_advantages,
        lambda r: alg.group_advantages(r, std_correction=1, eps=1e-6),
    ):
        torch.testing.assert_close(advantages(moved), advantages(plain), rtol=1e-6, atol=1e-6)
        turned = advantages(plain[prompts][:, columns])
        torch.testing.assert_close(turned, advantages(plain)[prompts][:, columns], rtol=1e-6, atol=1e-6)
    assume(plain.min() < plain.max() and moved.min() < moved.max())
    draw_B = torch.arange(len(groups)).repeat_interleave(plain.shape[1])
    before, after, everywhere = (
        nb.batch_std_advantages(r.flatten(), draw_B, std_correction=1, eps=0.0).double()
        for r in (plain, moved, plain + shift)
    )
    torch.testing.assert_close(everywhere, before, rtol=1e-6, atol=1e-6)
    # one group alone moves the common deviation, and nothing but it
    ratio = plain.double().std() / moved.double().std()
    torch.testing.assert_close(after, before * ratio, rtol=1e-6, atol=1e-6)


# --- advantages by token --------------------------------------------------------------------------


@checked
@given(data=st.data(), junk=junk_values)
def test_rewards_to_go_are_the_oracles(data: st.DataObject, junk: float) -> None:
    """R minus the costs from here on; without costs R; the same as GAE with gamma = lambda = 1 and V = 0."""
    mask = data.draw(masks())
    costs = data.draw(grids(mask))
    values = data.draw(st.lists(rewards, min_size=len(mask), max_size=len(mask)))
    mask_BT, rewards_B = tensor(mask), torch.tensor(values)
    got = nb.rewards_to_go(rewards_B, tensor(costs, mask, junk), mask_BT)
    close32(got, ref.rewards_to_go(values, costs, mask))
    free = nb.rewards_to_go(rewards_B, torch.zeros(mask_BT.shape), mask_BT)
    assert torch.equal(free, torch.where(mask_BT, rewards_B.unsqueeze(1), 0.0))

    last_BT = mask_BT & (mask_BT.flip(1).cumsum(1).flip(1) == 1)
    rewards_BT = torch.where(last_BT, rewards_B.double().unsqueeze(1), 0.0) - tensor(costs)
    by_gae, _ = nb.gae(rewards_BT, torch.zeros(mask_BT.shape), mask_BT, gamma=1.0, lam=1.0)
    torch.testing.assert_close(by_gae.double(), got.double(), rtol=1e-6, atol=1e-6)


def test_golden_rewards_to_go() -> None:
    """R = 1, costs .5, (9), .25: 1 - .75, 0, 1 - .25. A row without tokens is 0, its neighbour its own."""
    mask_BT = torch.tensor([[True, False, True], [False] * 3, [False, False, True]])
    costs_BT = torch.tensor([[0.5, 9.0, 0.25], [math.nan] * 3, [math.inf, -math.inf, -1.0]])
    got = nb.rewards_to_go(torch.tensor([1.0, 5.0, -1.0]), costs_BT, mask_BT)
    assert got.tolist() == [[0.25, 0.0, 0.75], [0.0] * 3, [0.0, 0.0, 0.0]]


@ddofs
@checked
@given(data=st.data(), eps=epsilons, junk=junk_values)
def test_batch_advantages_are_the_oracles(ddof: int, data: st.DataObject, eps: float, junk: float) -> None:
    """Over every masked token: masked mean 0, and standard deviation 1 without eps."""
    mask = data.draw(masks())
    returns = data.draw(grids(mask, rewards))
    mask_BT = tensor(mask)
    got = nb.batch_advantages(tensor(returns, mask, junk), mask_BT, std_correction=ddof, eps=eps)
    close32(got, ref.batch_advantages(returns, mask, ddof, eps))
    kept = got[mask_BT].double()
    if kept.any():
        assert abs(kept.mean().item()) < 1e-6
        if eps == 0:
            assert kept.std(correction=ddof).item() == pytest.approx(1.0, rel=1e-6)


gammas = st.sampled_from([0.0, 0.5, 0.99, 1.0]) | st.floats(0.0, 1.0)


@checked
@given(data=st.data(), gamma=gammas, lam=gammas, junk=junk_values)
def test_gae_is_the_oracles(data: st.DataObject, gamma: float, lam: float, junk: float) -> None:
    """The written-out sum of discounted TD errors over a row's masked tokens."""
    mask = data.draw(masks())
    given_rewards, values = data.draw(grids(mask)), data.draw(grids(mask))
    tensors = (tensor(given_rewards, mask, junk), tensor(values, mask, junk), tensor(mask))
    advantages_BT, returns_BT = nb.gae(*tensors, gamma=gamma, lam=lam)
    expected = ref.gae(given_rewards, values, mask, gamma, lam)
    for got_BT, grid in zip((advantages_BT, returns_BT), expected, strict=True):
        close(got_BT, grid, rtol=1e-6, atol=1e-6)
        assert got_BT[~tensor(mask)].eq(0).all()


@checked
@given(data=st.data(), gamma=gammas)
def test_gae_at_its_ends(data: st.DataObject, gamma: float) -> None:
    """Lambda 0 is the TD error; lambda 1 returns the discounted rewards whatever the values say."""
    mask = [[True] * data.draw(st.integers(1, 5))] * data.draw(st.integers(1, 3))
    rewards_BT, values_BT = tensor(data.draw(grids(mask))), tensor(data.draw(grids(mask)))
    mask_BT = tensor(mask)
    after_BT = torch.cat([values_BT[:, 1:], torch.zeros(len(mask), 1)], dim=1)
    td_BT, _ = nb.gae(rewards_BT, values_BT, mask_BT, gamma=gamma, lam=0.0)
    torch.testing.assert_close(td_BT.double(), rewards_BT + gamma * after_BT - values_BT, rtol=1e-6, atol=1e-6)
    width = len(mask[0])
    discount_TT = torch.tensor([[gamma ** (j - t) if j >= t else 0.0 for t in range(width)] for j in range(width)])
    _, returns_BT = nb.gae(rewards_BT, values_BT, mask_BT, gamma=gamma, lam=1.0)
    torch.testing.assert_close(returns_BT.double(), rewards_BT @ discount_TT.double(), rtol=1e-5, atol=1e-5)


def test_golden_gae() -> None:
    """gamma .5, lambda .5; rewards 0, 2, V 1, 3 with a hole between: delta 2 = 2 - 3, delta 1 = 0 + 1.5 - 1.

    A = .5 + .25 * -1 = .25 and -1; returns 1.25 and 2.
    """
    mask_BT = torch.tensor([[True, False, True, False]])
    rewards_BT = torch.tensor([[0.0, 50.0, 2.0, 50.0]])
    values_BT = torch.tensor([[1.0, 70.0, 3.0, 70.0]])
    advantages_BT, returns_BT = nb.gae(rewards_BT, values_BT, mask_BT, gamma=0.5, lam=0.5)
    assert advantages_BT.tolist() == [[0.25, 0.0, -1.0, 0.0]]
    assert returns_BT.tolist() == [[1.25, 0.0, 2.0, 0.0]]


ONE, DRAW, REST = torch.tensor([1.0, 0.0]).double(), torch.tensor([0, 0]), {"std_correction": 1, "eps": 0.0}
ROW, ROW_MASK = ONE.unsqueeze(0), torch.ones(1, 2, dtype=torch.bool)


@pytest.mark.parametrize(
    "advantages",
    [
        lambda: nb.mean_advantages(ROW),
        lambda: nb.leave_one_out_advantages(ROW),
        lambda: nb.batch_std_advantages(ONE, DRAW, **REST),
        lambda: nb.batch_advantages(ROW, ROW_MASK, **REST),
        lambda: nb.gae(ROW, ROW, ROW_MASK, gamma=1.0, lam=1.0)[0],
    ],
)
def test_advantages_are_stored_in_float32(advantages: Any) -> None:
    """Of float64 arguments, which torch would keep."""
    assert advantages().dtype == torch.float32


def test_gae_computes_in_float64() -> None:
    """Of float32: 1 + 2^24 - 2^24 is 1, where float32 has no 2^24 + 1."""
    values_BT = torch.full((1, 2), 2.0**24)
    advantages_BT, _ = nb.gae(torch.ones(1, 2), values_BT, ROW_MASK, gamma=1.0, lam=0.0)
    assert advantages_BT[0, 0].item() == 1.0


@pytest.mark.parametrize(("gamma", "lam"), [(-0.01, 1.0), (1.01, 1.0), (1.0, -0.01), (1.0, 1.01), (math.nan, 1.0)])
def test_gae_refuses_what_is_no_discount(gamma: float, lam: float) -> None:
    """Both lie in [0, 1]."""
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match=r"gamma|lam"):
        nb.gae(one, one, one.bool(), gamma=gamma, lam=lam)


# --- selections -----------------------------------------------------------------------------------


@checked
@given(data=st.data(), junk=junk_values)
def test_token_covariance_is_the_oracles(data: st.DataObject, junk: float) -> None:
    """The product of deviations from the batch's masked means, in float64."""
    mask = data.draw(masks())
    logp, advantages = data.draw(grids(mask)), data.draw(grids(mask))
    got = nb.token_covariance(tensor(logp, mask, junk), tensor(advantages, mask, junk), tensor(mask))
    assert got.dtype == torch.float64
    close(got, ref.token_covariance(logp, advantages, mask))


def test_token_covariance_computes_in_float64() -> None:
    """Log-probs of -1e4 and steps of 2^-10 in float32: deviations -+1/2048, +-1 in advantage."""
    logprobs_BT = torch.tensor([[-10000.0, -10000.0 + 2**-10]])
    got = nb.token_covariance(logprobs_BT, torch.tensor([[1.0, -1.0]]), torch.ones(1, 2, dtype=torch.bool))
    assert got.tolist() == [[-1 / 2048, -1 / 2048]]


@checked
@given(data=st.data(), fraction=fractions, junk=junk_values)
def test_clip_cov_picks_the_oracles(data: st.DataObject, fraction: float, junk: float) -> None:
    """Of the tokens strictly between the bounds, those with the smallest uniforms."""
    mask = data.draw(masks())
    covariance = data.draw(grids(mask, rewards))
    flat = data.draw(st.permutations([i / 40 for i in range(len(mask) * len(mask[0]))]))
    draws = [[flat[b * len(mask[0]) + t] for t in range(len(mask[0]))] for b in range(len(mask))]
    low, high = sorted(data.draw(st.tuples(rewards, rewards | st.just(math.inf))))
    tensors = (tensor(covariance, mask, junk), tensor(mask), tensor(draws, mask, junk))
    got = nb.pick_clip_cov(*tensors, fraction=fraction, low=low, high=high)
    assert got.dtype == torch.bool
    assert got.tolist() == ref.pick_clip_cov(covariance, mask, draws, fraction, low, high)


@checked
@given(data=st.data(), fraction=fractions, junk=junk_values)
def test_kl_cov_picks_the_oracles(data: st.DataObject, fraction: float, junk: float) -> None:
    """The largest covariances, among negative ones too."""
    mask = data.draw(masks())
    width = len(mask[0])
    flat = data.draw(st.permutations([float(i - 9) for i in range(len(mask) * width)]))
    covariance = [flat[b * width : (b + 1) * width] for b in range(len(mask))]
    got = nb.pick_kl_cov(tensor(covariance, mask, junk), tensor(mask), fraction=fraction)
    assert got.dtype == torch.bool
    assert got.tolist() == ref.pick_kl_cov(covariance, mask, fraction)


def test_golden_picks() -> None:
    """Ten tokens, fraction .29: int(2.9) = 2 of them. Bounds are strict; too few candidates are all taken."""
    covariance_BT = torch.tensor([[1.0, 5.0, 3.0, 3.0, 2.0], [4.0, 3.0, 9.0, 0.0, -1.0]])
    uniforms_BT = torch.tensor([[0.0, 0.1, 0.9, 0.3, 0.5], [0.4, 0.2, 0.0, 0.0, 0.0]])
    mask_BT = torch.ones(2, 5, dtype=torch.bool)
    # strictly in (1, 5): 3 (.9), 3 (.3), 2 (.5), 4 (.4), 3 (.2)
    got = nb.pick_clip_cov(covariance_BT, mask_BT, uniforms_BT, fraction=0.29, low=1.0, high=5.0)
    assert got.nonzero().tolist() == [[0, 3], [1, 1]]
    few = nb.pick_clip_cov(covariance_BT, mask_BT, uniforms_BT, fraction=0.9, low=3.5, high=100.0)
    assert few.nonzero().tolist() == [[0, 1], [1, 0], [1, 2]]
    assert nb.pick_kl_cov(covariance_BT, mask_BT, fraction=0.29).nonzero().tolist() == [[0, 1], [1, 2]]
    assert nb.pick_kl_cov(covariance_BT, mask_BT, fraction=1e-6).nonzero().tolist() == [[1, 2]]
    # off the mask the best of either are no candidates; of 8 tokens int(2.32) = 2
    mask_BT[1, 1] = mask_BT[1, 2] = False
    got = nb.pick_clip_cov(covariance_BT, mask_BT, uniforms_BT, fraction=0.29, low=1.0, high=5.0)
    assert got.nonzero().tolist() == [[0, 3], [1, 0]]
    assert nb.pick_kl_cov(covariance_BT, mask_BT, fraction=0.29).nonzero().tolist() == [[0, 1], [1, 0]]


def test_ties_do_not_change_how_many() -> None:
    """Equal covariances and uniforms: still two of ten, and always the same two."""
    flat_BT, mask_BT = torch.ones(2, 5), torch.ones(2, 5, dtype=torch.bool)
    for pick in (
        lambda: nb.pick_kl_cov(flat_BT, mask_BT, fraction=0.2),
        lambda: nb.pick_clip_cov(flat_BT, mask_BT, flat_BT / 2, fraction=0.2, low=0.0, high=2.0),
    ):
        assert pick().sum() == 2
        assert torch.equal(pick(), pick())


@checked
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_selections_follow_their_rows(data: st.DataObject, random: Any) -> None:
    """One selection of a mini-batch: rows in another order have the same tokens selected."""
    mask = data.draw(masks())
    logprobs_BT, advantages_BT, mask_BT = tensor(data.draw(grids(mask))), tensor(data.draw(grids(mask))), tensor(mask)
    uniforms_BT = torch.rand(mask_BT.shape, generator=torch.Generator().manual_seed(len(mask)))
    order = random.sample(range(len(mask)), len(mask))
    covariance_BT = nb.token_covariance(logprobs_BT, advantages_BT, mask_BT)
    moved_BT = nb.token_covariance(logprobs_BT[order], advantages_BT[order], mask_BT[order])
    torch.testing.assert_close(moved_BT, covariance_BT[order], rtol=1e-9, atol=1e-12)
    knobs: dict[str, Any] = {"fraction": 0.4, "low": -0.5, "high": 2.0}
    whole = nb.pick_clip_cov(covariance_BT, mask_BT, uniforms_BT, **knobs)
    turned = nb.pick_clip_cov(covariance_BT[order], mask_BT[order], uniforms_BT[order], **knobs)
    assert torch.equal(turned, whole[order])
    assume(len(set(covariance_BT[mask_BT].tolist())) == int(mask_BT.sum()))
    whole = nb.pick_kl_cov(covariance_BT, mask_BT, fraction=0.4)
    assert torch.equal(nb.pick_kl_cov(covariance_BT[order], mask_BT[order], fraction=0.4), whole[order])


# --- weights --------------------------------------------------------------------------------------


@checked
@given(data=st.data(), cap=st.floats(0.5, 4.0), junk=junk_values)
def test_sequence_weights_are_the_oracles(data: st.DataObject, cap: float, junk: float) -> None:
    """One weight a row, of its masked tokens, under the cap; 1 elsewhere; a number, not a function."""
    mask = data.draw(masks())
    old, engine = data.draw(grids(mask)), data.draw(grids(mask))
    tensors = (tensor(old, mask, junk).requires_grad_(), tensor(engine, mask, junk), tensor(mask))
    got = nb.sequence_importance_weights(*tensors, cap)
    assert not got.requires_grad
    close(got, ref.sequence_weights(old, engine, mask, cap))


@checked
@given(st.lists(st.tuples(st.floats(-9.0, 0.0), st.floats(-9.0, 0.0)), min_size=1, max_size=5), st.floats(1.0, 9.0))
def test_sequence_weights_of_one_token_are_the_tokens(pairs: list[tuple[float, float]], cap: float) -> None:
    """A response of one token weighs what the token does."""
    old_BT, engine_BT = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    args = (old_BT.unsqueeze(1), engine_BT.unsqueeze(1), torch.ones(len(pairs), 1, dtype=torch.bool), cap)
    torch.testing.assert_close(nb.sequence_importance_weights(*args), alg.importance_weights(*args))


def test_extreme_sequence_weights() -> None:
    """Sums of +-2e4 give the cap and 0; two huge gaps that cancel give 1, exponents being added first."""
    old_BT = torch.tensor([[-1.0, -1.0], [-1e4, -1e4], [-1e4, 0.0]])
    engine_BT = torch.tensor([[-1e4, -1e4], [-1.0, -1.0], [0.0, -1e4]])
    got = nb.sequence_importance_weights(old_BT, engine_BT, torch.ones(3, 2, dtype=torch.bool), 2.0)
    assert got.tolist() == [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]


# --- figures of REFERENCE section 3 ---------------------------------------------------------------


def test_one_right_of_sixteen() -> None:
    """+3.75 / -.25 with ddof 1 and the code's eps; 15/16, -1/16 of 2 for Dr.GRPO; 2, -2/15 for RLOO."""
    rewards_PG = torch.tensor([[1.0] + [-1.0] * 15])
    got = alg.group_advantages(rewards_PG, std_correction=1, eps=1e-6)[0].tolist()
    assert got == pytest.approx([3.75] + [-0.25] * 15, abs=1e-5)
    assert nb.mean_advantages(rewards_PG)[0].tolist() == [1.875] + [-0.125] * 15
    assert nb.leave_one_out_advantages(rewards_PG)[0].tolist() == pytest.approx([2.0] + [-2 / 15] * 15)


def test_microbatch_token_weights() -> None:
    """A loss of 1 on long or on short tokens, relative to their share of a true token mean: .07 and 1.99."""
    tokens_B, draw_B = torch.tensor([10200] * 2 + [380] * 50), torch.arange(52)
    by_cut = alg.row_weights(tokens_B, draw_B, "microbatch", microbatches=[range(2), range(2, 52)]) * tokens_B
    exact = alg.row_weights(tokens_B, draw_B, "minibatch") * tokens_B
    assert exact[:2].sum().item() == pytest.approx(20400 / 39400)
    assert round((by_cut[:2].sum() / exact[:2].sum()).item(), 2) == 0.07
    assert round((by_cut[2:].sum() / exact[2:].sum()).item(), 2) == 1.99


@checked
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_one_microbatch_is_the_minibatch(tokens: list[int], random: Any) -> None:
    """Rows without loss tokens included: the cut's share is 1 and the denominator every token."""
    tokens_B = torch.tensor(tokens)
    one = [random.sample(range(len(tokens)), len(tokens))]
    by_cut = alg.row_weights(tokens_B, torch.arange(len(tokens)), "microbatch", microbatches=one)
    assert by_cut.tolist() == pytest.approx([(n > 0) / max(1, sum(tokens)) for n in tokens])
