"""What every learner promises by the Learner Protocol. Another learner is one more line of LEARNERS.

These tests use the Protocol's methods alone.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import tiny
from dapo.learner.base import Learner
from dapo.learner.lora import LoraSettings
from dapo.types import Batch
from helpers_cluster import close_open, learner_of
from helpers_fsdp import alone, fsdp_learner
from helpers_learner import (
    SHAPE,
    batch_of,
    double,
    lora_learner,
    response_logprobs,
    rows_of,
    same,
    torch_learner,
    weights,
    with_old,
)


def one_rank(model: Any, reference: Any | None) -> Learner:
    """What the only rank of a remote learner builds."""
    return torch_learner(model, reference=reference, packing="padded", tokens_per_microbatch=30)


def one_of_several(model: Any, reference: Any | None) -> Learner:
    """What each of several ranks builds."""
    return fsdp_learner(model, reference=reference, tokens_per_microbatch=30)


# name -> a learner of the given model, and of a reference where one is given.
LEARNERS: dict[str, Callable[..., Learner]] = {
    "torch, shared prompts": lambda model, reference=None: torch_learner(
        model, reference=reference, packing="shared_prompt", tokens_per_microbatch=30
    ),
    "torch, padded": lambda model, reference=None: torch_learner(
        model, reference=reference, packing="padded", tokens_per_microbatch=30
    ),
    "torch, checkpointed": lambda model, reference=None: torch_learner(
        model, reference=reference, gradient_checkpointing=True, logits_chunk_tokens=4
    ),
    "sharded, alone": lambda model, reference=None: alone(model, reference=reference, tokens_per_microbatch=30),
    "sharded, adapters": lambda model, reference=None: alone(
        model, reference=reference, tokens_per_microbatch=30, lora=LoraSettings(rank=2, alpha=8.0)
    ),
    "adapters": lambda model, reference=None: lora_learner(model, reference=reference, tokens_per_microbatch=30),
    "ray, one rank": lambda model, reference=None: learner_of(one_rank, model, reference, count=1),
    "ray, two ranks": lambda model, reference=None: learner_of(one_of_several, model, reference, count=2),
}
if os.environ.get("DAPO_TEST_RANKS"):  # leader_contract.py, which runs as two ranks
    import leader_contract

    LEARNERS["behind a leader"] = leader_contract.led
SLOW = ("ray, one rank", "ray, two ranks")


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in LEARNERS])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Learner]]:
    """A factory of one kind of learner."""
    yield LEARNERS[request.param]
    close_open()


@pytest.fixture
def learner(make: Callable[..., Learner]) -> Learner:
    """A learner of the tiny model."""
    return make(tiny.model())


def ready(learner: Learner) -> Batch:
    """The standard rows with the learner's own old log-probs."""
    return with_old(batch_of(rows_of(SHAPE)), learner)


def values(batch: Batch) -> dict[str, Any]:
    """A copy of every tensor of a batch."""
    found = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return {name: tensor.clone() for name, tensor in found.items() if tensor is not None}


def test_it_has_the_protocols_methods(learner: Learner) -> None:
    """Same names, same arguments: the loop calls by them."""
    for name, method in inspect.getmembers(Learner, inspect.isfunction):
        if not name.startswith("_"):
            wanted = list(inspect.signature(method).parameters)[1:]
            assert list(inspect.signature(getattr(learner, name)).parameters) == wanted


def test_logprobs_are_of_all_response_tokens(learner: Learner) -> None:
    """f32 [B, T] on the CPU, the policy's own on responses, 0 elsewhere; within 2e-5 of a plain pass."""
    rows = rows_of(SHAPE)
    batch = batch_of(rows)
    batch = replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))  # what trains does not matter
    got = learner.logprobs(batch)
    assert (got.shape, got.dtype, got.device.type) == (batch.token_ids.shape, torch.float32, "cpu")
    assert not got.requires_grad
    model = double(tiny.model())
    for b, row in enumerate(rows):
        begin, end = len(row.prompt), len(row.prompt + row.response)
        with torch.no_grad():
            assert torch.allclose(got[b, begin:end].double(), response_logprobs(model, row), atol=2e-5, rtol=0)
        assert not got[b, :begin].any()
        assert not got[b, end:].any()


