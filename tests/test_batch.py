"""Which tokens and rows train, with what advantage, in which mini-batch, at which rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import reference as ref
from dapo.algorithm import row_weights
from dapo.batch import make_batch, minibatches, with_advantages
from dapo.config.schema import Config
from dapo.loop import update
from dapo.metrics import batch_metrics, update_metrics
from dapo.parts import learning_rate
from dapo.types import Batch, Finish, Group, Pending, TrainState
from helpers_learner import EOS, config, group, response

PAD = 0
A, B, C = 10, 11, 12


def one(token_ids: Sequence[int], eos_ids: Sequence[int] = (EOS,), overlong: str = "soft", **more: Any) -> list[bool]:
    """The loss mask of one response behind a prompt of two tokens."""
    made = response(token_ids, **more)
    groups = [group(0, [5, 6], [made, response([A, B, C, A, EOS])], [1.0, -1.0])]
    batch = make_batch(groups, eos_ids, config(reward__overlong=overlong))
    assert not batch.loss_mask[0, :2].any(), "the prompt never trains"
    assert not batch.loss_mask[0, 2 + len(token_ids) :].any(), "padding never trains"
    mask: list[bool] = batch.loss_mask[0, 2 : 2 + len(token_ids)].tolist()
    return mask


@pytest.mark.parametrize(
    ("token_ids", "eos_ids", "expected"),
    [
        ([A, B, EOS], (EOS,), "111"),  # the EOS itself trains, once
        ([A, EOS, B, EOS], (EOS,), "1100"),  # nothing after it, not even another EOS
        ([EOS], (EOS,), "1"),
        ([EOS, EOS], (EOS,), "10"),
        ([A, B, C], (EOS,), "111"),  # truncated: all of it
        ([], (EOS,), ""),
        ([A, PAD], (PAD,), "11"),  # pad = eos: only the place tells padding from the end
        ([PAD, A], (PAD,), "10"),
        ([A, PAD, B, EOS], (EOS,), "1111"),  # a pad id inside a response is a token
        ([A, C, B, EOS], (EOS, C), "1100"),  # several EOS ids: the first of any
        ([A, EOS, C], (C, EOS), "110"),
    ],
)
def test_the_mask_ends_with_the_first_eos(token_ids: list[int], eos_ids: tuple[int, ...], expected: str) -> None:
    """A model learns to stop only if the EOS trains, and learns noise if anything after it does."""
    assert one(token_ids, eos_ids) == [c == "1" for c in expected]


@pytest.mark.parametrize(
    ("token_ids", "generated", "expected"),
    [
        ([A, B, C, EOS], "1001", "1001"),
        ([A, B, EOS], "111", "111"),
        ([A, B, EOS, C], "0011", "0010"),
        ([A, B], "00", "00"),
    ],
)
def test_tokens_not_generated_stay_out(token_ids: list[int], generated: str, expected: str) -> None:
    """What a tool or template put in was not the policy's choice."""
    assert one(token_ids, generated=[c == "1" for c in generated]) == [c == "1" for c in expected]


@pytest.mark.parametrize("overlong", ["none", "hard", "soft", "filter", "soft+filter"])
@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH])
def test_only_truncated_rows_are_filtered(overlong: str, finish: Finish) -> None:
    """DESIGN 4: an EOS exactly at Lmax is finish STOP and is not filtered; LENGTH is, where asked."""
    token_ids = [A, B, EOS] if finish is Finish.STOP else [A, B, C]
    filtered = finish is Finish.LENGTH and "filter" in overlong
    assert one(token_ids, overlong=overlong, finish=finish) == [not filtered] * 3


def two_groups() -> list[Group]:
    """One prompt drawn twice: draws 8 and 3. The last response of draw 8 is truncated."""
    return [
        group(
            8, [5, 6], [response([A, EOS]), response([B, EOS]), response([A, B, C, A])], [1.0, -1.0, -1.0], [0, 0, -1.0]
        ),
        group(3, [5, 6], [response([C, B, EOS]), response([EOS]), response([A, A, EOS])], [1.0, 1.0, -1.0]),
    ]


