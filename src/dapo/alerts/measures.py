"""What rules look at: a metric's first and last values, and figures of them.

A figure is None while there are too few values. All are built on medians, so one odd step moves none of them,
but for `spike` and `total`, which are about odd steps.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median

EARLY = 10  # a run's early level is the median of a metric's first ten values: past the first noise, before any drift
LONGEST = 200  # values of a metric that are remembered; no window of a rule is longer
NORMAL = 1.4826  # median absolute deviation -> standard deviation of a normal distribution
SURE = 3.0  # standard deviations that a fall has to stand out from noise
LIKELY = 2.0  # standard errors that a gain is given the benefit of


class Series:
    """The values of one metric that measures need; what is no finite number is left out."""

    def __init__(self) -> None:
        self.early: list[float] = []
        self.recent: deque[float] = deque(maxlen=LONGEST)
        self.count = 0

    def add(self, value: float) -> None:
        """The next value."""
        if len(self.early) < EARLY:
            self.early.append(value)
        self.recent.append(value)
        self.count += 1

    def last(self, number: int) -> list[float] | None:
        """The newest values, oldest first; None where there are fewer."""
        return list(self.recent)[-number:] if len(self.recent) >= number else None


def finite(value: object) -> bool:
    """Whether a value of a line of metrics.jsonl is a number: not null, not NaN or infinite, not true or false."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= sys.float_info.max  # type: ignore[operator]


def level(series: Series, window: int) -> float | None:
    """The median of the last values."""
    values = series.last(window)
    return None if values is None else median(values)


def peak(series: Series, window: int) -> float | None:
    """The largest of the last values."""
    values = series.last(window)
    return None if values is None else max(values)


def total(series: Series, window: int) -> float | None:
    """The sum of the last values, or of all where there are fewer."""
    return sum(list(series.recent)[-window:]) if series.count else None


def to_early(series: Series, window: int) -> float | None:
    """The median of the last values over the early level; the two do not overlap."""
    if series.count < EARLY + window:
        return None
    return _ratio(level(series, window), median(series.early))


def growth(series: Series, window: int) -> float | None:
    """The median of the last values over that of the two windows before them."""
    values = series.last(3 * window)
    return None if values is None else _ratio(median(values[-window:]), median(values[:-window]))


def spike(series: Series, window: int) -> float | None:
    """The last value over the median of those before it."""
    values = series.last(window + 1)
    return None if values is None else _ratio(values[-1], median(values[:-1]))


def gain(series: Series, window: int) -> float | None:
    """The median of the last quarter of the values less that of the first quarter."""
    quarters = _outer_quarters(series, window)
    return None if quarters is None else median(quarters[1]) - median(quarters[0])


def highest_gain(series: Series, window: int) -> float | None:
    """The largest gain over the last values that their noise allows: `gain` and LIKELY standard errors.

    The standard error of a median of n normal values is sqrt(pi / 2 n) of their standard deviation.
    """
    quarters = _outer_quarters(series, window)
    if quarters is None:
        return None
    first, last = quarters
    errors = [_deviation(part) * math.sqrt(math.pi / (2 * len(part))) for part in quarters]
    return median(last) - median(first) + LIKELY * math.hypot(*errors)


def sure_fall(series: Series, window: int) -> float | None:
    """By how much the median of the last `window` values lies under the best one before them, beyond noise.

    Noise is read off the differences of neighbouring values, which a slow fall hardly widens, and which do not
    shrink when a model is evaluated on few problems. SURE standard deviations of one value are taken off.
    """
    values = list(series.recent)
    if len(values) < 2 * window:
        return None
    medians = [median(values[end - window : end]) for end in range(window, len(values) + 1)]
    steps = [abs(after - before) for before, after in pairwise(values)]
    noise = NORMAL * median(steps) / math.sqrt(2)
    return max(medians[:-window]) - medians[-1] - SURE * noise


Measure = Callable[[Series, int], float | None]
MEASURES: Mapping[str, tuple[Measure, str]] = {
    "level": (level, "median of the last {window} values"),
    "peak": (peak, "largest of the last {window} values"),
    "total": (total, "sum of the last {window} values"),
    "to_early": (to_early, f"median of the last {{window}} values over that of the first {EARLY}"),
    "growth": (growth, "median of the last {window} values over that of the {twice} before"),
    "spike": (spike, "last value over the median of the {window} before"),
    "gain": (gain, "median of the last quarter of {window} values less that of their first quarter"),
    "highest_gain": (highest_gain, f"the same and {LIKELY:g} standard errors, over {{window}} values"),
    "sure_fall": (sure_fall, f"best median of {{window}} values less that of the last, less {SURE:g} of their noise"),
}


def _ratio(value: float | None, base: float) -> float | None:
    return value / base if value is not None and base > 0 else None


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return NORMAL * median(abs(value - middle) for value in values)


def _outer_quarters(series: Series, window: int) -> tuple[list[float], list[float]] | None:
    values, quarter = series.last(window), window // 4
    return None if values is None else (values[:quarter], values[-quarter:])
