"""Code answers graded by tests: finding the program, refusing bad tests, and programs that cheat."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo.errors import RewardError
from dapo.reward import python_tests
from dapo.reward.python_tests import check_tests, extract_program, same_output, verify
from dapo.reward.sandbox import Limits, Outcome, Status
from dapo.types import Score, Verdict

PLENTY = Limits(wall_s=30.0, cpu_s=10.0)
ADD = {"inputs": ["1 2", "3 4\n", "5 6"], "outputs": ["3", "7\n", "11"]}
ASSERTS = ["assert f(1) == 2", "assert f(2) == 3", "assert f(3) == 4"]


def fenced(code: str, language: str = "python") -> str:
    """A response whose last block is this program."""
    return f"Let me see.\n\n```{language}\n{code}\n```\nThat's it.\n"


def graded(code: str, tests: Any, limits: Limits = PLENTY) -> tuple[Verdict, float, str]:
    """(verdict, fraction, stage), after what holds of every score."""
    score = verify(fenced(code), tests, limits)
    fraction = score.parts["tests_passed_fraction"]
    assert score.correct is (score.verdict is Verdict.CORRECT) is (fraction == 1.0)
    assert score.reward == (1.0 if score.correct else -1.0)
    assert score.extracted == code + "\n"
    return score.verdict, fraction, score.stage


# ---- the program


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nx\n```", "x\n"),
        ("```py\nx\n```", "x\n"),
        ("```Python3\nx\n```", "x\n"),
        ("```\nx\n```", "x\n"),
        ("``` python\nx\n```  ", "x\n"),
        ("```python title=a.py\nx\n```", "x\n"),
        ("a\n```python\nx\n```\nb\n```python\ny\n```\nc", "y\n"),
        ("```python\nx\n```\nOutput:\n```text\n5\n```", "x\n"),
        ("```cpp\nint x;\n```\n```python\nx\n```\n```bash\nls\n```", "x\n"),
        ("```python\nx\n```\n```python\ncut o", "x\n"),
        ("```python\r\nx\r\n  y\r\n```\r\n", "x\n  y\n"),
        ("1. so\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y\n"),
        ("````python\n'''\n```\n'''\n````", "'''\n```\n'''\n"),
        ("```python\n```", ""),
        ("<think>```python\nx\n```</think>```python\ny\n```", "y\n"),
        ("```python\na = '\u2028\x0c'\n```", "a = '\u2028\x0c'\n"),
        ("<think>```python\nx\n```</think> none", None),
        ("", None),
        ("print(1)", None),
        ("```python print(1)```", None),
        ("`x`", None),
        ("```python\nx", None),
        ("```js\nx\n```", None),
        ("~~~python\nx\n~~~", None),
    ],
)
def test_the_last_block_is_the_program(text: str, program: str | None) -> None:
    """Closed, Python's, after the thinking."""
    assert extract_program(text) == program


@given(st.text(alphabet=st.sampled_from("`~ \n\r\tpy</think>x\ud800\0"), max_size=80))
def test_finding_a_program_never_raises(text: str) -> None:
    """And what it finds lies within the text."""
    program = extract_program(text)
    assert program is None or all(line.strip() in text for line in program.split("\n"))


def test_no_program_is_unparsed() -> None:
    """Nothing runs."""
    assert verify("The answer is 5.", ADD) == Score(
        verdict=Verdict.UNPARSED,
        correct=False,
        reward=-1.0,
        parts={"tests_passed_fraction": 0.0},
        stage="no closed block of Python",
    )


# ---- the tests


