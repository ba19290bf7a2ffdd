"""DAPO's neighbours, switched on by configuration, groups to gradient, against plain loops in float64.

Each case states its loss once more, one token at a time, over the rows of test_dapo_step.py. What a
function computes by itself is in test_neighbours.py; here it is shown that the knob reaches it, that
rows, masks and log-probs arrive at the right places, and that no gradient depends on the cut.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from dapo.advantages import COUNT, SQUARES, SUM, reward_moments, step_advantages
from dapo.batch import make_batch, minibatches
from dapo.build import make_learner
from dapo.config.schema import Config
from dapo.errors import ConfigError
from dapo.loop import with_policies
from dapo.types import Batch, TrainState
from helpers_learner import EOS, Gradients, Row, config, distance
from test_dapo_step import BOUND, groups, models, oracle_rows, plain_mask

KEYS = [(g.draw, i) for g in groups() for i in range(len(g.rollouts))]
CUTS = {"each row": ("padded", 1), "some rows": ("shared_prompt", 24), "all rows": ("shared_prompt", 100_000)}


@dataclass
class Line:
    """A row of a mini-batch as the loops below read it; lists are over its loss tokens."""

    logp: list[Tensor]
    entropy: list[Tensor]
    old: list[float]
    engine: list[float]
    ref: list[float]
    a: list[float]
    picked: list[bool]


def forward(model: Any, row: Row) -> tuple[Tensor, Tensor]:
    """(log-prob, entropy) of each response token, by a plain pass over the row alone."""
    ids = [*row.prompt, *row.response]
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
    logp = logits.log_softmax(-1)[len(row.prompt) - 1 : -1]
    return logp[torch.arange(len(row.response)), list(row.response)], -(logp.exp() * logp).sum(-1)


@functools.cache
def reference_logprobs(key: tuple[int, int]) -> list[float]:
    """Of a row's response, by the reference."""
    with torch.no_grad():
        return forward(models()[1], oracle_rows(1.0)[key].row)[0].tolist()


def lines(minibatch: Batch, keys: Sequence[tuple[int, int]]) -> list[Line]:
    """What the loops need of a mini-batch whose rows are these (draw, index)."""
    made = []
    for b, key in enumerate(keys):
        r = oracle_rows(1.0)[key]
        inside = [t for t, in_loss in enumerate(r.mask) if in_loss]
        logp, entropy = forward(models()[0], r.row) if inside else (torch.zeros(0), torch.zeros(0))
        ref = reference_logprobs(key) if inside else []
        at = len(r.row.prompt)
        picked = None if minibatch.selected is None else minibatch.selected[b]
        made.append(
            Line(
                logp=[logp[t] for t in inside],
                entropy=[entropy[t] for t in inside],
                old=[r.old[t] for t in inside],
                engine=[r.engine[t] for t in inside],
                ref=[ref[t] for t in inside],
                a=[float(minibatch.token_advantages[b, at + t]) for t in inside],
                picked=[picked is not None and bool(picked[at + t]) for t in inside],
            )
        )
    return made


def clipped(r: Tensor, a: float) -> Tensor:
    return -torch.minimum(r * a, r.clamp(0.8, 1.28) * a)


def token_mean(loss: Callable[[Line, int], Tensor]) -> Callable[[list[Line]], Tensor]:
    """The mean over all loss tokens of a per-token loss."""

    def mean(rows: list[Line]) -> Tensor:
        terms = [loss(row, t) for row in rows for t in range(len(row.logp))]
        return torch.stack(terms).sum() / len(terms)

    return mean


def ratio(row: Line, t: int) -> Tensor:
    return torch.exp(row.logp[t] - row.old[t])


def gspo(rows: list[Line]) -> Tensor:
    terms = []
    for row in rows:
        if row.logp:
            s = torch.exp(sum(p - o for p, o in zip(row.logp, row.old, strict=True)) / len(row.logp))
            terms.append(clipped(s, row.a[0]))
    return torch.stack(terms).mean()


def cispo(row: Line, t: int) -> Tensor:
    weight = min(math.exp(row.logp[t].item() - row.old[t]), 1.28)
    return -weight * row.a[t] * row.logp[t]


def kl_cov(row: Line, t: int) -> Tensor:
    r = ratio(row, t)
    kl = r - 1 - torch.log(r) if row.picked[t] else torch.zeros(())
    return -r * row.a[t] + 0.5 * kl


