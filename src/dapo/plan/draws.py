"""Expected draws of a step of dynamic sampling, from pass rates.

A prompt of pass rate q gives G responses of which some but not all are right with probability

    a(q) = 1 - q^G - (1 - q)^G

A draw takes a prompt at random, whatever came before, so each draw is kept with probability  A = mean of a(q)  and
the draws up to the N-th kept one are N / A on average. (Not N times the mean of 1 / a(q): no prompt is drawn again
until it is kept. By Jensen that is larger, and infinite as soon as one prompt is never solved.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dapo.config.schema import SamplingConfig
from dapo.difficulty import PromptRecord, adaptive_size, predicted_acceptance

MOST_ROUNDS = 1000  # that are told apart; a step that needs more is as good as endless


@dataclass(frozen=True, slots=True)
class RateShare:
    """So large a share of the draws falls on prompts of this pass rate; its counts, where they are known."""

    share: float
    rate: float
    record: PromptRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRates:
    """What draws fall on. source: where this comes from."""

    shares: tuple[RateShare, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What filling a step takes.

    acceptance: A, share of the draws that is kept. size, kept_size: mean responses of a draw, and of a kept one.
    taken: draws up to the cut, on average (of a filling without a bound). made: draws made and finished, on average,
    by whole rounds where the schedule is `rounds`, bounded by max_rounds.
    rounds: on average. by_rounds: P(the batch is full after so many rounds or fewer), for 1, 2, .. max_rounds.
    exhausted: probability that it is not full at the bound. most: the bound in draws.
    least_acceptance: below this A the bound is under N / A.
    """

    acceptance: float
    size: float
    kept_size: float
    taken: float
    made: float
    rounds: float
    by_rounds: tuple[float, ...]
    exhausted: float
    most: int
    least_acceptance: float


def uniform_rates(bins: int = 200) -> PassRates:
    """Pass rates spread evenly over 0 to 1: what is assumed where nothing is known.

    Midpoints of bins; the mean of a(q) over it is 1 - 2 / (G + 1), to 1e-4 at G = 16.
    """
    shares = tuple(RateShare(1 / bins, (i + 0.5) / bins) for i in range(bins))
    return PassRates(shares=shares, source="default: pass rates spread evenly over 0 to 1 (measure: dapo data rate)")


def mean_acceptance(rates: PassRates, size: int, least: int | None = None) -> tuple[float, float, float]:
    """(A, mean responses of a draw, mean responses of a kept draw); NaN for the last where nothing is kept.

    Args:
        rates: what draws fall on.
        size: G.
        least: of the reward-adaptive group size, see `adaptive_size`; None for G always.

    >>> acceptance, _, _ = mean_acceptance(PassRates(shares=(RateShare(1.0, 0.01),), source=""), 16)
    >>> round(acceptance, 6)
    0.148542
    """
    accepted = responses = kept = 0.0
    for one in rates.shares:
        own = size if least is None else adaptive_size(None, one.rate, least, size)
        predicted = predicted_acceptance(one.record, one.rate, own)
        assert predicted is not None  # there is a rate
        accepted += one.share * predicted
        responses += one.share * own
        kept += one.share * predicted * own
    return accepted, responses, kept / accepted if accepted else math.nan


def plan_draws(sampling: SamplingConfig, acceptance: float, size: float, kept_size: float) -> Draws:
    """What filling a step takes when each draw is kept with probability `acceptance`, independently.

    With K(n) ~ Binomial(n, A) kept of n draws, r rounds of R draws are enough with probability P(K(r R) >= N), and
    the mean number of rounds is  sum over r = 0 .. max_rounds - 1 of P(K(r R) < N).
    """
    wanted = sampling.prompts_per_step
    block = sampling.gen_prompts or wanted
    most = sampling.max_rounds * block
    short = [short_of(wanted, r * block, acceptance) for r in range(1, min(sampling.max_rounds, MOST_ROUNDS) + 1)]
    rounds = 1.0 + sum(short[: sampling.max_rounds - 1]) + max(0, sampling.max_rounds - 1 - len(short)) * short[-1]
    taken = wanted / acceptance if acceptance else math.inf
    made = rounds * block if sampling.schedule == "rounds" else min(taken, float(most))
    return Draws(
        acceptance=acceptance,
        size=size,
        kept_size=kept_size,
        taken=taken,
        made=made,
        rounds=rounds if sampling.schedule == "rounds" else math.nan,
        by_rounds=tuple(1.0 - p for p in short),
        exhausted=short_of(wanted, most, acceptance),
        most=most,
        least_acceptance=min(1.0, wanted / most),
    )


def short_of(wanted: int, draws: int, acceptance: float) -> float:
    """P(fewer than `wanted` of so many draws are kept): the binomial distribution function at wanted - 1."""
    if draws < wanted or acceptance <= 0:
        return 1.0
    if acceptance >= 1:
        return 0.0
    from scipy.special import bdtr

    return float(bdtr(wanted - 1, draws, acceptance))
