"""The tables of dapo data: steps of a card, what a file holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dapo.evals.tables import Table
from dapo.printable import one_line

if TYPE_CHECKING:
    from dapo.data.prepare.inspection import Inspection

BAR = 40  # characters of the longest bar


def steps_table(card: Mapping[str, Any]) -> Table:
    """Rows in and out of each step, with the reasons for what went."""
    rows = [
        [
            step["step"],
            f"{step['rows_in']:,}",
            f"{step['rows_in'] - step['rows_out']:,}",
            f"{step['rows_out']:,}",
            ", ".join(f"{reason} {n:,}" for reason, n in step["dropped"].items()) or "-",
        ]
        for step in card["steps"]
    ]
    return Table("steps", ["step", "rows in", "dropped", "rows out", "why"], rows)


def card_notes(card: Mapping[str, Any]) -> list[str]:
    """What a person should know of a prepared set, a line each."""
    integers, duplicates = card["integer_answers"], card["duplicates"]
    notes = [f"rows: {card['rows']:,}; content {card['content_sha256'][:16]}"]
    if integers["share_after"] is not None:
        rewritten = sum(integers["rewritten"].values())
        change = f", before rewriting {rewritten:,} of them {integers['share_before']:.1%}" if rewritten else ""
        notes.append(f"integer answers: {integers['share_after']:.1%}{change}")
    if n := integers.get("ratings_taken_off"):
        notes.append(f"{n:,} rewritten problems lost the pass rate of the problem before; rate them: dapo data rate")
    if integers["refused"]:
        most = Counter(integers["refused"]).most_common(5)
        notes.append("not rewritten, mostly: " + ", ".join(f"{reason} {n:,}" for reason, n in most))
    if n := duplicates["near_duplicates_with_other_answers"]:
        notes.append(f"{n:,} near-duplicates with another answer are kept; card.json lists them: look at them")
    if card["decontamination"] is None:
        before = {one["set"] for source in card["sources"] for one in source.get("held_against") or ()}
        done = f"; sources were, when they were prepared, against {', '.join(sorted(before))}" if before else ""
        notes.append(f"not decontaminated: no evaluation set was named (--against){done}")
    else:
        found = (f"{s['set']} {s['problems_found']} of {s['problems']}" for s in card["decontamination"]["sets"])
        notes.append("evaluation problems found and taken out: " + ", ".join(found))
    for source in card["sources"]:
        for shared in source["shared_text"]:
            notes.append(
                f"{source['source']}: {shared['share']:.0%} of its problems {shared['place']} with "
                f"{one_line(shared['text'], 60)!r}: a stored template? take it off with --template"
            )
    unknown = list(dict.fromkeys(source["source"] for source in card["sources"] if not source["licence"]))
    if unknown:
        notes.append(f"licence not known: {', '.join(unknown)} (--licence SOURCE=TEXT)")
    return notes


def inspection_tables(found: Inspection) -> list[Table]:
    """Steps of the card, kinds, the histogram of lengths."""
    tables = [steps_table(found.card)] if found.card is not None else []
    for title, counts in (
        ("data_source", found.sources),
        ("language", found.languages),
        ("answer_type", found.answer_types),
    ):
        rows = [[one_line(name, 60), f"{n:,}", f"{n / found.rows:.1%}"] for name, n in counts.most_common(20)]
        tables.append(Table(title, [title, "rows", "share"], rows))
    summary = found.lengths.summary()
    if summary:
        most = max(summary["histogram"].values())
        bars = [
            [f"{edge}+", f"{n:,}", "#" * round(BAR * n / most) or ("." if n else "")]
            for edge, n in summary["histogram"].items()
        ]
        quantiles = ", ".join(f"{name} {summary[name]}" for name in ("mean", "p50", "p90", "p99", "max"))
        tables.append(Table(f"problem length in words: {quantiles}", ["words", "rows", "histogram"], bars))
    return tables


def sample_lines(found: Inspection) -> list[str]:
    """The sampled rows in full."""
    lines = [f"{found.name}: {found.rows:,} rows; columns {', '.join(found.columns)}"]
    for raw in found.samples:
        lines += ["", f"row {raw.number} ({raw.source})", str(raw.problem), f"Answer: {raw.answer}"]
        if original := raw.columns.get("original_problem"):
            lines += [f"Before rewriting: {original}", f"Answer: {raw.columns.get('original_answer')}"]
    return lines
