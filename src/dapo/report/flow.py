"""Where draws and tokens went: the sampling ledger as links of two flows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dapo.report.read import Row, number

COUNTS = (
    "sampling/draws",
    "sampling/kept",
    "sampling/all_right_draws",
    "sampling/all_wrong_draws",
    "sampling/surplus_draws",
    "sampling/cancelled_draws",
    "sampling/carried_draws",
    "sampling/carried_in_draws",
    "tokens/generated",
    "tokens/kept",
    "tokens/wasted",
    "tokens/lost",
    "tokens/carried_in",
    "tokens/carried",
)


def totals(rows: Sequence[Row]) -> dict[str, float]:
    """The sum over steps of each count that any step has. What is carried is counted at each step that carries it."""
    found: dict[str, float] = {}
    for row in rows:
        for name in COUNTS:
            value = number(row.get(name))
            if value is not None:
                found[name] = found.get(name, 0.0) + value
    return found


def flows(counts: Mapping[str, float]) -> dict[str, Any]:
    """Both flows of a step, or of a whole run (`totals`).

    Returns:
        draws: [(from, to, count), ...] or [] where the counts are missing; tokens: the same, in tokens.
    """
    return {"draws": _draws(counts), "tokens": _tokens(counts)}


def _draws(counts: Mapping[str, float]) -> list[tuple[str, str, float]]:
    if "sampling/draws" not in counts or "sampling/kept" not in counts:
        return []
    taken, kept = counts["sampling/draws"], counts["sampling/kept"]
    right, wrong = counts.get("sampling/all_right_draws", 0.0), counts.get("sampling/all_wrong_draws", 0.0)
    if kept + right + wrong > taken:  # no filter on correctness: groups all alike were kept too
        right = wrong = 0.0
    fresh = taken - counts.get("sampling/carried_in_draws", 0.0)
    links = [
        ("new draws", "graded, up to the cut", fresh),
        ("carried in", "graded, up to the cut", counts.get("sampling/carried_in_draws", 0.0)),
        ("new draws", "surplus, past the cut", counts.get("sampling/surplus_draws", 0.0)),
        ("new draws", "carried to the next step", counts.get("sampling/carried_draws", 0.0)),
        ("new draws", "cancelled in flight", counts.get("sampling/cancelled_draws", 0.0)),
        ("graded, up to the cut", "kept", kept),
        ("graded, up to the cut", "all right", right),
        ("graded, up to the cut", "all wrong", wrong),
        ("graded, up to the cut", "dropped otherwise", taken - kept - right - wrong),
    ]
    return [link for link in links if link[2] > 0]


def _tokens(counts: Mapping[str, float]) -> list[tuple[str, str, float]]:
    if "tokens/generated" not in counts or "tokens/kept" not in counts:
        return []
    lost = counts.get("tokens/lost", 0.0)
    links = [
        ("generated", "sampled tokens", counts["tokens/generated"]),
        ("carried in", "sampled tokens", counts.get("tokens/carried_in", 0.0)),
        ("sampled tokens", "kept", counts["tokens/kept"]),
        ("sampled tokens", "wasted: graded, dropped", counts.get("tokens/wasted", 0.0) - lost),
        ("sampled tokens", "lost: cancelled, failed", lost),
        ("sampled tokens", "carried", counts.get("tokens/carried", 0.0)),
    ]
    return [link for link in links if link[2] > 0]


def by_step(rows: Sequence[Row], most: int = 1500) -> list[dict[str, Any]]:
    """The counts of single steps, for the page's step chooser; of more than `most` steps evenly chosen ones."""
    stride = max(1, -(-len(rows) // most))
    chosen = rows[::-1][::stride][::-1]  # the last step is always there
    return [
        {"step": row["step"], **flows({n: v for n in COUNTS if (v := number(row.get(n))) is not None})}
        for row in chosen
    ]
