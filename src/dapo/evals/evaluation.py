"""The figures of every set of an evaluation, from graded rows: as metrics, as plain data, in a line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dapo.evals.figures import SetFigures, Spent, set_figures
from dapo.evals.results import Result, results_of
from dapo.records import Row

IN_METRICS = (
    "accuracy", "low", "high", "pass_at_k", "maj_at_k", "reward_mean", "parsed_fraction", "truncated_fraction",
    "length_mean_tokens", "engine_failures",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures of every set, in the order of the configuration."""

    sets: tuple[SetFigures, ...]

    def named(self, name: str) -> SetFigures:
        """The figures of a set. Raises KeyError."""
        return {figures.name: figures for figures in self.sets}[name]

    @property
    def rows(self) -> list[Row]:
        """Every sample's row, set by set, without seconds: equal runs have equal rows."""
        rows = (row for figures in self.sets for result in figures.results for row in result.rows)
        return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]

    def metrics(self) -> dict[str, float]:
        """Metric name -> value: eval/NAME of the one set, or eval/SET/NAME of each of several."""
        found = {"time/eval_s": math.fsum(figures.spent.seconds for figures in self.sets)}
        for figures in self.sets:
            area = "eval" if len(self.sets) == 1 else f"eval/{figures.name}"
            low, high = figures.interval_95
            values = {
                "accuracy": figures.accuracy,
                "low": low,
                "high": high,
                "pass_at_k": figures.at("pass"),
                "maj_at_k": figures.at("maj"),
                "engine_failures": float(figures.spent.engine_failures),
            }
            found |= {f"{area}/{name}": float(values.get(name, getattr(figures, name, 0.0))) for name in IN_METRICS}
        return found

    def summary(self) -> dict[str, Any]:
        """Plain data for JSON: figures by set."""
        return {"sets": {figures.name: figures.summary() for figures in self.sets}}

    def lines(self) -> list[str]:
        """One line for a person about each set."""
        return [set_line(figures) for figures in self.sets]


def set_line(figures: SetFigures) -> str:
    """A set's headline: the figure, its interval over the population, what else to look at."""
    low, high = figures.interval_95
    between = f" (95% interval {low:.1%} to {high:.1%})" if low == low else ""
    figure = f"{figures.accuracy:.1%}{between}"
    if math.isnan(figures.accuracy):
        between = f" (95% interval {low:.3f} to {high:.3f})" if low == low else ""
        figure = f"mean reward {figures.reward_mean:.3f}{between}"
    return (
        f"{figures.name}: avg@{figures.k} over {figures.problems} problems: {figure}; "
        f"parsed {figures.parsed_fraction:.1%}, truncated {figures.truncated_fraction:.1%}, "
        f"mean length {figures.length_mean_tokens:.1f} tokens"
    )


def set_figures_of(name: str, results: Sequence[Result], k: int) -> SetFigures:
    """A set's figures, with what its rows say was spent."""
    rows = [row for result in results for row in result.rows]
    spent = Spent(
        seconds=math.fsum(row.get("seconds", 0.0) for row in rows),
        tokens=sum(row["tokens"] for row in rows),
        engine_failures=sum(row.get("engine_failures", 0) for row in rows),
    )
    return set_figures(name, results, k, spent)


def figures_of_rows(rows: Iterable[Row]) -> Evaluation:
    """The figures of rows read back from disk: those that `evaluate` gave for them."""
    return Evaluation(
        tuple(set_figures_of(name, results, results[0].samples) for name, results in results_of(rows).items())
    )
