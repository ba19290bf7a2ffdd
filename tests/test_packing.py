"""Lanes, cuts and masks: every response token is predicted from its own prefix and nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo.learner.lane_attention import Layout
from dapo.learner.packing import Lane, MicroBatch, Packing, build, cut, lane_width, microbatches, plan_lanes
from dapo.types import Batch
from helpers_learner import NO_TOKEN, SHAPE, Gradients, Row, batch_of, distance, rows_of, torch_learner, with_old

PACKINGS: tuple[Packing, ...] = ("shared_prompt", "padded")
checked = settings(max_examples=40, deadline=None, derandomize=True)
shapes = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(0, 7), min_size=1, max_size=5)), min_size=1, max_size=4
)


def shuffled(rows: Sequence[Row], seed: int) -> list[Row]:
    """The rows in another order."""
    return random.Random(seed).sample(list(rows), len(rows))


def width_of(rows: Sequence[Row]) -> int:
    """Tokens of these rows of one draw in a lane, straight from the rows."""
    return len(rows[0].prompt) + sum(len(row.response) for row in rows)


def check_micro(micro: MicroBatch, rows: Sequence[Row], batch: Batch) -> set[tuple[int, int]]:
    """Each token's query sees exactly its prefix, in order; returns the (row, column) it predicts."""
    assert int(micro.token_ids_nW.max()) < NO_TOKEN, "padding of the batch was read"
    predicted = set()
    for n in range(len(micro.target_N)):
        place, source = int(micro.input_N[n]), int(micro.source_N[n])
        row, column = int(micro.row_N[n]), int(micro.column_N[n])
        sequence = rows[row].prompt + rows[row].response
        assert column >= len(rows[row].prompt)
        assert int(micro.target_N[n]) == sequence[column]
        visible = list(range(source + 1)) if micro.layout is None else sees(micro.layout, source)
        assert micro.position_ids_nW[place, visible].tolist() == list(range(column))
        assert micro.token_ids_nW[place, visible].tolist() == list(sequence[:column])
        assert (row, column) not in predicted
        predicted.add((row, column))
    if micro.layout is not None:
        assert micro.token_ids_nW.shape == (1, len(micro.layout.result_N)), "padding in the row"
        masks = [part.mask_R1LC for part in micro.layout.parts if part.mask_R1LC is not None]
        assert all(mask.any(dim=-1).all() for mask in masks), "an empty row of the softmax gives NaN"
    return predicted


def sees(layout: Layout, token: int) -> list[int]:
    """Places that a token of the row attends to, read off the part its result comes from."""
    index = int(layout.result_N[token])
    for part in layout.parts:
        rows, longest = part.places_RL.shape
        if index < rows * longest:
            run, step = divmod(index, longest)
            own = part.places_RL[run].tolist()
            assert own[step] == token
            if part.mask_R1LC is None or part.prefix_nP is None or part.owner_R is None:
                return own[: step + 1]
            both = [*part.prefix_nP[part.owner_R[run]].tolist(), *own]
            return [place for place, seen in zip(both, part.mask_R1LC[run, 0, step], strict=True) if seen]
        index -= rows * longest
    raise AssertionError("no part holds this token")


@checked
@given(shape=shapes, budget=st.integers(1, 60), packing=st.sampled_from(PACKINGS), seed=st.integers(0, 9))
def test_every_token_sees_its_own_prefix(
    shape: list[tuple[int, list[int]]], budget: int, packing: Packing, seed: int
) -> None:
    """The packed form must be the repeated form: same prefix, same positions, same targets, each once."""
    rows = shuffled(rows_of(shape), seed)
    batch = batch_of(rows)
    predicted: set[tuple[int, int]] = set()
    seen: list[int] = []
    for micro in microbatches(batch, range(len(rows)), packing, budget):
        found = check_micro(micro, rows, batch)
        assert not found & predicted
        predicted |= found
        seen += micro.rows
    assert sorted(seen) == list(range(len(rows)))
    tokens = {(b, t) for b, row in enumerate(rows) for t in range(len(row.prompt), len(row.prompt + row.response))}
    assert predicted == tokens


@checked
@given(shape=shapes, budget=st.integers(1, 60), packing=st.sampled_from(PACKINGS), seed=st.integers(0, 9))
def test_cut_holds_every_row_once_within_the_budget(
    shape: list[tuple[int, list[int]]], budget: int, packing: Packing, seed: int
) -> None:
    """The budget bounds memory: only a row that alone is too long may exceed it, and then alone."""
    rows = shuffled(rows_of(shape), seed)
    micros = cut(batch_of(rows), range(len(rows)), packing, budget)
    assert sorted(b for lanes in micros for lane in lanes for b in lane) == list(range(len(rows)))
    widths = []
    for lanes in micros:
        wide = [width_of([rows[b] for b in lane]) for lane in lanes]
        assert len(lanes) == 1 or (sum(wide) if packing == "shared_prompt" else len(lanes) * max(wide)) <= budget
        assert all(len(lane) == 1 or w <= budget for lane, w in zip(lanes, wide, strict=True))
        assert all(len({rows[b].draw for b in lane}) == 1 for lane in lanes)
        assert packing == "shared_prompt" or all(len(lane) == 1 for lane in lanes)
        widths += wide
    assert widths == sorted(widths, reverse=True), "longest first keeps padding small"


