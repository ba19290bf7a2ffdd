"""Metrics over steps in columns, binned where there are too many steps to draw, and bands over training seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dapo.evals.intervals import t_interval
from dapo.report.read import Row, number, short

MAX_POINTS = 1500  # a curve has at most so many; more steps are binned

Values = list[float | None]


def width_of_bins(last_step: int) -> int:
    """Steps of a bin, so that no curve has more than MAX_POINTS. All runs of a page share it.

    >>> width_of_bins(1500), width_of_bins(1501)
    (1, 2)
    """
    return max(1, math.ceil(last_step / MAX_POINTS))


def columns(rows: Sequence[Row], width: int = 1) -> dict[str, Any]:
    """Lines of metrics.jsonl by metric.

    Args:
        rows: in step order; of a step that stands twice the later line counts.
        width: steps of a bin. Bin i holds steps i * width + 1 to (i + 1) * width and is drawn at its last step seen.

    Returns:
        steps: list of int. values: metric -> mean over the bin, None where there is none. low, high: the least and the
        greatest of the bin, empty for width 1.
    """
    by_step = {int(row["step"]): row for row in rows}
    bins: dict[int, list[Row]] = {}
    for step in sorted(by_step):
        bins.setdefault((step - 1) // width, []).append(by_step[step])
    names = sorted({name for row in by_step.values() for name in row if name != "step"})
    steps = [int(group[-1]["step"]) for group in bins.values()]
    values: dict[str, Values] = {}
    low: dict[str, Values] = {}
    high: dict[str, Values] = {}
    for name in names:
        found = [[v for row in group if (v := number(row.get(name))) is not None] for group in bins.values()]
        if not any(found):
            continue
        values[name] = [short(math.fsum(f) / len(f)) if f else None for f in found]
        if width > 1:
            low[name] = [short(min(f)) if f else None for f in found]
            high[name] = [short(max(f)) if f else None for f in found]
    return {"steps": steps, "width": width, "values": values, "low": low, "high": high}


def band(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Runs that differ only in their seed, as one line: the mean at each step over the runs that have it.

    Args:
        members: of `columns`, all with the same width.

    Returns:
        as `columns`, where low and high are the 95% t interval over seeds, None where fewer than two seeds have the
        step; runs: how many have it, a list as long as steps.
    """
    width = int(members[0]["width"])
    places = [{(step - 1) // width: i for i, step in enumerate(one["steps"])} for one in members]
    bins = sorted(set().union(*places))
    steps = [
        max(one["steps"][place[b]] for one, place in zip(members, places, strict=True) if b in place) for b in bins
    ]
    names = sorted(set().union(*(one["values"] for one in members)))
    values, low, high = {}, {}, {}
    for name in names:
        found = [_over_seeds(name, b, members, places) for b in bins]
        values[name] = [short(math.fsum(f) / len(f)) if f else None for f in found]
        bounds = [t_interval(f, bounds=None) if len(f) > 1 else (None, None) for f in found]
        low[name], high[name] = [short(b[0]) for b in bounds], [short(b[1]) for b in bounds]
    runs = [sum(b in place for place in places) for b in bins]
    return {"steps": steps, "width": width, "values": values, "low": low, "high": high, "runs": runs}


def _over_seeds(
    name: str, place: int, members: Sequence[Mapping[str, Any]], places: Sequence[Mapping[int, int]]
) -> list[float]:
    found = []
    for one, index in zip(members, places, strict=True):
        column = one["values"].get(name)
        value = column[index[place]] if column is not None and place in index else None
        if value is not None:
            found.append(float(value))
    return found
