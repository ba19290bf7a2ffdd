"""Groups and mini-batches as tensors and plain JSON, and back, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from dapo.types import Batch, Collected, Finish, Group, Pending, Prompt, Response, Rollout, Score, Verdict

if TYPE_CHECKING:
    from torch import Tensor

Frozen = tuple[dict[str, "Tensor"], Any]  # tensors by name, and what JSON can hold


def number(value: float) -> float | str:
    """A float for JSON, which has no NaN and no infinity: those are "nan", "inf", "-inf"."""
    return value if math.isfinite(value) else str(value)


def numbers(values: Mapping[str, float]) -> dict[str, float | str]:
    """`number` of every value."""
    return {name: number(value) for name, value in values.items()}


def floats(values: Mapping[str, Any]) -> dict[str, float]:
    """What `numbers` gave, as floats again."""
    return {name: float(value) for name, value in values.items()}


def freeze_groups(groups: Sequence[Group]) -> Frozen:
    """Graded groups. The rows' other columns are left out: they were for grading, which is done."""
    import torch

    responses = [rollout.response for group in groups for rollout in group.rollouts]
    prompts = [group.prompt.token_ids for group in groups]
    tensors = {
        "prompt_lengths": torch.tensor([len(ids) for ids in prompts]),
        "prompt_ids": torch.from_numpy(_joined(prompts, np.int32)),
        "lengths": torch.tensor([response.num_tokens for response in responses]),
        "token_ids": torch.from_numpy(_joined([r.token_ids for r in responses], np.int32)),
        "generated": torch.from_numpy(_joined([r.generated for r in responses], np.bool_)),
        "engine_logprobs": torch.from_numpy(_joined([r.engine_logprobs for r in responses], np.float32)),
    }
    return tensors, [_group(group) for group in groups]


def thaw_groups(tensors: Mapping[str, Tensor], data: Sequence[Mapping[str, Any]]) -> tuple[Group, ...]:
    """What `freeze_groups` was given, with empty columns."""
    prompt_ids = iter(_pieces(tensors["prompt_ids"], tensors["prompt_lengths"]))
    parts = zip(
        *(_pieces(tensors[name], tensors["lengths"]) for name in ("token_ids", "generated", "engine_logprobs")),
        strict=True,
    )
    return tuple(
        Group(
            draw=entry["draw"],
            prompt=_thawed_prompt(entry["prompt"], next(prompt_ids)),
            rollouts=tuple(_thawed_rollout(row, next(parts)) for row in entry["rollouts"]),
        )
        for entry in data
    )


AHEAD = tuple(f.name for f in fields(Collected) if f.name not in ("kept", "groups"))


def freeze_ahead(ahead: Collected) -> Frozen:
    """What was sampled for the next step; which of its groups are kept is told by their places."""
    tensors, groups = freeze_groups(ahead.groups)
    places = {group.draw: place for place, group in enumerate(ahead.groups)}
    counts = {name: getattr(ahead, name) for name in AHEAD}
    return tensors, {"groups": groups, "kept": [places[group.draw] for group in ahead.kept], **counts}


def thaw_ahead(tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> Collected:
    """What `freeze_ahead` was given."""
    groups = thaw_groups(tensors, data["groups"])
    kept = tuple(groups[place] for place in data["kept"])
    return Collected(groups=groups, kept=kept, **{name: data[name] for name in AHEAD})


def freeze_pending(pending: Pending) -> Frozen:
    """The updates that are left of a step: every tensor of every mini-batch."""
    tensors = {
        f"{place}/{field.name}": tensor.contiguous()
        for place, minibatch in enumerate(pending.minibatches)
        for field in fields(minibatch)
        if (tensor := getattr(minibatch, field.name)) is not None
    }
    return tensors, {
        "minibatches": len(pending.minibatches),
        "updates": [numbers(update) for update in pending.updates],
        "metrics": numbers(pending.metrics),
    }


def thaw_pending(tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> Pending:
    """What `freeze_pending` was given."""
    return Pending(
        minibatches=tuple(
            Batch(**{field.name: tensors.get(f"{place}/{field.name}") for field in fields(Batch)})  # type: ignore[arg-type]
            for place in range(data["minibatches"])
        ),
        updates=tuple(floats(update) for update in data["updates"]),
        metrics=floats(data["metrics"]),
    )


def _joined(arrays: Sequence[Any], dtype: Any) -> Any:
    return np.concatenate(arrays).astype(dtype) if arrays else np.zeros(0, dtype)


def _pieces(flat: Tensor, lengths: Tensor) -> list[Any]:
    return np.split(flat.numpy(), np.cumsum(lengths.numpy()))[: len(lengths)]


def _group(group: Group) -> dict[str, Any]:
    prompt = group.prompt
    return {
        "draw": group.draw,
        "prompt": {
            "id": prompt.id,
            "messages": None if prompt.messages is None else [dict(turn) for turn in prompt.messages],
            "text": prompt.text,
            "answer": prompt.answer,
            "source": prompt.source,
            "rating": prompt.rating,
            "grading": prompt.grading,
        },
        "rollouts": [_rollout(rollout) for rollout in group.rollouts],
    }


def _rollout(rollout: Rollout) -> dict[str, Any]:
    score = rollout.score
    return {
        "finish": rollout.response.finish.value,
        "versions": [list(run) for run in rollout.response.token_versions],
        "text": rollout.text,
        "overlong": number(rollout.overlong),
        "verdict": score.verdict.value,
        "correct": score.correct,
        "reward": number(score.reward),
        "parts": numbers(score.parts),
        "extracted": score.extracted,
        "stage": score.stage,
    }


def _thawed_prompt(data: Mapping[str, Any], token_ids: Any) -> Prompt:
    messages = data["messages"]
    rest = {key: value for key, value in data.items() if key != "messages"}
    return Prompt(messages=None if messages is None else tuple(messages), token_ids=token_ids, **rest)


def _thawed_rollout(data: Mapping[str, Any], arrays: tuple[Any, Any, Any]) -> Rollout:
    token_ids, generated, engine_logprobs = arrays
    return Rollout(
        response=Response(
            token_ids=token_ids,
            generated=generated,
            engine_logprobs=engine_logprobs,
            finish=Finish(data["finish"]),
            token_versions=tuple((version, count) for version, count in data["versions"]),
        ),
        text=data["text"],
        score=Score(
            verdict=Verdict(data["verdict"]),
            correct=data["correct"],
            reward=float(data["reward"]),
            parts=floats(data["parts"]),
            extracted=data["extracted"],
            stage=data["stage"],
        ),
        overlong=float(data["overlong"]),
    )
