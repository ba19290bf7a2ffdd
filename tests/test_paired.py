"""Answer classes and comparisons of two models: against closures, exact fractions, scipy and simulation."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dapo.evals.intervals import bootstrap_interval, t_interval
from dapo.evals.paired import Paired, paired, seeds, sign_flip, welch
from dapo.evals.votes import classes

pytestmark = pytest.mark.filterwarnings("error")  # numpy's divisions by zero included

Counts = list[tuple[int, int]]
Z = 1.959963984540054


class Asked:
    """An equivalence that holds for the given ordered pairs, and notes what it was asked."""

    def __init__(self, *holds: tuple[str, str]) -> None:
        self.holds = set(holds)
        self.pairs: list[tuple[str, str]] = []

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        self.pairs.extend(pairs)
        return [tuple(pair) in self.holds for pair in pairs]


def closure(answers: Sequence[str | None], holds: set[tuple[str, str]]) -> list[int | None]:
    """Classes by spreading one label at a time from each new answer to all that it reaches."""
    label: dict[str, int] = {}
    for answer in answers:
        if answer is None or answer in label:
            continue
        fresh, reached = len(set(label.values())), [answer]
        while reached:
            at = reached.pop()
            label[at] = fresh
            near = [b for a, b in holds if a == at] + [a for a, b in holds if b == at]
            reached += [other for other in near if other in answers and other not in label]
    return [None if answer is None else label[answer] for answer in answers]


# --- classes of answers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "holds", "expected"),
    [
        ([], [], []),
        ([None, None], [], [None, None]),
        (["7", None, "7"], [], [0, None, 0]),
        (["", None, "x", ""], [], [0, None, 1, 0]),  # an empty answer is an answer
        (["b", "a", "b", "c"], [], [0, 1, 0, 2]),
        (["a", "b"], [("a", "b")], [0, 0]),
        (["a", "b"], [("b", "a")], [0, 0]),  # one direction is enough
        (["a", "c", "b"], [("a", "b"), ("c", "b")], [0, 0, 0]),  # the last one joins the first two
        (["d", "a", "c", "b"], [("a", "b"), ("b", "c")], [0, 1, 1, 1]),
        (["d", None, "a", "x", "c", "b"], [("a", "b"), ("c", "d"), ("b", "d")], [0, None, 0, 1, 0, 0]),
        (["a", "b"], [("a", "z"), ("z", "b")], [0, 1]),  # nobody answered z
    ],
)
def test_classes_by_hand(answers: list[str | None], holds: list[tuple[str, str]], expected: list[int | None]) -> None:
    """Numbers in order of first appearance, silence none, either direction, chains closed."""
    assert classes(answers, Asked(*holds)) == expected


def test_classes_are_the_closure_in_every_order() -> None:
    """Random one-way relations of up to eight strings, shuffled: the same partition, by a graph search."""
    rng = random.Random(2)
    for _ in range(120):
        names = [f"s{i}" for i in range(rng.randint(1, 8))]
        holds = {pair for pair in itertools.permutations(names, 2) if rng.random() < rng.choice([0.05, 0.15])}
        answers = [rng.choice([*names, None]) for _ in range(14)]
        for _ in range(4):
            rng.shuffle(answers)
            assert classes(answers, Asked(*holds)) == closure(answers, holds), (answers, holds)


def test_only_distinct_strings_are_asked_about() -> None:
    """Never a string about itself, nobody else's, no question twice: at most d(d-1) of them."""
    rng = random.Random(3)
    for _ in range(40):
        answers = [rng.choice(["a", "b", "c", "d", "e", None]) for _ in range(rng.randint(0, 64))]
        given = {answer for answer in answers if answer is not None}
        asked = Asked(*[pair for pair in itertools.permutations("abcde", 2) if rng.random() < 0.15])
        classes(answers, asked)
        pairs = [tuple(pair) for pair in asked.pairs]
        assert all(a != b and {a, b} <= given for a, b in pairs)
        assert len(set(pairs)) == len(pairs) <= len(given) * (len(given) - 1)


# --- two models on the same problems --------------------------------------------------------------


def slow_p(before: Counts, after: Counts) -> float:
    """Sign-flip p-value: every pattern of signs of the non-zero differences, in exact fractions."""
    differences = [Fraction(c, n) - Fraction(b, m) for (m, b), (n, c) in zip(before, after, strict=True)]
    moved = [difference for difference in differences if difference]
    sums = [abs(sum((s * d for s, d in zip(signs, moved, strict=True)), Fraction(0))) for signs in patterns(len(moved))]
    return sum(total >= abs(sum(moved, Fraction(0))) for total in sums) / len(sums)


