r"""Find the final answer in a response: an ordered list of policies, the last place of each.

Only text before the first end-of-text marker and after the last `</think>` counts. The first policy
that finds a place decides; a place that is empty (an empty box) ends the search, so a number elsewhere
never stands in for it. Answers side by side ("\boxed{5} or \boxed{7}", two answer lines in a row) are
one answer with several parts: they answer a gold with those parts, and nothing else. So a hedge does
not pay, while an answer that was given, taken back and given anew counts as the last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dapo.reward.clean import MAX_CHARACTERS, clean
from dapo.reward.compare import squeezed
from dapo.reward.read import is_prose
from dapo.reward.split import balanced

_END = re.compile(
    r"<\|(?:im_end|endoftext|eot_id|end_of_text|end|im_start|end▁of▁sentence)\|>|<｜end▁of▁sentence｜>|</s>|<eos>"
)
_ANSWER = re.compile(r"(?:answer|答案)[*_`\s]*+(?:is[*_`\s]*+)?[:：][*_`]*[^\S\n]*(?:\n\s*)?([^\n]*)", re.IGNORECASE)
_SENTENCE = re.compile(r"\banswer\s+(?:is|are|was|equals|would be|should be)\b:?\s*([^\n]*)", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=(\{)?)")
_WHOLE_BOX = re.compile(r"\s*\\(?:boxed|fbox)\s*\{(.*)\}\s*", re.DOTALL)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\\[A-Za-z]+|-?\d+(?:\.\d+)?|[^\s{}\\$])")
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|(?<!\\)\$((?:\\.|[^\n$\\])+)\$|\\\((.+?)\\\)", re.DOTALL)
_GROUPED = r"(?<!\d,)\d{1,3}(?:,\d{3})++(?!,?\d)"
_NUMBER = re.compile(
    rf"(?<![A-Za-z_\d])(?:(?<![\w)\].])[-−+])?(?:(?:{_GROUPED}|\d+(?:,\d+)*+)(?:\.\d+)?|\.\d+)(?:\s*/\s*\d++(?:\.\d+)?|\s*\\?%)?"
)
_REMARK = re.compile(
    r"\.\s+(?=[A-Z(])|。\s*(?=\S)"
    r"|\s*[,;(—–-]?\s*\b(?:because|since|which|where|as we|so that|it|I hope|hence|thus|therefore)\b"
    r"|\s+\((?=[A-Za-z]+ +[A-Za-z]+)|\*\*\s+(?=[A-Za-z])"
)  # fmt: skip
# "The volume of the box is 120": what follows the verb, when it is an answer and not more prose.
_STATEMENT = re.compile(
    r"(?:[A-Z][^=.]{0,120}?\s(?:is|are|equals|was)"
    r"|[\u4e00-\u9fff，, ]{0,30}?(?:应该是|应为|等于|是|为))\s*:?\s*(?!not\b)(\S.*)",
    re.DOTALL,
)
_JOIN_WORDS = re.compile(r"[^\W\d_]+")
MAX_JOINER = 60
MAX_WHOLE = 300
MARKED = ("answer_line", "boxed", "tag")


class Place(NamedTuple):
    """Where an answer stands: the whole of it, and its content."""

    start: int
    end: int
    content: str


def visible(text: str) -> str:
    """The part of a response that counts."""
    end = _END.search(text)
    text = text[: end.start()] if end else text
    text = text.rpartition("</think>")[2]
    return text.partition("<think>")[0]


def extract(text: str, policies: Sequence[str]) -> tuple[str | None, str]:
    r"""(answer or None, name of the policy that decided).

    Args:
        text: the response, decoded up to its first EOS.
        policies: names out of POLICIES, tried in order; the first that finds its place decides.

    >>> extract("Thus 4.\nAnswer: 5", ["answer_line", "last_number"])
    ('5', 'answer_line')
    >>> extract("so \\boxed{} and 5", ["boxed", "last_number"])
    (None, 'boxed')
    >>> extract("\\boxed{5} or \\boxed{7}", ["boxed"])
    ('5 ; 7', 'boxed')
    """
    shown = visible(text)
    for name in policies:
        places = list(POLICIES[name](shown))
        if places:
            answer = _with_neighbours(shown, places, name, policies)
            return answer.strip() or None, name
    return None, ""


def _with_neighbours(text: str, places: list[Place], name: str, policies: Sequence[str]) -> str:
    """The last place, joined with the marked answers that stand right beside it."""
    last = places[-1]
    if name not in MARKED and name != "last_math":
        return last.content
    if name in MARKED:
        for other in policies:
            if other in MARKED and other != name:
                places = places + list(POLICIES[other](text))
    outer = _outermost(places)
    index = next((i for i, place in enumerate(outer) if place.start <= last.start < place.end), None)
    if index is None or outer[index].end < last.end:
        return last.content
    first = final = index
    while first > 0 and _joined(text, outer[first - 1], outer[first]):
        first -= 1
    while final + 1 < len(outer) and _joined(text, outer[final], outer[final + 1]):
        final += 1
    contents = {squeezed(clean(p.content[:MAX_CHARACTERS])): p.content for p in outer[first : final + 1]}
    if first == final or len(contents) == 1:
        return last.content
    return " ; ".join(content.strip() for content in contents.values())


def _outermost(places: list[Place]) -> list[Place]:
    """In order, without places that lie inside another."""
    kept: list[Place] = []
    for place in sorted(places, key=lambda p: (p.start, -p.end)):
        if not kept or place.start >= kept[-1].end:
            kept.append(place)
    return kept


def _joined(text: str, left: Place, right: Place) -> bool:
    """Nothing but punctuation, or a few words with and/or, between two readable answers."""
    between = text[left.end : right.start]
    if len(between) > MAX_JOINER or not left.content.strip() or not right.content.strip():
        return False
    bare = re.sub(r"\\(?:quad|qquad|text|mbox|textbf)", " ", between)
    words = [word.lower() for word in _JOIN_WORDS.findall(bare)]
    linked = not words or (len(words) <= 3 and any(word in ("and", "or", "和", "或") for word in words))
    if re.search(r"\d", between) or "=" in between or not linked:
        return False
    return not is_prose(left.content) and not is_prose(right.content)


def _answer_line(text: str) -> Iterator[Place]:
    for match in _ANSWER.finditer(text):
        yield Place(match.start(), match.end(), _line_content(match[1]))


def _sentence(text: str) -> Iterator[Place]:
    for match in _SENTENCE.finditer(text):
        yield Place(match.start(), match.end(), _line_content(match[1]))


def _line_content(line: str) -> str:
    """The answer in a line: its boxes if it has any, else what stands before a remark."""
    boxes = list(_boxed(line))
    if boxes:
        joined = " ; ".join(dict.fromkeys(box.content.strip() for box in boxes))
        return joined if all(box.content.strip() for box in boxes) else ""
    tags = list(_tag(line))
    if tags:
        return tags[-1].content
    remark = _REMARK.search(line)
    line = line[: remark.start()] if remark and remark.start() > 0 else line
    statement = _STATEMENT.fullmatch(line.strip())
    return statement[1] if statement and not is_prose(statement[1]) else line


def _boxed(text: str) -> Iterator[Place]:
    r"""Outermost boxes, braces balanced. One that is never closed counts as empty."""
    starts = list(_BOX.finditer(text))
    if not starts:
        return
    closing = _closing_braces(text, {match.end() for match in starts if match[1]})
    end = -1
    for match in starts:
        if match.start() < end:
            continue
        if match[1]:
            close = closing.get(match.end())
            content = "" if close is None else text[match.end() + 1 : close]
            end = match.end() if close is None else close + 1
        else:
            bare = _BARE_BOX.match(text, match.start())
            content, end = (bare[1], bare.end()) if bare else ("", match.end())
        yield Place(match.start(), end, _innermost(content))


def _innermost(content: str) -> str:
    """A box in a box is one box; a few levels are seen through."""
    for _ in range(4):
        match = _WHOLE_BOX.fullmatch(content) if len(content) <= MAX_CHARACTERS else None
        if match is None or not balanced(match[1]):
            break
        content = match[1]
    return content


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


def _tag(text: str) -> Iterator[Place]:
    """<answer>...</answer>; the innermost opening counts, one that is never closed is empty."""
    opened: re.Match[str] | None = None
    for match in _TAG.finditer(text):
        if not match[1]:
            opened = match
        elif opened is not None:
            inner = text[opened.end() : match.start()]
            yield Place(opened.start(), match.end(), _line_content(inner) if len(inner) < MAX_CHARACTERS else inner)
            opened = None
    if opened is not None:
        yield Place(opened.start(), len(text), "")


def _whole(text: str) -> Iterator[Place]:
    """A response that is nothing but an answer: one line without prose."""
    line = text.strip()
    if 0 < len(line) <= MAX_WHOLE and "\n" not in line and not is_prose(line):
        yield Place(0, len(text), line)


def _last_math(text: str) -> Iterator[Place]:
    """Formulas between dollars or brackets, and numbers outside of them."""
    end = 0
    for match in _FORMULA.finditer(text):
        yield from _last_number(text, end, match.start())
        yield Place(match.start(), match.end(), next(group for group in match.groups() if group))
        end = match.end()
    yield from _last_number(text, end, len(text))


def _last_number(text: str, start: int = 0, end: int | None = None) -> Iterator[Place]:
    for match in _NUMBER.finditer(text, start, len(text) if end is None else end):
        yield Place(match.start(), match.end(), match[0])


POLICIES: dict[str, Callable[[str], Iterator[Place]]] = {
    "answer_line": _answer_line,
    "boxed": _boxed,
    "tag": _tag,
    "sentence": _sentence,
    "whole": _whole,
    "last_math": _last_math,
    "last_number": _last_number,
}
