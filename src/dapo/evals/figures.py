"""The figures of one evaluation set, from the graded samples of its problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dapo.evals.estimators import maj_at_k, pass_at_k, powers_of_two
from dapo.evals.intervals import (
    FEW,
    NONE,
    Interval,
    bootstrap_interval,
    detectable,
    population_interval,
    set_interval,
    t_interval,
)
from dapo.evals.phrases import PhraseShare, phrase_shares
from dapo.evals.results import RIGHT, Result, has_verdict, is_truncated, plain
from dapo.types import Verdict

SPARSE = 5.0  # problems' worth of right, or of wrong, samples under which intervals over problems hold too rarely


@dataclass(frozen=True, slots=True, kw_only=True)
class AtK:
    """A figure for k samples: mean over problems, its t interval over them, and (maj) how often the top ties."""

    k: int
    value: float
    low: float
    high: float
    tied: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What sampling a set took: seconds of wall time, tokens, failures of the engine."""

    seconds: float = 0.0
    tokens: int = 0
    engine_failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFigures:
    """Figures of one set.

    accuracy: avg@k, the mean over problems of the share of right samples.
    interval: over the population of problems, t over problem means, n - 1 (see `population_interval` where all
        are equal). The headline.
    set_interval: for this set alone. bootstrap: over the population, studentised.
        NaN where all problem means are equal.
    All are 95%, NaN where rewards say nothing of right and wrong (graded floats); reward_mean is there always.
    warnings: why intervals over the population may hold less often than they say.
    detectable_set, detectable: see `intervals.detectable`.
    Fractions are over samples. length_*: tokens. by_source: avg@k of each source's problems.
    """

    name: str
    problems: int
    k: int
    accuracy: float
    interval: Interval
    set_interval: Interval
    bootstrap: Interval
    warnings: tuple[str, ...]
    detectable_set: float
    detectable: float
    pass_at: tuple[AtK, ...]
    maj_at: tuple[AtK, ...]
    reward_mean: float
    reward_interval: Interval
    parsed_fraction: float
    truncated_fraction: float
    timeout_fraction: float
    error_fraction: float
    length_mean_tokens: float
    length_right_tokens: float
    length_wrong_tokens: float
    length_quantiles_tokens: dict[str, float]
    by_source: dict[str, float]
    phrases: dict[str, PhraseShare]
    spent: Spent
    results: Sequence[Result] = field(repr=False)

    @property
    def interval_95(self) -> Interval:
        """The headline interval: of the accuracy, or of the mean reward where there is none."""
        return self.reward_interval if math.isnan(self.accuracy) else self.interval

    def at(self, metric: str) -> float:
        """avg, pass or maj at k, or the mean reward. NaN where there is none."""
        if metric == "reward":
            return self.reward_mean
        if metric == "avg":
            return self.accuracy
        figures = self.pass_at if metric == "pass" else self.maj_at
        return figures[-1].value if figures else math.nan

    def summary(self) -> dict[str, Any]:
        """Plain data for JSON: NaN is null."""
        names = (
            "problems", "k", "accuracy", "reward_mean", "parsed_fraction", "truncated_fraction", "timeout_fraction",
            "error_fraction", "length_mean_tokens", "length_right_tokens", "length_wrong_tokens",
            "length_quantiles_tokens", "by_source", "warnings",
        )  # fmt: skip
        found = {name: getattr(self, name) for name in names}
        found |= {
            "intervals_95": {
                "population, over problem means": self.interval,
                "population, studentised bootstrap over problems": self.bootstrap,
                "this set alone, sampling noise": self.set_interval,
                "population, t over problem means, of the reward": self.reward_interval,
            },
            "detectable_difference": {"this set alone": self.detectable_set, "population, unpaired": self.detectable},
            "pass_at": {str(f.k): {"value": f.value, "low": f.low, "high": f.high} for f in self.pass_at},
            "maj_at": {str(f.k): {"value": f.value, "low": f.low, "high": f.high, "tied": f.tied} for f in self.maj_at},
            "phrases": {kind: asdict(share) for kind, share in self.phrases.items()},
            "spent": asdict(self.spent),
            "per_problem": [_problem(result) for result in self.results],
        }
        return plain(found)  # type: ignore[no-any-return]


