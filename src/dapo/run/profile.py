"""`dapo train --profile`: profile.jsonl, a line a step, and a table of where the time went.

Each line: step, seconds (of the whole step, from the end of the one before), spans: name -> seconds of
its own and calls. A step's spans do not overlap, so what they leave of it is time between phases.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from rich.table import Table

from dapo.run.directory import RunDirectory
from dapo.spans import Recorder
from dapo.types import StepReport

MODEL = ("prefill", "decode", "log-probs", "forward", "backward", "optimiser")  # arithmetic over the model's weights
NAMES = {
    "prefill": "prompts through the model",
    "decode": "tokens through the model, one a row",
    "choose": "tokens chosen from logits",
    "schedule": "the engine's own bookkeeping",
    "log-probs": "old and reference log-probs",
    "forward": "the update's forward passes and loss",
    "backward": "the update's backward passes",
    "optimiser": "gradient norm, clipping, AdamW",
    "metrics": "what a step is told by",
    "credit": "gradients of the credit table's buckets",
    "update": "laying out micro-batches, statistics",
    "sampling": "draws, the filter, the ledger",
    "grading": "rewards",
    "checks": "self-checks",
    "batch": "the batch, advantages, mini-batches",
    "writing": "rollouts and metrics to disk",
    "sync": "new weights to the engine",
    "evaluation": "evaluation, beside its tokens",
    "saving": "waiting for checkpoints",
}
FILE = "profile.jsonl"


class StepProfile:
    """Called at the end of each step."""

    def __init__(self, run: RunDirectory, recorder: Recorder) -> None:
        self._run, self._recorder = run, recorder
        self._since = time.perf_counter()
        self._seconds = 0.0
        self._totals: defaultdict[str, float] = defaultdict(float)

    def __call__(self, report: StepReport) -> None:
        """Writes the step's line."""
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        spans = {name: {"seconds": s, "calls": n} for name, (s, n) in sorted(self._recorder.take().items())}
        line: dict[str, Any] = {"step": report.step, "seconds": seconds, "spans": spans}
        self._run.append_line(FILE, line)
        self._seconds += seconds
        for name, span in spans.items():
            self._totals[name] += span["seconds"]

    def table(self) -> Table:
        """All steps together: seconds and shares, largest first."""
        table = Table("where", "seconds", "share", "", box=None, pad_edge=False, title=None)
        whole = max(self._seconds, 1e-9)
        for name, spent in sorted(self._totals.items(), key=lambda item: -item[1]):
            table.add_row(name, f"{spent:.2f}", f"{spent / whole:.1%}", NAMES.get(name, ""))
        between = self._seconds - sum(self._totals.values())
        table.add_row("between phases", f"{between:.2f}", f"{between / whole:.1%}", "")
        model = sum(self._totals[name] for name in MODEL)
        table.add_section()
        table.add_row("model arithmetic", f"{model:.2f}", f"{model / whole:.1%}", ", ".join(MODEL))
        table.add_row("all", f"{self._seconds:.2f}", "100%", f"{FILE} has every step")
        return table
