"""Builders and the oracle of a DAPO step that the learner's tests share.

The oracle forwards one response at a time, without padding, packing or chunks, shifts the logits
by hand, and takes the objective and its reduction from reference.py.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import reference as ref
import tiny
from dapo.algorithm import dapo_objective
from dapo.config.load import load_config
from dapo.config.schema import Config
from dapo.learner.lora import LoraLearner, LoraSettings
from dapo.learner.settings import LearnerSettings
from dapo.learner.torch_learner import TorchLearner
from dapo.types import Batch, Finish, Group, Response, Rollout, Score, Verdict

NO_TOKEN = 10**9  # stands in padding: an embedding that reads it fails
EOS = tiny.EOS_ID
VOCABULARY = len(tiny.VOCABULARY)
LOW, HIGH = 0.2, 0.28


# --- groups and batches ---------------------------------------------------------------------------


def config(**overrides: Any) -> Config:
    """A configuration of a small run; keys are dotted, with __ for the dot."""
    base: dict[str, Any] = {"model.path": "tiny", "data.source": "problems.jsonl"}
    return load_config(base | {key.replace("__", "."): value for key, value in overrides.items()})


def words(count: int, generator: random.Random) -> list[int]:
    """Random tokens that are no special ones."""
    return [generator.randrange(4, VOCABULARY) for _ in range(count)]


def response(
    token_ids: Sequence[int],
    *,
    finish: Finish | None = None,
    generated: Sequence[bool] | None = None,
    engine_logprobs: Sequence[float] | None = None,
) -> Response:
    """A response; it finished by STOP if its last token is the EOS, else by LENGTH."""
    stopped = bool(token_ids) and token_ids[-1] == EOS
    return Response(
        token_ids=np.asarray(token_ids, dtype=np.int32),
        generated=np.asarray([True] * len(token_ids) if generated is None else generated, dtype=bool),
        engine_logprobs=np.asarray(
            [-1.0] * len(token_ids) if engine_logprobs is None else engine_logprobs, dtype=np.float32
        ),
        finish=finish or (Finish.STOP if stopped else Finish.LENGTH),
        token_versions=((0, len(token_ids)),) if token_ids else (),
    )


def group(
    draw: int,
    prompt_ids: Sequence[int],
    responses: Sequence[Response],
    rewards: Sequence[float],
    overlong: Sequence[float] | None = None,
) -> Group:
    """A group of given responses and rewards."""
    penalties = [0.0] * len(responses) if overlong is None else overlong
    return Group(
        draw=draw,
        prompt=tiny.prompt(prompt_ids),
        rollouts=tuple(
            Rollout(
                response=made,
                text="",
                score=Score(
                    verdict=Verdict.CORRECT if reward > 0 else Verdict.WRONG, correct=reward > 0, reward=reward
                ),
                overlong=penalty,
            )
            for made, reward, penalty in zip(responses, rewards, penalties, strict=True)
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """A prompt and one of its responses."""

    draw: int
    prompt: tuple[int, ...]
    response: tuple[int, ...]


def rows_of(shape: Sequence[tuple[int, Sequence[int]]], seed: int = 0) -> list[Row]:
    """Rows of groups given as (prompt length, response lengths); draw indices go down: 10, 9, ..."""
    generator = random.Random(seed)
    rows = []
    for number, (prompt_length, lengths) in enumerate(shape):
        prompt_ids = tuple(words(prompt_length, generator))
        rows += [
            Row(draw=10 - number, prompt=prompt_ids, response=tuple(words(length, generator))) for length in lengths
        ]
    return rows


# Prompts and responses of length 1, an empty response, groups of unequal size.
SHAPE = ((4, (5, 1, 0, 3)), (1, (2, 6, 1)), (3, (4,)), (6, (3, 3)))


def batch_of(rows: Sequence[Row], seed: int = 0) -> Batch:
    """A batch whose loss is over all response tokens, with random advantages and token-mean weights."""
    width = max(len(row.prompt) + len(row.response) for row in rows)
    token_ids = torch.full((len(rows), width), NO_TOKEN)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, row in enumerate(rows):
        sequence = row.prompt + row.response
        token_ids[index, : len(sequence)] = torch.tensor(sequence)
        mask[index, len(row.prompt) : len(sequence)] = True
    tokens = int(mask.sum())
    return Batch(
        draw=torch.tensor([row.draw for row in rows]),
        prompt_lengths=torch.tensor([len(row.prompt) for row in rows]),
        lengths=torch.tensor([len(row.prompt) + len(row.response) for row in rows]),
        token_ids=token_ids,
        loss_mask=mask,
        engine_logprobs=torch.zeros(mask.shape),
        advantages=torch.randn(len(rows), generator=torch.Generator().manual_seed(seed)),
        row_weights=torch.full((len(rows),), 1.0 / max(tokens, 1), dtype=torch.float64),
    )


def with_old(batch: Batch, learner: Any, noise: float = 0.0, seed: int = 0) -> Batch:
    """Old log-probs: the learner's own, moved by up to `noise` so that ratios differ from 1."""
    old = learner.logprobs(batch)
    moved = (torch.rand(old.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1) * noise
    return replace(batch, old_logprobs=old + moved)


# --- learners -------------------------------------------------------------------------------------


def torch_learner(
    model: Any | None = None,
    *,
    objective: Callable[..., Tensor] | None = None,
    reference: Any | None = None,
    dtype: torch.dtype = torch.float32,
    make: Callable[..., Any] = TorchLearner,
    **knobs: Any,
) -> Any:
    """A learner of a tiny model with settings by name."""
    settings = LearnerSettings(**knobs)
    wanted = objective or partial(
        dapo_objective,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        clip_dual=settings.clip_dual,
        log_ratio_clamp=settings.log_ratio_clamp,
    )
    return make(tiny.model() if model is None else model, settings, wanted, dtype=dtype, reference=reference)


def lora_learner(
    model: Any | None = None,
    *,
    rank: int = 2,
    alpha: float = 8.0,
    targets: Any = "all-linear",
    seed: int = 0,
    **rest: Any,
) -> LoraLearner:
    """A learner of adapters on a tiny model; more keywords are those of `torch_learner`."""
    lora = LoraSettings(rank=rank, alpha=alpha, targets=targets, seed=seed)
    return torch_learner(model, make=partial(LoraLearner, lora=lora), **rest)


@dataclass
class Gradients:
    """The gradient that an update accumulated, before clipping; taken by torch's own public hook."""

    learner: Any
    found: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, parameter in self.learner.model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(self._keep, name))

    def _keep(self, name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.found[name] = parameter.grad.detach().clone()

    def of(self, batch: Batch, learning_rate: float = 0.0) -> dict[str, Tensor]:
        """The gradient of one update; at a rate of 0 the weights stay."""
        self.found.clear()
        self.metrics = self.learner.update(batch, learning_rate)
        return dict(self.found)


def distance(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Largest relative error |got - wanted| / |wanted| over the weights, in Euclidean norms.

    A weight whose gradient is (almost) zero is measured against a thousandth of the whole gradient.
    """
    assert got.keys() == wanted.keys()
    whole = torch.stack([value.double().norm() for value in wanted.values()]).norm()
    assert whole > 0, "a gradient of zero shows nothing"
    errors = [
        (got[name].double() - wanted[name].double()).norm() / max(wanted[name].double().norm(), 1e-3 * whole)
        for name in wanted
    ]
    return float(torch.stack(errors).max())


def weights(learner: Any) -> dict[str, Tensor]:
    """A copy of a learner's weights."""
    return {name: tensor.clone() for name, tensor in learner.export_weights()}


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Bitwise equality of named tensors."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


# --- the oracle -----------------------------------------------------------------------------------


def double(model: Any) -> Any:
    """A copy in float64 with gradients (norms and rotations inside transformers stay float32)."""
    return copy.deepcopy(model).double().requires_grad_(True)


def response_logprobs(model: Any, row: Row, temperature: float = 1.0) -> Tensor:
    """[L]: log pi of each response token, by one plain forward pass over the row alone."""
    if not row.response:
        return torch.zeros(0, dtype=torch.float64)
    logits = model(input_ids=torch.tensor([[*row.prompt, *row.response]]), use_cache=False).logits[0].double()
    result = []
    for place, token in enumerate(row.response, start=len(row.prompt)):
        scaled = logits[place - 1] / temperature
        result.append(scaled[token] - torch.logsumexp(scaled, dim=0))
    return torch.stack(result)


@dataclass(frozen=True, kw_only=True)
class OracleRow:
    """A row and what the loss needs; lists are over its response's tokens."""

    row: Row
    advantage: float
    mask: list[bool]
    old: list[float]
    engine: list[float]


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """The objective's switches."""

    reduction: str = "minibatch"
    constant: int | None = None
    dual: float | None = None
    importance_cap: float | None = None
    kl_coef: float = 0.0
    temperature: float = 1.0


def _token_loss(logp: Tensor, old: float, engine: float, ref_logp: float, advantage: float, knobs: Knobs) -> Tensor:
    """Eq. 10 for one token, negated, then the weight and the KL: differentiable in logp."""
    ratio = torch.exp(logp - old)
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)
    if knobs.dual is not None and advantage < 0:
        objective = torch.maximum(objective, torch.tensor(knobs.dual * advantage, dtype=torch.float64))
    loss = -objective
    if knobs.importance_cap is not None:
        loss = loss * ref.importance_weight(old, engine, knobs.importance_cap)
    if knobs.kl_coef:
        x = ref_logp - logp
        loss = loss + knobs.kl_coef * (torch.exp(x) - x - 1)
    return loss


def oracle_gradient(
    model: Any,
    reference: Any | None,
    rows: Sequence[OracleRow],
    knobs: Knobs,
    microbatches: Sequence[Sequence[int]] | None = None,
) -> tuple[float, dict[str, Tensor]]:
    """(loss, gradient by weight) of a mini-batch, one response at a time, one token at a time.

    The reductions are linear in the token losses, so a token's share is reference.reduced of a
    loss that is 1 there and 0 elsewhere. The value is reference.py's alone, without torch.
    """
    plain: list[ref.Row] = [
        {"draw": r.row.draw, "advantage": r.advantage, "logp": [], "old": r.old, "mask": r.mask} for r in rows
    ]
    reduced = partial(
        ref.reduced, rows=plain, reduction=knobs.reduction, constant=knobs.constant, microbatches=microbatches
    )
    empty = [[0.0] * len(r.mask) for r in rows]
    values = copy.deepcopy(empty)
    model.zero_grad()
    for index, r in enumerate(rows):
        logp = response_logprobs(model, r.row, knobs.temperature)
        with torch.no_grad():
            ref_logp = (
                response_logprobs(reference, r.row, knobs.temperature).tolist() if reference else [0.0] * len(logp)
            )
        terms = []
        for t, inside in enumerate(r.mask):
            if not inside:
                continue
            one = copy.deepcopy(empty)
            one[index][t] = 1.0
            terms.append(reduced(one) * _token_loss(logp[t], r.old[t], r.engine[t], ref_logp[t], r.advantage, knobs))
            value = ref.token_objective(logp[t].item(), r.old[t], r.advantage, LOW, HIGH, knobs.dual)
            if knobs.importance_cap is not None:
                value *= ref.importance_weight(r.old[t], r.engine[t], knobs.importance_cap)
            values[index][t] = value + knobs.kl_coef * ref.kl_k3(logp[t].item(), ref_logp[t])
        if terms:
            torch.stack(terms).sum().backward()
    return reduced(values), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
