"""Three-valued logic: True, False, and None for what is not known yet."""

from __future__ import annotations

from collections.abc import Iterable

Truth = bool | None


def all_of(truths: Iterable[Truth]) -> Truth:
    """False as soon as one is; None when one is not known."""
    result: Truth = True
    for truth in truths:
        if truth is False:
            return False
        result = None if truth is None else result
    return result


def any_of(truths: Iterable[Truth]) -> Truth:
    """True as soon as one is; None when one is not known."""
    result: Truth = False
    for truth in truths:
        if truth is True:
            return True
        result = None if truth is None else result
    return result


def pairs_off(table: list[list[Truth]]) -> Truth:
    """Whether rows and columns of a square table pair off one to one, each pair true.

    >>> pairs_off([[False, True], [None, True]]), pairs_off([[False, True], [False, True]])
    (None, False)
    """
    if _pairing(table, (True,)):
        return True
    return None if _pairing(table, (True, None)) else False


def _pairing(table: list[list[Truth]], allowed: tuple[Truth, ...]) -> bool:
    """A perfect matching by augmenting paths."""
    owner: dict[int, int] = {}

    def assign(row: int, seen: set[int]) -> bool:
        for column, truth in enumerate(table[row]):
            if truth in allowed and column not in seen:
                seen.add(column)
                if column not in owner or assign(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return all(assign(row, set()) for row in range(len(table)))
