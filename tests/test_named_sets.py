r"""Named public sets and file layouts: columns found by themselves, wrappers off, golds the grader reads.

Synthetic rows stand for each published layout; the files of ../shared/data are read where they are.
Nothing here uses the network: huggingface_hub is replaced, and once run offline for real.
"""

from __future__ import annotations

import base64
import json
import os
import pickletools
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.errors
import pyarrow
import pyarrow.parquet
import pytest

from dapo.config import SourceConfig
from dapo.data import livecodebench, named
from dapo.data.prompts import _answer
from dapo.data.sources import Row, read_rows
from dapo.data.template import DAPO_WORDING
from dapo.errors import DataError
from dapo.reward import Grader
from dapo.reward.python_tests import check_tests, verify
from dapo.types import Verdict

SHARED = Path(__file__).parents[2] / "shared" / "data"
GRADER = Grader(("answer_line", "boxed"), workers=1)

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not there")


def write(path: Path, rows: Any) -> str:
    """Rows in the layout that the file's ending names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(source: str, data_dir: Path | str | None = None, **options: Any) -> list[Row]:
    """All rows of a source."""
    folder = None if data_dir is None else str(data_dir)
    return list(read_rows(SourceConfig(source=source, **options), folder))


def refusal(make: Callable[[], Any]) -> str:
    """The message of the DataError that this raises: one line."""
    with pytest.raises(DataError) as caught:
        make()
    assert len(caught.value.message.splitlines()) == 1, caught.value.message
    return caught.value.message


def golds(rows: list[Row]) -> list[str]:
    """The golds as the loader hands them to the grader."""
    return [_answer(row) or "" for row in rows]


# --- files: JSON arrays and columns found by themselves -------------------------------------------


@pytest.mark.parametrize("ending", ["json", "jsonl", "parquet"])
@pytest.mark.parametrize("prompt", ["prompt", "problem", "question"])
@pytest.mark.parametrize(
    "answer", ["answer", "expected_answer", "final_answer", "reward_model.ground_truth", "ground_truth"]
)
def test_columns_are_found(tmp_path: Path, ending: str, prompt: str, answer: str) -> None:
    """Every usual name in every kind of file; the prompt's own column is left out of the others."""
    outer, _, inner = answer.partition(".")
    rows = [{prompt: f"what is {i}", outer: {inner: str(i)} if inner else str(i), "level": i} for i in (1, 2)]
    path = write(tmp_path / f"a.{ending}", rows)
    got = read(path)
    assert [(row.problem, row.answer, row.where) for row in got] == [
        (f"what is {i}", str(i), f"{path}, row {i}") for i in (1, 2)
    ]
    assert [set(row.columns) for row in got] == [{outer, "level"}] * 2


def test_the_first_of_several_columns_is_taken(tmp_path: Path) -> None:
    """In the documented order, not the file's; a column given by name wins."""
    row = {"question": "q", "problem": "p", "final_answer": "2", "answer": "1"}
    path = write(tmp_path / "a.jsonl", [row])
    (got,) = read(path)
    assert (got.problem, got.answer, got.columns) == ("p", "1", {k: v for k, v in row.items() if k != "problem"})
    (got,) = read(path, prompt_column="question", answer_column="final_answer")
    assert (got.problem, got.answer) == ("q", "2")


def test_a_missing_column_is_named_with_what_there_is(tmp_path: Path) -> None:
    """The first row decides; a later row without its column is an error of that row."""
    path = write(tmp_path / "a.jsonl", [{"text": "x", "answer": "1"}])
    message = f"{path}, row 1: no column prompt, problem or question; this row has text, answer; set data.prompt_column"
    assert refusal(lambda: read(path)) == message
    path = write(tmp_path / "b.jsonl", [{"prompt": "x", "reward_model": {"style": "rule"}}])
    assert "ground_truth; this row has prompt, reward_model; set data.answer_column" in refusal(lambda: read(path))
    path = write(tmp_path / "c.jsonl", [{"problem": "x", "answer": "1"}, {"prompt": "x", "answer": "1"}])
    assert f"{path}, row 2: no column problem; this row has prompt" in refusal(lambda: read(path))


