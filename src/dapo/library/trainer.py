"""Training from Python: what `dapo train` does, with parts of one's own, a step at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo import build
from dapo.config import batch_line
from dapo.config.load import load_config, with_settings
from dapo.config.schema import Config
from dapo.errors import LearnerLost, UserError
from dapo.evals.evaluation import Evaluation
from dapo.given import Given, given_parts
from dapo.library.handle import Run
from dapo.library.rows import PROMPTS_FILE, write_rows
from dapo.loop import run_evaluation, steps, sync
from dapo.out_of_memory import told
from dapo.parts import Parts, learning_rate
from dapo.run import checkpoint
from dapo.run.directory import RunDirectory, resume_command
from dapo.run.notebook import make_view
from dapo.run.signals import StopRequest, interrupt
from dapo.types import StepReport, TrainState

if TYPE_CHECKING:
    from dapo.run.view import View

Layer = str | Path | Mapping[str, Any]


class Trainer:
    """A run. A context manager; iterating trains, and yields a StepReport after each step.

        with Trainer(load_config("tiny"), reward=short) as trainer:
            for report in trainer:
                print(report.step, report.metrics["sampled/accuracy"])

    Leaving the block before the last step saves the state: `Trainer.resume(trainer.run.path)` goes on from it.

    Args:
        config: of the run.
        reward: a function in TRL's or verl's signature, a name as in `reward.functions` ("grader"), a table
            {"function": ..., "weight": ...}, or a list of these. None: as the configuration says.
        prompts: rows (mappings with `problem` and `answer`; other columns are kept), written to prompts.jsonl in the
            run directory. None: as `data.source` says.
        engine: a RolloutEngine, or a factory (config, model, policy) -> RolloutEngine.
        learner: a Learner, or a factory (config, model, reference) -> Learner.
        objective: ObjectiveInputs -> loss of each token, f32 [rows, T].
        output_dir: of the run; None: runs/NAME-TIME.
        quiet: show no progress.

    Raises:
        UserError: a part, the configuration, the data or the model can't be used. Nothing is written then.
        Stopped: while it trains: a signal, exhausted sampling, a failed save, ...; the state is saved.
    """

    def __init__(
        self,
        config: Config,
        *,
        reward: Any = None,
        prompts: Any = None,
        engine: Any = None,
        learner: Any = None,
        objective: Any = None,
        output_dir: str | Path | None = None,
        quiet: bool = False,
    ) -> None:
        if not isinstance(config, Config):
            raise UserError(f"config = {config!r}: give a Config, e.g. dapo.load_config({config!r})")
        given = given_parts(reward=reward, engine=engine, learner=learner, objective=objective)
        if given.settings:
            config = with_settings(config, given.settings)
        directory = RunDirectory.create(config.name, None if output_dir is None else str(output_dir))
        self._start(config, given, directory, quiet)
        self._rows = prompts
        self._point_at_rows()

    def _start(self, config: Config, given: Given, directory: RunDirectory, quiet: bool) -> None:
        self.config = config
        self.leave: Callable[[], None] = interrupt  # what a second Ctrl-C does
        self._given, self._directory, self._quiet = given, directory, quiet
        self._resumes, self._rows = False, None
        self._allowed: tuple[str, ...] = ()
        self._view: View | None = None
        self._parts: Parts | None = None
        self._found: checkpoint.Checkpoint | None = None
        self._state = TrainState()
        self._steps: Generator[tuple[TrainState, StepReport]] | None = None
        self._wrote = self._begun = self._failed = False

    def _point_at_rows(self) -> None:
        """Prompts that were handed over are a file of the run, wherever that is."""
        if self._rows is not None:
            self.config = with_settings(
                self.config, {"data.source": str(self._directory.path.absolute() / PROMPTS_FILE)}
            )

    @classmethod
    def resume(
        cls,
        run: str | Path | Run,
        *words: str,
        reward: Any = None,
        engine: Any = None,
        learner: Any = None,
        objective: Any = None,
        allow_changed: Collection[str] = (),
        quiet: bool = False,
    ) -> Trainer:
        """A trainer that goes on with a run, from its newest checkpoint.

        Args:
            run: the run, its directory, or "latest".
            words: key=value, e.g. "train.num_steps=20".
            reward, engine, learner, objective: what was handed over before has to be handed over again.
            allow_changed: what may differ from before, by name, as in `dapo train --allow-changed`.
            quiet: show no progress.

        Raises:
            UserError: there is no such run, another process writes to it, or it is not what it was.
        """
        directory = RunDirectory.open(str(run.path if isinstance(run, Run) else run))
        given = given_parts(reward=reward, engine=engine, learner=learner, objective=objective)
        config = build.with_overrides(build.config_of_run(directory), words)
        trainer = cls.__new__(cls)
        trainer._start(with_settings(config, given.settings) if given.settings else config, given, directory, quiet)
        trainer._resumes, trainer._allowed = True, tuple(allow_changed)
        return trainer

    # --- the block --------------------------------------------------------------------------------

    def __enter__(self) -> Trainer:
        if self._view is not None:
            raise UserError("the trainer is open already: it is of one with block at a time")
        new = [folder for folder in self._directory.path.parents if not folder.exists()]
        if self._resumes:
            self._directory.hold(new=False)  # before anything is looked at: another process may be writing here
        elif self._directory.claim():
            new.insert(0, self._directory.path)
        path = self._directory.path
        try:
            self._point_at_rows()
            if self._rows is not None:
                write_rows(self._rows, path / PROMPTS_FILE)
                self._wrote = True
            self._found = checkpoint.find(self._directory.checkpoints) if self._resumes else None
            done = 0 if self._found is None else self._found.state.step
            self._view = make_view(self.config.train.num_steps, first_step=done, quiet=self._quiet)
            self._state = TrainState() if self._found is None else self._found.state
            if not self.finished:
                self._build()
        except BaseException:
            self._directory.release()
            self._view = None
            if not self._resumes and not (path / "config.resolved.json").exists():
                self._forget(new)
            raise
        return self

    def _build(self) -> None:
        """Loads and checks everything; a run that is finished does that when it is first needed."""
        view = self.view
        view.say(f"{self.config.name}: {batch_line(self.config)}")
        if not self._resumes:
            view.say(f"writing to {self._directory.path}")
        with view, told():
            if not self._resumes:
                self._parts = build.build(self.config, self._directory, view, given=self._given)
                return
            try:
                self._build_again()
            except UserError as error:
                raise type(error)(error.message + self._elsewhere()) from error

    def _build_again(self) -> None:
        self._parts, self._state = build.resume(
            self._directory, self.config, self._found, self.view, self._allowed, self._given
        )

    def _elsewhere(self) -> str:
        """Where relative paths of a run are relative to, when that is not here."""
        try:
            directory = self._directory.read_json("manifest.json")["directory"]
        except (UserError, KeyError, TypeError):
            return ""
        if directory == str(Path.cwd()):
            return ""
        return f" (the run was started in {directory}, which its relative paths are of)"

    def _forget(self, new: Sequence[Path]) -> None:
        """What was written before it turned out that this is no run."""
        with suppress(OSError):
            if self._wrote:
                (self._directory.path / PROMPTS_FILE).unlink(missing_ok=True)
            if new:
                (self._directory.path / ".lock").unlink(missing_ok=True)
            for folder in new:
                folder.rmdir()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Ends the run: saves where it stands, if it does not stand there already, and gives everything back.

        Another block of the same trainer goes on from there.
        """
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        try:
            if self._parts is not None and self._begun and not self._failed:
                self._ensure_saved(self._parts)
        finally:
            self._close_parts()
            self._view, self._rows, self._resumes = None, None, True
            self._begun = self._failed = False
            self._directory.release()

    def _close_parts(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            try:
                if (close := getattr(parts.learner, "close", None)) is not None:
                    close()  # a learner that has other processes sends them home
            finally:
                parts.close()

    def _needed(self) -> Parts:
        """The parts, where the weights are those of `step`. Raises UserError where they are on their way to another."""
        if self._failed:
            raise UserError(
                "training has ended with an error, maybe in the middle of a step; leave the with block, and go on "
                f"with dapo.Trainer.resume({str(self._directory.path)!r})"
            )
        if self._steps is not None and inspect.getgeneratorstate(self._steps) == inspect.GEN_RUNNING:
            raise UserError("a step is being made; a part that it calls can't use the trainer")
        if self._parts is None:
            self._build()
        assert self._parts is not None
        return self._parts

    @property
    def view(self) -> View:
        """What shows progress."""
        if self._view is None:
            raise UserError("the trainer is not open: use it in a with block, with dapo.Trainer(...) as trainer")
        return self._view

    # --- training ---------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """What the run directory holds so far."""
        return Run(self._directory.path)

    @property
    def step(self) -> int:
        """Steps that are done."""
        return self._state.step

    @property
    def finished(self) -> bool:
        """Whether the last step is done."""
        return self._state.step >= self.config.train.num_steps

    def __iter__(self) -> Iterator[StepReport]:
        """Trains to the last step. Broken off, it can be begun again from where it stands."""
        restarts = self.config.cluster.learner_restarts
        with self.view as view:
            while not self.finished:
                try:
                    yield from self._trained()
                except LearnerLost as error:
                    if self.config.cluster.kind != "ray":  # ranks that torchrun started are its to start again
                        raise
                    if not restarts:
                        used = f"cluster.learner_restarts = {self.config.cluster.learner_restarts} are used up"
                        go_on = resume_command(self._directory.path)
                        raise LearnerLost(f"{error}; {used}; go on with: {go_on}") from error
                    restarts -= 1
                    view.say(f"{error}; going on from the last checkpoint (restarts left: {restarts})")
                    self._close_parts()
                    self._found = checkpoint.find(self._directory.checkpoints)
                    self._build_again()
                    self._failed = False

    def _trained(self) -> Iterator[StepReport]:
        """The steps that are left. Broken off, they wait where they are until they are asked for again."""
        parts = self._needed()
        if self._steps is None:
            self._begun = True
            self._steps = steps(parts, self._state, StopRequest(parts.view.say, leave=self.leave))
        try:
            for state, report in self._steps:
                self._state = state
                yield report
        except GeneratorExit:
            raise
        except BaseException:
            self._steps, self._failed = None, True  # what there was to save is saved
            raise
        self._steps = None

    def save(self) -> Path:
        """Writes a checkpoint of where the run stands, if there is none; returns its folder. Raises SaveFailed."""
        self._ensure_saved(self._needed())
        return checkpoint.newest(self._directory.checkpoints).path

    def _ensure_saved(self, parts: Parts) -> None:
        parts.saver.ensure(self._state, learning_rate(self._state.step, self.config))

    def evaluate(self) -> Evaluation:
        """Evaluates the policy as it is on `eval.data`, and writes the figures to eval/.

        Raises UserError where `eval.data` names nothing.
        """
        parts = self._needed()
        if not parts.tests:
            raise UserError("eval.data is empty, so there is nothing to evaluate on; name sets or files")
        if not self._begun:
            sync(parts, self._state.version)
        with told(), StopRequest(parts.view.say, "with what there is", leave=interrupt) as stop:
            return run_evaluation(parts, self._state.step, stop)

    def export(self, path: str | Path, *, dtype: str = "float32") -> Path:
        """Writes the policy as it is as a plain Hugging Face folder; saves a checkpoint for that. See `Run.export`."""
        self.save()
        return self.run.export(path, step=self._state.step, dtype=dtype)


def train(
    *layers: Layer,
    reward: Any = None,
    prompts: Any = None,
    engine: Any = None,
    learner: Any = None,
    objective: Any = None,
    output_dir: str | Path | None = None,
    quiet: bool = False,
) -> Run:
    """Trains to the last step, as `dapo train` does; returns the run.

        run = dapo.train("tiny", "train.num_steps=3", reward=short, prompts=rows)

    Args:
        layers: as `load_config` takes them: recipes, files, key=value words, mappings.
        reward, prompts, engine, learner, objective, output_dir, quiet: see `Trainer`.

    Raises:
        UserError: something can't be used. Nothing is written then.
        Stopped: the run ended before its last step; it can be resumed.
    """
    given = given_parts(reward=reward, engine=engine, learner=learner, objective=objective)
    named = {**given.settings, **({} if prompts is None else {"data.source": PROMPTS_FILE})}
    config = load_config(*layers, named)
    trainer = Trainer(
        config,
        reward=reward,
        prompts=prompts,
        engine=engine,
        learner=learner,
        objective=objective,
        output_dir=output_dir,
        quiet=quiet,
    )
    with trainer:
        for _ in trainer:
            pass
    return trainer.run
