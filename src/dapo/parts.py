"""What a run is made of, and what follows from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dapo.alerts import Watch
from dapo.checks.watch import SelfChecks
from dapo.config.schema import Config
from dapo.evals.run import Sets
from dapo.grading import GroupGrader
from dapo.learner.base import Learner
from dapo.ledger import Progress
from dapo.pipeline import Supply
from dapo.rollout.base import Resting, RolloutEngine
from dapo.run.directory import RunDirectory
from dapo.run.saver import Saver
from dapo.run.trackers import Trackers
from dapo.run.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run is made of; `build.py` puts it together."""

    config: Config
    engine: RolloutEngine
    learner: Learner
    supply: Supply
    epoch_size: int  # draws of one epoch
    grader: GroupGrader
    tests: Sets
    settings: Mapping[str, Any]  # of evaluations: what their figures depend on beside the policy
    eos_ids: Sequence[int]
    run: RunDirectory
    view: View
    saver: Saver
    trackers: Trackers
    progress: Progress
    alerts: Watch
    checks: SelfChecks
    close: Callable[[], None] = lambda: None  # ends what runs elsewhere for this run


def learning_rate(step: int, config: Config) -> float:
    """Linear warm-up in rollout steps: base * min(1, step / (warm-up + 1)); over 0 at step 1.

    With train.warmup_from_zero base * min(1, (step - 1) / warm-up): 0 at step 1 (and before), as in the paper's code.
    """
    train = config.train
    if train.warmup_from_zero and train.warmup_rollout_steps:
        return train.learning_rate * min(1.0, max(0, step - 1) / train.warmup_rollout_steps)
    return train.learning_rate * min(1.0, step / (train.warmup_rollout_steps + 1))


def due(step: int, every: int | None, last: int) -> bool:
    """Whether something of every so many steps, and of the last, is to be done at this one."""
    return step == last or (every is not None and step % every == 0)


def rest(parts: Parts) -> None:
    """Before what the learner does: an engine that shares its GPU gives it back (engine.vllm.sleep), until `sync`."""
    if parts.config.engine.vllm.sleep and isinstance(parts.engine, Resting):
        parts.engine.rest()
