"""The self-checks in whole runs: every fault is caught within two steps, and what is right is let alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

import dapo.batch
import dapo.build
import dapo.learners
import dapo.loop
import dapo.sampling
import helpers_learner
import helpers_run
import tiny
from dapo.algorithm import row_weights, spread
from dapo.batch import make_batch, with_advantages
from dapo.checks import watch
from dapo.checks.watch import Surroundings
from dapo.data.template import PromptTemplate
from dapo.learner.base import Trace
from dapo.learner.lora import LoraLearner
from dapo.learner.torch_learner import TorchLearner
from dapo.rollout.torch_engine import TorchEngine
from dapo.sampling import Collector
from dapo.types import Batch, Collected, Group, TrainState
from helpers_checks import EOS, ran, resumed

Patch = pytest.MonkeyPatch
LEARNER = "algorithm.old_logprobs=learner"
ENGINE = "algorithm.old_logprobs=engine"
LORA = ("learner.lora_rank=2", "learner.lora_alpha=8")


# --- faulty parts ---------------------------------------------------------------------------------


class Shifted(TorchLearner):
    """Looks each token's probability up one place too late."""

    def _token_logprobs(self, split: Any, hidden_NH: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        return super()._token_logprobs(split, hidden_NH, target_N.roll(1))


class WithoutTemperature(TorchLearner):
    """Trains a policy at temperature 1, whatever was sampled from."""

    def __init__(self, model: Any, settings: Any, *rest: Any, **named: Any) -> None:
        super().__init__(model, replace(settings, temperature=1.0), *rest, **named)


class TwoPasses(TorchLearner):
    """Its update sees other logits than its log-probs came from, as with dropout."""

    def _token_logprobs(self, split: Any, hidden_NH: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        scale = 1.01 if torch.is_grad_enabled() else 1.0
        return super()._token_logprobs(split, hidden_NH * scale, target_N)


class Frozen(TorchLearner):
    """Its optimiser holds copies."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._optimizer.param_groups[0]["params"] = [p.detach().clone() for p in self._trained.values()]


class SampleMean(TorchLearner):
    """Divides as it likes."""

    def update(self, minibatch: Batch, learning_rate: float, trace: Trace | None = None) -> dict[str, float]:
        weights = row_weights(minibatch.loss_tokens, minibatch.draw, "sequence")
        return super().update(replace(minibatch, row_weights=weights), learning_rate, trace)


class Resting(TorchLearner):
    """Trains at a rate of 0."""

    def update(self, minibatch: Batch, learning_rate: float, trace: Trace | None = None) -> dict[str, float]:
        return super().update(minibatch, 0.0, trace)


class NaNLogprobs(TorchLearner):
    """One of its log-probs is not a number."""

    def logprobs(self, batch: Batch, *, reference: bool = False) -> Tensor:
        result = super().logprobs(batch, reference=reference)
        result[0][batch.loss_mask[0]] = torch.nan
        return result


class NaNGradient(TorchLearner):
    """As is its gradient."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._held.norm = lambda weights: float("nan")  # type: ignore[method-assign]


class Keeping(TorchLearner):
    """Hands the engine what it began with, for ever."""

    first: dict[str, Tensor] | None = None

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        if self.first is None:
            self.first = {name: weight.clone() for name, weight in super().export_weights()}
        return iter(self.first.items())


class Unmerged(LoraLearner):
    """Hands the engine the base without its adapters."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._adapters.merged = lambda plain, tensor, whole=None: tensor.detach()  # type: ignore[method-assign]


class MovingBase(LoraLearner):
    """Moves what lies under its adapters."""

    @torch.no_grad()
    def _step(self, norm: float, learning_rate: float) -> dict[str, float]:
        moved = super()._step(norm, learning_rate)
        next(p for name, p in self.model.named_parameters() if "base_layer" in name).add_(1e-3)
        return moved


class TrainedBase(LoraLearner):
    """Trains the base as well, and says so."""

    def _choose_trained(self) -> dict[str, Tensor]:
        chosen = super()._choose_trained()
        base = {name: p for name, p in self.model.named_parameters() if "base_layer" in name}
        return chosen | {name: parameter.requires_grad_(True) for name, parameter in base.items()}


def learner(faulty: type[TorchLearner]) -> Callable[[Patch], None]:
    """In place of the one that is built."""
    name = "LoraLearner" if issubclass(faulty, LoraLearner) else "TorchLearner"
    return lambda patch: patch.setattr(dapo.learners, name, faulty)


def hot_engine(patch: Patch) -> None:
    """Samples at temperature 1, whatever it is told."""
    submit = TorchEngine.submit
    patch.setattr(TorchEngine, "submit", lambda e, d, p, params: submit(e, d, p, replace(params, temperature=1.0)))


def deaf_engine(patch: Patch) -> None:
    """Takes a version and no weights."""
    patch.setattr(TorchEngine, "load_weights", lambda e, version, tensors: setattr(e, "version", version))


def losing_engine(lost: str) -> Callable[[Patch], None]:
    """Takes all weights but one."""

    def spoil(patch: Patch) -> None:
        load, first = TorchEngine.load_weights, {}

        def faulty(engine: TorchEngine, version: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
            first.setdefault("tensors", {})
            old = first["tensors"]
            load(engine, version, ((n, old.setdefault(n, t.clone()) if lost in n else t) for n, t in tensors))

        patch.setattr(TorchEngine, "load_weights", faulty)

    return spoil


def mask_without_eos(patch: Patch) -> None:
    """Ends before the end."""
    inner = dapo.batch._loss_mask
    patch.setattr(dapo.batch, "_loss_mask", lambda r, eos: inner(r, eos) & (r.response.token_ids != EOS))


def batch_maker(change: Callable[[Batch], Batch]) -> Callable[[Patch], None]:
    """A batch that is not what was made of its groups."""
    return lambda patch: patch.setattr(dapo.loop, "make_batch", lambda *arguments: change(make_batch(*arguments)))


def _prompt_too(batch: Batch) -> Batch:
    mask = batch.loss_mask.clone()
    mask[:, 0] = True
    return replace(batch, loss_mask=mask)


def _one_less(batch: Batch) -> Batch:
    mask = batch.loss_mask.clone()
    mask[0, int(batch.prompt_lengths[0])] = False
    return replace(batch, loss_mask=mask)


def _next_group(batch: Batch) -> Batch:
    return replace(batch, draw=batch.draw.roll(1))


def shaped_filter(patch: Patch) -> None:
    """Looks at what overlong penalties make of the reward."""

    def keep(groups: Sequence[Group], rule: str) -> list[bool]:
        shaped = [torch.tensor([[r.shaped_reward for r in group.rollouts]]) for group in groups]
        return [bool(spread(rewards)) for rewards in shaped]

    patch.setattr(dapo.sampling, "keep_mask", keep)


def collector(change: Callable[[Collected], Collected]) -> Callable[[Patch], None]:
    """Another selection than it made."""
    inner = Collector.collect
    return lambda patch: patch.setattr(Collector, "collect", lambda c, *a: change(inner(c, *a)))


def sample_mean(patch: Patch) -> None:
    """Of row weights."""
    patch.setattr(dapo.batch, "row_weights", lambda tokens, draw, rule, **_: row_weights(tokens, draw, "sequence"))


def advantages(change: Callable[[Tensor], Tensor]) -> Callable[[Patch], None]:
    """Others than the estimator's."""

    def faulty(*arguments: Any) -> Batch:
        batch = with_advantages(*arguments)
        return replace(batch, advantages=change(batch.advantages))

    return lambda patch: patch.setattr(dapo.loop, "with_advantages", faulty)


def no_rate(patch: Patch) -> None:
    """A schedule that never begins."""
    patch.setattr(dapo.loop, "learning_rate", lambda step, config: 0.0)


def second_bos(patch: Patch) -> None:
    """A tokenizer that adds a BOS where the template has written one."""
    inner = PromptTemplate.encode

    def encode(template: PromptTemplate, *arguments: Any) -> tuple[str, list[int]]:
        text, ids = inner(template, *arguments)
        return text, [ids[0], *ids]

    patch.setattr(PromptTemplate, "encode", encode)


SOFT = ("reward.overlong=soft", "reward.overlong_buffer_tokens=2")
FAULTS: dict[str, tuple[Callable[[Patch], None], tuple[str, ...], str]] = {
    "labels_shifted-learner": (learner(Shifted), (LEARNER,), "engine_gap"),
    "labels_shifted-engine": (learner(Shifted), (ENGINE,), "engine_gap"),
    "labels_shifted-lora": (learner(type("ShiftedLora", (Shifted, LoraLearner), {})), (LEARNER, *LORA), "engine_gap"),
    "learner_without_temperature-learner": (
        learner(WithoutTemperature),
        (LEARNER, "sampling.temperature=0.7"),
        "engine_gap",
    ),
    "learner_without_temperature-engine": (
        learner(WithoutTemperature),
        (ENGINE, "sampling.temperature=0.7"),
        "engine_gap",
    ),
    "engine_without_temperature-learner": (hot_engine, (LEARNER, "sampling.temperature=1.3"), "engine_gap"),
    "engine_without_temperature-engine": (hot_engine, (ENGINE, "sampling.temperature=1.3"), "engine_gap"),
    "two_passes-one_update": (learner(TwoPasses), (LEARNER, "train.updates_per_step=1"), "ratio_one"),
    "two_passes-two_updates": (learner(TwoPasses), (LEARNER,), "ratio_one"),
    "engine_takes_nothing": (deaf_engine, (), "engine_weights"),
    "engine_loses_a_norm": (losing_engine("layers.1.input_layernorm"), (), "engine_weights"),
    "engine_loses_a_projection": (losing_engine("layers.0.self_attn.v_proj"), (), "engine_weights"),
    "engine_loses_the_embedding": (losing_engine("embed_tokens"), (), "engine_weights"),
    "learner_hands_over_old_weights": (learner(Keeping), (), "engine_weights"),
    "adapters_not_merged": (learner(Unmerged), LORA, "engine_weights"),
    "eos_masked": (mask_without_eos, (), "eos_mask"),
    "prompt_in_the_mask": (batch_maker(_prompt_too), (), "response_mask"),
    "first_token_out_of_the_mask": (batch_maker(_one_less), (), "response_mask"),
    "rows_in_the_next_group": (batch_maker(_next_group), (), "groups"),
    "filter_on_the_shaped_reward": (shaped_filter, (*SOFT, 'reward.extract=["boxed"]'), "filter"),
    "filter_takes_one_less": (collector(lambda c: replace(c, kept=c.kept[:-1])), (), "filter"),
    "filter_in_another_order": (collector(lambda c: replace(c, kept=c.kept[::-1])), (), "filter"),
    "sample_mean-weights": (sample_mean, (), "reduction"),
    "sample_mean-learner": (learner(SampleMean), (), "reduction"),
    "sample_mean-learner-engine": (learner(SampleMean), (ENGINE,), "reduction"),
    "advantages_off_centre": (advantages(lambda a: a + 0.1), (), "advantages"),
    "advantages_lost": (advantages(torch.zeros_like), (), "advantages"),
    "advantages_not_finite": (advantages(lambda a: a / 0), (), "finite"),
    "frozen": (learner(Frozen), (), "trained_weights"),
    "base_moves": (learner(MovingBase), LORA, "trained_weights"),
    "base_trained": (learner(TrainedBase), LORA, "trained_weights"),
    "rate_of_zero": (no_rate, (), "learning_rate"),
    "rate_of_zero-learner": (learner(Resting), (), "learning_rate"),
    "logprobs_not_finite": (learner(NaNLogprobs), (LEARNER,), "finite"),
    "gradient_not_finite": (learner(NaNGradient), (), "finite_updates"),
    "two_bos": (second_bos, (), "double_bos"),
}
WARNED = ("finite_updates", "double_bos")


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught_within_two_steps(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the check that is for them; the run stops with one line that says all there is to know, or goes on warned."""
    spoil, words, check = FAULTS[fault]
    if LORA[0] in words:
        pytest.importorskip("peft")
    spoil(monkeypatch)
    run = ran(tmp_path, *words, "train.max_nonfinite_updates=9")
    assert check in run.checks, (run.checks, run.err)
    (first, *_) = [line for line in run.lines if line["check"] == check]
    assert first["step"] <= 2
    assert "Traceback" not in run.err
    if check in WARNED:
        assert run.code == 0, run.err
        assert first["action"] == "warn"
        assert sum(run.counts) == len(run.lines)
        return
    assert run.code == 5, run.err
    assert first["action"] == "stop"
    last = run.err.splitlines()[-1]
    stopped_by = next(line for line in run.lines if line["action"] == "stop")
    assert last.startswith(f"stopped: check {stopped_by['check']}: ")
    for told in (f"checks.{stopped_by['check']}=warn lets the run go on", "this means: ", "dapo train --resume"):
        assert told in last


@pytest.mark.parametrize("fault", [name for name, (_, _, check) in FAULTS.items() if name.endswith(("rate_of_zero",))])
def test_off_is_not_looked_at(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither told nor counted."""
    spoil, words, check = FAULTS[fault]
    spoil(monkeypatch)
    run = ran(tmp_path, *words, f"checks.{check}=off")
    assert (run.code, run.lines, sum(run.counts)) == (0, [], 0.0)


# --- stopping and going on ------------------------------------------------------------------------


def test_a_stop_while_sampling_stops_again_until_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state from before the step was saved, so that the same is found again; each finding stands once."""
    mask_without_eos(monkeypatch)
    run = ran(tmp_path)
    assert (run.code, run.counts) == (5, [])
    assert {(line["step"], line["phase"]) for line in run.lines} == {(1, "sampling")}
    again = resumed(run)
    assert (again.code, again.lines) == (5, run.lines)
    allowed = resumed(run, "checks.eos_mask=warn", "checks.response_mask=warn")
    assert allowed.code == 0, allowed.err
    assert [line | {"action": "stop"} for line in allowed.lines[: len(run.lines)]] == run.lines
    assert sum(allowed.counts) == len(allowed.lines)


def test_a_stop_after_an_update_goes_on_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The update is done and saved; what was found in it stays, and no update is run twice."""
    no_rate(monkeypatch)
    run = ran(tmp_path)
    assert run.code == 5
    assert [(line["step"], line["phase"], line["update"]) for line in run.lines] == [(1, "update", 1)]
    assert (run.path / "checkpoints" / "step_000000-u000001").is_dir()
    allowed = resumed(run, "checks.learning_rate=warn")
    assert allowed.code == 0, allowed.err
    places = [(line["step"], line["update"]) for line in allowed.lines]
    assert places == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert allowed.counts == [2.0, 2.0]


def test_a_stop_at_the_engines_weights_is_before_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sampled from what is not the policy; an engine that is mended goes on as if nothing had been."""
    with monkeypatch.context() as patch:
        losing_engine("layers.1.input_layernorm")(patch)
        run = ran(tmp_path / "stopped")
    assert (run.code, run.counts) == (5, [])
    assert [(line["step"], line["phase"]) for line in run.lines] == [(1, "sync")]
    mended, straight = resumed(run), ran(tmp_path / "straight")
    assert (mended.code, mended.lines) == (0, [])
    one, other = (helpers_run.comparable(helpers_run.metrics(r.path)) for r in (mended, straight))
    assert one == other
    ends = [helpers_run.weights_at(run.path, 2) for run in (mended, straight)]
    assert helpers_run.largest_difference(*ends) == 0.0


def test_a_resume_knows_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later gaps are held against the first step's, also in another process."""
    words = (LEARNER, "train.num_steps=1", "checks.engine_gap=warn", "checks.ratio_one=off")
    run = ran(tmp_path, *words)
    recorded = helpers_run.metrics(run.path)[0]["checks/gap_p999_nats"]
    assert 0 <= recorded < 1e-4
    inner = TorchLearner.logprobs
    monkeypatch.setattr(TorchLearner, "logprobs", lambda *a, **k: inner(*a, **k) + 2e-3)  # under the first step's bound
    after = resumed(run, "train.num_steps=2")
    (line,) = [line for line in after.lines if line["check"] == "engine_gap"]
    assert line["step"] == 2
    assert line["bound"] == pytest.approx(4 * 2.5e-4)
    assert helpers_run.metrics(run.path)[1]["checks/gap_p999_nats"] == recorded


def test_an_engine_that_can_not_be_read_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; and a third party's that knows nothing of it is no fault."""
    monkeypatch.delattr(TorchEngine, "weight_samples")
    monkeypatch.setattr(TorchLearner, "parameters", None)
    run = ran(tmp_path)
    assert (run.code, run.lines) == (0, [])
    assert run.err.count("checks.engine_weights is not made") == 1
    assert run.err.count("checks.trained_weights is not made") == 1


# --- what is right --------------------------------------------------------------------------------

CARRY = (
    "sampling.schedule=streaming",
    "sampling.gen_prompts=6",
    "sampling.surplus=carry",
    "sampling.max_staleness=2",
    "algorithm.importance_cap=2",
)
VOWELS = 'reward.functions=["{folder}/vowels.py:vowels"]'
RIGHT: dict[str, tuple[str, ...]] = {
    "plain": (),
    "one_update": ("train.updates_per_step=1",),
    "engine": (ENGINE,),
    "engine_one_update": (ENGINE, "train.updates_per_step=1"),
    "padded": ("train.packing=padded",),
    "padded_one_update": ("train.packing=padded", "train.updates_per_step=1"),
    "one_row_at_a_time": ("train.tokens_per_microbatch=1", "train.updates_per_step=1"),
    "bfloat16": ("model.dtype=bfloat16",),
    "bfloat16_engine": ("model.dtype=bfloat16", ENGINE, "train.updates_per_step=1"),
    "checkpointed": ("train.gradient_checkpointing=true", "train.updates_per_step=1"),
    "lora": LORA,
    "lora_attention": (*LORA, "learner.lora_targets=attention", ENGINE, "train.updates_per_step=1"),
    "lora_kl": (*LORA, "algorithm.kl.place=loss", "algorithm.kl.coef=0.1"),
    "rounds": ("sampling.gen_prompts=3",),
    "streaming": ("sampling.schedule=streaming", "sampling.gen_prompts=6"),
    "carry": CARRY,
    "carry_rounds": (*CARRY, "sampling.schedule=rounds"),
    "sequence_weights": (*CARRY, "algorithm.importance_level=sequence", "algorithm.importance_cap=1.5"),
    "filter_off": ("sampling.filter=off",),
    "nonzero_std": ("sampling.filter=nonzero_std",),
    "graded": (VOWELS, "sampling.filter=nonzero_std", "eval.data=[]"),
    "kl_loss": ("algorithm.kl.place=loss", "algorithm.kl.coef=0.1"),
    "kl_reward": ("algorithm.kl.place=reward", "algorithm.kl.coef=0.1", "algorithm.kl.reset_every=1"),
    "kl_reward_batch": ("algorithm.kl.place=reward", "algorithm.kl.coef=0.1", "algorithm.advantage=batch"),
    "sequence": ("algorithm.reduction=sequence",),
    "group": ("algorithm.reduction=group",),
    "microbatch": ("algorithm.reduction=microbatch", "train.tokens_per_microbatch=40"),
    "constant": ("algorithm.reduction=constant", "algorithm.constant_tokens=4"),
    "soft": SOFT,
    "overlong_filter": ("reward.overlong=filter", "train.updates_per_step=1"),
    "all_filtered": ("reward.overlong=filter", "sampling.max_response_tokens=1"),
    "all_filtered_soft": (
        "reward.overlong=soft+filter",
        "sampling.max_response_tokens=1",
        "reward.overlong_buffer_tokens=1",
        "algorithm.reduction=group",
        ENGINE,
    ),
    "one_prompt": ("sampling.prompts_per_step=1", "train.updates_per_step=1", "sampling.gen_prompts=1"),
    "pairs": ("sampling.responses_per_prompt=2",),
    "short": ("sampling.max_rounds=1", "sampling.prompts_per_step=40", "train.updates_per_step=40"),
    "adaptive": ("sampling.min_responses_per_prompt=2", "train.num_steps=3"),
    "curriculum": ("sampling.skip_solved_after=1", "sampling.skip_solved_steps=1", "train.num_steps=3"),
    "stop_strings": ('sampling.stop=["7"]',),
    "temperature": ("sampling.temperature=0.6", "train.updates_per_step=1"),
    "warmup_from_zero": ("train.warmup_from_zero=true", "train.warmup_rollout_steps=2"),
    "decay": ("train.weight_decay=0.1", "train.max_grad_norm=1e-3"),
    "tiny_rate": ("train.learning_rate=1e-7",),
    "no_rate_to_speak_of": ("train.learning_rate=1e-12",),
    "large_eps": ("train.adam_eps=1e6",),
    "clipped_to_nothing": ("train.max_grad_norm=1e-15",),
    "lora_tiny_rate": (*LORA, "train.learning_rate=1e-9"),
    "bfloat16_one_update": ("model.dtype=bfloat16", "train.updates_per_step=1"),
    "bfloat16_cold": ("model.dtype=bfloat16", "sampling.temperature=0.2"),
    "gspo": ("algorithm.objective=gspo", "algorithm.clip_low=3e-4", "algorithm.clip_high=4e-4"),
    "cispo": ("algorithm.objective=cispo", "algorithm.clip_low=off", "algorithm.clip_high=4"),
    "clip_cov": ("algorithm.objective=clip_cov", "algorithm.covariance.fraction=0.2"),
    "kl_cov": ("algorithm.objective=kl_cov", "algorithm.covariance.fraction=0.2"),
    "entropy": ("algorithm.entropy_coef=0.01", "algorithm.log_ratio_clamp=0.5", "algorithm.clip_dual=3"),
    "mean": ("algorithm.advantage=mean",),
    "leave_one_out": ("algorithm.advantage=leave_one_out",),
    "batch_std": ("algorithm.advantage=batch_std", "sampling.filter=off"),
    "normalised": ("reward.normalisation=running", "reward.clip=0.5"),
    "placebo": ("reward.placebo=true",),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_let_alone(name: str, tmp_path: Path) -> None:
    """No finding in a run that does what its configuration says."""
    words = tuple(word.format(folder=tmp_path) if "{folder}" in word else word for word in RIGHT[name])
    if LORA[0] in words:
        pytest.importorskip("peft")
    (tmp_path / "vowels.py").write_text(helpers_run.VOWELS, encoding="utf-8")
    run = ran(tmp_path, "train.num_steps=2", *words)
    assert run.code == 0, run.err
    assert run.lines == []
    assert len(run.counts) >= 2
    assert set(run.counts) == {0.0}


def test_a_cold_model_and_an_untied_one_are_let_alone(tmp_path: Path) -> None:
    """The head is a weight of its own; hardly any group has a signal."""
    for name, model in (("cold", helpers_run.cold_model()), ("untied", helpers_run.warm_model(tied=False))):
        run = ran(tmp_path / name, model=model)
        assert (run.code, run.lines) == (0, []), run.err


def family(name: str, folder: Path) -> Path:
    """A random model with biases: GPT-2, whose linear layers are transposed and not packed, or Qwen2, whose are."""
    torch.manual_seed(0)
    ends = {"vocab_size": len(tiny.VOCABULARY), "bos_token_id": tiny.VOCABULARY.index(tiny.BOS), "eos_token_id": EOS}
    if name == "gpt2":
        made: Any = GPT2LMHeadModel(GPT2Config(**ends, n_positions=64, n_embd=32, n_layer=2, n_head=2))
    else:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
        made = Qwen2ForCausalLM(Qwen2Config(**ends, **sizes, num_hidden_layers=2, tie_word_embeddings=False))
    made.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("lora", [(), LORA], ids=["all_weights", "lora"])
@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_other_families_are_let_alone(name: str, lora: tuple[str, ...], tmp_path: Path) -> None:
    """Exact ratios and weights do not hang on the architecture of the tests."""
    if lora:
        pytest.importorskip("peft")
    words = (*lora, "train.updates_per_step=1", "sampling.filter=off")
    run = ran(tmp_path, *words, model=family(name, tmp_path / "model"))
    assert (run.code, run.lines, run.counts) == (0, [], [0.0, 0.0]), run.err


@pytest.mark.parametrize("recipe", ["tiny"])
def test_the_shipped_recipes_that_run_anywhere_are_let_alone(recipe: str, tmp_path: Path) -> None:
    """With the data, the lengths and the shaping they come with."""
    words = ("train.num_steps=2", "eval.data=[]", "--output-dir", tmp_path / "run")
    code, _, err = helpers_run.quiet_dapo("train", recipe, *words)
    assert code == 0, err
    assert [row["checks/findings"] for row in helpers_run.metrics(tmp_path / "run")] == [0.0, 0.0]
    assert not (tmp_path / "run" / "checks.jsonl").exists()


def test_another_process_may_round_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that was sampled before a resume: its first update may differ by rounding, and by no more."""
    config = helpers_learner.config(algorithm__old_logprobs="learner")
    around = Surroundings(
        eos_ids=(1,), bos_id=None, device=torch.device("cpu"), dtype=torch.float32, write=lambda line: None, say=str
    )
    monkeypatch.setattr(watch.gap, "same_bits", lambda *arguments: True)
    monkeypatch.setattr(watch.loss, "loss_at_one", lambda *arguments: [])
    for sampled, small in ((5, ["ratio_one"]), (None, []), (4, [])):
        checks = watch.SelfChecks(config, around)
        checks._sampled_step = sampled
        state, batch = TrainState(step=4), cast(Any, None)
        for gap, expected in ((1e-6, small), (1e-3, ["ratio_one"])):
            found = checks._first_update(state, batch, {"ratio/logprob_abs_mean": gap})
            assert [finding.check for finding in found] == expected