@pytest.mark.parametrize(
    "tests",
    [
        ADD,
        json.dumps(ADD),
        [{"input": "1", "output": "2"}],
        ASSERTS,
        ("assert f(1)",),
        ["def check(f):\n    assert f(1) == 2\ncheck(f)"],
        json.dumps(ASSERTS),
        {"inputs": ("",), "outputs": ("",)},
    ],
)
def test_tests_of_either_kind_are_taken(tests: Any) -> None:
    """As they come from JSON, too."""
    assert check_tests(tests) is None


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (None, "it is NoneType"),
        (5, "it is int"),
        (b"[]", "it is bytes"),
        ("assert f(1) == 2", "it is text but not JSON"),
        ("5", "it is int"),
        ("[" * 100_000, "it is text but not JSON"),
        ([], "it has no tests"),
        ({"inputs": [], "outputs": []}, "it has no tests"),
        ({}, "inputs is NoneType"),
        ({"inputs": "12", "outputs": ["1", "2"]}, "inputs is str"),
        ({"inputs": ["1"]}, "outputs is NoneType"),
        ({"inputs": ["1"], "outputs": [1]}, "outputs[0] is int: write it as text"),
        ({"inputs": ["1", "2"], "outputs": ["1"]}, "it has 2 inputs and 1 outputs"),
        ({"inputs": [], "outputs": [], "fn_name": "f"}, "it has fn_name"),
        ([{"input": "1"}], "[0].output is NoneType"),
        ([{"input": 1, "output": "1"}], "[0].input is int"),
        ([{"input": "1", "output": "1"}, "assert f"], "[1] is str"),
        ([{"input": "1", "output": "1"}, 5], "[1] is int"),
        (["assert f(1)", "assert f(1"], "[1] is no Python"),
        (["assert f(1)\0"], "[0] is no Python"),
        (["assert '\ud800'"], "[0] is no Python"),
        (["(" * 1000], "[0] is no Python"),
        (["assert f(1)", "# nothing"], "[1] is empty"),
    ],
)
def test_other_tests_are_refused(tests: Any, reason: str) -> None:
    """In one line with the place and the mend, and `verify` raises it whatever the response."""
    found = check_tests(tests)
    assert found is not None
    assert found.startswith(reason)
    assert ": " in found
    assert "\n" not in found
    for text in ("", fenced("pass")):
        with pytest.raises(RewardError) as caught:
            verify(text, tests)
        assert str(caught.value) == f"tests{'' if found.startswith('[') else ': '}{found}"


# ---- input and output


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1\n2\n", "1\n2", True),
        ("1\r\n2", "1\n2", True),
        ("1 \n2\t\n\n\n", "1\n2", True),
        (" 1  2", "1 2", True),
        ("", "\n", True),
        ("1\n\n2", "1\n2", False),
        ("1\n2", "1 2", False),
        ("1 2", "1\n2", False),
        ("\n1", "1", False),
        ("1.0", "1", False),
        ("0.1", "0.10", False),
        ("12", "1 2", False),
        ("yes", "YES", False),
        ("1", "", False),
        ("\ufffd", "\udc80", False),
    ],
)
def test_outputs_are_compared_by_line_and_token(got: str, expected: str, same: bool) -> None:
    """Spaces don't count; lines and numbers as written do."""
    assert same_output(got, expected) is same


def test_input_output() -> None:
    """All, some, none."""
    add = "a, b = map(int, input().split())\nprint(a + b)"
    assert graded(add, ADD) == (Verdict.CORRECT, 1.0, "all of 3 tests passed")
    assert graded(add, json.dumps(ADD)) == (Verdict.CORRECT, 1.0, "all of 3 tests passed")
    rows = [{"input": i, "output": o} for i, o in zip(ADD["inputs"], ADD["outputs"], strict=True)]
    verdict, fraction, stage = graded(add + "\nassert a != 3", rows)
    assert (verdict, stage) == (Verdict.WRONG, "test 1 of 3: exit status 1: AssertionError")
    assert fraction == pytest.approx(2 / 3)
    assert graded("print(7)", ADD)[2] == "test 0 of 3: wrong output"


@pytest.mark.parametrize(
    ("code", "stage"),
    [
        ("print(", "exit status 1: SyntaxError: '(' was never closed"),
        ("print(3)\nexit(1)", "exit status 1"),
        ("print(3)\nraise KeyError('\u00e4')", "exit status 1: KeyError: '\u00e4'"),
        ("x = 'a' * 10**10", "memory limit"),
        ("print(3)\nwhile True: print(3)", "too much output"),
        ("print('\udc80')", "exit status 1: SyntaxError"),
        ("print(3)\0", "exit status 1: "),
    ],
)
def test_a_program_that_breaks_is_wrong(code: str, stage: str) -> None:
    """Even if it printed the right thing before; the stage says why."""
    verdict, fraction, found = graded(code, {"inputs": [""], "outputs": ["3"]})
    assert (verdict, fraction) == (Verdict.WRONG, 0.0)
    assert found.startswith(f"test 0 of 1: {stage}")


