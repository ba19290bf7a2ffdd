r"""What may stand on the left of "= answer": one symbol, a function of symbols, a named length or text."""

from __future__ import annotations

import re

_SYMBOL = r"(?:[A-Za-z]|\\(?!frac|sqrt|text|infty|pi(?![a-z])|int|sum|prod|sin|cos|tan|ln|log|lim|binom|circ)[A-Za-z]+)"
_SUB = r"(?:_(?:\{(?:[^{}]|\\text\{[^{}]*\})*\}|\w|\\[A-Za-z]+))?"
_PRIMES = r"(?:'|\^\{?(?:\\prime|\*)\}?)*"
_MARK = r"(?:\\(?:bar|hat|vec|tilde|overline)(?:\{[A-Za-z]+\}|[A-Za-z]))"
_ONE = rf"(?:{_SYMBOL}|{_MARK}){_SUB}{_PRIMES}"
_ARGUMENTS = rf"\({_ONE}(?:,{_ONE})*\)|\(-?\d+(?:,-?\d+)*\)"
_PATTERNS = [
    rf"{_ONE}(?:{_ARGUMENTS})?",
    rf"\\overline\{{[A-Z]{{2,4}}\}}|[A-Z]{{2,4}}{_PRIMES}",
    r"\\(?:angle|triangle)\{?[A-Z]{1,4}\}?",
    r"[A-Z]_\{\\triangle[A-Z]{3}\}|m\\angle[A-Z]{1,3}",
    rf"\({_ONE}(?:,{_ONE})+\)",
    rf"\((?:{_ONE}{_ARGUMENTS})(?:,{_ONE}{_ARGUMENTS})+\)",
    rf"\|{_ONE}\||\|[A-Z]{{2}}\|",
    rf"(?:{_ONE}|[A-Z]{{2,4}}|[A-Z]_\{{\w+\}})(?::(?:{_ONE}|[A-Z]{{2,4}}|[A-Z]_\{{\w+\}}))+",
    r"(?:P|\\Pr|E|\\mathbb\{[EP]\}|\\text\{(?:Var|Cov|Pr)\})[(\[][^()\[\]]{1,40}[)\]]",  # a probability, a mean
    r"\[[A-Z]{3,5}\]",  # an area
    r"\\text\{[^{}=]*\}",
    r"[A-Za-z]{4,}",
]
_NAME = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS))
_DENIAL = re.compile(r"\b(?:not|no|un\w+|in(?:correct|valid)|wrong|except|without|never|false)\b", re.IGNORECASE)
FUNCTION = re.compile(rf"({_SYMBOL}{_SUB}{_PRIMES})\(({_SYMBOL}{_SUB})\)")


def is_name(text: str) -> bool:
    r"""Whether this names one quantity.

    >>> is_name("x"), is_name("f(x)"), is_name(r"x_{1}"), is_name("2x"), is_name("AB"), is_name("x+y")
    (True, True, True, False, True, False)
    """
    text = name_key(text)
    return len(text) <= 80 and _NAME.fullmatch(text) is not None and not denies(text)


def denies(label: str) -> bool:
    """Whether a label says what the answer is not."""
    return _DENIAL.search(label) is not None


def name_key(text: str) -> str:
    """A name without blanks, and without braces around a subscript of one character."""
    worded = re.fullmatch(r"\s*\\text\{([^{}]*)\}\s*|\s*([A-Za-z ]{4,})", text)
    if worded:
        return " ".join((worded[1] or worded[2] or "").casefold().split()) or text
    return re.sub(r"_\{(\w)\}", r"_\1", re.sub(r"\s+", "", text))