def test_only_chosen_rows_are_laid_out() -> None:
    """Rows without loss tokens are left out of an update's passes."""
    rows = rows_of(SHAPE)
    micros = cut(batch_of(rows), [8, 1, 3], "shared_prompt", 1000)
    assert sorted(b for lanes in micros for lane in lanes for b in lane) == [1, 3, 8]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        # Prompt 4, responses 5, 1, 0, 3: 4+5+1+0 = 10, and 3 more would be 13.
        (12, [(0, 1, 2), (3,)]),
        (13, [(0, 1, 2, 3)]),
        (10, [(0, 1, 2), (3,)]),
        (9, [(0,), (1, 2, 3)]),  # 4+5 = 9; then 4+1+0+3 = 8
        (1, [(0,), (1,), (2,), (3,)]),
    ],
)
def test_a_draw_splits_over_lanes(budget: int, expected: list[Lane]) -> None:
    """A group that does not fit is spread over lanes, each with the prompt again."""
    batch = batch_of(rows_of([(4, (5, 1, 0, 3))]))
    assert plan_lanes(batch, range(4), "shared_prompt", budget) == expected
    assert plan_lanes(batch, range(4), "padded", budget) == [(0,), (1,), (2,), (3,)]


def test_golden_layout() -> None:
    """Prompt [7, 8], responses [9, 10] and [11]: written out by hand, so that both sides can't be wrong alike."""
    rows = [Row(draw=0, prompt=(7, 8), response=(9, 10)), Row(draw=0, prompt=(7, 8), response=(11,))]
    batch = batch_of(rows)
    assert lane_width(batch, (0, 1)) == 5
    micro = build(batch, [(0, 1)], "shared_prompt")
    assert micro.token_ids_nW.tolist() == [[7, 8, 9, 10, 11]]
    assert micro.position_ids_nW.tolist() == [[0, 1, 2, 3, 2]]  # both responses start at position 2
    assert micro.source_N.tolist() == [1, 2, 1]  # 9 and 11 are predicted at the prompt's last token
    assert (micro.input_N.tolist(), micro.row_N.tolist()) == ([0, 0, 0], [0, 0, 1])
    assert (micro.column_N.tolist(), micro.target_N.tolist()) == ([2, 3, 2], [9, 10, 11])
    assert micro.layout is not None
    # 11 sees the prompt and itself, not 9 and 10.
    assert [sees(micro.layout, token) for token in range(5)] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4]]


def test_golden_cut() -> None:
    """Widths 9, 5, 4, 7, a budget of 14: 9 | 7 5 | 4, since padded 2 x 9 > 14 and 3 x 7 > 14; ties keep order."""
    batch = batch_of(rows_of([(4, (5, 1, 0, 3))]))
    assert cut(batch, range(4), "padded", 14) == [[(0,)], [(3,), (1,)], [(2,)]]
    apart = batch_of(rows_of([(4, (5,)), (4, (1,)), (4, (0,)), (4, (3,))]))
    assert cut(apart, range(4), "shared_prompt", 16) == [[(0,), (3,)], [(1,), (2,)]]  # 9 + 7, then 5 + 4: no padding
    equal = batch_of(rows_of([(2, (1, 1, 1))]))
    assert cut(equal, [2, 0, 1], "padded", 6) == [[(2,), (0,)], [(1,)]]


# --- through the model ----------------------------------------------------------------------------

ALL_EMPTY = ((2, (0, 0)), (1, (0,)))


@pytest.mark.parametrize("budget", [1, 9, 24, 10_000])
def test_shared_prompts_are_repeated_prompts(budget: int) -> None:
    """A prompt computed once for its group gives the log-probs and gradients of one row per response.

    Bounds: 2e-5 absolute for a log-prob, 1e-5 relative for a gradient (float32, other shapes of the
    same sums).
    """
    batch = batch_of(rows_of(SHAPE))
    padded = torch_learner(packing="padded", tokens_per_microbatch=10_000)
    packed = torch_learner(packing="shared_prompt", tokens_per_microbatch=budget)
    batch = with_old(batch, padded, noise=0.5)
    assert (packed.logprobs(batch) - padded.logprobs(batch)).abs().max() < 2e-5
    assert distance(Gradients(packed).of(batch), Gradients(padded).of(batch)) < 1e-5


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("knobs", [{}, {"gradient_checkpointing": True}])
def test_all_responses_empty(packing: Packing, knobs: dict[str, Any]) -> None:
    """Nothing to predict: log-probs of zero and an update that changes nothing, not a failure."""
    learner = torch_learner(packing=packing, **knobs)
    batch = batch_of(rows_of(ALL_EMPTY))
    old = learner.logprobs(batch)
    assert old.shape == batch.token_ids.shape
    assert not old.any()
    before = [p.clone() for p in learner.model.parameters()]
    metrics = learner.update(replace(batch, old_logprobs=old), 0.1)
    assert metrics["grad/norm"] == metrics["grad/nonfinite"] == 0
    assert all(torch.equal(p, q) for p, q in zip(learner.model.parameters(), before, strict=True))
