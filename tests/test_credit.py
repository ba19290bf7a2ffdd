"""Where an update's gradient comes from: against gradients of each part taken alone, and figures made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from dapo.algorithm import ObjectiveInputs, importance_weights, weighted_loss
from dapo.config.schema import Config
from dapo.credit import length_quartile, make_buckets, proxy, proxy_metrics, table
from dapo.learner.base import Credit, Trace
from dapo.metrics import batch_metrics, gap_metrics, traced_metrics
from dapo.neighbours import sequence_importance_weights
from dapo.objectives import BUILT_IN
from dapo.tracing import token_rows
from dapo.types import Batch
from helpers_learner import Gradients, batch_of, config, lora_learner, rows_of, torch_learner, with_old

SHAPE = [(6, (3, 9, 5, 1)), (2, (4, 4)), (3, (7, 2, 8))]


def labelled(learner: Any, noise: float = 0.5) -> Batch:
    """Rows with correctness, truncation and a spread of ratios."""
    batch = with_old(batch_of(rows_of(SHAPE)), learner, noise)
    count = batch.num_rows
    return replace(
        batch,
        response=torch.arange(count),
        correct=torch.tensor([1, 0, 1, -1, 0, 0, 1, 1, 0][:count], dtype=torch.int8),
        truncated=torch.arange(count) % 4 == 0,
    )


def alone(minibatch: Batch, rows: torch.Tensor) -> Batch:
    """The same mini-batch with the loss tokens of these rows only; the weights of rows stay as they are."""
    return replace(minibatch, loss_mask=minibatch.loss_mask & rows.unsqueeze(1))


def flat(gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    """One vector, in float64."""
    return torch.cat([gradients[name].flatten().double() for name in sorted(gradients)])


@pytest.mark.parametrize("knobs", [{}, {"packing": "padded"}, {"entropy_coef": 0.1, "tokens_per_microbatch": 20}])
@pytest.mark.parametrize("make", [torch_learner, lora_learner], ids=["full", "lora"])
def test_each_bucket_is_the_gradient_of_its_rows_alone(make: Any, knobs: dict[str, Any]) -> None:
    """<g_b, g> and |g_b| against updates that see one bucket's rows only: 1e-4 relative, float32 against itself."""
    learner = make(**knobs)
    minibatch = labelled(learner)
    buckets = make_buckets(minibatch)
    assert len(buckets.names) > 4
    trace = Trace(bucket=buckets.number_B)
    learner.update(minibatch, 0.0, trace)
    assert trace.credit is not None
    whole = flat(Gradients(make(**knobs)).of(minibatch))
    assert trace.credit.norm == pytest.approx(float(whole.norm()), rel=1e-4)
    total = 0.0
    for number, (product, norm) in trace.credit.buckets.items():
        own = flat(Gradients(make(**knobs)).of(alone(minibatch, buckets.number_B == number)))
        assert norm == pytest.approx(float(own.norm()), rel=1e-4)
        assert product == pytest.approx(float(own @ whole), rel=1e-3, abs=1e-5 * float(whole @ whole))
        total += product
    assert total == pytest.approx(float(whole @ whole), rel=1e-4)


