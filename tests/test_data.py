"""Data: three kinds of source into checked, distinct problems; every mistake named with file, row and mend."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import tiny
from dapo.config import Config, SourceConfig, load_config
from dapo.data import CheckedData, LoadedData, check_data, check_evaluation, tokenise_data, tokenise_evaluation
from dapo.data.prompts import Problem, content_id
from dapo.data.sources import read_rows
from dapo.data.template import Wording
from dapo.errors import ConfigError, DataError
from dapo.reward import Grader

GRADER = Grader(("answer_line",))


def GOLD(golds: Any, grading: str = "") -> list[str | None]:
    """What the scorer passes for the built-in grader."""
    return GRADER.check_golds([answer or "" for answer, _ in golds])


Line = Mapping[str, Any] | str | bytes


def jsonl(path: Path, *lines: Line) -> str:
    """A JSONL file of rows; texts and bytes stand as they are."""
    encoded = [
        line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in lines
    ]
    path.write_bytes(b"\n".join(encoded) + b"\n")
    return str(path)


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Distinct problems."""
    return [{"prompt": f"what is {i} + 1", "answer": str(i + 1)} for i in range(start, start + count)]


def config(source: Any, *layers: Mapping[str, Any]) -> Config:
    """A config over a source, with steps small enough for small files."""
    base = {"model.path": "m", "data.source": source, "sampling.prompts_per_step": 1, "train.updates_per_step": 1}
    return load_config(base, *layers)


def checked(source: Any, *layers: Mapping[str, Any]) -> CheckedData:
    """The checked data of a source, with the built-in grader's check of golds."""
    return check_data(config(source, *layers), GOLD)


def evaluated(data: CheckedData) -> list[Problem]:
    """The problems of every evaluation set."""
    return [problem for problems in data.evaluation.values() for problem in problems]


def loaded(source: Any, *layers: Mapping[str, Any]) -> LoadedData:
    """Checked and tokenised by the tiny tokenizer."""
    made = config(source, *layers)
    return tokenise_data(made, check_data(made, GOLD), tiny.tokenizer())


def refusal(make: Callable[[], Any]) -> str:
    """The message of the DataError that this raises: always one plain line, exit code 2."""
    with pytest.raises(DataError) as caught:
        make()
    assert caught.value.exit_code == 2
    assert len(caught.value.message.splitlines()) == 1, caught.value.message
    return caught.value.message


def ids(problems: Sequence[Any]) -> list[str]:
    """Content hashes in order."""
    return [problem.id for problem in problems]


# --- sources --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_file_becomes_prompts(tmp_path: Path, ending: str) -> None:
    """JSONL and parquet give the same prompts, with the row's other columns and its data_source."""
    table = [{**row, "level": i, "data_source": "made_up"} for i, row in enumerate(rows(3))]
    path = str(tmp_path / f"train.{ending}")
    if ending == "jsonl":
        jsonl(Path(path), *table)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)
    prompts = loaded(path).by_source[0]
    assert [prompt.answer for prompt in prompts] == ["1", "2", "3"]
    # Every column but the prompt: a reward function asks for the gold answer by the file's own name.
    expected = [{"answer": row["answer"], "level": i, "data_source": "made_up"} for i, row in enumerate(rows(3))]
    assert [prompt.columns for prompt in prompts] == expected
    assert {prompt.source for prompt in prompts} == {"made_up"}
    # The tiny template is BOS, the turn's text, <turn>.
    text = "<bos>what is 2 + 1<turn>"
    assert prompts[2].text == text
    assert prompts[2].messages == ({"role": "user", "content": "what is 2 + 1"},)
    assert prompts[2].token_ids.tolist() == tiny.tokenizer()(text, add_special_tokens=False)["input_ids"]
    assert prompts[2].token_ids.dtype.name == "int32"


def test_the_file_name_stands_in_for_a_missing_data_source(tmp_path: Path) -> None:
    """A source always has a name to report by."""
    assert next(iter(read_rows(SourceConfig(source=jsonl(tmp_path / "aime.jsonl", *rows(1)))))).source == "aime"