def test_json_lines_in_a_json_file(tmp_path: Path) -> None:
    """What was read before still is: one object a line."""
    path = tmp_path / "a.json"
    path.write_text('{"prompt": "a", "answer": "1"}\n\n{"prompt": "b", "answer": "2"}\n')
    assert [row.where for row in read(str(path))] == [f"{path}, row 1", f"{path}, row 3"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[]", "no rows in it"),
        (b' [ "a" ]', "row 1: a JSON object is wanted, each element one row"),
        (b'[{"prompt": "a", "answer": "1"}, 5]', "row 2: a JSON object is wanted"),
        (b'[{"prompt": "a"', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'[{"prompt": "\xff"}]', "not UTF-8"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_json_array(tmp_path: Path, content: bytes, said: str) -> None:
    """One line that names the file, and the element where one is at fault."""
    path = tmp_path / "a.json"
    path.write_bytes(content)
    message = refusal(lambda: read(str(path)))
    assert message.startswith(str(path))
    assert said in message


def test_only_the_named_set_cuts_gsm8k_answers(tmp_path: Path) -> None:
    """A user's own file is never reinterpreted."""
    row = {"question": "q", "answer": "so\n#### 1,234"}
    path = write(tmp_path / "gsm8k" / "test.jsonl", [row])
    assert read(path)[0].answer == row["answer"]
    assert read("gsm8k", tmp_path)[0].answer == "1234"


def test_an_unknown_source_lists_what_there_is() -> None:
    """The named sets are in the message."""
    message = refusal(lambda: read("aime2024"))
    assert "use a .parquet, .jsonl, .json, .csv or .tsv file" in message
    assert all(name in message for name in named.NAMES)


# --- the table ------------------------------------------------------------------------------------


def test_the_table() -> None:
    """Every set has a commit, a licence note, a size, and names to look for that no other set has."""
    assert named.NAMES == ("aime24", "aime25", "amc23", "math500", "gsm8k", "olympiad", "minerva", "livecodebench")
    assert all(map(named.is_named, named.NAMES))
    assert not named.is_named("aime24.jsonl")
    for known in named.SETS.values():
        assert re.fullmatch(r"[0-9a-f]{40}", known.revision or "")
        assert re.fullmatch(r"[\w-]+/[\w-]+", known.repo)
        assert known.licence
        assert all(count > 0 for count in known.problems)
    assert [name for name, known in named.SETS.items() if known.judge == "python-tests"] == ["livecodebench"]
    everywhere = [place for name in named.NAMES for place in named.places(name)]
    assert len(everywhere) == len(set(everywhere))


def test_note() -> None:
    """A size that is not the published one is told, not refused."""
    assert named.note("olympiad", 674) is None
    assert named.note("olympiad", 675) is None
    assert "29 problems were read, the published set has 30" in (named.note("aime25", 29) or "")


# --- local files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("aime24", "aime24.parquet"),
        ("aime24", "aime24/aime24.parquet"),
        ("aime24", "aime24/nemo_skills_test.jsonl"),
        ("aime25", "aime25/test.json"),
        ("amc23", "amc/amc23_test.jsonl"),
        ("math500", "math500/test.jsonl"),
        ("math500", "MATH-500/test.jsonl"),
        ("gsm8k", "gsm8k/test.jsonl"),
        ("olympiad", "olympiadbench/test.jsonl"),
        ("minerva", "minerva_math/test.jsonl"),
    ],
)
def test_where_a_local_file_is_found(tmp_path: Path, name: str, place: str) -> None:
    """By the set's name or an alias; the row says set, file and number."""
    write(tmp_path / place, [{"problem": "what is one", "answer": "1"}])
    (row,) = read(name, tmp_path)
    assert row.where == f"{name} ({tmp_path / place}), row 1"
    assert (row.problem, row.answer, row.source, row.columns) == ("what is one", "1", name, {"answer": "1"})


def test_the_own_name_goes_before_an_alias(tmp_path: Path) -> None:
    """The order is fixed: the set's name first, parquet first."""
    for place in ("olympiadbench.jsonl", "olympiad/test.jsonl", "olympiad.jsonl", "olympiad.parquet"):
        write(tmp_path / place, [{"problem": place, "answer": "1"}])
    assert read("olympiad", tmp_path)[0].problem == "olympiad.parquet"


