"""Plain numbers: fractions, surds, multiples of pi and complex numbers, all as terms over a common divisor."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

import sympy

from .bounded import MAX_RADICAND
from .exact import MAX_PI_POWER, Number, Unit, exact
from .forms import Form, Letters, Refused, linear_targets

SCALE = 7  # the second spelling is multiplied through by it


def numeric_form(value: sympy.Expr, letters: Sequence[str], unit: str = "") -> Form:
    """The form `(s1 a u1 + s2 b u2) / d` of a number that is no integer.

    The units u are 1, sqrt(c), pi^j, i and their products; signs s are fixed in the form, a, b, c, d are
    positive, c is squarefree and gcd(a, b, d) = 1. As the units are linearly independent over the
    rationals, the letters have exactly one value each. With d = 1 there is no divisor in the form.

    Args:
        value: Read from the answer.
        letters: Free letters.
        unit: Of the number, if it has one.
    """
    number = exact(value)
    terms = sorted(number.items())
    _refuse_rich(number)
    divisor = lcm(*(part.denominator for _, part in terms))
    supply, parameters = Letters(letters), {}
    pieces: list[str] = []
    above: list[str] = []
    squarefree = ""
    for term, part in terms:
        letter = supply.take()
        above.append(letter)
        parameters[letter] = abs(int(part * divisor))
        piece = letter
        if term.root > 1:
            squarefree = supply.take()
            parameters[squarefree] = term.root
            piece += f"\\sqrt{{{squarefree}}}"
        pieces.append(("-" if part < 0 else "+") + piece + _fixed(term))
    below = ""
    if divisor > 1:
        below = supply.take()
        parameters[below] = divisor
    template = _assembled(pieces, below, _pi_below(terms))
    return Form(
        family=_family(number),
        template=template,
        entries=((template, value),),
        parameters=parameters,
        second=second_spelling(terms, divisor),
        targets=linear_targets(parameters),
        positive=tuple(parameters),
        coprime=((*above, below),) if below else (),
        squarefree=squarefree,
        unit=unit,
    )


def _refuse_rich(number: Number) -> None:
    """At most two terms, at most a single root, small powers of pi; below the line only where pi stands alone."""
    if not number or len(number) > 2 or sum(unit.root > 1 for unit in number) > 1:
        raise Refused("unsupported")
    lowest = 0 if len(number) > 1 else -2
    if not all(lowest <= unit.pi <= MAX_PI_POWER for unit in number):
        raise Refused("unsupported")


def _family(number: Number) -> str:
    """The family that the units give."""
    if any(unit.imaginary for unit in number):
        return "complex"
    if any(unit.pi for unit in number):
        return "pi"
    return "surd" if any(unit.root > 1 for unit in number) else "fraction"


def _fixed(unit: Unit) -> str:
    """What of a unit has no letter: powers of pi above the line, and i."""
    pi = {0: "", 1: "\\pi"}.get(unit.pi, f"\\pi^{{{unit.pi}}}") if unit.pi > 0 else ""
    return pi + (" i" if unit.imaginary else "")


def _pi_below(terms: list[tuple[Unit, Fraction]]) -> str:
    """The power of pi below the line of a single term."""
    power = -terms[0][0].pi if len(terms) == 1 else 0
    return "" if power <= 0 else "\\pi" if power == 1 else f"\\pi^{{{power}}}"


def _assembled(pieces: list[str], below: str, pi: str) -> str:
    """Signed pieces over what stands below; the sign of a single piece goes before the fraction."""
    text = "".join(pieces).removeprefix("+")
    if not below and not pi:
        return text
    sign = "-" if len(pieces) == 1 and text.startswith("-") else ""
    return f"{sign}\\frac{{{text.removeprefix(sign)}}}{{{below}{pi}}}"


def second_spelling(terms: list[tuple[Unit, Fraction]], divisor: int) -> str:
    """The same number written differently.

    A rational part with a root or i is rationalised the other way round,
    `(a + b u)/d = (a^2 - b^2 u^2) / (d (a - b u))`; all else is multiplied through by 7, with sqrt(4c)/2
    for sqrt(c).
    """
    if len(terms) == 2 and terms[0][0] == Unit() and terms[1][0].pi == 0:
        first, second = (int(part * divisor) for _, part in terms)
        unit = terms[1][0]
        square = -unit.root if unit.imaginary else unit.root
        factor = (f"\\sqrt{{{unit.root}}}" if unit.root > 1 else "") + (" i" if unit.imaginary else "")
        return f"\\frac{{{first**2 - second**2 * square}}}{{{divisor}({first}-({second}){factor})}}"
    pieces = []
    for unit, part in terms:
        over, under = SCALE * part.numerator, SCALE * part.denominator
        root = ""
        if unit.root > 1:
            doubled = 4 * unit.root < MAX_RADICAND
            root = f"\\sqrt{{{4 * unit.root if doubled else unit.root}}}"
            under *= 2 if doubled else 1
        pi = f"\\pi^{{{unit.pi}}}" if unit.pi else ""
        pieces.append(f"\\frac{{({over}){root}{pi}{' i' if unit.imaginary else ''}}}{{{under}}}")
    return "+".join(pieces)
