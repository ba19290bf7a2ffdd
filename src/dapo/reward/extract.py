r"""Find the final answer in a response: an ordered list of policies, the last place of each.

Only text before the first end-of-text marker and after the last `</think>` counts. The first policy
that finds a place decides; a place that is empty (an empty box) ends the search, so a number elsewhere
never stands in for it. Answers side by side ("\boxed{5} or \boxed{7}", two answer lines in a row) are
one answer with several parts: they answer a gold with those parts, and nothing else. So a hedge does
not pay, while an answer that was given, taken back and given anew counts as the last one.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from dapo.reward.clean import MAX_CHARACTERS, clean
from dapo.reward.places import FINDERS, Place, boxes, tags
from dapo.reward.read import is_prose
from dapo.reward.split import balanced
from dapo.reward.values import squeezed

_END = re.compile(
    r"<\|(?:im_end|endoftext|eot_id|end_of_text|end|im_start|end▁of▁sentence)\|>|<｜end▁of▁sentence｜>|</s>|<eos>"
)
# What makes a remark a second answer, or takes the first one back.
HEDGE = re.compile(
    r"\b(?:or|alternatively|maybe|perhaps|possibly|could|might|may|otherwise|either|else|unless|not|no|wait|actually"
    r"|instead|correction|versus|vs)\b|或|可能|也许|不",
    re.IGNORECASE,
)
_DOUBT = re.compile(r"\b(?:or|maybe|perhaps|possibly|either|not|no)\b", re.IGNORECASE)  # before a verb
_CONCLUSION = re.compile(r"\b(?:hence|thus|therefore|so)\b[^.]*\d", re.IGNORECASE)
_REMARK = re.compile(
    r"\. (?=[A-Z(])|。 ?(?=\S)"
    r"|[,;(—–-]? ?\b(?:because|since|which|where|as (?:we|required|shown|desired|expected|above)"
    r"|so that|it|I hope|hence|thus|therefore|is the (?:final )?answer|QED)\b"
    r"| \((?!sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|max|min|gcd|pi\b)(?=[A-Za-z]{2,})"
)
# "The volume of the box is 120": what follows the verb, when it is an answer and not more prose.
_STATEMENT = re.compile(
    r"([A-Z][^=.]{0,120}? (?:is|are|equals|was)|[\u4e00-\u9fff，, ]{0,30}?(?:应该是|应为|等于|是|为)"
    r"|(?:[Ss]o|[Tt]hus|[Ww]e (?:get|have|find|obtain)|[Ee]xactly|[Ii]t is|[Tt]he number),?) ?:? ?(?!not\b)(\S.*)",
    re.DOTALL,
)
_WHOLE_BOX = re.compile(r"\s*\\(?:boxed|fbox)\s*\{(.*)\}\s*", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]+")
_NUMBERING = re.compile(r"(?:^|\s)\(?[1-9][.)]|\b(?:case|part|option|solution)\s*\(?\d?[.:)]*", re.IGNORECASE)
_LINKS = frozenset("and or vs versus maybe perhaps possibly else alternatively either otherwise 和 或".split())  # noqa: SIM905
MARKED = ("answer_line", "boxed", "tag")
MAX_JOINER = 60  # characters between two answers side by side
MAX_LINKS, MAX_WORDS_BETWEEN = 2, 4  # "and", "or" and the like; other words between two answers
MAX_NEIGHBOURS = 8  # joined on either side
MAX_PART = 300  # characters of an answer that is joined with others


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
        policies: names out of FINDERS, tried in order; the first that finds its place decides.

    >>> extract("Thus 4.\nAnswer: 5", ["answer_line", "last_number"])
    ('5', 'answer_line')
    >>> extract("so \\boxed{} and 5", ["boxed", "last_number"])
    (None, 'boxed')
    >>> extract("\\boxed{5} or \\boxed{7}", ["boxed"])
    ('5 ; 7', 'boxed')
    """
    shown = visible(text)
    for name in policies:
        last = next(iter(deque(FINDERS[name](shown), maxlen=1)), None)
        if last is None or (name == "whole" and is_prose(shown.strip())):
            continue
        parts = _beside(shown, last, name, policies)
        contents = {_key(part): part for part in (_content(shown, place) for place in parts)}
        answer = " ; ".join(contents.values()) if len(contents) > 1 else _content(shown, last)
        return answer.strip() or None, name
    return None, ""