def test_reasoning_gym() -> None:
    """A generated task: size and seed decide, each problem has an answer and its metadata."""
    source = {"source": "reasoning-gym:chain_sum", "size": 5, "seed": 3, "options": {"max_terms": 2, "max_digits": 1}}
    first, again = checked([source]), checked([source])
    other = checked([{**source, "seed": 4}])
    assert first.counts["rows"] == 5
    assert ids(first.training[0]) == ids(again.training[0]) != ids(other.training[0])
    assert all(reason is None for reason in GOLD([(p.answer, {}) for p in first.training[0]]))
    assert {problem.row.source for problem in first.training[0]} == {"chain_sum"}
    assert first.training[0][0].row.where == "reasoning-gym:chain_sum, problem 1"
    assert first.training[0][0].row.columns["metadata"]


def test_verl_layout(tmp_path: Path) -> None:
    """The published DAPO-Math-17k: messages, reward_model.ground_truth, extra_info, data_source."""
    row = {
        "data_source": "math_dapo",
        "prompt": [{"content": "what is 1 + 1", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b"},
    }
    path = str(tmp_path / "dapo.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    (prompt,) = loaded(path, {"data.answer_column": "reward_model.ground_truth"}).by_source[0]
    assert prompt.messages == ({"role": "user", "content": "what is 1 + 1"},)
    assert prompt.text == "<bos>what is 1 + 1<turn>"
    assert (prompt.answer, prompt.source) == ("2", "math_dapo")
    assert prompt.columns["extra_info"] == {"index": "9a9b"}


def test_columns_by_name_and_max_rows(tmp_path: Path) -> None:
    """prompt_column and answer_column name any column; max_rows reads only the first rows."""
    path = jsonl(tmp_path / "a.jsonl", *({"q": f"what is {i}", "meta": {"gold": i}} for i in range(5)))
    source = {"source": path, "prompt_column": "q", "answer_column": "meta.gold", "max_rows": 3}
    problems = checked([source]).training[0]
    assert [(p.row.problem, p.answer) for p in problems] == [(f"what is {i}", str(i)) for i in range(3)]


def test_blank_lines_are_no_rows_but_count_for_the_row_number(tmp_path: Path) -> None:
    """The row number is what an editor shows."""
    path = jsonl(tmp_path / "a.jsonl", rows(1)[0], "", "  ", {"prompt": "what", "answer": ""})
    assert f"{path}, row 4: " in refusal(lambda: checked(path))


def test_non_ascii_text_survives(tmp_path: Path) -> None:
    """UTF-8 in and out, escaped or not, is one problem."""
    text = "计算 ½ − 🙂"
    path = jsonl(tmp_path / "a.jsonl", json.dumps({"prompt": text, "answer": 1}, ensure_ascii=False), rows(1)[0])
    same = jsonl(tmp_path / "b.jsonl", {"prompt": text, "answer": 1})
    assert checked(path).training[0][0].row.problem == text
    assert ids(checked(path).training[0])[0] == ids(checked(same).training[0])[0]


def test_a_lone_surrogate_is_a_named_row_not_a_crash(tmp_path: Path) -> None:
    """JSON can spell half a character; no tokenizer can read it: the row is named."""
    assert content_id("\ud800") != content_id("\ud801")
    path = jsonl(tmp_path / "a.jsonl", rows(1)[0], '{"prompt": "what \\ud800", "answer": "1"}')
    assert f"{path}, row 2" in refusal(lambda: loaded(path))


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"prompt": "what"}, "no column answer"),
        ({"answer": "1"}, "no column prompt"),
        ({}, "no column prompt"),
        ({"prompt": "what", "answer": None}, "empty or a placeholder"),
        ({"prompt": "what", "answer": ""}, "empty or a placeholder"),
        ({"prompt": "what", "answer": "  "}, "empty or a placeholder"),
        ({"prompt": "what", "answer": []}, "empty or a placeholder"),
        ({"prompt": "what", "answer": [None]}, "empty or a placeholder"),
        ({"prompt": "what", "answer": ["1", "2"]}, "empty or a placeholder"),
        ({"prompt": "what", "answer": True}, "empty or a placeholder"),
        ({"prompt": "what", "answer": {"gold": 1}}, "empty or a placeholder"),
        ({"prompt": "what", "answer": float("nan")}, "answer"),
        ({"prompt": "what", "answer": float("inf")}, "answer"),
        ({"prompt": "what", "answer": "\\frac{"}, "can't be graded"),
        ({"prompt": "what", "answer": "\ud800"}, "can't be graded"),
        ({"prompt": "what is 0 + 1", "answer": "2"}, "the same problem as"),
        ("{not json", "not valid JSON"),
        ('{"prompt": "what", "answer": "1"', "not valid JSON"),
        ('["what", "1"]', "a JSON object is wanted"),
        ('"what"', "a JSON object is wanted"),
        ("5", "a JSON object is wanted"),
        ("null", "a JSON object is wanted"),
        ('{"prompt": "what", "answer": ' + "7" * 5000 + "}", ""),  # Python reads 4300 digits at most
        ('{"prompt": ' + "[" * 100_000, "JSON"),  # deeper than Python's stack
        (b'{"prompt": "\xff\xfe", "answer": "1"}', "UTF-8"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_bad_line_is_named(tmp_path: Path, line: Line, said: str) -> None:
    """One line: file, row, what is wrong. (P3: before any model is loaded.)"""
    path = jsonl(tmp_path / "a.jsonl", *rows(2), line)
    message = refusal(lambda: checked(path))
    assert message.startswith(f"{path}, row 3: ")
    assert said.lower() in message.lower()


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("", "the prompt is empty"),
        (" \n", "the prompt is empty"),
        (None, "the prompt is empty"),
        (5, "the prompt is empty or no text"),
        ([], "empty list of messages"),
        ([{"role": "user"}], "a message needs a role and a content"),
        ([{"role": "user", "content": None}], "a message needs a role and a content"),
        (["what"], "a message needs a role and a content"),
    ],
)
def test_a_bad_prompt_is_named(tmp_path: Path, problem: Any, said: str) -> None:
    """A prompt that is no text and no list of messages."""
    path = jsonl(tmp_path / "a.jsonl", *rows(2), {"prompt": problem, "answer": "1"})
    message = refusal(lambda: loaded(path))
    assert message.startswith(f"{path}, row 3: ")
    assert said.lower() in message.lower()