def patterns(count: int) -> list[tuple[int, ...]]:
    """All the signs."""
    return list(itertools.product((1, -1), repeat=count))


def random_counts(rng: random.Random, problems: int, samples: Sequence[int]) -> Counts:
    """Uniform counts over problems of different numbers of samples."""
    sizes = [rng.choice(samples) for _ in range(problems)]
    return [(n, rng.randint(0, n)) for n in sizes]


def shares(counts: Counts) -> list[float]:
    """The mean of each problem."""
    return [c / n for n, c in counts]


def test_paired_by_hand() -> None:
    """Three problems: up a half, down a quarter, the same (2 of 4 and 3 of 6); t(.975, 2) = 4.302653."""
    got = paired([(4, 0), (4, 2), (4, 2)], [(2, 1), (8, 2), (6, 3)])
    assert (got.difference, got.problems, got.up, got.down, got.same) == (pytest.approx(1 / 12), 3, 1, 1, 1)
    half = 4.302652729911275 * math.sqrt(((5 / 12) ** 2 + (4 / 12) ** 2 + (1 / 12) ** 2) / 2 / 3)
    assert (got.low, got.high) == pytest.approx((1 / 12 - half, min(1, 1 / 12 + half)))
    half = Z * math.sqrt(0.25 / 1 + 0.25 / 3 + 0.1875 / 7 + 0.25 / 3 + 0.25 / 5) / 3
    open_low = (1 - 0.025 ** (1 / 4)) / 3  # the problem with 0 of 4 before may be solved now and then
    assert (got.set_low, got.set_high) == pytest.approx((1 / 12 - math.hypot(half, open_low), 1 / 12 + half))
    assert math.isnan(got.p_value)  # other numbers of samples: no sign can be flipped
    assert paired([(4, 0), (4, 2), (4, 2)], [(4, 2), (4, 1), (4, 2)]).p_value == 1


def test_paired_intervals_are_those_of_the_differences() -> None:
    """t and bootstrap of the problem differences, which may be below 0; the bounds are -1 and 1."""
    rng = random.Random(4)
    for problems in (2, 5, 30):
        before, after = (random_counts(rng, problems, [4, 8, 16]) for _ in range(2))
        got = paired(before, after, seed=3)
        differences = [b - a for a, b in zip(shares(before), shares(after), strict=True)]
        assert got.difference == pytest.approx(statistics.fmean(differences))
        low, high = t_interval(differences, bounds=(-1, 1))
        assert (got.low, got.high) == pytest.approx((min(low, got.set_low), max(high, got.set_high)))
        expected = bootstrap_interval(differences, seed=3, bounds=(-1, 1))
        assert (got.bootstrap_low, got.bootstrap_high) == pytest.approx(expected, abs=0.1 * (expected[1] - expected[0]))
        assert -1 <= got.low <= got.difference <= got.high <= 1
    wide = paired([(2, 0), (2, 2)], [(2, 2), (2, 1)])  # differences 1 and -1/2
    assert (wide.low, wide.high, wide.bootstrap_low, wide.bootstrap_high) == (-1, 1, -1, 1)


def test_the_models_change_places() -> None:
    """after against before is before against after with the sign turned."""
    rng = random.Random(7)
    before, after = (random_counts(rng, 12, [16]) for _ in range(2))
    one, other = paired(before, after), paired(after, before)
    assert (other.up, other.down, other.same) == (one.down, one.up, one.same)
    assert (other.difference, other.p_value) == pytest.approx((-one.difference, one.p_value))
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low))
    assert (other.set_low, other.set_high) == pytest.approx((-one.set_high, -one.set_low))
    width = one.bootstrap_high - one.bootstrap_low
    assert (other.bootstrap_low, other.bootstrap_high) == pytest.approx(
        (-one.bootstrap_high, -one.bootstrap_low), abs=0.1 * width
    )


def test_undefined_parts_of_a_comparison() -> None:
    """One problem has no spread, one sample no sampling error; no length or unequal ones is an error."""
    single = paired([(8, 2)], [(8, 6)])
    assert (single.difference, single.p_value, single.problems) == (0.5, 1.0, 1)
    assert all(map(math.isnan, (single.low, single.high, single.bootstrap_low, single.bootstrap_high)))
    half = Z * math.sqrt(2 * 0.1875 / 7)
    assert (single.set_low, single.set_high) == pytest.approx((0.5 - half, 0.5 + half))
    sampled_once = paired([(8, 2), (8, 2)], [(8, 6), (1, 1)])
    assert math.isnan(sampled_once.set_low)
    assert math.isnan(sampled_once.set_high)
    assert sampled_once.low < 0.625 < sampled_once.high
    for before, after in (([], []), ([(2, 1)], []), ([(2, 1)], [(2, 1), (2, 1)])):
        with pytest.raises(ValueError):  # noqa: PT011
            paired(before, after)


