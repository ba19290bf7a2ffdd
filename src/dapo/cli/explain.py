"""dapo explain."""

from __future__ import annotations

import difflib

import click

from dapo.error_table import kinds, meaning, section
from dapo.errors import UserError


@click.command()
@click.argument("code", required=False)
def explain(code: str | None) -> None:
    """What an error's code means, e.g. `dapo explain E-RESUME`; without a code, all of them."""
    known = kinds()
    if code is None:
        for one, kind in known.items():
            click.echo(f"{one}: {meaning(kind)}")
        return
    if code.upper() not in known:
        near = difflib.get_close_matches(code.upper(), known, n=1)
        hint = f"did you mean {near[0]}?" if near else "dapo explain lists all codes"
        raise UserError(f"{code}: no such error code; {hint}")
    kind = known[code.upper()]
    click.echo(f"{kind.code} (exit code {kind.exit_code}, dapo.errors.{kind.__name__})")
    click.echo(meaning(kind))
    click.echo(f"more: docs/{section(kind.code)}")
