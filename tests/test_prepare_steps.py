"""The parts of dapo data prepare at their edges: the first value that counts, and the last that doesn't."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dapo.data.prepare import contamination, near
from dapo.data.prepare.affixes import Affixes
from dapo.data.prepare.describe import Lengths, answer_type
from dapo.data.prepare.inspection import look
from dapo.data.prepare.place import rejects
from dapo.data.prepare.reading import Raw
from dapo.data.prepare.text import language, normalise
from dapo.data.prepare.validate import Item, Validator
from dapo.data.tables import is_prepared
from dapo.data.wrappers import gsm8k_answer


def jsonl(path: Path, rows: Iterable[Any]) -> str:
    """A file of rows; its path."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


# --- texts that problems share --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shared", "others", "told"), [(20, 0, True), (19, 0, False), (30, 70, True), (29, 71, False), (3000, 5000, False)]
)
def test_shared_text_is_that_of_twenty_problems_and_three_in_ten(shared: int, others: int, told: bool) -> None:
    """Only problems longer than both ends together are looked at, and of them the first 5000."""
    affixes = Affixes()
    for n in range(others):
        affixes.add(f"{n:<40}, {n:>40}")
    for n in range(shared):
        affixes.add(f"{'S' * 40}, {n:>40}")
        affixes.add("S" * 80)
    assert bool(affixes.shared()) is told


# --- rejects and sources --------------------------------------------------------------------------


def test_rejects_are_for_everyone_and_hold_anything(tmp_path: Path) -> None:
    """What JSON has no form for stands there as text; the file has the rights that new files have."""
    with rejects(tmp_path / "r.jsonl") as dropped:
        dropped.add("validate", "answer_not_text", ("a.parquet", 7), "When?", date(2024, 2, 1), "date")
    row = json.loads((tmp_path / "r.jsonl").read_text())
    assert (row["file"], row["row"], row["answer"]) == ("a.parquet", 7, "2024-02-01")
    (tmp_path / "new").touch()
    assert (tmp_path / "r.jsonl").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_a_table_without_its_card_is_no_prepared_folder(tmp_path: Path) -> None:
    """Nor is a card without its table."""
    for name, whole in (("train.parquet", False), ("card.json", True)):
        (tmp_path / name).touch()
        assert is_prepared(tmp_path) is whole


def test_the_last_mark_of_gsm8k_counts() -> None:
    """A solution may have another before it."""
    assert gsm8k_answer("#### 1\nno, #### 1,234") == "1234"


def test_the_grader_is_asked_once_for_each_answer() -> None:
    """Over all batches; what it said of an answer holds for every row that has it."""
    asked: list[str | None] = []

    def check(golds: Sequence[tuple[str | None, Mapping[str, Any]]]) -> list[str | None]:
        asked.extend(answer for answer, _ in golds)
        return ["bad" if answer == "2" else None for answer, _ in golds]

    validator = Validator(check)
    rows = [Raw(problem="What?", answer=n, columns={}, source="s", file="f", number=1) for n in (1, 2, 1)]
    for _ in range(2):
        assert [isinstance(made, Item) for made in validator(rows)] == [True, False, True]
    assert asked == ["1", "2"]


@pytest.mark.parametrize(("length", "good"), [(50_000, True), (50_001, False)])
def test_the_longest_problem(length: int, good: bool) -> None:
    """50,000 characters."""
    raw = Raw(problem="x" * length, answer=1, columns={}, source="s", file="f", number=1)
    assert isinstance(Validator(lambda golds: [None] * len(golds))([raw])[0], Item) is good


# --- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("x₁₂", "x_{12}", True), ("x₁", "x¹", False), ("x²", "x^2", True), ("# Find x", "Find x", True),
        ("f(1234,567)", "f(1234567)", False), ("1,234,567 is", "1234567 is", True), ("0.123,456 is", "0.123456", False),
    ],
)  # fmt: skip
def test_typesetting_of_digits_and_headings(one: str, other: str, same: bool) -> None:
    """Raised and lowered digits, thousands, Markdown."""
    assert (normalise(one) == normalise(other)) is same


def test_one_letter_in_ten_says_the_language() -> None:
    """Of a script that is not Latin."""
    assert (language("求" + "x" * 9), language("求" + "x" * 10)) == ("zh", "en")


# --- likeness -------------------------------------------------------------------------------------


