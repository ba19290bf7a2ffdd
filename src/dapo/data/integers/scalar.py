"""Numbers with a scale or a unit (decimals, percentages, amounts) and polynomials in one variable."""

from __future__ import annotations

import re
from collections.abc import Sequence

import sympy

from .bounded import expansion_size
from .evidence import asks_to_factor, is_estimate, is_unit, is_vector, over_finite_field, used_letters
from .exact import evaluate
from .forms import Form, Letters, Refused, Target
from .latex import parse

POINTS = (2, 3, 5, 10, 7, 4, 6, 8, 9, 11, 12, 1)
"""Where a polynomial may be evaluated, in order; at 1 it is the sum of the coefficients."""

NAMES = "PQRSTFGH"
"""What the polynomial may be called."""

MAX_DEGREE = 20
MAX_TERMS = 300

_WORD_PLACES = {"tenth": 1, "hundredth": 2, "thousandth": 3, "cent": 2, "whole number": 0, "integer": 0}
_ROUNDING = re.compile(
    r"nearest\s+(tenth|hundredth|thousandth|cent|whole number|integer)|(\d+|one|two|three|four) decimal places?", re.I
)
_COUNT = {"one": 1, "two": 2, "three": 3, "four": 4}


def scaled_form(text: str, letters: Sequence[str], family: str, unit: str, problem: str) -> Form:
    """A number with d digits after the point, asked for times `10^d`; d = 0 asks for the number itself.

    Sound for exact decimals and for rounded ones: it is the rounded number that is multiplied. Trailing
    zeros count as places, `82.50` gives 8250.

    Args:
        text: Sign, digits and point only.
        letters: Free letters.
        family: `decimal`, `percent` or `unit`.
        unit: The unit in words, "" if there is none.
        problem: Read for the number of places it asks for.
    """
    places = len(text.partition(".")[2])
    _refuse_other_rounding(places, problem)
    if places and is_estimate(problem) and not _ROUNDING.search(problem):
        raise Refused("lossy")
    letter = Letters(letters).take()
    value = parse(text)
    whole = int(value * 10**places)
    if whole == 0:
        raise Refused("lossy")
    template = f"\\frac{{{letter}}}{{10^{{{places}}}}}" if places else letter
    return Form(
        family=family,
        template=template,
        entries=((template, value),),
        parameters={letter: whole},
        second=f"{whole} \\cdot 10^{{-{places}}}",
        targets=(Target(text=letter, value=whole, kind="number"),),
        unit=unit,
        places=places,
    )


def _refuse_other_rounding(places: int, problem: str) -> None:
    """The problem must not ask for another number of places than the answer has."""
    for word, count in _ROUNDING.findall(problem):
        wanted = _WORD_PLACES[word.lower()] if word else _COUNT.get(count.lower()) or int(count[:4])
        if places and wanted != places:
            raise Refused("lossy")


def degree(expression: sympy.Expr) -> int:
    """A bound on the degree, read off the tree before anything is expanded."""
    if expression.is_Add:
        return max(degree(part) for part in expression.args)
    if expression.is_Mul:
        return sum(degree(part) for part in expression.args)
    if expression.is_Pow and expression.exp.is_Integer:
        return degree(expression.base) * abs(int(expression.exp))
    return 1 if expression.is_Symbol else 0


def polynomial_form(value: sympy.Expr, letters: Sequence[str], problem: str) -> Form:
    """A polynomial in one variable with rational coefficients, asked for its value at a small integer.

    P(2), or the next place at which the value is an integer other than 0; the sum of the coefficients
    P(1) comes last, as it tells the fewest polynomials apart, and not at all for a single term.

    Raises:
        Refused: `variables` if it is no such polynomial.
    """
    symbols = sorted(value.free_symbols, key=str)
    if len(symbols) != 1 or degree(value) > MAX_DEGREE or expansion_size(value) > MAX_TERMS:
        raise Refused("variables")
    (variable,) = symbols
    if (
        value.has(sympy.I, sympy.pi)
        or not value.is_polynomial(variable)
        or not _stands_for_a_variable(value, str(variable), problem)
    ):
        raise Refused("variables")
    if asks_to_factor(problem):  # the value of what is given is that of the answer
        raise Refused("lossy")
    if over_finite_field(str(variable), problem):
        raise Refused("ambiguous")
    coefficients = sympy.Poly(sympy.expand(value), variable).all_coeffs()
    if len(coefficients) < 2 or not all(part.is_Rational for part in coefficients):
        raise Refused("variables")
    name = next((letter for letter in NAMES if letter in letters), "")
    if not name:
        raise Refused("no_letters")
    targets = []
    for point in POINTS if sum(map(bool, coefficients)) > 1 else POINTS[:-1]:
        result = evaluate(value, {variable: point})
        if result is not None and result.denominator == 1 and result != 0:
            kind = "coefficients" if point == 1 else "value"
            targets.append(Target(text=f"{name}({point})", value=int(result), kind=kind, at=point))
    if not targets:
        raise Refused("variables")
    nested = ""
    for part in coefficients:  # Horner's form, which no answer is written in
        nested = f"({nested}){variable}+({_plain(part)})" if nested else _plain(part)
    return Form(
        family="polynomial",
        template=f"{name}({variable})",
        entries=((nested, value),),
        parameters={},
        second=nested,
        targets=tuple(targets),
        variable=str(variable),
    )


def _stands_for_a_variable(value: sympy.Expr, name: str, problem: str) -> bool:
    """Whether the problem uses the letter; a capital's bare power may be a sphere `S^2` or a group `Z^3`.

    `20 N` is no polynomial where the problem has newtons, nor `3j` where j is a unit vector.
    """
    if is_vector(name, problem) or (sympy.Poly(value, sympy.Symbol(name)).is_monomial and is_unit(name, problem)):
        return False
    if name.isupper() and (value.is_Symbol or value.is_Pow):
        return False
    return bool(re.search(rf"(?<![A-Za-z\\]){re.escape(name)}(?![A-Za-z])", problem)) or (name in used_letters(problem))


def _plain(value: sympy.Rational) -> str:
    """A rational in LaTeX."""
    return str(value.p) if value.q == 1 else f"\\frac{{{value.p}}}{{{value.q}}}"
