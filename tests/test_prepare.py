"""dapo data prepare: every layout read, every step counted, the same bytes every time."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import helpers_run as helpers
from dapo import curate
from dapo.data.integers import Refusal, Rewrite
from dapo.data.prepare.describe import Lengths
from dapo.data.prepare.near import matches, similarity
from dapo.data.prepare.pipeline import prepare
from dapo.data.prepare.plan import Options, Tools
from dapo.data.prepare.reading import Columns
from dapo.data.prepare.text import language
from dapo.data.prepare.writing import Made
from dapo.data.template import DAPO_WORDING
from dapo.data.wrappers import bare
from dapo.errors import DataError, UserError
from helpers_server import serving

Row = dict[str, Any]


def jsonl(path: Path, rows: list[Any]) -> str:
    """A file of rows; its path."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def tools(**more: Any) -> Tools:
    """Without a grader: every answer but "bad" can be graded, and answers are the same when their text is."""
    plain: Row = {
        "check_answers": lambda golds: ["it is bad" if answer == "bad" else None for answer, _ in golds],
        "same_answers": lambda pairs: [a == b for a, b in pairs],
        "rewrite": lambda problem, answer, language: None,
    }
    return Tools(**(plain | more))


def prepared(out: Path, *sources: str, **options: Any) -> tuple[list[Row], Made]:
    """The rows of a prepared set, and what was made."""
    known = {name: options.pop(name) for name in ("rejects", "overwrite") if name in options}
    with_tools = options.pop("tools", tools())
    made = prepare(Options(sources=sources, **options), with_tools, out, **known)
    return pq.read_table(out / "train.parquet").to_pylist(), made


def steps(made: Made) -> dict[str, dict[str, int]]:
    """Step -> reason -> rows, without steps that dropped nothing."""
    return {step.name: dict(step.dropped) for step in made.steps if step.dropped}


# --- layouts --------------------------------------------------------------------------------------

