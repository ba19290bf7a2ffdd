"""The section `reward`: grading and shaping."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field

from dapo.config.base import Float, Int, NullableFloat, NullableInt, Section

Extract = Literal["answer_line", "boxed", "tag", "sentence", "whole", "last_math", "last_number"]
Compat = Literal["off", "verl-math-dapo"]
Unevaluated = Literal["wrong", "right"]
Overlong = Literal["none", "hard", "soft", "filter", "soft+filter"]
Seconds = Annotated[Float, Field(gt=0)]
Megabytes = Annotated[Int, Field(ge=64)]


class RewardFunctionConfig(Section):
    """One custom reward function."""

    function: str
    """FILE.py:NAME, relative to the recipe's folder, or MODULE:NAME."""
    weight: Float = 1.0
    """Its value is multiplied by this and added."""


class RewardConfig(Section):
    """Grading and shaping (sections 2.4 and 3.4)."""

    extract: tuple[Extract, ...] = ("answer_line", "boxed")
    """Where the final answer is looked for, in this order; the last occurrence of each counts.
    answer_line: "Answer: ..."; boxed: \\boxed{...}; tag: <answer>...</answer>; sentence: "the answer
    is ..."; whole: a response of one line without prose; last_math: the last formula or number;
    last_number."""
    compat: Compat = "off"
    """verl-math-dapo: the decisions of the paper's published scorer, misses and false hits included."""
    unevaluated: Unevaluated = "wrong"
    """Whether arithmetic left undone answers a number: 12+13 for 25. "right" pays for repeating the
    question where the question is arithmetic."""
    convert_units: bool = False
    """Whether 500 cm answers 5 m."""
    symbolic_limit_s: Seconds = 2.0
    """Seconds for the symbolic comparison of one answer; then its process is killed: verdict timeout."""
    symbolic_workers: NullableInt = None
    """Processes for symbolic comparison; "off": one for each core, at most 16."""
    symbolic_memory_mb: Megabytes = 1024
    """Memory of one of them, on top of its imports."""
    functions: tuple[str | RewardFunctionConfig, ...] = ()
    """Custom rewards in place of the grader, as FILE.py:NAME or tables with weights.
    "grader" names the built-in one, so that both can be combined; "python-tests" runs the response's
    program against the tests in reward.tests_column."""
    tests_column: str = "tests"
    """Of python-tests: a list of assert lines, or {"inputs": [...], "outputs": [...]}."""
    tests_limit_s: Seconds = 5.0
    """Of python-tests: CPU seconds for one test; wall time is bounded by twice that."""
    tests_memory_mb: Megabytes = 512
    """Of python-tests: memory of the program."""
    max_error_fraction: Annotated[Float, Field(ge=0, le=1)] = 0.1
    """Stop when more of a round's scores are errors than this."""
    overlong: Overlong = "soft"
    """none; hard: -1 for truncated responses alone; soft: Eq. 13; filter: truncated responses
    leave the loss but stay in their group's statistics; soft+filter: both."""
    overlong_buffer_tokens: Int = Field(default=4096, ge=1)
    """Lcache of Eq. 13: the last tokens before the limit, where the penalty grows. Paper: 4096."""
    overlong_factor: Annotated[Float, Field(gt=0)] = 1.0
    """Multiplies the penalty; below 2, so that no wrong answer can outrank a right one."""
    normalisation: Literal["off", "running"] = "off"
    """Not the paper's. running: shaped rewards less their mean over their standard deviation, over all responses
    trained on since it is on, before advantages are made. The filter never sees it."""
    clip: NullableFloat = None
    """Not the paper's: shaped (and normalised) rewards are cut to +- this before advantages are made."""
    placebo: bool = False
    """An experiment's control: permute the scores among a round's responses before anything
    looks at them. What still improves did not come from the reward."""


class SourceRewardConfig(Section):
    """What a source may say of `reward` for its own problems. What is not set is as in [reward]."""

    extract: tuple[Extract, ...] | None = None
    """As reward.extract."""
    compat: Compat | None = None
    """As reward.compat."""
    unevaluated: Unevaluated | None = None
    """As reward.unevaluated."""
    convert_units: bool | None = None
    """As reward.convert_units."""
    functions: tuple[str | RewardFunctionConfig, ...] | None = None
    """As reward.functions; all sources say right and wrong, or none does."""
    tests_column: str | None = None
    """As reward.tests_column."""
    tests_limit_s: Seconds | None = None
    """As reward.tests_limit_s."""
    tests_memory_mb: Megabytes | None = None
    """As reward.tests_memory_mb."""

    @property
    def key(self) -> str:
        """What is set, spelled in one way; "" for nothing."""
        given = self.model_dump(mode="json", exclude_none=True)
        return json.dumps(given, sort_keys=True) if given else ""

    def over(self, reward: RewardConfig) -> RewardConfig:
        """[reward] with what is set here in its place."""
        given = {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}
        return reward.model_copy(update=given)


JUDGES = ("grader", "python-tests")  # the names in reward.functions that say right and wrong; at most one


def function_names(reward: RewardConfig) -> list[str]:
    """The names in reward.functions; without any, the built-in grader's."""
    return [f if isinstance(f, str) else f.function for f in reward.functions] or ["grader"]


def has_judge(reward: RewardConfig) -> bool:
    """Whether scores say right or wrong."""
    return any(name in JUDGES for name in function_names(reward))