def test_a_time_limit_ends_the_grading() -> None:
    """The verdict is that of the first failure; the rest isn't run."""
    limits = Limits(wall_s=0.4)
    code = "if input() == '1': print(1)\nwhile True: pass"
    tests = {"inputs": ["0"] * 1000, "outputs": ["0"] * 1000}
    assert graded(code, tests, limits) == (Verdict.TIMEOUT, 0.0, "test 0 of 1000: time limit")
    code = "x = input()\nwhile x == '1': pass\nprint(0)"
    tests = {"inputs": ["0", "2", "1", "0"], "outputs": ["0", "9", "0", "0"]}
    assert graded(code, tests, limits) == (Verdict.WRONG, 0.25, "test 1 of 4: wrong output")


def test_a_long_expected_output_raises_the_limit() -> None:
    """A test that the limit makes impossible would be a lie."""
    tests = {"inputs": [""], "outputs": ["x" * 50_000]}
    assert graded("print('x' * 50_000)", tests, Limits(output_kb=1))[0] is Verdict.CORRECT


@pytest.mark.parametrize("tests", [ADD, ASSERTS])
def test_a_failing_sandbox_is_an_error(tests: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the program's fault, never an exception, and no more runs."""
    runs = []

    def fail(*arguments: Any) -> Outcome:
        runs.append(arguments)
        return Outcome(status=Status.ERROR, stderr="OSError: no space")

    monkeypatch.setattr(python_tests, "run_program", fail)
    assert graded("pass", tests) == (Verdict.ERROR, 0.0, "test 0 of 3: the sandbox failed: OSError: no space")
    assert len(runs) == 1


# ---- assert statements


@pytest.mark.parametrize(
    ("code", "verdict", "passed", "stage"),
    [
        ("def f(x): return x + 1", Verdict.CORRECT, 3, "all of 3 tests passed"),
        ("def f(x): return 3", Verdict.WRONG, 1, "test 0 of 3: AssertionError"),
        (
            "def f(x): return 1 / (x - 2) and x + 1",
            Verdict.WRONG,
            2,
            "test 1 of 3: ZeroDivisionError: division by zero",
        ),
        ("def f(x):\n    print(x, end='', flush=True)\n    return x + 1", Verdict.CORRECT, 3, "all of 3 tests passed"),
        ("def g(x): return x", Verdict.WRONG, 0, "test 0 of 3: NameError: name 'f' is not defined"),
        ("def f(x): return f(x)", Verdict.WRONG, 0, "test 0 of 3: RecursionError: maximum recursion depth exceeded"),
        ("def f(x:", Verdict.WRONG, 0, "test 0 of 3: exit status 1: SyntaxError: "),
        ("def f(x): exit(0)", Verdict.WRONG, 0, "test 0 of 3: SystemExit: 0"),
        ("def f(x):\n    while x == 2: pass\n    return x + 1", Verdict.TIMEOUT, 1, "test 1 of 3: time limit"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\ndef f(x): return P(x).x + 1",
            Verdict.CORRECT,
            3,
            "all of 3 tests passed",
        ),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\ndef f(x): return x + 1",
            Verdict.CORRECT,
            3,
            "all of 3 tests passed",
        ),
        ("def f(x):\n    return x + 1 # \u00e4 \U0001f600", Verdict.CORRECT, 3, "all of 3 tests passed"),
        (
            "def f(x):\n    raise ValueError('a\\nb \ud800')",
            Verdict.WRONG,
            0,
            "test 0 of 3: exit status 1: SyntaxError",
        ),
    ],
)
def test_asserts(code: str, verdict: Verdict, passed: int, stage: str) -> None:
    """Each counts by itself; after a time limit the rest counts as not passed."""
    limits = Limits(wall_s=0.6) if verdict is Verdict.TIMEOUT else PLENTY
    begin = time.monotonic()
    found, fraction, where = graded(code, ASSERTS, limits)
    assert time.monotonic() - begin < 15  # nobody waits for threads that go on
    assert found is verdict
    assert fraction == pytest.approx(passed / 3)
    assert where.startswith(stage)


