"""How dynamic sampling (section 3.2) shifts what is trained on, by difficulty.

Dynamic sampling keeps a draw (G responses to one prompt) only when 0 < right responses < G, so
what is trained on is not what was drawn. Draws are accounted for in bands of difficulty. A band
comes from earlier draws of the prompt, or from a rating in the data, never from the draw being
judged: that draw decides what is kept, and banding by it would find a shift in pure luck.

Shape legend (suffixes): D draws, K bands (len(BANDS)), R resamples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

# Pass rate p: nothing known; p = 0; 0 < p <= 1/3; 1/3 < p <= 2/3; 2/3 < p < 1; p = 1.
BANDS = ("unseen", "none_right", "hard", "medium", "easy", "all_right")

TIE = 1e-12  # total variations this close are one value


# --- what earlier draws of a prompt found ---------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecord:
    """What the draws of one prompt so far have found.

    draws, responses, right: counts, right <= responses.
    solved_in_a_row: draws in a row, ending with the latest, whose responses were all right.
    last_step: step in which it was last drawn.
    """

    draws: int = 0
    responses: int = 0
    right: int = 0
    solved_in_a_row: int = 0
    last_step: int = 0

    def after(self, num_correct: int, size: int, step: int) -> PromptRecord:
        """The record after one more draw, of `size` >= 1 responses with `num_correct` right ones.

        >>> PromptRecord().after(4, 4, step=7)
        PromptRecord(draws=1, responses=4, right=4, solved_in_a_row=1, last_step=7)
        """
        if size < 1 or not 0 <= num_correct <= size:
            raise ValueError(f"a draw of {size} responses cannot have {num_correct} right ones")
        return PromptRecord(
            draws=self.draws + 1,
            responses=self.responses + size,
            right=self.right + num_correct,
            solved_in_a_row=self.solved_in_a_row + 1 if num_correct == size else 0,
            last_step=step,
        )


History = Mapping[str, PromptRecord]  # by prompt id


def updated(history: History, outcomes: Iterable[tuple[str, int, int]], step: int) -> dict[str, PromptRecord]:
    """A new history with one step's draws added in order; the old one stays as it was.

    Args:
        history: the records before the step.
        outcomes: (prompt id, right responses, responses) of each draw.
        step: the step in which they were drawn.
    """
    records = dict(history)
    for prompt_id, num_correct, size in outcomes:
        records[prompt_id] = records.get(prompt_id, PromptRecord()).after(num_correct, size, step)
    return records


def resting(record: PromptRecord | None, step: int, solved_in_a_row: int, rest_steps: int) -> bool:
    """Whether a prompt solved that often in a row is still skipped at `step`.

    It rests while last_step < step <= last_step + rest_steps. A prompt without a record never does.

    Args:
        record: of the steps before `step`.
        step: the step about to draw.
        solved_in_a_row: >= 1, draws in a row that must have been all right.
        rest_steps: how many steps a rest lasts; 0 for none.
    """
    if solved_in_a_row < 1:
        raise ValueError(f"solved_in_a_row must be at least 1, got {solved_in_a_row}")
    if record is None or record.solved_in_a_row < solved_in_a_row:
        return False
    return record.last_step < step <= record.last_step + rest_steps


def adaptive_size(record: PromptRecord | None, rating: float | None, least: int, most: int) -> int:
    """A reward-adaptive group size, not the paper's: round(least + (most - least) (1 - p)), half to even.

    p is that of the prompt's record, else its rating; `most` without either.

    >>> [adaptive_size(None, p, 4, 16) for p in (None, 0.0, 0.5, 1.0)]
    [16, 16, 10, 4]
    """
    rate = record.right / record.responses if record is not None and record.responses else rating
    return most if rate is None else round(least + (most - least) * (1.0 - rate))


# --- bands and predictions ------------------------------------------------------------------------


def checked_rating(rating: float) -> float:
    """The rating itself. Raises ValueError outside [0, 1], NaN included."""
    if 0.0 <= rating <= 1.0:
        return rating
    raise ValueError(f"a rating is a pass rate in [0, 1], got {rating}")


def band(record: PromptRecord | None, rating: float | None) -> int:
    """The band of a prompt before it is drawn: an index into BANDS.

    Earlier responses come first (p = right / responses, compared in whole numbers), then the rating.

    Args:
        record: of earlier draws; None, or without responses, says nothing.
        rating: a pass rate in [0, 1] that came with the data, or None. A rating of exactly 1/3 or
            2/3 in float64 is in the lower band; one that was rounded lies where rounding put it.

    >>> [BANDS[band(None, p)] for p in (None, 0.0, 1 / 3, 0.5, 0.9, 1.0)]
    ['unseen', 'none_right', 'hard', 'medium', 'easy', 'all_right']
    """
    if rating is not None:
        checked_rating(rating)
    if record is not None and record.responses > 0:
        edges = (record.right > 0, 3 * record.right > record.responses, 3 * record.right > 2 * record.responses)
        return 1 + sum(edges) + (record.right == record.responses)
    if rating is not None:
        return 1 + (rating > 0) + (rating > 1 / 3) + (rating > 2 / 3) + (rating == 1)
    return 0


def predicted_acceptance(record: PromptRecord | None, rating: float | None, size: int) -> float | None:
    """Estimate of the probability that a draw of G = `size` responses is kept: f(p) = 1 - p^G - (1-p)^G.

    From n >= G earlier responses, r of them right:  1 - [C(r, G) + C(n-r, G)] / C(n, G),  the share
    of G-subsets of the n that hold both a right and a wrong one. It is unbiased: r ~ Bin(n, p)
    gives E = f(p) exactly, for every p. At n = G it is 1 for 0 < r < n, else 0.

    The plug-in f(r/n) is not used: f is strictly concave for G >= 2, so E f(r/n) < f(p) for every
    0 < p < 1 and every n. At n = G = 16 and p = 0.1 it averages 0.66 where f = 0.81; the gap closes
    as 1/n. With n < G the record has no unbiased estimator to offer (f has degree G in p, G - 1 for
    odd G), and f(rating) is used instead, or None. A rating that is itself a mean over few
    responses makes f(rating) too low in the same way.

    What "unbiased" leaves out. The policy has moved since: r counts responses of earlier policies,
    so this predicts a draw from them, not from today's. And it holds on average over r: among
    prompts picked by their record (one band; those not resting) it is biased, towards the luck
    they were picked for.

    Args:
        record: of earlier draws, or None.
        rating: a pass rate in [0, 1] that came with the data, or None.
        size: G >= 1.

    Returns:
        in [0, 1], or None when nothing is known.

    >>> predicted_acceptance(PromptRecord(draws=2, responses=4, right=1), None, 2)
    0.5
    """
    if size < 1:
        raise ValueError(f"a draw has at least one response, got {size}")
    if rating is not None:
        checked_rating(rating)
    if record is not None and record.responses >= size:
        n, r = record.responses, record.right
        return (comb(n, size) - comb(r, size) - comb(n - r, size)) / comb(n, size)
    if rating is None:
        return None
    return max(0.0, float(1.0 - rating**size - (1.0 - rating) ** size))  # rounding can reach below 0


# --- what ratings foretell --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rating:
    """What came with a problem: its pass rate in [0, 1], and the counts behind it, where they are known."""

    rate: float | None
    record: PromptRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the ratings of a mixture foretell of its draws.

    problems, rated: how many. shares: of the draws by band, in the order of BANDS.
    acceptance: mean prediction over draws of rated problems; NaN where none is rated.
    draws: how many it takes on average for the wanted number of kept ones; infinite where none is kept.
    """

    problems: int
    rated: int
    shares: tuple[float, ...]
    acceptance: float
    draws: float