def test_the_mend_of_a_missing_column(tmp_path: Path) -> None:
    """The message shows the columns there are, and the knob."""
    path = jsonl(tmp_path / "a.jsonl", {"question": "what", "answer": "1"})
    message = refusal(lambda: checked(path, {"data.prompt_column": "prompt"}))
    assert "no column prompt; this row has question, answer; set data.prompt_column" in message
    nested = jsonl(tmp_path / "b.jsonl", {"prompt": "what", "reward_model": {"style": "rule"}})
    message = refusal(lambda: checked(nested, {"data.answer_column": "reward_model.ground_truth"}))
    assert "no column reward_model.ground_truth" in message
    assert "set data.answer_column" in message


def test_one_id_for_two_problems_names_both_rows(tmp_path: Path) -> None:
    """A file's own ids mean something to its owner; a repeated row under its own id is only a duplicate."""
    row = {"id": 1, "prompt": "what is one", "answer": "1"}
    file = jsonl(tmp_path / "a.jsonl", row, {**row, "prompt": "what is two", "answer": "2"})
    message = refusal(lambda: checked(file))
    assert f"{file}, row 2: id 1 stands for another problem in {file}, row 1" in message
    again = jsonl(tmp_path / "b.jsonl", row, row)
    assert checked(again).counts["duplicates"] == 1


