"""How rows are laid out for the model: lanes, micro-batches, and the one shift.

A lane is a prompt followed by one response or by several of that prompt, each of which sees the
prompt and itself alone. So a prompt is computed once for its group, and the gradient is that of
the repeated form. Two forms:

padded          a row of the input for each response, padded to the longest: the plain form
shared_prompt   lanes of many responses, one behind the other in a single row, without padding

Legend: B rows of the batch, T their width, N response tokens of a micro-batch, n rows of the
input, W their width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dapo.learner.lane_attention import Layout, Run, lay_out
from dapo.types import Batch

Packing = Literal["shared_prompt", "padded"]
Lane = tuple[int, ...]  # rows of one lane; all of one draw


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Inputs of one forward pass and where its results belong.

    token_ids_nW, position_ids_nW: i64.
    layout: who sees whom in the single row of the shared form; None for plain causal rows.
    input_N, source_N: where in (n, W) each response token is PREDICTED: one place before it
        (its prompt's last place for a first token). This is the only shift in the project.
    row_N, column_N: the token's own entry in the batch's [B, T] tensors.
    target_N: i64, the tokens.
    rows: the batch rows in this micro-batch.
    """

    token_ids_nW: Tensor
    position_ids_nW: Tensor
    layout: Layout | None
    input_N: Tensor
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
    """Micro-batches of lanes, longest first, of at most `budget` tokens (padding included).

    A lane over the budget gets a micro-batch of its own. Ties keep the batch's order.
    """
    lanes = plan_lanes(batch, rows, packing, budget)
    widths = {lane: lane_width(batch, lane) for lane in lanes}
    result: list[list[Lane]] = []
    size = 0
    for lane in sorted(lanes, key=lambda lane: -widths[lane]):
        added = widths[lane] if packing == "shared_prompt" or not result else widths[result[-1][0]]
        if result and size + added <= budget:
            result[-1].append(lane)
            size += added
        else:
            result.append([lane])
            size = widths[lane]
    return result


def build(batch: Batch, lanes: Sequence[Lane], packing: Packing) -> MicroBatch:
    """The tensors of one micro-batch."""
    placed = list(_placed(batch, lanes, packing))
    height, width = placed[-1].input + 1, max(run.start + run.count for run in placed)
    token_ids = torch.zeros(height, width, dtype=torch.long)
    positions = torch.arange(width).repeat(height, 1)
    source, inputs, row_index, column = [], [], [], []
    for run in placed:
        own = torch.arange(run.column, run.column + run.count)
        token_ids[run.input, run.start : run.start + run.count] = batch.token_ids[run.row, own]
        positions[run.input, run.start : run.start + run.count] = own
        if run.predicted_first is None or not run.count:
            continue  # a prompt, or nothing
        # Response token t stands at start + t and is predicted one place before it.
        predicted_at = torch.arange(run.start - 1, run.start + run.count - 1)
        predicted_at[0] = run.predicted_first
        source.append(predicted_at)
        inputs.append(torch.full((run.count,), run.input))
        row_index.append(torch.full((run.count,), run.row))
        column.append(own)
    row_N, column_N = _joined(row_index), _joined(column)
    return MicroBatch(
        token_ids_nW=token_ids,
        position_ids_nW=positions,
        layout=lay_out(list(_runs(placed)), width) if packing == "shared_prompt" else None,
        input_N=_joined(inputs),
        source_N=_joined(source),
        row_N=row_N,
        column_N=column_N,
        target_N=batch.token_ids[row_N, column_N],
        rows=tuple(row for lane in lanes for row in lane),
    )


@dataclass(frozen=True, slots=True)
class _Placed:
    """`count` tokens of a batch row from `column` on, laid out at (input, start).

    predicted_first: of a response, where its first token is predicted: the end of its prompt.
    """

    input: int
    start: int
    row: int
    column: int
    count: int
    predicted_first: int | None = None


def _placed(batch: Batch, lanes: Sequence[Lane], packing: Packing) -> Iterator[_Placed]:
    """The prompt and the responses of each lane."""
    place = 0
    for index, lane in enumerate(lanes):
        where = 0 if packing == "shared_prompt" else index
        place = place if packing == "shared_prompt" else 0
        prompt = int(batch.prompt_lengths[lane[0]])
        yield _Placed(where, place, lane[0], 0, prompt)
        place += prompt
        last = place - 1
        for row in lane:
            count = int(batch.lengths[row]) - prompt
            yield _Placed(where, place, row, prompt, count, last)
            place += count


def _runs(placed: Sequence[_Placed]) -> Iterator[Run]:
    """What attends causally by itself: a prompt, or all of a lane of one response; and responses behind a prompt."""
    prompts = [index for index, run in enumerate(placed) if run.predicted_first is None]
    for begin, end in zip(prompts, [*prompts[1:], len(placed)], strict=True):
        prompt, responses = placed[begin], placed[begin + 1 : end]
        if len(responses) == 1:
            yield Run(prompt.start, prompt.count + responses[0].count)
            continue
        yield Run(prompt.start, prompt.count)
        for response in responses:
            yield Run(response.start, response.count, (prompt.start, prompt.count))


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)


def microbatches(batch: Batch, rows: Sequence[int], packing: Packing, budget: int) -> Iterator[MicroBatch]:
    """The micro-batches of these rows, built one at a time."""
    for lanes in cut(batch, rows, packing, budget):
        yield build(batch, lanes, packing)
