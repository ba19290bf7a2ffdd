"""Estimators of pass@k and maj@k, and intervals: against brute force, hand-worked cases and simulated coverage."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dapo.evals.estimators import maj_at_k, pass_at_k, powers_of_two
from dapo.evals.intervals import bootstrap_interval, detectable, population_interval, set_interval, t_interval

pytestmark = pytest.mark.filterwarnings("error")  # numpy's divisions by zero included

Votes = list[int | None]
INF = math.inf
SAMPLES = 16  # a problem, in the simulations


def tops(subset: Sequence[int | None]) -> list[int]:
    """The classes with the most votes; none when nobody votes."""
    counts = Counter(vote for vote in subset if vote is not None)
    return [label for label, count in counts.items() if count == max(counts.values())]


def share(subset: Sequence[int | None], right: int | None) -> Fraction:
    """The chance that a uniformly broken tie among the top classes gives the right one."""
    top = tops(subset)
    return Fraction(1, len(top)) if right in top else Fraction(0)


def slow_maj(votes: Votes, right: int | None, k: int) -> tuple[float, float]:
    """maj@k by its definition: every k-subset, in exact fractions."""
    subsets = list(itertools.combinations(votes, k))
    value = sum((share(subset, right) for subset in subsets), Fraction(0)) / len(subsets)
    return float(value), float(Fraction(sum(len(tops(subset)) > 1 for subset in subsets), len(subsets)))


def random_votes(rng: random.Random, n: int, labels: int, silent: float) -> Votes:
    """n votes over at most so many classes, uneven, some silent."""
    weights = [rng.random() ** 2 + 0.01 for _ in range(labels)]
    return [None if rng.random() < silent else rng.choices(range(labels), weights)[0] for _ in range(n)]


# --- pass@k ---------------------------------------------------------------------------------------


def test_pass_at_k_is_the_share_of_subsets_with_a_right_one() -> None:
    """Every n <= 9, c and k, by enumeration of the subsets."""
    for n, c, k in [(i, j, h) for i in range(1, 10) for j in range(i + 1) for h in range(1, i + 1)]:
        subsets = list(itertools.combinations(range(n), k))
        expected = sum(min(subset) < c for subset in subsets) / len(subsets)
        assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12), (n, c, k)


def test_pass_at_k_does_not_overflow() -> None:
    """n = 4096 against exact integers, to 1e-12."""
    n = 4096
    for c in (0, 1, 2, 7, 100, 2048, 4000, 4095, 4096):
        for k in (1, 2, 16, 333, 2048, 4000, 4095, 4096):
            exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
            assert abs(Fraction(pass_at_k(n, c, k)) - exact) <= 1e-12, (c, k)


def test_pass_at_k_ends_and_order() -> None:
    """pass@1 = c/n, it never falls with k, none right is 0, and it is 1 once k exceeds the wrong ones."""
    for n, c in [(i, j) for i in (1, 5, 16, 100) for j in range(i + 1)]:
        values = [pass_at_k(n, c, k) for k in range(1, n + 1)]
        assert values[0] == pytest.approx(c / n, abs=1e-12)
        assert all(later >= earlier - 1e-15 for earlier, later in itertools.pairwise(values))
        assert all(0 <= value <= 1 for value in values)
        assert [value for value in values[n - c :] if value != 1] == []
        assert c > 0 or values == [0] * n


@pytest.mark.parametrize("p", [0.0, 0.03, 0.5, 0.9, 1.0])
def test_pass_at_k_is_unbiased(p: float) -> None:
    """Its mean over c ~ Binomial(n, p), summed exactly, is 1 - (1-p)^k."""
    for n, k in [(i, h) for i in (1, 7, 12) for h in range(1, i + 1)]:
        mean = math.fsum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
        assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


@pytest.mark.parametrize(
    ("n", "c", "k"), [(4, -1, 1), (4, 5, 1), (4, 2, 0), (4, 2, 5), (4, 2, -1), (0, 0, 1), (0, 0, 0), (-1, 0, 1)]
)
def test_pass_at_k_refuses_impossible_counts(n: int, c: int, k: int) -> None:
    """0 <= c <= n and 1 <= k <= n, or a ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011
        pass_at_k(n, c, k)


