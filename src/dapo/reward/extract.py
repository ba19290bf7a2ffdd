"""Find the final answer in a response: an ordered list of policies, the last occurrence of each.

Only text after the last `</think>` counts. A policy that finds its place empty (an empty box)
ends the search: a number elsewhere never stands in for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_ANSWER = re.compile(r"(?:answer|答案)[*_`\s]*+(?:is[*_`\s]*+)?[:：][*_`]*[ \t]*([^\n]*)", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_THOUSANDS = r"(?<!\d,)\d{1,3}(?:,\d{3})++(?!,?\d)"
_NUMBER = re.compile(rf"(?:(?<![\w)\].])[-−+])?(?:(?:{_THOUSANDS}|\d+)(?:\.\d+)?|\.\d+)(?:\s*/\s*\d++(?:\.\d+)?)?")


def extract(text: str, policies: Sequence[str]) -> tuple[str | None, str]:
    """(answer or None, name of the policy that decided).

    Args:
        text: the response, decoded up to its first EOS.
        policies: names out of POLICIES, tried in order; the first that finds its place decides.

    >>> extract("Thus 4.\\nAnswer: 5", ["answer_line", "last_number"])
    ('5', 'answer_line')
    >>> extract("so \\\\boxed{} and 5", ["boxed", "last_number"])
    (None, 'boxed')
    """
    visible = text.rpartition("</think>")[2]
    for name in policies:
        found = POLICIES[name](visible)
        if found is not None:
            return found.strip() or None, name
    return None, ""


def _answer_line(text: str) -> str | None:
    matches = _ANSWER.findall(text)
    return matches[-1] if matches else None


def _boxed(text: str) -> str | None:
    """Content of the last box, braces balanced; an unclosed box counts as empty."""
    starts = list(_BOX.finditer(text))
    if not starts:
        return None
    begin = starts[-1].end()
    depth = 1
    for place in range(begin, len(text)):
        escaped = place > 0 and text[place - 1] == "\\"
        if text[place] == "{" and not escaped:
            depth += 1
        elif text[place] == "}" and not escaped:
            depth -= 1
            if depth == 0:
                return text[begin:place]
    return ""


def _last_number(text: str) -> str | None:
    matches = _NUMBER.findall(text)
    return matches[-1] if matches else None


POLICIES: dict[str, Callable[[str], str | None]] = {
    "answer_line": _answer_line,
    "boxed": _boxed,
    "last_number": _last_number,
}
