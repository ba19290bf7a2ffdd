"""Low-rank adapters: only A and B move, by the chain rule; everyone else sees a plain model."""

from __future__ import annotations

import ast
import copy
import functools
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import dapo
import helpers_run as helpers
import tiny
from dapo.errors import ConfigError, ModelError, UserError
from dapo.learner.lora import LoraSettings, adapter_size, inject
from dapo.types import Batch
from helpers_learner import (
    HIGH,
    LOW,
    SHAPE,
    Gradients,
    Knobs,
    OracleRow,
    batch_of,
    distance,
    double,
    lora_learner,
    oracle_gradient,
    rows_of,
    same,
    torch_learner,
    weights,
    with_old,
)
from test_checkpoint import check_equal, resume
from test_resume import counting

SCALE = 8.0 / 2  # alpha / r of `lora_learner`
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def standard(learner: Any, noise: float = 0.5, seed: int = 0) -> Batch:
    """The standard rows with old log-probs that make some ratios clip."""
    return with_old(batch_of(rows_of(SHAPE, seed), seed), learner, noise, seed)


def adapters(learner: Any) -> dict[str, Tensor]:
    """A and B by name."""
    return {name: value for name, value in learner.state_dict().items() if name.startswith("lora/")}


def base(learner: Any) -> dict[str, Tensor]:
    """A copy of all that is not A or B, buffers included, by peft's names."""
    return {name: value.clone() for name, value in learner.model.state_dict().items() if ".lora_" not in name}


