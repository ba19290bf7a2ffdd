"""What MODEL and RUN[@STEP] mean: a run's checkpoint with the run's own configuration, or a model by a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dapo.config.load import load_config
from dapo.config.schema import Config
from dapo.errors import UserError

if TYPE_CHECKING:
    from dapo.run.checkpoint import Checkpoint

BEST = "best"
NO_DATA = "data.source=none.jsonl"


def split_step(word: str) -> tuple[str, int | str | None]:
    """RUN@STEP as (run, step), RUN@best as (run, "best"); a path that exists is taken whole, whatever it holds."""
    name, at, step = word.rpartition("@")
    if not at or Path(word).exists():
        return word, None
    if step == BEST:
        return name, BEST
    if not step.isdigit():
        raise UserError(f"{word}: after @ comes a step number, or best")
    return name, int(step)


def find_checkpoint(folder: Path, step: int | str | None) -> Checkpoint:
    """The checkpoint that RUN[@STEP] means: the newest without a step. Raises UserError."""
    from dapo.run import checkpoint

    if step is None:
        return checkpoint.newest(folder)
    return checkpoint.best(folder) if step == BEST else checkpoint.at_step(folder, int(step))


def resolve_target(
    model: str, recipe: str | None = None, overrides: Sequence[str] = (), *, template: str = "chat"
) -> Config:
    """The configuration for a run directory (its own, at a checkpoint), or for a model by a recipe.

    Args:
        model: a run with or without @STEP, or what `model.path` may be.
        recipe: of a model.
        overrides: key=value words.
        template: data.template of a bare model, where nothing else says it.

    Raises:
        UserError: no such run, step or checkpoint; a word that can't stand here.
    """
    from dapo import build
    from dapo.run.directory import RunDirectory

    if any(word.startswith("model.path=") for word in overrides):
        raise UserError(f"model.path: the model is {model}; leave the word out")
    name, step = split_step(model)
    if is_run(name):
        if recipe:
            raise UserError(f"--recipe {recipe}: {model} is a run and has its own; leave the option out")
        run = RunDirectory.open(name)
        config = build.with_overrides(using(build.config_of_run(run)), tuple(overrides))
        found = find_checkpoint(run.checkpoints, step)
        return build.with_model(config, str(found.model))
    return config_of_model(model, recipe, overrides, template)


def is_run(name: str) -> bool:
    """Whether this names a run: its folder, or latest."""
    return name == "latest" or (Path(name) / "config.resolved.json").is_file()


def using(config: Config) -> Config:
    """The configuration without what concerns training alone: other evaluation sets need not fit that."""
    from dapo.config.schema import CheckpointConfig

    return config.model_copy(update={"checkpoint": CheckpointConfig()})


def config_of_model(name: str, recipe: str | None, overrides: Sequence[str], template: str) -> Config:
    """The configuration for a model by a recipe, or for a bare one."""
    from dapo import build

    bare = {"model.path": name, "data.template": template, "sampling.filter": "off"}
    kept = {"checkpoint.keep_best": 0, "checkpoint.best_on": "off"}
    base = load_config(recipe, kept, *overrides) if recipe else load_config(bare, NO_DATA, *overrides)
    return build.with_model(using(base), name)
