"""Grading one answer as training does. Loads no torch."""

from __future__ import annotations

from typing import Any

from dapo.config.load import load_config
from dapo.config.schema import RewardConfig
from dapo.errors import UserError
from dapo.reward.compat import VerlMathDapo
from dapo.reward.judges import make_grader
from dapo.reward.rows import LENIENT_POLICIES
from dapo.types import Score


def grade(text: str, gold: str, **policy: Any) -> Score:
    """Whether a response answers a problem.

    Args:
        text: the response.
        gold: the right answer.
        policy: keys of [reward]: extract (where the answer is looked for; by default everywhere that `dapo grade`
            looks), unevaluated, convert_units, symbolic_limit_s, compat, ...

    Returns:
        Score: verdict, correct, reward (+1 or -1), what was extracted, and by which stage it was decided.

    Raises:
        UserError: the gold answer can't be graded.
        ConfigError: no such key, or a value that can't be used.

    >>> grade("so the answer is \\\\boxed{0.5}", "1/2").correct
    True
    """
    for name, value in (("text", text), ("gold", gold)):
        if not isinstance(value, str):
            raise UserError(f"grade: {name} = {value!r}: has to be a text")
    config = policy_of({f"reward.{key}": value for key, value in policy.items()})
    scorer = VerlMathDapo() if config.compat != "off" else make_grader(config)
    if reason := scorer.check_gold(gold):
        raise UserError(f"gold {gold!r} can't be graded: {reason}")
    return scorer.score(text, gold)


def policy_of(*layers: Any) -> RewardConfig:
    """[reward] with the answer looked for wherever `dapo grade` looks, and layers of settings on top."""
    bare = {"model.path": "-", "data.source": "-", "reward.extract": list(LENIENT_POLICIES)}
    return load_config(bare, *layers).reward
