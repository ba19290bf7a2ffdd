"""The grader beside math-verify alone: decisions on labelled cases, speed, and golds that equal themselves.

    python benchmarks/grader.py --cases DIR [--data DIR] [--seconds 5] [-o FILE.json]

DIR of cases holds JSONL files of rows with suite, gold, pred, expected and kind (see `dapo grade --help`).
math-verify alone is `verify(parse(gold), parse(pred))` with its defaults, in the main thread of its own
processes, where its alarms work; a bare gold or answer is put in a box. Rates are over all cores that the
process may use, for both; nothing is cached between answers (every grader is new).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from dapo.reward.grader import Grader
from dapo.reward.pool import default_size
from dapo.reward.rows import LENIENT_POLICIES, Graded, grade_rows, read_rows, table
from dapo.types import Verdict

Pair = tuple[str, str]


# --- math-verify alone ----------------------------------------------------------------------------


def reference(row: dict[str, Any]) -> tuple[bool, str, float]:
    """(its decision, what it raised, seconds)."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    kind = row.get("kind", "answer" if "pred" in row else "completion")
    gold = row["gold"] if kind == "marked_text" else f"\\boxed{{{row['gold']}}}"
    pred = f"\\boxed{{{row['pred']}}}" if kind == "answer" else row.get("completion", row.get("pred"))
    start = time.perf_counter()
    try:
        equal, raised = bool(verify(parse(gold), parse(pred))), ""
    except Exception as error:
        equal, raised = False, type(error).__name__
    return equal, raised, time.perf_counter() - start


def references(rows: list[dict[str, Any]]) -> list[tuple[bool, str, float]]:
    with ProcessPoolExecutor(default_size()) as pool:
        return list(pool.map(reference, rows, chunksize=8))


# --- decisions ------------------------------------------------------------------------------------


def compare_decisions(folder: Path) -> dict[str, Any]:
    """Both on every labelled row; a warm-up pass first, so that neither pays for its imports and grammars."""
    rows = [row for path in sorted(folder.glob("*.jsonl")) for row in read_rows(path) if "expected" in row]
    grader = Grader(LENIENT_POLICIES)
    grade_rows(grader, rows, default_size())
    ours = grade_rows(Grader(LENIENT_POLICIES), rows, default_size())
    references(rows[:64])
    theirs = [
        Graded(row, Verdict.ERROR if raised else Verdict.CORRECT if equal else Verdict.WRONG, "", None, seconds)
        for row, (equal, raised, seconds) in zip(rows, references(rows), strict=True)
    ]
    print_tables(table(ours), table(theirs))
    return {"ours": table(ours), "math_verify": table(theirs)}


