"""A sample of a run's rollouts within a budget of bytes; every step is there, and the files alone decide the choice.

Which rows of a step are taken is dealt by a hash of the step and the place in the file, so that neither right nor long
nor kept responses are preferred. Rows with token data (tokens/) come first, since only they can be shaded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dapo.printable import printable
from dapo.report.read import Files, Row, mapping, number, rows_of, short, unpacked_size
from dapo.report.tokens import TokenData, token_data
from dapo.types import Finish

BUDGET = 12 << 20  # bytes of JSON; a third of that in the file
TOKEN_SHARE = 0.4  # of the budget, for token data
MAX_STEPS = 4000  # a step has a row at least, so their number is bounded too
LONGEST, SHORTEST = 20_000, 1_500  # characters of a response or prompt that are shown
_IDS = re.compile(rb'"draw":\s*(\d+),\s*"g":\s*(\d+)')


def sample(files: Files, budget: int = BUDGET) -> dict[str, Any]:
    """The rollouts that the page shows.

    Args:
        files: of the run.
        budget: bytes of JSON, about. No step is left without a row for it, up to MAX_STEPS steps.

    Returns:
        rows: plain rows, see `_shown`. prompts: [[question, prompt, gold], ...], which rows point into. shown, total:
        counts. steps: of the run's files. chosen_steps: how many of them were read.
    """
    paths = files.steps("rollouts", "jsonl.zst")
    steps = evenly(sorted(paths), MAX_STEPS)
    sizes = [unpacked_size(paths[step]) for step in steps]
    level = water_level(sizes, budget)
    shaded = token_data(files, steps, int(budget * TOKEN_SHARE))
    limit = max(SHORTEST, min(LONGEST, level // 2))
    rows: list[Row] = []
    prompts: dict[tuple[str, str, str], int] = {}
    total = 0
    for step in steps:
        lines = files.unpacked(paths[step])
        total += len(lines)
        chosen = _choose(lines, step, level, shaded.get(step, {}))
        rows += [_shown(row, prompts, limit, shaded.get(step, {})) for row in rows_of(chosen)]
    return {
        "rows": rows,
        "prompts": [list(prompt) for prompt in prompts],
        "shown": len(rows),
        "total": total,
        "steps": len(paths),
        "chosen_steps": len(steps),
    }


def evenly(steps: Sequence[int], most: int) -> list[int]:
    """At most so many of the steps, evenly spaced, the first and the last among them.

    >>> evenly(list(range(1, 8)), 3)
    [1, 4, 7]
    """
    if len(steps) <= most:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def water_level(sizes: Sequence[int], budget: int) -> int:
    """The bytes each step may take so that together they fill the budget: what small steps leave, large ones get.

    >>> water_level([10, 100, 100], 110)
    50
    """
    left, remaining = budget, sorted(sizes)
    for place, size in enumerate(remaining):
        level = left // (len(remaining) - place)
        if size > level:
            return level
        left -= size
    return max(sizes, default=0)


def _choose(lines: Sequence[bytes], step: int, level: int, shaded: Mapping[tuple[int, int], Any]) -> list[bytes]:
    """Lines of a step up to `level` bytes, at least one, in file order."""
    if sum(map(len, lines)) <= level:
        return list(lines)
    wanted = [i for i, line in enumerate(lines) if _ids(line) in shaded] if shaded else []
    first = set(wanted)
    others = (i for i in _dealt(step, len(lines)) if i not in first)
    taken: list[int] = []
    spent = 0
    for place in [*wanted, *others]:
        spent += len(lines[place])
        if taken and spent > level and place not in first:
            break
        taken.append(place)
    return [lines[i] for i in sorted(taken)]


def _ids(line: bytes) -> tuple[int, int] | None:
    found = _IDS.search(line, 0, 200)
    return (int(found[1]), int(found[2])) if found else None


def _dealt(step: int, count: int) -> list[int]:
    """The places 0 to count - 1 in an order of the step's own: multiples of a hashed odd number, modulo 2^64."""
    factor = int.from_bytes(hashlib.blake2b(str(step).encode(), digest_size=8).digest(), "big") | 1
    return sorted(range(count), key=lambda place: (place + 1) * factor & (2**64 - 1))


def _shown(
    row: Row, prompts: dict[tuple[str, str, str], int], limit: int, shaded: Mapping[tuple[int, int], TokenData]
) -> Row:
    """What the page needs of a row, under short names; every text fit to be read.

    s step, d draw, g, p prompt (an index), t text, c characters cut out of it, f truncated, n tokens, v verdict,
    x extracted, e stage, r reward, o overlong penalty, k kept, a advantage (null: the group was not trained on, or the
    run's dapo did not write it), w: token data.
    """
    prompt = (
        _text(row.get("question"), limit)[0],
        _text(row.get("prompt"), limit)[0],
        _text(row.get("answer"), limit)[0],
    )
    text, cut = _text(row.get("text"), limit)
    shown: Row = {
        "s": row["step"],
        "d": row.get("draw"),
        "g": row.get("g"),
        "p": prompts.setdefault(prompt, len(prompts)),
        "t": text,
        "f": row.get("finish") == Finish.LENGTH.value,
        "n": number(row.get("tokens")),
        "v": _text(row.get("verdict"), 40)[0],
        "x": None if row.get("extracted") is None else _text(row.get("extracted"), limit)[0],
        "e": _text(row.get("stage"), 200)[0],
        "r": short(number(row.get("reward"))),
        "o": short(number(row.get("overlong"))),
        "k": row.get("kept") is True,
        "a": short(number(row.get("advantage"))),
    }
    parts = {str(name): short(number(value)) for name, value in mapping(row.get("parts")).items()}
    if len(parts) > 1:
        shown["parts"] = parts
    if cut:
        shown["c"] = cut
    draw, g = row.get("draw"), row.get("g")
    if isinstance(draw, int) and isinstance(g, int) and (draw, g) in shaded:
        shown["w"] = shaded[draw, g]
    return shown


def _text(value: Any, limit: int) -> tuple[str, int]:
    """A text with control characters as escapes, and how many characters were cut out of its middle."""
    text = "" if value is None else printable(value if isinstance(value, str) else str(value))
    cut = len(text) - limit
    if cut <= 0:
        return text, 0
    head = limit * 2 // 3
    return f"{text[:head]}\n[... {cut:,} characters cut ...]\n{text[len(text) - (limit - head) :]}", cut
