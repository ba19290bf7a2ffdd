"""dapo data rate and inspect: pass rates from a server that is right at known rates, into the prepared table."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

import helpers_run as helpers
from dapo.data.prepare.rating import exact_interval, write_rated
from dapo.difficulty import Rating, forecast
from dapo.errors import DataError, UserError
from dapo.rate import Rated, _results, lines, sets_to_sample
from helpers_server import serving

K = 4


class Server:
    """Of "What is 10 plus N?" the first N of each K samples are right; what was made an integer is never right."""

    counts: ClassVar[dict[str, int]] = {}
    lock: ClassVar[threading.Lock] = threading.Lock()
    ends_after: ClassVar[int | None] = None

    @staticmethod
    def reply(body: dict[str, Any]) -> str | int:
        question = body["messages"][-1]["content"]
        with Server.lock:
            count = Server.counts[question] = Server.counts.get(question, 0) + 1
            total = sum(Server.counts.values())
        if Server.ends_after is not None and total > Server.ends_after:
            return 400
        number = int(re.findall(r"plus (\d+)", question)[0])
        right = "1/2" if "half" in question and "integer" not in question else str(10 + number)
        return f"Answer: {right if (count - 1) % K < number else '-1'}"


@pytest.fixture
def server() -> Iterator[str]:
    """The server's address."""
    Server.counts.clear()
    Server.ends_after = None
    with serving(Server.reply) as address:
        yield address


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prepared set of six problems, the last of them with its answer made an integer."""
    monkeypatch.chdir(tmp_path)
    rows = [{"problem": f"What is 10 plus {n}?", "answer": str(10 + n)} for n in range(K + 1)]
    rows.append({"problem": "What is half of 1, plus 4 minus 4?", "answer": "\\frac{1}{2}"})
    Path("raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ok("data", "prepare", "raw.jsonl", "-o", "set", "--integers", "rewrite", "--near-duplicates", "keep")
    return tmp_path / "set"


def ok(*words: str | Path) -> str:
    """stdout of a command that has to end with 0."""
    code, out, err = helpers.quiet_dapo(*words)
    assert code == 0, err
    return out


def refused(*words: str | Path) -> str:
    """The one line of a command that has to end with 2."""
    code, _, err = helpers.quiet_dapo(*words)
    assert code == 2, err
    assert "Traceback" not in err
    return err.strip().splitlines()[-1]


def asked(server: str) -> tuple[str, ...]:
    """What asks this server K times."""
    return ("--endpoint", server, "--k", str(K), "--concurrency", "1", "data.template=chat", "--max-tokens", "9")


def test_pass_rates_are_written_with_their_intervals(server: str, folder: Path) -> None:
    """Each row has its rate, exact interval and counts; originals of rewritten answers are rated beside them."""
    out = ok("data", "rate", folder, "small", "-o", "rated", *asked(server))
    rows = pq.read_table("rated/train.parquet").to_pylist()
    assert [row["pass_rate"] for row in rows] == [0.0, 0.25, 0.5, 0.75, 1.0, 0.0]
    assert [(row["pass_right"], row["pass_responses"]) for row in rows][1:3] == [(1, 4), (2, 4)]
    assert (rows[2]["pass_rate_low"], rows[2]["pass_rate_high"]) == exact_interval(2, 4)
    assert [row["original_pass_rate"] for row in rows] == [None] * 5 + [1.0]
    assert [row["original_pass_responses"] for row in rows] == [None] * 5 + [K]
    assert "integer rewriting, 1 problems before and after: pass rate -100.0% (no interval for one problem)" in out
    # At G = 4 = K the unbiased prediction is 1 for 0 < right < 4: three of six. Beyond K there is f(rate).
    assert "at 16 responses a draw, 49.7% of draws would be informative" in out
    again = ok("data", "rate", folder, "rated.samples", "-o", "again", "--responses-per-prompt", "4")
    assert "at 4 responses a draw, 50.0% of draws would be informative" in again
    assert "takes 2.00 draws" in again
    assert Path("again/train.parquet").read_bytes() == Path("rated/train.parquet").read_bytes()
    card = json.loads(Path("rated/card.json").read_text())
    assert (card["rating"]["model"]["name"], card["rating"]["sampling"]["top_p"]) == ("small", 1.0)
    assert card["rating"]["rows_rated"] == 6
    assert (card["rating"]["prompt"]["template"], card["rating"]["grader"]["judge"]) == ("chat", "grader")
    assert "rated" in ok("data", "inspect", "rated")


def test_rates_are_what_training_reads(server: str, folder: Path, tmp_path: Path) -> None:
    """A run on the rated set leaves out what is too easy or too hard, and foretells acceptance."""
    ok("data", "rate", folder, "small", "-o", "rated", *asked(server))
    words = (
        "data.source=rated",
        "data.rating_column=pass_rate",
        "data.min_pass_rate=0.1",
        "data.max_pass_rate=0.9",
        "data.holdout=1",
    )
    recipe = helpers.write_recipe(tmp_path)
    code, out, err = helpers.quiet_dapo("train", recipe, *words, "data.template=raw", "--dry-run")
    assert code == 0, err
    said = " ".join((out + err).split())
    assert "ratings: 2 of 2 problems have a pass_rate" in said
    assert "of draws are informative" in said


def test_an_interrupted_rating_goes_on(server: str, folder: Path) -> None:
    """The same command takes up the samples that are there; an unfinished evaluation is refused by name."""
    Server.ends_after = 2 * K
    code, _, err = helpers.quiet_dapo("data", "rate", folder, "small", "-o", "rated", *asked(server))
    assert code != 0, err
    assert not Path("rated").exists()
    assert "finish it with: dapo eval --resume" in refused("data", "rate", folder, "rated.samples", "-o", "rated")
    Server.ends_after = None
    Server.counts = {question: count for question, count in Server.counts.items() if count == K}
    ok("data", "rate", folder, "small", "-o", "rated", *asked(server))
    assert [row["pass_rate"] for row in pq.read_table("rated/train.parquet").to_pylist()][:3] == [0.0, 0.25, 0.5]


def test_mistakes_with_ratings(server: str, folder: Path) -> None:
    """Before anything is sampled: not a prepared folder, a place that is taken, samples of other problems."""
    assert "no prepared folder; make one with: dapo data prepare" in refused(
        "data", "rate", "raw.jsonl", "m", "-o", "x"
    )
    assert "it exists" in refused("data", "rate", folder, "small", "-o", "set", *asked(server))
    assert not Server.counts
    ok("data", "rate", folder, "small", "-o", "rated", *asked(server))
    Path("other.jsonl").write_text('{"problem": "What is 9 plus 9?", "answer": "18"}\n')
    ok("data", "prepare", "other.jsonl", "-o", "other")
    said = refused("data", "rate", "other", "rated.samples", "-o", "x")
    assert "none of its problems is among those that were sampled" in said
    assert not Path("x").exists()


def test_a_rate_belongs_to_problem_and_answer(server: str, folder: Path) -> None:
    """Samples graded against another gold say nothing; what is left without a rate is told of."""
    ok("data", "rate", folder, "small", "-o", "rated", *asked(server))
    rows = [{"problem": f"What is 10 plus {n}?", "answer": str(10 + n + (n == 2))} for n in range(1, 4)]
    Path("mended.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ok("data", "prepare", "mended.jsonl", "-o", "mended", "--near-duplicates", "keep")
    out = ok("data", "rate", "mended", "rated.samples", "-o", "again")
    assert [row["pass_rate"] for row in pq.read_table("again/train.parquet").to_pylist()] == [0.25, None, 0.75]
    assert "1 problems are not among those sampled, with the same answer" in out


@pytest.mark.parametrize("words", [("--k", "16"), ("--temperature", "1"), ("eval.k=3",), ("--endpoint", "http://x")])
def test_samples_that_are_there_take_no_options(server: str, folder: Path, words: tuple[str, ...]) -> None:
    """How to sample is no question where there are samples; silence would say that it was heard."""
    ok("data", "rate", folder, "small", "-o", "rated", *asked(server))
    said = refused("data", "rate", folder, "rated.samples", "-o", "x", *words)
    assert f"so {words[0]} says nothing to it" in said


@pytest.mark.parametrize("name", ["math500", "holdout", ".", "math500/"])
def test_a_folder_of_any_name_is_rated(server: str, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the folder that is sampled, not the named set."""
    folder.rename(name.rstrip("/") if name != "." else "set")
    monkeypatch.chdir(folder if name == "." else ".")
    ok("data", "rate", name, "small", "-o", folder.parent / "rated", *asked(server))
    rows = pq.read_table(folder.parent / "rated" / "train.parquet").to_pylist()
    assert [row["pass_rate"] for row in rows] == [0.0, 0.25, 0.5, 0.75, 1.0, 0.0]


