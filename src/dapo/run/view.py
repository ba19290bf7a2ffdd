"""What a person sees while a run goes on: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

COLUMNS = (
    ("step", None, "{:.0f}"),
    ("sampled acc", "sampled/accuracy", "{:.1%}"),
    ("kept acc", "kept/accuracy", "{:.1%}"),
    ("acceptance", "sampling/acceptance", "{:.1%}"),
    ("length", "response/length_mean_tokens", "{:.1f}"),
    ("truncated", "response/truncated_fraction", "{:.1%}"),
    ("entropy", "policy/entropy", "{:.2f}"),
    ("clip high", "clip/high_fraction", "{:.2%}"),
    ("tok/s", "tokens/per_s", "{:.0f}"),
    ("s", "time/step_s", "{:.1f}"),
)
ROWS_SHOWN = 12


class _Stderr(Console):
    """A console that goes silent when nobody reads it any more; a run does not end over that."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stderr.fileno())


class View:
    """Shows progress on stderr, so that stdout stays for results."""

    def __init__(self, total_steps: int, *, first_step: int = 0, quiet: bool = False) -> None:
        self.console = _Stderr(stderr=True, quiet=quiet)
        self._total, self._first = total_steps, first_step
        self._live: Live | None = None
        self._rows: list[list[str]] = []
        self._phase = ""
        self._start = time.monotonic()
        self._progress = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=self.console,
        )
        self._task = self._progress.add_task("", total=total_steps, completed=first_step)

    def __enter__(self) -> View:
        if self.console.is_terminal:
            self._live = Live(self._render(), console=self.console, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)
            self._live = None

    def begin(self) -> None:
        """Training starts now: the time left is told from here."""
        self._start = time.monotonic()
        self._progress.reset(self._task, total=self._total, completed=self._first)

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, table: Table) -> None:
        """A table that stays."""
        self.console.print(table)

    def phase(self, name: str) -> None:
        """What is going on now (shown in a terminal only)."""
        self._phase = name
        self._progress.update(self._task, description=name)
        self._refresh()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A finished step."""
        cells = self._keep(step, metrics)
        self._progress.update(self._task, completed=step)
        if self._live is None:
            named = zip((name for name, _, _ in COLUMNS[1:]), cells[1:], strict=True)
            self.say(f"step {step}/{self._total}  " + "  ".join(f"{n} {c}" for n, c in named) + f"  {self._left(step)}")
        self._refresh()

    def _keep(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        cells = [str(step)] + [_cell(metrics.get(key or ""), form) for _, key, form in COLUMNS[1:]]
        self._rows.append(cells)
        return cells

    def _left(self, step: int) -> str:
        done = step - self._first
        seconds = (time.monotonic() - self._start) / max(done, 1) * (self._total - step)
        return f"left {int(seconds // 60)}:{int(seconds % 60):02d}"

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._render())

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for name, _, _ in COLUMNS:
            table.add_column(name, justify="right")
        for row in self._rows[-ROWS_SHOWN:]:
            table.add_row(*row)
        return Group(table, self._progress)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None or value != value else form.format(value)
