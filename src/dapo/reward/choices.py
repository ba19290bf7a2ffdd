r"""Choices: the letter of a multiple-choice answer, as golds and models write it."""

from __future__ import annotations

import re

from dapo.reward.names import denies

_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_LETTER = re.compile(r"\(?\s*([A-J])\s*\)?\s*[.:)]?")
_GOLD = re.compile(r"(?:\(\s*([A-J])\s*\)|([A-J])\s*\))\s*(.+)", re.DOTALL)
_PRED = re.compile(r"(?:\(\s*([A-J])\s*\)|([A-J])\s*[).:])\s*(.*)", re.DOTALL)
_ANOTHER = re.compile(r"(?<![A-Za-z\\])[A-J](?![A-Za-z])|\b(?:or|and|not|no|maybe|Or|And|No|Not|Maybe)\b")
_LEAD = re.compile(r"^(?:the\s+)?(?:correct\s+)?(?:choice|option|answer)\s*(?:is)?\s*:?\s*", re.IGNORECASE)


def choice(gold: str) -> str | None:
    r"""The letter when a cleaned gold is a choice: A, (B), \text{(C)}, (D) with its text.

    >>> choice(r"\text{(B)}"), choice("(D) Alina"), choice("C - 1")
    ('B', 'D', None)
    """
    plain = _plain(gold)
    if match := _LETTER.fullmatch(plain):
        return match[1]
    match = _GOLD.fullmatch(plain)
    if match and "," not in plain and not _second(match[3]):
        return match[1] or match[2]
    return None


def choose(pred: str) -> str | None:
    """The letter that a cleaned prediction picks, when it picks one and only one."""
    plain = _plain(pred)
    if match := _LETTER.fullmatch(plain):
        return match[1]
    match = _PRED.fullmatch(plain)
    return None if match is None or _second(match[3]) else match[1] or match[2]


def _plain(text: str) -> str:
    return _LEAD.sub("", _TEXT.sub(r" \1 ", text).strip()).strip()


def _second(rest: str) -> bool:
    """Whether the text beside a letter names another choice."""
    words = re.sub(r"(?<![A-Za-z])[aA](?= [a-z])", " ", rest)  # the article
    return _ANOTHER.search(words) is not None or denies(words) or re.search(r"n't|\b[a-j]\s*[).]?$", words) is not None
