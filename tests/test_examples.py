"""The scripts of examples/ from an empty directory, as scripts and as notebooks; what they print is looked at."""

from __future__ import annotations

import ast
import io
import itertools
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers_examples import EXAMPLES, NAMES, defined, notebook

SECRET = "DAPO_TEST_SECRET"
SLOW = ("calculator_tool", "code_with_tests", "own_engine", "own_objective", "trl_grader")  # two show that scripts run


def figures(pattern: str, text: str) -> list[list[float]]:
    """The numbers of each match's groups; at least one match."""
    found = [[float(group) for group in match.groups()] for match in re.finditer(pattern, text)]
    assert found, f"{pattern} is nowhere in:\n{text}"
    return found


def own_data_and_reward(text: str) -> None:
    """The reward by hand, and that training raised it on rows that were held out."""
    assert "[1.0, 0.8, -1.0]" in text
    ((before, after),) = figures(r"mean reward (\S+) before, (\S+) after", text)
    assert after > before + 0.2


def own_objective(text: str) -> None:
    """Nothing but rounding between ours and the built-in, on numbers and in training."""
    on_numbers = figures(r"largest difference of the \w+: (\S+), its largest value (\S+)", text)
    assert len(on_numbers) == 2
    assert all(off <= 1e-6 < largest for off, largest in on_numbers)
    in_training = figures(r" {10,}largest difference (\S+)", text)
    assert len(in_training) == 4
    assert all(off <= 1e-5 for (off,) in in_training)


def trl_grader(text: str) -> None:
    """The grades by hand, Eq. 13 by hand, and TRL's means of what the functions gave."""
    assert [line[:2] for line in text.splitlines() if re.match(r"[+-]1  ", line)] == ["+1", "+1", "-1", "-1"]
    assert "[0.0, -0.25, -0.5, -1.0]" in text
    pairs = figures(r"ours (\S+), logged by TRL (\S+)", text)
    assert len(pairs) == 4
    assert all(abs(ours - logged) < 1e-3 for ours, logged in pairs)


def algorithm_in_your_loop(text: str) -> None:
    """The policy learns; a cut leaves the gradient, and a mean of means does not."""
    lines = figures(r"step +\d+: +(\d+)% right.* off by (\S+), as a mean of means by (\d+)%", text)
    assert lines[-1][0] > lines[0][0] + 50
    assert all(off < 1e-6 and of_means > 1 for _, off, of_means in lines)


def own_engine(text: str) -> None:
    """Token by token the built-in engine; log-probs that the learner's agree with; nothing found by the checks."""
    assert "24 responses, 24 of them" in text
    ((gap,),) = figures(r"within (\S+) nats", text)
    assert gap < 1e-4
    assert "step by step: [0, 0, 0]" in text


def code_with_tests(text: str) -> None:
    """What each program deserves; the sandbox gives no variable away; both problems had right and wrong programs."""
    grades = dict(re.findall(r"^(double|square|endless|malicious) +(correct|wrong|timeout) ", text, re.MULTILINE))
    assert grades == {"double": "correct", "square": "wrong", "endless": "timeout", "malicious": "wrong"}
    (variables,) = re.findall(r"^variables: (.*)", text, re.MULTILINE)
    assert "PATH" in variables
    assert SECRET not in text
    assert len(figures(r"(?:double|square): +(\d+) of 16 correct", text)) == 2
    ((right, kept, gradient),) = figures(r"(\d+)% right, (\d+) groups kept, \|gradient\| (\S+)", text)
    assert 0 < right < 100
    assert kept == 2
    assert gradient > 0


def calculator_tool(text: str) -> None:
    """Calls become more, and with them right answers; the value of a call, and it alone, is out of the loss."""
    steps = figures(r"(\d+)% of the responses call, (\d+)% are right", text)
    assert steps[-1][0] > 2 * steps[0][0]
    assert steps[-1][1] > 2 * steps[0][1]
    rows = re.findall(r"^'(.)' +log-prob +(\S+)  (not in the loss|ratio \S+)", text, re.MULTILINE)
    assert "not in the loss" in {place for _, _, place in rows}
    assert all((place == "not in the loss") == (float(logprob) == 0.0) for _, logprob, place in rows)
    for (before, _, its), (value, _, place) in itertools.pairwise(rows):
        if before == "=" and its.startswith("ratio"):
            assert place == "not in the loss"
            assert re.fullmatch(r"[\d?-]", value)


PRINTED: dict[str, Callable[[str], None]] = {
    check.__name__: check
    for check in (
        algorithm_in_your_loop,
        calculator_tool,
        code_with_tests,
        own_data_and_reward,
        own_engine,
        own_objective,
        trl_grader,
    )
}


def test_every_example_is_looked_at() -> None:
    """A script without a check of what it prints, or a line in the table, is not finished."""
    assert sorted(PRINTED) == NAMES
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"[{name}.py]({name}.py)" not in table] == []


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in NAMES])
def test_as_a_script(name: str, tmp_path: Path) -> None:
    """From an empty directory, offline, without an error."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env={**os.environ, SECRET: "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    PRINTED[name](done.stdout)
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_as_a_notebook(name: str, tmp_path: Path) -> None:
    """Cell by cell in a kernel: the same figures."""
    from nbclient import NotebookClient

    book = notebook(name)
    client = NotebookClient(book, timeout=280, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    PRINTED[name]("".join(output.text for output in outputs if output.get("name") == "stdout"))


@pytest.mark.parametrize("name", NAMES)
def test_short(name: str) -> None:
    """Under ninety lines of code; the docstring says by which command, and how long it took."""
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    docstring = ast.parse(source).body[0]
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank:
            lines.update(range(token.start[0], token.end[0] + 1))
    assert docstring.end_lineno is not None
    assert len([line for line in lines if line > docstring.end_lineno]) < 90
    assert re.search(rf"python examples/{name}\.py +# \d+ s of one core", ast.get_docstring(ast.parse(source)) or "")


@pytest.mark.parametrize(
    ("text", "value"),
    [("2*3+4", "10"), ("1-2*3", "-5"), ("7", "7"), ("say 12+30", "42"), ("", "?"), ("2+", "?"), ("12345+1", "?")],
)
def test_the_calculator(text: str, value: str) -> None:
    """By hand; what is no sum in small numbers has no value."""
    assert defined("calculator_tool")["calculate"](text) == value
