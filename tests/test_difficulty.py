"""Difficulty bands: where a band comes from, what is predicted from it, and the shift of what is kept."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, astuple
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from dapo.difficulty import (
    BANDS,
    PromptRecord,
    Rating,
    Shift,
    band,
    band_counts,
    difficulty_metrics,
    forecast,
    predicted_acceptance,
    resting,
    shift,
    total_variation,
    updated,
)

pytestmark = pytest.mark.filterwarnings("error")  # numpy's divisions by zero included

UNSEEN, NONE_RIGHT, HARD, MEDIUM, EASY, ALL_RIGHT = range(6)


def record(right: int, responses: int) -> PromptRecord:
    """A record of one draw with these counts."""
    return PromptRecord(draws=1, responses=responses, right=right)


def accepted(p: float, size: int) -> float:
    """1 - p^G - (1-p)^G."""
    return 1 - p**size - (1 - p) ** size


def slow_distance(bands: Sequence[int], kept: Sequence[bool]) -> float:
    """Total variation by loops over exact fractions."""
    total = Fraction(0)
    for k in range(len(BANDS)):
        drawn = Fraction(sum(b == k for b in bands), len(bands))
        among_kept = Fraction(sum(b == k and c for b, c in zip(bands, kept, strict=True)), sum(kept))
        total += abs(among_kept - drawn)
    return float(total / 2)


def draws(seed: int, size: int, acceptance: Sequence[float]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Random draws: uniform bands, kept with the band's own probability."""
    rng = np.random.default_rng(seed)
    band_D = rng.integers(0, len(BANDS), size)
    return band_D, rng.random(size) < np.asarray(acceptance)[band_D]


# --- records --------------------------------------------------------------------------------------


def test_a_record_adds_up_its_draws() -> None:
    """Counts add, the row of solved draws ends at the first that is not all right."""
    one = PromptRecord().after(4, 4, step=2)
    two = one.after(4, 4, step=5)
    three = two.after(3, 4, step=6)
    four = three.after(2, 2, step=9)
    assert one == PromptRecord(draws=1, responses=4, right=4, solved_in_a_row=1, last_step=2)
    assert two == PromptRecord(draws=2, responses=8, right=8, solved_in_a_row=2, last_step=5)
    assert three == PromptRecord(draws=3, responses=12, right=11, solved_in_a_row=0, last_step=6)
    assert four == PromptRecord(draws=4, responses=14, right=13, solved_in_a_row=1, last_step=9)


def test_a_record_is_frozen_and_named() -> None:
    """Nobody changes a record in place or mixes up its counts by position."""
    with pytest.raises(FrozenInstanceError):
        PromptRecord().draws = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        PromptRecord(1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("num_correct", "size"), [(-1, 4), (5, 4), (0, 0)])
def test_impossible_draws_are_refused(num_correct: int, size: int) -> None:
    """Counts that no draw has."""
    with pytest.raises(ValueError, match="cannot have"):
        PromptRecord().after(num_correct, size, step=1)


def test_updated_leaves_the_old_history_alone() -> None:
    """A new dict; the step's draws are applied in order, a prompt drawn twice included."""
    old = {"a": record(4, 4), "b": record(1, 4)}
    before = dict(old)
    new = updated(old, [("c", 4, 4), ("a", 4, 4), ("c", 0, 4), ("a", 4, 4), ("c", 4, 4)], step=3)
    assert old == before
    assert new is not old
    assert new["b"] == old["b"]
    assert new["c"] == PromptRecord(draws=3, responses=12, right=8, solved_in_a_row=1, last_step=3)
    assert new["a"] == PromptRecord(draws=3, responses=12, right=12, solved_in_a_row=2, last_step=3)


def test_updated_with_nothing_is_a_copy() -> None:
    """Also without draws the history handed in is not the one handed back."""
    old = {"a": record(4, 4)}
    new = updated(old, iter([]), step=3)
    assert new == old
    assert new is not old


