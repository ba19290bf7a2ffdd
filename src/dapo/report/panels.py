"""Which curves stand where, how they are drawn, and what each panel says: page/panels.toml, read."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any


@functools.cache
def catalogue() -> dict[str, Any]:
    """The content of panels.toml, where its keys are explained. Not to be changed by who gets it."""
    return tomllib.loads((files("dapo.report") / "page" / "panels.toml").read_text(encoding="utf-8"))


def drawn(names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The sections with the panels and curves for which there are metrics."""
    there = set(names)
    for section in catalogue()["section"]:
        panels = [panel for panel in (_drawn(one, there) for one in section.get("panel", [])) if panel["curves"]]
        yield {**section, "panel": panels}


def _drawn(panel: dict[str, Any], there: set[str]) -> dict[str, Any]:
    band = panel.get("band")
    return {
        "log": False,
        "stacked": False,
        **panel,
        "band": band if band and set(band) <= there else None,
        "curves": [curve for curve in panel["curves"] if curve[0] in there],
    }


def missing(names: Iterable[str]) -> list[str]:
    """Titles of panels of which the run has no metric at all."""
    there = set(names)
    return [
        f"{section['title']}: {panel['title']}"
        for section in catalogue()["section"]
        for panel in section.get("panel", [])
        if not there.intersection(curve[0] for curve in panel["curves"])
    ]


def joint(names: Iterable[str]) -> list[list[str]]:
    """The rows of the joint picture (metric, label, unit, role) for which there are metrics."""
    there = set(names)
    return [row for row in catalogue()["joint"]["rows"] if row[0] in there]
