"""Symbolic equality of two expressions: math-verify reads them, and judges what numbers cannot.

Runs in a worker process alone (dapo.reward.worker): it may take for ever. Two readings that are
plain expressions are compared first by value, exactly where they are rational and otherwise to many
digits at fixed points; a difference there is a difference. This settles most pairs without simplify,
and keeps math-verify's known false positives out (tiny powers, surds rounded to floats, huge
factorials one apart). What has no value at those points goes to math-verify's own comparison.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify

DIGITS = 120  # of a constant
DIGITS_AT_POINT = 40
# Units are ours to judge: left on, `\\frac{1}{2}m` would lose its m.
_SPELLING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
)
_BOXED = [
    LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False, normalization_config=_SPELLING)
]
_DECIMAL = re.compile(r"(?<![\w.^_])(\d*)\.(\d+)(?![\w.])|(?<=[{(])(\d*)\.(\d+)(?=[})])")
_WHOLE_ONLY = (sympy.floor, sympy.ceiling, sympy.factorial, sympy.binomial, sympy.Sum, sympy.Product, sympy.Mod)
# Where expressions are compared. Fixed, so that a verdict is a function of its two texts alone.
_POINTS = [Fraction(*pair) for pair in ((13, 7), (-9, 11), (23, 5), (-17, 6), (5, 13))]
_WHOLE_POINTS = [Fraction(n) for n in (2, 3, 5, 8, 13, 22)]


def leaf(gold: str, pred: str) -> bool:
    """Whether two cleaned LaTeX expressions or equations are equal. May not return."""
    ours, theirs = _read(gold), _read(pred)
    if ours is None or theirs is None:
        return False
    if isinstance(ours, sympy.Expr) and isinstance(theirs, sympy.Expr):
        by_value = _equal_by_value(ours, theirs)
        if by_value is not None:
            return by_value
    if isinstance(ours, sympy.Eq) and isinstance(theirs, sympy.Eq) and _proportional(ours, theirs):
        return True
    return bool(verify(ours, theirs, strict=True, allow_set_relation_comp=True, timeout_seconds=None))


def readable(text: str) -> bool:
    """Whether math-verify finds an expression in it."""
    return _read(text) is not None


@lru_cache(maxsize=512)
def _read(text: str) -> Any:
    exact = _DECIMAL.sub(_as_fraction, text)
    found = parse(f"\\boxed{{{exact}}}", _BOXED, fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


def _as_fraction(match: re.Match[str]) -> str:
    whole, part = match[1] or match[3] or "", match[2] or match[4]
    return f"\\frac{{{int(whole + part)}}}{{{10 ** len(part)}}}"


def _equal_by_value(ours: Any, theirs: Any) -> bool | None:
    ours, theirs = _with_imaginary_unit(ours), _with_imaginary_unit(theirs)
    symbols = sorted({symbol.name for side in (ours, theirs) for symbol in side.free_symbols})
    if not symbols:
        return _constants(ours, theirs)
    whole = any(side.has(*_WHOLE_ONLY) or _alternates(side) for side in (ours, theirs))
    points = _WHOLE_POINTS if whole else _POINTS
    compared = 0
    for values in _places(symbols, points):
        left, right = _at(ours, values), _at(theirs, values)
        if left is None or right is None:
            continue
        if not _close(left, right, DIGITS_AT_POINT - 12):
            return False
        compared += 1
    return True if compared >= 3 else None


def _proportional(ours: Any, theirs: Any) -> bool:
    """Whether two equations say the same up to a constant factor: the sides' differences, at the points."""
    left, right = (_with_imaginary_unit(side.lhs - side.rhs) for side in (ours, theirs))
    symbols = sorted({symbol.name for side in (left, right) for symbol in side.free_symbols})
    ratios = []
    for values in _places(symbols, _POINTS):
        above, below = _at(left, values), _at(right, values)
        if above is None or below is None or above == 0 or below == 0:
            return False
        ratios.append(above / below)
    return bool(symbols) and all(_close(ratio, ratios[0], DIGITS_AT_POINT - 12) for ratio in ratios)


def _places(symbols: list[str], points: list[Fraction]) -> Iterator[dict[str, Fraction]]:
    """Each symbol gets another of the points at every place."""
    for index in range(len(points)):
        yield {name: points[(index + 2 * place) % len(points)] for place, name in enumerate(symbols)}


def _alternates(side: Any) -> bool:
    """(-1)^n and its like, real at whole numbers alone."""
    return any(power.base.is_number and power.base.is_negative for power in side.atoms(sympy.Pow))


def _with_imaginary_unit(side: Any) -> Any:
    """A free i is the imaginary unit."""
    return side.subs({symbol: sympy.I for symbol in side.free_symbols if symbol.name == "i"})


def _at(side: Any, values: dict[str, Fraction]) -> Any:
    """The value at a point, or None where it has none."""
    table = {s: sympy.Rational(values[s.name].numerator, values[s.name].denominator) for s in side.free_symbols}
    try:
        value = side.subs(table).doit().evalf(DIGITS_AT_POINT)
    except Exception:
        return None
    return value if _is_value(value) else None


def _constants(ours: Any, theirs: Any) -> bool | None:
    try:
        left, right = ours.doit(), theirs.doit()
        if left.is_Rational and right.is_Rational:
            return bool(left == right)
        left, right = left.evalf(DIGITS), right.evalf(DIGITS)
    except Exception:
        return None
    return _close(left, right, DIGITS - 20) if _is_value(left) and _is_value(right) else None


def _is_value(value: Any) -> bool:
    finite = value.is_finite if value.is_number else False
    return bool(finite) and all(part.is_Float or part.is_Rational for part in value.as_real_imag())


def _close(left: Any, right: Any, digits: int) -> bool:
    scale = max(abs(left), abs(right))
    return bool(scale == 0 or abs(left - right) <= scale * sympy.Float(10) ** (-digits))
