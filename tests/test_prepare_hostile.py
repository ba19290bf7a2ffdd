"""`dapo data prepare` on files and places as bad as they come: one clear line, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dapo import curate
from dapo.data.prepare import pipeline
from dapo.data.prepare.pipeline import Options
from dapo.data.wrappers import bare
from dapo.errors import UserError
from helpers_run import quiet_dapo, tree, write_rows

GOOD = {"problem": "What is 1 plus 1?", "answer": "2"}
LINE = json.dumps(GOOD).encode() + b"\n"


def refused(*words: str | Path) -> str:
    """Runs the command, which has to end with 2 and one last line "error: ..."; gives that line."""
    code, out, err = quiet_dapo("data", "prepare", *words)
    assert (code, out) == (2, ""), err[-500:]
    *before, line = err.splitlines()
    assert line.startswith("error: ")
    assert not any(other.startswith(("error", "Traceback", "  ")) for other in before), err
    return line


def refused_alone(folder: Path, file: str | Path, *words: str | Path) -> str:
    """`refused` with OUT and rejects in a folder, in which nothing may change."""
    before = tree(folder)
    line = refused(file, "-o", folder / "out", "--rejects", folder / "rejects", *words)
    assert tree(folder) == before
    return line


def parquet(table: pa.Table) -> bytes:
    """A table as a file's bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def columns(**more: Any) -> bytes:
    """A parquet file of one good row and more columns."""
    return parquet(pa.table({key: [value] for key, value in GOOD.items()} | more))


BROKEN_TEXT = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\3\0\0\0"), pa.py_buffer(b"x\xffy"))
WHOLE = columns()
FAR = pa.array([2**62], pa.timestamp("us"))

