r"""Where the parts of a LaTeX expression end: brackets matched, separators at the top level found."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CLOSING = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "\\langle": "\\rangle"}
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[^\\]", re.DOTALL)


def tokens(text: str) -> list[tuple[str, int]]:
    """Commands and characters with their places."""
    return [(match[0], match.start()) for match in _TOKEN.finditer(text)]


def depths(text: str) -> list[tuple[str, int, int]]:
    r"""(token, place, nesting depth) of every token; a bracket counts as outside of itself.

    Round and square brackets may close each other (half-open intervals); braces and
    \begin...\end nest by themselves.
    """
    found = []
    depth = 0
    for token, place in tokens(text):
        if token in (")", "]", "}", "\\}", "\\rangle", "\\end"):
            depth -= 1
        found.append((token, place, depth))
        if token in ("(", "[", "{", "\\{", "\\langle", "\\begin"):
            depth += 1
    return found


def balanced(text: str) -> bool:
    """Whether every bracket is closed and none is closed before it opens."""
    end = 0
    for token, _, depth in depths(text):
        if depth < 0:
            return False
        end = depth + (token in ("(", "[", "{", "\\{", "\\langle", "\\begin"))
    return end == 0


def split_top(text: str, separators: Sequence[str]) -> list[tuple[str, str]]:
    """Parts between separators at depth 0, each with the separator before it ("" for the first).

    >>> split_top("(1,2), 3", [","])
    [('', '(1,2)'), (',', ' 3')]
    """
    parts, start, last = [], 0, ""
    for token, place, depth in depths(text):
        if depth == 0 and token in separators:
            parts.append((last, text[start:place]))
            start, last = place + len(token), token
    parts.append((last, text[start:]))
    return parts


def enclosed(text: str) -> tuple[str, str, str] | None:
    """(opening, inside, closing) when one pair of brackets wraps the whole text."""
    listed = depths(text)
    if len(listed) < 2:
        return None
    opening, closing = listed[0][0], listed[-1][0]
    if opening not in _CLOSING or listed[-1][2] != 0:
        return None
    mixed = {opening, closing} <= {"(", ")", "[", "]"} and closing in ")]"
    if closing != _CLOSING[opening] and not mixed:
        return None
    if any(depth == 0 for _, _, depth in listed[1:-1]):
        return None
    return opening, text[len(opening) : listed[-1][1]], closing