@torch.no_grad()
def move(learner: Any, size: float = 0.1) -> Any:
    """B off 0, so that A has a gradient too."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in learner.model.named_parameters():
        if ".lora_B." in name:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)
    return learner


def by_hand(learner: Any, plain: Any) -> dict[str, Tensor]:
    """W + scale B A of a plain model's weights and the state's A and B, in float64."""
    ab = {name.removeprefix("lora/"): value.double() for name, value in adapters(learner).items()}
    merged = {name: p.detach().double() for name, p in plain.named_parameters()}
    for name in {key.rpartition(".")[0] for key in ab}:
        merged[f"{name}.weight"] = merged[f"{name}.weight"] + SCALE * ab[f"{name}.lora_B"] @ ab[f"{name}.lora_A"]
    return merged


def plain_model(learner: Any, **kwargs: Any) -> Any:
    """A tiny model that never saw peft, with the learner's exported weights."""
    model = tiny.model(5, **kwargs)
    missing, unexpected = model.load_state_dict(weights(learner), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model


# --- what is trained ------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", ["all-linear", "attention"])
@pytest.mark.parametrize("tied", [True, False])
def test_only_a_and_b_are_trained(targets: str, tied: bool) -> None:
    """In every linear layer of the body, never the head; all else keeps its bits, weight decay included."""
    learner = lora_learner(tiny.model(tied=tied), targets=targets, weight_decay=0.5)
    names = LINEAR if targets == "all-linear" else LINEAR[:4]
    expected = {f"{n}.lora_{ab}.default.weight" for n in names for ab in "AB"}
    trained = [name for name, p in learner.model.named_parameters() if p.requires_grad]
    assert {".".join(name.split(".")[4:]) for name in trained} == expected
    assert len(trained) == 2 * 2 * len(names)
    before, first = base(learner), adapters(learner)
    for seed in range(3):
        assert learner.update(standard(learner, seed=seed), 1e-2)["grad/norm"] > 0
    assert same(base(learner), before)
    after = adapters(learner)
    assert all(not torch.equal(after[name], first[name]) for name in first)


@pytest.mark.parametrize("packing", ["shared_prompt", "padded"])
def test_it_starts_as_the_base_model(packing: Any) -> None:
    """B = 0 adds nothing: the same log-probs and exported weights, bit by bit."""
    learner, plain = lora_learner(packing=packing), torch_learner(packing=packing)
    batch = batch_of(rows_of(SHAPE))
    assert torch.equal(learner.logprobs(batch), plain.logprobs(batch))
    assert same(weights(learner), weights(plain))


def test_a_is_a_function_of_the_seed() -> None:
    """Of nothing that others draw from, and others draw as if nothing had happened; uniform in +-1/sqrt(inputs)."""
    model, other = tiny.model(), tiny.model()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = adapters(lora_learner(model, seed=7))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert same(adapters(lora_learner(other, seed=7)), one)
    for seed in (8, 2**64 - 1):
        another = adapters(lora_learner(seed=seed))
        assert all(torch.equal(another[name], one[name]) == name.endswith("B") for name in one)
    seen = set()
    for name, value in one.items():
        assert (value.abs().max() <= value.shape[1] ** -0.5) if name.endswith("A") else not value.any(), name
        seen.add(value.flatten()[0].item())
    assert len(seen) == len(one) // 2 + 1  # no two layers share their A
    widest = torch.cat([v.flatten() * v.shape[1] ** 0.5 for n, v in one.items() if n.endswith("A")]).double()
    assert abs(widest.mean()) < 4 / math.sqrt(3 * len(widest))
    assert widest.square().mean() == pytest.approx(1 / 3, rel=0.1)


# --- gradients ------------------------------------------------------------------------------------


def chained(full: dict[str, Tensor], learner: Any) -> dict[str, Tensor]:
    """The chain rule of the merged model's gradient: dB = scale dW A^T, dA = scale B^T dW."""
    ab = {name.removeprefix("lora/"): value.double() for name, value in adapters(learner).items()}
    found = {}
    for name in sorted({key.rpartition(".")[0] for key in ab}):
        gradient = full[f"{name}.weight"].double()
        found[f"{name}.lora_A.default.weight"] = SCALE * ab[f"{name}.lora_B"].T @ gradient
        found[f"{name}.lora_B.default.weight"] = SCALE * gradient @ ab[f"{name}.lora_A"].T
    return found


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("budget", [1, 30, 10**6])
@pytest.mark.parametrize("packing", ["shared_prompt", "padded"])
def test_gradients_are_the_chain_rule_of_the_full_ones(packing: Any, budget: int, checkpointing: bool) -> None:
    """Against one plain pass per response of the merged model in float64, for every packing and cut.

    Bound: 1e-4 relative, as the full learner's (float32 against float64).
    """
    learner = move(
        lora_learner(packing=packing, tokens_per_microbatch=budget, gradient_checkpointing=checkpointing, clip_low=LOW)
    )
    rows = rows_of(SHAPE)
    batch = standard(learner)
    assert batch.old_logprobs is not None
    merged = tiny.model()
    with torch.no_grad():
        for name, value in by_hand(learner, tiny.model()).items():
            merged.get_parameter(name).copy_(value)
    oracle = []
    for index, row in enumerate(rows):
        begin, end = len(row.prompt), len(row.prompt + row.response)
        old, count = batch.old_logprobs[index, begin:end].tolist(), len(row.response)
        advantage = float(batch.advantages[index])
        oracle.append(OracleRow(row=row, advantage=advantage, mask=[True] * count, old=old, engine=[0.0] * count))
    loss, full = oracle_gradient(double(merged), None, oracle, Knobs())
    gradients = Gradients(learner)
    got = gradients.of(batch)
    assert gradients.metrics["loss/policy"] == pytest.approx(loss, rel=1e-4)
    assert HIGH == 0.28
    assert distance(got, chained(full, learner)) < 1e-4


def test_gradients_are_those_of_the_full_learner() -> None:
    """The same chain rule of TorchLearner's own gradient of the merged model."""
    learner = move(lora_learner())
    batch = standard(learner)
    full = Gradients(torch_learner(plain_model(learner))).of(batch)
    assert distance(Gradients(learner).of(batch), chained(full, learner)) < 1e-4


# --- what others see ------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_exported_weights_are_a_plain_model(tied: bool) -> None:
    """Plain names in the plain order, W + scale B A within float32's rounding, and the learner's log-probs to 1e-5."""
    learner = move(lora_learner(tiny.model(tied=tied)))
    learner.update(standard(learner), 1e-3)
    plain = tiny.model(tied=tied)
    exported = weights(learner)
    assert list(exported) == [name for name, _ in plain.named_parameters()]
    for name, value in by_hand(learner, plain).items():
        assert exported[name].dtype == torch.float32
        assert torch.allclose(exported[name].double(), value, rtol=1e-6, atol=1e-6)
    changed = {name for name, p in plain.named_parameters() if not torch.equal(exported[name], p)}
    assert len(changed) == 2 * len(LINEAR)
    batch = batch_of(rows_of(SHAPE))
    got = torch_learner(plain_model(learner, tied=tied)).logprobs(batch)
    assert torch.allclose(learner.logprobs(batch), got, atol=1e-5, rtol=0)
    assert not any(tensor.requires_grad for tensor in exported.values())


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_is_that_of_a_plain_model(tied: bool, tmp_path: Path) -> None:
    """The same files and names as a full learner's; tied weights are written once; a copy stays what it was."""
    learner = move(lora_learner(tiny.model(tied=tied)))
    kept = learner.host_weights()
    assert (kept["lm_head.weight"].data_ptr() == kept["model.embed_tokens.weight"].data_ptr()) == tied
    exported = weights(learner)
    for _ in range(2):
        learner.update(standard(learner), 1e-2)
    assert all(torch.equal(kept[name], exported[name]) for name in exported)
    learner.save_hf(tmp_path / "kept", kept)
    learner.save_hf(tmp_path / "now")
    torch_learner(tiny.model(tied=tied)).save_hf(tmp_path / "plain")
    now = weights(learner)
    for name, wanted in (("kept", exported), ("now", now)):
        assert helpers.tree(tmp_path / name) == helpers.tree(tmp_path / "plain")
        assert (tmp_path / name / "config.json").read_text() == (tmp_path / "plain" / "config.json").read_text()
        found = helpers.weights(tmp_path / name)
        assert found.keys() == helpers.weights(tmp_path / "plain").keys()
        assert ("lm_head.weight" in found) != tied
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name, local_files_only=True)
        assert same({name: p.detach() for name, p in model.named_parameters()}, wanted)
    assert not same(exported, now)