def test_one_score_that_is_neither_right_nor_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there is no pass rate, however the other problems are scored."""
    results = [SimpleNamespace(question=str(graded), answer="1", graded=graded) for graded in (True, False)]
    figures = SimpleNamespace(sets=[SimpleNamespace(results=results)])
    monkeypatch.setattr("dapo.rate.figures_of_rows", lambda rows: figures)
    store: Any = SimpleNamespace(path="old", rows=lambda name: {"a": []})
    with pytest.raises(UserError, match="old: its scores don't say right or wrong"):
        _results(store, {"sets": {"s": {"problems": 1}}})


def test_nothing_to_learn_is_said_so() -> None:
    """All right or none right: no draw would be informative."""
    seen = forecast([[Rating(1.0), Rating(0.0)]], None, size=4, wanted=1)
    _, said = lines(Rated(rows=2, unrated=0, mean=0.5, samples=4, seen=seen, size=4, rewrite=None))
    assert said.endswith("for this model: it can learn nothing from these problems")


def test_a_folder_that_no_data_setting_can_name(folder: Path) -> None:
    """--data takes several sets with commas between."""
    assert sets_to_sample(str(folder)) == f"{folder},{folder / 'originals.parquet'}"
    folder.rename("a,b")
    with pytest.raises(DataError, match="a path with a comma"):
        sets_to_sample("a,b")


def test_a_set_can_be_rated_again(folder: Path) -> None:
    """The new rates replace the old ones; none right of some is 0, and a problem without responses has none."""
    problems = [(row["problem"], row["answer"]) for row in pq.read_table(folder / "train.parquet").to_pylist()]
    assert write_rated(folder, Path("one"), {problems[0]: (3, 4), problems[1]: (1, 2)}, {"by": "one"}) == 2
    assert write_rated(Path("one"), Path("two"), {problems[1]: (0, 4)}, {"by": "two"}) == 1
    rows = pq.read_table("two/train.parquet").to_pylist()
    assert [(row["pass_rate"], row["pass_right"], row["pass_responses"]) for row in rows] == [
        (None, None, None), (0.0, 0, 4), *[(None, None, None)] * 4,
    ]  # fmt: skip
    assert [row["pass_rate_low"] for row in rows[:2]] == [None, 0.0]
    assert pq.read_schema("two/train.parquet").names.count("pass_rate") == 1
    assert json.loads(Path("two/card.json").read_text())["rating"] == {"by": "two", "rows_rated": 1}


def test_exact_intervals() -> None:
    """Clopper and Pearson's closed form at the ends: 1 - 0.025^(1/n)."""
    assert exact_interval(0, 16) == (0.0, pytest.approx(1 - 0.025 ** (1 / 16)))
    assert exact_interval(16, 16) == (pytest.approx(0.025 ** (1 / 16)), 1.0)