def whole_weight(row: Line, t: int) -> Tensor:
    weight = min(math.exp(sum(o - e for o, e in zip(row.old, row.engine, strict=True))), 1.2)
    return clipped(ratio(row, t), row.a[t]) * weight


OBJECTIVE = "algorithm__objective"
CASES: dict[str, tuple[dict[str, Any], Callable[[list[Line]], Tensor]]] = {
    "gspo": ({OBJECTIVE: "gspo", "algorithm__reduction": "sequence"}, gspo),
    "cispo": ({OBJECTIVE: "cispo", "algorithm__clip_low": "off"}, token_mean(cispo)),
    "no lower clip": (
        {"algorithm__clip_low": "off"},
        token_mean(lambda row, t: -torch.minimum(ratio(row, t) * row.a[t], ratio(row, t).clamp(max=1.28) * row.a[t])),
    ),
    "no clips": (
        {"algorithm__clip_low": "off", "algorithm__clip_high": "off"},
        token_mean(lambda row, t: -ratio(row, t) * row.a[t]),
    ),
    "clip_cov": (
        {OBJECTIVE: "clip_cov", "algorithm__covariance": {"fraction": 0.2, "low": 0.01, "high": 5.0}},
        token_mean(lambda row, t: torch.zeros(()) if row.picked[t] else clipped(ratio(row, t), row.a[t])),
    ),
    "kl_cov": (
        {OBJECTIVE: "kl_cov", "algorithm__covariance": {"fraction": 0.3, "kl_coef": 0.5}},
        token_mean(kl_cov),
    ),
    "kl k2": (
        {"algorithm__kl": {"place": "loss", "coef": 0.3, "estimator": "k2"}},
        token_mean(lambda row, t: clipped(ratio(row, t), row.a[t]) + 0.3 * (row.ref[t] - row.logp[t]) ** 2 / 2),
    ),
    "entropy bonus": (
        {"algorithm__entropy_coef": 0.4},
        token_mean(lambda row, t: clipped(ratio(row, t), row.a[t]) - 0.4 * row.entropy[t]),
    ),
    "sequence weights": (
        {"algorithm__importance_cap": 1.2, "algorithm__importance_level": "sequence"},
        token_mean(whole_weight),
    ),
}


def made(overrides: dict[str, Any], cut: str = "all rows") -> Config:
    """The configuration of a case."""
    return config(
        sampling__prompts_per_step=6,
        sampling__responses_per_prompt=3,
        reward__overlong="soft+filter",
        train__updates_per_step=2,
        train__packing=CUTS[cut][0],
        train__tokens_per_microbatch=CUTS[cut][1],
        train__logits_chunk_tokens=5,
        **overrides,
    )


def the_learner(settings: Config) -> Any:
    """Of the tiny model in float64; a reference where a KL needs one."""
    reference = tiny.model(1).to(torch.float64) if settings.algorithm.kl.place != "off" else None
    return make_learner(settings, tiny.model(0).to(torch.float64), reference, torch.float32)


def the_batch(settings: Config, learner: Any) -> Batch:
    """The package's own batch with the oracle's old and engine log-probs; advantages by the package."""
    parts: Any = SimpleNamespace(config=settings, learner=learner)
    batch, _ = with_policies(make_batch(groups(), [EOS], settings), groups(), parts, TrainState())
    assert batch.old_logprobs is not None
    old, engine = torch.zeros(batch.old_logprobs.shape), torch.zeros(batch.old_logprobs.shape)
    for b, r in enumerate(oracle_rows(1.0).values()):
        places = slice(len(r.row.prompt), len(r.row.prompt) + len(r.row.response))
        old[b, places], engine[b, places] = torch.tensor(r.old), torch.tensor(r.engine)
    batch = replace(batch, old_logprobs=old, engine_logprobs=engine)
    return replace(batch, advantages=step_advantages(batch, groups(), settings, reward_moments(groups())))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_that_of_the_loops_for_every_cut(case: str, cut: str) -> None:
    """Law 2 for every objective: rows in any order, alone, some or all in one micro-batch."""
    overrides, expected = CASES[case]
    settings = made(overrides, cut)
    learner = the_learner(settings)
    gradients = Gradients(learner)
    order = random.Random(f"{case}{cut}").sample(range(len(KEYS)), len(KEYS))
    keys = [KEYS[b] for b in order]
    draws = list(dict.fromkeys(draw for draw, _ in keys))
    policy = models()[0]
    for part, wanted in zip(
        minibatches(the_batch(settings, learner).take(order), settings, learner.cut),
        (draws[:3], draws[3:]),
        strict=True,
    ):
        got = gradients.of(part)
        policy.zero_grad()
        loss = expected(lines(part, [key for key in keys if key[0] in wanted]))
        loss.backward()
        true = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
        assert distance(got, true) < BOUND
        assert gradients.metrics["loss/policy"] == pytest.approx(loss.item(), rel=BOUND, abs=BOUND)


