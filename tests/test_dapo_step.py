"""A whole step, groups to gradient, against the oracle of helpers_learner.py.

Bounds: every weight's gradient within 2e-5 relative of the float64 oracle for a float32 model
(measured: 6e-6), and within 2e-6 for a float64 one, whose only rounding is the learner's: logits,
log-probs and losses are float32 by design, as are transformers' norms.
"""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import reference as ref
import tiny
from dapo.batch import make_batch, minibatches, with_advantages
from dapo.build import make_learner
from dapo.config.schema import Config
from dapo.learner.packing import Packing
from dapo.loop import with_policies
from dapo.types import Batch, Group, TrainState
from helpers_learner import (
    EOS,
    Gradients,
    Knobs,
    OracleRow,
    Row,
    config,
    distance,
    double,
    group,
    oracle_gradient,
    response,
    response_logprobs,
    words,
)

BOUND, BOUND_DOUBLE = 2e-5, 2e-6
PACKINGS: tuple[Packing, ...] = ("shared_prompt", "padded")
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "importance": {"algorithm__importance_cap": 1.2},
    "dual": {"algorithm__clip_dual": 1.3},
    "temperature": {"sampling__temperature": 0.7},
    "kl": {"algorithm__kl": {"place": "loss", "coef": 0.3}},
    "all": {
        "algorithm__importance_cap": 1.2,
        "algorithm__clip_dual": 1.3,
        "sampling__temperature": 0.7,
        "algorithm__kl": {"place": "loss", "coef": 0.3},
    },
}
BUDGETS = {"each row": 1, "some rows": 24, "all rows": 100_000}


def groups() -> list[Group]:
    """Five draws of three responses; draws 4 and 5 are of one prompt. Prompts of 1 to 6 tokens."""
    g = random.Random(5)
    again = words(3, g)
    return [
        group(
            7,
            words(6, g),
            [response([*words(4, g), EOS]), response([EOS]), response(words(7, g))],  # the last is filtered out
            [1.0, -1.0, -1.0],
            [0.0, 0.0, -1.0],
        ),
        group(
            2,
            words(1, g),
            [
                response([*words(2, g), EOS, *words(3, g), EOS]),  # nothing after the first EOS counts
                response([*words(5, g), EOS], generated=[True, False, False, True, True, True]),
                response([]),  # K4: trains nothing, shifts nobody
            ],
            [1.0, 1.0, -1.0],
            [-0.5, 0.0, 0.0],
        ),
        group(4, again, [response([*words(n, g), EOS]) for n in (1, 3, 5)], [-1.0, 1.0, 1.0], [0.0, 0.0, -0.25]),
        group(5, again, [response([*words(n, g), EOS]) for n in (4, 2, 2)], [1.0, -1.0, -1.0]),
        group(9, words(2, g), [response(words(n, g)) for n in (6, 6, 6)], [1.0, -1.0, 1.0]),  # all filtered out
        group(1, words(2, g), [response([*words(n, g), EOS]) for n in (0, 6, 1)], [1.0, -1.0, 1.0]),
    ]


def made(case: str, **more: Any) -> Config:
    """The configuration of a case."""
    return config(
        sampling__prompts_per_step=6,
        sampling__responses_per_prompt=3,
        reward__overlong="soft+filter",
        train__updates_per_step=2,
        **CASES[case],
        **more,
    )


def plain_mask(tokens: list[int], generated: list[bool], filtered: bool) -> list[bool]:
    """Generated tokens up to and including the first EOS; none of a filtered row."""
    mask, ended = [], False
    for token, own in zip(tokens, generated, strict=True):
        mask.append(own and not ended and not filtered)
        ended = ended or token == EOS
    return mask


@functools.cache
def models() -> tuple[Any, Any]:
    """The policy and the reference in float64."""
    return double(tiny.model(0)), double(tiny.model(1)).requires_grad_(False)


@functools.cache
def oracle_rows(temperature: float) -> dict[tuple[int, int], OracleRow]:
    """(draw, index in its group) -> row. Old log-probs: the policy's, moved; engine's: moved again."""
    noise = random.Random(11)
    rows: dict[tuple[int, int], OracleRow] = {}
    for g in groups():
        advantages = ref.group_advantages([r.score.reward + r.overlong for r in g.rollouts], 1, 1e-6)
        for index, rollout in enumerate(g.rollouts):
            made = rollout.response
            tokens = made.token_ids.tolist()
            row = Row(draw=g.draw, prompt=tuple(g.prompt.token_ids.tolist()), response=tuple(tokens))
            with torch.no_grad():
                own = response_logprobs(models()[0], row, temperature).tolist()
            old = [p + noise.uniform(-0.6, 0.6) for p in own]
            rows[g.draw, index] = OracleRow(
                row=row,
                advantage=advantages[index],
                mask=plain_mask(tokens, made.generated.tolist(), filtered=made.finish.value == "length"),
                old=old,
                engine=[p + noise.uniform(-0.4, 0.4) for p in old],
            )
    return rows