def test_golden_batch() -> None:
    """Every tensor of a batch, written out by hand."""
    groups = [
        group(
            4,
            [5, 6],
            [response([A, EOS], engine_logprobs=[-0.5, -0.25]), response([], finish=Finish.LENGTH)],
            [1.0, -1.0],
        ),
        group(2, [7], [response([B], engine_logprobs=[-2.0]), response([EOS], engine_logprobs=[-3.0])], [1.0, -1.0]),
    ]
    batch = make_batch(groups, [EOS], config())
    assert batch.draw.tolist() == [4, 4, 2, 2]
    assert batch.prompt_lengths.tolist() == [2, 2, 1, 1]
    assert batch.lengths.tolist() == [4, 2, 2, 2]
    assert batch.token_ids.tolist() == [[5, 6, A, EOS], [5, 6, 0, 0], [7, B, 0, 0], [7, EOS, 0, 0]]
    assert batch.loss_mask.int().tolist() == [[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]]
    assert batch.engine_logprobs.tolist() == [[0, 0, -0.5, -0.25], [0] * 4, [0, -2, 0, 0], [0, -3, 0, 0]]
    assert batch.loss_tokens.tolist() == [2, 0, 1, 1]
    assert batch.old_logprobs is None
    assert batch.ref_logprobs is None
    assert not batch.row_weights.any()
    assert batch.token_ids.dtype == batch.draw.dtype == torch.int64
    assert batch.loss_mask.dtype == torch.bool
    assert batch.row_weights.dtype == torch.float64
    assert batch.engine_logprobs.dtype == torch.float32


def test_a_filtered_row_keeps_its_place_in_the_statistics() -> None:
    """Overlong filtering takes a row out of the loss, not out of mean and std (DESIGN 4)."""
    settings = config(reward__overlong="soft+filter", sampling__prompts_per_step=2, train__updates_per_step=1)
    batch = with_advantages(make_batch(two_groups(), [EOS], settings), two_groups(), settings)
    # Shaped rewards of draw 8: 1, -1, -2; all three count.
    expected = ref.group_advantages([1.0, -1.0, -2.0], 1, 1e-6) + ref.group_advantages([1.0, 1.0, -1.0], 1, 1e-6)
    assert batch.advantages.tolist() == pytest.approx(expected, rel=1e-6)
    (minibatch,) = minibatches(batch, settings, lambda _: [])
    assert batch.loss_tokens.tolist() == [2, 2, 0, 3, 1, 3]
    # 11 loss tokens; the truncated row's 4 are in neither numerator nor denominator.
    assert minibatch.row_weights.tolist() == pytest.approx([1 / 11, 1 / 11, 0, 1 / 11, 1 / 11, 1 / 11], rel=1e-12)


def test_a_prompt_drawn_twice_makes_two_groups() -> None:
    """Law 4: advantages and the group reduction go by draw, never by prompt."""
    settings = config(algorithm__reduction="group", sampling__prompts_per_step=2, train__updates_per_step=1)
    groups = two_groups()
    batch = with_advantages(make_batch(groups, [EOS], settings), groups, settings)
    assert batch.advantages[:3].sum().abs() < 1e-5
    assert batch.advantages[3:].sum().abs() < 1e-5
    (minibatch,) = minibatches(batch, settings, lambda _: [])
    # Draw 8 has 2+2+4 tokens, draw 3 has 3+1+3; each group counts one half. One merged group: 1/15.
    assert minibatch.row_weights.tolist() == pytest.approx([1 / 16] * 3 + [1 / 14] * 3, rel=1e-12)


@pytest.mark.parametrize(("correction", "eps"), [(1, 1e-6), (0, 0.1)])
def test_advantages_take_the_shaped_reward(correction: int, eps: float) -> None:
    """Eq. 9 over reward + overlong, with the configured std correction and eps."""
    settings = config(algorithm__std_correction=correction, algorithm__advantage_eps=eps)
    batch = with_advantages(make_batch(two_groups(), [EOS], settings), two_groups(), settings)
    expected = ref.group_advantages([1, -1, -2], correction, eps) + ref.group_advantages([1, 1, -1], correction, eps)
    assert batch.advantages.tolist() == pytest.approx(expected, rel=1e-6)
    assert batch.advantages.dtype == torch.float32


def test_kl_in_the_reward() -> None:
    """coef times the summed k3 of a response's LOSS tokens comes off its reward; junk elsewhere does not."""
    coef = 0.5
    settings = config(algorithm__kl={"place": "reward", "coef": coef})
    groups = two_groups()
    batch = make_batch(groups, [EOS], settings)
    generator = torch.Generator().manual_seed(0)
    old, reference = (-torch.rand(batch.token_ids.shape, generator=generator) * 2 for _ in range(2))
    junk = torch.where(batch.loss_mask, reference, torch.full_like(reference, 50.0))
    got = with_advantages(replace(batch, old_logprobs=old, ref_logprobs=junk), groups, settings).advantages
    expected: list[float] = []
    for number, g in enumerate(groups):
        rewards = []
        for index, rollout in enumerate(g.rollouts):
            b = 3 * number + index
            places = range(2, 2 + rollout.response.num_tokens)
            kl = sum(ref.kl_k3(float(old[b, t]), float(reference[b, t])) for t in places)
            rewards.append(rollout.score.reward + rollout.overlong - coef * kl)
        expected += ref.group_advantages(rewards, 1, 1e-6)
    assert got.tolist() == pytest.approx(expected, rel=1e-5)


