"""The trackers that have a name: TensorBoard's files, and runs of wandb, swanlab and trackio.

A tool's package is imported by its own thread when a run begins. Keys and servers are the tool's business: it reads its
own environment and files, dapo reads none of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from dapo.config.keys import resolve
from dapo.config.schema import Config
from dapo.errors import UserError
from dapo.reward.functions import load_function
from dapo.run.directory import RunDirectory
from dapo.run.trackers import Function, FunctionTracker, NotInstalled, Tracker

PROJECT = "dapo"
IDENTITY = "trackers.json"  # in the run directory: the run's name with the tools, so that a resume goes on there
PROJECTS = {"wandb": "WANDB_PROJECT", "swanlab": "SWANLAB_PROJ_NAME"}  # the tools' own variables for the project

_identity = threading.Lock()


def load_functions(config: Config) -> dict[str, Function]:
    """The functions that `trackers` names. Raises RewardError for one that is not there."""
    return {name: load_function(name, "trackers") for name in config.trackers if ":" in name}


def make_trackers(config: Config, run: RunDirectory) -> list[Tracker]:
    """What `trackers` names, nothing of it opened yet."""
    functions = load_functions(config)
    return [
        FunctionTracker(name, functions[name]) if name in functions else _tool(name, config, run)
        for name in config.trackers
    ]


def _tool(name: str, config: Config, run: RunDirectory) -> Tracker:
    return TensorBoard(run.path / "tensorboard") if name == "tensorboard" else Remote(name, config, run)


def missing_notes(config: Config) -> list[str]:
    """A line for each tool that `trackers` names and that is not installed."""
    return [
        f"trackers: {name} is not installed, and gets nothing; {_mend(name)}"
        for name in config.trackers
        if ":" not in name and not _installed(name)
    ]


def numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    """What tools get: finite values alone, under names that are valid UTF-8."""
    return {
        name.encode("utf-8", "replace").decode(): float(value)
        for name, value in metrics.items()
        if value is not None and math.isfinite(value)
    }


class TensorBoard:
    """Scalars in an event file, whole after each step: tensorboard --logdir RUN/tensorboard.

    Written with tensorboard's own records and without its file layer, which loads TensorFlow where that is installed.
    """

    name, prints = "tensorboard", False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: Path | None = None

    def open(self, first_step: int) -> None:
        """Begins an event file, in which all earlier steps from first_step on are declared void."""
        _imported(self.name)
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"events.out.tfevents.{self._stamp():010d}.dapo"
        start = SessionLog(status=SessionLog.START)
        self._append(file, Event(file_version="brain.Event:2"), Event(step=first_step, session_log=start))
        self._file = file

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See Tracker."""
        if self._file is None:
            self.open(step)
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(metrics).items()]
        file, self._file = self._file, None  # a record that was torn hides what follows it: then on in a new file
        assert file is not None
        self._append(file, Event(step=step, summary=Summary(value=values)))
        self._file = file

    def close(self) -> None:
        """Nothing is open between two steps."""

    def _append(self, file: Path, *events: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        records = io.BytesIO()
        writer = RecordWriter(records)
        for event in events:
            event.wall_time = time.time()
            writer.write(event.SerializeToString())
        with file.open("ab") as handle:
            handle.write(records.getvalue())

    def _stamp(self) -> int:
        """Seconds, after those of every file that is there: readers go through files in the order of their names."""
        there = [part for file in self._folder.glob("events.out.tfevents.*") if (part := file.name.split(".")[3])]
        return max([int(time.time()), *(int(part) + 1 for part in there if part.isdecimal())])


class Remote:
    """A run of wandb, swanlab or trackio; the same one after a resume."""

    prints = True

    def __init__(self, name: str, config: Config, run: RunDirectory) -> None:
        self.name, self._config, self._run = name, config, run
        self._there: Any = None

    def open(self, first_step: int) -> None:
        """Begins the run there, or goes on with it."""
        module = _imported(self.name)
        start = {"wandb": _wandb, "swanlab": _swanlab, "trackio": _trackio}[self.name]
        project = os.environ.get(PROJECTS.get(self.name, ""), "") or PROJECT
        self._there = start(
            module,
            project=project,
            identity=identity_of(self._run),
            folder=self._run.path,
            config=resolve(self._config),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See Tracker."""
        self._there.log(numbers(metrics), step=step)

    def close(self) -> None:
        """Ends the run there."""
        self._there.finish()


def _wandb(module: Any, *, project: str, identity: str, folder: Path, config: dict[str, Any]) -> Any:
    return module.init(
        project=project,
        name=folder.resolve().name,
        id=identity,
        resume="allow",
        config=config,
        dir=str(folder),
        settings={"console": "off"},  # it would take what the live table writes for a log
    )


def _swanlab(module: Any, *, project: str, identity: str, folder: Path, config: dict[str, Any]) -> Any:
    logs = folder / "swanlog"
    logs.mkdir(exist_ok=True)
    return module.init(
        project=project,
        name=folder.resolve().name,
        id=identity,
        resume="allow",
        config=config,
        log_dir=str(logs),
        settings={"terminal": {"proxy_type": "none"}},
    )


def _trackio(module: Any, *, project: str, identity: str, folder: Path, config: dict[str, Any]) -> Any:
    """A run of trackio is known by its name, so that has the identity in it."""
    return module.init(
        project=project, name=f"{folder.resolve().name}-{identity[:8]}", resume="allow", config=config, embed=False
    )


def identity_of(run: RunDirectory) -> str:
    """What the run is called with the tools: drawn at random once, and kept in its directory. Raises UserError."""
    with _identity:
        if not (run.path / IDENTITY).is_file():
            run.write_json(IDENTITY, {"id": secrets.token_hex(8)})
        kept = run.read_json(IDENTITY)
        found = kept.get("id") if isinstance(kept, dict) else None
        if not isinstance(found, str) or not found.isalnum() or not found.isascii():
            raise UserError(f"{run.path / IDENTITY}: holds no id; take the file away to begin a new run there")
        return found


def _imported(name: str) -> ModuleType:
    """A tool's package. Raises NotInstalled."""
    if not _installed(name):
        raise NotInstalled(f"{name} is not installed; {_mend(name)}")
    return importlib.import_module(name)


def _installed(name: str) -> bool:
    """Whether a package is there. A mere folder of that name is none: wandb leaves a folder wandb where it runs."""
    if name in sys.modules:
        return sys.modules[name] is not None
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def _mend(name: str) -> str:
    return "pip install tensorboard" if name == "tensorboard" else f'pip install "dapo-rl[{name}]"'
