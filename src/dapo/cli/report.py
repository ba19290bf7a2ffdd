"""dapo report: one HTML page about one or several runs, as a file or followed live. Loads no torch."""

from __future__ import annotations

from pathlib import Path

import click

from dapo.errors import UserError


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...|latest")
@click.option(
    "-o", "--output", metavar="FILE.html", help="Where to.  [default: report.html in the run; of several: here]"
)
@click.option("--open", "open_it", is_flag=True, help="Open it in the browser.")
@click.option(
    "--rollouts-mb",
    default=12.0,
    type=click.FloatRange(0, 200),
    show_default=True,
    help="Megabytes of responses to show, before they are packed: a sample.",
)
@click.option("--live", is_flag=True, help="Serve the page on 127.0.0.1 and follow the run; Ctrl-C ends it.")
@click.option("--port", type=click.IntRange(0, 65535), help="With --live.  [default: a free one]")
def report(
    runs: tuple[str, ...], output: str | None, open_it: bool, rollouts_mb: float, live: bool, port: int | None
) -> None:
    """Write one self-contained HTML page about a run, or about several, overlaid.

    It opens offline and asks for nothing. Runs that differ only in train.seed are one line with a band. Works on a run
    that is still going, and on older runs: what they did not write is named.
    """
    from dapo.run.directory import RunDirectory

    paths = [RunDirectory.open(name).path for name in runs]
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError(f"{' '.join(runs)}: a run is named twice; name each once")
    budget = int(rollouts_mb * 2**20)
    if live:
        if output is not None:
            raise UserError("--live serves the page and writes no file; give --output or --live")
        _serve(paths, budget, port or 0, open_it)
        return
    if port is not None:
        raise UserError("--port goes with --live")
    target = Path(output) if output else paths[0] / "report.html" if len(paths) == 1 else Path("report.html")
    _write(target, paths, budget)
    if open_it:
        _open(target.resolve().as_uri())


def _write(target: Path, paths: list[Path], budget: int) -> None:
    from dapo.report.writing import write_report

    written = write_report(target, paths, budget)
    for note in written.notes:
        click.echo(note, err=True)
    click.echo(f"{target}: {written.size / 1e6:.1f} MB, {written.shown:,} of {written.total:,} rollouts", err=True)
    click.echo(str(target))


def _serve(paths: list[Path], budget: int, port: int, open_it: bool) -> None:
    from dapo.report.live import HOST, Source, port_of, server

    with server(Source(paths, budget), port) as one:
        address = f"http://{HOST}:{port_of(one)}/"
        click.echo(address)
        click.echo("following; Ctrl-C ends it", err=True)
        if open_it:
            _open(address)
        try:
            one.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            click.echo("ended", err=True)


def _open(address: str) -> None:
    import webbrowser

    if not webbrowser.open(address):
        click.echo(f"--open: no browser found; open {address}", err=True)
