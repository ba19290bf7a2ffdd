"""What training and evaluation call: the scores of one prompt's responses."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dapo.config.schema import Config, RewardConfig
from dapo.config.sets import all_rewards
from dapo.printable import printable
from dapo.reward.functions import RewardFunction, call_function, load_function
from dapo.reward.grader import WRONG
from dapo.reward.judges import GRADER, JUDGES, Gold, Judge, make_judge
from dapo.types import Equal, Prompt, Score, Verdict

logger = logging.getLogger(__name__)

Given = Mapping[str, RewardFunction]
NONE_GIVEN: Given = MappingProxyType({})
LONGEST_REASON = 300  # characters of what a function raised


class Scorer:
    """A judge of right and wrong, custom functions, or both added with weights.

    With a judge among them (the built-in grader, or python-tests) a score has correctness; without
    one, scores are graded floats (correct is None) and dynamic sampling must filter on their spread.
    """

    def __init__(self, config: RewardConfig, given: Given = NONE_GIVEN) -> None:
        self.judge: Judge | None = None
        self._functions: list[tuple[str, RewardFunction | None, float]] = []
        for index, entry in enumerate(config.functions or (GRADER,)):
            name, weight = (entry, 1.0) if isinstance(entry, str) else (entry.function, entry.weight)
            function = None
            if name in JUDGES:
                self.judge = make_judge(config, name)
            else:
                function = load_function(name, f"reward.functions[{index}]", given)
            self._functions.append((name, function, weight))

    @property
    def has_correctness(self) -> bool:
        """Whether scores say right or wrong."""
        return self.judge is not None

    @property
    def equal(self) -> Equal | None:
        """Pairs (a, b) of answers -> whether b answers a; None where there are no answers to compare."""
        return self.judge.equal if self.judge else None

    def check(self, golds: Sequence[Gold]) -> list[str | None]:
        """For each row None, or why responses to it can't be graded; all None without a judge."""
        return self.judge.check(golds) if self.judge else [None] * len(golds)

    def score(self, prompt: Prompt, texts: Sequence[str], token_ids: Sequence[Sequence[int]]) -> list[Score]:
        """One Score for each response. A function that raises gives ERROR verdicts, never an exception."""
        graded = self.judge.score(prompt, texts) if self.judge else None
        parts: list[dict[str, float]] = [dict(score.parts) for score in graded] if graded else [{} for _ in texts]
        totals = [0.0] * len(texts)
        failed = [""] * len(texts)
        for name, function, weight in self._functions:
            label = name.rpartition(":")[2]
            if any(other != name and other.rpartition(":")[2] == label for other, _, _ in self._functions):
                label = name
            values, reason = self._values(name, function, graded, prompt, texts, token_ids)
            for row, value in enumerate(values):
                if value is None:
                    failed[row] = failed[row] or reason
                elif value == value:  # NaN marks an abstention
                    parts[row][label] = value
                    totals[row] += weight * value
        return [
            _combine(parts[row], totals[row], failed[row], graded[row] if graded else None) for row in range(len(texts))
        ]

    @staticmethod
    def _values(
        name: str,
        function: RewardFunction | None,
        graded: Sequence[Score] | None,
        prompt: Prompt,
        texts: Sequence[str],
        token_ids: Sequence[Sequence[int]],
    ) -> tuple[list[float | None], str]:
        """(a function's value per response: None where it failed, NaN where it abstained; what it raised)."""
        if function is None:
            return [score.reward for score in graded or ()], ""
        try:
            values = call_function(function, prompt, texts, token_ids)
        except (Exception, SystemExit) as error:
            logger.warning("reward %s raised %s: %s", name, type(error).__name__, error)
            reason = " ".join(f"{name} raised {type(error).__name__}: {error}".split())
            return [None] * len(texts), printable(reason[:LONGEST_REASON])
        return [float("nan") if value is None else value for value in values], ""


class Scorers:
    """The scorer of each prompt: [reward], and what single sources make of it.

    Args:
        rewards: by `Prompt.grading`; "" is [reward] itself. Either all have correctness or none does.
        given: functions that were handed over in code, by name.
    """

    def __init__(self, rewards: Mapping[str, RewardConfig], given: Given = NONE_GIVEN) -> None:
        self._scorers = {grading: Scorer(reward, given) for grading, reward in rewards.items()}

    @classmethod
    def of(cls, config: Config, given: Given = NONE_GIVEN) -> Scorers:
        """Those that a configuration asks for."""
        return cls(all_rewards(config), given)

    @property
    def has_correctness(self) -> bool:
        """Whether scores say right or wrong."""
        return self._scorers[""].has_correctness

    def equal(self, prompt: Prompt) -> Equal | None:
        """`Scorer.equal` for answers to this prompt."""
        return self._scorers[prompt.grading].equal

    def check(self, golds: Sequence[Gold], grading: str = "") -> list[str | None]:
        """`Scorer.check` of rows that are judged in this way."""
        return self._scorers[grading].check(golds)

    def score(self, prompt: Prompt, texts: Sequence[str], token_ids: Sequence[Sequence[int]]) -> list[Score]:
        """`Scorer.score`, by the prompt's own scorer."""
        return self._scorers[prompt.grading].score(prompt, texts, token_ids)


def _combine(parts: dict[str, float], total: float, failed: str, graded: Score | None) -> Score:
    if failed or not parts:
        correct = None if graded is None else False
        stage = f"a function failed: {failed}" if failed else "every function abstained"
        return Score(verdict=Verdict.ERROR, correct=correct, reward=WRONG, parts=parts, stage=stage)
    if graded is None:
        return Score(verdict=Verdict.GRADED, correct=None, reward=total, parts=parts, stage="functions")
    return Score(
        verdict=graded.verdict,
        correct=graded.correct,
        reward=total,
        parts=parts,
        extracted=graded.extracted,
        stage=graded.stage,
    )