def the_batch(settings: Config, learner: Any) -> Batch:
    """The package's own batch with the oracle's old and engine log-probs in place of the policies'."""
    batch = make_batch(groups(), [EOS], settings)
    parts: Any = SimpleNamespace(config=settings, learner=learner)
    batch, _ = with_policies(batch, groups(), parts, TrainState())
    batch = with_advantages(batch, groups(), settings)
    assert batch.old_logprobs is not None
    old, engine = torch.zeros(batch.old_logprobs.shape), torch.zeros(batch.old_logprobs.shape)
    for b, r in enumerate(oracle_rows(settings.sampling.temperature).values()):
        response_places = slice(len(r.row.prompt), len(r.row.prompt) + len(r.row.response))
        old[b, response_places] = torch.tensor(r.old)
        engine[b, response_places] = torch.tensor(r.engine)
    return replace(batch, old_logprobs=old, engine_logprobs=engine)


def check(settings: Config, order: list[int], bound: float = BOUND) -> None:
    """Both mini-batches of a step: gradient and loss are the oracle's. A small bound takes float64 models."""
    kl = settings.algorithm.kl.coef
    own, start = (tiny.model(seed).to(torch.float64 if bound < BOUND else torch.float32) for seed in (0, 1))
    learner = make_learner(settings, own, start if kl else None, torch.float32)
    keys = list(oracle_rows(settings.sampling.temperature))
    keys = [keys[b] for b in order]
    batch = the_batch(settings, learner).take(order)
    gradients = Gradients(learner)
    knobs = Knobs(
        reduction=settings.algorithm.reduction,
        constant=settings.algorithm.constant_tokens,
        dual=settings.algorithm.clip_dual,
        importance_cap=settings.algorithm.importance_cap,
        kl_coef=kl,
        temperature=settings.sampling.temperature,
    )
    draws = list(dict.fromkeys(draw for draw, _ in keys))
    parts = list(minibatches(batch, settings, learner.cut))
    assert len(parts) == 2
    for minibatch, wanted in zip(parts, (draws[:3], draws[3:]), strict=True):
        rows = [oracle_rows(settings.sampling.temperature)[key] for key in keys if key[0] in wanted]
        policy, reference = models()
        cut = learner.cut(minibatch)
        if settings.train.tokens_per_microbatch == 1:
            assert all(len(micro) == 1 for micro in cut)
        elif settings.train.tokens_per_microbatch > 1000:
            assert len(cut) == 1
        else:
            assert len(cut) > 1
            assert max(map(len, cut)) > 1
        loss, expected = oracle_gradient(policy, reference if kl else None, rows, knobs, cut)
        got = gradients.of(minibatch)
        assert distance(got, expected) < bound
        assert gradients.metrics["loss/policy"] == pytest.approx(loss, rel=BOUND, abs=BOUND)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("reduction", ref.REDUCTIONS)
def test_the_gradient_is_the_oracles_for_every_cut(reduction: str, packing: Packing, budget: str) -> None:
    """Law 2, D8: no denominator may depend on packing, micro-batches or row order (microbatch: on the named cut)."""
    settings = made(
        "all",
        algorithm__reduction=reduction,
        algorithm__constant_tokens=8 if reduction == "constant" else "off",
        train__packing=packing,
        train__tokens_per_microbatch=BUDGETS[budget],
        train__logits_chunk_tokens=5,
    )
    order = random.Random(f"{reduction}{packing}{budget}").sample(range(18), 18)
    check(settings, order)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("reduction", ref.REDUCTIONS)
def test_the_gradient_is_the_oracles_in_float64(reduction: str, packing: Packing) -> None:
    """With float64 weights the body's rounding is gone, and a small slip has nowhere to hide."""
    settings = made(
        "all",
        algorithm__reduction=reduction,
        algorithm__constant_tokens=8 if reduction == "constant" else "off",
        train__packing=packing,
        train__tokens_per_microbatch=24,
    )
    check(settings, list(range(18)), BOUND_DOUBLE)


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_the_oracles_for_every_knob(case: str) -> None:
    """Each switch alone reaches the gradient as its equation says."""
    check(made(case, algorithm__reduction="group", train__tokens_per_microbatch=24), list(range(18)))


