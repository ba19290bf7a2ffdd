"""Which rows can be trained on. Every drop has a reason: a stable name, and a sentence for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dapo.data.prepare.reading import Raw

MAX_CHARACTERS = 50_000  # of a problem
MAX_DIGITS = 16  # of one number of an answer: float64 holds no more, so more of them are an artefact

REASONS = {
    "problem_missing": "the row has no problem",
    "problem_not_text": "the problem is neither a text nor one user's turn",
    "problem_without_words": "the problem holds neither letters nor digits",
    "problem_too_long": f"the problem has over {MAX_CHARACTERS:,} characters",
    "problem_needs_an_image": "the problem points to an image",
    "text_not_unicode": "problem or answer hold half a UTF-16 pair or a NUL",
    "answer_missing": "the row has no answer, or its solution no closed \\boxed{}",
    "answer_not_text": "the answer is neither text nor a finite number",
    "answer_over_16_digits": f"a number of the answer has over {MAX_DIGITS} digits: an artefact of floats",
    "answer_unusable": "the grader can't grade against the answer",
}

# Golds with the rows' other columns -> for each None, or why responses to it can't be graded.
CheckAnswers = Callable[[Sequence[tuple[str | None, Mapping[str, Any]]]], list[str | None]]

_IMAGE = re.compile(r"<image>|<img\b|!\[[^\]]*\]\(|\\includegraphics", re.IGNORECASE)
_NUMBER = re.compile(r"\d[\d.]*")
_SEPARATOR = re.compile(r"(?<=\d)(?:,\\!|\{,\}|\\,|,)(?=\d{3}(?!\d))")
_WORD = re.compile(r"[^\W_]")
BROKEN = re.compile("[\ud800-\udfff\0]")
_CACHED = 500_000  # answers whose check is remembered


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why a row was dropped: a key of REASONS, and more where there is more to say."""

    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A row that can be trained on."""

    raw: Raw
    problem: str
    answer: str


def as_text(value: Any) -> str | None:
    """An answer as text: 34.0 is 34; None for what is neither text nor a finite number.

    >>> as_text(34.0), as_text(" 7 "), as_text(0.5), as_text(True), as_text(float("nan"))
    ('34', '7', '0.5', None, None)
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf"):
        return str(value)
    return value.strip() if isinstance(value, str) else None


class Validator:
    """Checks rows in batches; the grader is asked once for each distinct answer."""

    def __init__(self, check_answers: CheckAnswers) -> None:
        self._check_answers = check_answers
        self._known: dict[str, str | None] = {}

    def __call__(self, batch: Sequence[Raw]) -> list[Item | Rejected]:
        """For each row the item it makes, or why it makes none."""
        checked = [_checked(raw) for raw in batch]
        fresh = {item.answer: item for item in checked if isinstance(item, Item) and item.answer not in self._known}
        if fresh:
            if len(self._known) > _CACHED:
                self._known.clear()
                fresh = {item.answer: item for item in checked if isinstance(item, Item)}
            asked = [(answer, item.raw.columns) for answer, item in fresh.items()]
            self._known.update(zip(fresh, self._check_answers(asked), strict=True))
        return [self._graded(item) for item in checked]

    def _graded(self, item: Item | Rejected) -> Item | Rejected:
        reason = self._known[item.answer] if isinstance(item, Item) else None
        return Rejected("answer_unusable", reason) if reason else item


def _checked(raw: Raw) -> Item | Rejected:
    problem, answer = raw.problem, as_text(raw.answer)
    found = _bad_problem(problem) or _bad_answer(raw.answer, answer)
    if found is None and BROKEN.search(problem + str(answer) + raw.source):
        found = Rejected("text_not_unicode")
    return found or Item(raw=raw, problem=problem, answer=str(answer))


def _bad_problem(problem: Any) -> Rejected | None:
    if problem is None:
        return Rejected("problem_missing")
    if not isinstance(problem, str):
        return Rejected("problem_not_text", type(problem).__name__)
    if len(problem) > MAX_CHARACTERS:
        return Rejected("problem_too_long", f"{len(problem):,} characters")
    if not _WORD.search(problem):
        return Rejected("problem_without_words")
    return Rejected("problem_needs_an_image") if _IMAGE.search(problem) else None


def _bad_answer(value: Any, answer: str | None) -> Rejected | None:
    if value is None or answer == "":
        return Rejected("answer_missing")
    if answer is None:
        return Rejected("answer_not_text", type(value).__name__)
    numbers = _NUMBER.findall(_SEPARATOR.sub("", answer))
    if any(sum(c.isdigit() for c in number) > MAX_DIGITS for number in numbers):
        return Rejected("answer_over_16_digits", answer[:60])
    return None