@pytest.mark.parametrize(
    ("step", "expected"),
    [(9, False), (10, False), (11, True), (13, True), (14, False)],
)
def test_a_rest_begins_after_the_step_and_ends_in_time(step: int, expected: bool) -> None:
    """last_step < step <= last_step + rest_steps, here 10 < step <= 13."""
    solved = PromptRecord(draws=2, responses=8, right=8, solved_in_a_row=2, last_step=10)
    assert resting(solved, step, solved_in_a_row=2, rest_steps=3) is expected


def test_who_rests() -> None:
    """As many solved draws as asked for, or more; never an unknown prompt; never for no steps."""
    solved = PromptRecord(draws=2, responses=8, right=8, solved_in_a_row=2, last_step=10)
    assert resting(solved, 11, solved_in_a_row=1, rest_steps=1) is True
    assert resting(solved, 11, solved_in_a_row=3, rest_steps=1) is False
    assert resting(solved, 11, solved_in_a_row=2, rest_steps=0) is False
    assert resting(None, 11, solved_in_a_row=1, rest_steps=100) is False
    with pytest.raises(ValueError, match="at least 1"):
        resting(solved, 11, solved_in_a_row=0, rest_steps=1)


# --- bands ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "responses", "expected"),
    [
        (0, 1, NONE_RIGHT),
        (0, 3000, NONE_RIGHT),
        (1, 3000, HARD),
        (1, 3, HARD),
        (16, 48, HARD),
        (17, 48, MEDIUM),
        (32, 48, MEDIUM),
        (33, 48, EASY),
        (2, 3, MEDIUM),
        (2999, 3000, EASY),
        (3000, 3000, ALL_RIGHT),
        (1, 1, ALL_RIGHT),
    ],
)
def test_band_edges_of_a_record(right: int, responses: int, expected: int) -> None:
    """p = 1/3 and p = 2/3 are in the lower band, 0 and 1 in bands of their own."""
    assert band(record(right, responses), None) == expected


def test_bands_of_records_agree_with_exact_fractions() -> None:
    """Every r of every n up to 60, against the definition in whole fractions."""
    third = Fraction(1, 3)
    for n in range(1, 61):
        for r in range(n + 1):
            p = Fraction(r, n)
            inside = HARD if p <= third else MEDIUM if p <= 2 * third else EASY
            expected = NONE_RIGHT if p == 0 else ALL_RIGHT if p == 1 else inside
            assert band(record(r, n), None) == expected
            assert band(None, r / n) == expected


@pytest.mark.parametrize(
    ("rating", "expected"),
    [
        (0.0, NONE_RIGHT),
        (math.ulp(0.0), HARD),
        (1 / 3, HARD),
        (math.nextafter(1 / 3, 1), MEDIUM),
        (2 / 3, MEDIUM),
        (math.nextafter(2 / 3, 1), EASY),
        (math.nextafter(1.0, 0), EASY),
        (1.0, ALL_RIGHT),
    ],
)
def test_band_edges_of_a_rating(rating: float, expected: int) -> None:
    """The same edges, to the last bit."""
    assert band(None, rating) == expected


@pytest.mark.parametrize("rating", [-0.01, 1.01, math.nan, math.inf, -math.inf])
def test_ratings_out_of_range_are_refused(rating: float) -> None:
    """Also where a record would make the rating moot: the data is wrong either way."""
    for known in (None, record(1, 2)):
        with pytest.raises(ValueError, match="rating"):
            band(known, rating)
        with pytest.raises(ValueError, match="rating"):
            predicted_acceptance(known, rating, 2)


def test_earlier_draws_come_before_the_rating() -> None:
    """A record with responses wins; one without says nothing."""
    assert band(record(0, 4), 1.0) == NONE_RIGHT
    assert band(PromptRecord(), 1.0) == ALL_RIGHT
    assert band(PromptRecord(), None) == UNSEEN
    assert band(None, None) == UNSEEN


