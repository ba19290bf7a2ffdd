"""dapo browse: which responses it shows, how, and that none of them can steer the terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import zstandard

import dapo
import helpers_run as helpers
from dapo.cli import group
from dapo.cli.browse import _cut, browse

group.add_command(browse)

HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \r\x08\x9b2J [bold]x[/bold] [/] :smile: \ud800 \u202eevil \u2028 ü 数 \x7f end"
)
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\ud800-\udfff]")
CODE = "import sys\nfrom dapo.cli import group, main\nfrom dapo.cli.browse import browse\ngroup.add_command(browse)\n"
SHOWN = re.compile(r"problem (\d+) \(\w+\)  g (\d+)  (\w+)")


def row(draw: int, g: int, **fields: Any) -> dict[str, Any]:
    """A row as it is kept: problem `draw`, right at g = 0, with tokens 10 * draw + g + 1."""
    plain: dict[str, Any] = {
        "step": 0, "draw": draw, "g": g, "prompt_id": f"{draw}abc{draw}def0123456789", "question": f"What is Q{draw}?",
        "prompt": "p", "answer": "7", "text": f"Answer: text of {draw} and {g}", "finish": "stop",
        "tokens": 10 * draw + g + 1, "verdict": "wrong" if g else "correct", "extracted": "8" if g else "7",
        "stage": "exact", "reward": 1.0 - 2 * bool(g), "parts": {}, "overlong": 0.0, "kept": True, "versions": [],
        "set": "test", "source": "s", "correct": not g,
    }  # fmt: skip
    return plain | fields


def lines(rows: Iterable[Any]) -> str:
    """JSON lines as an evaluation writes them."""
    return "".join(json.dumps(one, ensure_ascii=True) + "\n" for one in rows)


def evaluation(folder: Path, **sets: Iterable[Any]) -> Path:
    """An evaluation's folder with these rows by set."""
    (folder / "samples").mkdir(parents=True)
    settings = {"sets": {name: {} for name in sets}, "sampling": {"k": 2}}
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    for name, rows in sets.items():
        (folder / "samples" / f"{name}.jsonl").write_text(lines(rows), encoding="ascii")
    return folder


def six(**fields: Any) -> list[dict[str, Any]]:
    """Three problems of two responses, in the order in which they finished."""
    return [row(draw, g, **fields) for draw in (2, 0, 1) for g in (0, 1)]


