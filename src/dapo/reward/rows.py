"""Grading a file of answers: rows in, verdicts with stage and seconds out, a table per suite."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dapo.errors import DataError
from dapo.reward.extract import extract
from dapo.reward.golds import as_text
from dapo.reward.grader import Grader
from dapo.types import Verdict

# Where a completion's answer is looked for when nothing is said: from the surest to the loosest.
LENIENT_POLICIES = ("answer_line", "boxed", "tag", "sentence", "whole", "last_math")
_TEXT_KINDS = ("completion", "marked_text")


@dataclass(frozen=True, slots=True)
class Graded:
    """One row's verdict. `row` is the row as it was read."""

    row: Mapping[str, Any]
    verdict: Verdict
    stage: str
    extracted: str | None
    seconds: float

    @property
    def correct(self) -> bool:
        return self.verdict is Verdict.CORRECT

    def as_row(self) -> dict[str, Any]:
        """The row with what was found."""
        found = {"verdict": self.verdict.value, "correct": self.correct, "stage": self.stage}
        return dict(self.row) | found | {"extracted": self.extracted, "seconds": round(self.seconds, 6)}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file, each with gold or answer, and pred (a bare answer) or completion.

    Optional: expected (bool), id, suite, and kind: "completion" or "marked_text" says that pred is a
    text to extract from; in marked_text the gold is one too.

    Raises:
        DataError: naming the row and the mend.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    rows = [_row(line, f"{path}, row {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise DataError(f"{path}: no rows in it")
    return rows


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({str(error)[:80]})") from None
    if not isinstance(row, dict):
        raise DataError(f'{where}: a JSON object is needed, e.g. {{"gold": "5", "pred": "5"}}')
    if "gold" not in row and "answer" not in row:
        raise DataError(f"{where}: it needs gold (or answer)")
    if not isinstance(row.get("pred", row.get("completion")), str):
        raise DataError(f"{where}: it needs pred (a bare answer) or completion, as text")
    if not isinstance(row.get("expected", False), bool):
        raise DataError(f"{where}: expected = {row['expected']!r}; use true or false")
    return row


def grade_rows(
    grader: Grader, rows: Sequence[Mapping[str, Any]], threads: int, tick: Callable[[], None] = lambda: None
) -> list[Graded]:
    """Every row graded, `threads` at a time, in order. A gold that can't be graded gives ERROR."""
    check = lru_cache(maxsize=None)(grader.check_gold)  # many rows may share a gold

    def one(row: Mapping[str, Any]) -> Graded:
        gold = _gold(row)
        reason = check(gold)
        tick()
        return Graded(row, Verdict.ERROR, f"gold refused: {reason}", None, 0.0) if reason else _grade(grader, row, gold)

    pool = ThreadPoolExecutor(threads)
    try:
        return list(pool.map(one, rows))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for the rest of the file


def _gold(row: Mapping[str, Any]) -> str:
    gold = as_text(row["gold"] if "gold" in row else row["answer"])
    if row.get("kind") == "marked_text":
        return extract(gold, ("boxed", "whole", "last_math"))[0] or gold
    return gold


def _grade(grader: Grader, row: Mapping[str, Any], gold: str) -> Graded:
    start = time.perf_counter()
    if row.get("kind") in _TEXT_KINDS or "pred" not in row:
        score = grader.score(row.get("completion", row.get("pred", "")), gold)
        return Graded(row, score.verdict, score.stage, score.extracted, time.perf_counter() - start)
    verdict, stage = grader.judge(gold, row["pred"])
    return Graded(row, verdict, stage, row["pred"], time.perf_counter() - start)


def table(graded: Iterable[Graded]) -> list[dict[str, Any]]:
    """Figures per suite and over all: n, agreement, false positives and negatives, timeouts, errors, times.

    Agreement and its errors are over the rows that say what they expect; times are of a row's grading
    as it ran beside others.
    """
    by_suite: dict[str, list[Graded]] = {}
    for one in graded:
        by_suite.setdefault(str(one.row.get("suite", "")), []).append(one)
    lines = [_line(suite or "-", rows) for suite, rows in sorted(by_suite.items())]
    if len(lines) > 1:
        lines.append(_line("all", [one for rows in by_suite.values() for one in rows]))
    return lines


def _line(suite: str, rows: list[Graded]) -> dict[str, Any]:
    labelled = [one for one in rows if "expected" in one.row]
    wrong = [one for one in labelled if one.correct != one.row["expected"]]
    times = sorted(one.seconds for one in rows)
    return {
        "suite": suite,
        "n": len(rows),
        "correct": sum(one.correct for one in rows),
        "labelled": len(labelled),
        "agreement": 1 - len(wrong) / len(labelled) if labelled else None,
        "false_positives": sum(one.correct for one in wrong),
        "false_negatives": sum(not one.correct for one in wrong),
        "unparsed": sum(one.verdict is Verdict.UNPARSED for one in rows),
        "timeouts": sum(one.verdict is Verdict.TIMEOUT for one in rows),
        "errors": sum(one.verdict is Verdict.ERROR for one in rows),
        "median_ms": 1e3 * statistics.median(times),
        "p99_ms": 1e3 * times[min(len(times) - 1, int(0.99 * len(times)))],
    }
