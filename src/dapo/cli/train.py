"""dapo train."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dapo.cli.words import SETTINGS, WORDS, config_of, overrides_only
from dapo.config import batch_line, epoch_words
from dapo.config.schema import Config
from dapo.errors import ConfigError, LearnerLost, UserError
from dapo.run.manifest import ROOTS

if TYPE_CHECKING:
    from dapo.parts import Parts
    from dapo.run.directory import RunDirectory


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
    from dapo import build
    from dapo.run.directory import RunDirectory
    from dapo.run.view import View
    from dapo.types import TrainState

    run = RunDirectory.create(config.name, output_dir)
    view = View(config.train.num_steps, quiet=quiet)
    view.say(f"{config.name}: {batch_line(config)}")
    view.say(f"writing to {run.path}")
    try:
        with view:
            parts = build.build(config, run, view)
            parts = _train(parts, TrainState(), profile)
        _finish(parts, as_json)
    finally:
        run.release()


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
    from dapo import build
    from dapo.run import checkpoint
    from dapo.run.directory import RunDirectory
    from dapo.run.view import View

    run = RunDirectory.open(name)
    run.hold(new=False)  # before anything is looked at: another process may be writing here
    try:
        config = build.with_overrides(build.config_of_run(run), overrides)
        found = checkpoint.find(run.checkpoints)
        done = 0 if found is None else found.state.step
        view = View(config.train.num_steps, first_step=done, quiet=quiet)
        if done >= config.train.num_steps:
            view.say(
                f"{run.path}: nothing to do, step {done} of {config.train.num_steps} is done; "
                "for more, add e.g. train.num_steps=" + str(done + 10)
            )
            if as_json:
                _print_last(run)
            return
        view.say(f"{config.name}: {batch_line(config)}")
        with view:
            try:
                parts, state = build.resume(run, config, found, view, allowed)
            except UserError as error:
                raise type(error)(error.message + _elsewhere(run)) from error
            parts = _train(parts, state, profile, allowed)
        _finish(parts, as_json)
    finally:
        run.release()


def _elsewhere(run: RunDirectory) -> str:
    """Where relative paths of a run are relative to, when that is not here."""
    try:
        directory = run.read_json("manifest.json")["directory"]
    except (UserError, KeyError, TypeError):
        return ""
    if directory == str(Path.cwd()):
        return ""
    return f" (the run was started in {directory}, which its relative paths are of)"


def _train(parts: Parts, state: Any, profile: bool, allowed: tuple[str, ...] = ()) -> Parts:
    """Trains to the end; returns the parts that got there. After a death in the learner it goes on by itself."""
    from dapo import build
    from dapo.run import checkpoint
    from dapo.run.directory import resume_command

    run, config, view = parts.run, parts.config, parts.view
    on_cluster = config.cluster.kind == "ray"  # ranks that torchrun started are its to start again
    left = config.cluster.learner_restarts if on_cluster else 0
    while True:
        try:
            _train_once(parts, state, profile)
            return parts
        except LearnerLost as error:
            if not on_cluster:
                raise
            if not left:
                used = f"cluster.learner_restarts = {config.cluster.learner_restarts} are used up"
                raise LearnerLost(f"{error}; {used}; go on with: {resume_command(run.path)}") from error
            left -= 1
            view.say(f"{error}; going on from the last checkpoint (restarts left: {left})")
        finally:
            parts.close()
        parts, state = build.resume(run, config, checkpoint.find(run.checkpoints), view, allowed)


def _train_once(parts: Parts, state: Any, profile: bool) -> None:
    from dapo.loop import train as run_loop

    if not profile:
        with _closing(parts.learner):
            run_loop(parts, state)
        return
    import torch

    from dapo import spans
    from dapo.model.loading import pick_device
    from dapo.run.profile import StepProfile

    on_cuda = pick_device(parts.config.model).type == "cuda"
    on_step = StepProfile(parts.run, spans.start(torch.cuda.synchronize if on_cuda else lambda: None))
    try:
        with _closing(parts.learner):
            run_loop(parts, state, on_step)
    finally:
        spans.stop()
        parts.view.show(on_step.table())


@contextmanager
def _closing(learner: Any) -> Iterator[None]:
    """A learner that has other processes sends them home, however the run ends."""
    try:
        yield
    finally:
        if (close := getattr(learner, "close", None)) is not None:
            close()


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


def _finish(parts: Parts, as_json: bool) -> None:
    from dapo.run.summary import before_after

    run: RunDirectory = parts.run
    before_after(run, parts.config, parts.view)
    if as_json:
        _print_last(run)


def _print_last(run: RunDirectory) -> None:
    rows = run.metrics()
    click.echo(json.dumps(rows[-1] if rows else {}))