@pytest.mark.parametrize("case", ["clip_cov", "kl_cov"])
def test_an_entropy_control_picks_some_tokens_whatever_the_cut_or_the_row_order(case: str) -> None:
    """It is fixed with the mini-batch, by (seed, draw, response, token), and another seed picks others."""
    settings = made(CASES[case][0])
    learner = the_learner(settings)
    batch = the_batch(settings, learner)

    def picked(batch: Batch, settings: Config) -> list[Tensor]:
        found = []
        for part in minibatches(batch, settings, learner.cut):
            assert part.selected is not None
            assert not (part.selected & ~part.loss_mask).any()
            found.append(part.selected)
        return found

    whole = picked(batch, settings)
    expected = [max(1, int(settings.algorithm.covariance.fraction * n)) for n in _tokens(batch, settings, learner)]
    assert [int(one.sum()) for one in whole] == expected
    assert all(torch.equal(a, b) for a, b in zip(whole, picked(batch, made(CASES[case][0], "each row")), strict=True))
    other = picked(batch, made(CASES[case][0] | {"train__seed": 1}))
    assert all(torch.equal(a, b) for a, b in zip(whole, other, strict=True)) is (case == "kl_cov")


def _tokens(batch: Batch, settings: Config, learner: Any) -> list[int]:
    return [int(part.loss_mask.sum()) for part in minibatches(batch, settings, learner.cut)]


def test_the_cases_bite() -> None:
    """Every branch is met: ratios over and under the clips, picked tokens, capped whole responses."""
    settings = made(CASES["clip_cov"][0])
    learner = the_learner(settings)
    parts = list(minibatches(the_batch(settings, learner), settings, learner.cut))
    rows = [line for part, keys in zip(parts, (KEYS[:9], KEYS[9:]), strict=True) for line in lines(part, keys)]
    tokens = [(float(ratio(row, t)), row.a[t]) for row in rows for t in range(len(row.logp))]
    assert any(r > 1.28 and a > 0 for r, a in tokens)
    assert any(r < 0.8 and a < 0 for r, a in tokens)
    gaps = [sum(o - e for o, e in zip(row.old, row.engine, strict=True)) for row in rows if row.logp]
    assert any(gap > math.log(1.2) for gap in gaps)
    assert any(gap < 0 for gap in gaps)
    assert any(any(row.picked) for row in rows)


# --- advantages by name ---------------------------------------------------------------------------


def rewards() -> list[list[float]]:
    """Shaped rewards, group by group."""
    return [[r.score.reward + r.overlong for r in g.rollouts] for g in groups()]


def deviation(values: Sequence[float], correction: int) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - correction))


def advantages(**overrides: Any) -> Tensor:
    settings = made({f"algorithm__{key}": value for key, value in overrides.items()})
    return the_batch(settings, the_learner(settings)).advantages


def test_advantages_by_name() -> None:
    """mean, leave_one_out and batch_std over the shaped rewards, group by group."""
    flat = [r for one in rewards() for r in one]
    mean = [r - sum(one) / len(one) for one in rewards() for r in one]
    assert advantages(advantage="mean").tolist() == pytest.approx(mean, abs=1e-6)
    assert advantages(advantage="leave_one_out").tolist() == pytest.approx([1.5 * a for a in mean], abs=1e-6)
    for correction in (0, 1):
        got = advantages(advantage="batch_std", std_correction=correction, advantage_eps=0.1)
        spread = deviation(flat, correction) + 0.1
        assert got.tolist() == pytest.approx([a / spread for a in mean], rel=1e-5, abs=1e-6)


