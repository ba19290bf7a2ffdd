"""Steps that look at several problems at once: near-duplicates, and the problems of evaluation sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from dapo.data.prepare import near
from dapo.data.prepare.contamination import Contamination, Hit
from dapo.data.prepare.plan import Found, Options, Tools
from dapo.data.prepare.spool import Row, Spool

Keyed = Iterator[tuple[list[Row], near.Keys]]  # rows with their band keys


def keys_of(spool: Spool) -> list[near.Keys]:
    """The band keys of all rows, by batch of the spool."""
    return [near.band_keys(row.before[0] for row in batch) for batch in spool.batches()]


def keyed(spool: Spool, keys: Sequence[near.Keys], found: Found) -> Keyed:
    """The rows that are still there, with their keys."""
    for batch, own in zip(spool.batches(), keys, strict=True):
        places = [place for place, row in enumerate(batch) if row.number not in found.gone]
        yield [batch[place] for place in places], own[np.asarray(places, np.int64)]


def near_duplicates(options: Options, tools: Tools, found: Found, spool: Spool, batches: Keyed) -> None:
    """Drops what has the numbers, signs and answer of an earlier row in nearly its words; lists other answers."""
    numbers = np.zeros(len(spool), np.int64)
    keys = np.zeros((len(spool), near.BANDS), np.uint64)  # once: at 8 bytes a band it is what fills the memory
    count = 0
    for batch, own in batches:
        part = slice(count, count + len(batch))
        numbers[part] = [row.number for row in batch]
        keys[part] = near.with_figures(own, [row.before[0] for row in batch])
        count += len(batch)
    there: dict[int, Row] = {}

    def texts(wanted: set[int]) -> dict[int, str]:
        there.update(spool.some({int(numbers[index]) for index in wanted}))
        return {index: there[int(numbers[index])].before[0] for index in wanted}

    found.dropped["near_duplicates"] = Counter()
    for index, alike in near.matches(keys[:count], texts, options.similarity):
        row, others = there[int(numbers[index])], []
        for other, share in alike:
            first = there[int(numbers[other])]
            if first.number in found.gone:
                continue
            pair = {"row": row.where, "like": first.where, "similarity": round(share, 4)}
            answer, own_answer = first.before[1], row.before[1]
            if answer == own_answer or tools.same_answers([(answer, own_answer)])[0]:
                found.drop("near_duplicates", row.number, "near_duplicate", pair)
                break
            others.append(pair | {"answers": [own_answer, answer]})
        else:
            found.near_other_answers += others
    tools.say(f"near-duplicates: {found.dropped['near_duplicates'].total():,}")


def _hits(contamination: Contamination, batch: Sequence[Row], keys: near.Keys) -> Iterator[tuple[Row, Hit]]:
    """The hits of each row; of one that was rewritten earlier also those of the problem before."""
    known: set[tuple[int, int]] = set()
    again = [row for row in batch if row.before[0] != row.problem]
    for rows, texts, own in (
        (batch, [row.before[0] for row in batch], keys),
        (again, [row.problem for row in again], near.band_keys(row.problem for row in again)),
    ):
        for hit in contamination.hits(texts, own):
            row = rows[hit.row]
            if (row.number, hit.tested) not in known:
                known.add((row.number, hit.tested))
                yield row, hit


def decontaminate(options: Options, tools: Tools, found: Found, batches: Keyed) -> None:
    """Drops rows that hold a problem of an evaluation set."""
    found.dropped["decontaminate"] = Counter()
    contamination = Contamination(
        found.tested, n=options.ngram, coverage=options.coverage, similarity=options.similarity
    )
    for batch, keys in batches:
        for row, hit in _hits(contamination, batch, keys):
            tested = found.tested[hit.tested]
            found.hits.append(
                {
                    "set": tested.set, "problem": tested.where, "row": row.where, "text": tested.problem[:120],
                    "coverage": round(hit.coverage, 4),
                    "similarity": None if hit.similarity is None else round(hit.similarity, 4),
                }
            )  # fmt: skip
            found.drop("decontaminate", row.number, "contaminated", found.hits[-1])
    tools.say(f"evaluation problems: {found.dropped['decontaminate'].total():,} rows")
