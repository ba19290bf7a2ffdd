"""Parts of the real line with exact ends, in one normal form: sorted, disjoint, merged intervals."""

from __future__ import annotations

from fractions import Fraction

from dapo.reward.forms import (
    EMPTY,
    INFINITY,
    MINUS_INFINITY,
    Bag,
    Condition,
    Difference,
    Form,
    Intersection,
    Number,
    Sequence,
    Union,
)

# (low, low is in, high, high is in); None stands for the infinite end.
Piece = tuple[Fraction | None, bool, Fraction | None, bool]

MAX_PIECES = 64  # of one region; set algebra on more is not what an answer needs


def region(form: Form) -> list[Piece] | None:
    """The normal form, or None when an end is no exact number or the form is no region."""
    pieces = _pieces(form)
    return None if pieces is None else _merged(pieces)


def _pieces(form: Form) -> list[Piece] | None:
    if isinstance(form, Condition):
        return _pieces(form.region)
    if form == EMPTY:
        return []
    if isinstance(form, Number):
        return [(form.value, True, form.value, True)]
    if isinstance(form, Sequence):
        return _interval(form)
    if isinstance(form, Bag) and all(isinstance(item, Number) for item in form.items):
        parts: tuple[Form, ...] = form.items  # single points; conditions side by side are no union
    elif isinstance(form, Union):
        parts = form.parts
    elif isinstance(form, Difference):
        whole, removed = region(form.whole), region(form.removed)
        return None if whole is None or removed is None else _shared(whole, _complement(removed))
    elif isinstance(form, Intersection):
        return _all_share(form)
    else:
        return None
    if len(parts) > MAX_PIECES:
        return None
    found = [_pieces(part) for part in parts]
    return None if any(pieces is None for pieces in found) else [piece for pieces in found for piece in pieces or ()]


def _all_share(form: Intersection) -> list[Piece] | None:
    if len(form.parts) > MAX_PIECES:
        return None
    shared: list[Piece] = [(None, False, None, False)]
    for part in form.parts:
        pieces = region(part)
        if pieces is None:
            return None
        shared = _shared(shared, pieces)
    return shared


def _interval(form: Sequence) -> list[Piece] | None:
    if len(form.items) != 2 or form.opening not in "([" or form.closing not in ")]":
        return None
    low, high = form.items
    if not (isinstance(low, Number) or low == MINUS_INFINITY) or not (isinstance(high, Number) or high == INFINITY):
        return None
    start = low.value if isinstance(low, Number) else None
    end = high.value if isinstance(high, Number) else None
    if (
        start is not None
        and end is not None
        and (start > end or (start == end and form.opening + form.closing != "[]"))
    ):
        return None  # no interval: rather a pair
    return [(start, form.opening == "[" and start is not None, end, form.closing == "]" and end is not None)]


def _shared(left: list[Piece], right: list[Piece]) -> list[Piece]:
    """What two lists of pieces have in common."""
    return [piece for one in left for other in right if (piece := _overlap(one, other)) is not None]


def _overlap(left: Piece, right: Piece) -> Piece | None:
    low, low_in = max((left[:2], right[:2]), key=lambda end: (end[0] is not None, end[0] or Fraction(0), not end[1]))
    high, high_in = min((left[2:], right[2:]), key=lambda end: (end[0] is None, end[0] or Fraction(0), end[1]))
    if low is not None and high is not None and (low > high or (low == high and not (low_in and high_in))):
        return None
    return (low, low_in, high, high_in)


def _complement(pieces: list[Piece]) -> list[Piece]:
    """The rest of the line."""
    rest: list[Piece] = [(None, False, None, False)]
    for low, low_in, high, high_in in pieces:
        outside: list[Piece] = []
        if low is not None:
            outside.append((None, False, low, not low_in))
        if high is not None:
            outside.append((high, not high_in, None, False))
        rest = _shared(rest, outside)
    return rest


def _merged(pieces: list[Piece]) -> list[Piece]:
    ordered = sorted(pieces, key=lambda p: (p[0] is not None, p[0] or Fraction(0), not p[1]))
    merged: list[Piece] = []
    for piece in ordered:
        if merged and _touch(merged[-1], piece):
            merged[-1] = _join(merged[-1], piece)
        else:
            merged.append(piece)
    return merged


def _touch(left: Piece, right: Piece) -> bool:
    """Whether two pieces, the left one starting first, leave no gap."""
    if left[2] is None or right[0] is None:
        return True
    return right[0] < left[2] or (right[0] == left[2] and (left[3] or right[1]))


def _join(left: Piece, right: Piece) -> Piece:
    low_in = left[1] or (right[1] and left[0] == right[0])
    if left[2] is None or right[2] is None:
        return (left[0], low_in, None, False)
    if left[2] == right[2]:
        return (left[0], low_in, left[2], left[3] or right[3])
    high, high_in = (left[2], left[3]) if left[2] > right[2] else (right[2], right[3])
    return (left[0], low_in, high, high_in)