@pytest.fixture
def one_set(tmp_path: Path) -> Path:
    """An evaluation of one set."""
    return evaluation(tmp_path / "evaluated", test=six())


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows into a file."""

    def write(*rows: Any) -> Path:
        path = tmp_path / "rows.jsonl"
        path.write_text(lines(rows), encoding="ascii")
        return path

    return write


def ok(*words: str | Path) -> tuple[str, str]:
    """(stdout, stderr) of a command that has to end with 0."""
    code, out, err = helpers.quiet_dapo("browse", *words)
    assert code == 0, err
    return out, err


def refused(*words: str | Path) -> str:
    """The one line that a mistake is answered with, without the code at its end."""
    code, out, err = helpers.quiet_dapo("browse", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.strip().partition("  [dapo explain E-")[0]


def shown(*words: str | Path) -> list[tuple[int, int]]:
    """(place, g) of the responses shown, in order; --json shows the same."""
    out, _ = ok(*words)
    found = [(int(place), int(g)) for place, g, _ in SHOWN.findall(out)]
    rows = [json.loads(line) for line in ok(*words, "--json")[0].splitlines()]
    assert [one["g"] for one in rows] == [g for _, g in found]
    return found


# --- which responses ------------------------------------------------------------------------------------

ALL = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ALL),
        (["--longest"], ALL[::-1]),
        (["--shortest"], ALL),
        (["-n", "2"], ALL[:2]),
        (["-n", "2", "--longest"], [(3, 1), (3, 0)]),
        (["-n", "0"], ALL),
        (["--problem", "2"], [(2, 0), (2, 1)]),
        (["--problem", "1abc"], [(2, 0), (2, 1)]),
        (["--problem", "1ABC1D"], [(2, 0), (2, 1)]),
        (["--problem", "1ab"], []),  # too short for an id, and no part of a question
        (["--problem", "q2"], [(3, 0), (3, 1)]),
        (["--problem", "WHAT IS"], ALL),
        (["--verdict", "wrong"], ALL[1::2]),
        (["--verdict", "wrong", "--verdict", "correct"], ALL),
        (["--verdict", "timeout"], []),
        (["--complete"], ALL),
        (["--truncated"], []),
        (["--find", "OF 1 AND"], [(2, 0), (2, 1)]),
        (["--find", "1."], []),  # no pattern
        (["--find", "and 1", "--problem", "3", "--verdict", "wrong", "--complete"], [(3, 1)]),
        (["--set", "test"], ALL),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_options_choose_and_order(one_set: Path, words: list[str], expected: list[tuple[int, int]]) -> None:
    """Problems in their order in the set, whenever they finished; every filter, and several at once."""
    assert shown(one_set, *words) == expected


def test_counts_stand_last_on_stderr(one_set: Path) -> None:
    """What is shown, what matches, what there is; nothing else on stderr."""
    assert ok(one_set, "-n", "2", "--verdict", "wrong")[1] == "shown 2 of 3 responses that match, of 6\n"
    assert ok(one_set, "--json", "-n", "1")[1] == "shown 1 of 6 responses that match, of 6\n"
    assert ok(one_set, "--find", "nowhere") == ("", "no response matches, of 6\n")
    assert ok(one_set, "--find", "nowhere", "--list") == ("", "no response matches, of 6\n")


def test_ten_are_shown_by_default_and_thousands_are_grouped(jsonl: Callable[..., Path]) -> None:
    """A screenful, not the file."""
    path = jsonl(*(row(draw, g) for draw in range(617) for g in (0, 1)))
    out, err = ok(path)
    assert len(SHOWN.findall(out)) == 10
    assert err == "shown 10 of 1,234 responses that match, of 1,234\n"
    assert len(ok(path, "--list")[0].splitlines()) == 617


def test_finish(jsonl: Callable[..., Path]) -> None:
    """An abandoned response is neither complete nor truncated."""
    path = jsonl(row(0, 0), row(0, 1, finish="length"), row(0, 2, finish="abort"))
    assert shown(path, "--complete") == [(1, 0)]
    assert shown(path, "--truncated") == [(1, 1)]


def test_json_gives_the_rows_whole(one_set: Path) -> None:
    """As they were kept, and a file of them can be browsed again."""
    out, _ = ok(one_set, "--json", "-n", "0")
    assert [json.loads(line) for line in out.splitlines()] == sorted(six(), key=lambda one: (one["draw"], one["g"]))
    again = one_set / "again.jsonl"
    again.write_text(out, encoding="utf-8")
    assert ok(again, "-n", "0")[0] == ok(one_set, "-n", "0")[0]


def test_several_sets(tmp_path: Path) -> None:
    """In the order of the settings; a place alone doesn't say which problem."""
    other = [one | {"set": "aime", "prompt_id": "feed" + one["prompt_id"]} for one in six()]
    folder = evaluation(tmp_path / "evaluated", test=six(), aime=other)
    out, err = ok(folder, "-n", "0")
    assert out.index("test problem 3") < out.index("aime problem 1")
    assert "of 12\n" in err
    assert ok(folder, "--list")[0].splitlines()[3].startswith("aime  1")
    assert "aime" in ok(folder, "--problem", "feed0")[0]
    out, err = ok(folder, "--set", "aime", "--problem", "2")
    assert "(feed1abc)" in out
    assert err == "shown 2 of 2 responses that match, of 6\n"
    assert "add --set with one of test, aime" in refused(folder, "--problem", "2")
    assert "--set aim: no such set; there is test, aime" in refused(folder, "--set", "aim")
    merged = tmp_path / "merged.jsonl"
    merged.write_text(lines([*six(), *other]), encoding="utf-8")
    assert ok(merged, "--set", "aime")[1].endswith("of 6\n")
    assert "--set aim: no such set; there is test, aime" in refused(merged, "--set", "aim")


def test_places_of_an_interrupted_evaluation_are_those_of_the_whole_one(tmp_path: Path) -> None:
    """Problem 3 stays problem 3 while problem 2 is still missing."""
    folder = evaluation(tmp_path / "evaluated", test=[one for one in six() if one["draw"] != 1])
    assert shown(folder) == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert "there is 1, 3" in refused(folder, "--problem", "2")
    assert "--problem 99: no such problem" in refused(folder, "--problem", "99")