def test_a_missing_set_and_a_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All names looked for are listed, and nothing is fetched instead."""
    monkeypatch.setattr(named, "fetch", lambda name: pytest.fail("fetched"))
    message = refusal(lambda: read("math500", tmp_path))
    assert message.startswith(f"math500: not in {tmp_path}; ")
    assert all(place in message for place in ("math500.parquet", "math500/test.jsonl", "MATH-500/test.json"))
    assert f"{tmp_path}/none: no such folder" in refusal(lambda: read("math500", tmp_path / "none"))
    (tmp_path / "file").write_text("")
    assert "no such folder (--data-dir" in refusal(lambda: read("math500", tmp_path / "file"))


def test_a_local_file_that_cannot_be_used(tmp_path: Path) -> None:
    """Cut short, empty, not UTF-8: the file is named."""
    path = write(tmp_path / "aime24.parquet", [{"problem": f"what is {i}", "answer": str(i)} for i in range(50)])
    Path(path).write_bytes(Path(path).read_bytes()[:300])
    assert f"{path}: not a readable parquet file" in refusal(lambda: read("aime24", tmp_path))
    for name in ("aime25", "amc23"):
        (tmp_path / f"{name}.jsonl").write_bytes(b"\xff\xfe\n" if name == "amc23" else b"\n")
    assert "aime25.jsonl: no rows in it" in refusal(lambda: read("aime25", tmp_path))
    assert "amc23.jsonl, row 1: not UTF-8" in refusal(lambda: read("amc23", tmp_path))
    write(tmp_path / "math500.jsonl", [{"text": "a"}])
    message = refusal(lambda: read("math500", tmp_path))
    assert "math500.jsonl), row 1: no column prompt, problem, question or Problem; this row has text" in message


def test_max_rows_and_columns_by_name(tmp_path: Path) -> None:
    """The options of a source hold for a named set too."""
    write(tmp_path / "aime24.jsonl", [{"q": f"what is {i}", "gold": i, "problem": "x"} for i in range(5)])
    rows = read("aime24", tmp_path, max_rows=2, prompt_column="q", answer_column="gold")
    assert [(row.problem, row.answer) for row in rows] == [("what is 0", 0), ("what is 1", 1)]


# --- layouts --------------------------------------------------------------------------------------

BOXED = "Let's think step by step and output the final answer within \\boxed{}."


@pytest.mark.parametrize(
    "stored",
    [
        "Find $x$.",
        [{"role": "user", "content": "Find $x$."}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Find $x$.\n"}],
        DAPO_WORDING.replace("{{ problem }}", "Find $x$."),
        [{"role": "user", "content": DAPO_WORDING.replace("{{ problem }}", "Find $x$.")}],
        f"Find $x$. {BOXED}",
        f"Find $x$.\n\n{BOXED}",
        "Find $x$. Please reason step by step, and put your final answer within \\boxed{}.",
        'Find $x$. Let\'s think step by step and output the final answer after "####".',
    ],
)
def test_stored_wording_is_taken_off(tmp_path: Path, stored: Any) -> None:
    """The recipe's template words the problem, once."""
    row = {"prompt": stored, "reward_model": {"ground_truth": "025", "style": "rule"}}
    write(tmp_path / "aime24.json", [row])
    (got,) = read("aime24", tmp_path)
    assert (got.problem, got.answer) == ("Find $x$.", "025")
    assert set(got.columns) == {"reward_model"}


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ([], "messages of one user's turn"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "messages of one user's turn"),
        ([{"role": "user"}], "messages of one user's turn"),
        (["a"], "messages of one user's turn"),
        ([{"role": "user", "content": 5}], "int, not a text"),
        (5, "int, not a text"),
        (None, "NoneType, not a text"),
    ],
)
def test_a_problem_that_is_no_text(tmp_path: Path, problem: Any, said: str) -> None:
    """The row is named."""
    write(tmp_path / "aime24.json", [{"prompt": "a", "answer": "1"}, {"prompt": problem, "answer": "1"}])
    message = refusal(lambda: read("aime24", tmp_path))
    assert "aime24.json), row 2: the prompt" in message
    assert said in message