def test_powers_of_two() -> None:
    """1, 2, 4, ... up to k, and k itself."""
    assert powers_of_two(1) == (1,)
    assert powers_of_two(2) == (1, 2)
    assert powers_of_two(3) == (1, 2, 3)
    assert powers_of_two(12) == (1, 2, 4, 8, 12)
    assert powers_of_two(64) == (1, 2, 4, 8, 16, 32, 64)
    assert powers_of_two(65) == (1, 2, 4, 8, 16, 32, 64, 65)


# --- maj@k ----------------------------------------------------------------------------------------


def test_maj_at_k_is_the_mean_over_all_subsets() -> None:
    """Random classes with silent samples, every k and every right class, by enumeration."""
    rng = random.Random(5)
    for _ in range(60):
        votes = random_votes(rng, rng.randint(1, 10), rng.randint(1, 6), rng.choice([0.0, 0.2, 0.7]))
        right = rng.choice([None, *range(6)])
        for k in range(1, len(votes) + 1):
            assert maj_at_k(votes, right, k) == pytest.approx(slow_maj(votes, right, k), abs=1e-12), (votes, right, k)


@pytest.mark.parametrize(
    ("votes", "right", "k", "expected"),
    [
        ([0, 0, 1], 0, 3, (1, 0)),
        ([0, 0, 1], 0, 2, (2 / 3, 2 / 3)),  # {00} wins, two {01} tie: 1/3 + 2/3 * 1/2
        ([0, 1, 2], 1, 3, (1 / 3, 1)),
        ([0, None, None], 0, 3, (1, 0)),  # the one voter decides
        ([0, None, None], 0, 2, (2 / 3, 0)),  # a subset without a voter counts 0
        ([1, 1, 0, 0, None], 0, 5, (1 / 2, 1)),
        ([None, None], 0, 2, (0, 0)),
        ([None, None], None, 1, (0, 0)),  # silence is no class, even when no class is right
        ([0, 1], None, 2, (0, 1)),  # a tie is a tie though nobody is right
        ([0, 0], 7, 2, (0, 0)),
    ],
)
def test_maj_at_k_by_hand(votes: Votes, right: int | None, k: int, expected: tuple[float, float]) -> None:
    """Ties, silence and nobody right."""
    assert maj_at_k(votes, right, k) == pytest.approx(expected, abs=1e-12)


def test_maj_at_k_ends() -> None:
    """k = 1 is the share right without ties; k = n is the plurality of all, up to n = 256."""
    rng = random.Random(6)
    for n in (1, 2, 7, 33, 64, 256):
        votes = random_votes(rng, n, 4, 0.2)
        for right in (0, 1, None):
            alone = sum(vote is not None and vote == right for vote in votes) / n
            assert maj_at_k(votes, right, 1) == pytest.approx((alone, 0), abs=1e-12)
            whole = (float(share(votes, right)), float(len(tops(votes)) > 1))
            assert maj_at_k(votes, right, n) == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("n", [12, 64, 256])
def test_maj_at_k_shares_one_among_the_classes(n: int) -> None:
    """Summed over the right class it is the chance of a voter; names and order of the samples are nothing to it."""
    rng = random.Random(n)
    votes = random_votes(rng, n, 5, 0.6)
    names = {0: 31, 1: 4, 2: 0, 3: 900, 4: 17, None: None}
    shuffled = [names[vote] for vote in rng.sample(votes, n)]
    for k in (1, 2, 5, n // 3, n - 1):
        values = [maj_at_k(votes, right, k) for right in range(5)]
        voter = 1 - Fraction(math.comb(votes.count(None), k), math.comb(n, k))
        assert math.fsum(value for value, _ in values) == pytest.approx(float(voter), abs=1e-9)
        assert len({round(tied, 9) for _, tied in values}) == 1
        assert maj_at_k(shuffled, names[1], k) == pytest.approx(values[1], abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(64, 30, 9), (64, 33, 32), (256, 100, 33), (256, 127, 128), (256, 3, 7)])
