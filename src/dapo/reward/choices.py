r"""Choices: the letter of a multiple-choice answer, as golds and models write it."""

from __future__ import annotations

import re

_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_LETTER = re.compile(r"\(?\s*([A-J])\s*\)?\s*[.:)]?")
_LABELLED = re.compile(r"(?:\(\s*([A-J])\s*\)|([A-J])\s*(?:[).:]|-\s))\s*(.*)", re.DOTALL)
_ANOTHER = re.compile(r"\(\s*[A-J]\s*\)|(?<![A-Za-z])[A-J]\s*\)|\b(?:or|and)\b|(?<![A-Za-z])[A-J](?=\s*$)")
_LEAD = re.compile(r"^(?:the\s+)?(?:correct\s+)?(?:choice|option|answer)\s*(?:is)?\s*:?\s*", re.IGNORECASE)


def choice(gold: str) -> str | None:
    r"""The letter when a cleaned gold is a choice: A, (B), \text{(C)}, (D) with its text.

    >>> choice(r"\text{(B)}"), choice("(D) Alina"), choice("C + 1")
    ('B', 'D', None)
    """
    plain = _TEXT.sub(r" \1 ", gold).strip()
    if match := _LETTER.fullmatch(plain):
        return match[1]
    match = _LABELLED.fullmatch(plain)
    if (
        match
        and match[3]
        and not _ANOTHER.search(match[3])
        and re.search(r"[A-Za-z0-9]", match[3])
        and "," not in plain
    ):
        return match[1] or match[2]
    return None


def choose(pred: str) -> str | None:
    """The letter that a cleaned prediction picks, when it picks one and only one."""
    return choice(_LEAD.sub("", _TEXT.sub(r" \1 ", pred).strip()))