GOOD = "def f(x): return x + 1\n"
ENDED = "the program ended before it"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os\nos._exit(0)", ENDED),
        ("import sys\nsys.exit(0)", ENDED),
        ("exit()", ENDED),
        ("raise SystemExit", ENDED),
        ("import os\ndef f(x): os._exit(0)", ENDED),
        (GOOD + "import os\nos._exit(0)", ENDED),
        (GOOD + "import sys\nsys.stdout.write('0 \\n' * 9)\nsys.exit(0)", ENDED),
        ("import os\n[os.write(fd, b'token 0 \\n0\\nOK\\n') for fd in (1, 3)]\nos._exit(0)", ENDED),
        (GOOD + "import os\nos.closerange(0, 100)", "exit status "),
        ("import builtins\nbuiltins.exec = lambda *a: None\nbuiltins.compile = builtins.exec", "NameError"),
        ("import os\nos._exit = os.abort\nprint = None", "NameError"),
        ("import builtins\nbuiltins.AssertionError = ()\ndef f(x): return 0", "AssertionError"),
        ("AssertionError = KeyboardInterrupt\ndef f(x): return 0", "AssertionError"),
        ("def f(x): raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("class E(BaseException):\n    def __str__(self): raise self\ndef f(x): raise E", "E"),
        ("class E(Exception):\n    def __str__(self): return 'x\\n'\ndef f(x): raise E", "E: x"),
        ("import os\nif os.fork(): os._exit(0)\ndef f(x): return 0", ""),
        ("import os, time\nif os.fork(): time.sleep(0.3); os._exit(0)\ndef f(x): return 0", "AssertionError"),
        ("open(__file__).read()", "exit status 1: FileNotFoundError"),
        ("import os, signal\nos.kill(os.getpid(), 9)", "exit status -9"),
        ("import threading, os\nthreading.Thread(target=os._exit, args=(0,)).start()\nwhile True: pass", ENDED),
    ],
)
def test_a_pass_without_a_right_answer(code: str, why: str) -> None:
    """Ends, prints, closed files and replaced builtins don't pass."""
    verdict, fraction, stage = graded(code, ASSERTS)
    assert (verdict, fraction) == (Verdict.WRONG, 0.0)
    assert stage.startswith(f"test 0 of 3: {why}")


def test_what_remains_fakeable() -> None:
    """Documented, so that nobody believes otherwise: the program shares a process with its asserts."""
    equal = "class Any:\n    def __eq__(self, other): return True\ndef f(x): return Any()"
    assert graded(equal, ASSERTS)[0] is Verdict.CORRECT
    token = (
        "import os, sys\nframe = sys._getframe(1).f_locals\n"
        "for i in range(3): os.write(frame['report'], f\"{frame['token']} {i} \\n\".encode())\nos._exit(0)"
    )
    assert graded(token, ASSERTS)[0] is Verdict.CORRECT


def test_neither_works_on_input_and_output() -> None:
    """The outputs aren't there to be found."""
    code = (
        "import gc, sys\nprint([o for o in gc.get_objects() if '8731' in str(o)][:1], sys.argv, open(__file__).read())"
    )
    assert graded(code, {"inputs": ["1"], "outputs": ["8731"]})[0] is Verdict.WRONG


@settings(max_examples=8, deadline=None)
@given(st.text(max_size=40), st.sampled_from([ASSERTS, {"inputs": ["\ud800\0"], "outputs": ["\ud800"]}]))
def test_no_text_makes_it_raise(text: str, tests: Any) -> None:
    """Random programs, mostly nonsense."""
    for response in (text, fenced(text)):
        score = verify(response, tests, Limits(wall_s=5.0))
        assert score.verdict in (Verdict.WRONG, Verdict.UNPARSED)
