"""Groups and the batches made of them, for the self-checks; runs of the tiny model and what they found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import helpers_run as helpers
from dapo.batch import make_batch, minibatches, with_advantages
from dapo.config.schema import Config
from dapo.run.directory import CHECKS_FILE
from dapo.types import Batch, Collected, Finish, Group
from helpers_learner import EOS, config, group, response

__all__ = ["EOS", "Made", "Ran", "collected", "config", "made", "ran", "two_groups"]


@dataclass(frozen=True)
class Made:
    """A batch with its groups and mini-batches."""

    groups: tuple[Group, ...]
    batch: Batch
    parts: tuple[Batch, ...]
    config: Config


def two_groups() -> tuple[Group, ...]:
    """Two groups of four, of all kinds of ends and lengths: right and wrong, ended, truncated, stopped by a string."""
    return (
        group(
            3,
            [1, 5, 6],
            [response([7, 8, EOS]), response([9]), response([8, EOS]), response([5, 5], finish=Finish.STOP)],
            [1.0, -1.0, 1.0, -1.0],
        ),
        group(
            7,
            [1, 9],
            [response([EOS]), response([7, 7, 7, 7, 7]), response([4, EOS]), response([4, 4, 4])],
            [-1.0, -1.0, -1.0, 1.0],
            [0.0, -0.5, 0.0, 0.0],
        ),
    )


def made(groups: Sequence[Group] | None = None, settings: Config | None = None) -> Made:
    """What the loop makes of groups, with old log-probs that are those of the engine."""
    groups = two_groups() if groups is None else tuple(groups)
    settings = settings or config(
        sampling__prompts_per_step=len(groups), sampling__responses_per_prompt=4, train__updates_per_step=len(groups)
    )
    batch = make_batch(groups, [EOS], settings)
    batch = replace(batch, old_logprobs=batch.engine_logprobs.clone())
    batch = with_advantages(batch, groups, settings)
    parts = tuple(minibatches(batch, settings, lambda part: [list(range(part.num_rows))]))
    return Made(groups, batch, parts, settings)


def collected(groups: Sequence[Group], kept: Sequence[Group], short: str = "") -> Collected:
    """A filling that looked at these groups."""
    return Collected(
        kept=tuple(kept), groups=tuple(groups), cut=len(groups), next_draw=len(groups), next_place=0, short=short
    )


@dataclass(frozen=True)
class Ran:
    """A run that has ended."""

    code: int
    err: str
    lines: list[dict[str, Any]]
    counts: list[float]  # checks/findings of each step
    path: Path

    @property
    def checks(self) -> set[str]:
        """Which checks have found something."""
        return {line["check"] for line in self.lines}


def ran(folder: Path, *words: str | Path, model: Path | None = None) -> Ran:
    """Trains by `helpers.write_recipe` in a folder, whatever comes of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path, recipe = folder / "run", helpers.write_recipe(folder, model=model)
    with torch.random.fork_rng():
        code, _, err = helpers.quiet_dapo("train", recipe, "eval.data=[]", *words, "--output-dir", path)
    return ended(path, code, err)


def ended(path: Path, code: int, err: str) -> Ran:
    """What a run has left."""
    file = path / CHECKS_FILE
    lines = [helpers.strict_json(line) for line in file.read_text().splitlines()] if file.is_file() else []
    metrics = helpers.metrics(path) if (path / "metrics.jsonl").is_file() else []
    return Ran(code, err, lines, [row["checks/findings"] for row in metrics], path)


def resumed(run: Ran, *words: str) -> Ran:
    """Goes on with it."""
    code, _, err = helpers.quiet_dapo("train", "--resume", run.path, *words)
    return ended(run.path, code, err)


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """checks.jsonl of a run, and a torn line behind."""
    (path / CHECKS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 9', encoding="utf-8")