def test_layers_with_transposed_weights_and_biases() -> None:
    """GPT-2's: W is [inputs, outputs], so the adapter is added transposed; biases stay. Bound: 1e-5 in log-probs."""
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tiny.VOCABULARY), "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    dropout = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **dropout, initializer_range=0.3)).eval().requires_grad_(False)
    plain = copy.deepcopy(model)
    learner = lora_learner(model)
    batch = standard(learner)
    for _ in range(2):
        learner.update(batch, 1e-2)
    exported = weights(learner)
    assert list(exported) == [name for name, _ in plain.named_parameters()]
    before = learner.logprobs(batch)
    assert (before - torch_learner(copy.deepcopy(plain)).logprobs(batch)).abs().max() > 1e-3
    plain.load_state_dict(exported, strict=False)
    assert torch.allclose(before, torch_learner(plain).logprobs(batch), atol=1e-5, rtol=0)


def test_the_reference_is_the_base_until_it_is_reset() -> None:
    """Reset, it is the merged policy, AdamW starts afresh, and a checkpoint holds it."""
    learner = lora_learner(reference=tiny.model(), kl_coef=0.1)
    batch = standard(learner)
    start = torch_learner().logprobs(batch)
    for _ in range(3):
        learner.update(batch, 1e-2)
    assert torch.equal(learner.logprobs(batch, reference=True), start)
    learner.reset_reference()
    assert {name.partition("/")[0] for name in learner.state_dict()} == {"lora", "reference", "lora_alpha"}
    reset = learner.logprobs(batch, reference=True)
    assert torch.allclose(reset, learner.logprobs(batch), atol=1e-5, rtol=0)
    assert (reset - start).abs().max() > 1e-2
    learner.update(batch, 1e-2)
    assert torch.equal(learner.logprobs(batch, reference=True), reset)


def test_the_optimiser_holds_a_and_b_alone() -> None:
    """Two moments and a step of each; and the summary tells how many numbers are trained."""
    learner = lora_learner()
    learner.update(standard(learner), 1e-3)
    state = learner.state_dict()
    count = sum(value.numel() for value in adapters(learner).values())
    sides = {"q": 64, "k": 48, "v": 48, "o": 64, "gate": 96, "up": 96, "down": 96}  # inputs + outputs
    assert count == 2 * 2 * sum(sides.values()) == adapter_size(tiny.model(), LoraSettings(rank=2))
    moments = {name: value for name, value in state.items() if name.startswith("exp_avg")}
    assert sum(value.numel() for value in moments.values()) == 2 * count
    assert sum(name.startswith("step/") for name in state) == 28
    held = sum(value.numel() for value in state.values())
    assert held == 3 * count + 28 + 1
    assert sum(p.grad is not None for p in learner.model.parameters()) == 0
    total = sum(p.numel() for p in tiny.model().parameters())
    assert learner.summary == (
        f"adapters of rank 2 (alpha 8) in 14 linear layers: {count:,} weights are trained, "
        f"{count / total:.2%} of the model's {total:,}"
    )


# --- hostile --------------------------------------------------------------------------------------


