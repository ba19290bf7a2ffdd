"""Tables and progress on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dapo.evals.tables import Table

WIDE = 200  # columns where nobody looks at a terminal


def show_tables(tables: Sequence[Table]) -> None:
    """On stdout; cells are text, never markup. A table wider than the terminal is cut into several, by columns."""
    from rich.console import Console

    class Stdout(Console):
        """Ends quietly when nobody reads on."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    console = Stdout()
    if not console.is_terminal:
        console = Stdout(width=WIDE)
    for table in tables:
        for heads, rows in columns_that_fit(table.heads, table.rows, console.width):
            console.print(_drawn(table.title, heads, rows))


def columns_that_fit(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> Iterator[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """The table in parts that are not wider than so many characters, each with the first column.

    >>> [part for part, _ in columns_that_fit(["set", "a" * 10, "b" * 10], [], 24)]
    [['set', 'aaaaaaaaaa'], ['set', 'bbbbbbbbbb']]
    """
    widths = [max(len(cell) for cell in column) + 3 for column in zip(heads, *rows, strict=True)]
    first, part, taken = widths[0] + 1, [0], widths[0] + 1
    for place in range(1, len(heads)):
        if taken + widths[place] > width and len(part) > 1:
            yield [heads[i] for i in part], [[row[i] for i in part] for row in rows]
            part, taken = [0], first
        part.append(place)
        taken += widths[place]
    yield [heads[i] for i in part], [[row[i] for i in part] for row in rows]


def _drawn(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(title=Text(title), title_justify="left")
    for place, head in enumerate(heads):
        drawn.add_column(Text(head), justify="left" if not place else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn


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