# --- mini-batches ---------------------------------------------------------------------------------


def many(count: int, size: int = 2) -> tuple[Batch, list[int]]:
    """A batch of `count` draws in a scrambled numbering, whose tokens name their row."""
    draws = [(7 * n) % 31 for n in range(count)]
    groups = [
        group(d, [5] * (1 + n % 3), [response([4 + n, 4 + i, *[A] * n, EOS]) for i in range(size)], [1.0, -1.0])
        for n, d in enumerate(draws)
    ]
    batch = make_batch(groups, [EOS], config())
    return replace(batch, advantages=torch.arange(batch.num_rows, dtype=torch.float32)), draws


def updates_config(mu: int, **more: Any) -> Config:
    return config(sampling__prompts_per_step=mu * 12, train__updates_per_step=mu, **more)


@pytest.mark.parametrize(
    ("groups", "mu", "sizes"),
    [(6, 1, [6]), (6, 2, [3, 3]), (6, 3, [2, 2, 2]), (6, 6, [1] * 6), (2, 4, [1, 1]), (1, 4, [1]), (5, 2, [3, 2])],
)
def test_minibatches_are_whole_groups_in_order(groups: int, mu: int, sizes: list[int]) -> None:
    """mu updates, every row in exactly one; train_short may leave fewer groups than mu."""
    batch, draws = many(groups)
    parts = list(minibatches(batch, updates_config(mu), lambda _: []))
    found = [list(dict.fromkeys(part.draw.tolist())) for part in parts]
    assert [len(part) for part in found] == sizes
    assert [draw for part in found for draw in part] == draws
    assert torch.cat([part.advantages for part in parts]).tolist() == list(range(2 * groups))
    assert torch.equal(torch.cat([part.token_ids for part in parts]), batch.token_ids)
    assert all(math.isclose(float((p.row_weights * p.loss_tokens).sum()), 1.0, rel_tol=1e-12) for p in parts)


def test_rows_in_any_order_stay_with_their_group() -> None:
    """Rows of a draw need not stand together; the order of first sight decides."""
    batch, draws = many(4)
    order = [5, 0, 3, 1, 4, 7, 2, 6]
    parts = list(minibatches(batch.take(order), updates_config(2), lambda _: []))
    # Rows 2n and 2n+1 are of group n: first seen are groups 2, 0, then 1, 3.
    assert [part.advantages.tolist() for part in parts] == [[5, 0, 1, 4], [3, 7, 2, 6]]
    assert set(parts[0].draw.tolist()) == {draws[2], draws[0]}


@pytest.mark.parametrize("reduction", ref.REDUCTIONS)
def test_weights_come_from_the_minibatch_alone(reduction: str) -> None:
    """The denominator is the mini-batch's, in the configured scope; a cut is asked of the mini-batch itself."""
    batch, _ = many(4)
    settings = updates_config(
        2, algorithm__reduction=reduction, algorithm__constant_tokens=9 if reduction == "constant" else "off"
    )
    asked: list[list[int]] = []

    def cut(minibatch: Batch) -> list[list[int]]:
        asked.append(minibatch.draw.tolist())
        return [[0, 3], [1], [2]]

    parts = list(minibatches(batch, settings, cut))
    assert asked == ([part.draw.tolist() for part in parts] if reduction == "microbatch" else [])
    for part in parts:
        alone = row_weights(
            part.loss_tokens,
            part.draw,
            reduction,  # type: ignore[arg-type]
            constant_tokens=9,
            microbatches=[[0, 3], [1], [2]],
        )
        assert torch.equal(part.row_weights, alone)
    if reduction == "constant":
        assert parts[0].row_weights.tolist() == pytest.approx([1 / 36] * 4, rel=1e-12)  # 4 rows x 9