def test_the_band_does_not_know_the_draw_being_judged() -> None:
    """Nothing about the draw is handed in, and adding it to the history leaves the earlier records."""
    assert list(inspect.signature(band).parameters) == ["record", "rating"]
    assert list(inspect.signature(predicted_acceptance).parameters) == ["record", "rating", "size"]
    history = {"a": record(1, 4)}
    bands = set()
    for num_correct in range(5):
        later = updated(history, [("a", num_correct, 4), ("b", num_correct, 4)], step=2)
        bands.add((band(history.get("a"), None), band(history.get("b"), None)))
        assert later["a"].responses == 8
    assert bands == {(HARD, UNSEEN)}


# --- predictions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.01, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(("n", "size"), [(1, 1), (2, 2), (7, 2), (5, 3), (8, 8), (11, 8), (16, 16), (48, 16)])
def test_the_prediction_is_unbiased_and_the_plug_in_is_not(n: int, size: int, p: float) -> None:
    """Exact mean over r ~ Bin(n, p); the plug-in's mean is below f(p) wherever p is not 0 or 1."""
    pmf = [math.comb(n, r) * p**r * (1 - p) ** (n - r) for r in range(n + 1)]
    estimates = [predicted_acceptance(record(r, n), None, size) for r in range(n + 1)]
    assert all(e is not None and 0 <= e <= 1 for e in estimates)
    mean = math.fsum(w * e for w, e in zip(pmf, estimates, strict=True) if e is not None)
    assert mean == pytest.approx(accepted(p, size), abs=1e-12)
    plug_in = math.fsum(w * accepted(r / n, size) for r, w in enumerate(pmf))
    if 0 < p < 1 and size > 1:
        assert plug_in < accepted(p, size) - 1e-6


def test_the_docstring_quotes_the_bias_of_the_plug_in() -> None:
    """At n = G = 16 and p = 0.1 it averages 0.66 where f = 0.81; the gap closes as 1/n."""

    def gap(n: int) -> float:
        terms = (math.comb(n, r) * 0.1**r * 0.9 ** (n - r) * accepted(r / n, 16) for r in range(n + 1))
        return accepted(0.1, 16) - math.fsum(terms)

    assert accepted(0.1, 16) == pytest.approx(0.81, abs=0.005)
    assert accepted(0.1, 16) - gap(16) == pytest.approx(0.66, abs=0.005)
    assert gap(400) / gap(800) == pytest.approx(2, rel=0.05)


def test_the_prediction_is_the_share_of_mixed_subsets() -> None:
    """The formula, against counting every G-subset of the earlier responses."""
    for n, size in [(4, 2), (7, 3), (6, 6)]:
        for r in range(n + 1):
            subsets = list(itertools.combinations([True] * r + [False] * (n - r), size))
            mixed = sum(0 < sum(subset) < size for subset in subsets)
            assert predicted_acceptance(record(r, n), None, size) == pytest.approx(mixed / len(subsets), abs=1e-15)


def test_where_a_prediction_comes_from() -> None:
    """The record with G responses or more, else the rating, else nothing."""
    assert predicted_acceptance(record(4, 4), 0.5, 4) == 0.0
    assert predicted_acceptance(record(1, 4), None, 4) == 1.0
    assert predicted_acceptance(record(3, 3), 0.5, 4) == pytest.approx(0.875)
    assert predicted_acceptance(None, 0.5, 4) == pytest.approx(0.875)
    assert predicted_acceptance(record(3, 3), None, 4) is None
    assert predicted_acceptance(None, None, 4) is None


