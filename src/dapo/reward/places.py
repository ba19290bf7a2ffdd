r"""Where answers stand in a response: one finder for each policy. All are linear in the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

_ANSWER = re.compile(
    r"(?:answer|答案)[*_`\s]*+(?:is[*_`\s]*+)?[:：]|答案[是为]|^[#*_> ]{0,8}(?:final )?answer[*_ ]{0,6}$",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE = re.compile(r"\banswer\s+(?:is|are|was|equals|would be|should be)\b:?", re.IGNORECASE)
_BLOCK = re.compile(r"\$\$|\\\[")
_ALTERNATIVE = re.compile(
    r"[\s*(-]*(?:or|and|also|alternatively|maybe|perhaps|wait|actually)\b[^\n]*(?:\n[^\n]{0,40}?)?[\d\\$]",
    re.IGNORECASE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*+(\{)?")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(
    r"\\(?:boxed|fbox)\s*(\\[dt]?frac\s*(?:\{[^{}]*\}|\d)\s*(?:\{[^{}]*\}|\d)|\\sqrt\s*(?:\{[^{}]*\}|\d)"
    r"|\\[A-Za-z]+|-?\d+(?:\.\d+)?|[^\s{}\\$])"
)
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_DELIMITER = re.compile(r"\\[\[\]()$]|\\\\|\$\$|\$|\n")
_CLOSED_BY = {"$$": "$$", "\\[": "\\]", "$": "$", "\\(": "\\)"}
_GROUPED = r"(?<!\d,)\d{1,3}(?:,\d{3})++(?!,?\d)"
_NUMBER = re.compile(
    rf"(?<![A-Za-z_\d])(?:(?<![\w)\].])[-−+])?(?:(?:{_GROUPED}|\d+(?:,\d+)*+)(?:\.\d+)?|\.\d+)"
    r"(?:\s?/\s?\d++(?:\.\d+)?|\s?\\?%)?"
)
MAX_BLOCK = 2_000  # of a displayed formula on lines of its own
MAX_WHOLE = 300


class Place(NamedTuple):
    """Where an answer stands: the whole of it, and its content from `inner` to `end_inner`."""

    start: int
    end: int
    inner: int
    end_inner: int


def answer_lines(text: str) -> Iterator[Place]:
    """ "Answer: ..." with what follows on the line, or on the next one when nothing does."""
    yield from _lines(text, _ANSWER)


def sentences(text: str) -> Iterator[Place]:
    """ "the answer is ..." up to the end of the line."""
    yield from _lines(text, _SENTENCE)


def _lines(text: str, pattern: re.Pattern[str]) -> Iterator[Place]:
    matches = list(pattern.finditer(text))
    for index, match in enumerate(matches):
        bound = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        inner = _first_word(text, match.end(), bound)
        end = _line_end(text, inner, bound)
        if block := _BLOCK.match(text, inner):
            close = text.find(_CLOSED_BY[block[0]], block.end(), min(bound, block.end() + MAX_BLOCK))
            end = _line_end(text, close, bound) if close >= 0 else end
        if other := _ALTERNATIVE.match(text, end, bound):
            end = _line_end(text, other.end(), bound)
        yield Place(match.start(), end, inner, end)


_FILLING = re.compile(r"[\s*_`}]*")


def _first_word(text: str, start: int, bound: int) -> int:
    """Over blanks, line ends, emphasis and a bracket that closes a wrapper."""
    match = _FILLING.match(text, start, bound)
    return match.end() if match else start


def _line_end(text: str, start: int, bound: int) -> int:
    end = text.find("\n", start, bound)
    return bound if end < 0 else end


def boxes(text: str) -> Iterator[Place]:
    r"""Outermost boxes, braces balanced. One that is never closed counts as empty."""
    starts = list(_BOX.finditer(text))
    if not starts:
        return
    closing = _closing_braces(text, {match.end() - 1 for match in starts if match[1]})
    end = -1
    for match in starts:
        if match.start() < end:
            continue
        if match[1]:
            close = closing.get(match.end() - 1)
            end = match.end() if close is None else close + 1
            yield Place(match.start(), end, match.end(), match.end() if close is None else close)
        else:
            bare = _BARE_BOX.match(text, match.start())
            end = bare.end() if bare else match.end()
            yield Place(match.start(), end, bare.start(1) if bare else end, end)


def _closing_braces(text: str, wanted: set[int]) -> dict[int, int]:
    """Where the braces that open at `wanted` close, in one pass."""
    found: dict[int, int] = {}
    stack: list[int] = []
    for match in _BRACE.finditer(text, min(wanted, default=len(text))):
        if match[0] == "{":
            stack.append(match.start())
        elif match[0] == "}" and stack:
            opened = stack.pop()
            if opened in wanted:
                found[opened] = match.start()
    return found


def tags(text: str) -> Iterator[Place]:
    """<answer>...</answer>; the innermost opening counts, one that is never closed is empty."""
    opened: re.Match[str] | None = None
    for match in _TAG.finditer(text):
        if not match[1]:
            opened = match
        elif opened is not None:
            yield Place(opened.start(), match.end(), opened.end(), match.start())
            opened = None
    if opened is not None:
        yield Place(opened.start(), len(text), len(text), len(text))


def formulas(text: str) -> Iterator[Place]:
    """Formulas between dollars, \\( \\) or \\[ \\], and numbers outside of them."""
    end = 0
    opened: re.Match[str] | None = None
    for match in _DELIMITER.finditer(text):
        mark = match[0]
        if opened is None:
            opened = match if mark in _CLOSED_BY else None
        elif mark == _CLOSED_BY[opened[0]]:
            if match.start() > opened.end():
                yield from numbers(text, end, opened.start())
                yield Place(opened.start(), match.end(), opened.end(), match.start())
                end = match.end()
            opened = None
        elif mark in ("\n", "$", "$$") and opened[0] == "$":
            opened = match if mark != "\n" else None  # an inline formula ends with its line
    yield from numbers(text, end, len(text))


def numbers(text: str, start: int = 0, end: int | None = None) -> Iterator[Place]:
    """Numbers as a reader sees them: sign, separators, decimals, fraction bar and percent belong to them."""
    for match in _NUMBER.finditer(text, start, len(text) if end is None else end):
        yield Place(match.start(), match.end(), match.start(), match.end())


def whole(text: str) -> Iterator[Place]:
    """A response of one short line."""
    line = text.strip()
    if 0 < len(line) <= MAX_WHOLE and "\n" not in line:
        start = text.index(line)
        yield Place(start, start + len(line), start, start + len(line))


FINDERS: dict[str, Callable[[str], Iterator[Place]]] = {
    "answer_line": answer_lines,
    "boxed": boxes,
    "tag": tags,
    "sentence": sentences,
    "whole": whole,
    "last_math": formulas,
    "last_number": numbers,
}
