"""Token data of sampled responses: pieces with their probability at sampling, ratio at the update, and clipping."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from dapo.printable import printable
from dapo.report.read import Files, Row, number, rows_of

TokenData = dict[str, Any]
_LISTS = ("tokens", "logprobs", "ratios", "clipped")


def token_data(files: Files, steps: Sequence[int], budget: int) -> dict[int, dict[tuple[int, int], TokenData]]:
    """Of these steps, by step and (draw, g), until the budget in bytes is spent.

    Steps come in an order that spreads over the run (last, first, middle, quarters, ...), each with as many responses
    as its share of the budget holds and at least one, so that no stretch of the run goes without. A response whose four
    lists differ in length is left out with a note.

    Returns:
        t: pieces of text; p: probabilities, r: ratios (None: not known), 3 digits; c: 1 clipped high, -1 low, 0.
    """
    paths = files.steps("tokens", "jsonl.zst")
    present = [step for step in steps if step in paths]
    found: dict[int, dict[tuple[int, int], TokenData]] = {}
    share, left = budget / max(len(present), 1), float(budget)
    for step in spread(present):
        if left <= 0:
            break
        spent = 0
        for row in rows_of(files.unpacked(paths[step])):
            packed = _packed(row)
            if packed is None:
                files.note(f"tokens/step_{step:06d}.jsonl.zst: a response whose lists do not fit, left out")
                continue
            size = len(json.dumps(packed))
            if spent and spent + size > share:
                break
            spent += size
            found.setdefault(step, {})[(row["draw"], row["g"])] = packed
        left -= spent
    return found


def spread(steps: Sequence[int]) -> Iterator[int]:
    """The last and the first, then what lies halfway between any two named so far.

    >>> list(spread([1, 2, 3, 4, 5]))
    [5, 1, 3, 2, 4]
    """
    count = len(steps)
    named: set[int] = set()
    stride = max(count - 1, 1)
    for place in (count - 1, 0):
        if 0 <= place < count and place not in named:
            named.add(place)
            yield steps[place]
    while len(named) < count:
        stride = max(stride // 2, 1)
        for place in range(0, count, stride):
            if place not in named:
                named.add(place)
                yield steps[place]


def _packed(row: Row) -> TokenData | None:
    lists = [row.get(name) for name in _LISTS]
    if not all(isinstance(one, list) for one in lists) or not isinstance(row.get("draw"), int):
        return None
    pieces, logprobs, ratios, clipped = (one for one in lists if isinstance(one, list))
    if len({len(pieces), len(logprobs), len(ratios), len(clipped)}) > 1 or not isinstance(row.get("g"), int):
        return None
    return {
        "t": [printable(str(piece)) for piece in pieces],
        "p": [_rounded(None if (v := number(x)) is None else math.exp(min(v, 0.0))) for x in logprobs],
        "r": [_rounded(number(x)) for x in ratios],
        "c": [x if x in (1, -1) else 0 for x in clipped],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3) if value < 100 else float(f"{value:.3g}")
