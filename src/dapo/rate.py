"""How hard are these problems, for this model? Pass rates of a prepared set, from an evaluation of it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dapo.data.prepare.rating import Asked, Rates, check_folder, pairs, write_rated
from dapo.data.tables import ORIGINALS, TABLE
from dapo.difficulty import BANDS, Forecast, PromptRecord, Rating, forecast
from dapo.errors import DataError, UserError
from dapo.evals.evaluation import figures_of_rows
from dapo.evals.paired import Paired, paired
from dapo.evals.results import Result, plain
from dapo.evals.store import EvaluationDirectory
from dapo.records import Row

# What a rating depends on, of an evaluation's settings.
RECORDED = ("model", "sampling", "prompt", "grader", "reward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """A rated set.

    rows: rated of its rows; unrated: the others. mean: pass rate over those rated. rewrite: integer answers
    against the problems before, None where none were sampled. seen: the forecast at G responses a draw.
    """

    rows: int
    unrated: int
    mean: float
    samples: int
    seen: Forecast
    size: int
    rewrite: Paired | None


def sets_to_sample(folder: str) -> str:
    """`--data` of the evaluation that rates a folder: its problems, and those before rewriting where there are some.

    Raises:
        DataError: no prepared folder.
    """
    check_folder(Path(folder))
    if Path(folder).name in ("", ".."):
        folder = os.path.abspath(folder)
    if "/" not in folder:  # it may be called as a named set is
        folder = f"./{folder}"
    if "," in folder:
        raise DataError(f"{folder}: a path with a comma can't be named in --data; rename it")
    originals = Path(folder) / ORIGINALS
    return f"{folder},{originals}" if originals.is_file() else folder


def rate(folder: Path, samples: EvaluationDirectory, out: Path, *, size: int, overwrite: bool = False) -> Rated:
    """Writes `folder` again as `out`, each problem with its pass rate in an evaluation.

    Args:
        folder: prepared.
        samples: a complete evaluation of it.
        out: the new folder.
        size: G of the forecast.
        overwrite: replace a prepared folder at `out`.

    Raises:
        UserError: the evaluation is not complete, not graded right or wrong, or of other problems.
    """
    check_folder(folder)
    settings = samples.settings()
    results = _results(samples, settings)
    rates: Rates = {asked: (result.right, result.samples) for asked, result in results.items()}
    before_after = [(results[b], results[a]) for b, a in pairs(folder) if b in results and a in results]
    rewrite = None
    if before_after:
        rewrite = paired(
            [(b.samples, b.right) for b, _ in before_after], [(a.samples, a.right) for _, a in before_after]
        )
    about = _about(settings, rewrite)
    rows = write_rated(folder, out, rates, about, overwrite)
    return _rated(out, rows, results, size, rewrite)


def _results(samples: EvaluationDirectory, settings: Mapping[str, Any]) -> dict[Asked, Result]:
    """Results of all sets by problem and gold answer: one problem with another gold is graded otherwise."""
    rows: list[Row] = []
    for name, about in settings["sets"].items():
        found = samples.rows(name)
        if len(found) < about["problems"]:
            raise UserError(
                f"{samples.path}: {len(found)} of {about['problems']} problems of {name} are sampled; finish it with: "
                f"dapo eval --resume {samples.path}"
            )
        rows += [row for own in found.values() for row in own]
    results = {
        (result.question, result.answer or ""): result
        for figures in figures_of_rows(rows).sets
        for result in figures.results
    }
    if not all(result.graded for result in results.values()):
        raise UserError(f"{samples.path}: its scores don't say right or wrong, so there is no pass rate")
    return results


def _about(settings: Mapping[str, Any], rewrite: Paired | None) -> dict[str, Any]:
    about = {name: settings[name] for name in RECORDED}
    if rewrite is not None:
        about["rewrite"] = plain(asdict(rewrite))
    return {**about, "interval": "95%, Clopper and Pearson"}


def _rated(out: Path, rows: int, results: Mapping[Asked, Result], size: int, rewrite: Paired | None) -> Rated:
    own = _own(out, results)
    ratings = [
        Rating(result.mean, PromptRecord(draws=1, responses=result.samples, right=result.right)) for result in own
    ]
    return Rated(
        rows=rows,
        unrated=pq.read_metadata(out / TABLE).num_rows - rows,
        mean=sum(result.mean for result in own) / len(own),
        samples=own[0].samples,
        seen=forecast([ratings], None, size=size, wanted=1),
        size=size,
        rewrite=rewrite,
    )


def _own(out: Path, results: Mapping[Asked, Result]) -> Sequence[Result]:
    rows = pq.read_table(out / TABLE, columns=["problem", "answer"]).to_pylist()
    asked = [(row["problem"], row["answer"]) for row in rows]
    return [results[own] for own in asked if own in results]


def lines(rated: Rated) -> list[str]:
    """What a person should know of a rating."""
    shares = ", ".join(f"{name} {share:.1%}" for name, share in zip(BANDS, rated.seen.shares, strict=True) if share)
    found = [
        f"{rated.rows:,} problems rated with {rated.samples} responses each: mean pass rate {rated.mean:.1%}; {shares}"
    ]
    if rated.unrated:
        found.append(f"{rated.unrated:,} problems are not among those sampled, with the same answer: no pass rate")
    acceptance = f"at {rated.size} responses a draw, {rated.seen.acceptance:.1%} of draws would be informative"
    if rated.seen.acceptance == 0:
        found.append(f"{acceptance} for this model: it can learn nothing from these problems")
    else:
        found.append(f"{acceptance} for this model, so an informative one takes {rated.seen.draws:.2f} draws")
    if rated.rewrite is not None:
        found.append(_rewrite_line(rated.rewrite))
    return found


def _rewrite_line(change: Paired) -> str:
    interval = f"95% interval {change.low:+.1%} to {change.high:+.1%}"
    return (
        f"integer rewriting, {change.problems:,} problems before and after: pass rate {change.difference:+.1%} "
        f"({'no interval for one problem' if math.isnan(change.low) else interval}); up {change.up}, "
        f"down {change.down}, same {change.same}"
    )
