"""Which rows each rank of a sharded learner works on: a pure function, so that no rank has to ask another."""

from __future__ import annotations

from collections.abc import Sequence

from dapo.learner.packing import Lane, Packing, cut, lane_width, plan_lanes
from dapo.types import Batch


def share(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices of each rank's items: longest first, each to the rank with the fewest tokens so far, of equals the first.

    No rank has more tokens than the mean plus the longest item. Indices of a rank ascend. Ranks may get none.

    >>> share([5, 3, 3, 1], 2)
    [[0, 3], [1, 2]]
    """
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        rank = min(range(ranks), key=lambda rank: (tokens[rank], len(dealt[rank])))
        dealt[rank].append(index)
        tokens[rank] += lengths[index]
    return [sorted(own) for own in dealt]


def deal(batch: Batch, rows: Sequence[int], packing: Packing, budget: int, ranks: int) -> list[list[int]]:
    """The rows of each rank, each row once. Lanes of no more than a rank's fair share of tokens stay whole."""
    if ranks == 1:
        return [list(rows)]
    fair = -(-_tokens(batch, plan_lanes(batch, rows, packing, budget)) // ranks)
    lanes = plan_lanes(batch, rows, packing, min(budget, fair))
    dealt = share([lane_width(batch, lane) for lane in lanes], ranks)
    return [[row for index in own for row in lanes[index]] for own in dealt]


def cuts(batch: Batch, rows: Sequence[int], packing: Packing, budget: int, ranks: int) -> list[list[list[Lane]]]:
    """The micro-batches of each rank."""
    return [cut(batch, own, packing, budget) for own in deal(batch, rows, packing, budget, ranks)]


def _tokens(batch: Batch, lanes: Sequence[Lane]) -> int:
    return sum(lane_width(batch, lane) for lane in lanes)
