"""What says right or wrong of a response: the math grader, the paper's published scorer, or program tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dapo.config.schema import RewardConfig
from dapo.reward.compat import VerlMathDapo
from dapo.reward.grader import Grader
from dapo.types import Equal, Prompt, Score, Verdict

GRADER, PYTHON_TESTS = "grader", "python-tests"
JUDGES = (GRADER, PYTHON_TESTS)  # the names that give correctness; at most one in reward.functions

Gold = tuple[str | None, Mapping[str, Any]]  # a row's answer as text, and its other columns


class Judge(Protocol):
    """Grades responses to one prompt. Never raises on any text."""

    def check(self, golds: Sequence[Gold]) -> list[str | None]:
        """For each row None, or why responses to it can't be graded."""
        ...

    def score(self, prompt: Prompt, texts: Sequence[str]) -> list[Score]:
        """One Score for each text."""
        ...

    @property
    def equal(self) -> Equal | None:
        """Pairs (a, b) of answers -> for each whether b answers a; None where answers can't be compared."""
        ...


class GoldJudge:
    """Compares with the row's answer: `Grader`."""

    def __init__(self, grader: Grader) -> None:
        self.grader = grader

    def check(self, golds: Sequence[Gold]) -> list[str | None]:
        return self.grader.check_golds([answer or "" for answer, _ in golds])

    def score(self, prompt: Prompt, texts: Sequence[str]) -> list[Score]:
        return self.grader.score_all([(text, prompt.answer or "") for text in texts])

    def equal(self, pairs: Sequence[tuple[str, str]]) -> Sequence[bool]:
        return [verdict is Verdict.CORRECT for verdict, _ in self.grader.judge_all(pairs)]


class CompatJudge:
    """Compares as the paper's published scorer does: `VerlMathDapo`."""

    def __init__(self) -> None:
        self.scorer = VerlMathDapo()

    def check(self, golds: Sequence[Gold]) -> list[str | None]:
        return [self.scorer.check_gold(answer or "") for answer, _ in golds]

    def score(self, prompt: Prompt, texts: Sequence[str]) -> list[Score]:
        return [self.scorer.score(text, prompt.answer or "") for text in texts]

    def equal(self, pairs: Sequence[tuple[str, str]]) -> Sequence[bool]:
        return [a == b for a, b in pairs]  # as the published scorer: predictions are strings by then


class TestsJudge:
    """Runs the response's program against the row's tests, several at once. Programs are not compared."""

    equal = None

    def __init__(self, config: RewardConfig) -> None:
        self._column, self._limits = config.tests_column, python_limits(config)

    def check(self, golds: Sequence[Gold]) -> list[str | None]:
        from dapo.reward.python_tests import check_tests

        return [
            check_tests(columns[self._column]) if self._column in columns else f"there is no column {self._column!r}"
            for _, columns in golds
        ]

    def score(self, prompt: Prompt, texts: Sequence[str]) -> list[Score]:
        from concurrent.futures import ThreadPoolExecutor

        from dapo.reward.pool import default_size
        from dapo.reward.python_tests import verify

        tests = prompt.columns.get(self._column)
        with ThreadPoolExecutor(default_size()) as threads:
            return list(threads.map(lambda text: verify(text, tests, self._limits), texts))


def python_limits(config: RewardConfig) -> Any:
    """The sandbox's limits by `reward.tests_*`: wall time depends on the load, so it is twice the CPU time."""
    from dapo.reward.sandbox import Limits

    return Limits(wall_s=2 * config.tests_limit_s, cpu_s=config.tests_limit_s, memory_mb=config.tests_memory_mb)


def make_grader(config: RewardConfig) -> Grader:
    """The math grader that `reward.*` describes; training, evaluation and `dapo grade` share it."""
    return Grader(
        config.extract,
        unevaluated=config.unevaluated,
        convert_units=config.convert_units,
        limit_s=config.symbolic_limit_s,
        workers=config.symbolic_workers,
        memory_mb=config.symbolic_memory_mb,
    )


def make_judge(config: RewardConfig, name: str) -> Judge:
    """The judge of this name in `reward.functions`."""
    if name == PYTHON_TESTS:
        return TestsJudge(config)
    return CompatJudge() if config.compat == "verl-math-dapo" else GoldJudge(make_grader(config))