@pytest.mark.parametrize(
    ("answer", "response"),
    [("025", "25"), (27.0, "27"), ("27.0", "27"), ("336^\\circ", "336"), ([2], "2"), (["$69$", "$84$"], "84, 69")],
)
def test_golds_as_files_spell_them(tmp_path: Path, answer: Any, response: str) -> None:
    """Leading zeros, floats, degrees and lists are graded right."""
    write(tmp_path / "aime25.json", [{"problem": "what", "answer": answer}])
    (gold,) = golds(read("aime25", tmp_path))
    assert GRADER.check_gold(gold) is None
    assert GRADER.score(f"Answer: {response}", gold).verdict is Verdict.CORRECT
    assert GRADER.score("Answer: 1", gold).verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("so \\boxed{1}, then $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("thus \\fbox {7}", "7"),
        ("cut \\boxed{1", None),
        ("none", None),
    ],
)
def test_the_answer_in_a_solution(tmp_path: Path, solution: str, answer: str | None) -> None:
    """minerva_math/test.jsonl has no column of answers, but \\boxed{} in its solutions."""
    write(tmp_path / "minerva_math" / "test.jsonl", [{"problem": "what", "solution": solution, "type": "t", "idx": 0}])
    assert read("minerva", tmp_path)[0].answer == answer
    write(tmp_path / "minerva.jsonl", [{"question": "what", "solution": solution, "answer": "5"}])
    assert read("minerva", tmp_path)[0].answer == "5"


def test_olympiad_rows(tmp_path: Path) -> None:
    """Lists of answers, context before the question, other configurations refused."""
    row = {"question": "Find all.", "final_answer": ["1,3"], "context": None, "modality": "Text-only", "answer": "x"}
    write(tmp_path / "olympiad.jsonl", [row, {**row, "question": "And?", "context": "Let $a=1$. "}])
    first, second = read("olympiad", tmp_path)
    assert (first.problem, golds([first])) == ("Find all.", ["1,3"])
    assert second.problem == "Let $a=1$.\n\nAnd?"
    write(tmp_path / "olympiad.jsonl", [row, {**row, "modality": "Multimodal"}])
    assert "row 2: modality = 'Multimodal'; olympiad is the text-only part" in refusal(
        lambda: read("olympiad", tmp_path)
    )


# --- Hugging Face ---------------------------------------------------------------------------------