def test_inspect_shows_card_samples_and_lengths(folder: Path) -> None:
    """A prepared folder shows its steps; any file shows what is in it; a changed table is refused."""
    out = ok("data", "inspect", folder, "--samples", "6")
    assert "exact_duplicates" in out
    assert "Before rewriting: What is half of 1, plus 4 minus 4?" in out
    assert "problem length in words" in out
    found = json.loads(ok("data", "inspect", "raw.jsonl", "--json", "--samples", "2"))
    assert (found["rows"], found["answer_type"], len(found["samples"])) == (6, {"integer": 5, "fraction": 1}, 2)
    assert found["card"] is None
    Path("tests.jsonl").write_text('{"problem": "What is it?"}\n')
    assert json.loads(ok("data", "inspect", "tests.jsonl", "--json"))["answer_type"] == {"none": 1}
    assert "no column gold" in refused("data", "inspect", "tests.jsonl", "--answer-column", "gold")
    table = folder / "train.parquet"
    table.write_bytes(table.read_bytes()[:-1] + b"X")
    assert "not the table that card.json is about" in refused("data", "inspect", folder)
    assert "no such file" in refused("data", "inspect", "nowhere.csv")
    Path("odd.csv").write_text("task,gold\nWhat is 1 plus 1?,2\n")
    assert "name it with --prompt-column" in refused("data", "inspect", "odd.csv")
    assert "Answer: 2" in ok("data", "inspect", "odd.csv", "--prompt-column", "task", "--answer-column", "gold")