def _key(content: str) -> str:
    return squeezed(clean(content[:MAX_CHARACTERS]))


def _content(text: str, place: Place) -> str:
    """What a place says, without remarks."""
    raw = text[place.inner : place.end_inner]
    if text.startswith(("\\boxed", "\\fbox"), place.start):
        return _innermost(raw)
    return _line_content(raw)


def _beside(text: str, last: Place, name: str, policies: Sequence[str]) -> list[Place]:
    """The last place with the marked answers that stand right beside it."""
    if name in ("last_number", "whole", "sentence"):
        return [last]
    names = [other for other in policies if other in MARKED] if name in MARKED else [name]
    places = [place for other in names for place in FINDERS[other](text)]
    outer = _outermost([place for place in places if place.start < place.inner or name in MARKED])  # no bare numbers
    index = next((i for i, place in enumerate(outer) if place.start <= last.start < place.end), None)
    if index is None or outer[index] != last:
        return [last]
    first = final = index
    while first > max(0, index - MAX_NEIGHBOURS) and _joined(text, outer[first - 1], outer[first]):
        first -= 1
    while final + 1 < min(len(outer), index + MAX_NEIGHBOURS) and _joined(text, outer[final], outer[final + 1]):
        final += 1
    return outer[first : final + 1]


def _outermost(places: list[Place]) -> list[Place]:
    """In order, without places that lie inside another."""
    kept: list[Place] = []
    for place in sorted(places, key=lambda p: (p.start, -p.end)):
        if not kept or place.start >= kept[-1].end:
            kept.append(place)
    return kept


def _joined(text: str, left: Place, right: Place) -> bool:
    """Nothing but punctuation and numbering, or a few linking words, between two readable answers."""
    between = text[left.end : right.start]
    if len(between) > MAX_JOINER:
        return False
    bare = _NUMBERING.sub(" ", re.sub(r"\\(?:quad|qquad|text|mbox|textbf)", " ", between))
    words = [word.casefold() for word in _WORD.findall(bare)]
    links = sum(word in _LINKS for word in words)
    linked = not words or (0 < links <= MAX_LINKS and len(words) - links <= MAX_WORDS_BETWEEN)
    return linked and not re.search(r"\d", bare) and all(_readable(_content(text, place)) for place in (left, right))


@lru_cache(maxsize=4096)
def _readable(content: str) -> bool:
    return 0 < len(content.strip()) <= MAX_PART and not is_prose(content)


def _line_content(raw: str) -> str:
    """The answer in a line: its boxes or tags if it has any, else what stands before a remark."""
    line = _closed(" ".join(raw[:MAX_CHARACTERS].split()))
    for finder in (boxes, tags):
        inside = list(finder(line))
        if inside:
            return _inside(line, inside)
    remark = _REMARK.search(line)
    if remark and remark.start() > 0:
        tail = line[remark.start() + 1 :].partition(". ")[0]  # its first sentence
        line = line if HEDGE.search(tail) or _CONCLUSION.search(tail) else line[: remark.start()]
    statement = _STATEMENT.fullmatch(line.strip())
    if statement and not _DOUBT.search(statement[1]) and not is_prose(statement[2]):
        return statement[2]
    return line


def _inside(line: str, places: list[Place]) -> str:
    """Boxes or tags of a line, together; the whole line when a hedge stands outside of them."""
    outside, end = "", 0
    for place in places:
        outside, end = outside + " " + line[end : place.start], place.end
    if HEDGE.search(outside + " " + line[end:]):
        return line
    contents = [_innermost(line[place.inner : place.end_inner]).strip() for place in places]
    return " ; ".join(dict.fromkeys(contents)) if all(contents) else ""


def _closed(line: str) -> str:
    """Up to a bracket that closes what was opened before the line: the line stood inside of something."""
    depth = 0
    for index, char in enumerate(line):
        escaped = index > 0 and line[index - 1] == "\\"
        if char in "{([" and not (escaped and char != "{"):
            depth += 1
        elif char == "}" and depth == 0 and not escaped:
            return line[:index]
        elif char in "})]" and depth > 0 and not (escaped and char != "}"):
            depth -= 1
    return line


def _innermost(content: str) -> str:
    """A box in a box is one box; a few levels are seen through."""
    for _ in range(4):
        match = _WHOLE_BOX.fullmatch(content) if len(content) <= MAX_CHARACTERS else None
        if match is None or not balanced(match[1]):
            break
        content = match[1]
    return content