def test_places_of_training_rollouts_are_ranks(jsonl: Callable[..., Path]) -> None:
    """Their draws go on from step to step."""
    rows = [row(draw, 0) for draw in (512, 514)]
    for one in rows:
        del one["set"], one["correct"], one["source"]
    assert shown(jsonl(*rows)) == [(1, 0), (2, 0)]
    assert "no such set; there is none" in refused(jsonl(*rows), "--set", "x")


def test_a_number_that_is_no_place_can_begin_an_id(jsonl: Callable[..., Path]) -> None:
    """Ids are hexadecimal: some begin with digits alone."""
    path = jsonl(row(0, 0), row(1, 0, prompt_id="48213abc"))
    assert shown(path, "--problem", "48213") == [(2, 0)]


# --- the list -------------------------------------------------------------------------------------------


def test_list(tmp_path: Path) -> None:
    """One line a problem, over all its responses, for those with one that matches."""
    rows = [one | {"question": "Why\nis " + "this long " * 20} if one["draw"] == 2 else one for one in six()]
    rows[5] |= {"finish": "length", "tokens": 3000, "answer": None}
    folder = evaluation(tmp_path / "evaluated", test=rows)
    out, err = ok(folder, "--list")
    first, second, third = out.splitlines()
    assert first.split()[:7] == ["1", "0abc0def", "1/2", "1.5", "tokens", "0", "truncated"]
    assert first.endswith("gold 7  What is Q0?")
    assert second.split()[:7] == ["2", "1abc1def", "1/2", "1,505.5", "tokens", "1", "truncated"]
    assert "Why is this long" in third
    assert third.endswith("...")
    assert len(third) < 140
    assert err == "shown 3 of 3 problems with a response that matches, of 3\n"
    out, err = ok(folder, "--list", "--truncated")
    assert [line.split()[0] for line in out.splitlines()] == ["2"]
    assert err == "shown 1 of 1 problems with a response that matches, of 3\n"
    assert ok(folder, "--list", "-n", "2")[1].startswith("shown 2 of 3 problems")


def test_list_of_graded_responses_tells_the_mean_reward(jsonl: Callable[..., Path]) -> None:
    """Right and wrong mean nothing there."""
    rows = [row(0, g, verdict="graded", correct=None, reward=g / 2) for g in (0, 1)]
    assert "mean reward 0.250" in ok(jsonl(*rows), "--list")[0]
    del rows[0]["correct"], rows[1]["correct"]
    assert "mean reward 0.250" in ok(jsonl(*rows), "--list")[0]


# --- how they are shown ---------------------------------------------------------------------------------


def test_headline(jsonl: Callable[..., Path]) -> None:
    """Everything that is known of a response; the question once."""
    path = jsonl(row(0, 0), row(0, 1, extracted=None, overlong=-0.5, kept=False, tokens=12345, verdict="unparsed"))
    out, _ = ok(path)
    assert out.count("What is Q0?") == 1
    assert "problem 1 (0abc0def)  g 0  correct  answer 7, gold 7  by exact  1 tokens  stop  reward 1.0\n" in out
    assert (
        "g 1  unparsed  no answer, gold 7  by exact  12,345 tokens  stop  reward -1.0  overlong -0.5  not kept" in out
    )
    assert "\n  Answer: text of 0 and 1\n" in out


def test_long_texts_are_cut_unless_full(jsonl: Callable[..., Path]) -> None:
    """Beginning and end, and how much lies between."""
    text = "".join(f"line {i:03d}\n" for i in range(200)) + "the end"
    path = jsonl(row(0, 0, text=text))
    out, _ = ok(path)
    assert "line 009" in out
    assert "line 010" not in out
    assert "the end" in out
    assert "... 1,630 characters left out ..." in out
    assert "\n".join(f"  {line}" for line in text.split("\n")) in ok(path, "--full")[0]
    assert "line 100" in ok(path, "--find", "LINE 100")[0]  # what was looked for is not cut out


@pytest.mark.parametrize("text", ["", "\n", "a", "a\n" * 19, "x" * 1500, "\n" * 30, "a\n" * 10 + "b"])
def test_short_texts_are_whole(text: str) -> None:
    """Nothing is left out where it would save nothing."""
    assert _cut(text) == text


