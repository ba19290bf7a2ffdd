"""dapo train."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

from dapo.cli.words import SETTINGS, WORDS, config_of, overrides_only
from dapo.config import batch_line, epoch_words
from dapo.config.schema import Config
from dapo.errors import ConfigError
from dapo.run.directory import RunDirectory
from dapo.run.manifest import ROOTS

if TYPE_CHECKING:
    from dapo.library.trainer import Trainer
    from dapo.types import StepReport


@click.command(context_settings=SETTINGS)
@WORDS
@click.option("--output-dir", metavar="DIR", help="Where to write; default runs/<recipe>-<time>.")
@click.option("--resume", metavar="RUN|latest", help="Go on with a run; only KEY=VALUE words may stand beside it.")
@click.option(
    "--allow-changed",
    multiple=True,
    type=click.Choice([*ROOTS, "prompts"]),
    help="With --resume: go on although this is not what the run began with. May be repeated.",
)
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="Deal N GPUs out to engines and learner, by Ray.")
@click.option("--dry-run", is_flag=True, help="Check configuration and data, print the batch sizes, train nothing.")
@click.option("--profile", is_flag=True, help="Write profile.jsonl, where each step's time went; print the sums.")
@click.option("--json", "as_json", is_flag=True, help="Print the last metrics as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def train(
    words: tuple[str, ...],
    output_dir: str | None,
    resume: str | None,
    allow_changed: tuple[str, ...],
    gpus: int | None,
    dry_run: bool,
    profile: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Train by a recipe, e.g. `dapo train quickstart train.num_steps=5`.

    Settings: defaults < recipe < overlays < key=value. `dapo config RECIPE --explain` lists them.
    Sharded: torchrun --nproc-per-node N -m dapo train RECIPE learner.kind=fsdp
    """
    if _is_follower():
        from dapo.learners import follow

        follow()
        return
    if gpus is not None:
        words = (*words, *_placed(gpus, words))
    if resume:
        if output_dir:
            raise ConfigError("--resume goes on in the run's own directory; leave --output-dir out")
        if dry_run:
            raise ConfigError("--dry-run checks a recipe and would train nothing; leave out --resume, or --dry-run")
        _resume(resume, words, allow_changed, profile, as_json, quiet)
        return
    if allow_changed:
        raise ConfigError("--allow-changed is for --resume: a new run has nothing that could have changed")
    if dry_run and profile:
        raise ConfigError("--dry-run trains nothing, so there is nothing to --profile; leave one out")
    config = config_of(words)
    if dry_run:
        _dry_run(config, as_json)
        return
    from dapo.library.trainer import Trainer

    _run(Trainer(config, output_dir=output_dir, quiet=quiet), profile, as_json)


def _placed(gpus: int, words: tuple[str, ...]) -> tuple[str, ...]:
    """Key=value words for --gpus; prints what was chosen."""
    from dapo.cluster.placement import check_gpus, split

    chosen = {"cluster.kind": "ray", **split(gpus), "cluster.gpus_per_rank": 1, "cluster.gpus_per_engine": 1}
    if said := [word for word in words if word.partition("=")[0] in chosen]:
        raise ConfigError(f"--gpus {gpus} chooses {said[0].partition('=')[0]} itself; leave out {said[0]}, or --gpus")
    check_gpus(gpus)
    placed = tuple(f"{key}={value}" for key, value in chosen.items())
    click.echo(f"--gpus {gpus}: {' '.join(placed)}", err=True)
    return placed


def _is_follower() -> bool:
    """Whether torchrun started this process beside one that trains; asked without loading torch."""
    return all(os.environ.get(name) for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")) and (
        os.environ.get("RANK", "0") != "0"
    )


def _resume(
    name: str, words: tuple[str, ...], allowed: tuple[str, ...], profile: bool, as_json: bool, quiet: bool
) -> None:
    overrides = overrides_only(words)
    from dapo.library.trainer import Trainer

    _run(Trainer.resume(name, *overrides, allow_changed=allowed, quiet=quiet), profile, as_json)


def _run(trainer: Trainer, profile: bool, as_json: bool) -> None:
    from dapo.run.signals import leave_process
    from dapo.run.summary import before_after

    trainer.leave = leave_process
    with trainer:
        path, steps = trainer.run.path, trainer.config.train.num_steps
        if trainer.finished:
            trainer.view.say(
                f"{path}: nothing to do, step {trainer.step} of {steps} is done; "
                f"for more, add e.g. train.num_steps={trainer.step + 10}"
            )
        else:
            with _profiled(trainer) if profile else nullcontext(_nothing) as on_step:
                for report in trainer:
                    on_step(report)
            before_after(RunDirectory(path), trainer.config, trainer.view)
    if as_json:
        rows = trainer.run.metrics
        click.echo(json.dumps(rows[-1] if rows else {}))


def _nothing(report: StepReport) -> None:
    """Who listens without --profile."""


@contextmanager
def _profiled(trainer: Trainer) -> Iterator[Callable[[StepReport], None]]:
    """What is told of each step, to write where its time went."""
    import torch

    from dapo import spans
    from dapo.model.loading import pick_device
    from dapo.run.profile import StepProfile

    on_cuda = pick_device(trainer.config.model).type == "cuda"
    recorder = spans.start(torch.cuda.synchronize if on_cuda else lambda: None)
    on_step = StepProfile(RunDirectory(trainer.run.path), recorder)
    try:
        yield on_step
    finally:
        spans.stop()
        trainer.view.show(on_step.table())


def _dry_run(config: Config, as_json: bool) -> None:
    from dapo.build import check_inputs

    _, checked = check_inputs(config)
    sizes = sum(map(len, checked.training))
    tested = sum(map(len, checked.evaluation.values()))
    if as_json:
        report = {
            "recipe": config.name,
            "batch": batch_line(config),
            "training_problems": sizes,
            "evaluation_problems": tested,
            "notes": checked.notes,
        }
        click.echo(json.dumps(report, ensure_ascii=False))
        return
    click.echo(f"{config.name}: {batch_line(config)}")
    click.echo(f"data: {sizes} training problems, {tested} evaluation problems; {epoch_words(config, sizes)}")
    for note in checked.notes:
        click.echo(f"note: {note}")
    click.echo("configuration and data are fine; nothing was trained")