BAD_FILES = [
    ("empty.jsonl", b"", "no rows"),
    ("blank.jsonl", b"\n \n\n", "no rows"),
    ("empty.json", b"", "no rows"),
    ("empty.csv", b"", "no rows"),
    ("empty.parquet", b"", "parquet"),
    ("none.json", b"[]", "no rows"),
    ("none.parquet", parquet(pa.table({"problem": pa.nulls(0, pa.string()), "answer": pa.nulls(0)})), ""),
    ("header.csv", b"problem,answer\n", "no rows"),
    ("half.parquet", WHOLE[: len(WHOLE) // 2], "parquet"),
    ("tail.parquet", WHOLE[:-5], "parquet"),
    ("middle.parquet", WHOLE[:40] + bytes(60) + WHOLE[100:], "parquet"),
    ("text.parquet", LINE, "parquet"),
    ("parquet.jsonl", WHOLE, "row 1"),
    ("broken.parquet", columns(k=BROKEN_TEXT), "parquet"),
    ("columns.parquet", parquet(pa.table({"x": ["1"], "y": ["2"]})), "no column"),
    ("columns.jsonl", b'{"x": 1}\n', "this row has x"),
    ("answers.jsonl", b'{"problem": "what"}\n', "--answer-column"),
    ("columns.csv", b"x,y\n1,2\n", "no column"),
    ("latin.jsonl", LINE + '{"problem": "café", "answer": 1}\n'.encode("latin-1"), "row 2: not UTF-8"),
    ("utf16.jsonl", LINE.decode().encode("utf-16"), "not UTF-8"),
    ("latin.csv", "problem,answer\nun,1\ncafé,2\n".encode("latin-1"), "not UTF-8"),
    ("latin.json", '[{"problem": "café", "answer": 1}]'.encode("latin-1"), "not UTF-8"),
    ("cut.jsonl", LINE + LINE[:20], "row 2: not valid JSON"),
    ("cut.json", b"[" + LINE, "not valid JSON"),
    ("array.jsonl", LINE + b"[1, 2]\n", "row 2"),
    ("number.jsonl", b"7\n", "row 1"),
    ("array.json", b'[{"problem": "a", "answer": 1}, 3]', "row 2"),
    ("nul.jsonl", LINE + b"\0\0\0\n", "row 2"),
    ("bomb.jsonl", LINE + b'{"problem":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "row 2: not valid JSON"),
    ("bomb.json", b"[" * 100_000, "not valid JSON"),
    ("objects.jsonl", b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"\n", "not valid JSON"),
    ("digits.jsonl", b'{"problem": "a", "answer": ' + b"9" * 5000 + b"}\n", "row 1"),
    ("ragged.csv", b"problem,answer\na,1\nb,2,3\n", "row 2: 3 values for 2 columns"),
    ("short.csv", b"problem,answer\na\n", "row 1"),
    ("quote.csv", b'problem,answer\n"a,1\n', "CSV"),
    ("quotes.csv", b'problem,answer\n"a" b,1\n', "CSV"),
    ("twice.csv", b"problem,problem\na,1\n", "names of its columns"),
    ("unnamed.csv", b"problem,\na,1\n", "names of its columns"),
    ("bom.jsonl", b"\xef\xbb\xbf", "no rows"),
    ("types.jsonl", b'{"problem": 1, "answer": {"a": 2}}\n{"problem": [], "answer": true}\n', "none of its 2 rows"),
    ("surrogates.jsonl", b'{"problem": "a \\ud800", "answer": 1}\n', "text_not_unicode 1"),
    ("nulls.csv", b"problem,answer\na\0b,1\n", "text_not_unicode 1"),
    ("notes.txt", LINE, "not a table file"),
    ("shout.JSONL", LINE, "not a table file"),
    (".jsonl", b"", "no rows"),
    ("far.parquet", columns(t=FAR), "parquet"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "said"), BAD_FILES)
def test_a_bad_file_ends_in_one_line_that_names_it(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    """Exit code 2, the file's name and the reason, and neither OUT, rejects nor anything else."""
    (tmp_path / name).write_bytes(content)
    line = refused_alone(tmp_path, tmp_path / name)
    assert str(tmp_path / name) in line
    assert said in line


@pytest.mark.parametrize(("name", "content", "said"), BAD_FILES[:30:6])
def test_a_bad_file_after_a_good_one_leaves_nothing(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    """The good source's rows are not kept when a later source is bad, nor with a bad evaluation set."""
    (tmp_path / name).write_bytes(content)
    good = write_rows(tmp_path / "good.jsonl", [GOOD])
    assert name in refused_alone(tmp_path, good, tmp_path / name)
    assert name in refused_alone(tmp_path, good, "--against", tmp_path / name)


@pytest.mark.parametrize("name", ["long.jsonl", "long.csv", "long.json"])
def test_a_line_of_100_mb(tmp_path: Path, name: str) -> None:
    """A giant line is refused soon, and not taken into memory whole where lines are read."""
    file = tmp_path / name
    try:
        with file.open("wb") as handle:
            handle.write(b"problem,answer\n" if name.endswith("csv") else b'{"problem": "')
            for _ in range(100):
                handle.write(b"x" * 2**20)
        line = refused_alone(tmp_path, file)
        assert "32 MiB" in line
    finally:
        file.unlink()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"k": [1, {"a": None}]}, ("--keep", "k")),
        ({"k": float("nan")}, ("--keep", "k")),
        ({"deep": 0}, ()),
        ({"k": 10**30}, ("--keep", "k")),
        ({"k": "\ud800"}, ("--keep", "k")),
        ({"k": ["\ud800"]}, ("--keep", "k")),
        ({"data_source": "\ud800"}, ()),
    ],
)
def test_odd_values_beside_problem_and_answer(tmp_path: Path, row: dict[str, Any], words: tuple[str, ...]) -> None:
    """Such a row is kept, rejected or refused in one line; the command does not break."""
    rows = [GOOD | row, {"problem": "another one", "answer": 1} | row]
    code, _, err = quiet_dapo("data", "prepare", write_rows(tmp_path / "a.jsonl", rows), "-o", tmp_path / "out", *words)
    assert code in (0, 2), err[-300:]
    assert "Traceback" not in err


def test_a_kept_column_of_floats_and_a_huge_integer(tmp_path: Path) -> None:
    """A column of floats with an integer that no float holds does not break the command."""
    rows = [GOOD | {"k": 10**400}, {"problem": "another", "answer": 1, "k": 0.5}]
    code, _, err = quiet_dapo(
        "data", "prepare", write_rows(tmp_path / "a.jsonl", rows), "-o", tmp_path / "o", "--keep", "k"
    )
    assert code in (0, 2), err[-300:]


def test_a_file_name_that_is_no_utf8(tmp_path: Path) -> None:
    """Linux has such names; the command works or says so."""
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jsonl"))
    file.write_bytes(LINE)
    code, _, err = quiet_dapo("data", "prepare", file, "-o", tmp_path / "out")
    assert code in (0, 2), err[-300:]


def test_good_files_in_odd_clothes(tmp_path: Path) -> None:
    """A BOM, CRLF, blank lines, no last line break, fields over several lines, NaN beside: all are read."""
    files = {
        "a.jsonl": b"\xef\xbb\xbf"
        + LINE.replace(b"\n", b"\r\n")
        + b"\r\n\n"
        + b'{"problem": "b", "answer": 1, "k": NaN}',
        "a.json": b"\xef\xbb\xbf  \n[" + LINE.strip() + b', {"problem": "b", "answer": 1}]',
        "a.csv": b'\xef\xbb\xbfproblem,answer\r\n"What is 1\r\nplus 1?",2\r\n\r\nb,1',
        "a.tsv": b"answer\tproblem\n2\tWhat is 1 plus 1?\n1\tb\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        code, _, err = quiet_dapo("data", "prepare", tmp_path / name, "-o", tmp_path / f"out-{name}")
        assert code == 0, err
        table = pq.read_table(tmp_path / f"out-{name}" / "train.parquet")
        assert [" ".join(text.split()) for text in table["problem"].to_pylist()] == [GOOD["problem"], "b"]


# --- sources and options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "missing.jsonl", "missing", "", ".", "folder", "folder.jsonl", "pipe.jsonl", "loop.jsonl", "hf:", "hf:one",
        "hf:no-such-owner/no-such-set", "modelscope:a/b", "aime24", "reasoning-gym:", "reasoning-gym:no_such_task",
        "reasoning-gym:basic_arithmetic:0", "reasoning-gym:basic_arithmetic:1:2:3", "reasoning-gym:basic_arithmetic:-1",
        (f"reasoning-gym:basic_arithmetic:2:{10**30}"),
    ],
)  # fmt: skip
def test_a_source_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Nothing there, a folder, a pipe, a link to itself, a set that can't be had: one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    refused_alone(tmp_path, name)


