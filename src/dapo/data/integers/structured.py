"""Answers of several entries (tuples, matrices, sets) and numerals in another base."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import sympy

from .bounded import LatexError
from .exact import exact, rational
from .forms import Form, Letters, Refused, Target, linear_targets
from .latex import parse
from .numeric import SCALE


def rational_entries(texts: Sequence[str]) -> list[Fraction]:
    """The entries as fractions.

    Raises:
        Refused: `unsupported` if an entry is another kind of number; what the parser raises, if it can't be read.
    """
    found = []
    for text in texts:
        value = parse(text)
        if value.free_symbols:
            raise Refused("variables")
        entry = rational(exact(value))
        if entry is None:
            raise Refused("unsupported")
        found.append(entry)
    return found


def entries_form(rows: list[list[str]], letters: Sequence[str], family: str, around: tuple[str, str]) -> Form:
    """A tuple (a single row) or a matrix, asked for a sum over its entries.

    An integer entry is a letter, its sign included. A fraction is `k/m` or `-k/m` with positive k and m in
    lowest terms, and both count in the sum.

    Args:
        rows: The entries' texts.
        letters: Free letters.
        family: `tuple` or `matrix`.
        around: What opens and closes the form.
    """
    if len({len(row) for row in rows}) != 1:
        raise Refused("unreadable")
    supply = Letters(letters)
    parameters: dict[str, int] = {}
    positive: list[str] = []
    coprime: list[tuple[str, ...]] = []
    shown, second, entries = [], [], []
    for row in rows:
        values = rational_entries(row)
        templates = []
        for value in values:
            above = supply.take()
            if value.denominator == 1:
                parameters[above] = value.numerator
                templates.append(above)
            else:
                below = supply.take()
                parameters.update({above: abs(value.numerator), below: value.denominator})
                positive += [above, below]
                coprime.append((above, below))
                templates.append(f"{'-' if value < 0 else ''}\\frac{{{above}}}{{{below}}}")
            entries.append((templates[-1], sympy.Rational(value.numerator, value.denominator)))
        between = ", " if family == "tuple" else " & "
        shown.append(between.join(templates))
        second.append(between.join(_scaled(value) for value in values))
    targets = linear_targets(parameters)
    if not targets:
        raise Refused("lossy")
    return Form(
        family=family,
        template=around[0] + " \\\\ ".join(shown) + around[1],
        entries=tuple(entries),
        parameters=parameters,
        second=around[0] + " \\\\ ".join(second) + around[1],
        targets=targets,
        positive=tuple(positive),
        coprime=tuple(coprime),
    )


def _scaled(value: Fraction) -> str:
    """A fraction multiplied through by 7."""
    return f"\\frac{{{SCALE * value.numerator}}}{{{SCALE * value.denominator}}}"


def set_form(texts: Sequence[str], letters: Sequence[str]) -> Form:
    """A list of integers whose order does not matter, asked for the sum of the distinct ones, or of their squares."""
    values = rational_entries(texts)
    if any(value.denominator != 1 for value in values):
        raise Refused("unsupported")
    distinct = sorted({int(value) for value in values})
    supply = Letters(letters)
    parameters = {supply.take(): value for value in distinct}
    names = list(parameters)
    targets = [
        Target(text="+".join(names), value=sum(distinct), kind="sum"),
        Target(text="+".join(f"{name}^2" for name in names), value=sum(value**2 for value in distinct), kind="squares"),
    ]
    targets = [target for target in targets if target.value]
    if not targets:
        raise Refused("lossy")
    backwards = ", ".join(_scaled(Fraction(value)) for value in reversed(distinct))
    return Form(
        family="set",
        template="\\{" + ", ".join(names) + "\\}",
        entries=tuple((name, sympy.Integer(value)) for name, value in parameters.items()),
        parameters=parameters,
        second="\\{" + backwards + "\\}",
        targets=tuple(targets),
    )


def base_form(digits: str, base: int, letters: Sequence[str]) -> Form:
    """A numeral in a base up to 10, asked for its digits as an ordinary number, or for its value.

    The digits are read from the left, `4 * 5 + 3` for 43 in base 5.
    """
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    if not 2 <= base <= 10 or any(int(digit) >= base for digit in digits) or digits.startswith("0"):
        raise Refused("unsupported")
    if len(digits) > 18:
        raise LatexError("too_large")
    nested = digits[0]
    for digit in digits[1:]:
        nested = f"({nested}) \\cdot {base} + {digit}"
    nested = f"{sign}({nested})"
    value = int(sign + digits, base)
    return Form(
        family="base",
        template=nested,
        entries=((nested, sympy.Integer(value)),),
        parameters={Letters(letters).take(): int(sign + digits)},
        second=f"\\frac{{{SCALE * value}}}{{{SCALE}}}",
        targets=(
            Target(text=f"{sign}{digits}", value=int(sign + digits), kind="digits"),
            Target(text=str(value), value=value, kind="ten"),
        ),
        base=base,
    )