def test_nothing_changed() -> None:
    """Equal models: no spread to judge the population by, p = 1, and the sampling error remains."""
    counts = [(4, 1), (4, 3), (4, 0)]
    got = paired(counts, [(8, 2), (8, 6), (8, 0)])
    assert got.difference == 0
    assert math.isnan(got.bootstrap_low)
    assert (got.low, got.high) == (got.set_low, got.set_high)
    assert (got.up, got.down, got.same) == (0, 0, 3)
    half, bounds = Z * math.sqrt(2 * 0.1875 / 3 + 2 * 0.1875 / 7) / 3, [(1 - 0.025 ** (1 / n)) / 3 for n in (4, 8)]
    assert got.set_high == pytest.approx(math.hypot(half, bounds[1]))
    assert got.set_low == pytest.approx(-math.hypot(half, bounds[0]))
    assert paired(counts, counts).p_value == 1


def test_rounding_is_no_spread() -> None:
    """Shares of 10 or 12 samples that differ alike differ alike, whatever their floats do."""
    got = paired([(10, 1), (10, 5), (10, 2)], [(10, 3), (10, 7), (10, 4)])
    assert math.isnan(got.bootstrap_low)
    assert (got.low, got.high) == (got.set_low, got.set_high)
    assert got.low < 0.2 < got.high


# --- the permutation test -------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [(16,), (3, 7, 10), (2,), (9, 11, 13)])
def test_the_p_value_is_exact_for_few_differences(samples: tuple[int, ...]) -> None:
    """Against exact fractions: sums that tie with the observed one count, although floats blur them."""
    rng = random.Random(samples[0])
    for problems in (1, 2, 3, 5, 7, 9):
        for _ in range(8):
            before, after = (random_counts(rng, problems, samples) for _ in range(2))
            differences = [b - a for a, b in zip(shares(before), shares(after), strict=True)]
            assert sign_flip(differences, resamples=9) == pytest.approx(slow_p(before, after), abs=1e-12)


def test_exact_up_to_fourteen_differences() -> None:
    """14 problems all better: 2 of 2^14 patterns, however many others stay the same; 15 are sampled."""
    same = [(4, 1)] * 40
    got = paired([(16, 3)] * 14 + same, [(16, 4)] * 14 + same, resamples=9)
    assert got.p_value == pytest.approx(2 / 2**14, abs=1e-15)
    assert (got.up, got.down, got.same, got.problems) == (14, 0, 40, 54)
    assert paired([(16, 3)] * 15, [(16, 4)] * 15, resamples=99).p_value >= 1 / 100
    many = paired([(16, 3)] * 40, [(16, 4)] * 40)
    assert many.p_value == pytest.approx(1 / 10_000, abs=1e-15)  # (hits + 1) / (resamples + 1), no hit in 2^-39
    assert paired([(16, 3)] * 40, [(16, 4)] * 40, resamples=99).p_value == pytest.approx(1 / 100, abs=1e-15)


@pytest.mark.parametrize("samples", [16, 10])
def test_the_sampled_p_value(samples: int) -> None:
    """24 differences: within 4.5 standard errors of the exact one, by counting the patterns of each sum."""
    rng = random.Random(samples)
    while True:
        moves = [rng.choice([-3, -2, -1, 1, 2, 3, 4]) for _ in range(24)]
        ways = {0: 1}
        for move in moves:
            ways = {s: ways.get(s - move, 0) + ways.get(s + move, 0) for s in range(-100, 101)}
        exact = sum(count for s, count in ways.items() if abs(s) >= abs(sum(moves))) / 2**24
        if 0.02 < exact < 0.3:
            break
    before = [(samples, rng.randint(3, 6)) for _ in moves]
    after = [(samples, c + move) for (_, c), move in zip(before, moves, strict=True)]
    for resamples in (999, 99_999):
        got = paired(before, after, resamples=resamples)
        assert abs(got.p_value - exact) < 4.5 * math.sqrt(exact * (1 - exact) / resamples) + 1 / resamples
        hits = got.p_value * (resamples + 1)
        assert hits == pytest.approx(round(hits), abs=1e-6)


def test_the_permutation_test_keeps_its_level() -> None:
    """Over all 256 signs of given moves, p <= level in at most that share of them."""
    moves = [1, 2, 2, 3, 5, 6, 7, 8]
    found = [
        paired([(16, 8)] * 8, [(16, 8 + s * d) for s, d in zip(signs, moves, strict=True)], resamples=9).p_value
        for signs in patterns(8)
    ]
    for level in sorted(set(found)):
        assert sum(p <= level + 1e-12 for p in found) <= 256 * level + 1e-9
    assert min(found) == pytest.approx(2 / 256)


