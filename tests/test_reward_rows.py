"""Grading files: what a row may hold, what is counted, and what the command prints and writes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import helpers_run as helpers
from dapo.errors import DataError
from dapo.reward.grader import Grader
from dapo.reward.rows import LENIENT_POLICIES, grade_rows, read_rows, table
from dapo.types import Verdict


def ok(*words: str) -> str:
    """stdout of a command that has to end with 0."""
    code, out, err = helpers.quiet_dapo(*words)
    assert code == 0, err
    return out


def failed(*words: str) -> str:
    """stderr of a command that has to end with 2, in one line and without output."""
    code, out, err = helpers.quiet_dapo(*words)
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1), err
    return err


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def graded(rows: list[dict[str, Any]]) -> list[tuple[bool, str]]:
    return [(one.correct, one.verdict.value) for one in grade_rows(Grader(LENIENT_POLICIES), rows, 2)]


@pytest.mark.parametrize(
    ("row", "right"),
    [
        ({"gold": "5", "pred": "5"}, True),
        ({"answer": 5, "pred": "5.0"}, True),
        ({"gold": ["5"], "pred": "5"}, True),
        ({"gold": 34.0, "pred": "34"}, True),
        ({"gold": "5", "completion": "I think so.\nAnswer: 5"}, True),
        ({"gold": "5", "completion": "<answer>5</answer>"}, True),
        ({"gold": "5", "completion": "The answer is 5."}, True),
        ({"gold": "5", "completion": "it must be 5, then"}, True),
        ({"gold": "5", "pred": "The number of ways is $5$", "kind": "completion"}, True),
        ({"gold": r"so $x^2$ is $\boxed{5}$", "pred": r"\boxed{5}", "kind": "marked_text"}, True),
        ({"gold": "5", "pred": "it must be 5, then"}, False),  # a bare answer is not searched
        ({"gold": "5", "pred": "6"}, False),
    ],
)
def test_one_row(row: dict[str, Any], right: bool) -> None:
    """gold or answer, pred or completion, and texts where kind says so."""
    assert graded([row])[0][0] is right


@pytest.mark.parametrize("gold", [None, "", " ", "N/A", True, {"a": 1}, ["1", "2"], "the proof is left to the reader"])
def test_a_gold_that_cannot_be_graded_is_an_error_and_never_pays(gold: Any) -> None:
    """R11, R12: counted as an error, whatever the prediction."""
    assert graded([{"gold": gold, "pred": pred} for pred in ("", "5", "None", str(gold))]) == [(False, "error")] * 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "row 2: not JSON"),
        ("[1]", "row 2: a JSON object"),
        ('{"pred": "1"}', "row 2: it needs gold"),
        ('{"gold": "1"}', "row 2: it needs pred"),
        ('{"gold": "1", "pred": 1}', "row 2: it needs pred"),
        ('{"gold": "1", "pred": "1", "expected": "yes"}', "row 2: expected"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, said: str) -> None:
    """By its number and what it lacks; nothing is graded."""
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"gold": "1", "pred": "1"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(DataError, match=said):
        read_rows(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    """Missing, empty, or no text: one clear line."""
    for name, data in (("no.jsonl", None), ("empty.jsonl", b"\n \n"), ("bytes.jsonl", b"\xff\xfe")):
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=name):
            read_rows(tmp_path / name)


ROWS = [
    {"suite": "a", "id": 1, "gold": "5", "pred": "5", "expected": True},
    {"suite": "a", "id": 2, "gold": "5", "pred": "6", "expected": True},
    {"suite": "a", "id": 3, "gold": "5", "pred": "5", "expected": False},
    {"suite": "b", "gold": r"\sqrt{2}", "pred": r"\frac{2}{\sqrt{2}}"},
    {"suite": "b", "gold": "5", "completion": "no idea at all, so sorry"},
    {"suite": "b", "gold": "N/A", "pred": "5", "expected": False},
]


def test_the_table_counts() -> None:
    """Agreement over labelled rows alone; every count by hand."""
    lines = {line["suite"]: line for line in table(grade_rows(Grader(LENIENT_POLICIES), ROWS, 1))}
    assert set(lines) == {"a", "b", "all"}
    counts = ("n", "correct", "labelled", "false_positives", "false_negatives", "unparsed", "timeouts", "errors")
    assert [lines["a"][key] for key in counts] == [3, 2, 3, 1, 1, 0, 0, 0]
    assert [lines["b"][key] for key in counts] == [3, 1, 1, 0, 0, 1, 0, 1]
    assert [lines["all"][key] for key in counts] == [6, 3, 4, 1, 1, 1, 0, 1]
    assert lines["a"]["agreement"] == pytest.approx(1 / 3)
    assert lines["b"]["agreement"] == 1.0
    assert all(line["p99_ms"] >= line["median_ms"] >= 0 for line in lines.values())


def test_rows_keep_their_order_and_are_all_told(tmp_path: Path) -> None:
    """Graded side by side, written in order, one tick each."""
    rows = [{"gold": str(i % 7), "pred": str(i % 5)} for i in range(200)]
    ticks: list[int] = []
    result = grade_rows(Grader(), rows, 4, lambda: ticks.append(1))
    assert len(ticks) == 200
    assert [one.row for one in result] == rows
    assert [one.correct for one in result] == [i % 7 == i % 5 for i in range(200)]


def test_the_command(tmp_path: Path) -> None:
    """The table on stdout, the rows in the file, JSON on request; non-ASCII and lone surrogates survive."""
    path = write(
        tmp_path / "rows.jsonl", [*ROWS, {"suite": "c", "gold": "5", "pred": "答案 \ud800", "expected": False}]
    )
    out = tmp_path / "out.jsonl"
    printed = ok("grade", str(path), "-o", str(out))
    assert [line.split()[0] for line in printed.splitlines()] == ["suite", "a", "b", "c", "all"]
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [row["verdict"] for row in rows] == ["correct", "wrong", "correct", "correct", "unparsed", "error", "wrong"]
    assert rows[0] | {"seconds": 0} == ROWS[0] | {
        "verdict": "correct", "correct": True, "stage": "number", "extracted": "5", "seconds": 0
    }  # fmt: skip
    assert rows[6]["pred"] == "答案 \ud800"
    lines = json.loads(ok("grade", str(path), "--json"))
    assert [line["suite"] for line in lines] == ["a", "b", "c", "all"]


def test_the_command_refuses(tmp_path: Path) -> None:
    """One line, exit code 2, no output file."""
    out = tmp_path / "out.jsonl"
    path = write(tmp_path / "rows.jsonl", [{"gold": "1"}])
    assert "row 1" in failed("grade", str(path), "-o", str(out))
    assert not out.exists()
    good = str(write(tmp_path / "good.jsonl", ROWS[:1]))
    assert "no folder" in failed("grade", good, "-o", str(tmp_path / "none" / "out.jsonl"))
    assert "can't be written" in failed("grade", good, "-o", str(tmp_path))
    assert "can't be read" in failed("grade", str(tmp_path))
    assert "reward.extract" in failed("grade", str(path), "--extract", "boxes")


def test_ctrl_c_ends_the_command_at_once(tmp_path: Path) -> None:
    """It does not grade the rest of the file first, and nothing of ours stays behind."""
    rows = [
        {"gold": rf"\frac{{{i}}}{{\sqrt{{2}}}}", "pred": rf"\frac{{{i} \sqrt{{2}}}}{{2}}"} for i in range(1, 20_000)
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    # Where tests run in the background, SIGINT comes in ignored; a person's shell does not do that.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from dapo.cli import main; main(sys.argv[1:])"
    )
    command = subprocess.Popen([sys.executable, "-c", code, "grade", str(path)], stdout=subprocess.PIPE)
    time.sleep(6)
    start = time.monotonic()
    command.send_signal(signal.SIGINT)
    out, _ = command.communicate(timeout=30)
    assert (command.returncode, out) == (130, b"")
    assert time.monotonic() - start < 8


def test_settings_of_the_command() -> None:
    """reward.KEY=VALUE words reach the grader; an answer with an equals sign is none."""
    assert ok("grade", "12+13", "25").startswith("wrong")
    assert ok("grade", "12+13", "25", "reward.unevaluated=right").startswith("correct")
    assert ok("grade", "500 cm", r"5\text{ m}", "reward.convert_units=true").startswith("correct")
    assert ok("grade", "x=5", "5").startswith("correct")


def test_explain() -> None:
    """What was extracted, how both sides are read, which stage decided, what the paper's scorer says."""
    lines = ok("grade", "--explain", r"so \boxed{x<3}", r"(-\infty,3)").splitlines()
    assert lines[0] == "correct  extracted: x<3  by: boxed: interval"
    assert lines[1].split(":", 1)[1].strip() == r"(-\infty, 3)"
    assert lines[2].split(":", 1)[1].strip() == r"x in (-\infty, 3)"
    assert lines[3].startswith("verl-math-dapo: unparsed")
    result = json.loads(ok("grade", "--explain", "--json", "Answer: 1,2", "12"))
    assert result["verdict"] == "wrong"
    assert result["verl-math-dapo"].startswith("correct")  # R1: the published scorer's false hit


def test_compat_of_the_command() -> None:
    """reward.compat grades as the paper's scorer did."""
    assert ok("grade", "Answer: 1,2", "12", "reward.compat=verl-math-dapo").startswith("correct")
    assert ok("grade", r"\boxed{12}", "12", "reward.compat=verl-math-dapo").startswith("unparsed")


def test_verdicts_are_of_the_enum() -> None:
    """What the rows name is what the grader says elsewhere."""
    assert {verdict for _, verdict in graded(ROWS)} <= {verdict.value for verdict in Verdict}
