"""The last pass: integer answers, the table, the card."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dapo.data.integers import Rewrite, canonical_integer
from dapo.data.prepare.describe import Lengths, answer_type
from dapo.data.prepare.output import RATINGS, Tables, write_card
from dapo.data.prepare.place import Rejects
from dapo.data.prepare.plan import Found, Options, Tools
from dapo.data.prepare.reading import Source
from dapo.data.prepare.spool import Row, Spool
from dapo.data.prepare.steps import Step, chain
from dapo.data.prepare.text import language, words
from dapo.data.tables import CARD, TABLE
from dapo.errors import DataError
from dapo.files import sha256

FORMAT = 1  # of the card
LISTED = 2000  # entries of a list in the card; all of them are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What was prepared: the card, and its steps."""

    card: dict[str, Any]
    steps: list[Step]


@dataclass(slots=True)
class Tally:
    """Counts over the rows that are written."""

    rows: int = 0
    languages: Counter[str] = field(default_factory=Counter)
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)
    by_source: Counter[str] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    words: Lengths = field(default_factory=Lengths)
    tokens: Lengths = field(default_factory=Lengths)
    ratings_off: int = 0  # rows whose pass rate went, since they were rewritten
    content: Any = field(default_factory=hashlib.sha256)


def write(
    folder: Path,
    sources: Sequence[Source],
    options: Options,
    tools: Tools,
    found: Found,
    spool: Spool,
    rejects: Rejects,
) -> Made:
    """Writes table and card into a folder; the rows that steps have dropped go to the rejects."""
    if options.integers == "only":
        found.dropped["integers"] = Counter()
    tally = Tally()
    table = Tables(folder, spool.kinds())
    for batch in spool.batches():
        kept = []
        for row in batch:
            own = None if row.number in found.gone else _own_columns(row, options, tools, found, tally)
            if own is None:
                step, reason, detail = found.gone[row.number]
                rejects.add(step, reason, (row.file, row.row), row.problem, row.answer, detail)
                continue
            kept.append(own)
            table.add(own, _rated_as_it_is(row, own, tally))
        _count(kept, tally, tools)
    table.close()
    if not tally.rows:
        why = ", ".join(f"{reason} {n}" for step in found.dropped.values() for reason, n in sorted(step.items()))
        raise DataError(f"nothing is left of {sum(found.rows_by_source)} rows: {why}; look at them with --rejects FILE")
    steps = chain(sum(found.rows_by_source), found.dropped)
    card = _card(folder / TABLE, sources, options, tools, found, tally, steps)
    write_card(folder / CARD, card)
    return Made(card=card, steps=steps)


def _own_columns(row: Row, options: Options, tools: Tools, found: Found, tally: Tally) -> dict[str, Any] | None:
    """The row's columns, its answer made an integer where that is asked for and can be done; None: dropped."""
    problem, answer, spoken = row.problem, row.answer, language(row.problem)
    earlier = {name: row.columns.get(name) for name in _REWRITTEN}  # of a set that was prepared before
    tally.before[answer_type(answer)] += 1
    if options.integers != "off":
        made = tools.rewrite(problem, answer, spoken)
        if isinstance(made, Rewrite):
            tally.forms[made.form] += 1
            proof = json.dumps(made.proof, ensure_ascii=False, sort_keys=True)
            earlier = dict(zip(_REWRITTEN, (problem, answer, made.form, proof), strict=True))
            problem, answer = made.problem, made.answer
        elif made is None:
            answer = canonical_integer(answer) or answer
        else:
            tally.refused[made.reason] += 1
            if options.integers == "only":
                found.drop("integers", row.number, made.reason, None)
                return None
    kind = answer_type(answer)
    tally.after[kind] += 1
    return {
        "id": hashlib.sha256(problem.encode()).hexdigest()[:32],
        "problem": problem,
        "answer": answer,
        "data_source": row.source,
        "language": spoken,
        "answer_type": kind,
        "origin": row.file,
        "origin_row": row.row,
    } | earlier


