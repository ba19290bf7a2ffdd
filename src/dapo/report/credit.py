"""The credit tables of a run: which responses the gradient of a step came from. Descriptive, not causal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dapo.report.read import Files, mapping, number, short

MAX_STEPS = 200
FIGURES = ("share", "norm", "cosine", "responses", "tokens", "proxy")
_SIDES = {True: "right", False: "wrong"}


def credit(files: Files) -> list[dict[str, Any]]:
    """A table a step, oldest first; of more than MAX_STEPS evenly chosen ones, the last among them.

    Returns:
        step, gradient_norm, quartiles: [a, b, c] tokens, matched: name -> number, rows: [{label, cells}] where
        cells are the four length quartiles, each None or a list in the order of FIGURES.
    """
    paths = files.steps("credit", "json")
    stride = max(1, -(-len(paths) // MAX_STEPS))
    chosen = sorted(paths)[::-1][::stride][::-1]
    tables = (_table(step, files.mapping(f"credit/{paths[step].name}")) for step in chosen)
    return [table for table in tables if table is not None]


def _table(step: int, content: Mapping[str, Any]) -> dict[str, Any] | None:
    rows: dict[str, list[list[float | None] | None]] = {}
    buckets = content.get("buckets")
    for bucket in buckets if isinstance(buckets, list) else []:
        place = bucket.get("length") if isinstance(bucket, dict) else None
        if isinstance(place, int) and 0 <= place < 4:
            cells = rows.setdefault(_label(bucket), [None] * 4)
            cells[place] = [short(number(bucket.get(name)), 4) for name in FIGURES]
    if not rows:
        return None
    quartiles = content.get("length_quartiles")
    known = isinstance(quartiles, list) and len(quartiles) == 3
    return {
        "step": step,
        "gradient_norm": short(number(content.get("gradient_norm"))),
        "quartiles": [number(q) for q in quartiles] if known and isinstance(quartiles, list) else None,
        "matched": {str(k): short(number(v)) for k, v in mapping(content.get("matched")).items()},
        "rows": [{"label": label, "cells": rows[label]} for label in sorted(rows, key=_order)],
    }


def _label(bucket: Mapping[str, Any]) -> str:
    """right, truncated, A+"""
    right = bucket.get("right")
    side = _SIDES[right] if isinstance(right, bool) else "undecided"
    cut = ", truncated" if bucket.get("truncated") is True else ""
    sign = {"+": "A > 0", "-": "A < 0", "0": "A = 0"}.get(str(bucket.get("advantage")), "A ?")
    return f"{side}{cut}, {sign}"


def _order(label: str) -> tuple[int, bool, str]:
    return (("right", "wrong", "undecided").index(label.split(",")[0]), "truncated" in label, label)