def set_figures(name: str, results: Sequence[Result], k: int, spent: Spent) -> SetFigures:
    """All figures of a set.

    Args:
        name: of the set.
        results: one for each problem, each with k samples.
        k: samples of each problem.
        spent: what sampling took.
    """
    means = [result.mean for result in results]
    rows = [row for result in results for row in result.rows]
    rewards = [_mean([row["reward"] for row in result.rows]) for result in results]
    graded = bool(results) and all(result.graded for result in results)
    counts = [(result.samples, result.right) for result in results] if graded else []
    this_set, population = detectable(counts)
    alone = set_interval(counts)
    pass_at, maj_at = (_pass_at(results, k, alone), _maj_at(results, k, alone)) if graded else ([], [])
    right, wrong = ([row["tokens"] for row in rows if row["correct"] is side] for side in (True, False))
    sources = sorted({result.source for result in results})
    return SetFigures(
        name=name,
        problems=len(results),
        k=k,
        accuracy=_mean(means),
        interval=population_interval(means, alone) if graded else NONE,
        set_interval=alone,
        bootstrap=bootstrap_interval(means) if graded and len(set(counts)) > 1 else NONE,
        warnings=_warnings(means, pass_at, maj_at) if graded else (),
        detectable_set=this_set,
        detectable=population,
        pass_at=tuple(figure for figure, _ in pass_at),
        maj_at=tuple(figure for figure, _ in maj_at),
        reward_mean=_mean([row["reward"] for row in rows]),
        reward_interval=t_interval(rewards, bounds=None),
        parsed_fraction=_mean([not has_verdict(row, Verdict.UNPARSED) for row in rows]),
        truncated_fraction=_mean([is_truncated(row) for row in rows]),
        timeout_fraction=_mean([has_verdict(row, Verdict.TIMEOUT) for row in rows]),
        error_fraction=_mean([has_verdict(row, Verdict.ERROR) for row in rows]),
        length_mean_tokens=_mean([row["tokens"] for row in rows]),
        length_right_tokens=_mean(right),
        length_wrong_tokens=_mean(wrong),
        length_quantiles_tokens=_quantiles([row["tokens"] for row in rows]),
        by_source={s: _mean([r.mean for r in results if r.source == s]) for s in sources},
        phrases=phrase_shares((row["phrases"], row["correct"]) for row in rows) if graded else {},
        spent=spent,
        results=tuple(results),
    )


def sparse(means: Sequence[float]) -> str:
    """Why a t interval over the population may hold less often than 95%, else "".

    Few problems say little of a population. And where fewer than five problems' worth of samples are right (or
    wrong), a handful of problems carries the whole figure: for difficulties Beta(0.1, 1.9) and 30 problems, of
    which 1.5 problems' worth are right on average, it held 86% of the time in simulation
    (benchmarks/coverage.py), and less where this is so by bad luck.
    """
    if not means:
        return ""
    if len(means) < FEW:
        return f"only {len(means)} problems; use more"
    right, wrong = math.fsum(means), math.fsum(1 - mean for mean in means)
    if min(right, wrong) >= SPARSE:
        return ""
    side = "right" if right < wrong else "wrong"
    return (
        f"only {min(right, wrong):.1f} problems' worth of samples are {side} (under {SPARSE:g}); "
        "use more problems, or easier or harder ones"
    )


def _warnings(means: Sequence[float], *at: Sequence[tuple[AtK, Sequence[float]]]) -> tuple[str, ...]:
    """Of avg@k, and where that is fine of pass@k and maj@k."""
    said = "intervals over the population may hold less often than 95%"
    if reason := sparse(means):
        return (f"{said}: {reason}",)
    names = [f"{name}@{f.k}" for name, own in zip(("pass", "maj"), at, strict=True) for f, v in own if sparse(v)]
    return (f"{', '.join(names)}: {said}: under {SPARSE:g} problems' worth on one side",) if names else ()


def _pass_at(results: Sequence[Result], k: int, alone: Interval) -> list[tuple[AtK, Sequence[float]]]:
    """Each figure with its value for each problem. alone: avg@k's interval for the set, and so pass@1's."""
    return [
        _at_k(size, [pass_at_k(result.samples, result.right, size) for result in results], alone)
        for size in powers_of_two(k)
    ]


def _maj_at(results: Sequence[Result], k: int, alone: Interval) -> list[tuple[AtK, Sequence[float]]]:
    votes = [result.votes for result in results]
    if any(own is None for own in votes):
        return []
    found = []
    for size in powers_of_two(k):
        pairs = [maj_at_k(own or (), RIGHT, size) for own in votes]
        found.append(_at_k(size, [value for value, _ in pairs], alone, _mean([tied for _, tied in pairs])))
    return found


def _at_k(k: int, values: Sequence[float], alone: Interval, tied: float | None = None) -> tuple[AtK, Sequence[float]]:
    low, high = population_interval(values, alone if k == 1 else NONE)
    return AtK(k=k, value=_mean(values), low=low, high=high, tied=tied), values


def _problem(result: Result) -> dict[str, Any]:
    tokens = [row["tokens"] for row in result.rows]
    return {
        "id": result.id,
        "question": result.question,
        "answer": result.answer,
        "source": result.source,
        "samples": result.samples,
        "right": result.right if result.graded else None,
        "mean": result.mean,
        "reward_mean": _mean([row["reward"] for row in result.rows]),
        "majority": result.majority(),
        "truncated": sum(is_truncated(row) for row in result.rows),
        "unparsed": sum(has_verdict(row, Verdict.UNPARSED) for row in result.rows),
        "length_mean_tokens": _mean(tokens),
    }


def _quantiles(lengths: Sequence[int]) -> dict[str, float]:
    if not lengths:
        return {}
    found = np.quantile(np.asarray(lengths), [0.1, 0.5, 0.9, 1.0])
    return dict(zip(("p10", "p50", "p90", "max"), map(float, found), strict=True))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if len(values) else math.nan
