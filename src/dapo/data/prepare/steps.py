"""The steps of preparing, counted: rows in, dropped by reason, rows out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STEPS = {
    "read": "rows of all sources",
    "validate": "problem and answer can be used",
    "exact_duplicates": "the same text, letter by letter",
    "normalised_duplicates": "the same text but for case, blanks, punctuation and typesetting",
    "conflicts": "one problem with several answers",
    "near_duplicates": "the same numbers, signs and answer in nearly the same words",
    "decontaminate": "a problem of an evaluation set",
    "integers": "the answer is no integer and can't be made one",
}


@dataclass(slots=True)
class Step:
    """name: a key of STEPS. dropped: rows by reason."""

    name: str
    rows_in: int
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def rows_out(self) -> int:
        return self.rows_in - self.dropped.total()

    def summary(self) -> dict[str, Any]:
        """As it stands in a card."""
        return {
            "step": self.name,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "dropped": dict(sorted(self.dropped.items())),
        }


def chain(rows: int, dropped: Mapping[str, Counter[str]]) -> list[Step]:
    """The steps in order, each taking in what the one before gave out.

    Args:
        rows: read.
        dropped: step -> reason -> rows, of the steps that were taken.

    >>> [s.rows_out for s in chain(10, {"validate": Counter(answer_missing=3), "conflicts": Counter()})]
    [10, 7, 7]
    """
    steps = [Step("read", rows)]
    for name in STEPS:
        if name in dropped:
            steps.append(Step(name, steps[-1].rows_out, dropped[name]))
    return steps