def test_logprobs_are_repeatable_and_follow_their_rows(learner: Learner) -> None:
    """Same batch, same bits; another row order, the same values within 2e-5."""
    batch = batch_of(rows_of(SHAPE))
    got = learner.logprobs(batch)
    assert torch.equal(got, learner.logprobs(batch))
    order = [9, 3, 0, 5, 8, 1, 2, 7, 4, 6]
    assert torch.allclose(learner.logprobs(batch.take(order)), got[order], atol=2e-5, rtol=0)


def test_the_reference_is_another_policy_that_stays(make: Callable[..., Learner]) -> None:
    """Reference log-probs are the reference model's, and updates leave them alone."""
    learner = make(tiny.model(), tiny.model(1))
    batch = ready(learner)
    before = learner.logprobs(batch, reference=True)
    assert torch.allclose(before, make(tiny.model(1)).logprobs(batch), atol=2e-5, rtol=0)
    learner.update(batch, 1e-2)
    assert torch.equal(learner.logprobs(batch, reference=True), before)


def test_no_reference_is_an_error(learner: Learner) -> None:
    """Not quietly the policy itself, whose KL would be 0."""
    with pytest.raises(Exception, match="reference"):
        learner.logprobs(batch_of(rows_of(SHAPE)), reference=True)


def test_cut_holds_every_row_once(learner: Learner) -> None:
    """The microbatch reduction divides by it; rows without loss tokens belong to it too."""
    batch = batch_of(rows_of(SHAPE))
    cut = learner.cut(batch)
    assert sorted(row for micro in cut for row in micro) == list(range(batch.num_rows))
    assert all(cut)
    assert learner.cut(batch) == cut


def test_an_update_moves_the_policy_the_right_way(learner: Learner) -> None:
    """Responses with a positive advantage become likelier, others less so; the batch is left alone."""
    batch = ready(learner)
    assert batch.old_logprobs is not None
    copy = values(batch)
    for _ in range(3):
        metrics = learner.update(batch, 1e-3)
        assert metrics["grad/nonfinite"] == 0
    assert same(values(batch), copy)
    change = (learner.logprobs(batch) - batch.old_logprobs).sum(dim=1)
    assert (batch.advantages * change).sum() > 0
    signed = batch.advantages * batch.loss_tokens  # a response with more tokens counts more
    assert change[signed.argmax()] > 0 > change[signed.argmin()]


def test_metrics_are_plain_finite_numbers(learner: Learner) -> None:
    """What is written to metrics.jsonl and read by the loop."""
    metrics = learner.update(ready(learner), 1e-4)
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())
    assert {
        "loss/policy",
        "grad/norm",
        "grad/nonfinite",
        "ratio/max",
        "ratio/logprob_abs_mean",
        "policy/entropy",
    } <= set(metrics)
    assert metrics["grad/norm"] > 0


def test_only_an_update_moves_the_policy(learner: Learner) -> None:
    """Log-probs, cuts, exports and an update at a rate of 0 change no weight; a real update does."""
    before = weights(learner)
    batch = ready(learner)
    learner.cut(batch)
    learner.update(batch, 0.0)
    assert same(weights(learner), before)
    learner.update(batch, 1e-3)
    after = weights(learner)
    assert any(not torch.equal(after[name], before[name]) for name in before)


def test_an_update_needs_old_logprobs(learner: Learner) -> None:
    """Nothing silent: without them there is no ratio."""
    with pytest.raises(ValueError, match="old_logprobs"):
        learner.update(batch_of(rows_of(SHAPE)), 1e-3)


