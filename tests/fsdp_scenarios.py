"""What several ranks do in test_fsdp.py: run as a program, once for each number of ranks.

Every rank trains a sharded learner and a TorchLearner of its own beside it, and compares. Rank 0 writes what was
found as JSON: scenario -> figures, or {"error": ...}. The environment says the ranks, as torchrun does.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

import tiny
from dapo.algorithm import row_weights
from dapo.learner import torch_learner as module
from dapo.learner.base import Trace
from dapo.learner.fsdp import FsdpLearner
from dapo.learner.lora import LoraSettings
from dapo.learner.sharded_model import FsdpSettings
from dapo.types import Batch
from helpers_fsdp import fsdp_learner
from helpers_learner import SHAPE, batch_of, distance, lora_learner, rows_of, same, torch_learner, weights, with_old

SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {}
BUDGET = {"tokens_per_microbatch": 30}
LONG = ((3, (9, 7, 8, 2, 6, 1)), (5, (4,)), (2, (1, 1)))


def qwen() -> Any:
    """A tiny random Qwen2, with biases and a head of its own."""
    torch.manual_seed(3)
    settings = Qwen2Config(
        vocab_size=len(tiny.VOCABULARY),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    return Qwen2ForCausalLM(settings).float().eval().requires_grad_(False)


MODELS: dict[str, Callable[[], Any]] = {
    "llama": tiny.model,
    "untied": lambda: tiny.model(tied=False),
    "qwen2": qwen,
}


def gradients_of(learner: Any, found: dict[str, Tensor]) -> None:
    """Puts the whole gradient of every update, as it is before clipping, into `found`."""
    held, original = learner._held, learner._held.norm

    def norm(parameters: Any) -> float:
        whole = learner._state.whole if isinstance(learner, FsdpLearner) else lambda tensor: tensor
        found.update({name: whole(p.grad).clone() for name, p in learner._trained.items() if p.grad is not None})
        return float(original(parameters))

    held.norm = norm


def compared(one: Any, many: Any, batch: Batch, *, updates: int = 3, noise: float = 0.3) -> dict[str, Any]:
    """Largest differences over three updates on the same rows. `noise` is of the old log-probs: some are clipped."""
    batch = with_old(batch, one, noise)
    single: dict[str, Tensor] = {}
    sharded: dict[str, Tensor] = {}
    gradients_of(one, single)
    gradients_of(many, sharded)
    result = {
        "logprobs": float((one.logprobs(batch) - many.logprobs(batch)).abs().max()),
        "metrics": 0.0,
        "gradient": 0.0,
        "trace": 0.0,
    }
    for _ in range(updates):
        traces = Trace(), Trace()
        wanted, got = one.update(batch, 1e-3, traces[0]), many.update(batch, 1e-3, traces[1])
        assert wanted.keys() == got.keys()
        apart = max(abs(wanted[k] - got[k]) / max(1.0, abs(wanted[k])) for k in wanted)
        result["metrics"] = max(result["metrics"], apart)
        result["gradient"] = max(result["gradient"], distance(sharded, single))
        for name in ("logprobs", "collision"):
            between = (getattr(traces[0], name) - getattr(traces[1], name)).abs().max()
            result["trace"] = max(result["trace"], float(between))
        if isinstance(many, FsdpLearner):
            assert len({json.dumps(metrics, sort_keys=True) for metrics in many.ranks.gather(got)}) == 1
    result["weights"] = apart_by(weights(one), weights(many))
    return result


def apart_by(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference between weights of the same names."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def scenario(name: str) -> Callable[[Callable[[Path], dict[str, Any]]], None]:
    """Adds one."""

    def add(run: Callable[[Path], dict[str, Any]]) -> None:
        SCENARIOS[name] = run

    return add


# --- the same as one process --------------------------------------------------------------------------


def plain(
    name: str,
    *,
    sharding: FsdpSettings | None = None,
    shape: Any = SHAPE,
    model: str = "llama",
    noise: float = 0.3,
    updates: int = 3,
    **knobs: Any,
) -> None:
    """A scenario that compares two learners of these knobs."""

    @scenario(name)
    def run(folder: Path) -> dict[str, Any]:
        settings = BUDGET | knobs
        one = torch_learner(MODELS[model](), **settings)
        many = fsdp_learner(MODELS[model](), sharding=sharding, **settings)
        return compared(one, many, batch_of(rows_of(shape)), noise=noise, updates=updates)


KEPT = FsdpSettings(reshard_after_forward=False)
for packing in ("shared_prompt", "padded"):
    plain(f"{packing}", packing=packing)
    plain(f"{packing}, kept", packing=packing, sharding=KEPT)
plain("checkpointed", gradient_checkpointing=True)
plain("checkpointed, kept", gradient_checkpointing=True, sharding=KEPT)
plain("offloaded", sharding=FsdpSettings(cpu_offload=True))
plain("one row", noise=0.05, updates=1, shape=((3, (4,)),))
plain("one row, kept", noise=0.05, updates=1, shape=((3, (4,)),), sharding=KEPT)
plain("one group", noise=0.05, updates=1, shape=((4, (5, 1, 3, 7)),))
plain("unequal", shape=LONG, tokens_per_microbatch=12)
plain("unequal, kept", shape=LONG, tokens_per_microbatch=12, sharding=KEPT)
plain("untied", model="untied")
plain("qwen2", model="qwen2")
plain("not clipped", max_grad_norm=None)
plain("weighted", importance_cap=1.01, entropy_coef=0.01)


@scenario("chunked logits")
def _(folder: Path) -> dict[str, Any]:
    before, module.KEPT_LOGITS = module.KEPT_LOGITS, 0  # every chunk is made again in the backward pass
    try:
        knobs = BUDGET | {"logits_chunk_tokens": 2}
        return compared(torch_learner(**knobs), fsdp_learner(**knobs), batch_of(rows_of(SHAPE)))
    finally:
        module.KEPT_LOGITS = before


@scenario("adapters")
def _(folder: Path) -> dict[str, Any]:
    lora = LoraSettings(rank=2, alpha=8.0)
    return compared(lora_learner(**BUDGET), fsdp_learner(lora=lora, **BUDGET), batch_of(rows_of(SHAPE)))


@scenario("kl to a reference that is reset")
def _(folder: Path) -> dict[str, Any]:
    one = torch_learner(reference=tiny.model(1), kl_coef=0.3, **BUDGET)
    many = fsdp_learner(reference=tiny.model(1), kl_coef=0.3, **BUDGET)
    batch = batch_of(rows_of(SHAPE))
    apart = float((one.logprobs(batch, reference=True) - many.logprobs(batch, reference=True)).abs().max())
    first = compared(one, many, replace(batch, ref_logprobs=one.logprobs(batch, reference=True)))
    one.reset_reference()
    many.reset_reference()
    batch = replace(batch, ref_logprobs=one.logprobs(batch, reference=True))
    apart = max(apart, float((batch.ref_logprobs - many.logprobs(batch, reference=True)).abs().max()))
    second = compared(one, many, batch)
    return {name: max(first[name], second[name]) for name in first} | {"reference": apart}


for reduction in ("minibatch", "group", "sequence", "constant", "microbatch"):

    def run(folder: Path, reduction: Any = reduction) -> dict[str, Any]:
        one, many = torch_learner(**BUDGET), fsdp_learner(**BUDGET)
        batch = batch_of(rows_of(SHAPE))
        cut = many.cut(batch)
        assert sorted(row for micro in cut for row in micro) == list(range(batch.num_rows))
        found = row_weights(
            batch.loss_tokens,
            batch.draw,
            reduction,
            constant_tokens=7 if reduction == "constant" else None,
            microbatches=cut if reduction == "microbatch" else None,
        )
        return compared(one, many, replace(batch, row_weights=found))

    SCENARIOS[f"reduction {reduction}"] = run


@scenario("credit")
def _(folder: Path) -> dict[str, Any]:
    one, many = torch_learner(**BUDGET), fsdp_learner(**BUDGET)
    batch = with_old(batch_of(rows_of(SHAPE)), one, 0.3)
    bucket = torch.arange(batch.num_rows) % 3
    traces = Trace(bucket=bucket), Trace(bucket=bucket)
    for learner, trace in zip((one, many), traces, strict=True):
        learner.update(batch, 1e-3, trace)
    wanted, got = (trace.credit for trace in traces)
    assert wanted is not None
    assert got is not None
    assert wanted.buckets.keys() == got.buckets.keys()
    pairs = [(wanted.norm, got.norm)]
    for bucket_number, own in wanted.buckets.items():
        pairs += zip(own, got.buckets[bucket_number], strict=True)
    return {
        "credit": max(abs(a - b) / abs(wanted.norm**2) for a, b in pairs),
        "weights": apart_by(weights(one), weights(many)),
    }


# --- what must not happen -----------------------------------------------------------------------------


@scenario("not finite")
def _(folder: Path) -> dict[str, Any]:
    many = fsdp_learner(**BUDGET)
    batch = with_old(batch_of(rows_of(SHAPE)), many)
    many.update(batch, 1e-3)
    before, state = weights(many), many.state_dict()
    advantages = batch.advantages.clone()
    advantages[0] = math.nan  # of one row, which one rank alone has
    metrics = many.update(replace(batch, advantages=advantages), 1e-3)
    skipped = same(weights(many), before) and same(many.state_dict(), state)
    after = many.update(batch, 1e-3)
    flags = many.ranks.gather([metrics["grad/nonfinite"], after["grad/nonfinite"], skipped])
    return {"flags": flags, "moved": not same(weights(many), before)}


@scenario("an objective that fails on one rank")
def _(folder: Path) -> dict[str, Any]:
    """A refusal and a bug, of the last rank alone: what all are told, and whether anything has moved."""
    fails: list[Exception] = []

    def objective(inputs: Any) -> Tensor:
        if fails and dist.get_rank() == dist.get_world_size() - 1:
            raise fails[0]
        loss: Tensor = -inputs.advantages_BT * (inputs.logprobs_BT - inputs.old_logprobs_BT).exp()
        return loss

    told: list[Any] = []
    for again in (True, False):
        many = fsdp_learner(objective=objective, sharding=FsdpSettings(reshard_after_forward=again), **BUDGET)
        batch = with_old(batch_of(rows_of(SHAPE)), many)
        many.update(batch, 1e-3)
        before, state = weights(many), many.state_dict()
        for error in (ValueError("no such token"), KeyError("typo")):
            fails.append(error)
            try:
                many.update(batch, 1e-3)
            except ValueError as failure:
                told.append(many.ranks.gather(str(failure)))
            fails.clear()
        told.append(many.ranks.gather(same(weights(many), before) and same(many.state_dict(), state)))
        told.append(many.ranks.gather(many.update(batch, 1e-3)["grad/nonfinite"]))
    return {"told": told}


@scenario("nothing to train on")
def _(folder: Path) -> dict[str, Any]:
    many = fsdp_learner(**BUDGET)
    batch = with_old(batch_of(rows_of(SHAPE)), many)
    before = weights(many)
    metrics = many.update(replace(batch, loss_mask=torch.zeros_like(batch.loss_mask)), 1e-3)
    return {"norm": metrics["grad/norm"], "same": same(weights(many), before)}


@scenario("bfloat16")
def _(folder: Path) -> dict[str, Any]:
    one, many = torch_learner(**BUDGET), fsdp_learner(dtype=torch.bfloat16, **BUDGET)
    batch = batch_of(rows_of(SHAPE))
    found = compared(one, many, batch, updates=1, noise=0.05)
    other = compared(
        torch_learner(**BUDGET), torch_learner(dtype=torch.bfloat16, **BUDGET), batch, updates=1, noise=0.05
    )
    found["alone"] = other["gradient"]
    return found | {"types": sorted({str(tensor.dtype) for _, tensor in many.export_weights()})}


# --- checkpoints --------------------------------------------------------------------------------------


def trained(**knobs: Any) -> tuple[FsdpLearner, Batch]:
    """A learner after two updates with a reference that was reset between them."""
    many = fsdp_learner(reference=tiny.model(1), **BUDGET, **knobs)
    batch = with_old(batch_of(rows_of(SHAPE)), many)
    many.update(batch, 1e-3)
    many.reset_reference()
    many.update(batch, 1e-3)
    return many, batch


@scenario("saved and read by as many")
def _(folder: Path) -> dict[str, Any]:
    many, batch = trained()
    place = folder / f"of{many.ranks.count}"
    many.write_state(place)
    state, whole = many.state_dict(), weights(many)
    if many.ranks.first:
        save_file(state, folder / f"of{many.ranks.count}.state.safetensors")
        save_file(whole, folder / f"of{many.ranks.count}.weights.safetensors")
    again = fsdp_learner(tiny.model(5), reference=tiny.model(2), **BUDGET)
    again.update(with_old(batch, again), 1e-2)
    again.read_state(place)
    exact = same(weights(again), whole) and same(again.state_dict(), state)
    goes_on = many.update(batch, 1e-3) == again.update(batch, 1e-3) and same(weights(many), weights(again))
    sizes = sorted(file.name for file in (place / "optimizer").iterdir())
    return {"exact": many.ranks.gather([exact, goes_on]), "files": sizes}


@scenario("read from another number")
def _(folder: Path) -> dict[str, Any]:
    others = sorted(file.name.removesuffix(".state.safetensors") for file in folder.glob("*.state.safetensors"))
    count = dist.get_world_size()
    found = {}
    for other in others:
        if other == f"of{count}":
            continue
        many = fsdp_learner(tiny.model(5), reference=tiny.model(2), **BUDGET)
        many.read_state(folder / other)
        state, whole = many.state_dict(), weights(many)
        wanted = load_file(folder / f"{other}.state.safetensors")
        exact = same(whole, load_file(folder / f"{other}.weights.safetensors"))
        if many.ranks.first:
            exact = exact and same(state, wanted)
        found[other] = many.ranks.gather(exact)
    return found


@scenario("adapters saved and read")
def _(folder: Path) -> dict[str, Any]:
    lora = LoraSettings(rank=2, alpha=8.0)
    many = fsdp_learner(lora=lora, **BUDGET)
    batch = with_old(batch_of(rows_of(SHAPE)), many)
    many.update(batch, 1e-3)
    place = folder / f"adapters{many.ranks.count}"
    many.write_state(place)
    again = fsdp_learner(lora=lora, **BUDGET)
    again.read_state(place)
    refused = ""
    try:
        fsdp_learner(tiny.model(4), lora=lora, **BUDGET).read_state(place)
    except Exception as error:
        refused = str(error)
    return {"exact": same(weights(many), weights(again)), "refused": many.ranks.gather(refused)}


@scenario("can't be written")
def _(folder: Path) -> dict[str, Any]:
    many = fsdp_learner(**BUDGET)
    place = folder / f"file{many.ranks.count}"
    if many.ranks.first:
        place.write_text("in the way")
    dist.barrier()
    try:
        many.write_state(place)
    except OSError as error:
        return {"errors": many.ranks.gather(type(error).__name__)}
    return {}


@scenario("a disk of its own")
def _(folder: Path) -> dict[str, Any]:
    """The last rank writes where the first one does not look."""
    many = fsdp_learner(**BUDGET)
    many.update(with_old(batch_of(rows_of(SHAPE)), many), 1e-3)
    place = folder / f"apart{many.ranks.count}"
    if many.ranks.rank == many.ranks.count - 1:
        place = folder / f"elsewhere{many.ranks.count}"
    try:
        many.write_state(place)
    except OSError as error:
        return {"errors": many.ranks.gather(str(error))}
    return {"errors": []}


def main(folder: Path, wanted: list[str]) -> None:
    """Runs the scenarios, all of them where none is named."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name in wanted or SCENARIOS:
        try:
            results[name] = SCENARIOS[name](folder)
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"}
    if dist.get_rank() == 0:
        (folder / f"results{dist.get_world_size()}.json").write_text(json.dumps(results, indent=1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
