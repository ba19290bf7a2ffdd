"""How long responses are: measured in a run, or stated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

QUANTILES = 2000  # that stand for a stated distribution, and the most that stand for a measured one


@dataclass(frozen=True, slots=True)
class Lengths:
    """Equally likely response lengths, in tokens, sorted. source: where they come from."""

    values: NDArray[np.int64]
    source: str

    @property
    def mean(self) -> float:
        """Mean length."""
        return float(self.values.mean())

    @property
    def mean_square(self) -> float:
        """Mean of the squares, which attention costs by."""
        return float(np.square(self.values.astype(np.float64)).mean())

    @property
    def truncated(self) -> float:
        """Share that has the greatest length."""
        return float((self.values == self.values.max()).mean())


def stated_lengths(mean: float, spread: float, limit: int, source: str) -> Lengths:
    """Log-normal lengths cut at 1 and `limit`, with this mean after the cut.

    Args:
        mean: in tokens, at most `limit`.
        spread: standard deviation over mean, before the cut; 0 for all alike.
        limit: max_response_tokens.

    >>> stated_lengths(100, 0.5, 300, "").mean
    100.0
    """
    from scipy.special import ndtri

    places = ndtri((np.arange(QUANTILES) + 0.5) / QUANTILES)
    shape = np.exp(places * np.sqrt(np.log1p(spread**2)))
    low, high = 0.0, max(1.0, limit / float(shape.min()))
    for _ in range(200):  # the mean after the cut grows with the scale
        scale = (low + high) / 2
        low, high = (scale, high) if np.clip(shape * scale, 1, limit).mean() < mean else (low, scale)
    values = _whole(np.clip(shape * high, 1, limit), round(mean * QUANTILES), limit)
    return Lengths(np.sort(values), source)


def _whole(values: NDArray[np.float64], total: int, limit: int) -> NDArray[np.int64]:
    """Rounded so that they add up, as far as 1 and the limit allow it: the largest remainders go up."""
    floors = np.floor(values).astype(np.int64)
    up = int(np.clip(total - floors.sum(), 0, len(values)))
    order = np.argsort(-(values - floors), kind="stable")[:up]
    floors[order] += 1
    return np.clip(floors, 1, limit)


def measured_lengths(tokens: Sequence[int], old_limit: int, limit: int, source: str) -> tuple[Lengths, str]:
    """Lengths of a run under another limit, and a note where that needed a guess, else "".

    Those that the old limit cut are taken to go on to end at each further token with the chance that
    the measured ones had of ending: ended / tokens.
    """
    values = np.sort(np.asarray(tokens, dtype=np.int64))
    if len(values) > QUANTILES:
        values = values[((np.arange(QUANTILES) + 0.5) * len(values) / QUANTILES).astype(np.int64)]
    cut = values >= old_limit
    if limit <= old_limit or not cut.any():
        return Lengths(np.minimum(values, limit), source), ""
    chance = max(float((~cut).sum() / values.sum()), 1e-9)
    count = int(cut.sum())
    places = (np.arange(count) + 0.5) / count
    further = np.ceil(np.log1p(-places) / np.log1p(-min(chance, 1 - 1e-9)))
    values = np.sort(np.concatenate([values[~cut], np.minimum(old_limit + further, limit).astype(np.int64)]))
    return Lengths(values, source), (
        f"{cut.mean():.0%} of the measured responses were cut at {old_limit} tokens; how they go on to {limit} is a "
        f"guess: an end at each token with the chance {chance:.2g} of those before (or state it: --response-tokens)"
    )
