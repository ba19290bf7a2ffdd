r"""The grader as a file that verl loads.

    custom_reward_function.path="$(python -c 'import dapo.reward.verl as m; print(m.__file__)')"
    custom_reward_function.name=compute_score

verl loads it by path, outside the package: it imports nothing relative, and works from threads, from
daemonic worker processes and inside Ray.
"""

from __future__ import annotations

from typing import Any

from dapo.reward.trl import gold_text, math_reward


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **_: Any
) -> dict[str, Any]:
    """The grade of one response, in verl's form.

    Args:
        data_source: the row's source; not looked at.
        solution_str: the response, decoded.
        ground_truth: the gold answer: text, a number, or a list of one.
        extra_info: not looked at.

    Returns:
        score +1 or -1, acc True or False (what verl's filter_groups.metric = "acc" filters on).

    Raises:
        ValueError: the gold can't be graded; a bad gold must not pass for a wrong answer.

    >>> compute_score("math", "Answer: 34", 34)
    {'score': 1.0, 'acc': True}
    """
    (value,) = math_reward([solution_str], answer=[ground_truth])
    if value is None:
        raise ValueError(f"the ground truth {gold_text(ground_truth)!r} of {data_source} can't be graded")
    return {"score": value, "acc": value > 0}