def hits(tested: str, problem: str, **options: Any) -> list[tuple[float, float | None]]:
    """(coverage, similarity) of the hits of a tested problem in a row."""
    found = contamination.Contamination([contamination.Tested(set="t", where="t, row 1", problem=tested)], **options)
    return [(hit.coverage, hit.similarity) for hit in found.hits([problem], near.band_keys([problem]))]


def test_a_tested_problem_of_few_words_is_found_by_likeness() -> None:
    """Where it has no n-gram: as the same normalised text, whatever its words are, or as a near-duplicate."""
    text = " ".join(f"w{chr(97 + n)}" for n in range(26))
    assert hits("Find xy + 2", "find x y+2", similarity=1.0) == [(0.0, 1.0)]
    assert hits(text, text.removesuffix("wz") + "other", n=40) == [(0.0, pytest.approx(23 / 25))]
    assert hits(text, text.removesuffix("wz") + "other", n=40, similarity=0.95) == []


def test_similarity_is_the_share_of_the_union() -> None:
    """Two of four runs of three words."""
    assert near.similarity("a b c d e", "b c d e f") == 0.5


@pytest.mark.parametrize(("threshold", "found"), [(0.5, [(1, [(0, 0.5)])]), (0.51, [])])
def test_the_least_similarity_is_enough(threshold: float, found: list[Any]) -> None:
    """A pair at the threshold counts, one below it does not."""
    texts = ("a b c d e", "b c d e f")
    assert list(near.matches(np.zeros((2, 1), np.uint64), lambda own: {n: texts[n] for n in own}, threshold)) == found


def test_the_likest_comes_first() -> None:
    """And of equally like ones the earliest."""
    texts = ("a b c d e", "b c d e f g h", "a b c d e f g", "a b c d e f g h")
    found = near.matches(np.zeros((4, 1), np.uint64), lambda own: {n: texts[n] for n in own}, 0.6)
    assert [(index, [other for other, _ in alike]) for index, alike in found] == [(2, [1, 0]), (3, [1, 2])]


def test_a_crowd_is_measured_against_its_ends() -> None:
    """Of 200 texts that share a band the last ones find what they are like among the first, and just before them."""
    texts = [f"a{n} b{n} c{n}" for n in range(200)]
    texts[199], texts[198], texts[197] = texts[0], texts[190], texts[100]
    found = near.matches(np.zeros((200, 1), np.uint64), lambda own: {n: texts[n] for n in own}, 0.8)
    assert list(found) == [(198, [(190, 1.0)]), (199, [(0, 1.0)])]


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("(0,\\infty)", "interval"), ("F", "choice"), ("(H)", "choice"), ("50\\%", "percent"), ("x", "expression"),
        ("f(1,2)", "expression"), ("1, x", "list"), ("no solution", "word"),
    ],
)  # fmt: skip
def test_kinds_of_answers(answer: str, kind: str) -> None:
    """By their spelling."""
    assert answer_type(answer) == kind


def test_lengths_count_as_often_as_they_come() -> None:
    """Mean and quantiles are of all lengths, not of the distinct ones."""
    lengths = Lengths()
    lengths.add([1, 1, 1])
    lengths.add([5])
    found = lengths.summary()
    assert (found["mean"], found["p50"], found["p90"], found["max"]) == (2.0, 1, 5, 5)


def test_a_look_at_a_file_counts_its_rows(tmp_path: Path) -> None:
    """Answers may be missing, in a row or in the file; a problem that is no text is counted apart."""
    rows = [{"problem": f"What is {n}?", "answer": "4", "data_source": "sums"} for n in range(8)]
    rows += [{"problem": "Was ist 2?", "answer": "", "data_source": "other"}, {"problem": 3, "answer": None}]
    found = look(jsonl(tmp_path / "a.jsonl", rows), samples=4)
    assert (found.rows, found.unreadable, dict(found.answer_types)) == (10, 1, {"integer": 8, "none": 2})
    assert dict(found.sources) == {"sums": 8, "other": 1, "a": 1}
    assert dict(found.columns) == {"problem": 10, "answer": 10, "data_source": 9}
    assert found.lengths.summary()["max"] == 3
    seeds = [[raw.number for raw in look(str(tmp_path / "a.jsonl"), 4, seed).samples] for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]
    bare = look(jsonl(tmp_path / "b.jsonl", [{"problem": "What is 2?", "text": "2"}]))
    assert (bare.answer_types, bare.samples[0].answer) == ({"none": 1}, None)
