"""Arithmetic whose cost is known before it is done: the numbers, quotients, powers and roots of the reader."""

from __future__ import annotations

from math import comb, isqrt

import sympy

MAX_DIGITS = 30
MAX_POWER_BITS = 200  # of a power of numbers, about 60 digits
MAX_EXPONENT = 40
MAX_RADICAND = 2**30  # trial division up to 2**15 proves that what is left has no square


class LatexError(ValueError):
    """The text is not an expression this reader takes; `reason` is a name from `forms.REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def number(text: str) -> sympy.Expr:
    """An integer, or a decimal as the exact fraction."""
    whole, _, places = text.partition(".")
    if len(whole) + len(places) > MAX_DIGITS:
        raise LatexError("too_large")
    return sympy.Rational(int(whole + places or "0"), 10 ** len(places))


def divide(above: sympy.Expr, below: sympy.Expr) -> sympy.Expr:
    """A quotient whose divisor is not plainly 0."""
    if below == 0:
        raise LatexError("unreadable")
    return above / below


def raise_to(base: sympy.Expr, exponent: sympy.Expr, extended: bool = False) -> sympy.Expr:
    """A power, once its size is known to be small.

    Integer exponents up to 40 in size, and halves of them; of numbers only what stays under 200 bits.
    Other roots are taken where they come out rational.
    """
    if not exponent.is_Rational:
        raise LatexError("variables" if exponent.free_symbols else "unsupported")
    if base == 0 and exponent <= 0:
        raise LatexError("unreadable")
    if max(abs(exponent.p), exponent.q) > MAX_EXPONENT:
        raise LatexError("too_large")
    if base == sympy.E and extended:
        return base**exponent
    if base.is_Rational:
        bits = max(int(abs(base.p)).bit_length(), int(base.q).bit_length())
        if bits * abs(exponent.p) > MAX_POWER_BITS * exponent.q:
            raise LatexError("too_large")
    if exponent.q == 1:
        return base ** int(exponent)
    if base.is_Rational:
        return _root_of_number(base ** abs(int(exponent.p)), int(exponent.q), int(exponent.p) > 0, extended)
    if exponent.q != 2:
        raise LatexError("unsupported")
    return base**exponent


def _root_of_number(radicand: sympy.Rational, index: int, positive: bool, extended: bool) -> sympy.Expr:
    """`radicand^(1/index)` or its inverse: exact where rational, a square root, or refused."""
    for part in (int(abs(radicand.p)), int(radicand.q)):
        if (index == 2 or extended) and part >= MAX_RADICAND and _whole_root(part, index) is None:
            raise LatexError("too_large")
    if index == 2:
        size = [_whole_root(int(abs(radicand.p)), 2), _whole_root(int(radicand.q), 2)]
        if None not in size:
            value = sympy.Rational(size[0], size[1]) * (1 if radicand >= 0 else sympy.I)
        else:
            value = sympy.sqrt(radicand)
    else:
        above, below = _whole_root(int(radicand.p), index), _whole_root(int(radicand.q), index)
        if radicand < 0 or ((above is None or below is None) and not extended):
            raise LatexError("unsupported")
        value = sympy.root(radicand, index)
    return value if positive else 1 / value


def _whole_root(value: int, index: int) -> int | None:
    """The integer whose `index`-th power is the value, None if there is none."""
    if value < 0:
        return None
    low = round(value ** (1 / index))
    if index == 2:
        low = isqrt(value)
    return next((root for root in (low - 1, low, low + 1) if root >= 0 and root**index == value), None)


def logarithm(value: sympy.Expr) -> sympy.Expr:
    """A natural logarithm of a small positive rational; sympy leaves it as it stands."""
    if not (value.is_Rational and value > 0 and max(value.p, value.q) < MAX_RADICAND):
        raise LatexError("unsupported")
    return sympy.log(value)


def expansion_size(expression: sympy.Expr) -> int:
    """A bound on the terms that multiplying an expression out gives, above and below the line.

    A sum has the terms of its parts, a product their product, and `(t terms)^n` has C(t+n-1, n).
    """
    if expression.is_Add:
        return sum(map(expansion_size, expression.args))
    if expression.is_Mul:
        size = 1
        for part in expression.args:
            size *= expansion_size(part)
        return size
    if expression.is_Pow and expression.exp.is_Rational:
        terms = expansion_size(expression.base)
        return comb(terms + abs(int(expression.exp.p)) - 1, terms - 1) if terms < 10**6 else terms
    return 1