def test_maj_at_k_of_two_classes_is_hypergeometric(n: int, c: int, k: int) -> None:
    """c right against n - c of one wrong answer, in exact integers."""
    ways = {h: Fraction(math.comb(c, h) * math.comb(n - c, k - h), math.comb(n, k)) for h in range(k + 1)}
    tied = sum((chance for h, chance in ways.items() if 2 * h == k), Fraction(0))
    value = sum((chance for h, chance in ways.items() if 2 * h > k), Fraction(0)) + tied / 2
    assert maj_at_k([0] * c + [1] * (n - c), 0, k) == pytest.approx((float(value), float(tied)), abs=1e-10)
    alone: Votes = [0] * c + list(range(1, n - c + 1))  # every wrong answer its own class
    none, one = ways[0], ways[1]
    value = (1 - none - one) + one / k
    tied = (one if k > 1 else 0) + (none if k > 1 else 0)
    assert maj_at_k(alone, 0, k) == pytest.approx((float(value), float(tied)), abs=1e-10)


@pytest.mark.parametrize("k", [2, 5, 16, 31])
def test_maj_at_k_agrees_with_simulation(k: int) -> None:
    """n = 32, five classes and silence, 40,000 random subsets, within 4.5 standard errors."""
    rng = np.random.default_rng(k)
    votes: Votes = [0] * 9 + [1] * 8 + [2] * 5 + [3] * 3 + [4] + [None] * 6
    coded = np.array([-1 if vote is None else vote for vote in votes])
    subsets = rng.permuted(np.tile(coded, (40_000, 1)), axis=1)[:, :k]
    counts = (subsets[:, :, None] == np.arange(5)).sum(axis=1)
    top = (counts == counts.max(axis=1, keepdims=True)) & (counts > 0)
    ties = top.sum(axis=1)
    for right in range(5):
        got = top[:, right] / np.maximum(ties, 1)
        value, tied = maj_at_k(votes, right, k)
        assert abs(got.mean() - value) <= 4.5 * got.std() / 200 + 1e-4
        assert abs((ties > 1).mean() - tied) <= 4.5 * math.sqrt(tied * (1 - tied)) / 200 + 1e-4


@pytest.mark.parametrize("outcomes", [(0, 1, 2), (0, 1, None)])
def test_maj_at_k_is_unbiased(outcomes: tuple[int | None, ...]) -> None:
    """Its mean over all sequences of n = 4 samples is the majority of k = 3 fresh draws."""
    chance = dict(zip(outcomes, (0.5, 0.3, 0.2), strict=True))
    for right, k in ((0, 3), (1, 3), (0, 2), (1, 2)):
        long, fresh = itertools.product(outcomes, repeat=4), itertools.product(outcomes, repeat=k)
        mean = math.fsum(math.prod(chance[v] for v in vs) * maj_at_k(vs, right, k)[0] for vs in long)
        direct = math.fsum(math.prod(chance[v] for v in vs) * float(share(vs, right)) for vs in fresh)
        assert mean == pytest.approx(direct, abs=1e-12)


@pytest.mark.parametrize("k", [-1, 0, 4])
def test_maj_at_k_refuses_other_k(k: int) -> None:
    """k is in 1..n."""
    with pytest.raises(ValueError):  # noqa: PT011
        maj_at_k([0, 1, None], 0, k)