WORDED = DAPO_WORDING.replace("{{ problem }}", "What is 1 + 1?")
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
LAYOUTS: dict[str, tuple[Row, str]] = {
    "prompt and answer": ({"prompt": "What is 1 + 1?", "answer": "2"}, "2"),
    "a number": ({"question": "What is 1 + 1?", "answer": 2.0}, "2"),
    "problem and solution": ({"problem": "What is 1 + 1?", "solution": "It is \\boxed{1}, no, \\boxed{2}."}, "2"),
    "an answer beside a solution": ({"problem": "What is 1 + 1?", "solution": "\\boxed{9}", "answer": "2"}, "2"),
    "gsm8k": ({"question": "What is 1 + 1?", "answer": "1+1=<<1+1=2>>2\n#### 2,000"}, "2000"),
    "gsm8k's negative": ({"question": "What is 1 + 1?", "answer": "x\n#### -2"}, "-2"),
    "verl": (
        {
            "prompt": [{"role": "user", "content": WORDED}],
            "reward_model": {"ground_truth": "34", "style": "rule"},
            "data_source": "math_dapo",
        },
        "34",
    ),
    "verl with a system turn": (
        {
            "prompt": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": f"What is 1 + 1? {BOXED}"},
            ],
            "reward_model": {"ground_truth": "2"},
        },
        "2",
    ),
    "olympiadbench": ({"question": "What is 1 + 1?", "final_answer": ["2"], "context": None}, "2"),
    "several answers": ({"question": "What is 1 + 1?", "final_answer": ["2", "3"]}, "2, 3"),
    "nemo": ({"problem": "What is 1 + 1?", "expected_answer": "025"}, "025"),
    "chat text": (
        {
            "prompt": f"<|im_start|>user\nWhat is 1 + 1?\n{BOXED}<|im_end|>\n<|im_start|>assistant\n",
            "ground_truth": "2",
        },
        "2",
    ),
    "raw_problem": ({"extra_info": {"raw_problem": "What is 1 + 1?"}, "answer": "2"}, "2"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_layouts_are_recognised(layout: str, kind: str, tmp_path: Path) -> None:
    """The bare problem and its answer come out of each published layout."""
    row, answer = LAYOUTS[layout]
    file = tmp_path / f"set.{kind}"
    if kind == "jsonl":
        jsonl(file, [row])
    else:
        pq.write_table(pa.Table.from_pylist([row]), file)
    rows, _ = prepared(tmp_path / "out", str(file))
    assert [(r["problem"], r["answer"]) for r in rows] == [("What is 1 + 1?", answer)]
    assert rows[0]["data_source"] == row.get("data_source", "set")
    assert (rows[0]["origin"], rows[0]["origin_row"]) == (str(file), 1)


@pytest.mark.parametrize(("ending", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_csv_with_named_columns(ending: str, delimiter: str, tmp_path: Path) -> None:
    """A CSV file of any columns, with a BOM, quotes, commas and line breaks in its values."""
    file = tmp_path / f"own.{ending}"
    with file.open("w", encoding="utf-8-sig", newline="") as handle:
        writer = csv.writer(handle, delimiter=delimiter)
        writer.writerows([["Aufgabe", "Lösung", "level"], ['Was ist "1, 1"\nplus 1?', "\\frac{1}{2}", "5"]])
    rows, _ = prepared(tmp_path / "out", str(file), columns=Columns(prompt="Aufgabe", answer="Lösung"), keep=("level",))
    assert [(r["problem"], r["answer"], r["level"]) for r in rows] == [('Was ist "1, 1"\nplus 1?', "\\frac{1}{2}", "5")]


def test_context_stands_before_the_question(tmp_path: Path) -> None:
    """OlympiadBench keeps what several questions share apart."""
    file = jsonl(tmp_path / "o.jsonl", [{"context": "Let n = 5.", "question": "Find n^2.", "final_answer": ["25"]}])
    rows, _ = prepared(tmp_path / "out", file)
    assert rows[0]["problem"] == "Let n = 5.\n\nFind n^2."


def test_a_generated_source(tmp_path: Path) -> None:
    """reasoning-gym:TASK:SIZE:SEED makes problems, the same every time."""
    pytest.importorskip("reasoning_gym")
    first, made = prepared(tmp_path / "a", "reasoning-gym:chain_sum:30:4")
    again, _ = prepared(tmp_path / "b", "reasoning-gym:chain_sum:30:4")
    assert first == again
    assert made.steps[0].rows_in == 30
    assert first[0]["origin_row"] == 1
    other, _ = prepared(tmp_path / "c", "reasoning-gym:chain_sum:30:0")
    assert other != first


@pytest.mark.parametrize(
    "stored",
    [
        WORDED,
        WORDED.replace("\n\n", "\n"),
        f"What is 1 + 1?\n{BOXED}",
        f"{BOXED}\n\nWhat is 1 + 1?",
        "What is 1 + 1? Let's think step by step and output the final answer within \\boxed{}.",
        'What is 1 + 1? Let\'s think step by step and output the final answer after "####".',
        "Question: What is 1 + 1?\nAnswer:",
        f"<|start_header_id|>user<|end_header_id|>\n\nWhat is 1 + 1?\n{BOXED}<|eot_id|>",
        f"<｜User｜>What is 1 + 1?\n{BOXED}<｜Assistant｜><think>\n",
        "A conversation between User and Assistant. It thinks first.\nUser: What is 1 + 1?\nAssistant: <think>",
        "[INST] What is 1 + 1? [/INST]",
    ],
)
def test_stored_templates_are_taken_off(stored: str) -> None:
    """Known wordings leave the bare problem, and taking off is idempotent."""
    assert bare(stored, "row 1") == "What is 1 + 1?"
    assert bare(bare(stored, "row 1"), "row 1") == "What is 1 + 1?"


@pytest.mark.parametrize(
    "problem",
    [
        "Solve step by step: how many steps has a staircase of 3 m?",
        "Put your answer in the box. Which box holds the answer?",
        "Ann says: Answer: 5. Is she right?",
        "The final answer within \\boxed{} was 5. What was the question?",
        "Please reason step by step.",
        "What does <|im_start|> mean?",
    ],
)
def test_problems_are_left_alone(problem: str) -> None:
    """A problem that speaks of steps or answers is no template."""
    assert bare(problem, "row 1") == problem


# --- validation -----------------------------------------------------------------------------------

BAD: list[tuple[Row, str]] = [
    ({"problem": None, "answer": "1"}, "problem_missing"),
    ({"answer": "1"}, "problem_missing"),
    ({"problem": 5, "answer": "1"}, "problem_not_text"),
    (
        {"problem": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "answer": "1"},
        "problem_not_text",
    ),
    ({"problem": " $?$ ", "answer": "1"}, "problem_without_words"),
    ({"problem": "x" * 50_001, "answer": "1"}, "problem_too_long"),
    ({"problem": "See ![](http://x/y.png) and find x.", "answer": "1"}, "problem_needs_an_image"),
    ({"problem": "half a pair \ud800", "answer": "1"}, "text_not_unicode"),
    ({"problem": "nothing", "answer": None}, "answer_missing"),
    ({"problem": "blank", "answer": "  "}, "answer_missing"),
    ({"problem": "true", "answer": True}, "answer_not_text"),
    ({"problem": "table", "answer": {"a": 1}}, "answer_not_text"),
    ({"problem": "artefact", "answer": 0.30000000000000004}, "answer_over_16_digits"),
    ({"problem": "long", "answer": "12345678901234567"}, "answer_over_16_digits"),
    ({"problem": "the grader", "answer": "bad"}, "answer_unusable"),
]


def test_every_reason_has_a_count_and_its_rows(tmp_path: Path) -> None:
    """Each unusable row is counted under its reason and stands in the rejects."""
    good = {"problem": "What is 1234567890123456 + 0?", "answer": "1234567890123456"}
    file = tmp_path / "bad.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [good, *(row for row, _ in BAD)]))
    rows, made = prepared(tmp_path / "out", str(file), rejects=tmp_path / "rejects.jsonl")
    assert [row["answer"] for row in rows] == ["1234567890123456"]
    wanted: dict[str, int] = {}
    for _, reason in BAD:
        wanted[reason] = wanted.get(reason, 0) + 1
    assert steps(made) == {"validate": wanted}
    lines = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_bytes().splitlines()]
    assert [(line["reason"], line["row"]) for line in lines] == [(reason, i) for i, (_, reason) in enumerate(BAD, 2)]


def test_kept_columns_and_lists_of_answers_are_checked(tmp_path: Path) -> None:
    """Half a character in a kept column, or a truth value among the answers, drops the row and is counted."""
    file = tmp_path / "a.jsonl"
    bad = [{"problem": "Is it?", "answer": [True, 1], "k": "a"}, {"problem": "Is 1?", "answer": 1, "k": "\ud800"}]
    good = {"problem": "What are 1 and 2?", "answer": [1, 2], "k": "a"}
    file.write_text("".join(json.dumps(row) + "\n" for row in [*bad, good]))
    kept, made = prepared(tmp_path / "out", str(file), keep=("k",))
    assert [(row["answer"], row["k"]) for row in kept] == [("1, 2", "a")]
    assert steps(made) == {"validate": {"answer_missing": 1, "text_not_unicode": 1}}


def test_the_grader_says_which_answers_can_be_graded(tmp_path: Path) -> None:
    """The command's own check is the grader's: a placeholder and a division by zero are no golds."""
    rows = [{"problem": f"Problem {a}?", "answer": a} for a in ("12", "N/A", "1/0", "\\frac{1}{2}")]
    code, out, err = helpers.quiet_dapo(
        "data", "prepare", jsonl(tmp_path / "a.jsonl", rows), "-o", tmp_path / "out", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["steps"][1]["dropped"] == {"answer_unusable": 2}


def test_a_source_without_a_usable_row_is_refused(tmp_path: Path) -> None:
    """Nothing is written, and the reasons are named."""
    file = jsonl(tmp_path / "a.jsonl", [{"problem": 1, "answer": "1"}, {"problem": "x", "answer": None}])
    with pytest.raises(DataError, match=r"none of its 2 rows can be used: problem_not_text 1, answer_missing 1"):
        prepared(tmp_path / "out", file)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


# --- duplicates, conflicts ------------------------------------------------------------------------


def test_duplicates_and_conflicts_are_counted_by_kind(tmp_path: Path) -> None:
    """Exact and normalised duplicates, and problems with two answers, which are dropped whole."""
    rows = [
        {"problem": "Find $x^8 + 98 x^4 + 1$ at 1.", "answer": "100"},
        {"problem": "Find $x^8 + 98 x^4 + 1$ at 1.", "answer": "100"},
        {"problem": "find \\(x^8+98x^4+1\\) at 1", "answer": "100"},
        {"problem": "Find $x^8 - 98 x^4 + 1$ at 1.", "answer": "-96"},
        {"problem": "How many?", "answer": "1"},
        {"problem": "How many?", "answer": "2"},
        {"problem": "how MANY ?", "answer": "3"},
    ]
    file, rejects = jsonl(tmp_path / "a.jsonl", rows), tmp_path / "rejects.jsonl"
    kept, made = prepared(tmp_path / "out", file, near_duplicates=False, rejects=rejects)
    assert [row["answer"] for row in kept] == ["100", "-96"]
    said = [json.loads(line)["detail"] for line in rejects.read_text().splitlines()]
    assert [(one["repeats_problem"], one["other_answer"]) for one in said if "repeats_problem" in one] == [
        (0, False), (0, False), (2, True), (2, True),
    ]  # fmt: skip
    assert steps(made) == {
        "exact_duplicates": {"exact_duplicate": 2},
        "normalised_duplicates": {"normalised_duplicate": 2},
        "conflicts": {"conflicting_answers": 1},
    }
    assert made.card["conflicts"] == [{"row": f"{tmp_path}/a.jsonl, row 5", "answers": ["1", "2", "3"]}]
    assert made.card["duplicates"]["of_them_with_the_very_same_text"] == 1
    first, _ = prepared(tmp_path / "first", str(tmp_path / "a.jsonl"), near_duplicates=False, conflicts="first")
    assert [row["answer"] for row in first] == ["100", "-96", "1"]


def test_equal_answers_in_two_spellings_are_no_conflict(tmp_path: Path) -> None:
    """The grader decides: 0.5 and 1/2 answer the same problem."""
    rows = [{"problem": "Half of one?", "answer": a} for a in ("0.5", "\\frac12", "1/2")]
    same = tools(same_answers=lambda pairs: [True for _ in pairs])
    kept, made = prepared(tmp_path / "out", jsonl(tmp_path / "a.jsonl", rows), tools=same)
    assert [row["answer"] for row in kept] == ["0.5"]
    assert "conflicts" not in steps(made)


def test_near_duplicates_keep_numbers_signs_and_answers(tmp_path: Path) -> None:
    """Nearly the same words are one problem only with the same numbers, signs and answer; others are listed."""
    text = (
        "A farmer has 12 cows and {} sheep in the big field by the river, {} of them are black. How many are not black?"
    )
    rows = [
        {"problem": text.format(20, 5), "answer": "27"},
        {"problem": text.format(20, 5).replace("the big", "the very big"), "answer": "27"},
        {"problem": text.format(21, 5), "answer": "28"},
        {"problem": text.format(20, 5).replace("How many", "So how many"), "answer": "3"},
    ]
    kept, made = prepared(tmp_path / "out", jsonl(tmp_path / "a.jsonl", rows))
    assert [row["answer"] for row in kept] == ["27", "28", "3"]
    assert steps(made) == {"near_duplicates": {"near_duplicate": 1}}
    (listed,) = made.card["near_duplicates_with_other_answers"]
    assert (listed["row"].rpartition(", ")[2], listed["like"].rpartition(", ")[2]) == ("row 4", "row 1")
    assert listed["answers"] == ["3", "27"]
    assert len(prepared(tmp_path / "all", str(tmp_path / "a.jsonl"), near_duplicates=False)[0]) == 4


@pytest.mark.parametrize(("similarity", "left"), [(0.5, 1), (0.9, 2)])
def test_the_option_says_what_near_is(similarity: float, left: int, tmp_path: Path) -> None:
    """Two texts with seven of nine runs of three words in common."""
    rows = [{"problem": f"a b c d e f g h i {end}", "answer": "1"} for end in ("j", "k")]
    assert len(prepared(tmp_path / "out", jsonl(tmp_path / "a.jsonl", rows), similarity=similarity)[0]) == left


def test_a_row_that_is_gone_is_not_looked_at_again(tmp_path: Path) -> None:
    """A problem with two answers is dropped as that, and is then no hit, and like no other row."""
    text = "find the sum of all the numbers that are not on the long list that stands here below"
    rows = [{"problem": text, "answer": "1"}, {"problem": text, "answer": "2"}, {"problem": f"{text} o", "answer": "1"}]
    rows.append({"problem": "quite another", "answer": "3"})
    against = jsonl(tmp_path / "tests.jsonl", [{"problem": text}])
    file = jsonl(tmp_path / "a.jsonl", rows)
    kept, made = prepared(tmp_path / "out", file, against=(against,))
    assert ([row["answer"] for row in kept], steps(made)) == (
        ["3"], {"exact_duplicates": {"exact_duplicate": 1}, "conflicts": {"conflicting_answers": 1},
             "decontaminate": {"contaminated": 1}},
    )  # fmt: skip
    assert [hit["row"] for hit in made.card["decontamination"]["hits"]] == [f"{file}, row 3"]


# --- evaluation sets ------------------------------------------------------------------------------


def test_evaluation_problems_are_taken_out_and_listed(tmp_path: Path) -> None:
    """A problem that stands in a longer row, and a short one, are found; shared boilerplate is not."""
    whole = "Let a and b be the legs of a right triangle with hypotenuse 25 and area 84 and find the sum of the legs"
    boiler = "where m and n are relatively prime positive integers find the value of the sum m + n and give it here"
    tests = [
        {"problem": f"{whole}."},
        {"problem": "Find 7 times 8."},
        {"problem": f"{' '.join(f'thing{n} then' for n in range(20))} {boiler}"},
    ]
    rows = [
        {"problem": f"Read this first. {whole}. Then double it and add the number of vertices.", "answer": "65"},
        {"problem": "find $7$ times $8$", "answer": "56"},
        {"problem": f"The chance is m/n {boiler}", "answer": "5"},
    ]
    against = jsonl(tmp_path / "tests.jsonl", tests)
    kept, made = prepared(tmp_path / "out", jsonl(tmp_path / "a.jsonl", rows), against=(against,))
    assert [row["answer"] for row in kept] == ["5"]
    assert steps(made) == {"decontaminate": {"contaminated": 2}}
    found = made.card["decontamination"]
    assert [(hit["problem"].rpartition(" ")[2], hit["row"].rpartition(" ")[2]) for hit in found["hits"]] == [
        ("1", "1"), ("2", "2"),
    ]  # fmt: skip
    assert found["hits"][0]["coverage"] == 1.0
    assert found["sets"][0]["problems_found"] == 2


def test_a_named_set_is_looked_for_in_its_folder(tmp_path: Path) -> None:
    """data_dir holds it; nothing is fetched."""
    jsonl(tmp_path / "aime24.jsonl", [{"problem": "Find 7 times 8.", "answer": "56"}])
    file = jsonl(tmp_path / "a.jsonl", [{"problem": f"Find 7 times {n}.", "answer": f"{7 * n}"} for n in (8, 9)])
    kept, made = prepared(tmp_path / "out", file, against=("aime24",), data_dir=str(tmp_path))
    assert [row["answer"] for row in kept] == ["63"]
    assert [(one["set"], one["problems"]) for one in made.card["decontamination"]["sets"]] == [("aime24", 1)]


# --- integer answers ------------------------------------------------------------------------------


def rewriting(problem: str, answer: str, language: str) -> Rewrite | Refusal | None:
    """Halves become 3, integers stay, all else is refused."""
    if answer == "1/2":
        return Rewrite(problem=f"{problem} Give m + n.", answer="3", form="fraction", proof={"m": 1, "n": 2})
    return None if answer.lstrip("0").isdigit() else Refusal(reason="interval")


def test_integer_answers_keep_the_original(tmp_path: Path) -> None:
    """A rewritten row has problem, answer, form and proof of before; the others stay, or go with a reason."""
    rows = [
        {"problem": f"Problem {letter}?", "answer": a} for letter, a in zip("abc", ("1/2", "025", "(0,1)"), strict=True)
    ]
    file = jsonl(tmp_path / "a.jsonl", rows)
    kept, made = prepared(tmp_path / "out", file, integers="rewrite", tools=tools(rewrite=rewriting))
    assert [(row["problem"], row["answer"]) for row in kept] == [
        ("Problem a? Give m + n.", "3"), ("Problem b?", "25"), ("Problem c?", "(0,1)"),
    ]  # fmt: skip
    first = kept[0]
    assert (first["original_problem"], first["original_answer"], first["integer_form"]) == (
        "Problem a?",
        "1/2",
        "fraction",
    )
    assert json.loads(first["integer_proof"]) == {"m": 1, "n": 2}
    assert made.card["integer_answers"] == {
        "share_before": 0.3333, "share_after": 0.6667, "mode": "rewrite", "rewritten": {"fraction": 1},
        "refused": {"interval": 1}, "ratings_taken_off": 0,
    }  # fmt: skip
    assert pq.read_table(tmp_path / "out" / "originals.parquet").to_pylist() == [
        {"problem": "Problem a?", "answer": "1/2"}
    ]
    assert "integers" not in [step.name for step in made.steps]
    assert first["id"] == hashlib.sha256(b"Problem a? Give m + n.").hexdigest()[:32]
    again, _ = prepared(tmp_path / "again", str(tmp_path / "out"))
    assert again == kept
    assert (tmp_path / "again" / "originals.parquet").is_file()
    only, made = prepared(tmp_path / "only", file, integers="only", tools=tools(rewrite=rewriting))
    assert [row["answer"] for row in only] == ["3", "25"]
    assert steps(made) == {"integers": {"interval": 1}}
    off, _ = prepared(tmp_path / "off", file)
    assert [row["answer"] for row in off] == ["1/2", "025", "(0,1)"]
    assert not (tmp_path / "off" / "originals.parquet").exists()


BEFORE = {"problem": "Problem a?", "answer": "1/2"}


@pytest.mark.parametrize("raw_first", [False, True])
@pytest.mark.parametrize("mode", ["off", "rewrite"])
def test_a_rewritten_problem_and_the_raw_one_are_one(tmp_path: Path, mode: str, raw_first: bool) -> None:
    """A set with integer answers beside its source: nothing twice, no conflict between 1/2 and the 3 made of it."""
    raw, same = jsonl(tmp_path / "a.jsonl", [BEFORE]), tools(rewrite=rewriting)
    prepared(tmp_path / "set", raw, integers="rewrite", tools=same)
    sources = [str(tmp_path / "set"), raw]
    both, made = prepared(tmp_path / "out", *sources[:: -1 if raw_first else 1], integers=mode, tools=same)
    assert [row["answer"] for row in both] == ["1/2" if (mode, raw_first) == ("off", True) else "3"]
    assert (steps(made)["exact_duplicates"], made.card["conflicts"]) == ({"exact_duplicate": 1}, [])
    copy = {"problem": "Problem a? Give m + n.", "answer": "3"}
    once, _ = prepared(tmp_path / "copy", sources[0], jsonl(tmp_path / "c.jsonl", [copy]), tools=same)
    assert [row["answer"] for row in once] == ["3"]
    other = jsonl(tmp_path / "b.jsonl", [{"problem": "Problem a?", "answer": "1/5"}, {"problem": "b?", "answer": "1"}])
    left, made = prepared(tmp_path / "conflict", sources[0], other, tools=same)
    assert [row["problem"] for row in left] == ["b?"]
    assert made.card["conflicts"][0]["answers"] == ["1/2", "1/5"]


@pytest.mark.parametrize("tested", ["Problem a?", "Problem a? Give m + n."])
def test_a_rewritten_problem_is_found_by_the_one_before(tmp_path: Path, tested: str) -> None:
    """Either text in an evaluation set takes the row out, once."""
    rows = [BEFORE, {"problem": "Something else?", "answer": "1"}]
    prepared(tmp_path / "set", jsonl(tmp_path / "a.jsonl", rows), integers="rewrite", tools=tools(rewrite=rewriting))
    against = jsonl(tmp_path / "t.jsonl", [{"problem": tested}])
    left, made = prepared(tmp_path / "out", str(tmp_path / "set"), against=(against,))
    assert [row["problem"] for row in left] == ["Something else?"]
    assert len(made.card["decontamination"]["hits"]) == 1


def test_a_rewritten_problem_loses_its_pass_rate(tmp_path: Path) -> None:
    """It was the rate of the problem before; rows that stay as they were keep theirs, and so does a second pass."""
    rates = {"pass_rate": 0.5, "pass_right": 2, "pass_responses": 4}
    rows = [BEFORE | rates, {"problem": "Problem b?", "answer": "3"} | rates]
    same = tools(rewrite=rewriting)
    kept, made = prepared(tmp_path / "a", jsonl(tmp_path / "a.jsonl", rows), integers="rewrite", tools=same)
    assert [[row[name] for name in rates] for row in kept] == [[None] * 3, [0.5, 2, 4]]
    assert made.card["integer_answers"]["ratings_taken_off"] == 1
    again, _ = prepared(tmp_path / "b", str(tmp_path / "a"), integers="rewrite", tools=same)
    assert again == kept


def test_a_prepared_set_hands_on_its_licences(tmp_path: Path) -> None:
    """Those of its sources, each once, where all are known; what the user says goes first."""
    names = [jsonl(tmp_path / f"{n}.jsonl", [{"problem": f"Problem {n}?", "answer": "1"}]) for n in "abc"]
    known = {names[0]: "MIT", names[1]: "MIT", names[2]: "CC0"}
    prepared(tmp_path / "x", *names, licences=known)
    prepared(tmp_path / "y", *names, licences={names[0]: "MIT"})
    found = [prepared(tmp_path / f"{n}2", str(tmp_path / n))[1].card["sources"][0]["licence"] for n in "xy"]
    assert found == ["MIT, CC0", None]
    own = {str(tmp_path / "x"): "mine"}
    assert prepared(tmp_path / "z", str(tmp_path / "x"), licences=own)[1].card["sources"][0]["licence"] == "mine"


# --- what is written ------------------------------------------------------------------------------


def files(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def mixed(path: Path) -> str:
    """A file that every step finds something in."""
    rows: list[Row] = [
        {"problem": f"What is {n} plus {n % 7}?", "answer": str(n + n % 7), "level": n % 5} for n in range(60)
    ]
    rows += [*rows[:9], {"problem": rows[3]["problem"].upper(), "answer": rows[3]["answer"], "level": 1.5}]
    return jsonl(path, [*rows, {"problem": rows[0]["problem"], "answer": "99", "level": None}, {"problem": None}])


def test_the_card_digests_the_content_and_counts_its_tokens(tmp_path: Path) -> None:
    """A line of JSON for each problem and answer; the tokens of every problem."""
    rows = [{"problem": f"What is {'1 ' * n}?", "answer": str(n)} for n in range(1, 4)]
    tokens = {"count_tokens": lambda texts: [len(text) for text in texts], "tokenizer": "letters"}
    kept, made = prepared(tmp_path / "out", jsonl(tmp_path / "a.jsonl", rows), tools=tools(**tokens))
    lines = [json.dumps([row["problem"], row["answer"]]) + "\n" for row in kept]
    assert made.card["content_sha256"] == hashlib.sha256("".join(lines).encode()).hexdigest()
    told = made.card["problem_tokens"]
    assert (told["tokenizer"], told["mean"], sum(told["histogram"].values())) == ("letters", 13.0, 3)


def test_with_grader_and_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command does it: answers are compared by value, tokens are the text's own, each step is told of."""

    def tokenizer(texts: list[str], add_special_tokens: bool = True) -> Row:
        return {"input_ids": [[0] * (len(text) + add_special_tokens) for text in texts]}

    monkeypatch.setattr("dapo.model.loading.load_tokenizer", lambda model: tokenizer)
    rows = [{"problem": "What is 1/2?", "answer": a} for a in ("0.5", "\\frac{1}{2}")]
    said: list[str] = []
    file = jsonl(tmp_path / "a.jsonl", rows)
    made = curate.run(Options(sources=(file,)), tmp_path / "out", tokenizer="a", say=said.append)
    assert steps(made) == {"exact_duplicates": {"exact_duplicate": 1}}
    assert (made.card["conflicts"], made.card["problem_tokens"]["max"]) == ([], 12)
    assert said[0] == f"{file}: 2 rows, 1 distinct problems so far"


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """Table and card do not depend on the time, the place, or who runs it."""
    file = mixed(tmp_path / "a.jsonl")
    tests = jsonl(tmp_path / "t.jsonl", [{"problem": "What is 8 plus 1?"}])
    for name in ("x", "y"):
        prepared(tmp_path / name, file, against=(tests,))
    assert files(tmp_path / "x") == files(tmp_path / "y")


def test_every_row_is_accounted_for(tmp_path: Path) -> None:
    """Steps form a chain from the rows read to the rows written; the rejects are all that is between."""
    rows, made = prepared(tmp_path / "out", mixed(tmp_path / "a.jsonl"), rejects=tmp_path / "r.jsonl")
    assert made.steps[0].rows_in == 72
    for before, after in zip(made.steps, made.steps[1:], strict=False):
        assert before.rows_out == after.rows_in
    assert made.steps[-1].rows_out == made.card["rows"] == len(rows)
    rejected = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert len(rejected) == 72 - len(rows)
    for step in made.steps:
        assert sum(line["step"] == step.name for line in rejected) == step.dropped.total()


def test_a_prepared_set_prepared_again_is_the_same(tmp_path: Path) -> None:
    """Rows, origins, kept columns and the content hash come through."""
    file = mixed(tmp_path / "a.jsonl")
    sources = [
        {"problem": f"What is {n} plus {n % 7}?", "answer": str(n + n % 7), "level": n / 2, "tags": [n]}
        for n in range(9)
    ]
    first, made = prepared(tmp_path / "x", jsonl(tmp_path / "b.jsonl", sources), keep=("level", "tags"))
    again, remade = prepared(tmp_path / "y", str(tmp_path / "x"))
    assert first == again
    assert (first[3]["level"], first[3]["tags"], first[3]["origin_row"]) == (1.5, "[3]", 4)
    assert made.card["content_sha256"] == remade.card["content_sha256"]
    assert remade.card["sources"][0]["kind"] == "prepared"
    both, _ = prepared(tmp_path / "z", str(tmp_path / "x"), file)
    assert len(both) > len(first)


def test_what_stands_at_the_place_is_not_lost(tmp_path: Path) -> None:
    """An existing folder is refused; --overwrite replaces prepared folders alone, and a failure keeps the old."""
    file = mixed(tmp_path / "a.jsonl")
    prepared(tmp_path / "out", file)
    before = files(tmp_path / "out")
    with pytest.raises(UserError, match="it exists"):
        prepared(tmp_path / "out", file)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="not only a prepared set"):
        prepared(tmp_path / "mine", file, overwrite=True)
    with pytest.raises(DataError):
        prepared(tmp_path / "out", str(tmp_path / "none.jsonl"), overwrite=True)
    assert files(tmp_path / "out") == before
    prepared(tmp_path / "out", file, overwrite=True, max_rows=5)
    assert len(pq.read_table(tmp_path / "out" / "train.parquet")) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "mine", "out"]


def test_columns_keep_their_values_over_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratings come along unasked; integers among floats become floats, however large; no row is written twice."""
    monkeypatch.setattr("dapo.data.prepare.output.GROUP", 2)
    rows = [{"problem": f"What is {n}?", "answer": n, "size": 2.0**n if n % 2 else 2**60 + 1} for n in range(5)]
    rows[3] |= {"pass_rate": 0.25, "pass_right": 1}
    rows = [row | {"even": row["answer"] % 2 == 0} for row in rows]
    kept, _ = prepared(tmp_path / "out", jsonl(tmp_path / "a.jsonl", rows), keep=("size", "even"))
    assert [row["even"] for row in kept] == [True, False, True, False, True]
    assert [row["origin_row"] for row in kept] == [1, 2, 3, 4, 5]
    assert [row["size"] for row in kept] == [2.0**60, 2.0, 2.0**60, 8.0, 2.0**60]
    assert [(row["pass_rate"], row["pass_right"]) for row in kept[2:4]] == [(None, None), (0.25, 1)]


@pytest.mark.parametrize("name", ["coverage", "similarity"])
@pytest.mark.parametrize("share", [0.0, 1.001, float("nan")])
def test_shares_above_0_and_at_most_1(name: str, share: float, tmp_path: Path) -> None:
    """0 would find everything."""
    file = jsonl(tmp_path / "a.jsonl", [{"problem": "What is 1?", "answer": "1"}])
    with pytest.raises(UserError, match=f"--{name}"):
        prepared(tmp_path / "out", file, **{name: share})
    assert len(prepared(tmp_path / "out", file, **{name: 1.0})[0]) == 1


def test_a_column_that_a_row_lacks_is_named(tmp_path: Path) -> None:
    """--keep is checked on every row, and can't hide a column of the prepared table."""
    file = jsonl(tmp_path / "a.jsonl", [{"problem": "a b?", "answer": "1", "x": 1}, {"problem": "c d?", "answer": "2"}])
    with pytest.raises(DataError, match=r"row 2: no column x \(--keep\)"):
        prepared(tmp_path / "out", file, keep=("x",))
    with pytest.raises(DataError, match="--keep origin"):
        prepared(tmp_path / "out", file, keep=("origin",))


def test_lengths() -> None:
    """Mean, quantiles and bars of 1 to 100, by hand."""
    lengths = Lengths()
    lengths.add(list(range(1, 101)))
    found = lengths.summary()
    assert (found["mean"], found["p50"], found["p90"], found["p99"], found["max"]) == (50.5, 50, 90, 99, 100)
    assert {edge: n for edge, n in found["histogram"].items() if n} == {"0": 15, "16": 16, "32": 32, "64": 37}
    assert Lengths().summary() == {}


def test_a_card_says_what_its_sources_were_held_against(tmp_path: Path) -> None:
    """Preparing a prepared set again does not forget its evaluation sets."""
    tests = jsonl(tmp_path / "t.jsonl", [{"problem": "What is 8 plus 1?"}])
    prepared(tmp_path / "x", mixed(tmp_path / "a.jsonl"), against=(tests,))
    _, made = prepared(tmp_path / "y", str(tmp_path / "x"))
    assert [held["set"] for held in made.card["sources"][0]["held_against"]] == [tests]
    assert made.card["decontamination"] is None


def test_originals_of_a_prepared_evaluation_set_are_held_against(tmp_path: Path) -> None:
    """What was made an integer is looked for as it was published."""
    rows = [{"problem": "What is half of the number that is one?", "answer": "1/2"}]
    prepared(tmp_path / "tests", jsonl(tmp_path / "t.jsonl", rows), integers="rewrite", tools=tools(rewrite=rewriting))
    more = [*rows, {"problem": "Another one?", "answer": "1"}]
    kept, _ = prepared(tmp_path / "out", jsonl(tmp_path / "a.jsonl", more), against=(str(tmp_path / "tests"),))
    assert [row["problem"] for row in kept] == ["Another one?"]


def test_a_set_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    """The reasons are named, and nothing is written."""
    file = jsonl(
        tmp_path / "a.jsonl", [{"problem": "How many?", "answer": "1"}, {"problem": "How many?", "answer": "2"}]
    )
    with pytest.raises(DataError, match="nothing is left of 2 rows: exact_duplicate 1, conflicting_answers 1"):
        prepared(tmp_path / "out", file)
    assert not (tmp_path / "out").exists()


# --- templates that nobody knows, and a model that words rewrites ---------------------------------


def test_an_unknown_template_is_told_of_and_taken_off(tmp_path: Path) -> None:
    """Words that many problems share are named; --template takes them off, and is refused where none has it."""
    before, after = "You are a careful solver of sums, so begin now: ", " State the result as a numeral and stop there."
    rows = [{"problem": f"{before}What is {n} plus {n * n}?{after}", "answer": str(n + n * n)} for n in range(30)]
    file = jsonl(tmp_path / "a.jsonl", rows)
    _, made = prepared(tmp_path / "out", file)
    shared = made.card["sources"][0]["shared_text"]
    assert [(found["place"], found["share"]) for found in shared] == [("begin", 1.0), ("end", 1.0)]
    assert after.endswith(shared[1]["text"])
    template = f"{before}{{{{ problem }}}}{after}"
    kept, made = prepared(tmp_path / "bare", file, template=template)
    assert kept[2]["problem"] == "What is 2 plus 4?"
    assert (made.card["sources"][0]["template_rows"], made.card["sources"][0]["shared_text"]) == (30, [])
    with pytest.raises(DataError, match="no problem stands in the --template"):
        prepared(tmp_path / "none", file, template="Solve: {{ problem }}")
    with pytest.raises(DataError, match="write it with one"):
        prepared(tmp_path / "none", file, template="Solve:")
    rows = [{"problem": text, "answer": "1"} for text in ("Solve 2. Now.", "Solve  Now.", "Solve Now.")]
    kept, made = prepared(tmp_path / "few", jsonl(tmp_path / "b.jsonl", rows), template="\n Solve {{problem}} Now.\n")
    assert [row["problem"] for row in kept] == ["2.", "Solve  Now."]


def test_rejects_may_stand_in_the_prepared_folder(tmp_path: Path) -> None:
    """They are written aside with it, and appear with it."""
    rows, _ = prepared(tmp_path / "out", mixed(tmp_path / "a.jsonl"), rejects=tmp_path / "out" / "rejects.jsonl")
    assert sorted(files(tmp_path / "out")) == ["card.json", "rejects.jsonl", "train.parquet"]
    assert len((tmp_path / "out" / "rejects.jsonl").read_text().splitlines()) == 72 - len(rows)


def wording(wrong: bool) -> str:
    """A model's reply: e^(m/n), and where it is wrong with a parameter that is not right."""
    return json.dumps(
        {
            "sentence": "The answer is $e^{\\frac{m}{n}}$ with positive integers $m$, $n$ that have no common factor. "
            "Give $m+n$.",
            "form": "e^{\\frac{m}{n}}",
            "parameters": {"m": 3, "n": 4 if wrong else 2},
            "target": "m+n",
        }
    )


@pytest.mark.parametrize("wrong", [False, True])
def test_a_model_may_word_what_no_rule_can(wrong: bool, tmp_path: Path) -> None:
    """--rewriter llm asks a server where the rule refuses, and its reply has to pass the same checks."""
    file = jsonl(tmp_path / "a.jsonl", [{"problem": "What is the limit?", "answer": "e^{\\frac{3}{2}}"}])
    with serving(lambda body: wording(wrong)) as server:
        code, _, err = helpers.quiet_dapo(
            "data", "prepare", file, "-o", tmp_path / "out", "--integers", "rewrite", "--rewriter", "llm",
            "--endpoint", server, "--model", "m",
        )  # fmt: skip
    assert code == 0, err
    (row,) = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert (row["answer"], row["integer_form"]) == (("e^{\\frac{3}{2}}", None) if wrong else ("5", "llm"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--endpoint", "http://x/v1"], "--endpoint is for --rewriter llm"),
        (["--rewriter", "llm"], "add --integers rewrite"),
        (["--rewriter", "llm", "--integers", "only"], "needs --endpoint URL and --model NAME"),
        (["--licence", "b.jsonl=mit"], "write SOURCE=TEXT with one of"),
        (["--against", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--data-dir", "nowhere", "--against", "aime24"], "nowhere: no such folder"),
        (["--tokenizer", "nowhere/at/all"], "nowhere/at/all"),
        (["--coverage", "0"], "--coverage"),
        (["--rejects", "/proc/x/y"], "--rejects /proc/x/y: can't be written"),
    ],
)
def test_mistakes_on_the_command_line(words: list[str], said: str, tmp_path: Path) -> None:
    """One line, exit code 2, and nothing written."""
    file = jsonl(tmp_path / "a.jsonl", [{"problem": "What is it?", "answer": "1"}])
    code, _, err = helpers.quiet_dapo("data", "prepare", file, "-o", tmp_path / "out", *words)
    assert code == 2, err
    assert said in err.strip().splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


# --- edges ----------------------------------------------------------------------------------------


def test_a_similarity_of_just_the_threshold_is_one(tmp_path: Path) -> None:
    """Two of three runs in common, at a threshold of 2/3; a little above it they are two problems."""
    rows = [
        {"problem": "alpha beta gamma delta", "answer": "1"},
        {"problem": "alpha beta gamma delta kappa", "answer": "1"},
    ]
    file = jsonl(tmp_path / "a.jsonl", rows)
    assert similarity(rows[0]["problem"], rows[1]["problem"]) == 2 / 3
    keys = np.zeros((2, 1), np.uint64)  # as if they shared a band
    texts = {index: row["problem"] for index, row in enumerate(rows)}
    assert list(matches(keys, lambda wanted: texts, 2 / 3)) == [(1, [(0, 2 / 3)])]
    assert not list(matches(keys, lambda wanted: texts, 0.67))
    assert len(prepared(tmp_path / "out", file, similarity=0.67)[0]) == 2


def test_one_letter_in_ten_tells_the_script() -> None:
    """Formulas are Latin in every language."""
    assert language("求" + "x" * 9) == "zh"
    assert language("求" + "x" * 10) == "en"


def test_the_longest_problem_and_the_largest_integers(tmp_path: Path) -> None:
    """50,000 characters are kept; a kept column is whole numbers up to 64 bits, and JSON beyond."""
    rows = [
        {"problem": "x" * 50_000, "answer": "1", "small": 2**63 - 1, "big": 2**63},
        {"problem": "What else?", "answer": "2", "small": -(2**63), "big": 1},
    ]
    kept, _ = prepared(tmp_path / "out", jsonl(tmp_path / "a.jsonl", rows), keep=("small", "big"))
    assert [(row["small"], row["big"]) for row in kept] == [(2**63 - 1, str(2**63)), (-(2**63), "1")]


# --- real files -----------------------------------------------------------------------------------

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not there")
@pytest.mark.slow
def test_dapo_math_17k(tmp_path: Path) -> None:
    """The counts of the published set: near those measured by other means (REFERENCE, section 4)."""
    against = f"aime24,aime25,math500,{SHARED}/amc/ttrl_amc_test.json,olympiad"
    out = helpers.quiet_dapo(
        "data", "prepare", SHARED / "dapo17k" / "dapo_math_17k.parquet", "-o", tmp_path / "out", "--data-dir", SHARED,
        "--against", against, "--json",
    )  # fmt: skip
    assert out[0] == 0, out[2]
    card = json.loads(out[1])
    dropped = {reason: n for step in card["steps"] for reason, n in step["dropped"].items()}
    assert (card["steps"][0]["rows_in"], dropped["answer_over_16_digits"]) == (17_917, 5)
    # 17,290 texts as stored; 17,255 without the blanks around them; 13 rows can't be used.
    assert card["duplicates"]["distinct_texts"] == 17_255 - 13
    # 11 as stored; one more pair differs in blanks around the text.
    assert card["duplicates"]["of_them_with_the_very_same_text"] == 12
    # Letters and digits alone leave 16,318 of all 17,290: fewer and more are merged here, and signs are kept.
    assert abs(card["steps"][3]["rows_out"] - 16_318) < 120
    found = [held["problems_found"] for held in card["decontamination"]["sets"]]
    assert found[:3] == [0, 0, 24]  # as measured by others, with 48 and 58 for the next two
    assert 48 <= found[3] <= 50
    assert 58 <= found[4] <= 70