def test_predictions_at_the_ends() -> None:
    """Ratings of 0 and 1, groups of one, and counts whose binomials no float holds."""
    for rating in (0.0, 1.0):
        assert predicted_acceptance(None, rating, 16) == 0.0
    for rating in np.linspace(0, 1, 101):
        prediction = predicted_acceptance(None, float(rating), 1)
        assert prediction is not None
        assert 0 <= prediction < 1e-15
    large = predicted_acceptance(record(2000, 4000), None, 1000)
    assert large == pytest.approx(1.0)
    with pytest.raises(ValueError, match="at least one"):
        predicted_acceptance(None, 0.5, 0)


# --- total variation ------------------------------------------------------------------------------


def test_total_variation_by_hand() -> None:
    """Drawn: 4 hard, 4 medium, 2 easy. Kept: 1 hard, 3 medium, 1 easy."""
    band_D = np.array([HARD] * 4 + [MEDIUM] * 4 + [EASY] * 2)
    kept_D = np.array([True, False, False, False, True, True, True, False, True, False])
    # |1/5 - 2/5| + |3/5 - 2/5| + |1/5 - 1/5| = 2/5
    assert total_variation(band_D, kept_D) == pytest.approx(0.2, abs=1e-15)


def test_total_variation_against_loops() -> None:
    """Random draws, a few with a single one kept."""
    for seed in range(50):
        band_D, kept_D = draws(seed, 1 + seed, (0.1, 0.0, 0.4, 0.9, 0.5, 0.2))
        kept_D[0] = True
        expected = slow_distance(band_D.tolist(), kept_D.tolist())
        assert total_variation(band_D, kept_D) == pytest.approx(expected, abs=1e-14)


def test_total_variation_where_it_says_nothing() -> None:
    """Nothing kept or drawn: NaN. One band, or everything kept: exactly 0."""
    none = np.zeros(0, np.int64)
    assert math.isnan(total_variation(none, np.zeros(0, np.bool_)))
    assert math.isnan(total_variation(np.array([HARD, EASY]), np.array([False, False])))
    assert total_variation(np.array([EASY] * 7), np.array([True] * 3 + [False] * 4)) == 0.0
    assert total_variation(np.array([HARD, EASY, EASY]), np.ones(3, np.bool_)) == 0.0


def test_malformed_draws_are_refused() -> None:
    """Bands outside the list, outcomes that are not bool, and lengths that differ."""
    yes = np.array([True, True])
    for bad in (np.array([0, len(BANDS)]), np.array([-1, 0]), np.array([0.0, 1.0])):
        with pytest.raises(ValueError, match="bands must be"):
            total_variation(bad, yes)
    with pytest.raises(ValueError, match="bool"):
        total_variation(np.array([0, 1]), np.array([0, 1]))
    with pytest.raises(ValueError, match="one band and one outcome"):
        total_variation(np.array([0, 1, 2]), yes)


def test_counts_by_outcome_and_band() -> None:
    """Left-out draws in the first row, kept ones in the second."""
    counts_2K = band_counts(np.array([5, 0, 5, 5, 2]), np.array([True, False, False, True, True]))
    assert counts_2K.tolist() == [[1, 0, 0, 0, 0, 1], [0, 0, 1, 0, 0, 2]]


# --- the shift and its noise ----------------------------------------------------------------------


def test_shift_is_a_function_of_its_arguments() -> None:
    """Same seed, same figures, whatever global state; another seed, other noise, same value."""
    band_D, kept_D = draws(3, 80, (0.2, 0.1, 0.3, 0.6, 0.5, 0.1))
    first = shift(band_D, kept_D, seed=11)
    np.random.seed(0)
    assert shift(band_D, kept_D, seed=11) == first
    order_D = np.random.default_rng(1).permutation(80)
    assert shift(band_D[order_D], kept_D[order_D], seed=11) == first
    other = shift(band_D, kept_D, seed=12)
    assert other.value == first.value == total_variation(band_D, kept_D)
    assert (other.low, other.high, other.null_mean) != (first.low, first.high, first.null_mean)


