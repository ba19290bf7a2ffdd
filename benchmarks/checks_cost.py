"""What the self-checks cost: their share of a step, by check, in a real run.

    .venv/bin/python benchmarks/checks_cost.py quickstart train.num_steps=3 eval.data=[]

The run is `dapo train WORDS` with spans. All of it lies in the span "checks" (`dapo train --profile` shows it, too) but
for the samples of weights on their way into the engine, which are taken in the span "sync". Shares are of time/step_s.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dapo import build, spans
from dapo.checks import gap, loss, rows, weights
from dapo.checks.watch import SelfChecks
from dapo.cli.words import config_of
from dapo.loop import train
from dapo.run.directory import RunDirectory
from dapo.run.view import View
from dapo.types import TrainState

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
    (weights, "weight_sample"),
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
    for owner, name in PARTS:
        setattr(owner, name, timed(getattr(owner, name), name, spent))
    steps: list[Mapping[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="dapo-cost-") as folder:
        run = RunDirectory.create(config.name, str(Path(folder) / "run"))
        try:
            parts = build.build(config, run, View(config.train.num_steps, quiet=True))
            recorder = spans.start()
            train(parts, TrainState(), lambda report: steps.append(report.metrics))
            in_span = recorder.take()["checks"][0]
        finally:
            spans.stop()
            run.release()
    whole, findings = (sum(step[name] for step in steps) for name in ("time/step_s", "checks/findings"))
    print(f"{config.name}: {len(steps)} steps in {whole:.2f} s, {findings:g} findings")
    sync = spent["weight_sample"]
    share = (in_span + sync) / whole
    print(f"checks: {in_span:.4f} s in their span, at most {sync:.4f} s in sync: {share:.3%} of the steps")
    for name, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"  {name:16} {seconds:8.4f} s  {seconds / whole:8.4%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