def test_a_set_is_fetched_at_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repository, kind and commit are passed on; the row names the file in the repository."""
    path = write(tmp_path / "cache" / "test.jsonl", [{"id": "0", "problem": "what is one", "answer": "1"}])
    calls: list[tuple[Any, ...]] = []

    def download(repo: str, file: str, *, repo_type: str, revision: str) -> str:
        calls.append((repo, file, repo_type, revision))
        return path

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    (row,) = read("aime25")
    assert calls == [("math-ai/aime25", "test.jsonl", "dataset", named.SETS["aime25"].revision)]
    assert row.where == "aime25 (math-ai/aime25/test.jsonl), row 1"
    assert (row.problem, row.answer) == ("what is one", "1")


def listing(monkeypatch: pytest.MonkeyPatch, *paths: str) -> None:
    """Makes the repository hold these paths."""

    def list_repo_files(self: Any, repo: str, *, repo_type: str, revision: str) -> list[str]:
        assert (repo_type, len(revision)) == ("dataset", 40)
        return list(paths)

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", list_repo_files)


def test_a_glob_is_resolved_by_the_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only data files that match, in order of name; none is an error."""
    listing(monkeypatch, "README.md", "test/2.jsonl", "test/1.jsonl", "test/notes.md", "train.jsonl")

    def download(repo: str, file: str, **_: Any) -> str:
        return write(tmp_path / file, [{"question": file, "answer": "1"}])

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert [row.problem for row in read("minerva")] == ["test/1.jsonl", "test/2.jsonl"]
    listing(monkeypatch, "README.md")
    assert "no such file there; put the file in a folder" in refusal(lambda: read("minerva"))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("no network\nmore"),
        TimeoutError(),
        OSError(28, "No space left on device"),
        ValueError("401 Client Error: gated"),
        huggingface_hub.errors.EntryNotFoundError("404 Client Error"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_failure_to_fetch_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """What was tried, and the way without a network."""

    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    message = refusal(lambda: read("math500"))
    assert "math500: can't be fetched (HuggingFaceH4/MATH-500 at 6e4ed1a2a79a, test.jsonl)" in message
    assert type(error).__name__ in message
    assert "--data-dir DIR (looked for as math500.parquet, math500.jsonl" in message


def test_a_set_without_a_commit_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No guess at which version was meant."""
    monkeypatch.setitem(named.SETS, "minerva", replace(named.SETS["minerva"], revision=None))
    message = refusal(lambda: read("minerva"))
    assert "no published commit of it is pinned, so it is not fetched; put the file in a folder" in message


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is imported only here; without it the line is the same."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "gsm8k: can't be fetched" in refusal(lambda: read("gsm8k"))


def offline(name: str, home: Path) -> str:
    """What a fresh process prints that reads a set with HF_HUB_OFFLINE=1: the problems, or the error."""
    code = (
        "import sys\nfrom dapo.config import SourceConfig\nfrom dapo.data.sources import read_rows\n"
        "assert 'huggingface_hub' not in sys.modules\n"
        f"try:\n    print([row.problem for row in read_rows(SourceConfig(source={name!r}))])\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGINGFACE_"))}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["gsm8k", "minerva"])
def test_really_offline(tmp_path: Path, name: str) -> None:
    """The library itself, told to stay offline: by path, and by glob."""
    said = offline(name, tmp_path)
    assert said.startswith(f"HubUnreachable {name}: can't be fetched"), said
    assert "put the file in a folder and name it with --data-dir DIR" in said
    assert len(said.strip().splitlines()) == 1


def test_really_offline_from_the_cache(tmp_path: Path) -> None:
    """A file that was fetched before is read without a network."""
    known = named.SETS["gsm8k"]
    folder = tmp_path / "hub" / f"datasets--{known.repo.replace('/', '--')}" / "snapshots" / str(known.revision)
    write(folder / known.files, [{"question": "what is one", "answer": "#### 1"}])
    assert offline("gsm8k", tmp_path) == "['what is one']\n"


# --- livecodebench --------------------------------------------------------------------------------


def text_stream(text: str) -> bytes:
    """What Python's serialiser writes for one text, protocol 4: header, the text, memoize, stop."""
    raw = text.encode()
    body = b"X" + len(raw).to_bytes(4, "little") + raw + b"\x94."
    return b"\x80\x04\x95" + len(body).to_bytes(8, "little") + body


def packed(stream: bytes) -> str:
    """base64 of zlib."""
    return base64.b64encode(zlib.compress(stream)).decode()


def case(given: str, expected: str, kind: str = "stdin") -> dict[str, str]:
    """One published test."""
    return {"input": given, "output": expected, "testtype": kind}


def code_row(public: list[Any], private: Any, **columns: Any) -> dict[str, Any]:
    """A row of code_generation_lite, made up."""
    return {
        "question_title": "Double",
        "question_content": "Print twice the number.\n",
        "platform": "atcoder",
        "question_id": "made_up",
        "starter_code": "",
        "public_test_cases": json.dumps(public),
        "private_test_cases": private,
        "metadata": "{}",
        **columns,
    }


STARTER = "class Solution:\n    def double(self, values: List[int], flag: bool) -> List[int]:\n        "


@pytest.mark.parametrize("compressed", [False, True])
def test_code_with_stdin_tests(tmp_path: Path, compressed: bool) -> None:
    """Public and private tests together, in a form that the sandbox runs."""
    text = json.dumps([case("3\n", "6\n")])
    row = code_row([case("2\n", "4\n")], packed(text_stream(text)) if compressed else text)
    write(tmp_path / "livecodebench.jsonl", [row])
    (got,) = read("livecodebench", tmp_path)
    tests = got.columns["tests"]
    assert tests == {"inputs": ["2\n", "3\n"], "outputs": ["4\n", "6\n"]}
    assert got.answer is None
    assert got.problem.startswith("Print twice the number.\n\nThe program reads standard input")
    assert "```python" in got.problem
    assert not {"public_test_cases", "private_test_cases", "question_content"} & set(got.columns)
    assert check_tests(tests) is None
    assert verify("```python\nprint(2 * int(input()))\n```", tests).verdict is Verdict.CORRECT
    assert verify("```python\nprint(4)\n```", tests).verdict is Verdict.WRONG


def test_code_with_a_method(tmp_path: Path) -> None:
    """JSON values become Python's, one argument a line."""
    tests = [case("[1, 2]\ntrue", "[2, 4]", "functional"), case("[]\nnull", "[]", "functional")]
    row = code_row(tests[:1], json.dumps(tests[1:]), starter_code=STARTER, metadata='{"func_name": "double"}')
    write(tmp_path / "livecodebench" / "test6.jsonl", [row])
    (got,) = read("livecodebench", tmp_path)
    assert got.columns["tests"] == [
        "assert Solution().double([1, 2], True) == [2, 4]",
        "assert Solution().double([], None) == []",
    ]
    assert f"```python\n{STARTER.rstrip()}\n```" in got.problem
    assert check_tests(got.columns["tests"]) is None
    program = "class Solution:\n    def double(self, values, flag):\n        return [2 * value for value in values]\n"
    assert verify(f"```python\n{program}```", got.columns["tests"]).verdict is Verdict.CORRECT


def test_code_with_tests_of_no_known_kind(tmp_path: Path) -> None:
    """Left to the check of tests, which counts the row as one that can't be graded."""
    write(tmp_path / "livecodebench.jsonl", [code_row([case("1", "1"), case("1", "1", "functional")], "[]")])
    tests = read("livecodebench", tmp_path)[0].columns["tests"]
    assert "no tests" in (check_tests(tests) or "")


METHOD = {"starter_code": STARTER, "metadata": '{"func_name": "double"}'}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (code_row([], "%%%"), "private_test_cases: neither JSON nor compressed JSON"),
        (code_row([], None), "private_test_cases: a text is wanted"),
        (code_row([], packed(b"hello")), "private_test_cases: its pickle holds more than one text"),
        (code_row([], packed(text_stream("{}"))), "private_test_cases: a list of tests is wanted"),
        (code_row([], packed(text_stream("[5"))), "private_test_cases: not valid JSON"),
        (code_row([5], "[]"), "public_test_cases[0]: a test has the texts"),
        (code_row([{"input": "1", "output": 2, "testtype": "stdin"}], "[]"), "public_test_cases[0]: a test has"),
        (code_row([case("1", "1", "functional")], "[]"), "func_name should be a method's name, not None"),
        (code_row([case("1", "1", "functional")], "[]", metadata='{"func_name": "a()"}'), "method's name, not 'a()'"),
        (code_row([case("1", "1", "functional")], "[]", metadata='{"func_name": "f"}'), "it has none"),
        (code_row([case("NaN", "1", "functional")], "[]", **METHOD), "NaN is no JSON value"),
        (code_row([case("a", "1", "functional")], "[]", **METHOD), "a functional test: not valid JSON"),
        (code_row([case("1", "", "functional")], "[]", **METHOD), "a functional test: not valid JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_row_of_code(tmp_path: Path, row: Mapping[str, Any], said: str) -> None:
    """Set, file, row and column."""
    path = write(tmp_path / "livecodebench.jsonl", [row])
    message = refusal(lambda: read("livecodebench", tmp_path))
    assert message.startswith(f"livecodebench ({path}), row 1: ")
    assert said in message


CALL = b"cos\nsystem\n(S'true'\ntR."  # what a hostile file would hold: a call


@pytest.mark.parametrize(
    "stream",
    [
        CALL,
        b"\x80\x04" + CALL,
        b"\x80\x04N.",  # None
        b"\x80\x04K\x05.",  # an integer
        b"\x80\x04]X\x01\x00\x00\x00aa.",  # a list of a text
        b"\x80\x04X\x01\x00\x00\x00aX\x01\x00\x00\x00b\x86.",  # two texts
        b"\x80\x04X\x01\x00\x00\x00aX\x01\x00\x00\x00b.",
        b"\x80\x04.",  # nothing
        b"\x80\x04X\x01\x00\x00\x00a",  # no end
        b"\x80\x04X\x05\x00\x00\x00a.",  # cut text
        text_stream("[]") + b"more",
        text_stream("[]")[:-1] + CALL,
        b"",
    ],
)
def test_only_one_text_is_read_from_a_pickle(stream: bytes) -> None:
    """Any other stream is refused, unread."""
    assert refusal(lambda: livecodebench.unpacked(packed(stream), "here")).startswith("here: ")


@pytest.mark.parametrize("opcodes", [b"\x80\x02X\x02\x00\x00\x00[]q\x00.", b"\x80\x04\x8c\x02[]\x94.", b"V[]\np0\n."])
def test_every_way_to_write_one_text(opcodes: bytes) -> None:
    """Protocols 0, 2 and 4."""
    assert [op.name for op, _, _ in pickletools.genops(opcodes)][-1] == "STOP"
    assert livecodebench.unpacked(packed(opcodes), "here") == "[]"


def test_decompression_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file can't fill the memory; a stream cut short is refused too."""
    monkeypatch.setattr(livecodebench, "MAX_TEST_BYTES", 2**20)
    bomb = packed(text_stream("x" * 2**21))
    assert "over 1 MiB decompressed" in refusal(lambda: livecodebench.unpacked(bomb, "here"))
    short = base64.b64encode(zlib.compress(text_stream("[1, 2, 3]"))[:-6]).decode()
    assert "cut off" in refusal(lambda: livecodebench.unpacked(short, "here"))


# --- the files at hand ----------------------------------------------------------------------------

SIZES = {"aime24": 30, "aime25": 30, "amc23": 40, "math500": 500, "gsm8k": 1319, "olympiad": 675}


@needs_shared
@pytest.mark.parametrize("name", SIZES)
def test_the_shared_files(name: str) -> None:
    """All rows, bare, with golds that the grader accepts and finds equal to themselves."""
    rows = read(name, SHARED)
    assert len(rows) == SIZES[name]
    assert named.note(name, len({row.problem for row in rows})) is None
    assert not [row.where for row in rows if "step by step and output" in row.problem or "Answer: $" in row.problem]
    answers = golds(rows)
    refused = [answer for answer, why in zip(answers, GRADER.check_golds(answers), strict=True) if why]
    # Olympiad: a family of functions with a side condition, and "t(0,4]".
    assert len(refused) == (2 if name == "olympiad" else 0), refused
    pairs = [(f"Answer: {answer}", answer) for answer in answers if "\n" not in answer and answer not in refused]
    assert len(pairs) == len(rows) - len(refused)
    assert all(score.correct for score in GRADER.score_all(pairs))


@needs_shared
def test_three_files_of_aime24_agree() -> None:
    """Different layouts and spellings of one exam: the same 30 answers."""

    def answers(path: Path) -> list[int]:
        return sorted(int(answer) for answer in golds(read(str(path))))

    folder = SHARED / "aime24"
    first = answers(folder / "aime24.parquet")
    assert first == answers(folder / "ttrl_test.json") == answers(folder / "nemo_skills_test.jsonl")
    assert first == sorted(int(answer) for answer in golds(read("aime24", SHARED)))


@needs_shared
def test_two_files_of_aime25_agree() -> None:
    """One gold is 336 degrees in one file and 336 in the other."""
    left = golds(read("aime25", SHARED))
    right = golds(read(str(SHARED / "aime25" / "nemo_skills_test.jsonl")))
    assert sorted(int(re.sub(r"\D.*", "", answer)) for answer in left) == sorted(map(int, right))
    assert "336^\\circ" in left


@needs_shared
def test_every_shared_file_by_path() -> None:
    """Columns are found in each, whatever it calls them."""
    files = sorted(path for path in SHARED.glob("*/*") if path.suffix in (".json", ".jsonl", ".parquet"))
    assert len(files) == 18
    for path in files:
        assert read(str(path), max_rows=3)[2].where == f"{path}, row 3"