def test_the_null_against_every_permutation() -> None:
    """Eight draws, three kept: all 56 ways to pick three give the exact mean and p-value."""
    bands = [HARD, HARD, HARD, MEDIUM, MEDIUM, EASY, EASY, EASY]
    kept = [False, False, False, True, True, True, False, False]
    every = [slow_distance(bands, [i in picked for i in range(8)]) for picked in itertools.combinations(range(8), 3)]
    value = slow_distance(bands, kept)
    exact_p = sum(v >= value - 1e-12 for v in every) / len(every)
    assert 0.05 < exact_p < 0.95
    found = shift(np.array(bands), np.array(kept), seed=5, resamples=20_000)
    assert found.null_mean == pytest.approx(sum(every) / len(every), abs=0.005)
    assert found.null_p == pytest.approx(exact_p, abs=0.015)


def test_the_p_value_holds_under_a_true_null() -> None:
    """200 data sets kept without regard to band: about 5% have p <= 0.05, and p is spread over (0, 1].

    The bound of 10% lies 3.2 standard errors (1.5% each) above the 5% that the test claims.
    """
    p_values = []
    for seed in range(200):
        band_D, kept_D = draws(1000 + seed, 120, (0.4,) * 6)
        p_values.append(shift(band_D, kept_D, seed=seed, resamples=200).null_p)
    assert np.mean(np.array(p_values) <= 0.05) <= 0.10
    assert np.mean(np.array(p_values) <= 0.5) == pytest.approx(0.5, abs=0.12)
    assert min(p_values) < 0.1


def test_noise_alone_gives_a_distance() -> None:
    """Why null_mean is there: with no shift at all the value is near it, well above 0."""
    found = [shift(*draws(seed, 60, (0.3,) * 6), seed=seed, resamples=100) for seed in range(60)]
    values, nulls = np.array([f.value for f in found]), np.array([f.null_mean for f in found])
    assert values.min() > 0
    assert nulls.mean() > 0.1
    assert values.mean() == pytest.approx(nulls.mean(), abs=0.02)


def test_a_strong_shift_is_found() -> None:
    """Only the middle is kept: the smallest p there is, and an interval far above the noise."""
    band_D, kept_D = draws(7, 600, (0.3, 0.02, 0.5, 0.95, 0.5, 0.02))
    found = shift(band_D, kept_D, seed=1)
    assert found.null_p == 1 / 401
    assert found.null_mean < found.low - 0.05
    assert found.low < found.value < found.high


def test_the_interval_against_indices_drawn_one_by_one() -> None:
    """Resampling pairs by index, one data set at a time, gives the same quantiles up to noise."""
    band_D, kept_D = draws(9, 90, (0.3, 0.1, 0.4, 0.8, 0.5, 0.1))
    rng = np.random.default_rng(4)
    values = []
    for _ in range(3000):
        index = rng.integers(0, 90, 90)
        values.append(total_variation(band_D[index], kept_D[index]))
    found = shift(band_D, kept_D, seed=2, resamples=6000)
    low, high = np.quantile(values, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.012)
    assert found.high == pytest.approx(high, abs=0.012)


def test_resamples_without_a_kept_draw_are_left_out() -> None:
    """One kept of four: about a third of the resamples hold none, and the interval is still a number."""
    band_D, kept_D = np.array([HARD, MEDIUM, MEDIUM, EASY]), np.array([False, True, False, False])
    found = shift(band_D, kept_D, seed=0)
    assert found.value == pytest.approx(0.5)
    assert all(math.isfinite(x) for x in astuple(found))
    assert 0 <= found.low <= found.high <= 0.75  # a kept resample holds the kept draw at least once of four
    alone = [shift(band_D, kept_D, seed=seed, resamples=1) for seed in range(40)]
    assert {math.isnan(one.low) for one in alone} == {True, False}
    assert all(math.isnan(one.low) == math.isnan(one.high) for one in alone)
    assert all(one.null_p in (0.5, 1.0) for one in alone)