@pytest.mark.parametrize(
    "words",
    [
        ("--prompt-column", "x"), ("--answer-column", "x.y"), ("--keep", "x"), ("--keep", "id"), ("--max-rows", "0"),
        ("--ngram", "9"), ("--coverage", "0"), ("--coverage", "1.1"), ("--similarity", "0"), ("--conflicts", "x"),
        ("--licence", "x=y"), ("--licence", "y"), ("--against", "nothing"), ("--against", "aime24", "--data-dir", "no"),
        ("--rewriter", "llm"), ("--endpoint", "http://x"), ("--nothing",), ("--tokenizer", "no/such"),
        (("--coverage", "nan")),
        (("--similarity", "nan")),
    ],
)  # fmt: skip
def test_an_option_that_does_not_fit(tmp_path: Path, words: tuple[str, ...]) -> None:
    """One line, and nothing written."""
    refused_alone(tmp_path, write_rows(tmp_path / "a.jsonl", [GOOD]), *words)


# --- places ----------------------------------------------------------------------------------------------


def test_what_is_at_out_already_is_kept(tmp_path: Path) -> None:
    """Without --overwrite anything there is refused; with it, all but a prepared or an empty folder."""
    source = write_rows(tmp_path / "a.jsonl", [GOOD])
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "mine.jsonl").write_text("mine")
    before = tree(tmp_path)
    for name in ("file", "folder", "empty", "dangling", "link", "rows"):
        assert "exists" in refused(source, "-o", tmp_path / name)
    for name in ("file", "folder", "dangling", "link", "rows"):
        assert "not overwritten" in refused(source, "-o", tmp_path / name, "--overwrite")
    assert tree(tmp_path) == before
    assert quiet_dapo("data", "prepare", source, "-o", tmp_path / "empty", "--overwrite")[0] == 0
    first = (tmp_path / "empty" / "card.json").read_bytes()
    (tmp_path / "good").symlink_to(tmp_path / "empty")
    assert "not overwritten" in refused(source, "-o", tmp_path / "good", "--overwrite")
    (tmp_path / "good").unlink()
    more = write_rows(tmp_path / "b.jsonl", [GOOD, {"problem": "b", "answer": 1}])
    assert quiet_dapo("data", "prepare", more, "-o", tmp_path / "empty", "--overwrite")[0] == 0
    assert (tmp_path / "empty" / "card.json").read_bytes() != first
    assert tree(tmp_path) == before | {"b.jsonl", "empty/card.json", "empty/train.parquet"}