@pytest.mark.parametrize("text", ["x" * 100_000, "ab\n" * 5000, "x" * 5000 + "\n" * 40 + "y" * 5000])
@pytest.mark.parametrize("find", ["", "x", "AB", "\n", "yyy"])
def test_what_is_left_out_is_counted(text: str, find: str) -> None:
    """Shown and left out make the whole."""
    cut = _cut(text, find)
    marks = re.findall(r"\n\.\.\. ([\d,]+) characters left out \.\.\.\n", cut)
    assert marks
    kept = len(re.sub(r"\n\.\.\. [\d,]+ characters left out \.\.\.\n", "", cut))
    assert kept + sum(int(mark.replace(",", "")) for mark in marks) == len(text)
    assert kept <= 1900


@pytest.mark.parametrize(
    "field", ["text", "question", "extracted", "answer", "stage", "verdict", "finish", "prompt_id"]
)
def test_a_hostile_row_cannot_steer_the_terminal(jsonl: Callable[..., Path], field: str) -> None:
    """Whatever field it is in, and in every way of showing."""
    path = jsonl(row(0, 0, **{field: HOSTILE, "set": HOSTILE}), row(1, 0))
    for words in ([], ["--full"], ["--list"], ["--json"]):
        out, _ = ok(path, *words)
        assert not STEERING.search(out)
    if field in ("text", "question"):
        assert (
            "\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\r\\x08\\x9b2J [bold]x[/bold] [/] :smile: \\ud800" in ok(path)[0]
        )
        assert "\\u202eevil \\u2028 ü 数 \\x7f end" in ok(path)[0]
    assert json.loads(ok(path, "--json")[0].splitlines()[0])[field] == HOSTILE
    for mistake in (["--set", "x"], ["--problem", "1"]):
        assert not STEERING.search(refused(jsonl(row(0, 0, set=HOSTILE), row(0, 0)), *mistake))


def test_no_line_of_a_response_passes_for_a_headline(jsonl: Callable[..., Path]) -> None:
    """They are stepped in."""
    out, _ = ok(jsonl(row(0, 0, text="x\nproblem 1 (0abc0def)  g 9  correct\ry\x0bproblem 2\x85z")))
    assert len([line for line in out.splitlines() if line.startswith("problem")]) == 2  # the question's and g 0


def test_a_line_of_a_megabyte(jsonl: Callable[..., Path]) -> None:
    """Is cut, and whole with --full."""
    path = jsonl(row(0, 0, text="é" * 1_000_000 + "\x1b"))
    out, _ = ok(path)
    assert len(out) < 3000
    assert "998,501 characters left out" in out
    assert "é" * 1_000_000 + "\\x1b" in ok(path, "--full")[0]