def test_shift_where_there_is_nothing_to_compare() -> None:
    """Nothing kept or drawn: all NaN. One band: exactly 0, and nothing against the null."""
    for band_D, kept_D in [
        (np.zeros(0, np.int64), np.zeros(0, np.bool_)),
        (np.array([HARD, EASY]), np.array([False, False])),
    ]:
        assert all(math.isnan(x) for x in astuple(shift(band_D, kept_D, seed=0)))
    flat = Shift(value=0.0, low=0.0, high=0.0, null_mean=0.0, null_p=1.0)
    assert shift(np.full(9, EASY), np.arange(9) < 4, seed=0) == flat
    assert shift(np.array([EASY]), np.array([True]), seed=0) == flat
    with pytest.raises(ValueError, match="at least 1"):
        shift(np.array([EASY]), np.array([True]), seed=0, resamples=0)


# --- metrics --------------------------------------------------------------------------------------


def test_metrics_by_hand() -> None:
    """Every figure of six draws, and no names for bands without a draw."""
    bands = [UNSEEN, HARD, HARD, HARD, ALL_RIGHT, HARD]
    kept = [True, True, False, True, False, True]
    predicted = [None, 0.9, 0.5, 0.7, 0.0, None]
    metrics = difficulty_metrics(bands, kept, predicted, seed=3)
    found = shift(np.array(bands), np.array(kept), seed=3)
    assert metrics == {
        "difficulty/unseen_draws": 1.0,
        "difficulty/unseen_acceptance": 1.0,
        "difficulty/hard_draws": 4.0,
        "difficulty/hard_acceptance": 0.75,
        "difficulty/all_right_draws": 1.0,
        "difficulty/all_right_acceptance": 0.0,
        "sampling/predicted_acceptance": pytest.approx(2.1 / 4),
        "sampling/predictable_acceptance": 0.5,
        "shift/total_variation": found.value,
        "shift/total_variation_low": found.low,
        "shift/total_variation_high": found.high,
        "shift/null_mean": found.null_mean,
        "shift/null_p": found.null_p,
    }
    assert all(type(value) is float for value in metrics.values())


def test_metrics_of_nothing() -> None:
    """No draws, or none that could be predicted: NaN, and no band is named that was not drawn."""
    metrics = difficulty_metrics([], [], [], seed=0)
    assert all(math.isnan(value) for value in metrics.values())
    assert not [name for name in metrics if name.startswith("difficulty/")]
    assert len(metrics) == 7
    metrics = difficulty_metrics([UNSEEN, UNSEEN], [True, False], [None, None], seed=0)
    assert math.isnan(metrics["sampling/predicted_acceptance"])
    assert math.isnan(metrics["sampling/predictable_acceptance"])
    assert metrics["difficulty/unseen_acceptance"] == 0.5
    assert metrics["shift/total_variation"] == 0.0


def test_metrics_want_one_of_each_per_draw() -> None:
    """Lengths that differ."""
    for args in [([0], [True, False], [None]), ([0], [True], []), ([0, 1], [True], [None])]:
        with pytest.raises(ValueError, match="predictions"):
            difficulty_metrics(*args, seed=0)


def test_predictions_hold_on_average_over_fresh_draws() -> None:
    """Prompts with an earlier draw each, a steady policy: what was predicted is what is kept."""
    rng, size = np.random.default_rng(2), 8
    bands, kept, predicted = [], [], []
    for p in rng.beta(0.6, 0.9, 4000):
        earlier = updated({}, [("x", int(rng.binomial(size, p)), size)], step=1)["x"]
        bands.append(band(earlier, None))
        predicted.append(predicted_acceptance(earlier, None, size))
        kept.append(0 < rng.binomial(size, p) < size)
    metrics = difficulty_metrics(bands, kept, predicted, seed=0)
    difference = metrics["sampling/predicted_acceptance"] - metrics["sampling/predictable_acceptance"]
    assert abs(difference) < 4 * math.sqrt(0.5 / 4000)
    # Within a band picked by luck the prediction is off: none right before does not mean none kept now.
    assert metrics["difficulty/none_right_acceptance"] > 0.1