def own_logprobs(key: tuple[int, int]) -> list[tuple[float, float]]:
    """(reference, old) of the tokens that a response pays KL for: those it made, up to its EOS, filtered or not."""
    (rollout,) = (r for g in groups() for i, r in enumerate(g.rollouts) if (g.draw, i) == key)
    inside = plain_mask(rollout.response.token_ids.tolist(), rollout.response.generated.tolist(), filtered=False)
    pairs = zip(reference_logprobs(key) if inside else [], oracle_rows(1.0)[key].old, inside, strict=True)
    return [(r, o) for r, o, own in pairs if own]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_kl_in_the_reward_is_ahead_of_a_token_for_batch_and_of_the_response_elsewhere(estimator: str) -> None:
    """REINFORCE++ takes off what is still to come, the others the response's sum; then both whiten or centre."""
    of = {"k1": lambda x: -x, "k2": lambda x: x * x / 2, "k3": lambda x: math.exp(x) - x - 1}[estimator]
    settings = made(
        {
            "algorithm__advantage": "batch",
            "algorithm__kl": {"place": "reward", "coef": 0.2, "estimator": estimator},
            "algorithm__advantage_eps": 0.0,
        }
    )
    batch = the_batch(settings, the_learner(settings))
    flat = [r for one in rewards() for r in one]
    returns, sums = [], []
    for b, line in enumerate(lines(batch, KEYS)):
        costs = [0.2 * of(r - o) for r, o in zip(line.ref, line.old, strict=True)]
        returns += [flat[b] - sum(costs[t:]) for t in range(len(costs))]
        sums.append(flat[b] - sum(0.2 * of(r - o) for r, o in own_logprobs(KEYS[b])))
    mean, spread = sum(returns) / len(returns), deviation(returns, 1)
    got = batch.advantages[batch.loss_mask].tolist()
    assert got == pytest.approx([(x - mean) / spread for x in returns], rel=1e-4, abs=1e-5)
    assert not batch.advantages[~batch.loss_mask].any()

    settings = made(
        {"algorithm__advantage": "mean", "algorithm__kl": {"place": "reward", "coef": 0.2, "estimator": estimator}}
    )
    got = the_batch(settings, the_learner(settings)).advantages.tolist()
    expected = [s - sum(sums[i - i % 3 : i - i % 3 + 3]) / 3 for i, s in enumerate(sums)]
    assert got == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_groups_of_several_sizes_have_the_advantages_of_each_alone() -> None:
    """A reward-adaptive group size leaves ragged groups; no group may see another's rewards."""
    ragged = [replace(g, rollouts=g.rollouts[: 2 + i % 2]) for i, g in enumerate(groups())]
    for name in ("group", "mean", "leave_one_out"):
        settings = made({"algorithm__advantage": name})
        together = step_advantages(make_batch(ragged, [EOS], settings), ragged, settings, {})
        alone = [step_advantages(make_batch([g], [EOS], settings), [g], settings, {}) for g in ragged]
        assert torch.equal(together, torch.cat(alone))
        assert len(together) == sum(len(g.rollouts) for g in ragged)


# --- what one description of DAPO has and the paper has not -----------------------------------------


def test_running_normalisation_and_clip_come_before_the_estimator() -> None:
    """((R - m) / s) within +- c, m and s over all rewards so far; then R - mean of the group."""
    settings = made({"algorithm__advantage": "mean", "reward__normalisation": "running", "reward__clip": 0.9})
    batch = make_batch(groups(), [EOS], settings)
    earlier = [0.5, -2.0, 1.0]
    seen = earlier + [r for one in rewards() for r in one]
    totals = {COUNT: 3.0, SUM: sum(earlier), SQUARES: sum(r * r for r in earlier)}
    now = {name: totals[name] + value for name, value in reward_moments(groups()).items()}
    got = step_advantages(batch, groups(), settings, now).tolist()
    m, s = sum(seen) / len(seen), deviation(seen, 0)
    cut = [[max(-0.9, min(0.9, (r - m) / s)) for r in one] for one in rewards()]
    assert got == pytest.approx([r - sum(one) / len(one) for one in cut for r in one], abs=1e-6)
    assert any(abs(r) == 0.9 for one in cut for r in one)
    assert any(abs(r) < 0.9 for one in cut for r in one)


def test_equal_rewards_normalise_to_zero_not_to_noise() -> None:
    """s = 0 divides nothing."""
    settings = made({"algorithm__advantage": "mean", "reward__normalisation": "running"})
    one = groups()[4:5]
    same = [
        replace(g, rollouts=tuple(replace(r, score=g.rollouts[0].score, overlong=0.1) for r in g.rollouts)) for g in one
    ]
    got = step_advantages(make_batch(same, [EOS], settings), same, settings, reward_moments(same))
    assert got.abs().max() < 1e-6


def test_an_unknown_objective_names_those_there_are() -> None:
    """The built-in names are in the message."""
    with pytest.raises(ConfigError, match="dapo, gspo, cispo, clip_cov, kl_cov"):
        the_learner(made({OBJECTIVE: "gsppo"}))
