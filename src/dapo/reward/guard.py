r"""Turns away, before any algebra, expressions whose evaluation cannot end or cannot fit.

A cheap look at the text: power towers, huge powers, factorials, binomials and sums, deep nesting.
The worker's own limit stands behind it; this only saves its two seconds.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 2_000
MAX_NESTING = 40
MAX_TOWER = 2  # exponents inside exponents
MAX_POWER_DIGITS = 20_000  # of an integer power written out
MAX_FACTORIAL = 2_000
MAX_BINOMIAL = 10_000
MAX_TERMS = 10_000  # of a sum or product with numeric bounds
MAX_DIGITS = 4_000  # of one integer

_POWER = re.compile(r"(\d+)\s*\}?\s*\^\s*[{(]?\s*-?(\d+)(?:\s*\^\s*[{(]?\s*(\d+))?")
_FACTORIAL = re.compile(r"(\d+)\s*\)?\s*!")
_BINOMIAL = re.compile(r"\\binom\s*\{\s*(\d+)")
_CHOOSE = re.compile(r"(\d+)\s*\\choose")
_SERIES = re.compile(r"\\(?:sum|prod)(?![A-Za-z])")
_BOUND = re.compile(r"\^\s*\{?\s*(\d+)")
_LONG = re.compile(r"\d{%d}" % (MAX_DIGITS + 1))  # noqa: UP031


def refuse(text: str) -> str | None:
    r"""Why algebra is not asked about this expression, or None.

    >>> refuse("5^{5^{5^{5}}}"), refuse("2^{100}"), refuse("100000!")
    ('a power tower', None, 'a huge factorial')
    """
    if len(text) > MAX_CHARACTERS:
        return "too long"
    deep, tower = _nesting(text)
    if deep > MAX_NESTING:
        return "nested too deep"
    if tower > MAX_TOWER:
        return "a power tower"
    if _LONG.search(text):
        return "a huge integer"
    if any(_power_digits(*match.groups()) > MAX_POWER_DIGITS for match in _POWER.finditer(text)):
        return "a huge power"
    if re.search(r"![)}\s]*!", text) or any(_above(m[1], MAX_FACTORIAL) for m in _FACTORIAL.finditer(text)):
        return "a huge factorial"
    if any(_above(m[1], MAX_BINOMIAL) for pattern in (_BINOMIAL, _CHOOSE) for m in pattern.finditer(text)):
        return "a huge binomial"
    series = list(_SERIES.finditer(text))
    if any(_above(m[1], MAX_TERMS) for start in series for m in _BOUND.finditer(text, start.end())):
        return "a long sum"
    return "nested sums" if len(series) > 3 else None


def _above(digits: str, bound: int) -> bool:
    return len(digits) > 9 or int(digits) > bound


def _power_digits(base: str, exponent: str, upper: str | None) -> float:
    """About the number of digits of base^(exponent^upper)."""
    if len(exponent) > 9 or (upper and len(upper) > 3):
        return float("inf")
    if int(base[:20]) <= 1 and len(base) == 1:
        return 1.0
    power = float(int(exponent)) ** int(upper) if upper and int(upper) * len(exponent) < 300 else float(int(exponent))
    if upper and int(upper) * len(exponent) >= 300:
        return float("inf")
    return len(base) * power


def _nesting(text: str) -> tuple[int, int]:
    """(deepest bracket nesting, deepest exponent in exponent)."""
    stack: list[bool] = []
    deep = tower = 0
    after_caret = False
    chain = 0
    for char in text:
        if char in "{([":
            stack.append(after_caret)
            deep = max(deep, len(stack))
        elif char in "})]" and stack:
            stack.pop()
        if char == "^":
            chain = sum(stack) + 1
            tower = max(tower, chain)
        after_caret = char == "^" or (after_caret and char.isspace())
    return deep, tower


_WORD = re.compile(
    r"(?<![A-Za-z\\{])(?:[A-Za-z]{4,}|is|the|not|and|for|are|was|if|but|can|all|any|has|so|or|of|to|Or|And|Is|The|Not)(?![A-Za-z{])"
)
_FOREIGN = re.compile(r"[^\W\d_a-zA-Z]")  # letters of other scripts; Greek ones are commands by now
_NAMED_FUNCTION = re.compile(
    r"(?<![A-Za-z\\{])(?:sinh|cosh|tanh|sqrt|frac|arcsin|arccos|arctan|sign|floor|ceil)(?![A-Za-z])"
)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[^{}]*\}")


def has_prose(text: str) -> bool:
    r"""Whether a cleaned text holds words that are no mathematics: \text{...}, or words of four letters and more.

    >>> has_prose("2xy + abc"), has_prose("the value is 5"), has_prose(r"5 \text{ or so}")
    (False, True, True)
    """
    if "\\text" in text or _FOREIGN.search(text):
        return True
    return _WORD.search(_NAMED_FUNCTION.sub(" ", _ENVIRONMENT.sub(" ", text))) is not None


# Derivatives, inverse functions, arithmetic with infinity: math-verify drops or folds them.
_SPELLING_ONLY = re.compile(
    r"'|\\prime|\b[A-Za-z] ?\^ ?\{? ?-1 ?\}? ?\(|\\infty(?=.*[+*/^\d]|\s*[+-])|[\d+*/)] ?\\infty|\\ldots"
    r"|\\(?:gcd|lcm|text|operatorname)(?![A-Za-z])|(?<![A-Za-z])(?:gcd|lcm)(?![A-Za-z])"
)
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")


def screen(gold: str, pred: str) -> str | None:
    """Why a pair is not worth asking algebra about, or None."""
    if has_prose(gold) or has_prose(pred):
        return "words"
    if _SPELLING_ONLY.search(gold) or _SPELLING_ONLY.search(pred):
        return "only the same spelling is equal"
    ours, theirs = (set(_LETTER.findall(text)) for text in (gold, pred))
    if ours != theirs and {a.lower() for a in ours} == {b.lower() for b in theirs}:
        return "another letter case"  # which math-verify does not see
    return refuse(gold) or refuse(pred)
