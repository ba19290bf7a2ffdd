"""dapo progress: what a run's evaluations say over training, pass@1 beside pass@k."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dapo.cli.compare import evaluated_steps, measured
from dapo.cli.show import show_notes, show_tables
from dapo.errors import UserError

if TYPE_CHECKING:
    from dapo.evals.progress import Curve


@click.command()
@click.argument("run", metavar="RUN|latest")
@click.option("--plot", metavar="FILE.svg|.png|.pdf", help="Draw pass@1, pass@k and maj@k over steps.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print as markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def progress(run: str, plot: str | None, as_markdown: bool, as_json: bool) -> None:
    """Show how a run's evaluation figures went: does it widen what the model can solve, or only sharpen it?

    avg@k (= pass@1) rising while pass@k stands: the same problems are solved more often. pass@k rising with it
    proves nothing new while it is far from its ceiling, since any gain lifts it; so the problems that had no right
    sample before and have one now are counted too, and the other way round. Reads the run's own evaluations.
    """
    from dapo.evals.progress import curves, is_known, progress_notes, progress_tables
    from dapo.run.directory import RunDirectory

    directory = RunDirectory.open(run)
    steps = evaluated_steps(directory.path)
    if not steps:
        raise UserError(f"{directory.path}: no evaluations in it; set eval.data (and eval.every) when training")
    evaluations = {step: directory.read_json(f"eval/step_{step:06d}.json") for step in steps}
    known = {step: one for step, one in evaluations.items() if is_known(one)}
    if not known:
        raise UserError(f"{directory.path}/eval: written by an older dapo; dapo eval {run}@STEP makes them anew")
    found = curves(known)
    if plot:
        draw(found, Path(plot))
    if as_json:
        click.echo(json.dumps({name: curve.points for name, curve in found.items()}, ensure_ascii=False))
        return
    tables, notes = progress_tables(found), progress_notes(found) + differing(known)
    notes += [f"step {step}: left out, written by an older dapo" for step in steps if step not in known]
    if len(known) > 1:
        notes += first_and_last(str(directory.path), min(known), max(known))
    if as_markdown:
        click.echo("\n".join([*(table.markdown() for table in tables), *(f"- {note}" for note in notes)]))
        return
    show_tables(tables)
    show_notes(notes)


def differing(evaluations: Mapping[int, Any]) -> list[str]:
    """Warnings of steps that were evaluated otherwise than the last one."""
    from dapo.evals.settings import changed_names

    last = evaluations[max(evaluations)]["settings"]
    found = {step: changed_names(one["settings"], last) for step, one in evaluations.items()}
    return [
        f"WARNING: step {step} was evaluated with other settings ({'; '.join(list(changed.values())[:3])})"
        for step, changed in found.items()
        if changed
    ]


def first_and_last(run: str, first: int, last: int) -> list[str]:
    """The paired reading of the first and the last evaluation, of each set where there is right and wrong."""
    from dapo.evals.compare_tables import reading, signed, signed_between
    from dapo.evals.comparison import check_comparable, common_sets, compare_set

    lines = []
    try:
        before, after = measured(f"{run}@{first}"), measured(f"{run}@{last}")
        check_comparable([before, after], [])
        names = common_sets(before, after)
        for name in names:
            if all(result.graded for one in (before, after) for result in one.results[name]):
                one = compare_set(name, before, after)
                at_k = one.pass_at[-1]
                lines.append(
                    f"{name}, step {first} to {last}, paired: avg {signed(one.paired.difference)} points "
                    f"(95% {signed_between(one.paired.low, one.paired.high)}), pass@{at_k.k} {signed(at_k.difference)} "
                    f"({signed_between(at_k.low, at_k.high)}); {reading(one, f'step {first}', f'step {last}')}"
                )
    except UserError as error:  # the tables stand without it
        lines.append(error.message)
    return lines


def draw(curves: dict[str, Curve], path: Path) -> None:
    """Writes the picture. Raises UserError without matplotlib, or for a file that can't be written."""
    try:
        import matplotlib
    except ImportError:
        raise UserError('--plot needs matplotlib; pip install "dapo-rl[report]"') from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "dapo"  # the same picture has the same bytes
    drawn = {name: curve for name, curve in curves.items() if curve.lines()}
    if not drawn:
        raise UserError("--plot: no set says right or wrong; there is no pass@k to draw")
    figure, axes = pyplot.subplots(1, len(drawn), figsize=(5.5 * len(drawn), 3.8), squeeze=False)
    for axis, (name, curve) in zip(axes[0], drawn.items(), strict=True):
        _axis(axis, name, curve)
    figure.tight_layout()
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in ("svg", "png", "pdf"):
        raise UserError(f"--plot {path}: name a .svg, .png or .pdf file")
    try:
        figure.savefig(path, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
    except OSError as error:
        raise UserError(f"--plot {path}: can't be written: {error.strerror or error}") from None
    finally:
        pyplot.close(figure)
    click.echo(f"{path}: written", err=True)


def _axis(axis: Any, name: str, curve: Curve) -> None:
    styles = {"pass": "-", "maj": ":"}
    for label, (steps, values, lows, highs) in curve.lines().items():
        (line,) = axis.plot(steps, values, styles[label.partition("@")[0]], marker="o", markersize=3, label=label)
        axis.fill_between(steps, lows, highs, alpha=0.12, color=line.get_color(), linewidth=0)
    axis.set(title=name, xlabel="step", ylabel="share of problems", ylim=(0, 1))
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
