"""What the families have in common: a form with letters, the letters' values, and the integers to ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import sympy

FAMILIES = (
    "fraction",
    "decimal",
    "percent",
    "unit",
    "surd",
    "pi",
    "complex",
    "polynomial",
    "tuple",
    "matrix",
    "base",
    "set",
)

REASONS: dict[str, str] = {
    "ambiguous": "people read the answer's notation in different ways, as 1/2x or \\sqrt12",
    "ambiguous_comma": "a comma may separate thousands or the entries of a list",
    "ambiguous_pair": "(a, b) may be a pair or an interval, and the problem does not tell which",
    "asks_form": "the problem asks for a sum such as m+n already, yet the answer is no integer",
    "choice_letter": "the answer is the letter of a choice",
    "empty": "there is no answer, or no problem",
    "equation": "the answer is an equation, an inequality or a condition",
    "infinite": "the answer is infinite",
    "interval": "the answer is an interval or a union of intervals",
    "leaks": "every integer that could be asked for stands in the problem already",
    "llm_bad_reply": "the model's reply is not the JSON object it was asked for, or breaks its rules",
    "lossy": "the answer is approximate, or every integer to ask for would lose what it says",
    "multiple_parts": "the problem has several parts, or the answer several tuples",
    "no_letters": "the problem uses so many letters that none are left to name the parameters",
    "not_unique": "the problem accepts any of several answers, or a model's form has several readings",
    "plus_minus": "the answer has a plus-minus sign",
    "proof": "the problem asks for a proof",
    "prose": "the answer is words",
    "too_large": "the integer would have more than six digits, or the answer holds numbers too large to treat",
    "too_long": "the answer has more than 300 characters",
    "unproven": "the rewritten answer could not be proven equal to the original",
    "unreadable": "the answer is not in the notation that the parser reads",
    "unsupported": "the answer is an expression of a kind that has no family",
    "variables": "the answer has variables and is no polynomial in a single one",
}

LIMIT = 10**6
"""Integers of this size and above are not asked for."""

LETTERS = "kmnpqrstuvwabcdfghxyzKMNPQRSTUVWABCDFGHXYZ"
"""Letters for parameters in the order of preference; e, i, j, l and o are left out for what they look like or mean."""

MAX_PARAMETERS = 12


class Refused(Exception):
    """Classification ends here.

    Attributes:
        reason: A name from REASONS.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An integer that may be asked for.

    Attributes:
        text: How it is written with the form's letters, as in `2k+m`.
        value: The integer.
        kind: What the wording depends on: `sum`, `squares`, `value`, `coefficients`, `digits`, `ten` or `number`.
        at: Where a polynomial is evaluated.
    """

    text: str
    value: int
    kind: str = "sum"
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """An answer as a form with letters.

    Attributes:
        family: One of FAMILIES.
        template: The form in LaTeX, letters for numbers.
        entries: Of every entry its template and the answer's value there; a single one for plain numbers.
        parameters: The letters' values, in the order they stand.
        second: Another spelling of the same answer, to classify again.
        targets: Integers to ask for, the preferred first.
        positive: Letters that stand for positive integers; the others are any integers.
        coprime: Groups of letters without a common prime factor.
        squarefree: The letter under the root, "" if there is none.
        unit: The unit that goes with the number, "" if there is none.
        places: Digits after the point of a decimal.
        base: The base a numeral is written in.
        variable: The variable of a polynomial.
    """

    family: str
    template: str
    entries: tuple[tuple[str, sympy.Expr], ...]
    parameters: dict[str, int]
    second: str
    targets: tuple[Target, ...]
    positive: tuple[str, ...] = ()
    coprime: tuple[tuple[str, ...], ...] = field(default=())
    squarefree: str = ""
    unit: str = ""
    places: int = 0
    base: int = 0
    variable: str = ""


class Letters:
    """Hands out letters in order.

    Raises:
        Refused: `no_letters` when they run out, `unsupported` beyond 12.
    """

    def __init__(self, free: Sequence[str]) -> None:
        self._free = free
        self._used = 0

    def take(self) -> str:
        """The next letter."""
        if self._used >= MAX_PARAMETERS:
            raise Refused("unsupported")
        if self._used >= len(self._free):
            raise Refused("no_letters")
        self._used += 1
        return self._free[self._used - 1]


def linear_targets(parameters: dict[str, int]) -> tuple[Target, ...]:
    """Weighted sums of the parameters, each with all of them: the plain sum first, then larger weights.

    A sum that is 0 says too little (many wrong answers cancel too) and is left out.
    """
    names, values = list(parameters), list(parameters.values())
    found = []
    for weights in _weights(len(names)):
        value = sum(weight * part for weight, part in zip(weights, values, strict=True))
        if value:
            text = "+".join(
                name if weight == 1 else f"{weight}{name}" for weight, name in zip(weights, names, strict=True)
            )
            found.append(Target(text=text, value=value))
    return tuple(found)


def _weights(count: int) -> Iterator[tuple[int, ...]]:
    """(1, ..., 1), then a single weight of 2, 3 or 5 at each place, then 1, 2, 3, ... forwards and backwards."""
    yield (1,) * count
    for weight in (2, 3, 5):
        for place in range(count):
            yield tuple(weight if at == place else 1 for at in range(count))
    if count > 1:
        yield tuple(range(1, count + 1))
        yield tuple(range(count, 0, -1))
