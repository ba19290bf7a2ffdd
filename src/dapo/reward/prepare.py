r"""A cleaned answer made ready to be split: "the answer is" and "for all x" off, and/or as single marks."""

from __future__ import annotations

import re

from dapo.reward.clean import trim

AND, OR = "\x0e", "\x0f"
_CONNECTOR = re.compile(
    r"\\text\{\s*,?\s*(and|or)\s*\}|(?<![A-Za-z\\{])(and|or)(?![A-Za-z}])|(?<=[\d)\]}])(and|or)(?=[\d(\[\\{]|[A-Za-z]\s*=)"
    r"|\\(land|lor)(?![A-Za-z])"
)
_TEXT = re.compile(r"\\text\{[^{}]*\}")
_INNER_CONNECTOR = re.compile(r"(?<=\w)\s+(and|or)(?![A-Za-z])|(?<=\{)\s*(and|or)\s+(?=\w)")
# Only words that say over what a variable runs; conditions, other answers and numbers stay.
_RANGE = (
    r"(?:(?<![A-Za-z])[A-Za-z](?![A-Za-z])|\\(?:in|mathbb|text|quad|,|[a-z]+(?=[ ,}]))|\{|\}|[ZNRQC]"
    r"|_ ?\{? ?(?:>0|0|\+) ?\}?|, ?[a-z](?= \\in)"
    r"|\b(?:integers?|reals?|natural|numbers?|values?|an|a|the|in|arbitrary|constants?|for|all|any|every|each)\b| )"
)
_QUANTIFIER = re.compile(
    r"[, (]*(?:\\text\{ ?,? ?(?:for (?:all|any|every|each))\b|\\forall(?![A-Za-z])"
    rf"|(?<![A-Za-z\\{{])(?:for (?:all|any|every|each))(?![A-Za-z])){_RANGE}{{0,80}}\)?"
    r"(?=,? ?\\text\{ ?,? ?and ?\}|$)"
)
_OVER_INTEGERS = re.compile(
    r"[, ]+\(?[a-z] ?\\in ?\\mathbb ?\{? ?[ZN] ?\}?(?: ?_ ?\{?0\}?)?\)?$|,? \([a-z] \\in ?\\mathbb\{[ZN]\}\)$"
)
_LEAD = re.compile(
    r"^\s*(?:\\text\{\s*)?(?:(?:so|thus|therefore|hence),?\s+)?(?:(?:the|my|our)\s+)?(?:final\s+)?answers?\s*(?:is|are|:|=)+\s*\}?\s*",
    re.IGNORECASE,
)
_CAPITAL_U = re.compile(r"(?<=[)\]}])\s*U\s*(?=[(\[\\{])")


def prepared(text: str) -> str:
    """A cleaned answer without its lead and quantifiers, connectors as AND and OR."""
    text = _LEAD.sub("", text) if len(text) < 200 else text
    text = _TEXT.sub(lambda m: _INNER_CONNECTOR.sub(lambda c: f"}} \\text{{ {c[1] or c[2]} }} \\text{{", m[0]), text)
    text = re.sub(r"\\text\{\s*\}", " ", text)
    text = trim(_QUANTIFIER.sub("", text)) or text
    if "\\pi" in text:  # a family of angles; behind a bound, "over the integers" is part of the answer
        text = trim(_OVER_INTEGERS.sub("", text)) or text
    text = _CAPITAL_U.sub(r" \\cup ", text)
    return _CONNECTOR.sub(lambda m: AND if "and" in m[0] else OR, text)


def restored(text: str) -> str:
    """LaTeX again, connectors as text."""
    return text.replace(AND, r"\text{ and }").replace(OR, r"\text{ or }").strip()
