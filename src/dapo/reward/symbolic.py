"""Symbolic equality of two expressions: math-verify reads them, and judges what numbers cannot.

Runs in a worker process alone (dapo.reward.worker): it may take for ever. Two readings that are plain
expressions are compared first by value: exactly where they are rational, otherwise to many digits, at
fixed points where they hold symbols. A difference there is a difference, and agreement at all points is
equality: this settles nearly all pairs without simplify, and keeps math-verify's known false positives
out (tiny powers, surds rounded to floats, huge factorials one apart). Equations and inequalities are
equal when the differences of their sides are proportional. What has no value at the points (matrices,
sets) goes to math-verify's own comparison.
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

DIGITS = 1_000  # of a constant
DIGITS_AT_POINT = 200
DIGITS_OF_BIG = 25_000  # where a power, a factorial or a long number could hide a difference further down
SPARE = 20  # digits that rounding may take
MIN_POINTS = 3  # at which both sides must have a value
# Units are ours to judge: left on, `\frac{1}{2}m` would lose its m.
_SPELLING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
)
_BOXED = [
    LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False, normalization_config=_SPELLING)
]
_DECIMAL = re.compile(r"(?<![\d.^_])(\d*)\.(\d+)(?![\d.])")
_ANGLE = re.compile(r"(\d+(?:\.\d+)?|\\frac\{\d+\}\{\d+\}|\\[A-Za-z]+|[A-Za-z]|\([^()]*\))\s*\^\{\\circ\}")
_ODD_ROOT = re.compile(r"\\sqrt\s*\[\s*(\d*[13579])\s*\]\s*\{\s*-([^{}+\-]*)\}")
_BIG = re.compile(r"\^\s*\{?\s*-?\d{3,}|\d{60,}|\d{3,}\s*!|e\s*\^|\\exp|\\binom\s*\{\s*\d{4,}")
_WHOLE_ONLY = (sympy.floor, sympy.ceiling, sympy.factorial, sympy.binomial, sympy.Sum, sympy.Product, sympy.Mod)
_REAL_NAMES = frozenset("xyztuvw")  # also where floor or (-1)^n stand beside them
_PRIMES = [p for p in range(2, 400) if all(p % d for d in range(2, p))]
_WHOLE = (2, 3, 5, 8, 13, 22, 37, 101, 250)
POINTS = 6


def leaf(gold: str, pred: str) -> bool:
    """Whether two cleaned LaTeX expressions or relations are equal. May not return."""
    ours, theirs = _read(gold), _read(pred)
    if ours is None or theirs is None:
        return False
    if isinstance(ours, sympy.Expr) and isinstance(theirs, sympy.Expr):
        by_value = _equal_by_value(ours, theirs, bool(_BIG.search(gold) or _BIG.search(pred)), "|" in gold + pred)
        if by_value is not None:
            return by_value
    if isinstance(ours, sympy.core.relational.Relational) or isinstance(theirs, sympy.core.relational.Relational):
        return _same_relation(ours, theirs, "|" in gold + pred)
    return bool(verify(ours, theirs, strict=True, allow_set_relation_comp=True, timeout_seconds=None))


def readable(text: str) -> bool:
    """Whether math-verify finds an expression in it."""
    return _read(text) is not None


@lru_cache(maxsize=512)
def _read(text: str) -> Any:
    exact = _DECIMAL.sub(_as_fraction, _ANGLE.sub(r"(\\frac{\1 \\pi}{180})", text))
    exact = _ODD_ROOT.sub(r"(-\\sqrt[\1]{\2})", exact)
    found = parse(f"\\boxed{{{exact}}}", _BOXED, fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


def _as_fraction(match: re.Match[str]) -> str:
    return f"\\frac{{{int(match[1] + match[2])}}}{{{10 ** len(match[2])}}}"


def _equal_by_value(ours: Any, theirs: Any, big: bool, signed: bool) -> bool | None:
    """Equality by value, or None where it can't be told so.

    big: many more digits. signed: the variables take both signs; otherwise, where roots and logarithms
    stand, they are positive, as such answers mean it.
    """
    ours, theirs = _with_imaginary_unit(ours), _with_imaginary_unit(theirs)
    symbols = sorted({symbol.name for side in (ours, theirs) for symbol in side.free_symbols})
    if not symbols:
        return _constants(ours, theirs, DIGITS_OF_BIG if big else DIGITS)
    digits = DIGITS if big else DIGITS_AT_POINT
    whole = any(side.has(*_WHOLE_ONLY) or _alternates(side) for side in (ours, theirs))
    compared = 0
    for values in _places(symbols, whole, signed or _signed(ours, theirs)):
        left, right = _at(ours, values, digits), _at(theirs, values, digits)
        if left is None or right is None:
            continue
        if not _close(left, right, digits - SPARE):
            return False
        compared += 1
    return True if compared >= MIN_POINTS else None


def _places(symbols: list[str], whole: bool, signed: bool) -> Iterator[dict[str, Fraction]]:
    """The points: fixed, so that a verdict is a function of its two texts; no two symbols share a value."""
    for index in range(len(_WHOLE) if whole else POINTS):
        values = {}
        for place, name in enumerate(symbols):
            rank = place if index % 2 else len(symbols) - 1 - place  # both orders of size
            value = Fraction(_PRIMES[(5 * rank + 3 * index + 4) % 70], _PRIMES[(rank + index) % 5 + 1] + 7)
            if signed and index > 1 and (index // 2 + place) % 2:
                value = -value
            if whole and name[0] not in _REAL_NAMES:
                value = Fraction(_WHOLE[(index + place) % len(_WHOLE)])
            values[name] = value
        yield values


def _alternates(side: Any) -> bool:
    """(-1)^n and its like, real at whole numbers alone."""
    powers = side.atoms(sympy.Pow)
    return any(power.base.is_number and power.base.is_negative and power.exp.free_symbols for power in powers)


def _signed(ours: Any, theirs: Any) -> bool:
    """Whether variables take both signs: unless roots or logarithms stand there, or where sums have absolute values."""
    sums = any(value.args[0].is_Add for side in (ours, theirs) for value in side.atoms(sympy.Abs))
    sums = sums or any(_root_of_square(power) for side in (ours, theirs) for power in side.atoms(sympy.Pow))
    return sums or not any(_rooted(side) for side in (ours, theirs))


def _root_of_square(power: Any) -> bool:
    """sqrt((x-1)^2), which is |x-1|."""
    inner = power.base
    return bool(not power.exp.is_integer and inner.is_Pow and inner.base.is_Add and inner.exp.is_even)


def _rooted(side: Any) -> bool:
    """Roots or logarithms of what holds a symbol, or absolute values that sympy made of them."""
    roots = (p for p in side.atoms(sympy.Pow) if p.base.free_symbols and not p.exp.is_integer)
    return any(True for _ in roots) or any(log.free_symbols for log in side.atoms(sympy.log, sympy.Abs))


def _with_imaginary_unit(side: Any) -> Any:
    """A free i is the imaginary unit."""
    return side.subs({symbol: sympy.I for symbol in side.free_symbols if symbol.name == "i"})


def _at(side: Any, values: dict[str, Fraction], digits: int) -> Any:
    """The value at a point, or None where it has none."""
    table = {s: sympy.Rational(values[s.name].numerator, values[s.name].denominator) for s in side.free_symbols}
    try:
        value = side.subs(table).doit().evalf(digits)
    except Exception:
        return None
    return value if _is_value(value) else None


def _constants(ours: Any, theirs: Any, digits: int) -> bool | None:
    try:
        left, right = ours.doit(), theirs.doit()
        if left.is_Rational and right.is_Rational:
            return bool(left == right)
        for precision in (DIGITS_AT_POINT, digits):  # most differences show at once
            values = left.evalf(precision), right.evalf(precision)
            if not all(_is_value(value) for value in values):
                return None
            if not _close(*values, precision - SPARE):
                return False
    except Exception:
        return None
    return True


def _is_value(value: Any) -> bool:
    finite = value.is_finite if value.is_number else False
    return bool(finite) and all(part.is_Float or part.is_Rational for part in value.as_real_imag())


def _close(left: Any, right: Any, digits: int) -> bool:
    scale = max(abs(left), abs(right))
    return bool(scale == 0 or abs(left - right) <= scale * sympy.Float(10) ** (-digits))


_DIRECTED = {
    sympy.StrictGreaterThan: (">", 1), sympy.StrictLessThan: (">", -1),
    sympy.GreaterThan: (">=", 1), sympy.LessThan: (">=", -1), sympy.Eq: ("=", 1), sympy.Ne: ("!=", 1),
}  # fmt: skip


def _same_relation(ours: Any, theirs: Any, signed: bool) -> bool:
    """Whether two relations are the same up to a constant factor, or one is the other solved for a symbol."""
    kinds = [_DIRECTED.get(type(side)) for side in (ours, theirs)]
    if kinds[0] is None or kinds[1] is None or kinds[0][0] != kinds[1][0]:
        return bool(str(ours) == str(theirs))
    left = _with_imaginary_unit(kinds[0][1] * (ours.lhs - ours.rhs))
    right = _with_imaginary_unit(kinds[1][1] * (theirs.lhs - theirs.rhs))
    symbols = sorted({symbol.name for side in (left, right) for symbol in side.free_symbols})
    signed = signed or _signed(left, right)
    factors = _factors(left, right, symbols, signed)
    if factors and all(_close(factor, factors[0], DIGITS_AT_POINT - SPARE) for factor in factors):
        return kinds[0][0] in ("=", "!=") or bool(factors[0] > 0)
    return kinds[0][0] == "=" and (_solved(left, theirs, symbols, signed) or _solved(right, ours, symbols, signed))


def _factors(left: Any, right: Any, symbols: list[str], signed: bool) -> list[Any]:
    """left / right at the points; nothing when a side vanishes there or has no value."""
    factors = []
    for values in _places(symbols, whole=False, signed=signed):
        above, below = _at(left, values, DIGITS_AT_POINT), _at(right, values, DIGITS_AT_POINT)
        if above is None or below is None or above == 0 or below == 0:
            return []
        factors.append(above / below)
    return factors


def _solved(difference: Any, equation: Any, symbols: list[str], signed: bool) -> bool:
    """Whether `equation` is a symbol = its value, and that value is the one root of `difference`, linear in it."""
    symbol, value = equation.lhs, equation.rhs
    if not isinstance(symbol, sympy.Symbol) or symbol in value.free_symbols:
        return False
    own = next((s for s in difference.free_symbols if s.name == symbol.name), None)
    if own is None or difference.has(sympy.Abs) or sympy.diff(difference, own, 2).simplify() != 0:
        return False
    slope = sympy.diff(difference, own)
    if not sympy.gcd(
        sympy.numer(sympy.together(slope)), sympy.numer(sympy.together(difference.subs(own, 0)))
    ).is_number:
        return False  # where both vanish, the difference has roots of its own
    rest = difference.subs(own, value)
    zeros = [_at(rest, values, DIGITS_AT_POINT) for values in _places(symbols, whole=False, signed=signed)]
    return all(zero is not None and abs(zero) < sympy.Float(10) ** (SPARE - DIGITS_AT_POINT) for zero in zeros)