def test_a_rank_that_is_no_low_rank() -> None:
    """Refused by layer; the largest that fits (k_proj is 16 wide) works."""
    with pytest.raises(ModelError, match=r"lora_rank = 17 is over 16, the smaller side of .*k_proj; use 16 or less"):
        lora_learner(rank=17)
    learner = lora_learner(rank=16)
    assert learner.update(standard(learner), 1e-3)["grad/norm"] > 0


def test_a_model_without_such_layers() -> None:
    """Named, not trained in nothing."""

    model = tiny.model()
    for layer in model.model.layers:
        layer.self_attn = nn.Identity()
    with pytest.raises(ModelError, match='lora_targets = "attention": llama has no such linear layers'):
        inject(model, LoraSettings(rank=2, targets="attention"))
    for layer in model.model.layers:
        layer.mlp = nn.Identity()
    with pytest.raises(ModelError, match='lora_targets = "all-linear": llama has no such linear layers'):
        inject(model, LoraSettings(rank=2))


def test_a_weight_of_two_layers() -> None:
    """An adapter of one of them could not be merged."""
    model = tiny.model()
    one, two = (layer.mlp for layer in model.model.layers)
    two.up_proj.weight = one.up_proj.weight
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.up_proj of llama shares its weight"):
        inject(model, LoraSettings(rank=2))


def test_bfloat16_leaves_a_and_b_in_float32() -> None:
    """Autocast rounds what flows, not what is trained; an update smaller than bfloat16's step is kept."""
    learner = lora_learner(dtype=torch.bfloat16)
    batch = standard(learner)
    for _ in range(2):
        assert learner.update(batch, 1e-6)["grad/nonfinite"] == 0
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}
    assert {value.dtype for value in adapters(learner).values()} == {torch.float32}
    b = torch.cat([v.flatten() for n, v in adapters(learner).items() if n.endswith("B")])
    assert 0 < b.abs().max() < 1e-5
    plain = torch_learner(plain_model(learner), dtype=torch.bfloat16)
    assert torch.allclose(learner.logprobs(batch), plain.logprobs(batch), atol=0.1, rtol=0)


def test_peft_is_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line that says what to install, before any data or model is read."""
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r'pip install "dapo-rl\[lora\]"'):
        lora_learner()
    words = ("learner.lora_rank=2", "model.path=/nowhere")
    code, _, err = helpers.quiet_dapo("train", helpers.write_recipe(tmp_path), *words, "--output-dir", tmp_path / "run")
    assert code == 2
    said = 'error: learner.lora_rank needs the library peft; pip install "dapo-rl[lora]"'
    assert err.splitlines()[-1] == f"{said}  [dapo explain E-CONFIG]"
    assert not (tmp_path / "run").exists()


def test_peft_is_loaded_only_when_asked_for() -> None:
    """No module of the package imports it while it is itself imported, and one function alone does."""
    places = []
    for path in Path(dapo.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
        found = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom) and "peft" in ast.unparse(n)]
        places += [(path.name, id(node) in inside) for node in found if "need_peft" not in ast.unparse(node)]
    assert places == [("lora.py", True)]


# --- going on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_a_restored_learner_goes_on_bitwise(tmp_path: Path, tied: bool, checkpointing: bool) -> None:
    """Three updates, a save, a new process's learner of another seed, three more: bitwise six updates."""
    make = functools.partial(lora_learner, tokens_per_microbatch=30, gradient_checkpointing=checkpointing)
    straight, first = make(tiny.model(tied=tied)), make(tiny.model(tied=tied))
    batches = [standard(straight, seed=seed) for seed in range(6)]
    for batch in batches:
        straight.update(batch, 1e-2)
    for batch in batches[:3]:
        first.update(batch, 1e-2)
    first.save_hf(tmp_path / "model")
    save_file(first.state_dict(), tmp_path / "optimizer.safetensors")
    second = make(tiny.model(tied=tied), seed=5)
    second.restore(tmp_path / "model", load_file(tmp_path / "optimizer.safetensors"))
    assert same(second.state_dict(), first.state_dict())
    assert same(weights(second), weights(first))
    for batch in batches[3:]:
        second.update(batch, 1e-2)
    assert same(base(second), base(straight))
    assert same(second.state_dict(), straight.state_dict())
    assert same(weights(second), weights(straight))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: lora_learner(rank=3), "learner.lora_rank = 3, but the checkpoint's .* (rank 2)"),
        (lambda: lora_learner(rank=1), "learner.lora_rank = 1"),
        (lambda: lora_learner(alpha=9), "learner.lora_alpha = 9, but the checkpoint's is 8"),
        (lambda: lora_learner(targets="attention"), "learner.lora_targets as it was"),
        (lambda: lora_learner(tiny.model(1)), "put model.path back"),
        (lambda: torch_learner(), "the checkpoint holds adapters; set learner.lora_rank"),
    ],
)
def test_what_does_not_fit_is_not_restored(make: Any, said: str, tmp_path: Path) -> None:
    """Other adapters, another base: refused by name, where the policy would silently be another one."""
    saved = lora_learner()
    for _ in range(2):
        saved.update(standard(saved), 1e-2)
    saved.save_hf(tmp_path)
    with pytest.raises(ModelError, match=said.replace("(", r"\(").replace(")", r"\)")):
        make().restore(tmp_path, saved.state_dict())


