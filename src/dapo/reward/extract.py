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
from itertools import pairwise

from dapo.reward.clean import MAX_CHARACTERS, clean
from dapo.reward.places import FINDERS, Place, boxes, numbers, tags
from dapo.reward.read import is_prose
from dapo.reward.split import balanced
from dapo.reward.values import squeezed

_END = re.compile(
    r"<\|(?:im_end|endoftext|eot_id|end_of_text|end|im_start|end▁of▁sentence)\|>|<｜end▁of▁sentence｜>|</s>|<eos>"
)
# What makes a remark a second answer, or takes the first one back, when it comes with a value.
HEDGE = re.compile(
    r"\b(?:or|alternatively|maybe|perhaps|possibly|could|might|may|otherwise|either|else|unless|not|no|wait|actually"
    r"|instead|correction|versus|vs|but|and|also|both|however|too|then|hence|thus|therefore|so|answer|wrong|incorrect"
    r"|neither)\b|n't|或|可能|也许|不",
    re.IGNORECASE,
)
# What takes an answer back without a value.
_DENIAL = re.compile(
    r"\b(?:wrong|incorrect|not (?:right|correct|sure|true)|no wait)\b|n't (?:right|correct)", re.IGNORECASE
)
_VALUE = re.compile(
    r"\d|\\boxed|\$|(?<![A-Za-z\\'])[B-J](?![A-Za-z])|\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten)\b",
    re.IGNORECASE,
)
_EQUALITY = re.compile(r"[^\s,;.]* ?[=+*/<>-] ?[^\s,;]*")  # 2+3=5 explains an answer, it is no second one
# Before a verb: what is said is not the answer.
_DOUBT = re.compile(
    r"\b(?:or|maybe|perhaps|possibly|either|neither|nothing|none|not|no|if|but|wrong|incorrect|doubt|bound|twice|half|double"
    r"|negative|plus|minus|times|mod|modulo|except|square (?:root )?of|of the answer)\b|n't|不",
    re.IGNORECASE,
)
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
_BULLET = re.compile(r"^\s*(?:[-*+>•]\s+)+")  # of a list or a quotation: no minus sign
_WORD = re.compile(r"[^\W\d_]+")
_NUMBERING = re.compile(r"(?:^|\s)\(?[1-9][.)]|\b(?:case|part|option|solution)\s*\(?\d?[.:)]*", re.IGNORECASE)
_LINKS = frozenset("and or vs versus maybe perhaps possibly else alternatively either otherwise 和 或".split())  # noqa: SIM905
MARKED = ("answer_line", "boxed", "tag")
MAX_JOINER = 60  # characters between two answers side by side
MAX_LINKS, MAX_WORDS_BETWEEN = 2, 4  # "and", "or" and the like; other words between two answers
MAX_NEIGHBOURS = 8  # joined on either side
MAX_SIDE = 80  # characters of its line on either side of a box that is an operand
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
    if place.start == place.inner or not raw.strip():  # a bare number; an empty box
        return raw
    if text.startswith(("\\boxed", "\\fbox"), place.start):
        before, after = text[max(0, place.start - MAX_SIDE) : place.start], text[place.end : place.end + MAX_SIDE]
        before, after = _BULLET.sub("", before.rpartition("\n")[2]), after.partition("\n")[0]
        operand = not _alone(re.sub(r"\d ?[,;][\s$]*$", "", before), re.sub(r"^[\s$]*[,;]", "", after))
        return f"{before} \\boxed{{{raw}}} {after}" if operand else _innermost(raw)
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
    line = line.partition("I hope it is correct")[0]  # the end of an answer in a widely used prompt
    for finder in (boxes, tags):
        inside = list(finder(line))
        if inside:
            return _inside(line, inside)
    remark = _REMARK.search(line)
    if remark and remark.start() > 0:
        if _second_answer(line[remark.start() :]):
            return line
        line = line[: remark.start()]
    statement = _STATEMENT.fullmatch(line.strip())
    if statement and not _DOUBT.search(statement[1]) and not is_prose(statement[2]):
        return statement[2]
    return _only_number(line) or line