@pytest.mark.parametrize("make", [torch_learner, lora_learner], ids=["full", "lora"])
def test_looking_changes_nothing(make: Any) -> None:
    """The step taken with a trace and its credit is, bit for bit, the step without."""
    plain, watched = make(), make()
    minibatch = labelled(plain)
    first = plain.update(minibatch, 1e-2)
    trace = Trace(bucket=make_buckets(minibatch).number_B)
    second = watched.update(minibatch, 1e-2, trace)
    assert first == second
    assert trace.credit is not None
    pairs = zip(plain.export_weights(), watched.export_weights(), strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def test_the_trace_is_what_the_learner_sees() -> None:
    """logprobs are those of `logprobs`, before the step; nothing where there are no loss tokens."""
    learner = torch_learner()
    minibatch = labelled(learner)
    before = learner.logprobs(minibatch)
    empty = alone(minibatch, torch.arange(minibatch.num_rows) != 2)
    trace = Trace()
    learner.update(empty, 1e-2, trace)
    assert trace.logprobs is not None
    assert trace.collision is not None
    rows = torch.arange(minibatch.num_rows) != 2
    assert (trace.logprobs - before)[rows].abs().max() < 2e-6
    assert not trace.logprobs[2].any()
    inside = minibatch.loss_mask & rows.unsqueeze(1)
    assert bool((trace.collision[inside] >= trace.logprobs[inside].exp().square() - 1e-6).all())
    assert bool((trace.collision[inside] <= 1).all())
    assert trace.credit is None


def test_no_credit_of_a_gradient_that_is_not_finite() -> None:
    """Nor of none at all; the update says so itself."""
    learner = torch_learner()
    minibatch = labelled(learner)
    broken = replace(minibatch, advantages=torch.full((minibatch.num_rows,), float("nan")))
    for batch in (broken, alone(minibatch, torch.zeros(minibatch.num_rows, dtype=torch.bool))):
        trace = Trace(bucket=torch.zeros(minibatch.num_rows, dtype=torch.long))
        learner.update(batch, 1e-2, trace)
        assert trace.credit is None


# --- by hand --------------------------------------------------------------------------------------


def hand(**more: Any) -> Batch:
    """Two prompts of 2 tokens, two responses each, of 1, 4, 2 and 3 tokens."""
    lengths = torch.tensor([3, 6, 4, 5])
    place = torch.arange(6).unsqueeze(0)
    fields: dict[str, Any] = {
        "draw": torch.tensor([5, 5, 9, 9]),
        "prompt_lengths": torch.full((4,), 2),
        "lengths": lengths,
        "token_ids": torch.arange(24).view(4, 6) % 7,
        "loss_mask": (place >= 2) & (place < lengths.unsqueeze(1)),
        "engine_logprobs": torch.full((4, 6), -1.0),
        "old_logprobs": torch.full((4, 6), -1.0),
        "advantages": torch.tensor([1.0, -1.0, 0.5, 0.0]),
        "row_weights": torch.full((4,), 0.1, dtype=torch.float64),
        "response": torch.tensor([0, 1, 0, 1]),
        "correct": torch.tensor([1, 0, 1, -1], dtype=torch.int8),
        "truncated": torch.tensor([False, True, False, False]),
    }
    return Batch(**(fields | more))


def settings(**more: Any) -> Config:
    """Clips of 0.2 and 0.28."""
    return config(**more)


def seen(minibatch: Batch, ratio: float, collision: float = 0.5) -> Trace:
    """A trace in which every token's ratio is the same."""
    logprobs = torch.full((4, 6), -1.0 + math.log(ratio)) * minibatch.loss_mask
    return Trace(logprobs=logprobs, collision=torch.full((4, 6), collision) * minibatch.loss_mask)


def test_buckets_by_hand() -> None:
    """Lengths 1, 2, 3, 4 are in quarters 0 to 3."""
    buckets = make_buckets(hand())
    assert buckets.quartiles == (1.75, 2.5, 3.25)
    assert [buckets.names[int(number)] for number in buckets.number_B] == [
        {"length": 0, "right": True, "truncated": False, "advantage": "+"},
        {"length": 3, "right": False, "truncated": True, "advantage": "-"},
        {"length": 1, "right": True, "truncated": False, "advantage": "+"},
        {"length": 2, "right": None, "truncated": False, "advantage": "0"},
    ]


def test_responses_of_one_length_are_one_quarter() -> None:
    """Ties never part: no quarter is told by noise."""
    _, quarter = length_quartile(torch.tensor([5, 5, 5, 5, 5]))
    assert len(set(quarter.tolist())) == 1


def test_truncated_responses_are_in_the_longest_quarter() -> None:
    """However many of them end at the limit: the longest quarter is never empty."""
    edges, quarter = length_quartile(torch.tensor([1, 2, 3, 8, 8, 8, 8, 8]))
    assert edges == (2.75, 8.0, 8.0)
    assert quarter.tolist() == [0, 0, 1, 3, 3, 3, 3, 3]


def test_the_proxy_by_hand() -> None:
    """w |A| r sqrt(1 - 2 p + c) a token, 0 where it is clipped."""
    minibatch = hand()
    p = math.exp(-1.0) * 1.1
    norm = math.sqrt(1 - 2 * p + 0.5)
    got = proxy(minibatch, seen(minibatch, 1.1), settings())
    assert got.tolist() == pytest.approx([0.1 * a * n * 1.1 * norm for a, n in ((1, 1), (1, 4), (0.5, 2), (0, 3))])
    # r = 1.5: clipped high where A > 0; where A < 0 the gradient stays.
    clipped = proxy(minibatch, seen(minibatch, 1.5), settings())
    assert clipped[0] == clipped[2] == 0
    assert clipped[1] > 0
    low = proxy(minibatch, seen(minibatch, 0.5), settings())
    assert low[1] == 0
    assert low[0] > 0
    shares = proxy_metrics(minibatch, got)
    whole = 1 + 4 + 1
    assert shares["credit/proxy_positive_share"] == pytest.approx(2 / whole)
    assert shares["credit/proxy_longest_share"] == pytest.approx(4 / whole)
    assert shares["credit/proxy_right_share"] == pytest.approx(2 / whole)
    assert shares["credit/proxy_truncated_share"] == pytest.approx(4 / whole)


def test_the_proxy_is_the_gradient_over_the_logits() -> None:
    """Of one token at a time, by autograd through the objective itself."""
    torch.manual_seed(0)
    logits = torch.randn(5, 11, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([0, 3, 10, 7, 7])
    logprobs = torch.log_softmax(logits, -1).gather(1, tokens.unsqueeze(1)).squeeze(1)
    old = logprobs.detach() - 0.1
    loss = -(0.1 * torch.exp(logprobs - old) * 0.7).sum()
    loss.backward()
    assert logits.grad is not None
    c = torch.softmax(logits.detach(), -1).square().sum(-1)
    for t in range(5):
        minibatch = hand(
            loss_mask=torch.tensor([[False, False, True, False, False, False]] + [[False] * 6] * 3),
            old_logprobs=torch.full((4, 6), float(old[t])),
            advantages=torch.full((4,), 0.7),
        )
        trace = Trace(logprobs=torch.full((4, 6), float(logprobs[t])), collision=torch.full((4, 6), float(c[t])))
        expected = float(logits.grad[t].norm())
        assert float(proxy(minibatch, trace, settings())[0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"clip_dual": 1.2},
        {"log_ratio_clamp": 0.2, "clip_low": "off", "clip_high": "off"},
        {"importance_cap": 1.1},
        {"importance_cap": 1.5, "importance_level": "sequence"},
        {"objective": "gspo", "clip_low": 0.05, "clip_high": 0.05},
        {"objective": "cispo"},
        {"objective": "cispo", "clip_low": "off", "importance_cap": 1.2},
        {"objective": "clip_cov"},
    ],
    ids=str,
)
def test_the_proxy_is_of_the_objective_that_is_trained(words: dict[str, Any]) -> None:
    """Against autograd: norms over the logits, token by token, of a loss with ratios on both sides of every bound."""
    made = settings(**{f"algorithm__{name}": value for name, value in words.items()})
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 6, 11, dtype=torch.float64, generator=generator, requires_grad=True)
    noise = torch.rand(3, 4, 6, dtype=torch.float64, generator=generator) - 0.5
    minibatch = hand()
    logprobs = torch.log_softmax(logits, -1).gather(2, minibatch.token_ids.unsqueeze(2)).squeeze(2)
    old = logprobs.detach() + noise[0]
    picked = noise[2] > -0.1 if words.get("objective") == "clip_cov" else None
    minibatch = replace(minibatch, old_logprobs=old, engine_logprobs=old + noise[1], selected=picked)
    mask = minibatch.loss_mask
    inputs = ObjectiveInputs(
        logprobs_BT=logprobs,
        old_logprobs_BT=old,
        advantages_BT=minibatch.token_advantages.double(),
        mask_BT=mask,
        selected_BT=picked,
    )
    algorithm = made.algorithm
    loss = BUILT_IN[algorithm.objective](algorithm, inputs)
    if algorithm.importance_cap is not None:
        weigh = sequence_importance_weights if algorithm.importance_level == "sequence" else importance_weights
        loss = loss * weigh(old, minibatch.engine_logprobs, mask, algorithm.importance_cap)
    weighted_loss(loss, mask, minibatch.row_weights).backward()
    assert logits.grad is not None
    collision = torch.softmax(logits.detach(), -1).square().sum(-1)
    got = proxy(minibatch, Trace(logprobs=logprobs.detach(), collision=collision), made)
    assert got.tolist() == pytest.approx(logits.grad.norm(dim=-1).sum(1).tolist(), rel=1e-6)