def test_paired_is_deterministic() -> None:
    """The same in (counts, seed); the seed moves only what is sampled."""
    rng = random.Random(9)
    before, after = (random_counts(rng, 40, [16]) for _ in range(2))
    one: Paired = paired(before, after, seed=1)
    np.random.seed(0)
    assert paired(before, after, seed=1) == one
    assert paired(before, after) == paired(before, after, seed=0)
    other = paired(before, after, seed=2)
    assert (other.bootstrap_low, other.bootstrap_high) != (one.bootstrap_low, one.bootstrap_high)
    assert (other.low, other.high, other.set_low, other.set_high) == (one.low, one.high, one.set_low, one.set_high)
    assert other.p_value == pytest.approx(one.p_value, abs=0.03)


def test_paired_coverage() -> None:
    """60 problems, 16 and 8 samples: both intervals hold their own difference in 93..97% (noise 0.5%)."""
    rng = np.random.default_rng(11)
    p = rng.beta(0.5, 0.5, (20_000, 60))
    q = p + 0.5 * p * (1 - p)  # a better model; E[q - p] = E[p(1-p)] / 2 = 1/16
    a, b = rng.binomial(16, p), rng.binomial(8, q)
    moves = b / 8 - a / 16
    mean = moves.mean(axis=1)
    t_half = stats.t.ppf(0.975, 59) * moves.std(axis=1, ddof=1) / math.sqrt(60)
    variance = a / 16 * (1 - a / 16) / 15 + b / 8 * (1 - b / 8) / 7
    set_half = Z * np.sqrt(variance.sum(axis=1)) / 60
    for i in range(3):  # the copy above is the implementation's formula
        got = paired([(16, int(c)) for c in a[i]], [(8, int(c)) for c in b[i]], resamples=99)
        assert (got.low, got.high) == pytest.approx((mean[i] - t_half[i], mean[i] + t_half[i]))
        assert (got.set_low, got.set_high) == pytest.approx((mean[i] - set_half[i], mean[i] + set_half[i]))
    assert 0.93 <= (np.abs(mean - 1 / 16) <= t_half).mean() <= 0.97
    assert 0.93 <= (np.abs(mean - (q - p).mean(axis=1)) <= set_half).mean() <= 0.97


# --- training seeds -------------------------------------------------------------------------------


def test_seeds_is_the_t_interval_of_the_runs() -> None:
    """Each seed's figure is one value: t(.975, 2) = 4.302653; cut to 0..1; one seed has no interval."""
    half = 4.302652729911275 * math.sqrt(0.0002 / 2 / 3)
    assert seeds([0.41, 0.42, 0.43]) == pytest.approx((0.42, 0.42 - half, 0.42 + half))
    assert seeds([0.2, 0.9]) == (pytest.approx(0.55), 0, 1)
    mean, low, high = seeds([0.3])
    assert mean == 0.3
    assert math.isnan(low)
    assert math.isnan(high)


def test_welch_agrees_with_scipy() -> None:
    """mean(b) - mean(a) and Satterthwaite's degrees of freedom, unequal sizes and spreads."""
    rng = np.random.default_rng(8)
    for sizes, spreads in (((2, 2), (0.02, 0.01)), ((3, 5), (0.01, 0.09)), ((12, 4), (0.1, 0.01)), ((30, 30), (1, 1))):
        a, b = (list(0.4 + spread * (rng.random(size) - 0.5)) for size, spread in zip(sizes, spreads, strict=True))
        expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
        difference, low, high = welch(a, b)
        assert difference == pytest.approx(np.mean(b) - np.mean(a))
        assert (low, high) == pytest.approx((expected.low, expected.high))
        assert welch(b, a) == pytest.approx((-difference, -high, -low))


def test_welch_at_its_edges() -> None:
    """Cut to -1..1; one constant group is a known mean, two say nothing; one value has no interval."""
    assert welch([0.1, 0.9], [0.2, 0.7]) == (pytest.approx(-0.05), -1, 1)
    one_known = t_interval([0.5, 0.55, 0.62], bounds=None)
    assert welch([0.4] * 4, [0.5, 0.55, 0.62])[1:] == pytest.approx((one_known[0] - 0.4, one_known[1] - 0.4))
    for a, b in (([0.5, 0.5], [0.75, 0.75, 0.75]), ([0.5], [0.25, 0.5]), ([0.25, 0.5], [0.5]), ([0.5], [0.25])):
        difference, low, high = welch(a, b)
        assert difference == pytest.approx(statistics.fmean(b) - statistics.fmean(a))
        assert math.isnan(low)
        assert math.isnan(high)