def _rated_as_it_is(row: Row, own: dict[str, Any], tally: Tally) -> Row:
    """The row without pass rates where its problem was rewritten just now: they are those of the problem before."""
    rated = [name for name in RATINGS if row.columns.get(name) is not None]
    if own["problem"] == row.problem or not rated:
        return row
    tally.ratings_off += 1
    before = {f"original_{name}": row.columns.get(name) for name in ("pass_rate", "pass_responses")}
    before = {name: value for name, value in before.items() if name in row.columns}
    return replace(row, columns=row.columns | before | dict.fromkeys(rated))


_REWRITTEN = ("original_problem", "original_answer", "integer_form", "integer_proof")


def _count(kept: Sequence[dict[str, Any]], tally: Tally, tools: Tools) -> None:
    tally.rows += len(kept)
    for own in kept:
        tally.languages[own["language"]] += 1
        tally.by_source[own["data_source"]] += 1
        tally.content.update(json.dumps([own["problem"], own["answer"]], ensure_ascii=False).encode() + b"\n")
    problems = [own["problem"] for own in kept]
    tally.words.add([len(words(problem)) for problem in problems])
    if tools.count_tokens is not None:
        tally.tokens.add(tools.count_tokens(problems))


def _card(
    table: Path,
    sources: Sequence[Source],
    options: Options,
    tools: Tools,
    found: Found,
    tally: Tally,
    steps: Sequence[Step],
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "rows": tally.rows,
        "content_sha256": tally.content.hexdigest(),
        "table": {"file": TABLE, "sha256": sha256(table), "bytes": table.stat().st_size},
        "steps": [step.summary() for step in steps],
        "sources": [s.about | {"rows": n} for s, n in zip(sources, found.rows_by_source, strict=True)],
        "data_source": dict(sorted(tally.by_source.items())),
        "language": dict(sorted(tally.languages.items())),
        "answer_type": dict(sorted(tally.after.items())),
        "problem_words": tally.words.summary(),
        "problem_tokens": {"tokenizer": tools.tokenizer, **tally.tokens.summary()} if tools.tokenizer else None,
        "integer_answers": _integers(options, tally),
        "duplicates": {
            "distinct_texts": found.texts,
            "problems_with_several_answers": len(found.conflicts),
            "of_them_with_the_very_same_text": found.exact_conflicts,
            "near_duplicates_with_other_answers": len(found.near_other_answers),
        },
        "decontamination": _decontamination(options, found),
        "conflicts": found.conflicts[:LISTED],
        "near_duplicates_with_other_answers": found.near_other_answers[:LISTED],
        "options": _options(options),
    }


def _integers(options: Options, tally: Tally) -> dict[str, Any]:
    def share(kinds: Counter[str]) -> float | None:
        return round(kinds["integer"] / kinds.total(), 4) if kinds else None

    return {
        "share_before": share(tally.before),
        "share_after": share(tally.after),
        "mode": options.integers,
        "rewritten": dict(sorted(tally.forms.items())),
        "refused": dict(sorted(tally.refused.items())),
        "ratings_taken_off": tally.ratings_off,
    }


def _decontamination(options: Options, found: Found) -> dict[str, Any] | None:
    if not options.against:
        return None
    hit = {name: {h["problem"] for h in found.hits if h["set"] == name} for name in options.against}
    return {
        "rule": f"{options.coverage} of a problem's distinct {options.ngram}-word runs stand in one row, or similarity "
        f"of at least {options.similarity}",
        "sets": [about | {"problems_found": len(hit[about["set"]])} for about in found.tested_about],
        "hits": found.hits[:LISTED],
    }


def _options(options: Options) -> dict[str, Any]:
    given = asdict(options)
    return {name: given[name] for name in given if name not in ("sources", "licences")}
