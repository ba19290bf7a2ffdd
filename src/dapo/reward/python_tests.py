"""Grade a program in a response by running its tests in the sandbox.

Two kinds of tests:

    input/output   {"inputs": [...], "outputs": [...]} or [{"input": ..., "output": ...}, ...]: one run
                   for each, its stdout compared with the output in our process
    assert         ["assert f(1) == 2", ...]: statements appended to the program, all in one run

What can be faked. The outputs of input/output tests never enter the sandbox, so nothing short of the
right output passes. Assert statements run inside the program's own process, which no harness can defend
there: exit(0) or os._exit(0) before the end, closed files and prints don't pass, for a test counts only
by an unguessable token written after it; but a program that searches its own process for that token, or
answers with objects that are equal to everything, passes. Use input/output tests where a policy is
trained long enough to find that out.
"""

from __future__ import annotations

import ast
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dapo.errors import RewardError
from dapo.reward.sandbox import DEFAULT_LIMITS, Limits, Outcome, Status, run_program
from dapo.types import Score, Verdict

RIGHT, WRONG = 1.0, -1.0  # section 2.4 of the DAPO paper
LANGUAGES = ("", "python", "py", "python3")
REASON_CHARACTERS = 200  # of an error message kept in a stage

_VERDICTS = {Status.TIMEOUT: Verdict.TIMEOUT, Status.ERROR: Verdict.ERROR}
_WHY = {Status.TIMEOUT: "time limit", Status.MEMORY: "memory limit", Status.ERROR: "the sandbox failed"}


def extract_program(text: str) -> str | None:
    """The last closed block fenced as python, py or nothing after the last `</think>`; None without one.

    Blocks of other languages don't count. Up to the fence's own indentation is taken off each line.

    >>> extract_program("First:\\n```py\\n1\\n```\\nBetter:\\n```python\\nprint(2)\\n```\\nDone.")
    'print(2)\\n'
    """
    program, block, fence, indent, wanted = None, [""], "", 0, False
    for line in text.rpartition("</think>")[2].replace("\r\n", "\n").split("\n"):
        bare = line.strip(" \t\r")
        ticks = len(bare) - len(bare.lstrip("`"))
        if not fence:
            name = bare[ticks:].strip()
            if ticks >= 3 and "`" not in name:
                fence, block, indent = "`" * ticks, [], len(line) - len(line.lstrip(" \t"))
                wanted = name.partition(" ")[0].lower() in LANGUAGES
        elif ticks >= len(fence) and ticks == len(bare):
            if wanted:
                program = "".join(f"{entry}\n" for entry in block)
            fence = ""
        else:
            spaces = len(line) - len(line.lstrip(" \t"))
            block.append(line[min(indent, spaces) :])
    return program


def check_tests(tests: Any) -> str | None:
    """None, or why these tests can't be run.

    Args:
        tests: either kind (see the module), or its JSON text.

    >>> check_tests({"inputs": ["1"], "outputs": []})
    'it has 1 inputs and 0 outputs: give each input one output'
    """
    try:
        tests = json.loads(tests) if isinstance(tests, str) else tests
    except (ValueError, RecursionError):
        return "it is text but not JSON: write a list of tests, or inputs and outputs"
    if isinstance(tests, Mapping):
        return _check_columns(tests)
    if not isinstance(tests, Sequence) or isinstance(tests, bytes):
        return f"it is {type(tests).__name__}: write a list of tests, or inputs and outputs"
    if not tests:
        return "it has no tests: give at least one, or leave the row out"
    if all(isinstance(test, str) for test in tests):
        return next((f"[{i}] {why}" for i, test in enumerate(tests) if (why := _check_statement(test))), None)
    for index, test in enumerate(tests):
        if not isinstance(test, Mapping):
            return f"[{index}] is {type(test).__name__}: write all as assert statements, or all as input and output"
        for key in ("input", "output"):
            if not isinstance(test.get(key), str):
                return f"[{index}].{key} is {type(test.get(key)).__name__}: write it as text"
    return None


def _check_columns(tests: Mapping[str, Any]) -> str | None:
    if "fn_name" in tests:
        return "it has fn_name: write its cases as assert statements"
    for key in ("inputs", "outputs"):
        column = tests.get(key)
        if not isinstance(column, Sequence) or isinstance(column, str | bytes):
            return f"{key} is {type(column).__name__}: write a list of texts"
        for index, entry in enumerate(column):
            if not isinstance(entry, str):
                return f"{key}[{index}] is {type(entry).__name__}: write it as text"
    if len(tests["inputs"]) != len(tests["outputs"]):
        counts = f"{len(tests['inputs'])} inputs and {len(tests['outputs'])} outputs"
        return f"it has {counts}: give each input one output"
    return None if tests["inputs"] else "it has no tests: give at least one, or leave the row out"


def _check_statement(test: str) -> str | None:
    try:
        body = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"is no Python ({type(error).__name__}: {error}): write an assert statement"
    return None if body else "is empty: write an assert statement"


