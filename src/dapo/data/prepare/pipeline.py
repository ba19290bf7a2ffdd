"""From raw sources to a clean, hashed training set: the steps of `dapo data prepare`, in order.

One pass reads the sources, validates their rows and keeps the distinct ones on disk; a second finds near-duplicates
and problems of evaluation sets among those; a third makes integer answers and writes. Memory grows with the
distinct problems, some hundred bytes each, and not with the rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from dapo.data import named
from dapo.data.prepare.affixes import Affixes
from dapo.data.prepare.duplicates import EXACT, NORMALISED, Distinct
from dapo.data.prepare.neighbours import decontaminate, keyed, keys_of, near_duplicates
from dapo.data.prepare.output import OWN, RATINGS
from dapo.data.prepare.place import SPOOL, Rejects, check_rejects, places
from dapo.data.prepare.plan import Found, Options, Tools
from dapo.data.prepare.reading import Raw, Source, open_source, rows, template_ends
from dapo.data.prepare.spool import Spool, rewritten_from
from dapo.data.prepare.tested import read_tested
from dapo.data.prepare.validate import BROKEN, Item, Validator
from dapo.data.prepare.writing import Made, write
from dapo.errors import DataError, UserError

BATCH = 1024  # rows read and checked at a time
SAID = 250_000  # rows between two lines about a source


def prepare(options: Options, tools: Tools, out: Path, rejects: Path | None = None, overwrite: bool = False) -> Made:
    """Prepares a training set in the folder `out`: train.parquet and card.json. The same sources and options give
    the same bytes.

    Raises:
        UserError: a source, a row or a place that can't be used; nothing is then left behind.
    """
    check(options)
    if rejects is not None:
        check_rejects(rejects, out, (*options.sources, *_files_of(options)))
    found = Found()
    with places(out, overwrite, rejects) as (folder, dropped_rows):
        sources = [open_source(name, options.licences.get(name)) for name in options.sources]
        found.tested, found.tested_about = read_tested(options.against, options.data_dir)
        spool = Spool(folder / SPOOL)
        _conflicts(_read(sources, options, tools, found, spool, dropped_rows), options, found, spool)
        keys = keys_of(spool) if options.near_duplicates or options.against else []
        if options.near_duplicates:
            near_duplicates(options, tools, found, spool, keyed(spool, keys, found))
        if options.against:
            decontaminate(options, tools, found, keyed(spool, keys, found))
        made = write(folder, sources, options, tools, found, spool, dropped_rows)
        (folder / SPOOL).unlink()
    return made


def _files_of(options: Options) -> list[str]:
    """The evaluation sets; of a named one its file in `data_dir`."""
    here = options.data_dir
    return [str(named.find(n, here)) if here is not None and named.is_named(n) else n for n in options.against]


def check(options: Options) -> None:
    """Raises UserError for options that make no sense."""
    if taken := sorted(set(options.keep) & set(OWN)):
        raise DataError(f"--keep {taken[0]}: prepared sets have a column of this name; rename yours")
    for name in ("coverage", "similarity"):
        if not 0 < getattr(options, name) <= 1:  # NaN is none of these
            raise UserError(f"--{name} {getattr(options, name)}: a share above 0, at most 1")
    if options.template is not None:
        template_ends(options.template)


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
        count, bad, affixes = 0, Counter[str](), Affixes()
        for batch in _batches(rows(source, options.columns, options.max_rows, template=options.template)):
            count += len(batch)
            if count // SAID > (count - len(batch)) // SAID:
                tools.say(f"{source.name}: {count:,} rows, {len(distinct):,} distinct problems so far")
            for raw, item in zip(batch, validator(batch), strict=True):
                if not isinstance(item, Item):
                    bad[item.reason] += 1
                    rejects.add("validate", item.reason, (raw.file, raw.number), raw.problem, raw.answer, item.detail)
                    continue
                if _sort_in(item, source, options, found, spool, rejects, distinct):
                    affixes.add(item.problem)
        if bad.total() == count:
            reasons = ", ".join(f"{reason} {n}" for reason, n in bad.most_common())
            raise DataError(f"{source.name}: none of its {count} rows can be used: {reasons or 'there are none'}")
        found.dropped["validate"] += bad
        found.rows_by_source.append(count)
        source.about["shared_text"] = affixes.shared()
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
) -> bool:
    """Puts a row with the distinct ones, or with the duplicates; whether it is distinct."""
    kept = kept_columns(item.raw, source, options.keep)
    where = (item.raw.file, item.raw.number)
    if kept and BROKEN.search(json.dumps(kept, ensure_ascii=False, default=str)):
        found.dropped["validate"]["text_not_unicode"] += 1
        rejects.add("validate", "text_not_unicode", where, item.problem, item.answer, "in a kept column")
        return False
    repeat = distinct.add(item.problem, item.answer, rewritten_from(kept))
    if repeat is None:
        spool.add(item, kept)
        return True
    step = {EXACT: "exact_duplicates", NORMALISED: "normalised_duplicates"}[repeat.kind]
    found.dropped[step][repeat.kind] += 1
    detail = {"repeats_problem": repeat.first, "other_answer": repeat.other_answer}
    rejects.add(step, repeat.kind, where, item.problem, item.answer, detail)
    return False


_MADE_ANEW = ("id", "problem", "answer", "data_source", "language", "answer_type")


def kept_columns(raw: Raw, source: Source, keep: Sequence[str]) -> dict[str, Any]:
    """The columns that a row takes along: those asked for, and all of a prepared set's.

    Raises:
        DataError: the row has no such column.
    """
    for name in keep:
        if name not in raw.columns:
            raise DataError(f"{raw.where}: no column {name} (--keep); this row has {', '.join(raw.columns)}")
    if source.about["kind"] == "prepared":
        return {name: value for name, value in raw.columns.items() if name not in _MADE_ANEW}
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
