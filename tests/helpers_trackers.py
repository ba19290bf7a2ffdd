"""Stand-ins for the packages of trackers, with the signatures of wandb 0.31, swanlab 0.10 and trackio 0.43."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


class FakeRun:
    """A run there: log(data, step) and finish(), which all three have in common."""

    def __init__(self, **started: Any) -> None:
        self.started = started
        self.steps: list[tuple[int | None, dict[str, float]]] = []
        self.finished = 0

    def log(self, data: Mapping[str, Any], step: int | None = None) -> None:
        """Keeps the step."""
        assert not self.finished
        self.steps.append((step, dict(data)))

    def finish(self) -> None:
        """Counts."""
        self.finished += 1


def _wandb(runs: list[FakeRun]) -> Callable[..., FakeRun]:
    def init(
        entity: Any = None, project: Any = None, dir: Any = None, id: Any = None, name: Any = None, notes: Any = None,
        tags: Any = None, config: Any = None, config_exclude_keys: Any = None, config_include_keys: Any = None,
        allow_val_change: Any = None, group: Any = None, job_type: Any = None, mode: Any = None, force: Any = None,
        reinit: Any = None, resume: Any = None, resume_from: Any = None, fork_from: Any = None, save_code: Any = None,
        tensorboard: Any = None, sync_tensorboard: Any = None, monitor_gym: Any = None, settings: Any = None,
    ) -> FakeRun:  # fmt: skip
        assert not set(":;,#?/'") & set(id)
        assert Path(dir).is_dir()
        runs.append(FakeRun(project=project, name=name, id=id, resume=resume, config=config, settings=settings))
        return runs[-1]

    return init


def _swanlab(runs: list[FakeRun]) -> Callable[..., FakeRun]:
    def init(
        *, reinit: Any = None, log_dir: Any = None, mode: Any = None, workspace: Any = None, project: Any = None,
        public: Any = None, name: Any = None, color: Any = None, description: Any = None, job_type: Any = None,
        group: Any = None, tags: Any = None, id: Any = None, resume: Any = None, parallel: Any = None,
        config: Any = None, settings: Any = None, callbacks: Any = None,
    ) -> FakeRun:  # fmt: skip
        assert Path(log_dir).is_dir()
        runs.append(FakeRun(project=project, name=name, id=id, resume=resume, config=config, settings=settings))
        return runs[-1]

    return init


def _trackio(runs: list[FakeRun]) -> Callable[..., FakeRun]:
    def init(
        project: str, name: Any = None, group: Any = None, space_id: Any = None, server_url: Any = None,
        dataset_id: Any = None, bucket_id: Any = None, config: Any = None, resume: str = "never", settings: Any = None,
        private: Any = None, embed: bool = True, auto_log_gpu: Any = None, gpu_log_interval: float = 10.0,
        auto_log_cpu: Any = None, cpu_log_interval: float = 10.0, webhook_url: Any = None,
        webhook_min_level: Any = None,
    ) -> FakeRun:  # fmt: skip
        print(f"* Trackio project initialized: {project}")  # theirs does, on stdout
        runs.append(FakeRun(project=project, name=name, id=name, resume=resume, config=config, settings=settings))
        return runs[-1]

    return init


INITS = {"wandb": _wandb, "swanlab": _swanlab, "trackio": _trackio}


def install(monkeypatch: pytest.MonkeyPatch, name: str, init: Callable[..., Any] | None = None) -> list[FakeRun]:
    """Puts a stand-in where `import NAME` finds it; returns the runs that will be begun with it."""
    runs: list[FakeRun] = []
    module = ModuleType(name)
    module.init = init or INITS[name](runs)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    return runs


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """tag -> (step, value), as TensorBoard reads the event files of a folder."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}
