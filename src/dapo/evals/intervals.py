"""Intervals of a mean over problems. All are 95% intervals; a bound outside the figure's range is cut to it.

Two questions have two answers. Over the population: how would the model do on other problems like these?
Then problems are the sample, and their means carry all the noise there is (`t_interval`, and
`bootstrap_interval` beside it). For this set alone: how would another k samples of the same problems come
out? Then only sampling is noise (`set_interval`), and the interval is narrower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
Floats = NDArray[np.float64]
Counts = Sequence[tuple[int, int]]  # (samples, right ones) of each problem

UNIT: Interval = (0.0, 1.0)
NONE: Interval = (float("nan"), float("nan"))
LEVEL = 0.95
POWER = 0.8
RESAMPLES = 9999
FEW = 10  # problems with both right and wrong samples
SAME = 1e-12  # differences under this are rounding
PIECE = 1 << 22  # numbers of a bootstrap in memory at one time


def t_interval(values: Sequence[float], bounds: Interval | None = UNIT) -> Interval:
    """Over the population: mean +- t(0.975, n-1) s / sqrt(n), s with n-1; NaN for fewer than two values.

    >>> low, high = t_interval([0.0, 0.5, 1.0], bounds=None)
    >>> round(low, 3), round(high, 3)
    (-0.742, 1.742)
    """
    n = len(values)
    if n < 2:
        return NONE
    mean, half = _mean(values), t_quantile(n - 1) * _deviation(values) / math.sqrt(n)
    return _cut((mean - half, mean + half), bounds)


def population_interval(values: Sequence[float], within: Interval = NONE) -> Interval:
    """t_interval of values in [0, 1], never narrower than `within`, the interval for the set alone.

    Equal values leave a t interval without width. Where all are 0, or all 1, there is a bound that needs no
    spread: if the mean of the population is m, a value is 0 with chance 1 - m at most, so n zeros in a row have
    chance (1 - m)^n at most, and m over 1 - 0.025^(1/n) is refuted at 2.5%. Other equal values give `within`.
    """
    n = len(values)
    if n and (set(values) == {0.0} or set(values) == {1.0}):
        bound = _in_a_row(n)
        return (0.0, bound) if values[0] == 0 else (1.0 - bound, 1.0)
    return envelope(values, within, UNIT)


def envelope(values: Sequence[float], within: Interval, bounds: Interval) -> Interval:
    """The t interval of values and `within` together; `within` alone where values have no spread."""
    if len(values) < 2:
        return NONE
    if max(values) - min(values) < SAME:
        return within
    low, high = t_interval(values, bounds)
    return (low, high) if math.isnan(within[0]) else (min(low, within[0]), max(high, within[1]))


def set_interval(counts: Counts, bounds: Interval | None = UNIT) -> Interval:
    """For this set alone: mean p +- z(0.975) sqrt(sum_i p_i (1 - p_i) / (n_i - 1)) / m.

    p(1-p)/(n-1) is the unbiased estimate of the variance of a problem's mean of n samples. NaN where a
    problem has one sample, and for no problems. A problem whose samples are all alike adds nothing to it,
    though its p is not known to be 0 or 1. Where fewer than ten problems hold both right and wrong samples that
    matters, and each side is widened by what N samples alike leave open: 1 - 0.025^(1/N) times the share of
    such problems, added in squares.
    """
    variance = sampling_variance(counts)
    if math.isnan(variance):
        return NONE
    mean, half = _mean([c / n for n, c in counts]), normal_quantile(LEVEL) * math.sqrt(variance)
    down = up = half
    if sum(0 < c < n for n, c in counts) < FEW:
        down = math.hypot(half, _left_open([n for n, c in counts if c == n], len(counts)))
        up = math.hypot(half, _left_open([n for n, c in counts if c == 0], len(counts)))
    return _cut((mean - down, mean + up), bounds)


def sampling_variance(counts: Counts) -> float:
    """sum_i p_i (1 - p_i) / (n_i - 1) / m^2: the variance of avg@k over fresh samples of the same problems."""
    if not counts or any(n < 2 for n, _ in counts):
        return float("nan")
    return sum((c / n) * (1 - c / n) / (n - 1) for n, c in counts) / len(counts) ** 2


def bootstrap_interval(
    values: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES, bounds: Interval | None = UNIT
) -> Interval:
    """Over the population, studentised bootstrap: (mean - q(0.975) se, mean - q(0.025) se).

    q are quantiles of t* = (mean* - mean) / se* over resampled problems, so skew moves both bounds the way
    a t interval can't. A resample of equal values has se* = 0: t* is 0 at the mean itself, else infinite.

    Args:
        values: problem means; NaN bounds for fewer than two.
        seed: of the resampling; the result is a function of (values, seed, resamples).
        resamples: how many; 9999 by default.
        bounds: the range of the mean.
    """
    n = len(values)
    if n < 2:
        return NONE
    data = np.asarray(values, dtype=np.float64)
    mean, error = float(data.mean()), float(data.std(ddof=1)) / math.sqrt(n)
    if error == 0:
        return _cut((mean, mean), bounds)
    pieces = [_studentised(data[(numbers * n).astype(np.int64)], mean) for numbers in random_rows(resamples, n, seed)]
    ordered = np.sort(np.concatenate(pieces))
    tail = (1 - LEVEL) / 2
    low, high = (float(_quantile(ordered, q)) for q in (tail, 1 - tail))
    return _cut((mean - high * error, mean - low * error), bounds)


def random_rows(rows: int, columns: int, seed: int, salt: int = 0) -> Iterator[Floats]:
    """Uniform numbers in [0, 1), [rows, columns] in all, in pieces of whole rows.

    The raw words of NumPy's Philox4x64, whose stream is fixed for all versions; a function of (seed, salt).
    """
    words = np.random.Philox(key=np.array([seed, salt], dtype=np.uint64))
    at_once = max(1, PIECE // max(columns, 1))
    for start in range(0, rows, at_once):
        count = min(at_once, rows - start)
        yield (words.random_raw(count * columns) >> np.uint64(11)).reshape(count, columns) / 2.0**53


def detectable(counts: Counts) -> tuple[float, float]:
    """The smallest true difference that a two-sided 5% test finds with power 80%: (this set, population).

    Between two models of about this one's accuracy, both measured like this. This set: z's times
    sqrt(2 * sampling variance). Population, two models compared as if on different problems: t's (2m - 2
    degrees of freedom) times s sqrt(2 / m), s over problem means. A paired comparison of models that find the
    same problems hard lies between. NaN where there is no spread to judge by, or the number would be over 1;
    where few problems have right (or wrong) samples the number is too small.
    """
    from scipy.stats import t

    m = len(counts)
    variance = sampling_variance(counts) or math.nan  # no spread in the samples says nothing of their noise
    this_set = (normal_quantile(LEVEL) + normal_quantile(2 * POWER - 1)) * math.sqrt(2 * variance)
    if m < 2:
        return _possible(this_set), math.nan
    freedom = 2 * m - 2
    factor = t_quantile(freedom) + float(t.ppf(POWER, freedom))
    population = factor * (_deviation([c / n for n, c in counts]) or math.nan) * math.sqrt(2 / m)
    return _possible(this_set), _possible(population)


def _possible(difference: float) -> float:
    """NaN for more than accuracies can differ by."""
    return difference if difference <= 1 else math.nan


def t_quantile(freedom: float) -> float:
    """t(0.975) at so many degrees of freedom."""
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom))


def normal_quantile(level: float) -> float:
    """z of a two-sided level: 1.96 for 0.95."""
    from scipy.stats import norm

    return float(norm.ppf((1 + level) / 2))


def _studentised(samples: Floats, mean: float) -> Floats:
    """t* of each row."""
    shift = samples.mean(axis=1) - mean
    error = samples.std(axis=1, ddof=1) / math.sqrt(samples.shape[1])
    flat = np.ptp(samples, axis=1) == 0
    here = np.abs(shift) <= 1e-12 * np.abs(samples).max()  # sums are rounded
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(flat, np.where(here, 0.0, np.sign(shift) * np.inf), shift / error)


def _quantile(ordered: Floats, q: float) -> float:
    """The order statistic of rank q (B + 1): no interpolation, which infinities would spoil."""
    rank = math.ceil(q * (len(ordered) + 1) - 1e-9)
    return float(ordered[min(max(rank, 1), len(ordered)) - 1])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def _in_a_row(times: int) -> float:
    """How large a mean may be, at 97.5%, after so many zeros in a row."""
    return 1.0 - float(((1 - LEVEL) / 2) ** (1 / times))


def _left_open(samples: Sequence[int], problems: int) -> float:
    """What problems with so many samples, all alike, may still add to the mean over all problems.

    By their smallest number of samples: the product of chances is largest for equal ones.
    """
    return len(samples) / problems * _in_a_row(len(samples) * min(samples)) if samples else 0.0


def _cut(interval: Interval, bounds: Interval | None) -> Interval:
    if bounds is None:
        return interval
    return max(interval[0], bounds[0]), min(interval[1], bounds[1])