def test_a_checkpoint_without_adapters_is_not_restored(tmp_path: Path) -> None:
    """Of a run whose weights were all trained; and a folder that lacks a weight."""
    full = torch_learner()
    full.save_hf(tmp_path)
    with pytest.raises(ModelError, match=r'trained with learner\.lora_rank = "off"'):
        lora_learner().restore(tmp_path, full.state_dict())
    found = load_file(tmp_path / "model.safetensors")
    found.pop("model.norm.weight")
    save_file(found, tmp_path / "model.safetensors")
    learner = lora_learner()
    with pytest.raises(ModelError, match=r"no weight model\.norm\.weight"):
        learner.restore(tmp_path, learner.state_dict())


# --- whole runs -----------------------------------------------------------------------------------

LORA = ("learner.lora_rank=2", "learner.lora_alpha=8", "train.learning_rate=1e-2")
KEEP = ("checkpoint.every=1", "checkpoint.keep_last=9", "engine.slots=8", "eval.every=1")
KL = ("algorithm.kl.place=loss", "algorithm.kl.coef=0.05", "algorithm.kl.reset_every=2")
STEPS = 4


@functools.cache
def straight(*words: str) -> Path:
    """A run of four steps that never stopped."""
    return helpers.train(helpers.folder_of_this_process(), *LORA, *KEEP, f"train.num_steps={STEPS}", *words)


def refused(run: Path, *words: str) -> str:
    """The line with which a resume ends; nothing of the run has changed."""
    before = (run / "config.resolved.json").read_bytes()
    code, _, err = helpers.quiet_dapo("train", "--resume", run, *words)
    assert code == 2, err
    assert "Traceback" not in err
    assert (run / "config.resolved.json").read_bytes() == before
    return err.splitlines()[-1]


@pytest.mark.parametrize("words", [(), KL], ids=["plain", "kl, reset"])
def test_a_longer_horizon_goes_on_as_if_planned(words: tuple[str, ...], tmp_path: Path) -> None:
    """One step, then two, then one more, are four: weights, adapters, moments, metrics and responses."""
    run = helpers.train(tmp_path, *LORA, *KEEP, *words, "train.num_steps=1")
    for steps in (3, STEPS):
        resume(run, f"train.num_steps={steps}")
    check_equal(run, straight(*words), STEPS)
    moved = helpers.weights_at(run, STEPS)
    assert helpers.largest_difference(moved, helpers.weights_at(run, 1)) > 1e-4
    names = load_file(run / "checkpoints" / f"step_{STEPS:06d}" / "optimizer.safetensors").keys()
    assert sum(name.startswith("lora/") for name in names) == 28