def test_one_problem_with_two_answers_names_both_rows(tmp_path: Path) -> None:
    """Which of two answers is right, no program can say."""
    first = jsonl(tmp_path / "a.jsonl", *rows(2))
    second = jsonl(tmp_path / "b.jsonl", rows(3)[2], {**rows(2)[1], "answer": "9"})
    message = refusal(lambda: checked([{"source": first}, {"source": second}]))
    assert f"{second}, row 2: the same problem as {first}, row 2 with another answer (9 against 2)" in message


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.jsonl", None, "no such file"),
        ("none.parquet", None, "no such file"),
        ("zero.jsonl", b"", "no problems"),
        ("blank.jsonl", b"\n \n", "no problems"),
        ("text.parquet", b"hello", "not a readable parquet file"),
        ("empty.parquet", b"", "not a readable parquet file"),
        ("table.csv", b"prompt,answer\n", "no problems"),
        ("table.txt", b"prompt,answer\n", "use a .parquet, .jsonl, .json, .csv or .tsv file"),
        ("bad.jsonl", b"\xff\xfe\n", "UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    """One line that names the file."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    message = refusal(lambda: checked(str(path)))
    assert str(path) in message
    assert said.lower() in message.lower()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """The operating system's own complaint becomes a DataError."""
    (tmp_path / "a.jsonl").mkdir()
    assert str(tmp_path / "a.jsonl") in refusal(lambda: checked(str(tmp_path / "a.jsonl")))


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.99])
def test_a_truncated_parquet_file(tmp_path: Path, keep: float) -> None:
    """A download cut short."""
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows(50)), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    assert f"{path}: not a readable parquet file" in refusal(lambda: checked(str(path)))


def test_damage_inside_a_parquet_file(tmp_path: Path) -> None:
    """The footer is fine and a page is not."""
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows(2000)), path, compression="zstd")
    whole = bytearray(path.read_bytes())
    whole[60:400] = b"\x00" * 340
    path.write_bytes(bytes(whole))
    assert f"{path}: not a readable parquet file" in refusal(lambda: checked(str(path)))


def test_a_parquet_prompt_that_json_cannot_hash(tmp_path: Path) -> None:
    """Bytes (or a date) where a text is wanted: the row is named."""
    path = str(tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"prompt": b"what", "answer": "1"}]), path)
    assert f"{path}, row 1: " in refusal(lambda: loaded(path))


def test_nan_in_a_parquet_answer_column(tmp_path: Path) -> None:
    """pandas writes a missing number as NaN: row 2 is the one."""
    path = str(tmp_path / "a.parquet")
    table = pyarrow.table({"prompt": ["what", "who"], "answer": pyarrow.array([1.0, float("nan")])})
    pyarrow.parquet.write_table(table, path)
    assert f"{path}, row 2: the answer" in refusal(lambda: checked(path))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"source": "reasoning-gym:chain_sums"}, "did you mean chain_sum?"),
        ({"source": "reasoning-gym:"}, "has no task"),
        ({"source": "reasoning-gym:chain_sum", "options": {"max_termz": 2}}, "max_termz"),
        ({"source": "reasoning-gym:chain_sum", "options": {"min_terms": 5, "max_terms": 2}}, "options"),
        ({"source": "reasoning-gym:chain_sum", "options": {"seed": 2}}, "options"),
    ],
)
def test_reasoning_gym_mistakes(source: dict[str, Any], said: str) -> None:
    """An unknown task gets a suggestion; bad options are shown."""
    message = refusal(lambda: checked([{"size": 2, **source}]))
    assert message.startswith(f"{source['source']}: ")
    assert said.lower() in message.lower()


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (34, "34"),
        (34.0, "34"),
        (-0.5, "-0.5"),
        (0.1, "0.1"),
        (["34"], "34"),
        ([34.0], "34"),
        ("34", "34"),
        ("1/2", "1/2"),
        (2**53 + 1, "9007199254740993"),
    ],
)
def test_golds_are_coerced(tmp_path: Path, answer: Any, text: str) -> None:
    """R12: int, float and one-element list, never rounded."""
    path = jsonl(tmp_path / "a.jsonl", {"prompt": "what", "answer": answer})
    assert checked(path).training[0][0].answer == text