def test_the_table_by_hand() -> None:
    """Shares and cosines of given products; matched shares are weighed by the tokens of quarters that have both."""
    minibatch = hand(
        lengths=torch.tensor([4, 4, 6, 6]),
        loss_mask=(torch.arange(6).unsqueeze(0) >= 2) & (torch.arange(6) < torch.tensor([[4], [4], [6], [6]])),
        correct=torch.tensor([1, 0, 1, 0], dtype=torch.int8),
        truncated=torch.zeros(4, dtype=torch.bool),
        advantages=torch.tensor([1.0, -1.0, 1.0, -1.0]),
    )
    buckets = make_buckets(minibatch)
    numbers = buckets.number_B.tolist()
    products = dict(zip(numbers, [(2.0, 2.0), (2.0, 1.0), (8.0, 4.0), (4.0, 2.0)], strict=True))
    found = table(minibatch, buckets, Credit(norm=4.0, buckets=products), torch.ones(4, dtype=torch.float64))
    assert [row["share"] for row in found["buckets"]] == [products[n][0] / 16 for n in products]
    assert [row["cosine"] for row in found["buckets"]] == [products[n][0] / products[n][1] / 4 for n in products]
    assert [row["tokens"] for row in found["buckets"]] == [2, 2, 4, 4]
    matched = found["matched"]
    assert matched["right_per_token"] == pytest.approx(10 / 16 / 6)
    assert matched["wrong_per_token"] == pytest.approx(6 / 16 / 6)
    # quarter 0: 2/16/2 and 2/16/2, 4 tokens; the upper one: 8/16/4 and 4/16/4, 8 tokens.
    assert matched["right_matched"] == pytest.approx((4 * 0.0625 + 8 * 0.125) / 12)
    assert matched["wrong_matched"] == pytest.approx((4 * 0.0625 + 8 * 0.0625) / 12)


