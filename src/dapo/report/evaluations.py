"""A run's evaluations: pass@1 beside pass@k over steps, and the paired reading of the first and the last."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dapo.evals.progress import Curve, curves, is_known
from dapo.report.read import Files, mapping, number, short

POPULATION = "population, over problem means"


def evaluations(files: Files) -> dict[str, dict[str, Any]]:
    """By set.

    Returns:
        set -> lines: label -> [steps, values, low, high]; first, last: figures of the first and the last evaluated
        step; change: the paired difference last - first, or None with fewer than two comparable evaluations.
    """
    contents, unreadable = {}, 0
    for step, path in files.steps("eval", "json").items():
        content = files.json(f"eval/{path.name}")
        if is_known(content):
            contents[step] = content
        else:
            unreadable += content is not None
    if unreadable:
        files.note(f"eval/: {unreadable} evaluations of an older layout, left out")
    return {name: _of_set(name, curve, contents, files) for name, curve in curves(contents).items()}


def _of_set(name: str, curve: Curve, contents: Mapping[int, Any], files: Files) -> dict[str, Any]:
    try:
        lines = {
            label: [line[0], *(list(map(_finite, part)) for part in line[1:])] for label, line in curve.lines().items()
        }
    except (KeyError, TypeError, ValueError):
        files.note(f"eval/: figures of {name} that can't be read, left out")
        lines = {}
    steps = sorted(curve.points)
    first, last = steps[0], steps[-1]
    return {
        "lines": lines,
        "first": _figures(first, curve.points[first]),
        "last": _figures(last, curve.points[last]),
        "change": _change(curve.points[first], curve.points[last]) if first != last else None,
        "same_settings": contents[first].get("settings") == contents[last].get("settings"),
    }


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else short(value)


def _figures(step: int, point: Mapping[str, Any]) -> dict[str, Any]:
    interval = mapping(point.get("intervals_95")).get(POPULATION)
    low, high = interval if isinstance(interval, list) and len(interval) == 2 else (None, None)
    names = ("problems", "k", "accuracy", "reward_mean", "parsed_fraction", "truncated_fraction", "length_mean_tokens")
    at_k = mapping(point.get("pass_at"))
    sizes = sorted(int(k) for k in at_k if str(k).isdecimal())
    passed = number(mapping(at_k[str(sizes[-1])]).get("value")) if sizes else None
    found = {name: number(point.get(name)) for name in names}
    return found | {"step": step, "low": number(low), "high": number(high), "pass_at_k": passed}


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float | int] | None:
    """Paired over the problems that both have, as `dapo compare` does it."""
    from dapo.evals.paired import paired

    one, other = _counts(before), _counts(after)
    ids = [i for i in one if i in other]
    if len(ids) < 2:
        return None
    found = paired([one[i] for i in ids], [other[i] for i in ids], resamples=99)  # its bootstrap is not shown
    if math.isnan(found.low):
        return None
    return {
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "problems": len(ids),
        "up": found.up,
        "down": found.down,
    }


def _counts(point: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    problems = point.get("per_problem")
    found = {}
    for one in problems if isinstance(problems, list) else []:
        samples, right = mapping(one).get("samples"), mapping(one).get("right")
        if isinstance(samples, int) and isinstance(right, int) and samples > 0:
            found[str(one.get("id"))] = (samples, right)
    return found
