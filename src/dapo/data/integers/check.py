"""What every rewrite must pass before it is handed out, whatever built it.

(a) The form with its parameters in place, minus the original answer, simplifies to 0, entry by entry.
(b) A second, differently written spelling of the same answer gives the same parameters.
(c) The integer does not stand in the new problem. (d) It is under a million in size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import sympy

from .bounded import LatexError, expansion_size
from .evidence import stands_in
from .exact import exact, rational
from .forms import LIMIT, Form, Refused, Target
from .latex import parse

MAX_OPERATIONS = 120
MAX_TERMS = 64
"""Expressions with more operations, or more terms when multiplied out, are not simplified but count as unproven."""

MAX_SIMPLIFIED = 40
"""Operations of an expression that sympy's slow general simplification may see."""

_SAMPLES = (sympy.Rational(37, 11), sympy.Rational(53, 13), sympy.Rational(71, 17), sympy.Rational(89, 19))


def is_zero(expression: sympy.Expr) -> bool:
    """Whether an expression simplifies to 0, by sympy.

    The work is bounded by the expression's size. What is plainly not 0 to 30 digits, with numbers for its
    variables if it has any, is not simplified: that is where simplification may take minutes.
    """
    if expression == 0:
        return True
    if expression.count_ops() > MAX_OPERATIONS or expansion_size(expression) > MAX_TERMS:
        return False
    expanded = sympy.expand(expression)
    if expanded == 0:
        return True
    if not _may_be_zero(expanded) or expansion_size(expanded) > MAX_TERMS:
        return False
    rational = sympy.expand(sympy.radsimp(expanded))
    if rational == 0:
        return True
    return rational.count_ops() <= MAX_SIMPLIFIED and bool(sympy.simplify(rational) == 0)


def _may_be_zero(expression: sympy.Expr) -> bool:
    """Whether an expression is 0 to 15 digits, with sample numbers for its variables."""
    symbols = sorted(expression.free_symbols, key=str)
    if len(symbols) > len(_SAMPLES):
        return False
    value = expression.subs(dict(zip(symbols, _SAMPLES, strict=False))).evalf(30, maxn=60)
    if not value.is_number or value.is_finite is False or value.has(sympy.nan, sympy.zoo):
        return False
    return bool(abs(complex(value)) < 1e-15)


def equal_entries(entries: tuple[tuple[str, sympy.Expr], ...], parameters: Mapping[str, int]) -> bool:
    """Check (a): every template, read with the parameters in place, has its entry's value."""
    return all(is_zero(parse(template, parameters) - value) for template, value in entries)


def same_parameters(form: Form, again: Callable[[str], Form]) -> bool:
    """Check (b): what the second spelling gives.

    Args:
        form: To be checked.
        again: Classifies another spelling with the same letters.
    """
    if form.family in ("decimal", "percent", "unit"):
        scaled = rational(exact(parse(form.second) * 10**form.places))
        return scaled == Fraction(next(iter(form.parameters.values())))
    if form.family == "base":
        return _digits(rational(exact(parse(form.second))), form.base) == next(iter(form.parameters.values()))
    if form.family == "polynomial":
        return is_zero(parse(form.second) - form.entries[0][1]) and again(form.second).targets == form.targets
    other = again(form.second)
    return (other.family, other.template, other.parameters) == (form.family, form.template, form.parameters)


def _digits(value: Fraction | None, base: int) -> int | None:
    """The digits of an integer in a base up to 10, read as an ordinary number."""
    if value is None or value.denominator != 1:
        return None
    rest, digits = abs(value.numerator), ""
    while rest:
        rest, digit = divmod(rest, base)
        digits = str(digit) + digits
    return (-1 if value < 0 else 1) * int(digits or "0")


def target_value(form: Form, target: Target) -> Fraction | int | None:
    """The integer again, from the target's own text and not from how it was found."""
    if form.family == "polynomial":
        value = form.entries[0][1].subs(sympy.Symbol(form.variable), target.at)
        return rational(exact(value))
    if form.family == "base":
        return target.value
    return rational(exact(parse(target.text, form.parameters)))


def accept(form: Form, target: Target, prompt: str, again: Callable[[str], Form]) -> None:
    """All four checks.

    Raises:
        Refused: `unproven`, `leaks` or `too_large`.
    """
    try:
        proven = (
            equal_entries(form.entries, form.parameters)
            and same_parameters(form, again)
            and target_value(form, target) == target.value
        )
    except (LatexError, Refused):
        proven = False
    if not proven:
        raise Refused("unproven")
    if abs(target.value) >= LIMIT:
        raise Refused("too_large")
    if stands_in(target.value, prompt):
        raise Refused("leaks")
