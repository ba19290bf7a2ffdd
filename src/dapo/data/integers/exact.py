"""Exact numbers as sums of rationals times `sqrt(c) * pi^j * i^l`, written out in one way only.

The square roots of different squarefree c, the powers of pi and i are linearly independent over the
rationals, so two expressions have the same value exactly when they have the same terms. That is what
makes the parameters of a form unique, and it is why any equal spelling gives the same integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import gcd
from typing import NamedTuple

import sympy

from .bounded import MAX_EXPONENT, MAX_RADICAND, LatexError

MAX_TERMS = 16
MAX_BITS = 4000
MAX_PI_POWER = 4


class Unit(NamedTuple):
    """`sqrt(root) * pi^pi * i^imaginary`, with a squarefree root; sorts the rational unit first."""

    imaginary: int = 0
    pi: int = 0
    root: int = 1


Number = dict[Unit, Fraction]
"""Terms with their coefficients, none of which is 0."""


def exact(expression: sympy.Expr) -> Number:
    """The terms of a sympy expression of rationals, square roots of rationals, pi and i.

    Raises:
        LatexError: `variables` if a symbol stands in it, `unsupported` or `too_large` otherwise.
    """
    if expression.is_Rational:
        return _clean({Unit(): Fraction(int(expression.p), int(expression.q))})
    if expression == sympy.I:
        return {Unit(imaginary=1): Fraction(1)}
    if expression == sympy.pi:
        return {Unit(pi=1): Fraction(1)}
    if expression.is_Add:
        total: Number = {}
        for part in expression.args:
            total = add(total, exact(part))
        return total
    if expression.is_Mul:
        product: Number = {Unit(): Fraction(1)}
        for part in expression.args:
            product = multiply(product, exact(part))
        return product
    if expression.is_Pow and expression.exp.is_Rational:
        return _power(expression.base, expression.exp)
    raise LatexError("variables" if expression.free_symbols else "unsupported")


def _power(base: sympy.Expr, exponent: sympy.Rational) -> Number:
    """A power with an exponent of at most 40 halves."""
    if abs(exponent.p) > MAX_EXPONENT:
        raise LatexError("too_large")
    inner = exact(base)
    if exponent.q == 2:
        inner = _square_root(base, inner)
    elif exponent.q != 1:
        raise LatexError("unsupported")
    result: Number = {Unit(): Fraction(1)}
    for _ in range(abs(int(exponent.p))):
        result = multiply(result, inner)
    return result if exponent.p > 0 else inverse(result)


def _square_root(base: sympy.Expr, value: Number) -> Number:
    """The root of a rational, or a nested root that sympy can write without nesting."""
    if not value:
        return {}
    if set(value) == {Unit()}:
        rational = value[Unit()]
        size = abs(rational.numerator) * rational.denominator
        square, root = squarefree(size)
        unit = Unit(imaginary=int(rational < 0), root=root)
        return {unit: Fraction(square, rational.denominator)}
    if len(value) == 2 and all(unit.pi == unit.imaginary == 0 for unit in value):
        flat = sympy.sqrtdenest(sympy.sqrt(base))
        if not any(part.is_Pow and part.exp.q == 2 and not part.base.is_Rational for part in _powers(flat)):
            return exact(flat)
    raise LatexError("variables" if base.free_symbols else "unsupported")


def _powers(expression: sympy.Expr) -> list[sympy.Expr]:
    """Every power with a rational exponent inside an expression."""
    return [part for part in sympy.preorder_traversal(expression) if part.is_Pow and part.exp.is_Rational]


def squarefree(value: int) -> tuple[int, int]:
    """Integers (s, c) with `value = s^2 c` and no square above 1 dividing c, for `0 < value < 2^30`."""
    if value >= MAX_RADICAND:
        root = sympy.integer_nthroot(value, 2)
        if root[1]:
            return int(root[0]), 1
        raise LatexError("too_large")
    square, rest, divisor = 1, value, 2
    while divisor * divisor <= rest:
        while rest % (divisor * divisor) == 0:
            rest //= divisor * divisor
            square *= divisor
        divisor += 1
    return square, rest


def add(left: Number, right: Number) -> Number:
    """The sum."""
    total = dict(left)
    for unit, coefficient in right.items():
        total[unit] = total.get(unit, Fraction(0)) + coefficient
    return _clean(total)


def multiply(left: Number, right: Number) -> Number:
    """The product: `sqrt(a) sqrt(b) = g sqrt(ab/g^2)` with g = gcd(a, b), and `i^2 = -1`."""
    total: Number = {}
    for first, one in left.items():
        for second, other in right.items():
            common = gcd(first.root, second.root)
            unit = Unit(
                imaginary=(first.imaginary + second.imaginary) % 2,
                pi=first.pi + second.pi,
                root=first.root * second.root // common**2,
            )
            sign = -1 if first.imaginary and second.imaginary else 1
            total[unit] = total.get(unit, Fraction(0)) + one * other * common * sign
    return _clean(total)


def inverse(value: Number) -> Number:
    """`1 / value`, by multiplying through with conjugates until the divisor has a single term."""
    above: Number = {Unit(): Fraction(1)}
    below = value
    for _ in range(8):
        if not below:
            raise LatexError("unreadable")
        if len(below) == 1:
            ((unit, coefficient),) = below.items()
            # 1 / (q sqrt(c) pi^j i^l) = sqrt(c) (-i)^l / (q c pi^j)
            factor = Fraction(-1 if unit.imaginary else 1) / (coefficient * unit.root)
            return multiply(above, {Unit(unit.imaginary, -unit.pi, unit.root): factor})
        other = _conjugate(below)
        above, below = multiply(above, other), multiply(below, other)
    raise LatexError("unsupported")


def _conjugate(value: Number) -> Number:
    """The value with `i`, or else the root of its smallest prime that divides some root, negated."""
    if len({unit.pi for unit in value}) > 1:
        raise LatexError("unsupported")
    if len({unit.imaginary for unit in value}) > 1:
        return {unit: -part if unit.imaginary else part for unit, part in value.items()}
    roots = [unit.root for unit in value]
    # a prime that divides some roots and not others: the sum keeps a partner that does not cancel
    prime = next(p for root in roots for p in _primes(root) if any(other % p for other in roots))
    return {unit: -part if unit.root % prime == 0 else part for unit, part in value.items()}


def _primes(value: int) -> list[int]:
    """The prime divisors of a squarefree integer."""
    found, divisor = [], 2
    while divisor * divisor <= value:
        if value % divisor == 0:
            found.append(divisor)
            value //= divisor
        divisor += 1
    return [*found, value] if value > 1 else found


def _clean(value: Number) -> Number:
    """The value without terms that are 0, bounded in every direction."""
    kept = {unit: part for unit, part in value.items() if part}
    if len(kept) > MAX_TERMS:
        raise LatexError("unsupported")
    for unit, part in kept.items():
        if unit.root >= MAX_RADICAND or part.numerator.bit_length() + part.denominator.bit_length() > MAX_BITS:
            raise LatexError("too_large")
    return kept


def rational(value: Number) -> Fraction | None:
    """The value as a fraction, None if it is none."""
    if not value:
        return Fraction(0)
    return value[Unit()] if set(value) == {Unit()} else None


def evaluate(expression: sympy.Expr, values: Mapping[sympy.Symbol, int] | None = None) -> Fraction | None:
    """The rational value of an expression with integers for its symbols, None if it has none."""
    try:
        return rational(exact(expression.subs(dict(values or {}))))
    except LatexError:
        return None
