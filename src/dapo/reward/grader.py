"""The built-in grader: extract, compare exactly, say which stage decided.

It compares integers, decimals and fractions. A gold answer of any other kind is refused when
the data load, so it can never pay.
"""

from __future__ import annotations

from collections.abc import Sequence

from dapo.reward.exact import parse_number
from dapo.reward.extract import extract
from dapo.types import Score, Verdict

RIGHT, WRONG = 1.0, -1.0  # section 2.4


class Grader:
    """Grades one response against one gold answer. Never raises on any text."""

    def __init__(self, policies: Sequence[str]) -> None:
        self.policies = tuple(policies)

    def check_gold(self, gold: str) -> str | None:
        """None, or why this gold answer can't be graded."""
        if parse_number(gold) is None:
            return "it is no integer, decimal or fraction, the kinds this grader compares"
        return None

    def score(self, text: str, gold: str) -> Score:
        """Reward +1 or -1 (section 2.4).

        Args:
            text: the response, decoded up to its first EOS.
            gold: an answer that `check_gold` accepts.

        >>> Grader(["answer_line"]).score("Answer: 0.50", "1/2").verdict
        <Verdict.CORRECT: 'correct'>
        """
        extracted, policy = extract(text, self.policies)
        if extracted is None:
            stage = f"{policy}: empty" if policy else "nothing found"
            return _score(Verdict.UNPARSED, None, stage)
        value, target = parse_number(extracted), parse_number(gold)
        if value is None or target is None:
            return _score(Verdict.WRONG, extracted, f"{policy}: not a number")
        verdict = Verdict.CORRECT if value == target else Verdict.WRONG
        return _score(verdict, extracted, f"{policy}: exact")


def _score(verdict: Verdict, extracted: str | None, stage: str) -> Score:
    right = verdict is Verdict.CORRECT
    reward = RIGHT if right else WRONG
    return Score(
        verdict=verdict,
        correct=right,
        reward=reward,
        parts={"grader": reward},
        extracted=extracted,
        stage=stage,
    )