def forecast(
    ratings: Sequence[Sequence[Rating]], weights: Sequence[float] | None, *, size: int, wanted: int, least: int = 0
) -> Forecast:
    """Expected acceptance of draws before any was made, were the policy the one that rated.

    A draw falls on source s with its weight's share (without weights, its share of the problems) and there on each
    problem alike. With acceptance a, `wanted` kept draws take wanted / a draws on average. Unrated problems are
    taken to be like the rated ones.

    Args:
        ratings: of the problems of each source, which has some.
        weights: of the sources, or None.
        size: G >= 1, responses of a draw; with `least` over 0 the `adaptive_size` of each problem's rate.
        wanted: N, kept draws of a step.

    >>> half, full = Rating(0.5), Rating(1.0)
    >>> found = forecast([[half, half], [full]], [1.0, 3.0], size=2, wanted=8)
    >>> found.acceptance, found.draws, found.shares
    (0.125, 64.0, (0.0, 0.0, 0.0, 0.25, 0.0, 0.75))
    """
    sizes = [float(len(source)) for source in ratings]
    whole = sum(sizes if weights is None else weights)
    shares, mass, kept = [0.0] * len(BANDS), 0.0, 0.0
    for source, weight in zip(ratings, sizes if weights is None else weights, strict=True):
        each = weight / whole / len(source)
        for one in source:
            known = one.record if one.rate is not None else None
            shares[band(known, one.rate)] += each
            predicted = predicted_acceptance(known, one.rate, adaptive_size(None, one.rate, least or size, size))
            if predicted is not None:
                mass, kept = mass + each, kept + each * predicted
    acceptance = kept / mass if mass else float("nan")
    return Forecast(
        problems=sum(map(len, ratings)),
        rated=sum(one.rate is not None for source in ratings for one in source),
        shares=tuple(shares),
        acceptance=acceptance,
        draws=wanted / acceptance if acceptance else float("inf"),
    )


