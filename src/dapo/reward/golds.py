"""Which gold answers can be graded. One that can't must never pay: it is refused when the data load."""

from __future__ import annotations

import re
from typing import Any

from dapo.reward.choices import choice
from dapo.reward.clean import MAX_CHARACTERS, MAX_FORMULA, clean, too_long
from dapo.reward.compare import compare
from dapo.reward.forms import Words, texts
from dapo.reward.guard import has_prose
from dapo.reward.read import MAX_WORDS, read
from dapo.reward.values import Rules

ASK = "ask the symbolic stage"
_PLACEHOLDER = re.compile(
    r"(?:none|null|nan|n/?a|unknown|undefined|tbd|todo|error|invalid|\[invalid\]|[?.…\-_*#]+)", re.IGNORECASE
)
_NO_ANSWER = re.compile(r"^(?:answer|solution|see|proof|prove|proven|object|sin|cos|tan|log|ln)\b|\b(?:below|above)$")
_NO_VALUE = re.compile(r"/ ?0+(?![\d.])|\\frac ?\{[^{}]*\} ?\{ ?0+ ?\}|^[\d.]*\.[\d.]*\.[\d.]*$")


def as_text(value: Any) -> str:
    """A gold of any column as text: numbers and one-element lists coerced, anything else "".

    >>> as_text(34.0), as_text(["34"]), as_text(None), as_text(True)
    ('34', '34', '', '')
    """
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else ""


def is_placeholder(gold: str) -> bool:
    """Empty, or a word that stands for a missing answer."""
    return not gold.strip() or _PLACEHOLDER.fullmatch(gold.strip()) is not None


def unusable(gold: str) -> str | None:
    """None, the reason against this gold, or ASK when only the symbolic stage can tell.

    >>> unusable("12"), unusable("N/A"), unusable("1/0")
    (None, 'it is empty or a placeholder', 'it has no value')
    """
    text = clean(gold[: MAX_CHARACTERS + 1])
    if not text or is_placeholder(gold):
        return "it is empty or a placeholder"
    if too_long(gold):
        return f"it is longer than {MAX_CHARACTERS} digits or {MAX_FORMULA} characters"
    if choice(text):
        return None
    form = read(text)
    if isinstance(form, Words):
        prose = len(form.text.split()) > MAX_WORDS or _NO_ANSWER.search(form.text)
        return "it is prose: only the same words would match" if prose else None
    if any(has_prose(part) for part in texts(form)):
        return "it holds prose: only the same words would match"
    if _NO_VALUE.search(text):
        return "it has no value"
    readable, _ = compare(form, form, Rules(lambda gold, pred: None))
    return None if readable is True else ASK
