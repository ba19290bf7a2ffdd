"""A run's evaluations over training, from the figures in eval/step_*.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dapo.evals.tables import Table, percent, with_bounds

Line = tuple[list[int], list[float], list[float], list[float]]  # steps, values, lower and upper bounds


@dataclass(frozen=True, slots=True)
class Curve:
    """One set: the figures of each evaluated step."""

    points: Mapping[int, Mapping[str, Any]]

    def lines(self) -> dict[str, Line]:
        """pass@1, pass@k of a middle and the largest k, and maj@k, each over steps; empty without right and wrong."""
        graded = {step: point for step, point in self.points.items() if point["pass_at"]}
        if not graded:
            return {}
        sizes = sorted(set.intersection(*({int(k) for k in point["pass_at"]} for point in graded.values())))
        shown = dict.fromkeys([sizes[0], sizes[len(sizes) // 2], sizes[-1]])
        found = {f"pass@{k}": _line(graded, "pass_at", str(k)) for k in shown}
        if sizes[-1] > 1 and all(str(sizes[-1]) in point["maj_at"] for point in graded.values()):
            found[f"maj@{sizes[-1]}"] = _line(graded, "maj_at", str(sizes[-1]))
        return found


def _line(points: Mapping[int, Mapping[str, Any]], field: str, k: str) -> Line:
    steps = sorted(points)
    values = [[_number(points[step][field][k][name]) for step in steps] for name in ("value", "low", "high")]
    return steps, values[0], values[1], values[2]


def is_known(evaluation: Any) -> bool:
    """Whether the content of eval/step_*.json has the layout that this version reads."""
    if not isinstance(evaluation, Mapping) or not isinstance(evaluation.get("settings"), Mapping):
        return False
    sets = evaluation.get("sets")
    return isinstance(sets, Mapping) and all(isinstance(one, Mapping) and "pass_at" in one for one in sets.values())


def curves(evaluations: Mapping[int, Mapping[str, Any]]) -> dict[str, Curve]:
    """By set, from step -> content of eval/step_*.json."""
    names = dict.fromkeys(name for one in evaluations.values() for name in one.get("sets", {}))
    return {
        name: Curve({step: one["sets"][name] for step, one in evaluations.items() if name in one.get("sets", {})})
        for name in names
    }


def progress_tables(found: Mapping[str, Curve]) -> list[Table]:
    """Of each set a row for each evaluated step."""
    return [_figures(name, curve) for name, curve in found.items()]


def _figures(name: str, curve: Curve) -> Table:
    lines = curve.lines()
    if not lines:
        heads = ["step", "mean reward", "parsed", "truncated", "mean tokens"]
        rows = [
            [str(step), f"{_number(point['reward_mean']):.3f}", *_shape(point)] for step, point in curve.points.items()
        ]
        return Table(f"{name}: over training", heads, rows)
    heads = ["step"]
    heads += [f"{label} [95%]" for label in lines]
    kinds = list(dict.fromkeys(kind for point in curve.points.values() for kind in point["phrases"]))
    heads += ["parsed", "truncated", "mean tokens", *(f"{kind}: right / wrong" for kind in kinds)]
    rows = []
    for step, point in curve.points.items():
        row = [str(step)]
        for steps, values, lows, highs in lines.values():
            place = steps.index(step) if step in steps else None
            row.append("-" if place is None else with_bounds(values[place], lows[place], highs[place]))
        rows.append([*row, *_shape(point), *(_phrase(point["phrases"].get(kind)) for kind in kinds)])
    return Table(f"{name}: over training", heads, rows)


def _phrase(share: Mapping[str, Any] | None) -> str:
    return "-" if share is None else f"{percent(_number(share['right']))} / {percent(_number(share['wrong']))}"


def _shape(point: Mapping[str, Any]) -> Sequence[str]:
    return (
        percent(point["parsed_fraction"]),
        percent(point["truncated_fraction"]),
        f"{point['length_mean_tokens']:.1f}",
    )


def progress_notes(found: Mapping[str, Curve]) -> list[str]:
    """What the columns mean."""
    notes = []
    if any(curve.lines() for curve in found.values()):
        notes.append(
            "pass@1 is avg@k; intervals are over the population of problems. Phrases: the share of the right and of "
            "the wrong responses with words of reflection or backtracking, a proxy and no more"
        )
    return notes


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