@pytest.mark.parametrize(("n", "limit_s"), [(64, 0.2), (256, 3.0)])
def test_maj_at_k_is_fast(n: int, limit_s: float) -> None:
    """The best of three, from one class to as many as samples."""
    for labels in (1, 2, 8, n):
        for k in (8, n // 2, n - 1):
            seconds = []
            for attempt in range(3):
                votes: Votes = [None if i % 9 == attempt else i % labels for i in range(n)]
                start = time.process_time()
                maj_at_k(votes, 0, k)
                seconds.append(time.process_time() - start)
                if seconds[-1] < limit_s:
                    break
            assert min(seconds) < limit_s, (labels, k, seconds)


# --- intervals ------------------------------------------------------------------------------------


def test_t_interval_is_students() -> None:
    """By hand (0.2, 0.4, 0.9: t = 4.302653) and against scipy; cut only when asked."""
    mean, half = 0.5, 4.302652729911275 * math.sqrt((0.09 + 0.01 + 0.16) / 2 / 3)
    assert t_interval([0.2, 0.4, 0.9], bounds=None) == pytest.approx((mean - half, mean + half))
    assert t_interval([0.2, 0.4, 0.9]) == (0, 1)
    assert t_interval([0.2, 0.4, 0.9], bounds=(-0.1, 2.0)) == pytest.approx((-0.1, mean + half))
    values = np.random.default_rng(0).random(50)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert t_interval(list(values)) == pytest.approx((expected.low, expected.high))
    assert t_interval([0.25] * 4) == (0.25, 0.25)
    assert all(math.isnan(end) for values in ([], [0.5]) for end in t_interval(values))


def test_set_interval_is_the_sampling_error_of_these_problems() -> None:
    """By hand: each problem counts once whatever its number of samples, and its variance has n - 1."""
    counts = [(2, 1), (5, 4), (5, 1)] * 4  # enough problems with both
    mean, half = 0.5, 1.959963984540054 * math.sqrt(4 * (0.25 / 1 + 0.16 / 4 + 0.16 / 4)) / 12
    assert set_interval(counts) == pytest.approx((mean - half, mean + half))
    assert set_interval([(2, 1)]) == (0, 1)
    assert set_interval([(2, 1)], bounds=None) == pytest.approx((0.5 - 0.979981992, 0.5 + 0.979981992))
    for undefined in ([], [(1, 1)], [(16, 3), (1, 0)]):
        assert all(math.isnan(end) for end in set_interval(undefined))


def test_samples_that_are_all_alike_leave_something_open() -> None:
    """Few problems with both: each side is widened by what the others may still be, and never is of no width."""

    def left(problems: int, samples: int, of: int) -> float:
        return problems / of * (1 - 0.025 ** (1 / samples))

    half = 1.959963984540054 * math.sqrt(0.25 / 1) / 3
    down, up = math.hypot(half, left(1, 5, 3)), math.hypot(half, left(1, 11, 3))
    assert set_interval([(2, 1), (5, 5), (11, 0)]) == pytest.approx((0.5 - down, 0.5 + up))
    assert set_interval([(4, 4), (9, 0)]) == pytest.approx((0.5 - left(1, 4, 2), 0.5 + left(1, 9, 2)))
    assert set_interval([(4, 0)] * 30) == pytest.approx((0, 1 - 0.025 ** (1 / 120)))
    assert set_interval([(1000, 0), (2, 0)]) == pytest.approx((0, 1 - 0.025 ** (1 / 4)))  # by the fewest samples
    assert 1 - set_interval([(4, 0), (4, 4)])[0] == pytest.approx(set_interval([(4, 4), (4, 0)])[1])


@pytest.mark.parametrize("right", [1, 16, 31])
def test_no_population_interval_is_narrower_than_that_of_the_set(right: int) -> None:
    """Equal shares have no spread, but their samples do; where all samples are right there is a bound without any."""
    counts = [(32, right)] * 30
    alone = set_interval(counts)
    assert population_interval([right / 32] * 30, alone) == alone
    assert alone[0] < right / 32 < alone[1]
    shares = [right / 32] * 29 + [0.25]
    low, high = population_interval(shares, set_interval([*counts[1:], (32, 8)]))
    plain = t_interval(shares)
    assert low <= plain[0] < plain[1] <= high


def test_detectable_by_hand() -> None:
    """z and t quantiles for 5% and 80%; undefined with one sample, one problem or none."""
    here, over = detectable([(5, 1), (5, 2), (4, 2)])
    assert here == pytest.approx((1.959963985 + 0.841621234) * math.sqrt(2 * (0.16 / 4 + 0.24 / 4 + 0.25 / 3)) / 3)
    assert over == pytest.approx((2.776445105 + 0.940964577) * statistics.stdev([0.2, 0.4, 0.5]) * math.sqrt(2 / 3))
    one_sample = detectable([(1, 1), (4, 3)])
    assert math.isnan(one_sample[0])
    assert one_sample[1] == pytest.approx((4.302652730 + 1.060660172) * statistics.stdev([1, 0.75]))
    one_problem = detectable([(4, 1)])
    assert one_problem[0] == pytest.approx(2.801585218 * math.sqrt(2 * 0.1875 / 3))
    assert math.isnan(one_problem[1])
    assert math.isnan(detectable([(4, 0), (4, 4)])[1])  # 379 points are none
    assert all(math.isnan(figure) for figure in detectable([(4, 2)] * 3)[1:])
    assert all(math.isnan(figure) for figure in detectable([]))


def test_a_detectable_difference_is_found_four_times_in_five() -> None:
    """On one set by simulation of the z test on it, over the population by the noncentral t."""
    here, _ = detectable([(SAMPLES, 6), (SAMPLES, 10)] * 20)  # 16 draws of p = 1/2 with their usual spread
    rng = np.random.default_rng(1)
    p = np.array([[0.5 - here / 2], [0.5 + here / 2]])[..., None]
    means = rng.binomial(SAMPLES, p, (2, 20_000, 40)) / SAMPLES
    se = np.sqrt((means * (1 - means) / (SAMPLES - 1)).sum(axis=(0, 2))) / 40
    assert abs((np.abs(means[1].mean(-1) - means[0].mean(-1)) > 1.96 * se).mean() - 0.8) < 0.02
    counts = [(SAMPLES, i % 17) for i in range(30)]
    effect = detectable(counts)[1] / (statistics.stdev([c / n for n, c in counts]) * math.sqrt(2 / 30))
    assert stats.nct.sf(stats.t.ppf(0.975, 58), 58, effect) == pytest.approx(0.8, abs=0.01)


# --- the bootstrap --------------------------------------------------------------------------------


def slow_bootstrap(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Bootstrap-t by a plain loop over 9999 resamples; fractions decide whether a spread is zero."""
    rng, n = random.Random(seed), len(values)
    mean, se = statistics.fmean(values), statistics.stdev(values) / math.sqrt(n)
    centre = sum((Fraction(str(value)) for value in values), Fraction(0)) / n
    found = []
    for _ in range(9999):
        drawn = rng.choices(values, k=n)
        if min(drawn) == max(drawn):
            side = Fraction(str(drawn[0])) - centre
            found.append(0.0 if side == 0 else math.copysign(INF, side))
            continue
        average = sum(drawn) / n
        spread = math.sqrt(sum((x - average) ** 2 for x in drawn) / (n - 1) / n)
        found.append((average - mean) / spread)
    found.sort()
    return mean - found[9749] * se, mean - found[249] * se  # the 2.5% and 97.5% of 9999


@pytest.mark.parametrize(
    "values",
    [
        [i / 16 for i in (0, 0, 1, 3, 4, 4, 7, 9, 10, 13, 15, 16)],
        [i / 16 for i in (0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 5, 9, 16, 0, 0, 1, 2, 4)],
        [0.6, 0.7, 0.7, 0.7, 0.7, 0.8],  # only 0.7 in 9% of the resamples: t* = 0, though floats blur their mean
        [0.1, 0.7, 0.7, 0.4, 0.3, 0.2, 0.9, 0.1, 0.6],
    ],
)
def test_the_bootstrap_agrees_with_a_plain_loop(values: list[float]) -> None:
    """Both ends within 10% of the width."""
    expected = slow_bootstrap(values, 3)
    width = expected[1] - expected[0]
    assert 0 < width < INF
    assert bootstrap_interval(values, bounds=None) == pytest.approx(expected, abs=0.1 * width)
    low, high = bootstrap_interval(values)
    assert (low, high) == pytest.approx((max(0, expected[0]), min(1, expected[1])), abs=0.1 * width)
    assert 0 <= low < high <= 1


def test_the_bootstrap_by_hand() -> None:
    """0, 0, 0, 1: all zeros (32%) is t* = -inf; 3 ones t* = 2, exceeded by 0.4%; so (1/4 - 2/4, inf)."""
    assert bootstrap_interval([0, 0, 0, 1], bounds=None) == (pytest.approx(-0.25), INF)
    assert bootstrap_interval([1, 1, 0, 1], bounds=None) == (-INF, pytest.approx(1.25))
    for values in ([0, 0, 0, 1], [0.25, 0.75], [0.1, 0.3], [0.0, 0.5, 1.0], [0.1, 0.2, 0.3]):  # 3.7% a side at least
        assert bootstrap_interval(values) == (0, 1), values
    assert bootstrap_interval([0.25, 0.75], bounds=None) == (-INF, INF)


def test_the_bootstrap_without_spread() -> None:
    """Equal values have no width, whatever their rounding; fewer than two values no interval."""
    for value, n in ((0.0, 5), (1.0, 2), (0.1, 7), (1 / 3, 30), (0.7, 3)):
        low, high = bootstrap_interval([value] * n)
        assert low == high == pytest.approx(value, abs=1e-12)
    assert all(math.isnan(end) for values in ([], [0.5]) for end in bootstrap_interval(values))


def test_the_bootstrap_is_deterministic() -> None:
    """The same in (values, seed), apart from numpy's global state; another seed or count moves it a little."""
    values = [x / 7 for x in (0, 1, 1, 2, 4, 5, 6, 6, 7, 2, 1)]
    first = bootstrap_interval(values, seed=4)
    np.random.seed(1)
    assert bootstrap_interval(list(values), seed=4) == first
    assert bootstrap_interval(values, seed=0) == bootstrap_interval(values)
    for other in (bootstrap_interval(values, seed=5), bootstrap_interval(values, seed=4, resamples=4999)):
        assert other != first
        assert other == pytest.approx(first, abs=0.1 * (first[1] - first[0]))


# --- coverage -------------------------------------------------------------------------------------


def coverage(a: float, b: float, n: int, repetitions: int) -> tuple[float, float]:
    """How often the t interval holds a/(a+b), and the set interval the set's own mean p; p ~ Beta(a, b)."""
    rng = np.random.default_rng([round(10 * a), round(10 * b), n])
    p = rng.beta(a, b, (repetitions, n))
    right: NDArray[np.int64] = rng.binomial(SAMPLES, p)
    shares = right / SAMPLES
    mean = shares.mean(axis=1)
    t_half = stats.t.ppf(0.975, n - 1) * shares.std(axis=1, ddof=1) / math.sqrt(n)
    set_half = stats.norm.ppf(0.975) * np.sqrt((shares * (1 - shares)).sum(axis=1) / (SAMPLES - 1)) / n
    for i in range(8):  # the copy above is the implementation's formula
        counts = [(SAMPLES, int(c)) for c in right[i]]
        assert t_interval(list(shares[i]), bounds=None) == pytest.approx((mean[i] - t_half[i], mean[i] + t_half[i]))
        if sum(0 < c < SAMPLES for _, c in counts) >= 10:  # else it is wider
            assert set_interval(counts, bounds=None) == pytest.approx((mean[i] - set_half[i], mean[i] + set_half[i]))
    over = np.abs(mean - a / (a + b)) <= t_half
    here = np.abs(mean - p.mean(axis=1)) <= set_half
    return float(over.mean()), float(here.mean())


@pytest.mark.parametrize(("n", "repetitions"), [(30, 40_000), (128, 10_000), (500, 5_000)])
@pytest.mark.parametrize(("a", "b"), [(1, 1), (0.5, 0.5), (0.3, 0.9)])
def test_coverage(a: float, b: float, n: int, repetitions: int) -> None:
    """93..97% for both; the simulation's own noise (3 standard errors) is less than half of that margin."""
    over, here = coverage(a, b, n, repetitions)
    assert 3 * math.sqrt(0.95 * 0.05 / repetitions) < 0.01
    assert 0.93 <= over <= 0.97
    assert 0.93 <= here <= 0.97


def test_coverage_fails_where_hardly_anything_is_right() -> None:
    """Beta(.1, 1.9) at 30 problems: t covers the mean of 0.05 clearly less than 93% (86%)."""
    over, _ = coverage(0.1, 1.9, 30, 20_000)
    assert over < 0.93 - 0.006  # 3 standard errors