def test_without_a_grader_answers_are_not_checked(tmp_path: Path) -> None:
    """Custom rewards may need no gold: what is a text or number is handed on, the rest is None."""
    lines = [{"prompt": f"q{i}", "answer": answer} for i, answer in enumerate(["x^2", 5, None, {"a": 1}])]
    problems = check_data(config(jsonl(tmp_path / "a.jsonl", *lines)), None).training[0]
    assert [problem.answer for problem in problems] == ["x^2", "5", None, None]


# --- duplicates, hashes, holdout ------------------------------------------------------------------


def test_duplicates_are_kept_once_and_counted(tmp_path: Path) -> None:
    """P2: repeated rows do not make a longer epoch, within a source or across sources; one note names the first."""
    first = jsonl(tmp_path / "a.jsonl", *rows(3), *rows(3))
    second = jsonl(tmp_path / "b.jsonl", *rows(4))
    data = checked([{"source": first}, {"source": second}])
    assert [len(source) for source in data.training] == [3, 1]
    assert (data.counts["rows"], data.counts["duplicates"]) == (10, 6)
    assert [note for note in data.notes if "duplicate" in note] == [
        f"duplicate problems are kept once; the first: {first}, row 4, as {first}, row 1"
    ]


def test_a_source_of_duplicates_alone_is_refused(tmp_path: Path) -> None:
    """A source that adds nothing is a mistake in the recipe."""
    first, second = (jsonl(tmp_path / f"{name}.jsonl", *rows(3)) for name in "ab")
    assert refusal(lambda: checked([{"source": first}, {"source": second}])).startswith(f"{second}: no problems")


def test_content_id_is_of_the_content() -> None:
    """128 bits; the order of a message's keys is no content, its text is."""
    assert content_id([{"role": "user", "content": "a"}]) == content_id([{"content": "a", "role": "user"}])
    assert content_id("a") != content_id("b")
    assert content_id("a") != content_id([{"role": "user", "content": "a"}])
    assert len(bytes.fromhex(content_id("é"))) == 16


def test_the_holdout_is_disjoint_and_belongs_to_the_content(tmp_path: Path) -> None:
    """Chosen by hash of what is asked: no seed and no order of the file changes it."""
    path = jsonl(tmp_path / "a.jsonl", *rows(40))
    turned = jsonl(tmp_path / "b.jsonl", *reversed(rows(40)))
    layer = {"data.holdout": 10, "eval.data": "holdout"}
    data = checked(path, layer)
    assert len(evaluated(data)) == 10
    assert len(data.training[0]) == 30
    assert not set(ids(evaluated(data))) & set(ids(data.training[0]))
    assert ids(evaluated(data)) == sorted(ids(checked(path).training[0]))[:10]
    for other in (checked(path, layer, {"train.seed": 9, "eval.seed": 8}), checked(turned, layer)):
        assert ids(evaluated(other)) == ids(evaluated(data))
    seeded = loaded(path, layer, {"data.system": "Be brief.", "train.seed": 4})
    assert ids([p for own in seeded.tests.values() for p in own]) == ids(
        evaluated(data)
    )  # the system turn is no part of the problem
    # A larger holdout contains the smaller one, so that figures can be compared.
    assert set(ids(evaluated(data))) < set(ids(evaluated(checked(path, {"data.holdout": 15, "eval.data": "holdout"}))))


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ((None, None, None), [4, 4, 2]),  # by size, 20, 20, 10 of 50
        ((1.0, 1.0, 2.0), [3, 2, 5]),  # 2.5, 2.5, 5: the largest remainders, the first of equals
        ((8.0, 1.0, 1.0), [8, 1, 1]),
    ],
)
def test_the_holdout_looks_like_the_mixture(
    tmp_path: Path, weights: tuple[float | None, ...], shares: list[int]
) -> None:
    """Each source gives its share: its weight, or its size without weights."""
    sizes, sources, start = (20, 20, 10), [], 0
    for name, size, weight in zip("abc", sizes, weights, strict=True):
        path = jsonl(tmp_path / f"{name}.jsonl", *rows(size, start))
        sources.append({"source": path} | ({} if weight is None else {"weight": weight}))
        start += size
    data = checked(sources, {"data.holdout": 10, "eval.data": "holdout"})
    held = Counter(problem.row.source for problem in evaluated(data))
    assert [held[name] for name in "abc"] == shares
    assert [len(source) for source in data.training] == [
        size - share for size, share in zip(sizes, shares, strict=True)
    ]
    assert data.weights == (None if weights[0] is None else list(weights))


