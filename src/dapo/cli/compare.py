"""dapo compare: two evaluations of the same problems, or two groups of them over training seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dapo.cli.show import show_notes, show_tables
from dapo.errors import UserError

if TYPE_CHECKING:
    from dapo.evals.comparison import Measured
    from dapo.evals.tables import Table

Group = list["Measured"]


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="A[,A2,...] [B[,B2,...]]")
@click.option(
    "--allow", multiple=True, metavar="NAME", help="What may differ: temperature, k, template, code, data, ..."
)
@click.option("--movers", default=5, type=click.IntRange(0), show_default=True, help="Problems shown each way.")
@click.option("--seed", default=0, type=click.IntRange(0), show_default=True, help="Of the resampling.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print as markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def compare(
    words: tuple[str, ...], allow: tuple[str, ...], movers: int, seed: int, as_markdown: bool, as_json: bool
) -> None:
    """Compare evaluations: B minus A, paired over problems.

    \b
    dapo compare evals/before evals/after        two evaluations
    dapo compare RUN@0 RUN@100                   two steps of a run (its own evaluations)
    dapo compare A1,A2,A3 B1,B2,B3               groups over training seeds: the seed is the unit
    dapo compare A1,A2,A3                        the mean over seeds, with a t interval

    Evaluations whose sampling, wording, grading or problems differ are refused unless that is allowed by name.
    """
    from dapo.evals.comparison import check_comparable

    if len(words) > 2:
        raise UserError("dapo compare takes A and B; evaluations over seeds go with commas: A1,A2,A3 B1,B2,B3")
    groups = [[measured(word) for word in _split(part)] for part in words]
    if not all(groups):
        raise UserError(f"{' '.join(words)}: nothing stands between the commas")
    everyone = [one for group in groups for one in group]
    if len(everyone) < 2:
        raise UserError("name two evaluations to compare: dapo compare A B")
    two = len(groups) == 2 and len(everyone) == 2
    notes = check_comparable(everyone, allow, seeds=not two)
    if two:
        data, tables, more = _two(groups[0][0], groups[1][0], movers, seed)
    else:
        data, tables, more = _seeds(groups)
    if as_json:
        click.echo(json.dumps(data | {"notes": notes}, ensure_ascii=False))
        return
    if as_markdown:
        click.echo("\n".join([*(table.markdown() for table in tables), *(f"- {note}" for note in [*notes, *more])]))
        return
    show_tables(tables)
    show_notes([*notes, *more])


def _split(word: str) -> list[str]:
    return [word] if Path(word).exists() else [part for part in word.split(",") if part]


def measured(word: str) -> Measured:
    """An evaluation by its folder, or by RUN[@STEP]: the run's own evaluation, the newest without a step.

    Raises:
        UserError: there is none, or it is not finished.
    """
    from dapo.evals.comparison import Measured
    from dapo.evals.results import results_of
    from dapo.evals.settings import is_settings
    from dapo.evals.store import EvaluationDirectory
    from dapo.run.directory import RunDirectory
    from dapo.targets import split_step

    if EvaluationDirectory.is_one(Path(word)):
        directory = EvaluationDirectory(Path(word))
        figures, results = directory.figures(), results_of(directory.all_rows())  # refuses what is not finished
        check_whole(Path(word), figures, results)
        return Measured(label=word, place=str(Path(word).resolve()), settings=directory.settings(), results=results)
    name, step = split_step(word)
    if name != "latest" and not (Path(name) / "config.resolved.json").is_file():
        raise UserError(f"{word}: neither an evaluation's folder (dapo eval makes them) nor a run")
    run = RunDirectory.open(name)
    steps = evaluated_steps(run.path)
    if not steps:
        raise UserError(f"{name}: the run has no evaluations of its own; dapo eval {name} makes one")
    step = steps[-1] if step is None else step
    if step == "best":
        raise UserError(f"{word}: name the step; dapo eval {word} evaluates the best checkpoint")
    if not isinstance(step, int) or step not in steps:
        raise UserError(f"{name}: no evaluation at step {step}; there are: {', '.join(map(str, steps)) or 'none'}")
    figures = run.read_json(f"eval/step_{step:06d}.json")
    settings = figures.get("settings") if isinstance(figures, dict) else None
    if not isinstance(settings, dict) or not is_settings(settings):
        raise UserError(
            f"{run.path}/eval: written by an older dapo, without settings; dapo eval {name}@{step} makes anew"
        )
    results = results_of(run.rollouts(step, "eval"))
    check_whole(run.path / "eval", figures, results)
    place = f"{run.path.resolve()}@{step}"
    return Measured(label=f"{name}@{step}", place=place, settings=settings, results=results)


def check_whole(path: Path, figures: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    """Raises UserError when samples are missing of what the figures were made of."""
    for name, one in figures.get("sets", {}).items():
        there = len(results.get(name, ()))
        if there != one.get("problems"):
            raise UserError(
                f"{path}: there are samples of {there} problems of {name}, and figures of {one.get('problems')}; "
                "evaluate again"
            )


def evaluated_steps(run: Path) -> list[int]:
    """The steps at which a run was evaluated, in order."""
    found = (re.fullmatch(r"step_(\d{6,})\.json", file.name) for file in (run / "eval").glob("step_*.json"))
    return sorted(int(match[1]) for match in found if match)


def _two(a: Measured, b: Measured, movers: int, seed: int) -> tuple[dict[str, Any], list[Table], list[str]]:
    from dapo.evals.compare_tables import comparison_notes, comparison_tables
    from dapo.evals.comparison import common_sets, compare_set

    found = [compare_set(name, a, b, seed=seed) for name in common_sets(a, b)]
    data = {"before": a.label, "after": b.label, "sets": {one.name: one.summary() for one in found}}
    return data, comparison_tables(a.label, b.label, found, movers), comparison_notes(found)


def _seeds(groups: list[Group]) -> tuple[dict[str, Any], list[Table], list[str]]:
    from dapo.evals.compare_tables import SEED_NOTE, seed_tables
    from dapo.evals.comparison import common_sets, compare_seeds, over_seeds
    from dapo.evals.results import plain

    everyone = [one for group in groups for one in group]
    names = list(everyone[0].results)
    for other in everyone[1:]:
        names = [name for name in common_sets(everyone[0], other) if name in names]
    if not names:
        raise UserError("there is no set that all of these evaluations have")
    if len(groups) == 1:
        single = [over_seeds(name, groups[0]) for name in names]
        data: dict[str, Any] = {"sets": {one.name: plain(asdict(one)) for one in single}}
        return data, seed_tables([single], []), [SEED_NOTE]
    both = [compare_seeds(name, groups[0], groups[1]) for name in names]
    data = {"sets": {one.name: plain(asdict(one)) for one in both}}
    return data, seed_tables([[one.before for one in both], [one.after for one in both]], both), [SEED_NOTE]
