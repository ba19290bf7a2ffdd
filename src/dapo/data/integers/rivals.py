"""Other values of a model's letters that give the same answer: its text must name what excludes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice, product
from math import gcd

import sympy

from .bounded import LatexError
from .forms import LIMIT
from .latex import parse

MAX_TRIED = 2500
_POSITIVE = re.compile(r"positive|natural|正|自然数", re.I)
_COPRIME = re.compile(
    r"coprime|relatively prime|common (?:prime )?(?:factor|divisor)|lowest terms|no prime|互[质素]|公因|公共", re.I
)
_POWER_FREE = re.compile(r"free|(?:square|cube|power) of an|perfect (?:square|cube|power)|平方|立方|次方|次幂", re.I)
_EXTREMAL = re.compile(
    r"smallest|least|minimal|minimum|largest|greatest|maximal|maximum|as (?:small|large) as|最小|最大", re.I
)
_ORDERED = re.compile(r"[<>]|\\[lg]e|\\[lg]t\b|less than|greater than|小于|大于", re.I)


def has_rival(parts: Sequence[str], target: str, parameters: Mapping[str, int], sentence: str) -> bool:
    """Whether other values of the letters give the same entries, another integer, and are not plainly excluded.

    Only values near by or in simple relations to the letters are tried, so False is no proof.

    Args:
        parts: The form's entries.
        target: What is asked for.
        parameters: The letters' values that the model gave.
        sentence: The text that should exclude all others.
    """
    wanted = _numbers(parts, parameters)
    value = _numbers([target], parameters)
    for rival in islice(_candidates(parameters), MAX_TRIED):
        found = _numbers(parts, rival)
        if (
            _close(found, wanted)
            and not _close(_numbers([target], rival), value)
            and not _excluded(rival, parameters, sentence)
        ):
            return True
    return False


def _candidates(parameters: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """The values with one or two letters changed, or all multiplied."""
    names = list(parameters)
    for factor in (2, 3, -1):
        yield {name: factor * value for name, value in parameters.items()}
    options = {name: _options(name, parameters) for name in names}
    for name in names:
        for value in options[name]:
            yield {**parameters, name: value}
    for first, second in combinations(names, 2):
        for one, other in product(options[first], options[second]):
            yield {**parameters, first: one, second: other}


def _options(name: str, parameters: Mapping[str, int]) -> list[int]:
    """Values that a letter may have in a rival, the likely ones first."""
    value = parameters[name]
    found = [1, 2 * value, 4 * value, value**2, value**3, value + 1, value - 1, -value, 3 * value, 8 * value, 9 * value]
    found += [value // divisor for divisor in (2, 3, 4, 5) if value % divisor == 0]
    for index in (2, 3):
        root = round(abs(value) ** (1 / index))
        found += [root] if root**index == abs(value) else []
    for other, size in parameters.items():
        if other != name:
            power = abs(value) ** size if 0 < size <= 20 else value
            found += [size, value * size, value * size**2, value * size**3, value + size, value - size, power]
    return [part for part in dict.fromkeys(found) if part != value and 0 < abs(part) < LIMIT]


def _numbers(parts: Sequence[str], parameters: Mapping[str, int]) -> list[complex] | None:
    """The entries as floating-point numbers, None if they have no value."""
    try:
        return [complex(sympy.N(parse(part, parameters, extended=True), 20)) for part in parts]
    except (LatexError, TypeError, ValueError, OverflowError):
        return None


def _close(left: list[complex] | None, right: list[complex] | None) -> bool:
    """Equality to twelve digits."""
    if left is None or right is None:
        return False
    return all(abs(one - other) <= 1e-12 * max(1.0, abs(other)) for one, other in zip(left, right, strict=True))


def _excluded(rival: Mapping[str, int], parameters: Mapping[str, int], sentence: str) -> bool:
    """Whether a condition named in the text may be what excludes a rival."""
    if _EXTREMAL.search(sentence) or _ORDERED.search(sentence):
        return True
    if _POSITIVE.search(sentence) and any(rival[name] <= 0 < value for name, value in parameters.items()):
        return True
    groups = [*combinations(parameters, 2), tuple(parameters)]
    if _COPRIME.search(sentence) and any(
        gcd(*(parameters[name] for name in group)) == 1 < gcd(*(rival[name] for name in group)) for group in groups
    ):
        return True
    return bool(_POWER_FREE.search(sentence)) and any(
        _powers(rival[name]) > _powers(value) for name, value in parameters.items()
    )


def _powers(value: int) -> int:
    """The largest exponent of a prime in an integer."""
    factors = sympy.factorint(abs(value), limit=1000)
    return max(factors.values(), default=0)
