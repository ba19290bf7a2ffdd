"""Progress in a notebook: one table that is written anew, and lines above it."""

from __future__ import annotations

import html
import sys
import threading
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from dapo.run.view import COLUMNS, ROWS_SHOWN, View

STYLE = "text-align:right;padding:0 .6em;font-variant-numeric:tabular-nums"


def in_notebook() -> bool:
    """Whether this thread's output goes to a cell: IPython has a kernel, and this is the thread that runs cells."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None and threading.current_thread() is threading.main_thread()


def make_view(total_steps: int, *, first_step: int = 0, quiet: bool = False) -> View:
    """What shows progress here: in a notebook's cell, in a terminal, or as lines."""
    if not quiet and in_notebook():
        return NotebookView(total_steps, first_step=first_step)
    return View(total_steps, first_step=first_step, quiet=quiet)


class NotebookView(View):
    """See View. The last rows stand in one output, which follows the run; lines are plain text."""

    def __init__(self, total_steps: int, *, first_step: int = 0) -> None:
        super().__init__(total_steps, first_step=first_step, quiet=True)
        self._handle: Any = None

    def say(self, text: str) -> None:
        """See View."""
        print(text)

    def show(self, table: Table) -> None:
        """See View."""
        from rich.console import Console

        Console(file=sys.stdout, force_jupyter=False, width=100).print(table)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """See View."""
        self._keep(step, metrics)
        self._draw(step)

    def _draw(self, step: int) -> None:
        from IPython.display import HTML, display

        page = HTML(self._table(step))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)

    def _table(self, step: int) -> str:
        head = "".join(f'<th style="{STYLE}">{html.escape(name)}</th>' for name, _, _ in COLUMNS)
        rows = "".join(
            "<tr>" + "".join(f'<td style="{STYLE}">{html.escape(cell)}</td>' for cell in row) + "</tr>"
            for row in self._rows[-ROWS_SHOWN:]
        )
        told = html.escape(f"step {step}/{self._total}, {self._left(step)}")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><div>{told}</div>"
