"""Exact comparison of integers, decimals and fractions. Nothing is rounded into equality."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_DIGITS = 4000  # longer numbers are refused: Python's own bound on reading integers is 4300

_WRAPPERS = (
    ("\\left", ""), ("\\right", ""), ("\\displaystyle", ""), ("\\!", ""), ("\\,", ","), ("\\;", ""),
    ("\\ ", " "), ("\\(", ""), ("\\)", ""), ("\\[", ""), ("\\]", ""), ("$", ""), ("`", ""),
    ("−", "-"), ("–", "-"), ("\u00a0", " "), ("\u202f", " "), ("\u2009", " "),
    ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"),
)  # fmt: skip
_FULL_WIDTH = str.maketrans("０１２３４５６７８９．，－＋／", "0123456789.,-+/")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|boxed)\s*\{([^{}]*)\}")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)")
_FRACTION = re.compile(r"([-+]?)\\frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_SLASH = re.compile(r"([^/]+)/([^/]+)")


def parse_number(text: str) -> Fraction | None:
    r"""The exact value of an integer, decimal or fraction as models write them, else None.

    Seen through: LaTeX delimiters and spacing, text wrappers, emphasis, Unicode minus and
    full-width digits, thousands separators where they stand right, trailing punctuation.

    >>> parse_number("$12{,}345$."), parse_number("1,2"), parse_number(r"\dfrac{1}{2}")
    (Fraction(12345, 1), None, Fraction(1, 2))
    """
    plain = text.translate(_FULL_WIDTH).replace("{,}", ",")
    for old, new in _WRAPPERS:
        plain = plain.replace(old, new)
    plain = _TEXT.sub(r"\1", plain).strip().strip("*_").strip().rstrip(".,;:。").strip().strip("*_").strip()
    if len(plain) > MAX_DIGITS:
        return None
    if match := _FRACTION.fullmatch(plain):
        sign, top, top_digit, bottom, bottom_digit = match.groups()
        value = _ratio(top or top_digit or "", bottom or bottom_digit or "")
        return -value if value is not None and sign == "-" else value
    if match := _SLASH.fullmatch(plain):
        return _ratio(*match.groups())
    return _decimal(plain)


def _ratio(top: str, bottom: str) -> Fraction | None:
    numerator, denominator = _decimal(top.strip()), _decimal(bottom.strip())
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def _decimal(text: str) -> Fraction | None:
    text = re.sub(r"^([-+])\s+", r"\1", text)
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    if not _DECIMAL.fullmatch(text) or not text.isascii():
        return None
    return Fraction(text)