def test_a_failure_with_overwrite_keeps_the_old_set(tmp_path: Path) -> None:
    """The old folder and the old rejects stay, byte by byte, when the new sources are bad."""
    source = write_rows(tmp_path / "a.jsonl", [GOOD, GOOD])
    words = ("-o", tmp_path / "out", "--rejects", tmp_path / "rejects")
    assert quiet_dapo("data", "prepare", source, *words)[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / "bad.jsonl").write_bytes(LINE + b"{")
    refused(source, tmp_path / "bad.jsonl", *words, "--overwrite")
    (tmp_path / "bad.jsonl").unlink()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_foreign_folder_with_a_card_is_not_deleted(tmp_path: Path) -> None:
    """A folder of somebody's that has a card.json, and no table, is no prepared one."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "card.json").write_text("{}")
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    quiet_dapo("data", "prepare", write_rows(tmp_path / "a.jsonl", [GOOD]), "-o", tmp_path / "out", "--overwrite")
    assert (tmp_path / "out" / "thesis.tex").is_file()


@pytest.mark.parametrize(
    "place",
    ["a.jsonl/out", "a.jsonl", "/proc/nothing/out", ("x" * 300)],
)
def test_a_place_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    """Below a file, on the source itself, in a file system of the kernel, with a name too long: one line."""
    source = write_rows(tmp_path / "a.jsonl", [GOOD])
    refused(source, "-o", tmp_path / place)
    refused(source, "-o", tmp_path / place, "--overwrite")
    assert tree(tmp_path) == {"a.jsonl"}
    assert source.read_text() == json.dumps(GOOD) + "\n"


@pytest.mark.parametrize("place", ["a.jsonl/rejects", "x" * 300, "folder", "out", "a.jsonl", "pipe", "t.jsonl"])
def test_a_place_of_the_rejects_that_does_not_do(tmp_path: Path, place: str) -> None:
    """It is refused before anything is written; no source is overwritten."""
    source = write_rows(tmp_path / "a.jsonl", [GOOD, GOOD])
    tested = write_rows(tmp_path / "t.jsonl", [{"problem": "another"}])
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = tree(tmp_path)
    refused(source, "-o", tmp_path / "out", "--rejects", tmp_path / place, "--against", tested)
    assert tree(tmp_path) == before
    assert source.read_text().count("\n") == 2
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("name", ["train.parquet", "card.json", "originals.parquet", "spool", "../out/card.json"])
@pytest.mark.parametrize("folder", ["out", "source"])
def test_the_rejects_take_no_file_of_a_prepared_set(tmp_path: Path, folder: str, name: str) -> None:
    """Neither of the set that is made nor of one that is read, however the path is spelled."""
    rows = write_rows(tmp_path / "a.jsonl", [GOOD, GOOD])
    assert quiet_dapo("data", "prepare", rows, "-o", tmp_path / "source")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "source").iterdir()}
    name = name.replace("/out/", f"/{folder}/")
    said = refused(tmp_path / "source", "-o", tmp_path / "out", "--rejects", f"{tmp_path}/{folder}/{name}")
    assert "give another name" in said
    assert {path: path.read_bytes() for path in (tmp_path / "source").iterdir()} == before
    assert not (tmp_path / "out").exists()


def test_the_rejects_take_no_named_set(tmp_path: Path) -> None:
    """A named set's file in --data-dir is read, too."""
    rows = write_rows(tmp_path / "a.jsonl", [GOOD, GOOD])
    tested = write_rows(tmp_path / "gsm8k.jsonl", [{"question": "What is 3 plus 4?", "answer": "#### 7"}])
    words = ("--against", "gsm8k", "--data-dir", tmp_path, "--rejects", tested)
    assert "this file is read" in refused(rows, "-o", tmp_path / "out", *words)
    assert "plus 4" in tested.read_text()