# --- the shift ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Total variation between the bands of kept draws and those of all draws. NaN where undefined.

    value: the distance, in [0, 1]. low, high: its 95% percentile bootstrap interval.
    null_mean: its mean were kept draws picked without regard to band. null_p: in (0, 1], the p-value.
    """

    value: float
    low: float
    high: float
    null_mean: float
    null_p: float


def band_counts(band_D: NDArray[np.integer], kept_D: NDArray[np.bool_]) -> Counts:
    """Draws by outcome and band: i64 [2, K], left-out draws first, kept ones second."""
    if band_D.ndim != 1 or band_D.shape != kept_D.shape:
        raise ValueError(f"one band and one outcome per draw, got shapes {band_D.shape} and {kept_D.shape}")
    if kept_D.dtype != np.bool_:
        raise ValueError(f"outcomes must be bool, got {kept_D.dtype}")
    if band_D.size == 0:
        return np.zeros((2, len(BANDS)), np.int64)
    if not np.issubdtype(band_D.dtype, np.integer) or band_D.min() < 0 or band_D.max() >= len(BANDS):
        raise ValueError(f"bands must be integers in [0, {len(BANDS)})")
    cell_D = band_D.astype(np.int64) + len(BANDS) * kept_D
    return np.bincount(cell_D, minlength=2 * len(BANDS)).astype(np.int64).reshape(2, len(BANDS))


def distance(kept: Counts, drawn: Counts) -> NDArray[np.float64]:
    """1/2 sum_k |kept_k / sum(kept) - drawn_k / sum(drawn)| of counts [..., K] with positive sums."""
    share_kept = kept / kept.sum(axis=-1, keepdims=True)
    share_drawn = drawn / drawn.sum(axis=-1, keepdims=True)
    return np.asarray(0.5 * np.abs(share_kept - share_drawn).sum(axis=-1), dtype=np.float64)


def total_variation(band_D: NDArray[np.integer], kept_D: NDArray[np.bool_]) -> float:
    """Half the sum over bands of |share of kept draws - share of all draws|.

    Args:
        band_D: index into BANDS of each draw.
        kept_D: bool, whether it was kept.

    Returns:
        in [0, 1]; NaN when nothing was kept or nothing drawn.

    >>> total_variation(np.array([1, 1, 3, 3]), np.array([False, False, True, True]))
    0.5
    """
    counts_2K = band_counts(band_D, kept_D)
    if counts_2K[1].sum() == 0:
        return float("nan")
    return float(distance(counts_2K[1], counts_2K.sum(axis=0)))


def shift(band_D: NDArray[np.integer], kept_D: NDArray[np.bool_], *, seed: int, resamples: int = 400) -> Shift:
    """Total variation with a bootstrap interval and a permutation test.

    Interval: D draws, as (band, kept) pairs, drawn again with replacement, R times; resamples
    without a kept draw are left out. Null: the same number of kept draws picked from the same draws
    without regard to band;  p = (1 + #{null >= value}) / (1 + R).

    The distance is never negative, so noise only adds to it: with no shift at all it is above 0,
    by null_mean on average, and the interval, which inherits this, need not reach down to it (or
    to 0). Read `value` against null_mean. Draws count as independent; draws of one prompt are less so.

    Args:
        band_D: index into BANDS of each draw.
        kept_D: bool, whether it was kept.
        seed: in [0, 2**64); the result is a function of the arguments alone.
        resamples: R >= 1.

    Returns:
        All NaN when nothing was kept or nothing drawn; low and high also where every resample was left out.
    """
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    counts_2K = band_counts(band_D, kept_D)
    drawn_K, kept_K = counts_2K.sum(axis=0), counts_2K[1]
    num_drawn, num_kept = int(drawn_K.sum()), int(kept_K.sum())
    nan = float("nan")
    if num_kept == 0:
        return Shift(value=nan, low=nan, high=nan, null_mean=nan, null_p=nan)
    value = float(distance(kept_K, drawn_K))
    rng = np.random.Generator(np.random.Philox(key=seed))

    again_R2K = rng.multinomial(num_drawn, counts_2K.ravel() / num_drawn, size=resamples).reshape(resamples, 2, -1)
    again_R2K = again_R2K[again_R2K[:, 1].sum(axis=-1) > 0]
    low, high = nan, nan
    if len(again_R2K):
        low, high = np.quantile(distance(again_R2K[:, 1], again_R2K.sum(axis=1)), (0.025, 0.975))

    null_R = distance(rng.multivariate_hypergeometric(drawn_K, num_kept, size=resamples), drawn_K)
    return Shift(
        value=value,
        low=float(low),
        high=float(high),
        null_mean=float(null_R.mean()),
        null_p=(1 + int((null_R >= value - TIE).sum())) / (1 + resamples),
    )


# --- metrics --------------------------------------------------------------------------------------


def difficulty_metrics(
    bands: Sequence[int], kept: Sequence[bool], predicted: Sequence[float | None], *, seed: int
) -> dict[str, float]:
    """What was drawn and kept, by band, as metric name -> value.

    The caller leaves out the draw at which the batch became full: that one is kept by definition,
    and counting up to a success makes the acceptance too high.

    difficulty/{band}_draws, difficulty/{band}_acceptance: for each band with a draw.
    sampling/predicted_acceptance: mean of the predictions there are; sampling/predictable_acceptance:
        kept share of exactly those draws. NaN when there are none.
    shift/*: see `shift`.

    Args:
        bands: index into BANDS of each draw.
        kept: whether it was kept.
        predicted: its predicted_acceptance.
        seed: for the resampling.
    """
    if not len(bands) == len(kept) == len(predicted):
        raise ValueError(f"got {len(bands)} bands, {len(kept)} outcomes and {len(predicted)} predictions")
    band_D = np.array(bands, dtype=np.int64)
    kept_D = np.array(kept, dtype=np.bool_)
    left_out_K, kept_K = band_counts(band_D, kept_D)
    metrics: dict[str, float] = {}
    for name, num_left_out, num_kept in zip(BANDS, left_out_K, kept_K, strict=True):
        draws = int(num_left_out + num_kept)
        if draws:
            metrics[f"difficulty/{name}_draws"] = float(draws)
            metrics[f"difficulty/{name}_acceptance"] = int(num_kept) / draws
    known = [(p, bool(k)) for p, k in zip(predicted, kept, strict=True) if p is not None]
    count = len(known) or float("nan")
    metrics["sampling/predicted_acceptance"] = sum(p for p, _ in known) / count
    metrics["sampling/predictable_acceptance"] = sum(k for _, k in known) / count
    found = shift(band_D, kept_D, seed=seed)
    metrics["shift/total_variation"] = found.value
    metrics["shift/total_variation_low"] = found.low
    metrics["shift/total_variation_high"] = found.high
    metrics["shift/null_mean"] = found.null_mean
    metrics["shift/null_p"] = found.null_p
    return metrics
