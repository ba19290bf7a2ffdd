"""What the self-checks cost: their share of each step, and by check, in a real run.

    .venv/bin/python benchmarks/checks_cost.py quickstart train.num_steps=3 eval.data=[]

The run is `dapo train WORDS`. The first step holds more: the engine's weights are compared twice, and with
old_logprobs = "engine" some tokens go through the learner once a run. Shares are of time/step_s.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dapo import build
from dapo.checks import gap, loss, rows, weights
from dapo.checks.watch import SelfChecks
from dapo.cli.words import config_of
from dapo.loop import train
from dapo.run.directory import RunDirectory
from dapo.run.view import View
from dapo.types import StepReport, TrainState

WHOLE: tuple[tuple[Any, str], ...] = (
    (SelfChecks, "sampled"),
    (SelfChecks, "before_update"),
    (SelfChecks, "after_update"),
    (SelfChecks, "handed"),
    (weights, "weight_sample"),  # on their way into the engine
)
PARTS: tuple[tuple[Any, str], ...] = (
    (SelfChecks, "_gap"),
    (rows, "kept_groups"),
    (rows, "rows_of_groups"),
    (rows, "masks"),
    (rows, "double_bos"),
    (loss, "advantages"),
    (loss, "finite"),
    (loss, "row_weights"),
    (loss, "loss_at_one"),
    (loss, "finite_updates"),
    (loss, "learning_rate"),
    (gap, "ratio_one"),
    (SelfChecks, "_standing"),
    (weights, "moved"),
    (weights, "unmoved"),
    (weights, "held"),
)


def timed(inner: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    """The function, with its seconds added up."""

    def function(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return inner(*arguments, **named)
        finally:
            spent[name] += time.perf_counter() - start

    return function


def main() -> int:
    """Trains, then prints seconds and shares."""
    config = config_of(tuple(sys.argv[1:]) or ("tiny", "eval.data=[]"))
    spent: defaultdict[str, float] = defaultdict(float)
    for owner, name in (*WHOLE, *PARTS):
        setattr(owner, name, timed(getattr(owner, name), name, spent))
    seconds, costs, findings = [], [], 0.0

    def on_step(report: StepReport) -> None:
        nonlocal findings
        seconds.append(report.metrics["time/step_s"])
        costs.append(sum(spent[name] for _, name in WHOLE) - sum(costs))
        findings += report.metrics["checks/findings"]

    with tempfile.TemporaryDirectory(prefix="dapo-cost-") as folder:
        run = RunDirectory.create(config.name, str(Path(folder) / "run"))
        try:
            parts = build.build(config, run, View(config.train.num_steps, quiet=True))
            train(parts, TrainState(), on_step)
        finally:
            run.release()
    print(f"{config.name}: {len(seconds)} steps, {findings:g} findings")
    for step, (whole, cost) in enumerate(zip(seconds, costs, strict=True), start=1):
        print(f"  step {step}: {whole:8.2f} s, of which checks {cost:7.3f} s, {cost / whole:.2%}")
    for _, name in sorted((*WHOLE, *PARTS), key=lambda part: -spent[part[1]]):
        print(f"  {name:16} {spent[name]:8.4f} s  {spent[name] / sum(seconds):8.4%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
