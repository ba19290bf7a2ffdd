"""What a run did, in a sentence, a few figures and its warnings: only what its files say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dapo.printable import printable
from dapo.report.read import Files, Row, mapping, number, short

Card = dict[str, str]
MOST = 200  # findings and alerts that the page lists
_OPTIONAL = {
    "checks.jsonl": "self-checks (checks.jsonl)",
    "alerts.jsonl": "alerts (alerts.jsonl)",
    "profile.jsonl": "a profile (profile.jsonl; dapo train --profile)",
}


def summary(files: Files, tree: Mapping[str, Any], rows: Sequence[Row], evaluated: Mapping[str, Any]) -> dict[str, Any]:
    """The head of the page.

    Args:
        files: of the run.
        tree: its resolved configuration, {} where that can't be read.
        rows: of metrics.jsonl.
        evaluated: of `evaluations`.

    Returns:
        verdict: a sentence. cards: figures with a label and a note. warnings: what a reader must know. checks,
        alerts: the last MOST lines of the files. missing: what the run did not write.
    """
    checks, alerts = files.lines("checks.jsonl"), files.lines("alerts.jsonl")
    wanted = number(mapping(tree.get("train")).get("num_steps"))
    cards = [*_accuracy_cards(evaluated), _sampled_card(rows), _steps_card(rows, wanted), *_cost_cards(rows)]
    cards += [_count_card("Findings", "of self-checks", checks), _count_card("Alerts", "raised", alerts)]
    return {
        "verdict": verdict(rows, evaluated),
        "cards": [card for card in cards if card is not None],
        "warnings": warnings(rows, wanted, checks or [], alerts or [], evaluated),
        "checks": [_line(row, ("check", "message", "action")) for row in (checks or [])[-MOST:]],
        "alerts": [_line(row, ("alert", "message", "advice", "metric")) for row in (alerts or [])[-MOST:]],
        "missing": [words for name, words in _OPTIONAL.items() if not (files.path / name).is_file()],
    }


def _line(row: Row, texts: Sequence[str]) -> dict[str, Any]:
    """A finding or an alert: its texts fit to be read, its numbers numbers."""
    said = {name: printable("" if row.get(name) is None else str(row[name])) for name in texts}
    return {
        "step": row["step"],
        "value": short(number(row.get("value"))),
        "bound": short(number(row.get("bound"))),
        **said,
    }


def verdict(rows: Sequence[Row], evaluated: Mapping[str, Any]) -> str:
    """One sentence: whether accuracy changed, by the evaluation where there is one, else by what was sampled."""
    said = [_change_words(name, one) for name, one in evaluated.items()]
    if any(said):
        return " ".join(words for words in said if words)
    first, last = _ends(rows, "sampled/accuracy")
    if first is None or last is None:
        return "No accuracy has been measured yet." if not rows else "This run measures no accuracy."
    if first is last:
        return f"One step so far, with {percent(first[1])} of sampled responses right."
    return (
        f"Sampled accuracy went from {percent(first[1])} at step {first[0]} to {percent(last[1])} at step "
        f"{last[0]}. These are different prompts of the training set, without an interval: it takes two evaluations "
        "to call it a gain."
    )


def _change_words(name: str, one: Mapping[str, Any]) -> str:
    change, first, last = one["change"], one["first"], one["last"]
    if change is None or first["accuracy"] is None:
        return ""
    span = (
        f"Accuracy on {name} went from {percent(first['accuracy'])} at step {first['step']} to "
        f"{percent(last['accuracy'])} at step {last['step']}, a change of {signed(change['difference'])} points (95% "
        f"interval {signed(change['low'])} to {signed(change['high'])}, paired over {change['problems']} problems)"
    )
    if change["low"] > 0:
        return f"{span}: a gain beyond noise."
    return f"{span}: a loss beyond noise." if change["high"] < 0 else f"{span}: not told apart from no change."


def warnings(
    rows: Sequence[Row],
    wanted: float | None,
    checks: Sequence[Row],
    alerts: Sequence[Row],
    evaluated: Mapping[str, Any],
) -> list[str]:
    """What a reader has to know before trusting the figures."""
    found = []
    if not rows:
        found.append("No step has been finished yet.")
    elif wanted is not None and rows[-1]["step"] < wanted:
        found.append(
            f"The run stands at step {rows[-1]['step']} of {wanted:.0f}: it is still going, or was stopped (dapo train "
            "--resume goes on)."
        )
    stops = [row for row in checks if row.get("action") == "stop"]
    if stops:
        found.append(f"A self-check stopped the run at step {stops[-1]['step']}.")
    for one, many, lines in (
        ("finding of self-checks", "findings of self-checks", checks),
        ("alert", "alerts", alerts),
    ):
        if lines:
            found.append(
                f"{len(lines)} {many if len(lines) > 1 else one}, listed below; the last at step {lines[-1]['step']}."
            )
    for metric, words in _TOTALS:
        whole = sum(number(row.get(metric)) or 0.0 for row in rows)
        if whole:
            found.append(f"{words}: {whole:,.0f} over the run.")
    for name, measured in evaluated.items():
        if measured["change"] is not None and not measured["same_settings"]:
            found.append(f"{name}: the first and the last evaluation had different settings.")
    return found


_TOTALS = (
    ("grad/nonfinite_updates", "Updates skipped for gradients that were not finite"),
    ("sampling/engine_failures", "Failures of the rollout engine"),
    ("sampling/short", "Steps that could not fill their batch"),
    ("checkpoint/failed_saves", "Checkpoints that could not be written"),
    ("trackers/failures", "Failures of trackers"),
)


def _accuracy_cards(evaluated: Mapping[str, Any]) -> list[Card]:
    cards = []
    for name, one in evaluated.items():
        last, first = one["last"], one["first"]
        if last["accuracy"] is None:
            continue
        bounds = "" if last["low"] is None else f"95% interval {percent(last['low'])} to {percent(last['high'])}"
        before = "" if first is last or first["step"] == last["step"] else f"{percent(first['accuracy'])} before; "
        size = f"{last['problems']:.0f} problems x {last['k']:.0f}" if last["problems"] and last["k"] else ""
        cards.append(
            card(f"Accuracy, {name}", percent(last["accuracy"]), "; ".join(p for p in (before + bounds, size) if p))
        )
    return cards


def _sampled_card(rows: Sequence[Row]) -> Card | None:
    first, last = _ends(rows, "sampled/accuracy")
    if first is None or last is None:
        return None
    return card("Sampled accuracy", percent(last[1]), f"{percent(first[1])} at step {first[0]}; before the filter")


def _steps_card(rows: Sequence[Row], wanted: float | None) -> Card:
    done = rows[-1]["step"] if rows else 0
    return card("Steps", f"{done:,}", "" if wanted is None else f"of {wanted:,.0f}")


def _cost_cards(rows: Sequence[Row]) -> list[Card | None]:
    by_step = {row["step"]: row for row in rows}.values()
    seconds = sum(number(row.get("time/step_s")) or 0.0 for row in by_step)
    beside = sum(number(row.get("time/eval_s")) or 0.0 for row in by_step)
    hours = _ends(rows, "total/device_hours")[1]
    tokens = _ends(rows, "total/tokens_generated")[1]
    kept = _ends(rows, "total/tokens_kept")[1]
    share = f"{percent(kept[1] / tokens[1])} of them trained on" if tokens and kept and tokens[1] else ""
    note = "in steps" + (f"; evaluation {duration(beside)}" if beside else "")
    return [
        card("Time", duration(seconds), note) if seconds else None,
        card("Device hours", f"{hours[1]:.3g}", "all devices together") if hours else None,
        card("Tokens generated", compact(tokens[1]), share) if tokens else None,
    ]


def _count_card(label: str, note: str, lines: Sequence[Row] | None) -> Card | None:
    return None if lines is None else card(label, f"{len(lines):,}", note)


def card(label: str, value: str, note: str) -> Card:
    """A figure with what it is."""
    return {"label": label, "value": value, "note": note}


def _ends(rows: Sequence[Row], metric: str) -> tuple[tuple[int, float] | None, tuple[int, float] | None]:
    """(step, value) of the first and the last row that have the metric."""
    found = [(int(row["step"]), value) for row in rows if (value := number(row.get(metric))) is not None]
    return (found[0], found[-1]) if found else (None, None)


def percent(share: float) -> str:
    """A share as 12.3%."""
    return f"{share:.1%}"


def signed(share: float) -> str:
    """A difference of shares in points, with its sign.

    >>> signed(-0.0123)
    '-1.2'
    """
    return f"{100 * share:+.1f}"


def duration(seconds: float) -> str:
    """Seconds for a person.

    >>> duration(42.0), duration(200.0), duration(9000.0)
    ('42 s', '3.3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def compact(value: float) -> str:
    """A count in few characters.

    >>> compact(950), compact(21303), compact(4.2e9)
    ('950', '21.3 k', '4.2 G')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"