# --- what ratings foretell --------------------------------------------------------------------------


def test_a_forecast_by_hand() -> None:
    """Two sources of unequal size: without weights every problem counts once, with weights every source by its own."""
    ratings = [[Rating(0.5), Rating(0.5), Rating(0.0)], [Rating(0.9)]]
    half, easy = 7 / 8, 1 - 0.9**4 - 0.1**4  # G = 4
    plain = forecast(ratings, None, size=4, wanted=10)
    assert plain.acceptance == pytest.approx((2 * half + 0 + easy) / 4, rel=1e-12)
    assert plain.draws == pytest.approx(40 / (2 * half + easy), rel=1e-12)
    assert plain.shares == pytest.approx((0, 0.25, 0, 0.5, 0.25, 0))
    assert (plain.problems, plain.rated) == (4, 4)
    weighted = forecast(ratings, [1.0, 4.0], size=4, wanted=10)
    assert weighted.acceptance == pytest.approx(0.2 * (2 * half) / 3 + 0.8 * easy, rel=1e-12)
    assert weighted.shares == pytest.approx((0, 0.2 / 3, 0, 0.4 / 3, 0.8, 0))
    scaled = forecast(ratings, [10.0, 40.0], size=4, wanted=10)
    assert scaled.shares == pytest.approx(weighted.shares)
    assert scaled.draws == pytest.approx(weighted.draws)


def test_a_forecast_counts_before_it_plugs_in() -> None:
    """With counts of G responses or more the unbiased formula, with fewer f(rate); the unrated are like the rest."""
    few, many = Rating(0.5, record(1, 2)), Rating(0.5, record(2, 4))
    # C(4,3) = 4 subsets of 3 out of 2 right and 2 wrong: each holds both, so 1; f(1/2) at G = 3 is 3/4.
    assert forecast([[many]], None, size=3, wanted=6).acceptance == 1.0
    assert forecast([[few]], None, size=3, wanted=6).acceptance == 0.75
    mixed = forecast([[many, few, Rating(None), Rating(None)]], None, size=3, wanted=7)
    assert (mixed.acceptance, mixed.draws, mixed.rated) == (0.875, 8.0, 2)
    assert mixed.shares == (0.5, 0, 0, 0.5, 0, 0)
    # Counts without a rating are not looked at.
    assert forecast([[Rating(None, record(2, 4)), few]], None, size=3, wanted=6).acceptance == 0.75


def test_a_forecast_of_nothing() -> None:
    """No problem rated: not known. None informative: no number of draws is enough."""
    unknown = forecast([[Rating(None)]], None, size=4, wanted=2)
    assert math.isnan(unknown.acceptance)
    assert math.isnan(unknown.draws)
    hopeless = forecast([[Rating(0.0), Rating(1.0)]], None, size=4, wanted=2)
    assert (hopeless.acceptance, hopeless.draws) == (0.0, math.inf)


def test_a_forecast_is_what_draws_come_to() -> None:
    """Draws of a weighted mixture, by simulation: the share kept, and the draws until N are kept."""
    rng, size, wanted = np.random.default_rng(0), 4, 5
    rates, weights = [rng.beta(0.5, 1, 30), rng.beta(2, 2, 10)], [0.3, 0.7]
    found = forecast([[Rating(float(p)) for p in own] for own in rates], weights, size=size, wanted=wanted)
    needed = []
    for _ in range(3000):
        kept = count = 0
        while kept < wanted:
            p = rng.choice(rates[int(rng.random() < 0.7)])
            kept += 0 < rng.binomial(size, p) < size
            count += 1
        needed.append(count)
    assert abs(np.mean(needed) - found.draws) < 4 * np.std(needed) / math.sqrt(len(needed))
