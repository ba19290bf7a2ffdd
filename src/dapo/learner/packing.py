"""How rows are laid out for the model: lanes, micro-batches, masks, and the one shift.

A lane is one sequence of the forward pass: a prompt followed by one response (the padded form)
or by several responses of that prompt, each of which sees the prompt and itself alone. So a
prompt is computed once for its group, and the gradient is that of the repeated form.

Legend: B rows of the batch, T their width, N response tokens of a micro-batch, n lanes, W width
of a lane.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dapo.types import Batch

Packing = Literal["shared_prompt", "padded"]
Lane = tuple[int, ...]  # rows of one lane; all of one draw


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Inputs of one forward pass and where its results belong.

    token_ids_nW, position_ids_nW: i64. mask: bool [n, 1, W, W], or None for plain causal.
    lane_N, source_N: where in (n, W) each response token is PREDICTED: one place before it
        (its prompt's last place for a first token). This is the only shift in the project.
    row_N, column_N: the token's own entry in the batch's [B, T] tensors.
    target_N: i64, the tokens.
    rows: the batch rows in this micro-batch.
    """

    token_ids_nW: Tensor
    position_ids_nW: Tensor
    mask: Tensor | None
    lane_N: Tensor
    source_N: Tensor
    row_N: Tensor
    column_N: Tensor
    target_N: Tensor
    rows: tuple[int, ...]


def plan_lanes(batch: Batch, rows: Sequence[int], packing: Packing, budget: int) -> list[Lane]:
    """Lanes that hold each of these rows once, each within `budget` tokens where a row allows it."""
    if packing == "padded":
        return [(row,) for row in rows]
    groups: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        groups[int(batch.draw[row])].append(row)
    lanes: list[Lane] = []
    for members in groups.values():
        lane: list[int] = []
        width = 0
        for row in members:
            prompt, total = int(batch.prompt_lengths[row]), int(batch.lengths[row])
            added = total - prompt
            if lane and width + added > budget:
                lanes.append(tuple(lane))
                lane = []
            if not lane:
                width = prompt
            lane.append(row)
            width += added
        lanes.append(tuple(lane))
    return lanes


def lane_width(batch: Batch, lane: Lane) -> int:
    """Tokens of a lane: its prompt once, then its responses."""
    index = list(lane)
    prompt = int(batch.prompt_lengths[index[0]])
    return prompt + int((batch.lengths[index] - batch.prompt_lengths[index]).sum())


def cut(batch: Batch, rows: Sequence[int], packing: Packing, budget: int) -> list[list[Lane]]:
    """Micro-batches of lanes: longest first, so that padding is small; lanes * width <= budget.

    A lane over the budget gets a micro-batch of its own. Ties keep the batch's order.
    """
    lanes = plan_lanes(batch, rows, packing, budget)
    widths = {lane: lane_width(batch, lane) for lane in lanes}
    result: list[list[Lane]] = []
    for lane in sorted(lanes, key=lambda lane: -widths[lane]):
        if result and (len(result[-1]) + 1) * widths[result[-1][0]] <= budget:
            result[-1].append(lane)
        else:
            result.append([lane])
    return result


def build(batch: Batch, lanes: Sequence[Lane]) -> MicroBatch:
    """The tensors of one micro-batch."""
    width = max(lane_width(batch, lane) for lane in lanes)
    token_ids = torch.zeros(len(lanes), width, dtype=torch.long)
    positions = torch.arange(width).repeat(len(lanes), 1)
    segment = torch.full((len(lanes), width), -1)
    lane_index, source, row_index, column = [], [], [], []
    for index, lane in enumerate(lanes):
        prompt = int(batch.prompt_lengths[lane[0]])
        token_ids[index, :prompt] = batch.token_ids[lane[0], :prompt]
        segment[index, :prompt] = 0
        place = prompt
        for number, row in enumerate(lane, start=1):
            count = int(batch.lengths[row]) - prompt
            token_ids[index, place : place + count] = batch.token_ids[row, prompt : prompt + count]
            positions[index, place : place + count] = torch.arange(prompt, prompt + count)
            segment[index, place : place + count] = number
            # Response token t stands at place + t and is predicted one place before it.
            predicted_at = torch.arange(place - 1, place + count - 1)
            if count:
                predicted_at[0] = prompt - 1
            source.append(predicted_at)
            lane_index.append(torch.full((count,), index))
            row_index.append(torch.full((count,), row))
            column.append(torch.arange(prompt, prompt + count))
            place += count
    row_N, column_N = torch.cat(row_index), torch.cat(column)
    shared = any(len(lane) > 1 for lane in lanes)
    return MicroBatch(
        token_ids_nW=token_ids,
        position_ids_nW=positions,
        mask=_mask(segment) if shared else None,
        lane_N=torch.cat(lane_index),
        source_N=torch.cat(source),
        row_N=row_N,
        column_N=column_N,
        target_N=batch.token_ids[row_N, column_N],
        rows=tuple(row for lane in lanes for row in lane),
    )


def _mask(segment_nW: Tensor) -> Tensor:
    """bool [n, 1, W, W]: a token sees earlier tokens of its prompt and of its own response.

    Padding sees the prompt, so that no row of the softmax is empty; nothing sees padding.
    """
    width = segment_nW.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    key, query = segment_nW.unsqueeze(1), segment_nW.unsqueeze(2)
    visible = causal & ((key == 0) | ((key == query) & (key >= 0)))
    return visible.unsqueeze(1)


def microbatches(batch: Batch, rows: Sequence[int], packing: Packing, budget: int) -> Iterator[MicroBatch]:
    """The micro-batches of these rows, built one at a time."""
    for lanes in cut(batch, rows, packing, budget):
        yield build(batch, lanes)
