"""Everything that the page shows, as plain data: a dict that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dapo import __version__
from dapo.report import curves, flow
from dapo.report.credit import FIGURES, credit
from dapo.report.evaluations import evaluations
from dapo.report.panels import drawn, joint, missing
from dapo.report.read import Files, Row, mapping, number, short
from dapo.report.settings import manifest_lines, seed_groups, seed_of, settings
from dapo.report.summary import summary


def report_data(paths: Sequence[Path]) -> dict[str, Any]:
    """The page's data without rollouts, which are bulky: see `rollouts.sample`.

    Args:
        paths: run directories, at least one.

    Returns:
        version; runs: of `_run`, in the order of paths; groups: of `_groups`; sections: of `panels.drawn`; joint:
        rows of the joint picture; credit_figures: the order of a credit cell.
    """
    loaded = [_Loaded(Files(path)) for path in paths]
    width = curves.width_of_bins(max((row["step"] for one in loaded for row in one.rows[-1:]), default=1))
    runs = [_run(one, label, width) for one, label in zip(loaded, _labels(paths), strict=True)]
    names = {name for run in runs for name in run["curves"]["values"]}
    return {
        "version": __version__,
        "runs": runs,
        "groups": _groups(runs, [one.tree for one in loaded]),
        "sections": list(drawn(names)),
        "joint": joint(names),
        "credit_figures": FIGURES,
    }


class _Loaded:
    """A run's configuration and metrics, read once."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.tree: Mapping[str, Any] = files.mapping("config.resolved.json")
        self.rows: list[Row] = files.lines("metrics.jsonl") or []


def _run(one: _Loaded, label: str, width: int) -> dict[str, Any]:
    files, tree, rows = one.files, one.tree, one.rows
    columns = curves.columns(rows, width)
    evaluated = evaluations(files)
    tables = credit(files)
    head = summary(files, tree, rows, evaluated)
    head["missing"] += [] if tables else ["credit tables (credit/)"]
    head["missing"] += [] if evaluated else ["evaluations (eval/; set eval.data)"]
    head["missing"] += missing(columns["values"])
    found = {
        "label": label,
        "recipe": str(tree.get("name", "")),
        "seed": seed_of(tree),
        "summary": head,
        "curves": columns,
        "evaluations": evaluated,
        "flow": {
            "total": flow.flows(flow.totals(list({r["step"]: r for r in rows}.values()))),
            "steps": flow.by_step(rows),
        },
        "credit": tables,
        "profile": _profile(files),
        "settings": settings(tree, files.notes) if tree else [],
        "manifest": manifest_lines(files.mapping("manifest.json")),
    }
    return found | {"notes": files.notes}


def _labels(paths: Sequence[Path]) -> list[str]:
    """The folders' names, with as much of what lies above as tells them apart."""
    whole = [path.resolve() for path in paths]
    for depth in range(1, max(len(path.parts) for path in whole) + 1):
        labels = ["/".join(path.parts[-depth:]) for path in whole]
        if len(set(labels)) == len(labels):
            break
    return labels


def _groups(runs: Sequence[Mapping[str, Any]], trees: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Runs that are one setting under several seeds, and all others alone.

    Returns:
        label; runs: indices; curves: of `curves.band`, or None for a run alone; note: what the line is.
    """
    found = []
    for members in seed_groups(trees):
        if len(members) == 1:
            label = runs[members[0]]["label"]
            found.append({"label": label, "runs": members, "curves": None, "note": "one run, no band"})
            continue
        seeds = ", ".join(str(runs[i]["seed"]) for i in members)
        note = f"mean of {len(members)} runs that differ only in train.seed ({seeds}); band: 95% t interval over seeds"
        label = f"{runs[members[0]]['recipe'] or runs[members[0]]['label']}, {len(members)} seeds"
        codes = {value for i in members for name, value in runs[i]["manifest"] if name == "digests.code"}
        if len(codes) > 1:
            note += "; WARNING: they ran different code"
        found.append(
            {"label": label, "runs": members, "curves": curves.band([runs[i]["curves"] for i in members]), "note": note}
        )
    return found


def _profile(files: Files) -> dict[str, Any] | None:
    """profile.jsonl over all steps: seconds of each span, largest first, and the whole."""
    lines = files.lines("profile.jsonl")
    if not lines:
        return None
    spans: dict[str, list[float]] = {}
    for line in lines:
        for name, span in mapping(line.get("spans")).items():
            own = spans.setdefault(str(name), [0.0, 0.0])
            own[0] += number(mapping(span).get("seconds")) or 0.0
            own[1] += number(mapping(span).get("calls")) or 0.0
    whole = sum(number(line.get("seconds")) or 0.0 for line in lines)
    ordered = sorted(spans.items(), key=lambda item: -item[1][0])
    return {
        "seconds": short(whole),
        "steps": len(lines),
        "spans": [[name, short(seconds), calls] for name, (seconds, calls) in ordered],
    }
