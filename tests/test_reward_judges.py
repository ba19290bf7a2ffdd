"""What the config makes of rewards: the grader, the paper's scorer, program tests; alone and with functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dapo.config import load_config
from dapo.reward import Scorer
from dapo.types import Prompt, Score, Verdict
from helpers_run import write_rows
from test_data import checked, refusal

PROGRAM = "```python\nprint(int(input()) {op} 1)\n```"
TESTS = {"inputs": ["1", "5"], "outputs": ["2", "6"]}


def scorer(**reward: Any) -> Scorer:
    layer = {"model.path": "m", "data.source": "d.jsonl"} | {f"reward.{key}": value for key, value in reward.items()}
    return Scorer(load_config(layer).reward)


def prompt(answer: str | None = "5", **columns: Any) -> Prompt:
    return Prompt(
        id="p", messages=None, text="q", answer=answer, source="s", token_ids=np.zeros(1, np.int32), columns=columns
    )


def scores(one: Scorer, where: Prompt, *texts: str) -> list[Score]:
    return one.score(where, texts, [[1]] * len(texts))


def test_the_grader_reads_its_settings() -> None:
    """Every reward.* key of the grader reaches it."""
    sums = "Answer: 2+3"
    assert not scores(scorer(), prompt(), sums)[0].correct
    assert scores(scorer(unevaluated="right"), prompt(), sums)[0].correct
    assert scores(scorer(extract=["tag"]), prompt(), "<answer>5</answer>")[0].correct
    assert scores(scorer(convert_units=True), prompt(r"5\text{ m}"), r"\boxed{500\text{ cm}}")[0].correct
    judge = scorer(symbolic_limit_s=1.5, symbolic_workers=3, symbolic_memory_mb=256).judge
    assert judge.grader._limits == (3, 1.5, 256)  # type: ignore[union-attr]


def test_the_papers_scorer() -> None:
    """compat = "verl-math-dapo": its misses and its false hits."""
    one = scorer(compat="verl-math-dapo")
    texts = ["Answer: 12", "Answer: 1,2", r"\boxed{12}", "Answer: 12.0"]
    assert [score.correct for score in scores(one, prompt("12"), *texts)] == [True, True, False, False]
    assert [score.correct for score in scores(scorer(), prompt("12"), *texts)] == [True, False, True, True]
    assert {score.stage for score in scores(one, prompt("12"), *texts)} == {"verl-math-dapo"}
    assert one.check([("12", {}), ("", {}), (None, {})])[0] is None
    assert all(one.check([("", {}), (None, {})]))


def test_python_tests_grade_programs() -> None:
    """reward.functions = ["python-tests"]: correctness by the row's tests; no gold answer is needed."""
    one = scorer(functions=["python-tests"])
    assert one.has_correctness
    found = scores(one, prompt(None, tests=TESTS), PROGRAM.format(op="+"), PROGRAM.format(op="-"), "no program")
    assert [score.verdict for score in found] == [Verdict.CORRECT, Verdict.WRONG, Verdict.UNPARSED]
    assert [score.reward for score in found] == [1.0, -1.0, -1.0]
    assert [score.parts["tests_passed_fraction"] for score in found] == [1.0, 0.0, 0.0]
    assert found[0].parts["python-tests"] == 1.0


def test_python_tests_in_another_column_and_with_a_limit() -> None:
    """reward.tests_column and reward.tests_limit_s."""
    one = scorer(functions=["python-tests"], tests_column="cases", tests_limit_s=0.5)
    loop, idle = "```python\nwhile True: pass\n```", "```python\nimport time\ntime.sleep(60)\n```"
    found = scores(one, prompt(None, cases=["assert f(1) == 2"]), "```python\ndef f(x): return x + 1\n```", loop, idle)
    assert [score.verdict for score in found] == [Verdict.CORRECT, Verdict.TIMEOUT, Verdict.TIMEOUT]


def test_a_judge_with_a_function(tmp_path: Path) -> None:
    """Correctness from the judge, the reward from both; each part is there to be logged."""
    (tmp_path / "own.py").write_text("def length(completions, **_): return [len(c) / 100 for c in completions]\n")
    one = scorer(functions=["grader", {"function": f"{tmp_path}/own.py:length", "weight": 0.5}])
    score = scores(one, prompt(), "Answer: 5" + " " * 41)[0]
    assert score.correct is True
    assert score.parts == {"grader": 1.0, "length": 0.5}
    assert score.reward == pytest.approx(1.25)


def test_a_failing_function_gives_error_verdicts(tmp_path: Path) -> None:
    """It never raises into the loop; correctness is withheld."""
    (tmp_path / "own.py").write_text("def broken(completions, **_): raise RuntimeError('no')\n")
    one = scorer(functions=["grader", f"{tmp_path}/own.py:broken"])
    score = scores(one, prompt(), "Answer: 5")[0]
    assert (score.verdict, score.correct, score.reward) == (Verdict.ERROR, False, -1.0)


# --- bad golds at load ----------------------------------------------------------------------------

ROWS = [
    {"prompt": "a", "answer": 34}, {"prompt": "b", "answer": None}, {"prompt": "c", "answer": "N/A"},
    {"prompt": "d", "answer": ["34"]}, {"prompt": "e", "answer": "no closed form is known to us"},
]  # fmt: skip


def test_bad_golds_are_refused_with_their_number_and_the_first_row(tmp_path: Path) -> None:
    """R11, R12: before the model loads, in one line with the mend."""
    path = write_rows(tmp_path / "d.jsonl", ROWS)
    message = refusal(lambda: checked(str(path)))
    assert "row 2" in message
    assert "None" in message
    assert "3 of 5 rows" in message
    assert 'data.bad_answers = "drop"' in message


def test_bad_golds_can_be_dropped_and_are_counted(tmp_path: Path) -> None:
    """A dropped row is a count and a note, never silence."""
    path = write_rows(tmp_path / "d.jsonl", ROWS)
    data = checked(str(path), {"data.bad_answers": "drop"})
    assert [problem.answer for problem in data.training[0]] == ["34", "34"]
    assert data.counts["rows"] == 5
    assert data.counts["bad_answers"] == 3
    assert any("3 of 5 rows left out" in note and "row 2" in note for note in data.notes)


def test_a_file_of_bad_golds_alone_is_refused(tmp_path: Path) -> None:
    """Dropping all is no way to train."""
    path = write_rows(tmp_path / "d.jsonl", ROWS[1:3])
    assert "2 of 2 rows" in refusal(lambda: checked(str(path), {"data.bad_answers": "drop"}))


def test_rows_of_programs_are_checked_for_their_tests() -> None:
    """The row's own column, named where it is missing or unfit."""
    one = scorer(functions=["python-tests"])
    reasons = one.check([(None, {"tests": TESTS}), (None, {}), (None, {"tests": []}), ("5", {"tests": "assert True"})])
    assert reasons[0] is None
    assert "no column 'tests'" in str(reasons[1])
    assert all(reasons[2:])