@pytest.mark.parametrize("holdout", [5, 6])
def test_a_holdout_that_leaves_nothing_is_refused(tmp_path: Path, holdout: int) -> None:
    """All problems held out, or more."""
    path = jsonl(tmp_path / "a.jsonl", *rows(5))
    layer = {"data.holdout": holdout, "eval.data": "holdout"}
    assert f"data.holdout = {holdout}" in refusal(lambda: checked(path, layer))


def test_a_holdout_that_empties_one_source_is_refused(tmp_path: Path) -> None:
    """A small source with a large weight."""
    sources = [
        {"source": jsonl(tmp_path / "a.jsonl", *rows(20)), "weight": 1},
        {"source": jsonl(tmp_path / "b.jsonl", *rows(3, 50)), "weight": 9},
    ]
    layer = {"data.holdout": 4, "eval.data": "holdout"}
    assert "takes all 3 problems of data.source[1]" in refusal(lambda: checked(sources, layer))


def test_training_problems_that_are_evaluation_problems_are_dropped(tmp_path: Path) -> None:
    """Contamination is removed from training, never from the evaluation, and counted."""
    train, test = jsonl(tmp_path / "a.jsonl", *rows(10)), jsonl(tmp_path / "t.jsonl", *rows(4, 8))
    data = checked(train, {"eval.data": test})
    assert data.counts["also_in_eval"] == 2
    assert len(data.training[0]) == 8
    assert len(evaluated(data)) == 4
    assert not set(ids(data.training[0])) & set(ids(evaluated(data)))
    assert (data.counts["rows"], data.counts["eval_rows"]) == (10, 4)
    inside = jsonl(tmp_path / "b.jsonl", *rows(2, 8))
    assert refusal(lambda: checked(inside, {"eval.data": test})).startswith(inside)


def test_evaluation_alone_reads_the_training_data_only_for_a_holdout(tmp_path: Path) -> None:
    """`dapo eval` on a file must not need the training file; on a holdout it must give the run's own."""
    test, train = jsonl(tmp_path / "t.jsonl", *rows(4)), jsonl(tmp_path / "a.jsonl", *rows(10))
    missing = config(str(tmp_path / "gone.jsonl"), {"eval.data": test})
    assert len(evaluated(check_evaluation(missing, GOLD))) == 4
    held = config(train, {"data.holdout": 3, "eval.data": [{"source": "holdout"}, {"source": test}]})
    evaluation = evaluated(check_evaluation(held, GOLD))
    assert ids(evaluation) == ids(evaluated(check_data(held, GOLD)))
    assert len(evaluation) == 7


# --- limits ---------------------------------------------------------------------------------------


def test_prompts_over_the_limit(tmp_path: Path) -> None:
    """P1: counted by tokens, template included; exactly the limit stays; dropped with a count, or refused."""
    # BOS + text + <turn>: a text of n characters takes n + 2 tokens.
    lines = [{"prompt": letter * n, "answer": "1"} for letter, n in (("a", 8), ("b", 9), ("c", 30))]
    path = jsonl(tmp_path / "a.jsonl", *lines)
    data = loaded(path, {"data.max_prompt_tokens": 10})
    assert [len(prompt.token_ids) for prompt in data.by_source[0]] == [10]
    assert data.counts["overlong_prompts"] == 2
    assert any(f"{path}, row 2: the prompt takes 11 tokens" in note for note in data.notes)
    refused = {"data.max_prompt_tokens": 10, "data.overlong_prompts": "refuse"}
    message = refusal(lambda: loaded(path, refused))
    assert message.startswith(f"{path}, row 2: the prompt takes 11 tokens, over data.max_prompt_tokens = 10")