@pytest.mark.parametrize("step", range(STEPS))
def test_from_every_checkpoint(step: int, tmp_path: Path) -> None:
    """Killed after k steps; without any checkpoint it starts again, from the same A."""
    again = helpers.copy_run(straight(), tmp_path / "run", up_to=step)
    if step == 0:
        lines = (again / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (again / "metrics.jsonl").write_text("".join(lines[:2]), encoding="utf-8")
    resume(again)
    check_equal(again, straight(), STEPS)


@pytest.mark.parametrize("event", [("update", 4), ("poll", 9)])
def test_from_a_signal_within_a_step(event: tuple[str, int], tmp_path: Path) -> None:
    """A SIGTERM among updates and while sampling."""
    with counting(event):
        code, _, err = helpers.quiet_dapo(
            "train",
            straight().parent / "recipe.toml",
            *(*LORA, *KEEP, f"train.num_steps={STEPS}"),
            *("--output-dir", tmp_path / "run"),
        )
    assert code == 3, err
    resume(tmp_path / "run")
    check_equal(tmp_path / "run", straight(), STEPS)


def test_the_run_says_what_is_trained(tmp_path: Path) -> None:
    """Before the first step."""
    recipe = helpers.write_recipe(tmp_path)
    code, _, err = helpers.quiet_dapo("train", recipe, *LORA, "train.num_steps=1", "--output-dir", tmp_path / "run")
    assert code == 0, err
    assert "adapters of rank 2 (alpha 8) in 14 linear layers: 2,048 weights are trained" in err
    starting = json.loads((tmp_path / "run" / "manifest.json").read_text())["digests"]["starting_weights"]
    full = helpers.finished_run() / "manifest.json"
    assert starting == json.loads(full.read_text())["digests"]["starting_weights"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("learner.lora_rank=4", "learner.lora_rank = 4, but the run's checkpoints were trained with 2"),
        ("learner.lora_rank=off learner.lora_alpha=32", "learner.lora_rank = off"),
        ("learner.lora_alpha=16", "learner.lora_alpha = 16.0, but the run's checkpoints were trained with 8.0"),
        ("learner.lora_targets=attention", "learner.lora_targets = attention"),
    ],
)
def test_other_adapters_are_refused_at_a_resume(word: str, said: str, tmp_path: Path) -> None:
    """By name, before anything is loaded or written; the run can still go on as it was."""
    run = helpers.copy_run(straight(), tmp_path / "run", up_to=2)
    assert said in refused(run, *word.split())
    resume(run)
    check_equal(run, straight(), STEPS)


def test_a_full_run_does_not_go_on_with_adapters(tmp_path: Path) -> None:
    """Its base would be the starting weights, not what it has learnt."""
    run = helpers.copy_run(helpers.finished_run(), tmp_path / "run")
    assert "learner.lora_rank = 4, but the run's checkpoints were trained with off" in refused(
        run, "learner.lora_rank=4", "train.num_steps=3"
    )


def test_other_starting_weights_are_refused_even_if_allowed(tmp_path: Path) -> None:
    """They are half of the policy here: --allow-changed can't help."""
    run = helpers.copy_run(straight(), tmp_path / "run", up_to=2)
    words = (f"model.path={helpers.cold_model()}", "--allow-changed", "starting_weights")
    assert "put model.path back" in refused_late(run, *words)


def refused_late(run: Path, *words: str) -> str:
    """As `refused`, of what is found when the weights are there."""
    code, _, err = helpers.quiet_dapo("train", "--resume", run, *words)
    assert code == 2, err
    return err.splitlines()[-1]


def test_a_checkpoint_needs_no_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Export, sampling and evaluation read a plain folder."""
    run = straight()
    monkeypatch.setitem(sys.modules, "peft", None)
    target = tmp_path / "exported"
    code, _, err = helpers.quiet_dapo("export", run, target)
    assert code == 0, err
    assert same(helpers.weights(target), helpers.weights_at(run, STEPS))
    assert not [path for path in target.rglob("*") if "adapter" in path.name]
    code, out, err = helpers.quiet_dapo("sample", run, "say aa", "--max-tokens", "4")
    assert code == 0, err
    assert out.strip()
    code, out, err = helpers.quiet_dapo("eval", run, "-o", tmp_path / "eval")
    assert code == 0, err


def test_training_raises_the_reward(tmp_path: Path) -> None:
    """Eight steps of adapters pull the tiny model towards 7, and the engine samples from the merged policy."""
    words = ("sampling.prompts_per_step=8", "sampling.responses_per_prompt=8", "engine.slots=64", "data.holdout=16")
    words += ("train.tokens_per_microbatch=1024", "eval.k=4", "train.num_steps=8", "learner.lora_rank=8")
    run = helpers.train(tmp_path, *words, "learner.lora_alpha=16", "train.learning_rate=1e-2")
    rows = helpers.metrics(run)
    assert rows[-1]["eval/accuracy"] > rows[0]["eval/accuracy"] + 0.3
    assert rows[-1]["sampled/accuracy"] > 0.8
    assert all(row["mismatch/logprob_abs_mean"] < 1e-4 for row in rows[1:] if "mismatch/logprob_abs_mean" in row)


def test_errors_here_are_of_the_user() -> None:
    """One line and exit 2."""
    assert issubclass(ModelError, UserError)
    assert issubclass(ConfigError, UserError)
