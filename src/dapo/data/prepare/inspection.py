"""What `dapo data inspect` shows of a file: counts, lengths, some rows."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapo.data.prepare.describe import Lengths, answer_type
from dapo.data.prepare.reading import Columns, Raw, open_source, rows
from dapo.data.prepare.text import language, words
from dapo.data.prepare.validate import as_text
from dapo.data.tables import CARD, is_prepared
from dapo.errors import DataError
from dapo.files import sha256
from dapo.rng import Purpose, permutation


@dataclass(slots=True)
class Inspection:
    """Figures over all rows of a source, and a few of them. card: of a prepared folder."""

    name: str
    card: dict[str, Any] | None
    rows: int = 0
    unreadable: int = 0
    columns: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    answer_types: Counter[str] = field(default_factory=Counter)
    lengths: Lengths = field(default_factory=Lengths)
    samples: list[Raw] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "rows": self.rows,
            "rows_without_problem_text": self.unreadable,
            "columns": dict(self.columns),
            "data_source": dict(self.sources.most_common()),
            "language": dict(self.languages.most_common()),
            "answer_type": dict(self.answer_types.most_common()),
            "problem_words": self.lengths.summary(),
            "samples": [{"row": s.number, "problem": s.problem, "answer": s.answer} for s in self.samples],
            "card": self.card,
        }


def look(name: str, samples: int = 3, seed: int = 0, columns: Columns | None = None) -> Inspection:
    """Reads a source: once for the figures, once more for the rows to show.

    Args:
        name: what `reading.open_source` takes.
        samples: rows to show, chosen by the seed.
        seed: of the choice.
        columns: which to read; None: by name.

    Raises:
        DataError: it can't be read, or is a prepared folder whose table is not the one of its card.
    """
    source, columns = open_source(name), columns or Columns()
    found = Inspection(name, read_card(Path(name)) if source.about["kind"] == "prepared" else None)
    for raw in rows(source, columns, answers=False):
        found.rows += 1
        found.columns.update(raw.columns.keys())
        found.sources[raw.source] += 1
        answer = as_text(raw.answer)
        found.answer_types[answer_type(answer) if answer else "none"] += 1
        if not isinstance(raw.problem, str):
            found.unreadable += 1
            continue
        found.languages[language(raw.problem)] += 1
        found.lengths.add([len(words(raw.problem))])
    chosen = set(permutation(seed, Purpose.DATA_ORDER, found.rows)[:samples].tolist()) if found.rows else set()
    again = enumerate(rows(source, columns, answers=False)) if chosen else ()
    found.samples += [raw for index, raw in again if index in chosen]
    return found


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a prepared folder. Raises DataError when it is not one of this table."""
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text(encoding="utf-8"))
        recorded = card["table"]["sha256"]
        table = folder / card["table"]["file"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / CARD}: not a card of dapo data prepare: {type(error).__name__}: {error}") from None
    if not is_prepared(folder) or sha256(table) != recorded:
        raise DataError(f"{table}: not the table that {CARD} is about (another sha256); prepare it again")
    return card
