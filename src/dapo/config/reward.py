"""The section `reward`: grading and shaping."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.base import Float, Int, NullableInt, Section

Overlong = Literal["none", "hard", "soft", "filter", "soft+filter"]


class RewardFunctionConfig(Section):
    """One custom reward function."""

    function: str
    """FILE.py:NAME, relative to the recipe's folder, or MODULE:NAME."""
    weight: Float = 1.0
    """Its value is multiplied by this and added."""


class RewardConfig(Section):
    """Grading and shaping (sections 2.4 and 3.4)."""

    extract: tuple[Literal["answer_line", "boxed", "tag", "sentence", "whole", "last_math", "last_number"], ...] = (
        "answer_line",
        "boxed",
    )
    """Where the final answer is looked for, in this order; the last occurrence of each counts.
    answer_line: "Answer: ..."; boxed: \\boxed{...}; tag: <answer>...</answer>; sentence: "the answer
    is ..."; whole: a response of one line without prose; last_math: the last formula or number;
    last_number."""
    compat: Literal["off", "verl-math-dapo"] = "off"
    """verl-math-dapo: the decisions of the paper's published scorer, misses and false hits included."""
    unevaluated: Literal["wrong", "right"] = "wrong"
    """Whether arithmetic left undone answers a number: 12+13 for 25. "right" pays for repeating the
    question where the question is arithmetic."""
    convert_units: bool = False
    """Whether 500 cm answers 5 m."""
    symbolic_limit_s: Annotated[Float, Field(gt=0)] = 2.0
    """Seconds for the symbolic comparison of one answer; then its process is killed: verdict timeout."""
    symbolic_workers: NullableInt = None
    """Processes for symbolic comparison; "off": one for each core, at most 16."""
    symbolic_memory_mb: Int = Field(default=1024, ge=64)
    """Memory of one of them, on top of its imports."""
    functions: tuple[str | RewardFunctionConfig, ...] = ()
    """Custom rewards in place of the grader, as FILE.py:NAME or tables with weights.
    "grader" names the built-in one, so that both can be combined; "python-tests" runs the response's
    program against the tests in reward.tests_column."""
    tests_column: str = "tests"
    """Of python-tests: a list of assert lines, or {"inputs": [...], "outputs": [...]}."""
    tests_limit_s: Annotated[Float, Field(gt=0)] = 5.0
    """Of python-tests: CPU seconds for one test; wall time is bounded by twice that."""
    tests_memory_mb: Int = Field(default=512, ge=64)
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
    placebo: bool = False
    """An experiment's control: permute the scores among a round's responses before anything
    looks at them. What still improves did not come from the reward."""