def process(*words: str | Path, before: str = "", after: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    code = f"{CODE}{before}\ntry:\n    main(sys.argv[1:])\nfinally:\n    {after or 'pass'}"
    return subprocess.run(
        [sys.executable, "-c", code, "browse", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(Path(dapo.__file__).parents[1]), **env},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def test_loads_nothing_heavy(one_set: Path) -> None:
    """Of evaluations, and of runs."""
    heavy = "{'torch', 'transformers', 'pyarrow', 'scipy'} & {n.split('.')[0] for n in sys.modules}"
    for words in ((one_set,), (one_set, "--list"), (helpers.finished_run(), "--eval")):
        done = process(*words, after=f"print('heavy', sorted({heavy}), file=sys.stderr)")
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[-1] == "heavy []"


def test_an_encoding_without_the_letters(jsonl: Callable[..., Path]) -> None:
    """They come as escapes, not as a traceback."""
    path = jsonl(row(0, 0, text="ü 数", answer="ü"))
    done = process(path, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert "\\xfc \\u6570" in done.stdout
    assert "gold \\xfc" in done.stdout


@pytest.mark.parametrize("words", [["-n", "0"], ["-n", "0", "--json"], ["--list"]], ids=" ".join)
def test_a_reader_that_leaves(jsonl: Callable[..., Path], words: list[str]) -> None:
    """`| head` ends it quietly."""
    path = jsonl(*(row(draw, 0, text="x" * 1000) for draw in range(2000)))
    command = [sys.executable, "-c", f"{CODE}main(sys.argv[1:])", "browse", str(path), *words]
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | head -1', "-", *command],
        env={**os.environ, "PYTHONPATH": str(Path(dapo.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


def test_colours_on_a_terminal_alone(jsonl: Callable[..., Path]) -> None:
    """And on one, those of the response are still escapes."""
    path = jsonl(row(0, 0, text=HOSTILE))
    env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")}
    env |= {"PYTHONPATH": str(Path(dapo.__file__).parents[1]), "TERM": "xterm-256color"}
    command = [sys.executable, "-c", f"{CODE}main(sys.argv[1:])", "browse", str(path)]
    piped = subprocess.run(command, env=env, capture_output=True, timeout=120, check=True)
    assert b"\x1b" not in piped.stdout
    ours, theirs = pty.openpty()
    subprocess.run(command, env=env, stdout=theirs, stderr=subprocess.DEVNULL, timeout=120, check=True)
    os.close(theirs)
    seen = os.read(ours, 100_000).decode("utf-8")
    os.close(ours)
    assert "\x1b[1;32mcorrect\x1b[0m" in seen
    assert "\\x1b[31mred\\x1b[0m" in seen
    assert not STEERING.search(re.sub(r"\x1b\[[\d;]*m", "", seen).replace("\r\n", "\n"))


# --- runs -----------------------------------------------------------------------------------------------


def test_a_training_run() -> None:
    """The newest step by default; any by --step; its evaluation by --eval."""
    run = helpers.finished_run()
    for folder, words in (("rollouts", []), ("eval", ["--eval"])):
        files = sorted((run / folder).glob("step_*.jsonl.zst"))
        for file, step in [(files[-1], []), *((file, ["--step", str(int(file.name[5:11]))]) for file in files)]:
            text = zstandard.ZstdDecompressor().decompress(file.read_bytes()).decode("utf-8")
            rows = [json.loads(line) for line in text.splitlines()]
            out, err = ok(run, *words, *step, "-n", "0", "--json")
            found = [json.loads(line) for line in out.splitlines()]
            assert found == sorted(rows, key=lambda one: (one["draw"], one["g"]))
            assert err == f"shown {len(rows)} of {len(rows)} responses that match, of {len(rows)}\n"
            assert ok(file, "-n", "0", "--json")[0] == out
    out, _ = ok(run, "--list")
    assert [line.split()[0] for line in out.splitlines()] == [str(i + 1) for i in range(len(out.splitlines()))]
    assert "problem 1 (" in ok(run)[0]
    assert ok(run, "--eval", "--set", "holdout")[1] == ok(run, "--eval")[1]


def test_the_latest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of runs/."""
    monkeypatch.chdir(tmp_path)
    assert "no run in runs/" in refused("latest")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one").symlink_to(helpers.finished_run())
    assert ok("latest") == ok(helpers.finished_run())


def test_wrong_words_about_a_run(tmp_path: Path) -> None:
    """Each answered with what there is, or what to write."""
    run = helpers.finished_run()
    assert "--step 9: " in refused(run, "--step", "9")
    assert refused(run, "--step", "9").endswith("there is 1, 2")
    assert refused(run, "--eval", "--step", "1").endswith("there is 0, 2")
    assert "add --eval" in refused(run, "--set", "holdout")
    assert "no such set; there is holdout" in refused(run, "--eval", "--set", "x")
    new = tmp_path / "new"
    new.mkdir()
    (new / "config.resolved.json").write_text("{}", encoding="utf-8")
    assert "holds no training step yet" in refused(new)
    assert "holds no evaluation yet" in refused(new, "--eval")


def test_many_steps_are_told_in_few_words(tmp_path: Path) -> None:
    """1 to 300, not 300 numbers."""
    (tmp_path / "config.resolved.json").write_text("{}", encoding="utf-8")
    (tmp_path / "rollouts").mkdir()
    for step in [*range(1, 301), 305, 306]:
        (tmp_path / "rollouts" / f"step_{step:06d}.jsonl.zst").write_bytes(b"")
    (tmp_path / "rollouts" / "step_000400.jsonl.zst.tmp").write_bytes(b"")
    assert refused(tmp_path, "--step", "304").endswith("there is 1 to 300, 305, 306")
    assert "step_000306.jsonl.zst: damaged" in refused(tmp_path)


# --- files that are not as they should be ---------------------------------------------------------------


def test_a_torn_end_is_left_out_with_a_note(one_set: Path) -> None:
    """An evaluation that was interrupted, or still writes."""
    file = one_set / "samples" / "test.jsonl"
    whole = file.read_bytes()
    for tail in (b'{"step": 0, "dr', b"\xff", b"\0" * 20):
        file.write_bytes(whole + tail)
        out, err = ok(one_set)
        assert len(SHOWN.findall(out)) == 6
        note, last = err.splitlines()
        assert note == f"{file}: its last line is cut off and left out"
        assert last == "shown 6 of 6 responses that match, of 6"
    file.write_bytes(whole[:-1])
    assert ok(one_set)[1] == "shown 6 of 6 responses that match, of 6\n"


def test_an_evaluation_that_has_only_begun(tmp_path: Path) -> None:
    """No samples yet, or a set without any."""
    folder = evaluation(tmp_path / "evaluated", test=[], other=six())
    assert ok(folder, "--set", "test") == ("", "no response matches, of 0\n")
    assert len(SHOWN.findall(ok(folder)[0])) == 6
    for file in (folder / "samples").iterdir():
        file.unlink()
    assert ok(folder) == ("", "no response matches, of 0\n")
    assert ok(folder, "--set", "test", "--problem", "1", "--list") == ("", "no response matches, of 0\n")


@pytest.mark.parametrize("content", ["", "\n", "\n \n\n"])
def test_an_empty_file(tmp_path: Path, content: str) -> None:
    """Holds nothing, and that is no mistake."""
    path = tmp_path / "rows.jsonl"
    path.write_text(content, encoding="utf-8")
    assert ok(path) == ("", "no response matches, of 0\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: damaged"),
        ("[" * 100_000, "line 2: damaged"),
        ("3", "line 2: no row of a rollout (draw is missing"),
        ("[]", "line 2: no row of a rollout (draw is missing"),
        ("{}", "line 2: no row of a rollout (draw is missing"),
        (json.dumps(row(0, 1, text=None)), "line 2: no row of a rollout (text is missing or no str)"),
        (json.dumps(row(0, 1, tokens="many")), "line 2: no row of a rollout (tokens is missing or no int)"),
        ('{"question": "a data file", "answer": "7"}', "line 2: no row of a rollout (draw is missing"),
    ],
)
def test_a_damaged_line(tmp_path: Path, line: str, said: str) -> None:
    """Is named, with its file."""
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(row(0, 0))}\n{line}\n{json.dumps(row(0, 2))}\n", encoding="utf-8")
    assert f"{path}, {said}" in refused(path)


def test_rows_with_less_and_with_odd_values(tmp_path: Path) -> None:
    """What a row need not have is a dash; NaN, which JSON lacks, is null."""
    needed = ("draw", "g", "prompt_id", "question", "text", "tokens", "finish", "verdict")
    least = {key: value for key, value in row(0, 0).items() if key in needed}
    path = tmp_path / "rows.jsonl"
    odd = row(1, 0, reward=float("nan"), answer=["a", 1], set=None, step="x")
    path.write_text(f"{json.dumps(least)}\n\n{json.dumps(odd)}\n", encoding="utf-8")
    out, _ = ok(path)
    assert "no answer, gold -  1 tokens  stop  reward -\n" in out
    assert "gold ['a', 1]" in out
    assert helpers.strict_json(ok(path, "--json")[0].splitlines()[1])["reward"] is None
    assert "1/1" in ok(path, "--list")[0]


def test_wrong_words(one_set: Path, tmp_path: Path) -> None:
    """One line each, which names the option or the path."""
    assert "nothing of this name" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no evaluation (it has no settings.json)" in refused(tmp_path / "empty")
    assert "--step: " in refused(one_set, "--step", "1")
    assert "is no training run" in refused(one_set / "samples" / "test.jsonl", "--eval")
    assert "'--verdict'" in refused(one_set, "--verdict", "right")
    assert "'-n'" in refused(one_set, "-n", "-1")
    for pair in (
        "--truncated --complete",
        "--longest --shortest",
        "--list --json",
        "--list --full",
        "--list --longest",
    ):
        assert f"{pair.replace(' ', ' and ')} exclude each other" in refused(one_set, *pair.split())
    for content in ("{", "[]", "{}", '{"sets": 3}'):
        (one_set / "settings.json").write_text(content, encoding="utf-8")
        assert "settings.json: can't be read" in refused(one_set)