def test_a_failure_leaves_no_new_parents(tmp_path: Path) -> None:
    """Folders that were made for OUT and rejects go with them."""
    (tmp_path / "bad.jsonl").write_bytes(b"{")
    refused(tmp_path / "bad.jsonl", "-o", tmp_path / "new" / "out", "--rejects", tmp_path / "more" / "rejects")
    assert tree(tmp_path) == {"bad.jsonl"}


def test_what_comes_to_out_during_the_run_is_kept(tmp_path: Path) -> None:
    """Another process may write there meanwhile: its files are not deleted."""
    source = write_rows(tmp_path / "a.jsonl", [GOOD])

    def meanwhile(line: str) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "thesis.tex").write_text("mine")

    with contextlib.suppress(UserError):
        curate.run(Options(sources=(str(source),)), tmp_path / "out", say=meanwhile)
    assert (tmp_path / "out" / "thesis.tex").is_file()


# --- stopped ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "exit_code"), [(KeyboardInterrupt(), 130), (OSError(28, "No space left on device"), 2)]
)
@pytest.mark.parametrize("step", ["_conflicts", "near_duplicates", "write"])
def test_ctrl_c_and_a_full_disk_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException, exit_code: int
) -> None:
    """At any step: the code that belongs to it, the old set and no other file."""
    source = write_rows(tmp_path / "a.jsonl", [GOOD, GOOD])
    words = ("data", "prepare", source, "-o", tmp_path / "out", "--rejects", tmp_path / "rejects", "--overwrite")
    assert quiet_dapo(*words)[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def stop(*_: Any) -> None:
        raise error

    monkeypatch.setattr(pipeline, step, stop)
    code, _, err = quiet_dapo(*words)
    assert code == exit_code
    assert "Traceback" not in err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


KILLED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it comes in ignored where tests run in the background
from dapo import curate
from dapo.data.prepare import pipeline, writing
from pathlib import Path
from dapo.cli import main

folder = Path(sys.argv[1])
real = pipeline.write
for number in (15, 9, 2):
    child = os.fork()
    if child == 0:
        def write(*given):
            real(*given)  # all is written aside
            os.kill(os.getpid(), number)
            raise SystemExit(99)
        pipeline.write = write
        main(["data", "prepare", sys.argv[2], "-o", str(folder / "out"), "--rejects", str(folder / "rejects")])
    print(number, os.waitpid(child, 0)[1])
"""


def test_a_killed_process_leaves_neither_out_nor_rejects(tmp_path: Path) -> None:
    """SIGTERM, SIGKILL and Ctrl-C after the last byte is written aside, and before it is in place."""
    source = write_rows(tmp_path / "a.jsonl", [GOOD, GOOD])
    made = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(source)], capture_output=True, text=True, timeout=120
    )
    assert made.stdout.split() == ["15", "15", "9", "9", "2", str(130 << 8)], made.stderr
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "rejects").exists()
    assert {name.split("/")[0].rpartition(".")[0] for name in tree(tmp_path)} <= {"a", ".out", ".rejects"}
    words = ("-o", tmp_path / "out", "--rejects", tmp_path / "rejects")
    assert quiet_dapo("data", "prepare", source, *words)[0] == 0  # what is left of them is in nobody's way


# --- time ---------------------------------------------------------------------------------------------------


def seconds(call: Callable[[], Any]) -> float:
    """The best of two runs."""
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


@pytest.mark.parametrize(
    ("unit", "count"),
    [
        ("x", 400_000),
        (" ", 100_000),
        (r"\boxed{", 20_000),
        ("Answer: ", 20_000),
        ("<|im_start|>user\n", 4_000),
        ("<｜User｜>", 4_000),
        ("Problem: ", 20_000),
    ],
)
def test_templates_are_taken_off_in_linear_time(unit: str, count: int) -> None:
    """A text of four times the length takes no sixteen times as long: rows may have 32 MiB."""
    before = "" if unit.startswith("Problem") else "a "
    short, long = (seconds(lambda n=n: bare(f"{before}{unit * n}b", "")) for n in (count, 4 * count))
    assert long < 8 * short + 0.02