def test_all_prompts_too_long(tmp_path: Path) -> None:
    """An empty source is an error before training, naming the knob."""
    path = jsonl(tmp_path / "a.jsonl", *rows(3))
    message = refusal(lambda: loaded(path, {"data.max_prompt_tokens": 5}))
    assert message.startswith(f"{path}, row 1")
    assert "data.max_prompt_tokens = 5" in message


def test_an_evaluation_prompt_over_the_limit_is_never_dropped(tmp_path: Path) -> None:
    """Dropping it would give a figure over another set."""
    train = jsonl(tmp_path / "a.jsonl", {"prompt": "ab", "answer": "1"})
    test = jsonl(tmp_path / "t.jsonl", {"prompt": "cd", "answer": "1"}, {"prompt": "x" * 40, "answer": "1"})
    made = config(train, {"eval.data": test, "data.max_prompt_tokens": 10})
    data = check_data(made, GOLD)
    assert f"{test}, row 2" in refusal(lambda: tokenise_evaluation(made, data, tiny.tokenizer()))
    assert f"{test}, row 2" in refusal(lambda: tokenise_data(made, data, tiny.tokenizer()))


@pytest.mark.parametrize(("repeat", "gen_prompts", "fine"), [(False, 5, True), (False, 6, False), (True, 6, True)])
def test_fewer_prompts_than_a_round(tmp_path: Path, repeat: bool, gen_prompts: int, fine: bool) -> None:
    """P4: without repetition a round that can never be filled is an error at the start."""
    path = jsonl(tmp_path / "a.jsonl", *rows(5))
    layer = {"data.repeat": repeat, "sampling.gen_prompts": gen_prompts}
    if fine:
        assert len(loaded(path, layer).by_source[0]) == 5
    else:
        with pytest.raises(ConfigError, match=r"5 prompts are fewer than the 6 of one round"):
            loaded(path, layer)


# --- what a problem is --------------------------------------------------------------------------------------


def test_rows_worded_alike_are_one_problem(tmp_path: Path) -> None:
    """The model reads the wording, not the row: two questions with one wording are one problem."""
    row = {"prompt": "Add one and two.", "answer": "3", "x": "1 + 2"}
    file = jsonl(
        tmp_path / "a.jsonl",
        row,
        {**row, "prompt": "Sum of one and two?"},
        {**row, "prompt": "Two and one?", "x": "2 + 1"},
    )
    assert checked(file).counts["duplicates"] == 0
    data = checked(file, {"data.template": "What is {{ x }}?"})
    assert data.counts["duplicates"] == 1
    assert sum(map(len, data.training)) == 2


def test_the_quickstart_is_tested_on_what_it_did_not_train_on() -> None:
    """No held-out prompt is a training prompt, as the model reads it; the space is large, no constant answer pays."""
    pytest.importorskip("reasoning_gym")
    config = load_config("quickstart")
    data = check_data(config, None)
    wording = Wording(config.data.template)

    def asked(problem: Problem) -> str:
        turns = wording.turns(problem.row.problem, problem.row.columns, problem.row.where)
        assert turns is not None
        return turns[-1]["content"]

    training = [asked(problem) for source in data.training for problem in source]
    held_out = [asked(problem) for problem in evaluated(data)]
    assert len(held_out) == len(set(held_out)) == 128
    assert not set(held_out) & set(training)
    assert len(training) == len(set(training)) >= 5000
    answers = Counter(str(problem.row.answer) for problem in evaluated(data))
    assert answers.most_common(1)[0][1] <= 0.15 * len(held_out)


def test_a_prepared_folder_that_is_not_there_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    """Recipes name their data by folder; a stranger has not prepared it yet."""
    with pytest.raises(DataError, match=r"no such folder; make it with: dapo data prepare SOURCE -o .*data/math "):
        list(read_rows(SourceConfig(source=str(tmp_path / "data" / "math"))))
