"""The torch learner: chunks, checkpointing, the optimiser, skipped updates, architectures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import reference as ref
import tiny
from dapo.algorithm import ObjectiveInputs
from dapo.errors import ModelError
from dapo.learner.packing import Packing
from dapo.model.loading import SplitModel
from dapo.types import Batch
from helpers_learner import (
    SHAPE,
    VOCABULARY,
    Gradients,
    batch_of,
    distance,
    double,
    response_logprobs,
    rows_of,
    same,
    torch_learner,
    weights,
    with_old,
)

PACKINGS: tuple[Packing, ...] = ("shared_prompt", "padded")
TOKENS = sum(sum(lengths) for _, lengths in SHAPE)  # 28 response tokens


def standard(learner: Any, noise: float = 0.5) -> Batch:
    """The standard rows with old log-probs that make some ratios clip."""
    return with_old(batch_of(rows_of(SHAPE)), learner, noise)


# --- log-probs in chunks --------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_and_entropy_are_those_of_plain_passes(temperature: float) -> None:
    """Log-prob of each token and the policy's mean entropy, against one plain pass per response.

    Bound: 2e-5 absolute (float32 against float64).
    """
    rows = rows_of(SHAPE)
    learner = torch_learner(temperature=temperature)
    batch = standard(learner)
    model = double(tiny.model())
    entropies = []
    got = learner.logprobs(batch)
    with torch.no_grad():
        for b, row in enumerate(rows):
            begin, end = len(row.prompt), len(row.prompt + row.response)
            expected = response_logprobs(model, row, temperature).float()
            assert torch.allclose(got[b, begin:end], expected, atol=2e-5, rtol=0)
            assert not got[b, :begin].any()
            assert not got[b, end:].any()
            logits = model(input_ids=torch.tensor([row.prompt + row.response])).logits[0]
            entropies += [ref.entropy(logits[t - 1].tolist(), temperature) for t in range(begin, end)]
    metrics = learner.update(batch, 0.0)
    assert len(entropies) == TOKENS
    assert metrics["policy/entropy"] == pytest.approx(sum(entropies) / TOKENS, rel=1e-5)


@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_chunks_change_nothing(chunk: int) -> None:
    """The chunk bounds memory and nothing else: log-probs within 1e-5, gradient within 1e-5 relative."""
    whole = torch_learner(logits_chunk_tokens=TOKENS)
    learner = torch_learner(logits_chunk_tokens=chunk)
    batch = standard(whole)
    assert (learner.logprobs(batch) - whole.logprobs(batch)).abs().max() < 1e-5
    got, expected = Gradients(learner), Gradients(whole)
    assert distance(got.of(batch), expected.of(batch)) < 1e-5
    assert got.metrics["policy/entropy"] == pytest.approx(expected.metrics["policy/entropy"], rel=1e-5)


class Widest(TorchDispatchMode):
    """Most rows of any [rows, vocabulary] tensor that any operation makes, forward or backward."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.made = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            # The output embedding itself appears as [hidden, vocabulary] when transposed.
            if isinstance(tensor, Tensor) and tensor.dim() >= 2 and tensor.shape[-1] == VOCABULARY:
                rows = tensor.numel() // VOCABULARY
                if rows != 32:
                    self.rows, self.made = max(self.rows, rows), self.made + 1
        return result


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("tied", [True, False])
def test_no_logits_of_all_tokens_exist(chunk: int, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """[all tokens, vocabulary] must never exist, in passes with or without gradient, nor be kept for backward.

    (Kept they are up to KEPT_LOGITS numbers, in chunks.)
    """
    monkeypatch.setattr("dapo.learner.torch_learner.KEPT_LOGITS", TOKENS * VOCABULARY - 1)
    learner = torch_learner(tiny.model(tied=tied), logits_chunk_tokens=chunk)
    batch = standard(learner)
    saved: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.dim() == 2 and tensor.shape[-1] == VOCABULARY and tensor.shape[0] != 32:
            saved.append(tensor.shape[0])
        return tensor

    with Widest() as widest:
        learner.logprobs(batch)
        assert widest.rows == chunk
        learner.update(batch, 0.0)
    assert widest.rows == chunk
    assert widest.made > 2 * TOKENS // chunk, "the watch saw too little to prove anything"
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.update(batch, 0.0)
    assert max(saved, default=0) <= chunk
    assert sum(saved) < TOKENS, "logits were kept from the forward pass"


@pytest.mark.parametrize("chunk", [1, 5, 1000])
@pytest.mark.parametrize("knobs", [{}, {"entropy_coef": 0.1, "temperature": 0.7}])
def test_logits_kept_are_logits_made_again(chunk: int, knobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, whether the backward pass finds the logits or makes them anew."""
    found = []
    for kept in (0, 2**28):
        monkeypatch.setattr("dapo.learner.torch_learner.KEPT_LOGITS", kept)
        learner = torch_learner(logits_chunk_tokens=chunk, **knobs)
        found.append(Gradients(learner).of(standard(learner)))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


# --- memory knobs and types -----------------------------------------------------------------------


def test_gradient_checkpointing_changes_nothing() -> None:
    """Activations made twice are the same activations: within 1e-6 relative."""
    plain, saving = torch_learner(), torch_learner(gradient_checkpointing=True)
    batch = standard(plain)
    assert (saving.logprobs(batch) - plain.logprobs(batch)).abs().max() < 1e-6
    assert distance(Gradients(saving).of(batch), Gradients(plain).of(batch)) < 1e-6


def test_gradient_checkpointing_recomputes() -> None:
    """The knob must save memory: the layers' forward runs a second time in the backward pass."""
    counts = []
    for on in (False, True):
        learner = torch_learner(gradient_checkpointing=on)
        batch = standard(learner)
        calls: list[int] = []
        learner.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        learner.update(batch, 0.0)
        counts.append(len(calls))
    assert counts == [1, 2]


def small_gpt2(dropout: float) -> Any:
    """A GPT-2, whose dropouts are modules and not named attention_dropout."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        bos_token_id=1,
        eos_token_id=2,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        initializer_range=0.3,
    )
    return transformers.GPT2LMHeadModel(config).float().eval().requires_grad_(False)


def llama_with_dropout() -> Any:
    """The tiny Llama with dropout in its attention."""
    model = tiny.model()
    model.config.attention_dropout = 0.1
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    return model


@pytest.mark.parametrize("make", [partial(small_gpt2, 0.1), llama_with_dropout], ids=["gpt2", "llama"])
def test_gradient_checkpointing_never_drops_out(make: Callable[[], Any]) -> None:
    """A policy with dropout is not the policy that sampled: refused, or the dropout is off (ratios are 1)."""
    try:
        learner = torch_learner(make(), gradient_checkpointing=True)
    except ModelError:
        with pytest.raises(ModelError, match="dropout"):
            torch_learner(make(), gradient_checkpointing=True)
        return
    batch = batch_of(rows_of([(3, (4, 2)), (1, (3,))]))
    first = learner.logprobs(batch)
    assert torch.equal(first, learner.logprobs(batch))
    metrics = learner.update(replace(batch, old_logprobs=first), 0.0)
    assert metrics["ratio/max"] == pytest.approx(1.0, abs=1e-5)


def test_another_architecture_trains() -> None:
    """Any causal LM: GPT-2 (learnt positions, no rotation) packs like Llama."""
    packed, padded = (torch_learner(small_gpt2(0.0), packing=p, tokens_per_microbatch=30) for p in PACKINGS)
    batch = standard(packed)
    assert (packed.logprobs(batch) - padded.logprobs(batch)).abs().max() < 2e-5
    assert distance(Gradients(packed).of(batch), Gradients(padded).of(batch)) < 1e-5


def test_bfloat16_is_autocast_over_float32_weights() -> None:
    """Compute type bfloat16: master weights, gradients and log-probs stay float32, and results come close."""
    full, half = torch_learner(tiny.model(scale=0.05)), torch_learner(tiny.model(scale=0.05), dtype=torch.bfloat16)
    batch = standard(full, noise=0.02)  # of a ratio near a clip, rounding decides whether it has a gradient
    got = half.logprobs(batch)
    gap = (got - full.logprobs(batch)).abs().max()
    assert 0 < gap < 0.05, "bfloat16 has 8 bits: not the same, but close"
    gradient = Gradients(half).of(batch)
    assert got.dtype == torch.float32
    assert {g.dtype for g in gradient.values()} == {torch.float32}
    half.update(batch, 1e-3)
    assert {w.dtype for w in weights(half).values()} == {torch.float32}
    assert distance(gradient, Gradients(full).of(batch)) < 0.03


# --- the denominator and the objective ------------------------------------------------------------


@pytest.mark.parametrize("packing", PACKINGS)
def test_two_calls_with_handed_in_weights_sum_to_one(packing: Packing) -> None:
    """Law 2: a learner never divides by what it holds, so a mini-batch may be cut over ranks."""
    learner = torch_learner(packing=packing)
    gradients = Gradients(learner)
    batch = standard(learner)
    whole = gradients.of(batch)
    loss = gradients.metrics["loss/policy"]
    left = gradients.of(batch.take([0, 5, 2, 7]))
    loss_left = gradients.metrics["loss/policy"]
    right = gradients.of(batch.take([1, 3, 4, 6, 8, 9]))
    assert distance({name: left[name] + right[name] for name in whole}, whole) < 1e-5
    assert loss_left + gradients.metrics["loss/policy"] == pytest.approx(loss, rel=1e-5)


def test_a_users_objective_is_masked_and_divided_by_us() -> None:
    """A plug-in returns raw per-token losses; what it says outside the mask must not matter."""

    def entropy_bonus(inputs: ObjectiveInputs) -> Tensor:
        return torch.where(inputs.mask_BT, inputs.logprobs_BT, torch.full_like(inputs.logprobs_BT, math.nan))

    learner = torch_learner(objective=entropy_bonus)
    batch = standard(learner)
    mask = batch.loss_mask.clone()
    mask[0, 4] = False
    batch = replace(batch, loss_mask=mask)
    expected = float(learner.logprobs(batch)[mask].sum()) / TOKENS
    metrics = learner.update(batch, 0.0)
    assert metrics["loss/policy"] == pytest.approx(expected, rel=1e-5)
    assert metrics["grad/nonfinite"] == 0


def test_the_metrics_are_the_oracles() -> None:
    """Clip fractions, ratios and KL of an update are means over loss tokens, whatever the micro-batches."""
    for budget in (1, 24, 1000):
        learner = torch_learner(clip_dual=1.3, log_ratio_clamp=0.4, tokens_per_microbatch=budget)
        batch = standard(learner, noise=0.6)
        logp = learner.logprobs(batch).double()
        assert batch.old_logprobs is not None
        rows: list[ref.Row] = [
            {
                "draw": int(batch.draw[b]),
                "advantage": float(batch.advantages[b]),
                "logp": logp[b].tolist(),
                "old": batch.old_logprobs[b].tolist(),
                "mask": batch.loss_mask[b].tolist(),
            }
            for b in range(batch.num_rows)
        ]
        counts = ref.clip_counts(rows, 0.2, 0.28, 1.3, 0.4)
        metrics = learner.update(batch, 0.0)
        for name in ("clip/high", "clip/low", "clip/dual", "ratio/outside", "ratio/clamped"):
            assert counts[name] > 0, "the data must reach every branch"
            assert metrics[f"{name}_fraction"] == pytest.approx(counts[name] / TOKENS)
        assert metrics["ratio/mean"] == pytest.approx(counts["ratio/mean"] / TOKENS, rel=1e-5)
        assert metrics["ratio/max"] == pytest.approx(counts["ratio/max"], rel=1e-5)
        gaps = [p - q for row in rows for p, q, m in zip(row["logp"], row["old"], row["mask"], strict=True) if m]
        assert metrics["ratio/logprob_abs_mean"] == pytest.approx(sum(map(abs, gaps)) / TOKENS, rel=1e-4)
        assert metrics["policy/kl_to_old"] == pytest.approx(sum(math.exp(-x) - 1 + x for x in gaps) / TOKENS, rel=1e-4)


def test_importance_metrics() -> None:
    """Mean, capped share and effective sample size of the truncated weights (DESIGN 4)."""
    learner = torch_learner(importance_cap=1.2, tokens_per_microbatch=24)
    batch = standard(learner)
    assert batch.old_logprobs is not None
    batch = replace(batch, engine_logprobs=learner.logprobs(batch))
    w = [
        ref.importance_weight(float(p), float(b), 1.2)
        for p, b in zip(batch.old_logprobs[batch.loss_mask], batch.engine_logprobs[batch.loss_mask], strict=True)
    ]
    metrics = learner.update(batch, 0.0)
    capped = sum(x == 1.2 for x in w)
    assert 0 < capped < TOKENS
    assert metrics["importance/mean"] == pytest.approx(sum(w) / TOKENS, rel=1e-5)
    assert metrics["importance/capped_fraction"] == pytest.approx(capped / TOKENS)
    # Kish: (sum w)^2 / (n sum w^2)
    assert metrics["importance/effective_fraction"] == pytest.approx(
        sum(w) ** 2 / (TOKENS * sum(x * x for x in w)), rel=1e-5
    )


# --- the optimiser --------------------------------------------------------------------------------

OPTIMISERS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no clipping": {"max_grad_norm": None},
    "clipping": {"max_grad_norm": 0.01},
    "loose clipping": {"max_grad_norm": 1e6},
    "decay": {"weight_decay": 0.5},
    "no decay": {"weight_decay": 0.0},
    "betas and eps": {"betas": (0.5, 0.7), "adam_eps": 1e-2},
}


@pytest.mark.parametrize("case", OPTIMISERS)
def test_a_step_is_torchs_adamw_on_the_clipped_gradient(case: str) -> None:
    """Three updates at three rates: weights and moments are those of torch's own, plain AdamW.

    Bound: 2e-6 relative. torch clips by max/(norm + 1e-6), the learner by max/norm.
    """
    knobs = {"max_grad_norm": 1.0, "weight_decay": 0.1, "betas": (0.9, 0.999), "adam_eps": 1e-8} | OPTIMISERS[case]
    learner = torch_learner(**OPTIMISERS[case])
    gradients = Gradients(learner)
    batch = standard(learner)
    twin = {name: torch.nn.Parameter(w) for name, w in weights(learner).items()}
    optimizer = torch.optim.AdamW(
        list(twin.values()),
        lr=1.0,
        betas=knobs["betas"],
        eps=knobs["adam_eps"],
        weight_decay=knobs["weight_decay"],
        foreach=False,
        fused=False,
    )
    for rate in (1e-3, 3e-3, 2e-3):
        gradient = gradients.of(batch, rate)
        for name, parameter in twin.items():
            parameter.grad = gradient[name].clone()
        norm = torch.nn.utils.clip_grad_norm_(twin.values(), knobs["max_grad_norm"] or math.inf)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        assert gradients.metrics["grad/norm"] == pytest.approx(float(norm), rel=1e-5), "the norm before clipping"
        assert gradients.metrics["train/learning_rate"] == rate
        state = learner.state_dict()
        limit = knobs["max_grad_norm"]
        loose = 0.0 if limit is None or norm < limit else 2 * 1e-6 / float(norm)  # torch's 1e-6
        for name, parameter in twin.items():
            mine = dict(learner.export_weights())[name]
            assert torch.allclose(mine, parameter, rtol=2e-6, atol=1e-4 * rate)
            for moment in ("exp_avg", "exp_avg_sq"):
                theirs = optimizer.state[parameter][moment]
                # The clip's relative error is of each gradient; where gradients of several steps cancel, of none less.
                apart = 1e-9 + loose * float(gradient[name].abs().max())
                assert torch.allclose(state[f"{moment}/{name}"], theirs, rtol=1e-5 + loose, atol=apart)


def test_the_clipping_case_clips_and_the_default_may_not() -> None:
    """Guards the cases above: the norm lies between the limits that are to clip and not to clip."""
    learner = torch_learner()
    norm = learner.update(standard(learner), 0.0)["grad/norm"]
    assert 0.01 < norm < 1e6


# --- updates that must not happen -----------------------------------------------------------------


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("budget", [1, 10_000])
def test_a_nonfinite_gradient_changes_nothing(poison: float, budget: int) -> None:
    """One bad row would ruin every weight for ever: skipped, counted, and the next update is as if it never was."""
    learner = torch_learner(tokens_per_microbatch=budget)
    other = torch_learner(tokens_per_microbatch=budget)
    batch = standard(learner, noise=0.1)  # a clipped token has no gradient and would hide the poison
    assert learner.update(batch, 1e-5)["grad/nonfinite"] == other.update(batch, 1e-5)["grad/nonfinite"] == 0
    before, state = weights(learner), {k: v.clone() for k, v in learner.state_dict().items()}
    advantages = batch.advantages.clone()
    advantages[4] = poison
    metrics = learner.update(replace(batch, advantages=advantages), 1e-5)
    assert metrics["grad/nonfinite"] == 1
    assert not math.isfinite(metrics["grad/norm"])
    assert same(weights(learner), before)
    assert same(learner.state_dict(), state)
    learner.update(batch, 1e-5)
    other.update(batch, 1e-5)
    assert same(weights(learner), weights(other)), "something of the bad update was left"
    assert same(learner.state_dict(), other.state_dict())


@pytest.mark.parametrize("started", [False, True])
def test_no_loss_tokens_at_all(started: bool) -> None:
    """Every row filtered out: zero, finite, and no step, not even of weight decay or momentum."""
    learner = torch_learner(weight_decay=0.5)
    batch = standard(learner)
    if started:
        learner.update(batch, 1e-3)
    before, state = weights(learner), {k: v.clone() for k, v in learner.state_dict().items()}
    empty = replace(batch, loss_mask=torch.zeros_like(batch.loss_mask), row_weights=torch.zeros_like(batch.row_weights))
    metrics = learner.update(empty, 1e-2)
    assert {name: value for name, value in metrics.items() if value != 0} == {"train/learning_rate": 1e-2}
    assert same(weights(learner), before)
    assert same(learner.state_dict(), state)


# --- restoring ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("gradient_checkpointing", [True, False])
def test_a_restored_learner_goes_on_bitwise(tmp_path: Path, tied: bool, gradient_checkpointing: bool) -> None:
    """Three updates, a save, a new process's learner, three more: bitwise six updates."""
    make = partial(torch_learner, tokens_per_microbatch=30, gradient_checkpointing=gradient_checkpointing)
    straight, first = make(tiny.model(tied=tied)), make(tiny.model(tied=tied))
    batches = [with_old(batch_of(rows_of(SHAPE, seed), seed), straight, 0.5, seed) for seed in range(6)]
    for batch in batches:
        straight.update(batch, 1e-3)
    for batch in batches[:3]:
        first.update(batch, 1e-3)
    first.save_hf(tmp_path / "model")
    save_file({k: v.contiguous() for k, v in first.state_dict().items()}, tmp_path / "optimizer.safetensors")
    second = make(tiny.model(seed=5, tied=tied))
    second.restore(tmp_path / "model", load_file(tmp_path / "optimizer.safetensors"))
    assert same(weights(second), weights(first))
    assert same(second.state_dict(), first.state_dict())
    for batch in batches[3:]:
        second.update(batch, 1e-3)
    assert same(weights(second), weights(straight))
    assert same(second.state_dict(), straight.state_dict())


def test_every_weight_moves() -> None:
    """All are trained, the embeddings and norms too."""
    learner = torch_learner(tiny.model(tied=False))
    before = weights(learner)
    learner.update(standard(learner), 1e-3)
    after = weights(learner)
    assert all(not torch.equal(after[name], before[name]) for name in before)


def test_a_folder_without_a_weight_is_refused(tmp_path: Path) -> None:
    """A half-restored policy would train on quietly."""
    learner = torch_learner()
    learner.save_hf(tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    found.pop("model.norm.weight")
    save_file(found, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight"):
        learner.restore(tmp_path, {})


# --- body and head --------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def causal_lm(name: str, **more: Any) -> Any:
    """A small random model of a transformers architecture, its logits large enough to tell apart."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL, **more)
    return getattr(transformers, f"{name}ForCausalLM")(config).float().eval().requires_grad_(False)


HEADS: dict[str, Callable[[], Any]] = {
    "soft cap": lambda: causal_lm("Gemma2", head_dim=16, final_logit_softcapping=2.0),
    "multiplied": lambda: causal_lm("Cohere", logit_scale=3.0),
    "divided": lambda: causal_lm("Granite", logits_scaling=5.0),
    "plain": lambda: causal_lm("Qwen2"),
    "bias": lambda: causal_lm("Phi"),
}


@pytest.mark.parametrize("kind", HEADS)
def test_known_heads_are_split_rightly(kind: str) -> None:
    """A soft cap or a scale after the output embedding belongs to the policy; bound 1e-5 relative."""
    model = HEADS[kind]()
    tokens = torch.tensor([[5, 9, 3, 30, 7, 7]])
    split = SplitModel(model)
    got = split.head(split.body(input_ids=tokens, use_cache=False).last_hidden_state)
    expected = model(input_ids=tokens).logits
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5)
    raw = model.get_output_embeddings()(split.body(input_ids=tokens, use_cache=False).last_hidden_state)
    plain = kind in ("plain", "bias")
    assert torch.allclose(raw, expected, rtol=1e-2, atol=1e-2) == plain, "the transformation must matter here"


@pytest.mark.parametrize("kind", ["soft cap", "multiplied", "divided"])
def test_known_heads_train_rightly(kind: str) -> None:
    """Through the learner too: log-probs are those of the model's own logits."""
    rows = [
        replace(r, prompt=tuple(t % 40 for t in r.prompt), response=tuple(t % 40 for t in r.response))
        for r in rows_of([(3, (4, 2)), (1, (3,))])
    ]
    model = HEADS[kind]()
    learner = torch_learner(model)
    got = learner.logprobs(batch_of(rows))
    with torch.no_grad():
        for b, row in enumerate(rows):
            begin, end = len(row.prompt), len(row.prompt + row.response)
            assert torch.allclose(got[b, begin:end], response_logprobs(model, row).float(), atol=1e-4, rtol=0)


def changed(change: Callable[[Tensor], Tensor]) -> Any:
    """A Llama whose forward does something to its logits that its config does not name."""
    model = tiny.model()
    plain = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = plain(*args, **kwargs)
        output.logits = change(output.logits)
        return output

    model.forward = forward
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda z: z * 1.1,
        lambda z: torch.tanh(z / 5.0) * 5.0,
        lambda z: z + torch.arange(z.shape[-1]),
        lambda z: z[..., :-1],
        lambda z: torch.log_softmax(z, -1),
    ],
    ids=["scaled", "capped", "biased", "narrower", "normalised"],
)
def test_unknown_heads_are_refused(change: Callable[[Tensor], Tensor]) -> None:
    """Training on other logits than the policy's own would be wrong in silence."""
    with pytest.raises(ModelError, match="llama"):
        torch_learner(changed(change))


def test_a_model_without_a_body_is_refused() -> None:
    """base_model of a bare model is itself; chunks could not be made."""
    model = tiny.model()
    model.base_model_prefix = "nothing"
    with pytest.raises(ModelError, match="no separate body"):
        SplitModel(model)


def mixture(seed: int) -> Any:
    """A tiny random mixture of experts, which transformers holds in other tensors than its public folders do."""
    torch.manual_seed(seed)
    settings = Qwen3MoeConfig(
        vocab_size=len(tiny.VOCABULARY),
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    return Qwen3MoeForCausalLM(settings).float().eval().requires_grad_(False)


@pytest.mark.parametrize("copied", [True, False])
def test_a_mixture_of_experts_goes_on_from_its_folder(copied: bool, tmp_path: Path) -> None:
    """Bitwise; and transformers reads the same weights from it."""
    learner = torch_learner(mixture(0), tokens_per_microbatch=30)
    learner.update(with_old(batch_of(rows_of(SHAPE)), learner), 1e-3)
    learner.save_hf(tmp_path, learner.host_weights() if copied else None)
    again = torch_learner(mixture(1))
    again.restore(tmp_path, learner.state_dict())
    assert any("experts" in name for name in weights(learner))
    assert same(weights(again), weights(learner))
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert same({name: p.detach() for name, p in read.named_parameters()}, weights(learner))
