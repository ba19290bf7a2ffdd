"""What a setting changes, and in what two configurations differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dapo.config.keys import NOT_SETTINGS, values
from dapo.config.schema import Config

GROUPS = (
    "model",
    "data",
    "sampling",
    "reward",
    "objective",
    "reduction",
    "optimiser",
    "evaluation",
    "machine",
    "other",
)
MEANING = {"machine": "speed and memory, not the update", "other": "what is kept, shown and named"}

_SECTIONS = {
    "model": "model",
    "data": "data",
    "sampling": "sampling",
    "reward": "reward",
    "algorithm": "objective",
    "train": "optimiser",
    "eval": "evaluation",
    "engine": "machine",
    "learner": "machine",
    "cluster": "machine",
    "pipeline": "sampling",
    "checkpoint": "other",
    "log": "other",
    "checks": "other",
    "trackers": "other",
    **dict.fromkeys(NOT_SETTINGS, "other"),
}
_EXCEPTIONS = {
    "model.device": "machine",
    "reward.symbolic_workers": "machine",
    "algorithm.reduction": "reduction",
    "algorithm.constant_tokens": "reduction",
    "train.seed": "sampling",
    "train.tokens_per_microbatch": "machine",
    "train.packing": "machine",
    "train.logits_chunk_tokens": "machine",
    "train.gradient_checkpointing": "machine",
}
_CUT = ("train.tokens_per_microbatch", "train.packing")


def group_of(key: str, *, microbatch: bool = False) -> str:
    """What a key changes: one of GROUPS.

    train.seed is sampling's: it deals data order and tokens alike. With reduction = "microbatch" the cut into
    micro-batches changes the gradient, so that what makes the cut belongs to the reduction.

    Args:
        key: a dotted key of the configuration. KeyError for a section that has no group yet.
        microbatch: whether algorithm.reduction is "microbatch".

    >>> group_of("train.packing"), group_of("train.packing", microbatch=True)
    ('machine', 'reduction')
    """
    if microbatch and key in _CUT:
        return "reduction"
    return _EXCEPTIONS.get(key) or _SECTIONS[key.split(".")[0]]


def cut_counts(*configs: Config) -> bool:
    """Whether any of these reduces by micro-batch."""
    return any(config.algorithm.reduction == "microbatch" for config in configs)


@dataclass(frozen=True, slots=True)
class Difference:
    """A key in which two configurations differ, with both plain values."""

    key: str
    group: str
    one: Any
    other: Any


def differences(one: Config, other: Config) -> list[Difference]:
    """Settings that differ, by group in the order of GROUPS. Names, description and provenance are none."""
    before, after, microbatch = values(one), values(other), cut_counts(one, other)
    found = [
        Difference(key, group_of(key, microbatch=microbatch), before[key], after[key])
        for key in before
        if key not in NOT_SETTINGS and before[key] != after[key]
    ]
    return sorted(found, key=lambda difference: GROUPS.index(difference.group))
