"""Rollouts as plain rows: what is written to disk, browsed, and evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dapo.types import Group, Prompt

Row = dict[str, Any]


def rollout_rows(group: Group, *, kept: bool, step: int, advantages: Sequence[float] | None = None) -> Iterator[Row]:
    """One plain row for each response of a group; its advantage where it was given one."""
    for g, rollout in enumerate(group.rollouts):
        score = rollout.score
        yield {
            "step": step,
            "draw": group.draw,
            "g": g,
            "prompt_id": group.prompt.id,
            "question": question(group.prompt),
            "prompt": group.prompt.text,
            "answer": group.prompt.answer,
            "text": rollout.text,
            "finish": rollout.response.finish.value,
            "tokens": rollout.response.num_tokens,
            "verdict": score.verdict.value,
            "extracted": score.extracted,
            "stage": score.stage,
            "reward": score.reward,
            "parts": dict(score.parts),
            "overlong": rollout.overlong,
            "advantage": None if advantages is None else advantages[g],
            "kept": kept,
            "versions": [list(run) for run in rollout.response.token_versions],
        }


def question(prompt: Prompt) -> str:
    """The last user turn, or the raw text."""
    turns = [turn["content"] for turn in prompt.messages or () if turn["role"] == "user"]
    return turns[-1] if turns else prompt.text