def test_tokens_of_a_response() -> None:
    """Texts, log-probs, ratios and clips, one a token; rows without loss tokens are not shown."""
    minibatch = hand()
    rows = token_rows(minibatch, seen(minibatch, 1.5), settings(), step=3, count=2, decode=lambda ids: f"<{ids[0]}>")
    assert [(row["draw"], row["g"]) for row in rows] == [(5, 0), (9, 1)]
    assert rows[0] == {
        "step": 3, "draw": 5, "g": 0, "tokens": ["<2>"], "logprobs": [-1.0], "ratios": [1.5], "clipped": [1],
    }  # fmt: skip
    empty = alone(minibatch, torch.tensor([False, True, True, False]))
    many = token_rows(empty, seen(empty, 0.5), settings(), step=3, count=99, decode=str)
    assert [(row["draw"], row["g"]) for row in many] == [(5, 1), (9, 0)]
    assert many[0]["clipped"] == [-1] * 4
    assert many[1]["clipped"] == [0] * 2
    put_in = replace(minibatch, loss_mask=minibatch.loss_mask & (torch.arange(6) != 3))  # by a tool
    (row,) = token_rows(put_in, seen(put_in, 1.5), settings(), step=3, count=1, decode=str)
    assert (row["ratios"], row["clipped"]) == ([1.5], [1])
    row = token_rows(put_in, seen(put_in, 0.5), settings(), step=3, count=4, decode=str)[1]
    assert (row["ratios"], row["clipped"]) == ([0.5, None, 0.5, 0.5], [-1, 0, -1, -1])
    nothing = alone(minibatch, torch.zeros(4, dtype=torch.bool))
    assert token_rows(nothing, seen(nothing, 1.0), settings(), step=3, count=9, decode=str) == []


def test_the_gap_by_hand() -> None:
    """Mean, largest, a percentile that is one of the values; correlation 1 of a line; NaN of nothing."""
    engine = torch.log(torch.tensor([[0.2, 0.4, 0.6, 0.8]]))
    mask = torch.tensor([[True, True, True, False]])
    learner = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.99]]))
    got = gap_metrics(learner, engine, mask)
    assert got["mismatch/logprob_abs_mean"] == pytest.approx(math.log(2))
    assert got["mismatch/logprob_abs_max"] == got["mismatch/logprob_abs_p999"] == pytest.approx(math.log(2))
    assert got["mismatch/probability_correlation"] == pytest.approx(1.0)
    assert all(value != value for value in gap_metrics(learner, engine, mask & False).values())
    assert gap_metrics(engine, engine, mask)["mismatch/logprob_abs_max"] == 0.0


