"""Which answers are the same answer, as the grader sees it: the classes that maj@k counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dapo.types import Equal

MOST_COMPARED = 64  # spellings; their pairs grow with the square


def classes(answers: Sequence[str | None], equal: Equal) -> list[int | None]:
    """The class of each answer, numbered by first appearance; None where there is no answer.

    Args:
        answers: as extracted.
        equal: asked about pairs (a, b) of distinct spellings: does b answer a?

    Two answers are in one class when either answers the other, closed transitively, so the order of the
    answers only changes the numbers. 1/2, 0.5 and \\frac{1}{2} are one vote. Of more than 64 spellings the most
    frequent 64 are compared; the others, each of them rare, stand for themselves.

    >>> classes(["1/2", None, "0.5", "3"], lambda pairs: [set(pair) == {"1/2", "0.5"} for pair in pairs])
    [0, None, 0, 1]
    """
    often = Counter(answer for answer in answers if answer is not None)
    distinct = list(often)
    compared = [answer for answer, _ in often.most_common(MOST_COMPARED)]
    pairs = [(a, b) for i, a in enumerate(compared) for b in compared[i + 1 :]]
    forward = equal(pairs) if pairs else []
    rest = [(b, a) for (a, b), same in zip(pairs, forward, strict=True) if not same]
    backward = equal(rest) if rest else []
    joined = [pair for pair, same in zip([*pairs, *rest], [*forward, *backward], strict=True) if same]
    leader = _leaders(distinct, joined)
    numbers: dict[str, int] = {}
    for answer in distinct:
        numbers.setdefault(leader[answer], len(numbers))
    return [None if answer is None else numbers[leader[answer]] for answer in answers]


def _leaders(items: Sequence[str], joined: Sequence[tuple[str, str]]) -> dict[str, str]:
    """One representative for each connected part."""
    leader = {item: item for item in items}

    def find(item: str) -> str:
        while leader[item] != item:
            item = leader[item]
        return item

    for a, b in joined:
        leader[find(b)] = find(a)
    return {item: find(item) for item in items}
