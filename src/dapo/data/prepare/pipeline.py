"""From raw sources to a clean, hashed training set: the steps of `dapo data prepare`, in order.

One pass reads the sources, validates their rows and keeps the distinct ones on disk; a second finds near-duplicates
and problems of evaluation sets among those; a third makes integer answers and writes. Memory grows with the
distinct problems, some hundred bytes each, and not with the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dapo.data.prepare import near
from dapo.data.prepare.contamination import Contamination, Tested
from dapo.data.prepare.describe import CountTokens
from dapo.data.prepare.duplicates import EXACT, NORMALISED, Distinct, SameAnswers
from dapo.data.prepare.output import OWN, Rejects, staged
from dapo.data.prepare.reading import Columns, Raw, Source, open_source, rows
from dapo.data.prepare.spool import Row, Spool
from dapo.data.prepare.tested import read_tested
from dapo.data.prepare.validate import CheckAnswers, Item, Validator
from dapo.data.prepare.writing import Integers, Made, write
from dapo.errors import DataError

BATCH = 1024  # rows read and checked at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is to be prepared, and how. All of it stands in the card.

    sources: `reading.open_source`. columns, max_rows: of each source. licences: source -> licence.
    against: evaluation sets to keep out, names or files; data_dir: where named ones are looked for.
    ngram: words; coverage, similarity: least shares, see `Contamination`; similarity is also that of near-duplicates.
    near_duplicates: whether they are dropped. conflicts: drop problems that have several answers, or keep the first.
    integers: off; rewrite what a rule can; only: and drop the rest. rewriter: rule, or rule and then llm.
    keep: more columns of the sources to keep.
    """

    sources: tuple[str, ...]
    columns: Columns = field(default_factory=Columns)
    max_rows: int | None = None
    licences: dict[str, str] = field(default_factory=dict)
    against: tuple[str, ...] = ()
    data_dir: str | None = None
    ngram: int = 10
    coverage: float = 0.5
    similarity: float = 0.8
    near_duplicates: bool = True
    conflicts: Literal["drop", "first"] = "drop"
    integers: Literal["off", "rewrite", "only"] = "off"
    rewriter: Literal["rule", "llm"] = "rule"
    keep: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What other rooms do here.

    check_answers: the grader's check of golds. same_answers: its comparison. rewrite: makes integer answers.
    count_tokens: with a tokenizer; tokenizer: its name. say: gets a line about each step.
    """

    check_answers: CheckAnswers
    same_answers: SameAnswers
    rewrite: Integers
    count_tokens: CountTokens | None = None
    tokenizer: str | None = None
    say: Callable[[str], None] = lambda line: None


@dataclass(slots=True)
class Found:
    """What the steps have found so far. dropped: step -> reason -> rows. gone: number -> (step, reason, detail)."""

    rows_by_source: list[int] = field(default_factory=list)
    dropped: dict[str, Counter[str]] = field(default_factory=dict)
    gone: dict[int, tuple[str, str, Any]] = field(default_factory=dict)
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    exact_conflicts: int = 0
    texts: int = 0
    near_other_answers: list[dict[str, Any]] = field(default_factory=list)
    tested: Sequence[Tested] = ()
    tested_about: list[dict[str, Any]] = field(default_factory=list)
    hits: list[dict[str, Any]] = field(default_factory=list)

    def drop(self, step: str, number: int, reason: str, detail: Any) -> None:
        """Drops a distinct row, for the first reason found."""
        if number not in self.gone:
            self.gone[number] = (step, reason, detail)
            self.dropped[step][reason] += 1


def prepare(options: Options, tools: Tools, out: Path, rejects: Path | None = None, overwrite: bool = False) -> Made:
    """Prepares a training set in the folder `out`: train.parquet and card.json. The same sources and options give
    the same bytes.

    Raises:
        UserError: a source, a row or a place that can't be used; nothing is then left behind.
    """
    if taken := sorted(set(options.keep) & set(OWN)):
        raise DataError(f"--keep {taken[0]}: prepared sets have a column of this name; rename yours")
    found = Found()
    dropped_rows = Rejects(rejects)
    try:
        with staged(out, overwrite) as folder:
            sources = [open_source(name, options.licences.get(name)) for name in options.sources]
            found.tested, found.tested_about = read_tested(options.against, options.data_dir)
            spool = Spool(folder / "spool")
            distinct = _read(sources, options, tools, found, spool, dropped_rows)
            _conflicts(distinct, options, found, spool)
            keys = _keys(spool) if options.near_duplicates or options.against else []
            if options.near_duplicates:
                _near_duplicates(options, tools, found, spool, _keyed(spool, keys, found))
            if options.against:
                _decontaminate(options, tools, found, _keyed(spool, keys, found))
            made = write(folder, sources, options, tools, found, spool, dropped_rows)
            (folder / "spool").unlink()
        dropped_rows.keep()
        return made
    finally:
        dropped_rows.discard()


def _batches(items: Iterator[Raw]) -> Iterator[list[Raw]]:
    while batch := list(islice(items, BATCH)):
        yield batch


def _read(
    sources: Sequence[Source], options: Options, tools: Tools, found: Found, spool: Spool, rejects: Rejects
) -> Distinct:
    """Reads and validates all rows; the distinct ones go to the spool."""
    distinct, validator = Distinct(tools.same_answers), Validator(tools.check_answers)
    for step in ("validate", "exact_duplicates", "normalised_duplicates", "conflicts"):
        found.dropped[step] = Counter()
    for source in sources:
        count, bad = 0, Counter[str]()
        for batch in _batches(rows(source, options.columns, options.max_rows)):
            count += len(batch)
            for raw, item in zip(batch, validator(batch), strict=True):
                if not isinstance(item, Item):
                    bad[item.reason] += 1
                    rejects.add("validate", item.reason, (raw.file, raw.number), raw.problem, raw.answer, item.detail)
                    continue
                _sort_in(item, source, options, found, spool, rejects, distinct)
        if bad.total() == count:
            reasons = ", ".join(f"{reason} {n}" for reason, n in bad.most_common())
            raise DataError(f"{source.name}: none of its {count} rows can be used: {reasons or 'there are none'}")
        found.dropped["validate"] += bad
        found.rows_by_source.append(count)
        tools.say(f"{source.name}: {count:,} rows, {len(distinct):,} distinct problems so far")
    spool.finish()
    found.texts = distinct.texts
    return distinct


def _sort_in(
    item: Item,
    source: Source,
    options: Options,
    found: Found,
    spool: Spool,
    rejects: Rejects,
    distinct: Distinct,
) -> None:
    repeat = distinct.add(item.problem, item.answer)
    if repeat is None:
        spool.add(item, kept_columns(item.raw, source, options.keep))
        return
    step = {EXACT: "exact_duplicates", NORMALISED: "normalised_duplicates"}[repeat.kind]
    found.dropped[step][repeat.kind] += 1
    detail = {"repeats_problem": repeat.first, "other_answer": repeat.other_answer}
    rejects.add(step, repeat.kind, (item.raw.file, item.raw.number), item.problem, item.answer, detail)


# Of `dapo data rate`; kept without asking.
RATINGS = ("pass_rate", "pass_rate_low", "pass_rate_high", "pass_right", "pass_responses")
_MADE_ANEW = ("id", "problem", "answer", "data_source", "language", "answer_type")


def kept_columns(raw: Raw, source: Source, keep: Sequence[str]) -> dict[str, Any]:
    """The columns that a row takes along: those asked for, and all of a prepared set's.

    Raises:
        DataError: the row has no such column.
    """
    if source.about["kind"] == "prepared":
        return {name: value for name, value in raw.columns.items() if name not in _MADE_ANEW}
    for name in keep:
        if name not in raw.columns:
            raise DataError(f"{raw.where}: no column {name} (--keep); this row has {', '.join(raw.columns)}")
    return {name: raw.columns[name] for name in (*keep, *(n for n in RATINGS if n in raw.columns))}


def _conflicts(distinct: Distinct, options: Options, found: Found, spool: Spool) -> None:
    if not distinct.conflicts:
        return
    found.exact_conflicts = len(distinct.exact_conflicts)
    for batch in spool.batches():
        for row in batch:
            if row.number in distinct.conflicts:
                answers = sorted(distinct.conflicts[row.number])
                found.conflicts.append({"row": row.where, "answers": answers})
                if options.conflicts == "drop":
                    found.drop("conflicts", row.number, "conflicting_answers", {"answers": answers})


Keyed = Iterator[tuple[list[Row], near.Keys]]  # rows with their band keys


def _keys(spool: Spool) -> list[near.Keys]:
    """The band keys of all rows, by batch of the spool."""
    return [near.band_keys(row.problem for row in batch) for batch in spool.batches()]


def _keyed(spool: Spool, keys: Sequence[near.Keys], found: Found) -> Keyed:
    """The rows that are still there, with their keys."""
    for batch, own in zip(spool.batches(), keys, strict=True):
        places = [place for place, row in enumerate(batch) if row.number not in found.gone]
        yield [batch[place] for place in places], own[np.asarray(places, np.int64)]


def _near_duplicates(options: Options, tools: Tools, found: Found, spool: Spool, batches: Keyed) -> None:
    """Drops what has the numbers, signs and answer of an earlier row in nearly its words; lists other answers."""
    numbers, keys = [], []
    for batch, own in batches:
        numbers += [row.number for row in batch]
        keys.append(near.with_figures(own, [row.problem for row in batch]))
    there: dict[int, Row] = {}

    def texts(wanted: set[int]) -> dict[int, str]:
        there.update(spool.some({numbers[index] for index in wanted}))
        return {index: there[numbers[index]].problem for index in wanted}

    found.dropped["near_duplicates"] = Counter()
    for index, alike in near.matches(np.concatenate(keys), texts, options.similarity) if keys else ():
        row = there[numbers[index]]
        for other, share in alike:
            first = there[numbers[other]]
            if first.number in found.gone:
                continue
            pair = {"row": row.where, "like": first.where, "similarity": round(share, 4)}
            if first.answer == row.answer or tools.same_answers([(first.answer, row.answer)])[0]:
                found.drop("near_duplicates", row.number, "near_duplicate", pair)
                break
            found.near_other_answers.append(pair | {"answers": [row.answer, first.answer]})
    tools.say(f"near-duplicates: {found.dropped['near_duplicates'].total():,}")


def _decontaminate(options: Options, tools: Tools, found: Found, batches: Keyed) -> None:
    """Drops rows that hold a problem of an evaluation set."""
    found.dropped["decontaminate"] = Counter()
    contamination = Contamination(
        found.tested, n=options.ngram, coverage=options.coverage, similarity=options.similarity
    )
    for batch, keys in batches:
        for hit in contamination.hits([row.problem for row in batch], keys):
            row, tested = batch[hit.row], found.tested[hit.tested]
            found.hits.append(
                {
                    "set": tested.set, "problem": tested.where, "row": row.where, "coverage": round(hit.coverage, 4),
                    "similarity": None if hit.similarity is None else round(hit.similarity, 4),
                }
            )  # fmt: skip
            found.drop("decontaminate", row.number, "contaminated", found.hits[-1])
    tools.say(f"evaluation problems: {found.dropped['decontaminate'].total():,} rows")