def _second_answer(remark: str) -> bool:
    """Whether a remark behind an answer offers another value, or takes the answer back."""
    sentences = re.split(r"(?<=[.!?;]) ", remark)
    return _DENIAL.search(remark) is not None or any(
        HEDGE.search(sentence) and _VALUE.search(_EQUALITY.sub(" ", sentence)) for sentence in sentences
    )


def _only_number(line: str) -> str | None:
    """The one number in a sentence ("She has 12 apples left."), when nothing puts it in doubt."""
    if _DOUBT.search(line) or re.search(r"[=<>+*/^\\]|\d ?-|- ?\d", line) or not is_prose(line):
        return None
    found = [line[place.start : place.end] for place in numbers(line)]
    return found[0] if len(found) == 1 and len(_WORD.findall(line)) >= 2 else None


def _inside(line: str, places: list[Place]) -> str:
    """Boxes or tags of a line, together; the whole line when mathematics or a hedge stands around them."""
    before, after = line[: places[0].start], line[places[-1].end :]
    between = " ".join(line[left.end : right.start] for left, right in pairwise(places))
    if _DENIAL.search(line) or any(_hedged(part) for part in (before, after, between)) or not _alone(before, after):
        return line
    contents = [_innermost(line[place.inner : place.end_inner]).strip() for place in places]
    return " ; ".join(dict.fromkeys(contents)) if all(contents) else ""


def _hedged(outside: str) -> bool:
    """Whether words beside a box offer another value, or deny the one inside."""
    words = re.search(r"\b(?:not|or|neither|never)\b|n't|不|或", outside, re.IGNORECASE)
    return bool(words and (_VALUE.search(outside) or re.search(r"\bnot\W*$|不\W*$", outside, re.IGNORECASE)))


_DRESS = " $*_~"  # what may stand between a box and its neighbours
_OPERAND_BEFORE = re.compile(
    r"[-+*/^_<>≤≥\d|]$|\d ?[,;]$|(?:\\d?frac\s*(?:\{[^{}]*\})?|\\sqrt|\^|_)\s*\{$"
    r"|\\(?:cdot|times|div|pm|mp|sqrt|leq?|geq?|neq?|in)$"
)
_OPERAND_AFTER = re.compile(
    r"[-+*/^_<>≤≥\d|!%]|\\%|\\(?:times|cdot|pm|div|le|ge)(?![a-z])|[,;] ?-?\d"
    r"|(?:\\text\{ ?)?(?:hundred|thousand|million|billion)"
)


def _alone(before: str, after: str) -> bool:
    """Whether a box is a whole answer, and no operand of what stands around it."""
    before = re.sub(r"\\[(\[]\s*$", "", before.rstrip(_DRESS)).rstrip(_DRESS)
    after = re.sub(r"^\s*\\[)\]]", "", after.lstrip(_DRESS)).lstrip(_DRESS)
    return _OPERAND_BEFORE.search(before) is None and _OPERAND_AFTER.match(after) is None


def _closed(line: str) -> str:
    """Without the brackets behind the answer that were opened before the line: it stood inside of something."""
    depth = 0
    for index, char in enumerate(line):
        escaped = index > 0 and line[index - 1] == "\\"
        if char == "{" and not escaped:
            depth += 1
        elif char == "}" and not escaped:
            depth -= 1
            if depth < 0:
                return line[:index] if not re.search(r"\w", line[index:]) else line
    return line


def _innermost(content: str) -> str:
    """A box in a box is one box; a few levels are seen through."""
    for _ in range(4):
        match = _WHOLE_BOX.fullmatch(content) if len(content) <= MAX_CHARACTERS else None
        if match is None or not balanced(match[1]):
            break
        content = match[1]
    return content