def test_the_engines_gap_comes_from_the_first_update_alone() -> None:
    """Later updates have moved the policy; a learner that does not trace gives nothing."""
    minibatch = hand()
    made = settings(algorithm__old_logprobs="engine")
    first = traced_metrics(minibatch, seen(minibatch, 1.1), made, first=True)
    assert first["mismatch/logprob_abs_mean"] == pytest.approx(math.log(1.1), rel=1e-5)
    assert "mismatch/logprob_abs_mean" not in traced_metrics(minibatch, seen(minibatch, 1.1), made, first=False)
    assert "mismatch/logprob_abs_mean" not in traced_metrics(minibatch, seen(minibatch, 1.1), settings(), first=True)
    assert traced_metrics(minibatch, Trace(), made, first=True) == {}


def test_weights_of_tokens_by_hand() -> None:
    """L / mean L of the group: 1 and 4 of mean 2.5, 2 and 3 of mean 2.5."""
    got = batch_metrics(hand())
    assert got["weight/token_to_sample_max"] == pytest.approx(1.6)
    assert got["weight/token_to_sample_right_mean"] == pytest.approx((0.4 + 0.8) / 2)
    assert got["weight/token_to_sample_wrong_mean"] == pytest.approx(1.6)
    assert got["advantage/length_weighted_mean"] == pytest.approx((1 - 4 + 1 + 0) / 10)
    short = batch_metrics(alone(hand(), torch.tensor([True, False, False, False])))  # 1 and 0 tokens, mean 0.5
    assert short["weight/token_to_sample_max"] == pytest.approx(2.0)


def test_advantages_of_tokens_are_weighed_by_themselves() -> None:
    """[B, T]: the mean over loss tokens, whatever stands elsewhere."""
    values = torch.arange(24.0).view(4, 6)
    minibatch = hand(advantages=torch.where(hand().loss_mask, values, torch.nan))
    inside = values[minibatch.loss_mask]
    got = batch_metrics(minibatch)
    assert got["advantage/length_weighted_mean"] == pytest.approx(float(inside.mean()))
    assert got["advantage/abs_mean"] == pytest.approx((2 + 9.5 + 14.5 + 21) / 4)


def test_length_matched_advantages_by_hand() -> None:
    """Two quarters of two responses: within each, both have the quarter's mean length."""
    place = torch.arange(6).unsqueeze(0)
    lengths = torch.tensor([3, 3, 6, 6])
    minibatch = hand(
        lengths=lengths,
        loss_mask=(place >= 2) & (place < lengths.unsqueeze(1)),
        advantages=torch.tensor([1.0, -1.0, 1.0, -0.5]),
    )
    assert batch_metrics(minibatch)["advantage/length_matched_mean"] == pytest.approx((4 - 2) / 10)
    # 1, 1, 4 and 3 loss tokens: the last two are alone in their quarters, and so keep their own lengths.
    shorter = torch.tensor([[False] * 6] * 3 + [[False] * 5 + [True]])
    uneven = replace(minibatch, loss_mask=minibatch.loss_mask & ~shorter)
    assert batch_metrics(uneven)["advantage/length_matched_mean"] == pytest.approx((4 * 1.0 - 3 * 0.5) / 9)


def test_within_a_quarter_lengths_weigh_alike() -> None:
    """Eight responses of 1 to 8 tokens: quarters of two lengths each, of means 1.5, 3.5, 5.5 and 7.5."""
    tokens, width = torch.arange(1, 9), torch.arange(10).unsqueeze(0)
    batch = Batch(
        draw=torch.arange(8) // 4,
        prompt_lengths=torch.full((8,), 2),
        lengths=tokens + 2,
        token_ids=torch.zeros(8, 10, dtype=torch.long),
        loss_mask=(width >= 2) & (width < (tokens + 2).unsqueeze(1)),
        engine_logprobs=torch.zeros(8, 10),
        advantages=torch.tensor([2.0, -1.0] * 4),
        row_weights=torch.full((8,), 0.1, dtype=torch.float64),
    )
    got = batch_metrics(batch)
    assert got["advantage/length_weighted_mean"] == pytest.approx((2 * (1 + 3 + 5 + 7) - (2 + 4 + 6 + 8)) / 36)
    assert got["advantage/length_matched_mean"] == pytest.approx((1.5 + 3.5 + 5.5 + 7.5) * (2 - 1) / 36)
