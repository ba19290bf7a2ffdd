r"""Numbers as they are written out, read exactly. Nothing is rounded into equality.

Read: integers of any size up to clean.MAX_CHARACTERS digits, decimals, repeating decimals
(0.\overline{3}), fractions of those, mixed numbers (1\frac{1}{4}), powers of ten (1.2\times 10^{3},
1.2e3). A sum, a product or a root is no number written out: read_number gives None.
"""

from __future__ import annotations

import re
from fractions import Fraction

from dapo.reward.clean import clean

MAX_EXPONENT = 4000  # of a power of ten

_DIGITS = r"(?:\d+(?:\.\d*)?|\.\d+)"
_THOUSANDS = re.compile(r"\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?:\.\d+)?")
_DECIMAL_COMMA = re.compile(r"0,\d{3,}")
_DECIMAL = re.compile(_DIGITS)
_REPEATING = re.compile(r"(\d*)\.(\d*)(?:(?:\\overline|\\bar|\\dot)\s*(?:\{(\d+)\}|(\d))|\((\d+)\))")
_FRACTION = re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_SLASH = re.compile(r"([^/]+)/([^/]+)")
_MIXED = re.compile(r"(\d+)\s*(\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\})|(\d+)\s+(\d+\s*/\s*\d+)")
_POWER = re.compile(
    rf"(?:([-+]?{_DIGITS})\s*(?:\\times|\\cdot|x|X)\s*)?10\s*\^\s*(?:\{{\s*([-+]?\d+)\s*\}}|\(\s*([-+]?\d+)\s*\)|(-?\d+))"
)
_SCIENTIFIC = re.compile(rf"({_DIGITS})[eE]([-+]?\d+)")
_CHUNK = 4000  # digits that Python reads at once


def parse_number(text: str) -> Fraction | None:
    r"""The exact value of a number written out in any spelling that `clean` knows, else None.

    >>> parse_number("$12{,}345$."), parse_number("1,2"), parse_number(r"1\tfrac14")
    (Fraction(12345, 1), None, Fraction(5, 4))
    """
    return read_number(clean(text))


def read_number(text: str) -> Fraction | None:
    """The value of a cleaned text that is one number written out, else None."""
    text = _ungrouped(text.strip())
    sign = 1
    if text[:1] in ("-", "+"):
        sign, text = (-1 if text[0] == "-" else 1), _ungrouped(text[1:].lstrip())
    if not text or not text.isascii():
        return None
    value = _unsigned(text)
    return None if value is None else sign * value


def _ungrouped(text: str) -> str:
    """A number may stand in brackets of its own: (5), {5}."""
    for opening, closing in ("()", "{}"):
        inner = text[1:-1]
        if text[:1] == opening and text[-1:] == closing and not {opening, closing, ","} & set(inner):
            text = inner.strip()
    return text


def _unsigned(text: str) -> Fraction | None:
    plain = _decimal(text)
    if plain is not None:
        return plain
    if match := _MIXED.fullmatch(text):
        part = _unsigned(match[2] or match[4])
        return None if part is None or part >= 1 else _integer(match[1] or match[3]) + part
    if match := _FRACTION.fullmatch(text) or _SLASH.fullmatch(text):
        return _ratio(match[1], match[2])
    if match := _POWER.fullmatch(text):
        exponent = _exponent(match[2] or match[3] or match[4])
        mantissa = read_number(match[1]) if match[1] else Fraction(1)
        return None if exponent is None or mantissa is None else mantissa * Fraction(10) ** exponent
    if match := _SCIENTIFIC.fullmatch(text):
        exponent = _exponent(match[2])
        mantissa = _decimal(match[1])
        return None if exponent is None or mantissa is None else mantissa * Fraction(10) ** exponent
    if match := _REPEATING.fullmatch(text):
        return _repeating(match[1], match[2], match[3] or match[4] or match[5])
    return None


def _exponent(digits: str) -> int | None:
    return int(digits) if len(digits) <= 5 and abs(int(digits)) <= MAX_EXPONENT else None


def _ratio(top: str, bottom: str) -> Fraction | None:
    numerator, denominator = _plain(top), _plain(bottom)
    return None if numerator is None or not denominator else numerator / denominator


def _plain(text: str) -> Fraction | None:
    """A signed integer or decimal, brackets allowed; no fraction in a fraction."""
    text = _ungrouped(text.strip())
    sign = -1 if text[:1] == "-" else 1
    value = _decimal(_ungrouped(text[1:].strip() if text[:1] in ("-", "+") else text))
    return None if value is None else sign * value


def _decimal(text: str) -> Fraction | None:
    if _THOUSANDS.fullmatch(text) and not text.startswith("0,"):
        text = text.replace(",", "").replace(" ", "")
    elif _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    if not _DECIMAL.fullmatch(text):
        return None
    whole, _, part = text.partition(".")
    value = Fraction(_integer(whole or "0"))
    return value + Fraction(_integer(part), 10 ** len(part)) if part else value


def _integer(digits: str) -> int:
    """int() of any length: Python itself refuses more than 4300 digits at once."""
    value = 0
    for start in range(0, len(digits), _CHUNK):
        chunk = digits[start : start + _CHUNK]
        value = value * 10 ** len(chunk) + int(chunk)
    return value


def _repeating(whole: str, fixed: str, period: str) -> Fraction:
    first = Fraction(_integer(whole or "0"))
    if fixed:
        first += Fraction(_integer(fixed), 10 ** len(fixed))
    return first + Fraction(_integer(period), (10 ** len(period) - 1) * 10 ** len(fixed))