def test_exported_weights_are_those_of_the_saved_folder(learner: Learner, tmp_path: Path) -> None:
    """By their Hugging Face names, float32, and a plain folder that transformers reads back."""
    learner.update(ready(learner), 1e-3)
    learner.save_hf(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    exported = weights(learner)
    assert same(exported, {name: p.detach() for name, p in model.named_parameters()})
    assert {tensor.dtype for tensor in exported.values()} == {torch.float32}
    assert list(tmp_path.glob("*.safetensors"))
    assert not list(tmp_path.glob("*.bin"))


def test_a_nonfinite_gradient_skips_the_update(learner: Learner) -> None:
    """Weights and optimiser state bitwise as before, counted, and the next good update works."""
    batch = ready(learner)
    learner.update(batch, 1e-3)
    before, state = weights(learner), {k: torch.as_tensor(v).clone() for k, v in learner.state_dict().items()}
    bad = replace(batch, advantages=torch.full_like(batch.advantages, math.nan))
    assert learner.update(bad, 1e-3)["grad/nonfinite"] == 1
    assert same(weights(learner), before)
    assert same({k: torch.as_tensor(v) for k, v in learner.state_dict().items()}, state)
    assert learner.update(batch, 1e-3)["grad/nonfinite"] == 0


def test_no_loss_tokens_change_nothing(learner: Learner) -> None:
    """A mini-batch that was filtered out whole: finite metrics, no step."""
    batch = ready(learner)
    learner.update(batch, 1e-3)
    before = weights(learner)
    empty = replace(batch, loss_mask=torch.zeros_like(batch.loss_mask), row_weights=torch.zeros_like(batch.row_weights))
    metrics = learner.update(empty, 1e-3)
    assert metrics["grad/norm"] == metrics["grad/nonfinite"] == 0
    assert all(math.isfinite(value) for value in metrics.values())
    assert same(weights(learner), before)


def test_saved_and_restored_goes_on_bitwise(make: Callable[..., Learner], tmp_path: Path) -> None:
    """Into a learner of the same starting weights that has gone elsewhere: the next updates are the same bits."""
    straight = make(tiny.model())
    batch = ready(straight)
    straight.update(batch, 1e-3)
    straight.save_hf(tmp_path)
    state = {name: torch.as_tensor(value).clone() for name, value in straight.state_dict().items()}
    restored = make(tiny.model())
    restored.update(with_old(batch_of(rows_of(SHAPE, 7)), restored), 1e-2)
    restored.restore(tmp_path, state)
    for _ in range(2):
        assert straight.update(batch, 1e-3) == restored.update(batch, 1e-3)
    assert same(weights(restored), weights(straight))


@pytest.mark.parametrize("updates", [0, 1])
def test_a_state_replaces_what_was_there(make: Callable[..., Learner], tmp_path: Path, updates: int) -> None:
    """Restoring into a learner that has trained leaves nothing of its own moments, even for a fresh state."""
    saved, used = make(tiny.model()), make(tiny.model())
    batch = ready(saved)
    for _ in range(updates):
        saved.update(batch, 1e-3)
    saved.save_hf(tmp_path)
    state = {name: torch.as_tensor(value).clone() for name, value in saved.state_dict().items()}
    for seed in range(3):
        used.update(with_old(batch_of(rows_of(SHAPE, 7), seed), used), 1e-2)
    used.restore(tmp_path, state)
    saved.update(batch, 1e-3)
    used.update(batch, 1e-3)
    assert same(weights(used), weights(saved))


def test_a_restored_state_is_not_shared(make: Callable[..., Learner], tmp_path: Path) -> None:
    """Going on must not write into the mapping that was restored (a checkpoint kept in memory)."""
    learner = make(tiny.model())
    batch = ready(learner)
    learner.update(batch, 1e-3)
    state = {name: torch.as_tensor(value).clone() for name, value in learner.state_dict().items()}
    copy = {name: value.clone() for name, value in state.items()}
    learner.save_hf(tmp_path)
    learner.restore(tmp_path, state)
    learner.update(batch, 1e-3)
    assert same(state, copy)
