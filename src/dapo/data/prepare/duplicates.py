"""Exact and normalised duplicates, and problems that stand there with two answers, row by row.

Memory grows with the distinct problems alone: a 128-bit key and an answer each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dapo.data.prepare.text import key, normalise

# Pairs of answers -> whether the second answers the first.
SameAnswers = Callable[[Sequence[tuple[str, str]]], Sequence[bool]]

EXACT, NORMALISED = "exact_duplicate", "normalised_duplicate"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A row that repeats an earlier problem. kind: EXACT or NORMALISED. other_answer: with another answer."""

    kind: str
    first: int
    other_answer: bool


class Distinct:
    """The distinct problems so far, numbered in the order they came."""

    def __init__(self, same_answers: SameAnswers) -> None:
        self._same_answers = same_answers
        self._exact: dict[int, int] = {}
        self._normalised: dict[int, int] = {}
        self._rewritten = 0  # texts that stand for the one before them
        self._answers: list[str] = []
        self._own: dict[int, str] = {}  # the first answer of a text, where it is not its problem's first
        self._compared: dict[tuple[str, str], bool] = {}
        self.conflicts: dict[int, set[str]] = {}  # number of a problem -> its answers, where they differ
        self.exact_conflicts: set[int] = set()  # those of them that rows with the very same text have

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def texts(self) -> int:
        """Distinct texts, letter by letter."""
        return len(self._exact) - self._rewritten

    def add(self, problem: str, answer: str, before: tuple[str, str] | None = None) -> Repeat | None:
        """None for a new problem, which gets the next number.

        Args:
            problem: the text.
            answer: its gold.
            before: problem and answer that were rewritten into these, where that was done earlier; the row then
                stands for them, so that it and the raw problem are one.
        """
        own = key(problem)
        if before is None or own in self._exact:
            return self._add(problem, answer)
        repeat = self._add(*before)
        self._exact[own] = len(self._answers) - 1 if repeat is None else repeat.first
        self._own[own] = answer
        self._rewritten += 1
        return repeat

    def _add(self, problem: str, answer: str) -> Repeat | None:
        exact = key(problem)
        first = self._exact.get(exact)
        kind = EXACT
        if first is None:
            kind = NORMALISED
            number = len(self._answers)
            first = self._normalised.setdefault(key(normalise(problem)), number)
            self._exact[exact] = first
            if first == number:
                self._answers.append(answer)
                return None
        known = self._own.get(exact, self._answers[first])
        other = not self._same(known, answer)
        if other and kind == EXACT:
            self.exact_conflicts.add(first)
        if other:
            self.conflicts.setdefault(first, {self._answers[first]}).add(answer)
            if kind == NORMALISED:
                self._own[exact] = answer
        return Repeat(kind, first, other)

    def _same(self, one: str, other: str) -> bool:
        if one == other:
            return True
        if (one, other) not in self._compared:
            if len(self._compared) > 100_000:
                self._compared.clear()
            self._compared[one, other] = self._same_answers([(one, other)])[0]
        return self._compared[one, other]
