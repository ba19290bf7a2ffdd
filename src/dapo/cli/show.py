"""Tables and progress on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dapo.evaluate.tables import Table

WIDE = 200  # columns where nobody looks at a terminal


def show_tables(tables: Sequence[Table]) -> None:
    """On stdout; cells are text, never markup."""
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    for table in tables:
        drawn = Drawn(title=Text(table.title), title_justify="left")
        for place, head in enumerate(table.heads):
            drawn.add_column(Text(head), justify="left" if not place else "right", overflow="fold")
        for row in table.rows:
            drawn.add_row(*map(Text, row))
        console.print(drawn)


def show_notes(notes: Sequence[str]) -> None:
    """On stdout, one line each."""
    for note in notes:
        click.echo(note)


@contextmanager
def progress_bar(sets: Mapping[str, Sequence[Any]]) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each set on stderr; where that is no terminal, a line at each tenth of a set."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
               TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = {name: bars.add_task(name, total=len(problems)) for name, problems in sets.items()}

        def progress(name: str, done: int, problems: int) -> None:
            bars.update(tasks[name], completed=done)
            if not console.is_terminal and (done == problems or done * 10 // problems > (done - 1) * 10 // problems):
                click.echo(f"{name}: {done} of {problems} problems", err=True)

        yield progress
