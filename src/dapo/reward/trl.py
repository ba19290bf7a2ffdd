"""Reward functions with the signature that TRL's trainers call.

    from dapo.reward import math_reward, overlong_reward
    GRPOTrainer(..., reward_funcs=[math_reward, overlong_reward(max_tokens=20480, buffer=4096)])

TRL passes `prompts`, `completions` (texts, or lists of messages), `completion_ids` and every column
of the dataset as a keyword.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from dapo.reward.extract import extract
from dapo.reward.golds import as_text
from dapo.reward.grader import RIGHT, WRONG, Grader

GOLD_COLUMNS = ("answer", "solution", "ground_truth", "gold")
POLICIES = ("answer_line", "boxed", "tag")

Completion = str | Sequence[dict[str, Any]]


def math_reward(completions: Sequence[Completion], **columns: Any) -> list[float | None]:
    r"""+1 for a right final answer, -1 otherwise (section 2.4 of the DAPO paper).

    The gold is the dataset's column answer, solution, ground_truth or gold, the first that is there; a
    solution that holds a \boxed{} stands for what is in it. A row whose gold can't be graded gives None:
    TRL leaves it out, and it never pays.

    Args:
        completions: texts, or message lists whose last turn is the answer.
        columns: everything else that TRL passes.

    Raises:
        ValueError: none of the columns is there.

    >>> math_reward(["so\nAnswer: 1/2", "Answer: 3"], answer=["0.5", "0.5"])
    [1.0, -1.0]
    """
    name = next((name for name in GOLD_COLUMNS if name in columns), None)
    if name is None:
        raise ValueError(f"math_reward needs a dataset column named one of {', '.join(GOLD_COLUMNS)}")
    golds = [gold_text(value) for value in columns[name]]
    grader = _grader()
    reasons = _check(tuple(golds))
    pairs = [(completion_text(c), gold) for c, gold in zip(completions, golds, strict=True)]
    scores = grader.score_all([pair for pair, reason in zip(pairs, reasons, strict=True) if reason is None])
    found = iter(scores)
    return [None if reason else (RIGHT if next(found).correct else WRONG) for reason in reasons]


def overlong_reward(max_tokens: int, buffer: int, factor: float = 1.0) -> Callable[..., list[float]]:
    """A reward function of the soft overlong punishment (Eq. 13): 0 down to -factor in the last `buffer` tokens.

    Args:
        max_tokens: Lmax, the response's limit in tokens; TRL's max_completion_length.
        buffer: Lcache, in tokens, at most max_tokens.
        factor: what the penalty is multiplied by, over 0 and below 2.

    Raises:
        ValueError: a number out of its range.

    >>> overlong_reward(20480, 4096)(completions=["", ""], completion_ids=[[0] * 18432, [0] * 30000])
    [-0.5, -1.0]
    """
    if not 1 <= buffer <= max_tokens or not 0 < factor < 2:
        raise ValueError(
            f"overlong_reward(max_tokens={max_tokens}, buffer={buffer}, factor={factor:g}): it needs "
            "1 <= buffer <= max_tokens and 0 < factor < 2"
        )

    def overlong(completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        import torch

        from dapo.algorithm import overlong_penalty

        lengths = torch.tensor([len(ids) for ids in completion_ids])
        penalties = overlong_penalty(lengths, max_tokens=max_tokens, buffer_tokens=buffer, factor=factor)
        return [float(value) for value in penalties]

    overlong.__name__ = "overlong_reward"
    return overlong


def completion_text(completion: Completion) -> str:
    """The text of a completion; of a conversation, the content of its last turn."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content", "") if completion else ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if isinstance(part, dict))


def gold_text(value: Any) -> str:
    r"""A gold of any column as text (`golds.as_text`), a box opened.

    >>> gold_text(34.0), gold_text(["34"]), gold_text(r"Thus \boxed{34}."), gold_text(None)
    ('34', '34', '34', '')
    """
    text = as_text(value)
    if "\\boxed" in text or "\\fbox" in text:
        return extract(text, ("boxed",))[0] or ""
    return text


@lru_cache(maxsize=1)
def _grader() -> Grader:
    return Grader(POLICIES)


@lru_cache(maxsize=4096)
def _check(golds: tuple[str, ...]) -> tuple[str | None, ...]:
    return tuple(_grader().check_golds(golds))