# --- what the loop derives ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("warmup", "expected"),
    [
        # base * min(1, step / (w + 1)): w = 3 gives a quarter, a half, three quarters, then all of it.
        (3, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        (0, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        (1, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_golden_learning_rate(warmup: int, expected: list[float]) -> None:
    """Warm-up counts rollout steps and is over 0 at step 1, or the first step would be wasted."""
    settings = config(train__learning_rate=2e-6, train__warmup_rollout_steps=warmup)
    got = [learning_rate(step, settings) / 2e-6 for step in range(1, 7)]
    assert got == pytest.approx(expected, rel=1e-12)


def test_golden_paper_learning_rate() -> None:
    """The paper's 1e-6 over 20 rollout steps: 1/21 of it at step 1, 20/21 at 20, all at 21."""
    got = [learning_rate(step, config()) for step in (1, 20, 21, 500)]
    assert got == pytest.approx([1e-6 / 21, 20e-6 / 21, 1e-6, 1e-6], rel=1e-12)


@pytest.mark.parametrize(
    ("before", "flags", "expected"),
    [(0, "000", 0), (0, "111", 3), (2, "1", 3), (2, "0", 0), (2, "101", 1), (0, "110", 0), (1, "", 1), (1, "0111", 3)],
)
def test_nonfinite_updates_in_a_row(before: int, flags: str, expected: int) -> None:
    """Skips count over steps, and one good update starts again."""
    answers = iter([{"grad/nonfinite": float(c)} for c in flags])
    learner = SimpleNamespace(update=lambda minibatch, rate, trace: next(answers))
    view, checks = SimpleNamespace(phase=lambda name: None), SimpleNamespace(before_update=lambda *arguments: None)
    parts: Any = SimpleNamespace(config=config(), learner=learner, view=view, checks=checks)
    batch, _ = many(1)
    state = TrainState(
        nonfinite_in_a_row=before,
        pending=Pending(minibatches=(batch,) * len(flags), metrics={"time/train_s": 0.0, "time/step_s": 0.0}),
    )
    for _ in flags:
        state, _ = update(parts, state)
    assert state.nonfinite_in_a_row == expected
    assert state.pending is not None
    assert not state.pending.minibatches


def test_a_share_of_nothing_leaves_the_other_updates_alone() -> None:
    """An update whose tokens are all clipped or filtered has no shares; their mean is over those that have some."""
    name = "credit/proxy_right_share"
    updates = [{"grad/nonfinite": 0.0, name: value} for value in (0.25, math.nan, 0.75)]
    assert update_metrics(Pending(minibatches=(), updates=tuple(updates)))[name] == 0.5
    assert math.isnan(update_metrics(Pending(minibatches=(), updates=(updates[1],)))[name])


def updates_of(batch: Batch, mismatch: float | None, updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """The metrics of a step's batch and updates."""
    gap = {} if mismatch is None else {"mismatch/logprob_abs_mean": mismatch}
    metrics = gap | batch_metrics(batch)
    return metrics | update_metrics(Pending(minibatches=(), updates=tuple(updates), metrics=metrics))


def test_step_metrics() -> None:
    """Means of means, maxima of maxima, counts of counts; advantages weighted by length."""
    batch, _ = many(2)  # loss tokens 3, 3, 4, 4
    batch = replace(batch, advantages=torch.tensor([1.0, -1.0, 2.0, -4.0]))
    updates = [
        {"grad/nonfinite": 0.0, "loss/policy": 1.0, "ratio/max": 1.5, "ratio/logprob_abs_mean": 0.25},
        {"grad/nonfinite": 1.0, "loss/policy": 3.0, "ratio/max": 1.25, "ratio/logprob_abs_mean": 0.75},
    ]
    got = updates_of(batch, None, updates)
    assert got["loss/policy"] == 2.0
    assert got["ratio/max"] == 1.5
    assert got["grad/nonfinite_updates"] == 1.0
    assert "grad/nonfinite" not in got
    assert got["mismatch/logprob_abs_mean"] == 0.25  # the first update's: its weights sampled the batch
    assert got["train/updates"] == 2.0
    assert got["tokens/loss"] == 14.0
    assert got["advantage/abs_mean"] == 2.0
    assert got["advantage/length_weighted_mean"] == pytest.approx((3 - 3 + 8 - 16) / 14)
    assert updates_of(batch, 0.125, updates)["mismatch/logprob_abs_mean"] == 0.125


def test_step_metrics_without_loss_tokens() -> None:
    """Nothing to train on gives zeros, not a division by zero."""
    batch, _ = many(1)
    batch = replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    got = updates_of(batch, None, [{"grad/nonfinite": 0.0}])
    assert got["tokens/loss"] == got["advantage/length_weighted_mean"] == 0.0
    assert all(np.isfinite(value) for value in got.values())


def test_noise_on_large_rewards_is_no_signal() -> None:
    """L5: graded rewards around 100 that differ by 1e-13; rounded to float32 they would lie 8e-6 apart."""
    middle = 100 + 2**-18
    rewards = [math.nextafter(middle, 200), *(middle * (1 - 2e-16 * k) for k in range(1, 8))]
    made = [group(0, [5], [response([6, EOS]) for _ in rewards], rewards)]
    settings = config(sampling__responses_per_prompt=8)
    batch = with_advantages(make_batch(made, [EOS], settings), made, settings)
    assert batch.advantages.tolist() == [0.0] * 8