def print_tables(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    keys = ("agreement", "false_positives", "false_negatives", "errors", "median_ms", "p99_ms")
    print(f"{'suite':20s} {'n':>4s}  " + "  ".join(f"{key:>22s}" for key in keys) + "   (ours | math-verify)")
    for mine, other in zip(ours, theirs, strict=True):
        cells = (f"{_cell(mine[key]):>10s} |{_cell(other[key]):>10s}" for key in keys)
        print(f"{mine['suite']:20s} {mine['n']:4d}  " + "  ".join(cells))


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


# --- speed ----------------------------------------------------------------------------------------


def integers(count: int) -> list[Pair]:
    generator = random.Random(0)
    golds = [generator.randrange(-999, 10**6) for _ in range(count)]
    return [(str(gold), str(gold if generator.random() < 0.5 else gold + 1)) for gold in golds]


def our_rate(pairs: list[Pair], seconds: float) -> tuple[float, list[bool]]:
    """(answers per second, decisions). The pairs are repeated by new graders until the time is over."""
    graded, start = 0, time.perf_counter()
    decisions: list[bool] = []
    while graded == 0 or time.perf_counter() - start < seconds:
        decisions = [verdict is Verdict.CORRECT for verdict, _ in Grader().judge_all(pairs)]
        graded += len(pairs)
    return graded / (time.perf_counter() - start), decisions


def their_rate(pairs: list[Pair], seconds: float) -> tuple[float, list[bool]]:
    rows = [{"gold": gold, "pred": pred} for gold, pred in pairs]
    with ProcessPoolExecutor(default_size()) as pool:
        list(pool.map(reference, rows[:400], chunksize=8))  # imports, grammars
        graded, start = 0, time.perf_counter()
        decisions: list[bool] = []
        while graded == 0 or time.perf_counter() - start < seconds:
            decisions = [equal for equal, _, _ in pool.map(reference, rows, chunksize=8)]
            graded += len(rows)
        return graded / (time.perf_counter() - start), decisions


def compare_speed(cases: Path, seconds: float) -> dict[str, Any]:
    mixed = [
        (row["gold"], row["pred"])
        for path in sorted(cases.glob("*.jsonl"))
        for row in read_rows(path)
        if "pred" in row and row.get("kind", "answer") == "answer"
    ]
    Grader().judge_all(mixed)  # the workers' imports and grammars
    result = {}
    for name, pairs in (("bare integers", integers(5000)), ("mixed cases", list(dict.fromkeys(mixed)))):
        ours, mine = our_rate(pairs, seconds)
        theirs, other = their_rate(pairs if name == "mixed cases" else pairs[:1000], seconds)
        same = statistics.mean(a == b for a, b in zip(mine, other, strict=False))
        print(
            f"{name}: {ours:,.0f} answers/s, math-verify {theirs:,.0f}/s: {ours / theirs:.1f} times; "
            f"the same decision in {same:.1%} of {min(len(mine), len(other))}"
        )
        result[name] = {"ours_per_s": ours, "math_verify_per_s": theirs, "times": ours / theirs, "same": same}
    return result


# --- self-equality --------------------------------------------------------------------------------


def golds(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The answers of the data sets in a folder, by name."""
    import pyarrow.parquet as parquet

    def lines(name: str, key: str) -> list[Any]:
        text = (folder / name).read_text(encoding="utf-8")
        return [json.loads(line)[key] for line in text.splitlines() if line.strip()]

    yield "MATH-500", [str(value) for value in lines("math500/test.jsonl", "answer")]
    yield "OlympiadBench", [", ".join(value) for value in lines("olympiadbench/test.jsonl", "final_answer")]
    yield "DeepMath", [str(value) for value in lines("deepmath/math_deepmath_deal.jsonl", "ground_truth")]
    for part in ("test", "train"):
        solutions = lines(f"gsm8k/{part}.jsonl", "answer")
        yield f"GSM8K {part}", [re.split(r"####\s*", value)[-1].strip() for value in solutions]
    rows = parquet.read_table(folder / "dapo17k/dapo_math_17k.parquet").to_pylist()
    yield "DAPO-17k", [str(row["reward_model"]["ground_truth"]) for row in rows]


def check_selves(folder: Path) -> dict[str, Any]:
    """Every gold, graded as an answer to itself inside a box, is right, or it is refused with a reason."""
    result = {}
    for name, answers in golds(folder):
        grader = Grader(("boxed",))
        start = time.perf_counter()
        reasons = grader.check_golds(answers)
        accepted = [answer for answer, reason in zip(answers, reasons, strict=True) if reason is None]
        scores = grader.score_all([(f"Thus $\\boxed{{{answer}}}$.", answer) for answer in accepted])
        unequal = [answer for answer, score in zip(accepted, scores, strict=True) if not score.correct]
        refused = [(answer, reason) for answer, reason in zip(answers, reasons, strict=True) if reason]
        seconds = time.perf_counter() - start
        print(
            f"{name}: {len(answers)} golds, {len(refused)} refused, "
            f"{len(unequal)} unequal to themselves, {seconds:.1f} s"
        )
        for answer, reason in refused[:5]:
            print(f"    refused: {answer[:70]!r}: {reason}")
        for answer in unequal[:20]:
            print(f"    unequal: {answer[:90]!r}")
        result[name] = {"n": len(answers), "refused": len(refused), "unequal": len(unequal), "seconds": seconds}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each rate")
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    result: dict[str, Any] = {"cores": default_size()}
    result["decisions"] = compare_decisions(chosen.cases)
    result["speed"] = compare_speed(chosen.cases, chosen.seconds)
    if chosen.data:
        result["selves"] = check_selves(chosen.data)
    if chosen.output:
        chosen.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