def test_the_cases_bite() -> None:
    """The data must reach every branch, or agreement shows nothing: clipped high, low, dual, capped."""
    rows = oracle_rows(0.7).values()
    plain = [(r, t) for r in rows for t, inside in enumerate(r.mask) if inside]
    with torch.no_grad():
        logp = {id(r): response_logprobs(models()[0], r.row, 0.7).tolist() for r in rows}
    ratios = [(2.718281828 ** (logp[id(r)][t] - r.old[t]), r.advantage) for r, t in plain]
    assert any(ratio > 1.28 and a > 0 for ratio, a in ratios)
    assert any(ratio < 0.8 and a < 0 for ratio, a in ratios)
    assert any(ratio > 1.3 and a < 0 for ratio, a in ratios)
    assert {ref.importance_weight(r.old[t], r.engine[t], 1.2) == 1.2 for r, t in plain} == {True, False}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("reduction", ["minibatch", "group", "sequence"])
def test_the_first_update_starts_at_ratio_one(packing: Packing, reduction: str) -> None:
    """pi_theta is pi_old before the first update: with the same layout every ratio is exactly 1."""
    settings = config(
        sampling__prompts_per_step=6,
        sampling__responses_per_prompt=3,
        reward__overlong="soft",
        train__updates_per_step=1,
        train__packing=packing,
        train__tokens_per_microbatch=40,
        algorithm__reduction=reduction,
    )
    learner = make_learner(settings, tiny.model(0), None, torch.float32)
    kept = [g for g in groups() if g.draw != 2]  # its empty response has no loss tokens and changes the cut
    parts: Any = SimpleNamespace(config=settings, learner=learner)
    batch, gap = with_policies(make_batch(kept, [EOS], settings), kept, parts, TrainState())
    batch = with_advantages(batch, kept, settings)
    (minibatch,) = minibatches(batch, settings, learner.cut)
    metrics = learner.update(minibatch, 1e-3)
    assert metrics["ratio/mean"] == metrics["ratio/max"] == 1.0
    assert metrics["ratio/logprob_abs_mean"] == metrics["policy/kl_to_old"] == 0.0
    # The engine's log-probs are all -1, so the gap is the mean distance from that.
    assert batch.old_logprobs is not None
    distances = [abs(p + 1) for p in batch.old_logprobs[batch.loss_mask].tolist()]
    assert gap["mismatch/logprob_abs_mean"] == pytest.approx(sum(distances) / len(distances))
    assert gap["mismatch/logprob_abs_max"] == pytest.approx(max(distances))


def test_old_logprobs_of_another_packing_stay_close() -> None:
    """Another layout rounds otherwise: each ratio is then 1 within 2e-5, far below any clip."""
    settings = made("plain", train__tokens_per_microbatch=24)
    other = make_learner(made("plain", train__packing="padded"), tiny.model(0), None, torch.float32)
    learner = make_learner(settings, tiny.model(0), None, torch.float32)
    batch = make_batch(groups(), [EOS], settings)
    gap = (other.logprobs(batch) - learner.logprobs(batch)).abs()
    assert gap.max() < 2e-5


@pytest.mark.parametrize("place", ["engine", "learner"])
def test_where_the_old_logprobs_come_from(place: str) -> None:
    """algorithm.old_logprobs: the engine's save a pass (and measure no gap), the learner's are its own."""
    settings = config(algorithm__old_logprobs=place)
    learner = make_learner(settings, tiny.model(0), None, torch.float32)
    batch = make_batch(groups(), [EOS], settings)
    parts: Any = SimpleNamespace(config=settings, learner=learner)
    got, gap = with_policies(batch, groups(), parts, TrainState())
    assert got.old_logprobs is not None
    assert torch.equal(got.old_logprobs, batch.engine_logprobs if place == "engine" else learner.logprobs(batch))
    assert (gap == {}) == (place == "engine")
    assert got.ref_logprobs is None


def test_the_reference_stays_where_the_policy_started() -> None:
    """KL is to the starting policy: reference log-probs are the reference's, before and after updates."""
    settings = made("kl")
    learner = make_learner(settings, tiny.model(0), tiny.model(1), torch.float32)
    parts: Any = SimpleNamespace(config=settings, learner=learner)
    batch = make_batch(groups(), [EOS], settings)
    before, _ = with_policies(batch, groups(), parts, TrainState())
    for minibatch in minibatches(with_advantages(before, groups(), settings), settings, learner.cut):
        learner.update(minibatch, 1e-2)
    after, _ = with_policies(batch, groups(), parts, TrainState())
    assert before.ref_logprobs is not None
    assert after.ref_logprobs is not None
    assert torch.equal(before.ref_logprobs, after.ref_logprobs)
    assert before.old_logprobs is not None
    assert after.old_logprobs is not None
    assert not torch.equal(before.old_logprobs, after.old_logprobs)
    for b, r in enumerate(oracle_rows(1.0).values()):
        expected = response_logprobs(models()[1], r.row).float()
        got = before.ref_logprobs[b, len(r.row.prompt) : len(r.row.prompt) + len(r.row.response)]
        assert torch.allclose(got, expected, atol=2e-5, rtol=0)
