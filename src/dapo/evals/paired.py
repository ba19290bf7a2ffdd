"""Differences between two evaluations: paired over problems, or over training seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dapo.evals.intervals import (
    NONE,
    RESAMPLES,
    Counts,
    Interval,
    bootstrap_interval,
    envelope,
    random_rows,
    set_interval,
    t_interval,
    t_quantile,
)

RANGE: Interval = (-1.0, 1.0)
EXACT = 14  # up to so many differing problems all sign vectors are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """After minus before, over the same problems.

    difference: mean of the problems' differences. low, high: t interval over them (the population), never
        narrower than set_low, set_high: for this set alone.
    bootstrap_low, bootstrap_high: studentised, over problems; NaN where all problems differ alike.
    p_value: two-sided sign-flip permutation test of no difference; NaN where the two have different numbers of
        samples, since signs then can't be flipped.
    up, down, same: problems by the sign of their difference.
    """

    difference: float
    low: float
    high: float
    set_low: float
    set_high: float
    bootstrap_low: float
    bootstrap_high: float
    p_value: float
    problems: int
    up: int
    down: int
    same: int


def paired(before: Counts, after: Counts, *, seed: int = 0, resamples: int = RESAMPLES) -> Paired:
    """The paired comparison of (samples, right ones) of the same problems in the same order.

    Raises:
        ValueError: no problems, or not the same number.
    """
    if not before or len(before) != len(after):
        raise ValueError(f"a paired comparison needs the same problems, got {len(before)} and {len(after)}")
    exact = [Fraction(d, m) - Fraction(b, n) for (n, b), (m, d) in zip(before, after, strict=True)]
    differences = [float(difference) for difference in exact]
    mean = float(sum(exact) / len(exact))
    alone = _set_interval(before, after, mean)
    low, high = envelope(differences, alone, RANGE)
    bootstrap = NONE
    if len(set(exact)) > 1:
        bootstrap = bootstrap_interval(differences, seed=seed, resamples=resamples, bounds=RANGE)
    alike = all(n == m for (n, _), (m, _) in zip(before, after, strict=True))
    return Paired(
        difference=mean,
        low=low,
        high=high,
        set_low=alone[0],
        set_high=alone[1],
        bootstrap_low=bootstrap[0],
        bootstrap_high=bootstrap[1],
        p_value=sign_flip(differences, seed=seed, resamples=resamples) if alike else math.nan,
        problems=len(differences),
        up=sum(d > 0 for d in differences),
        down=sum(d < 0 for d in differences),
        same=sum(d == 0 for d in differences),
    )


def _set_interval(before: Counts, after: Counts, difference: float) -> Interval:
    """For this set alone: the two sides' own half-widths, added in squares (Newcombe's square-and-add)."""
    (a_low, a_high), (b_low, b_high) = set_interval(before, None), set_interval(after, None)
    a, b = (math.fsum(c / n for n, c in counts) / len(counts) for counts in (before, after))
    if math.isnan(a_low) or math.isnan(b_low):
        return NONE
    low = difference - math.hypot(b - b_low, a_high - a)
    high = difference + math.hypot(b_high - b, a - a_low)
    return max(low, RANGE[0]), min(high, RANGE[1])


def sign_flip(differences: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES) -> float:
    """Two-sided p-value: how often the sum with random signs is as far from 0 as the one seen.

    Between models that are alike, with the same number of samples on both sides, each problem's difference is
    as likely as its negative. All sign vectors are tried for up to 14 differing problems, else so many random
    ones (then (hits + 1) / (resamples + 1), which never says 0).
    """
    nonzero = np.asarray([d for d in differences if d], dtype=np.float64)
    if not len(nonzero):
        return 1.0
    seen = abs(math.fsum(nonzero)) - 1e-9  # equal sums must count as equal
    if len(nonzero) <= EXACT:
        signs = np.asarray(list(itertools.product((1.0, -1.0), repeat=len(nonzero))))
        return float((np.abs(signs @ nonzero) >= seen).mean())
    hits = 0
    for numbers in random_rows(resamples, len(nonzero), seed, salt=1):
        hits += int((np.abs(np.where(numbers < 0.5, 1.0, -1.0) @ nonzero) >= seen).sum())
    return (hits + 1) / (resamples + 1)


def seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) over training seeds: a t interval, n - 1; NaN bounds for one seed, or none that differ."""
    low, high = t_interval(values) if len(set(values)) > 1 else NONE
    return math.fsum(values) / len(values), low, high


def welch(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """(difference of means, low, high) between two groups of training seeds: Welch's t interval.

    Degrees of freedom after Satterthwaite; NaN bounds where a group has one seed, or no spread at all is seen.
    """
    difference = math.fsum(after) / len(after) - math.fsum(before) / len(before)
    if min(len(before), len(after)) < 2:
        return difference, *NONE
    parts = [float(np.var(group, ddof=1)) / len(group) for group in (before, after)]
    variance = sum(parts)
    if variance == 0:
        return difference, *NONE
    squares = sum(part**2 / (len(group) - 1) for part, group in zip(parts, (before, after), strict=True))
    half = t_quantile(variance**2 / squares) * math.sqrt(variance)
    return difference, max(difference - half, -1.0), min(difference + half, 1.0)