def verify(text: str, tests: Any, limits: Limits = DEFAULT_LIMITS) -> Score:
    """Reward +1 if the response's program passes every test, else -1.

    Blocks while programs run: at most (number of input/output tests, or 1) * limits.wall_s and some 0.1 s
    for each start. After a test that strikes a time limit, or a failure of the sandbox, the rest of the
    tests is not run and counts as not passed.

    Args:
        text: the response; no text makes this raise.
        tests: what `check_tests` accepts.
        limits: of one run. output_kb is raised to what the longest expected output needs.

    Returns:
        The verdict of the first test that failed: WRONG, TIMEOUT or ERROR (the sandbox failed); CORRECT
        if none did, UNPARSED without a program. parts has tests_passed_fraction in [0, 1].

    Raises:
        RewardError: tests that `check_tests` refuses.

    >>> verify("```python\\ndef f(x): return x + 1\\n```", ["assert f(1) == 2", "assert f(2) == 2"]).stage
    'test 1 of 2: AssertionError'
    """
    reason = check_tests(tests)
    if reason is not None:
        raise RewardError(f"tests{'' if reason.startswith('[') else ': '}{reason}")
    tests = json.loads(tests) if isinstance(tests, str) else tests
    program = extract_program(text)
    if program is None:
        return _score(Verdict.UNPARSED, 0.0, None, "no closed block of Python")
    if isinstance(tests, Mapping):
        pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
    else:
        pairs = [(test["input"], test["output"]) for test in tests if isinstance(test, Mapping)]
    total = len(pairs) or len(tests)
    failures = _run_pairs(program, pairs, limits) if pairs else _run_asserts(program, tests, limits)
    fraction = 1 - len(failures) / total
    if not failures:
        return _score(Verdict.CORRECT, fraction, program, f"all of {total} tests passed")
    first = min(failures)
    verdict, why = failures[first]
    return _score(verdict, fraction, program, f"test {first} of {total}: {why}")


def _score(verdict: Verdict, fraction: float, program: str | None, stage: str) -> Score:
    right = verdict is Verdict.CORRECT
    return Score(
        verdict=verdict,
        correct=right,
        reward=RIGHT if right else WRONG,
        parts={"tests_passed_fraction": fraction},
        extracted=program,
        stage=stage,
    )


Failures = dict[int, tuple[Verdict, str]]  # test -> verdict and why, of those that didn't pass


def _run_pairs(program: str, pairs: Sequence[tuple[str, str]], limits: Limits) -> Failures:
    # Four bytes for a character at most, and as much again before more can't be right.
    needed = max(math.ceil(8 * len(output) / 1024) for _, output in pairs)
    limits = replace(limits, output_kb=max(limits.output_kb, needed))
    failures: Failures = {}
    for index, (given, expected) in enumerate(pairs):
        outcome = run_program(program, given, limits)
        if outcome.status is not Status.OK:
            failures[index] = _failure(outcome)
        elif not same_output(outcome.stdout, expected):
            failures[index] = (Verdict.WRONG, "wrong output")
        if outcome.status in _VERDICTS:
            failures.update(dict.fromkeys(range(index + 1, len(pairs)), (Verdict.WRONG, "not run")))
            break
    return failures


def same_output(got: str, expected: str) -> bool:
    """Whether two outputs have the same lines, each of the same tokens.

    White space at the ends of lines, blank lines at the end and the width of gaps don't count. Tokens are
    compared as text: 1.0 is not 1.

    >>> same_output("1  2 \\r\\n\\n", "1 2"), same_output("1\\n2", "1 2")
    (True, False)
    """
    return [line.split() for line in got.rstrip().split("\n")] == [
        line.split() for line in expected.rstrip().split("\n")
    ]


def _failure(outcome: Outcome) -> tuple[Verdict, str]:
    why = _WHY.get(outcome.status, f"exit status {outcome.returncode}")
    if outcome.cut:
        why = "too much output"
    elif outcome.status not in (Status.TIMEOUT, Status.MEMORY):
        last = outcome.stderr.rstrip().rpartition("\n")[2][:REASON_CHARACTERS]
        why += f": {last}" if last else ""
    return _VERDICTS.get(outcome.status, Verdict.WRONG), why


# Runs in the sandbox. What it needs later is bound before the program can replace it. The program's
# prints go nowhere, so that stdout holds the reports alone: token, test, what it raised or "".
HARNESS = """
def _harness(program, tests, token):
    import os, sys, types
    run, build, write, leave, text, kind = exec, compile, os.write, os._exit, repr, type
    os.unlink(__file__)
    report = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    main = types.ModuleType("__main__")
    main.__dict__["__file__"] = __file__
    sys.modules["__main__"] = main
    tests = [build(test, f"<test {index}>", "exec", dont_inherit=True) for index, test in enumerate(tests)]
    run(build(program, __file__, "exec", dont_inherit=True), main.__dict__)
    for index, test in enumerate(tests):
        raised = ""
        try:
            run(test, main.__dict__)
        except BaseException as error:
            raised = kind(error).__name__
            try:
                raised += ": " + text(str(error)[:150])[1:-1] if str(error) else ""
            except BaseException:
                pass
        write(report, f"{token} {index} {raised}\\n".encode("utf-8", "replace"))
    leave(0)
"""


def _run_asserts(program: str, tests: Sequence[str], limits: Limits) -> Failures:
    token = secrets.token_hex(16)
    source = program.encode("utf-8", "surrogatepass")
    code = f"{HARNESS}\n_harness({source!r}, {list(tests)!r}, {token!r})\n"
    limits = replace(limits, output_kb=max(limits.output_kb, len(tests)))
    outcome = run_program(code, "", limits)
    raised: dict[int, str] = {}
    for line in outcome.stdout.splitlines():
        mark, _, rest = line.partition(" ")
        index, _, what = rest.partition(" ")
        if secrets.compare_digest(mark.encode(), token.encode()) and index.isdecimal():
            raised.setdefault(int(index), what)
    if outcome.status is Status.OK:
        unseen = (Verdict.WRONG, "the program ended before it")
    else:
        unseen = _failure(outcome)
    failures = {index: (Verdict.WRONG, what) for index, what in raised.items() if what and index < len(tests)}
    return failures | {index: unseen for index in range(len(tests)) if index not in raised}
