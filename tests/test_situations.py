"""Situations from public bug reports of peers, named by their ids: what other tests leave open of each kind.

Overlong (O), groups and data (D, P), loss and numerics (L, N), masking (K), engines (E), metrics (M).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import helpers_run
import reference as ref
import tiny
from dapo.algorithm import group_advantages, token_logprobs
from dapo.batch import make_batch, minibatches, with_advantages
from dapo.build import data_line, make_learner
from dapo.config import Config, load_config
from dapo.config.schema import ModelConfig
from dapo.data import PromptStream, check_data, tokenise_data
from dapo.errors import ConfigError
from dapo.grading import GroupGrader
from dapo.learner.packing import Packing
from dapo.model.loading import eos_ids, load_model, load_tokenizer
from dapo.reward import Scorer, Scorers
from dapo.rollout.torch_engine import TorchEngine
from dapo.types import Batch, Finish, FinishedDraw, Group, Response
from helpers_engine import Responses, collect, counting_model, ids, params, plain_logits
from helpers_learner import (
    EOS,
    VOCABULARY,
    Gradients,
    batch_of,
    config,
    distance,
    group,
    response,
    rows_of,
    torch_learner,
    with_old,
)

PACKINGS: tuple[Packing, ...] = ("shared_prompt", "padded")
# One float32 policy by two routes, engine and learner: their log-probs differ by rounding (test_torch_engine.py).
LOGPROB_BOUND = 5e-5
PROMPT = [5, 9, 30, 12]


def engine(policy: Any, *, slots: int = 8, eos: Sequence[int] = (EOS,)) -> TorchEngine:
    """An engine of a tiny model."""
    return TorchEngine(policy, eos_ids=eos, slots=slots, max_tokens=160)


def sampled(made: TorchEngine, draws: Sequence[int], prompt: Sequence[int] = PROMPT, **how: Any) -> Responses:
    """These draws of one prompt, to the end."""
    for draw in draws:
        made.submit(draw, tiny.prompt(prompt), params(**how))
    return collect(made, draws)


def groups_of(done: Responses, prompt: Sequence[int] = PROMPT) -> list[Group]:
    """Groups of sampled responses: right and wrong in turn."""
    return [
        group(draw, prompt, responses, [(-1.0) ** g for g in range(len(responses))]) for draw, responses in done.items()
    ]


def batch_with_advantages(groups: Sequence[Group], made: Config) -> Batch:
    """The batch of these groups, its old log-probs those of the engine."""
    batch = make_batch(groups, [EOS], made)
    return with_advantages(replace(batch, old_logprobs=batch.engine_logprobs), groups, made)


# --- overlong shaping -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reward", [{"overlong": "none"}, {"overlong": "filter"}, {"overlong": "none", "overlong_factor": 3.0}], ids=str
)
@pytest.mark.parametrize("limit", [1, 4, 5000])
def test_o2_a_penalty_that_is_off_needs_no_buffer_that_fits(limit: int, reward: dict[str, Any]) -> None:
    """O2: switched off, the default buffer of 4096 may be over the limit, and nobody is penalised at any length."""
    made = config(sampling__max_response_tokens=limit, **{f"reward__{key}": value for key, value in reward.items()})
    grader = GroupGrader(made, Scorer(made.reward).score, lambda tokens: "", [EOS])
    full = response([7] * limit)
    assert full.finish is Finish.LENGTH
    draw = FinishedDraw(draw=0, responses=(full, response([EOS])))
    for rollout in grader.group(draw, tiny.prompt(PROMPT)).rollouts:
        assert rollout.overlong == 0.0
        assert rollout.shaped_reward == rollout.score.reward


# --- loss and numerics ------------------------------------------------------------------------------


def summed(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Gradients added up, as a sum over ranks does."""
    return {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("reduction", ref.REDUCTIONS)
def test_l1_one_microbatch_two_or_two_ranks(reduction: str, packing: Packing) -> None:
    """L1: 10 and 200 tokens. One micro-batch of two, two of one, and two ranks give one gradient (1e-5 relative).

    A mean in each micro-batch would weigh the short one's tokens 20 times the long one's; that is what
    reduction = "microbatch" is for, and it shows that the data tell the two apart.
    """
    groups = [group(3, PROMPT, [response([*range(10, 19), EOS]), response([10 + i % 40 for i in range(200)])], [1, -1])]
    found: list[dict[str, Tensor]] = []
    for budget in (10_000, 1):
        made = config(
            sampling__prompts_per_step=1,
            train__updates_per_step=1,
            train__packing=packing,
            train__tokens_per_microbatch=budget,
            reward__overlong="none",
            algorithm__reduction=reduction,
            algorithm__constant_tokens=300 if reduction == "constant" else "off",
        )
        learner = make_learner(made, tiny.model(0), None, torch.float32)
        batch = with_advantages(with_old(make_batch(groups, [EOS], made), learner, 0.1), groups, made)
        (minibatch,) = minibatches(batch, made, learner.cut)
        assert minibatch.loss_tokens.tolist() == [10, 200]
        assert len(learner.cut(minibatch)) == (1 if budget > 1 else 2)
        gradients = Gradients(learner)
        found.append(gradients.of(minibatch))
        found.append(summed([gradients.of(minibatch.take([row])) for row in (0, 1)]))
    gaps = [distance(other, found[0]) for other in found[1:]]
    assert gaps[0] < 1e-5, "ranks"
    assert distance(found[3], found[2]) < 1e-5, "ranks, each with its own micro-batch"
    assert (gaps[1] < 1e-5) == (reduction != "microbatch"), gaps


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e3, 1e3) | st.sampled_from([0.95, 1.0, -1.0]), min_size=2, max_size=16), st.booleans())
def test_l5_no_advantage_is_over_its_bound(rewards: list[float], sample_std: bool) -> None:
    """L5: |A| <= sqrt(G - 1) for any rewards and either std, however small the one difference; never NaN."""
    got = group_advantages(torch.tensor([rewards], dtype=torch.float64), std_correction=int(sample_std), eps=0.0)
    assert bool(torch.isfinite(got).all())
    assert got.abs().max() <= math.sqrt(len(rewards) - 1) * (1 + 1e-6)


@pytest.mark.parametrize("correction", [0, 1])
def test_l5_float_noise_trains_nothing(correction: int) -> None:
    """L5: .95 eight times over, each summed in its own way from reward and penalty: no advantage, no gradient."""
    made = config(
        sampling__prompts_per_step=1,
        sampling__responses_per_prompt=8,
        train__updates_per_step=1,
        algorithm__std_correction=correction,
        algorithm__advantage_eps=0.0,
    )
    single = [float(torch.full((5,), 0.19).cumsum(0)[-1]), float(torch.tensor(-0.05))]  # sums in float32, a penalty
    rewards = [0.95, 0.7 + 0.25, 0.1 * 9.5, single[0], 1.0, 0.05 * 19, sum([0.19] * 5), 0.9499998]
    penalties = [0.0, 0.0, 0.0, 0.0, single[1], 0.0, 0.0, 0.0]
    shaped = torch.tensor([sum(pair) for pair in zip(rewards, penalties, strict=True)])
    assert len(set(shaped.tolist())) > 1, "no noise left in float32"
    groups = [group(0, PROMPT, [response([10 + g, 20, EOS]) for g in range(8)], rewards, penalties)]
    learner = make_learner(made, tiny.model(0), None, torch.float32)
    batch = with_advantages(with_old(make_batch(groups, [EOS], made), learner, 0.5), groups, made)
    assert batch.advantages.tolist() == [0.0] * 8
    (minibatch,) = minibatches(batch, made, learner.cut)
    assert learner.update(minibatch, 0.0)["grad/norm"] == 0.0


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_l6_before_any_update_every_ratio_is_one(temperature: float) -> None:
    """L6: sampled by the engine, weighed by the learner: ratio 1 from the first token on, entropy at that temperature.

    Old log-probs are the engine's, so the ratio is that of two programs. A learner at another temperature is
    far off, or the test would show nothing.
    """
    knobs = {"sampling__prompts_per_step": 2, "sampling__responses_per_prompt": 6, "train__updates_per_step": 1}
    made = config(sampling__temperature=temperature, algorithm__old_logprobs="engine", **knobs)
    groups = groups_of(sampled(engine(tiny.model(1)), [4, 9], max_new_tokens=20, n=6, temperature=temperature))
    learner = make_learner(made, tiny.model(1), None, torch.float32)
    batch = batch_with_advantages(groups, made)
    gap = (learner.logprobs(batch) - batch.engine_logprobs).abs()
    assert gap[:, len(PROMPT)].max() < LOGPROB_BOUND, "first tokens"
    assert gap[batch.loss_mask].max() < LOGPROB_BOUND
    (minibatch,) = minibatches(batch, made, learner.cut)
    metrics = learner.update(minibatch, 0.0)
    assert metrics["ratio/mean"] == pytest.approx(1.0, abs=LOGPROB_BOUND)
    assert metrics["ratio/max"] == pytest.approx(1.0, abs=2 * LOGPROB_BOUND)
    assert metrics["ratio/outside_fraction"] == 0.0
    plain = tiny.model(1)
    rows = [row for g in groups for r in g.rollouts for row in plain_logits(plain, PROMPT, ids(r.response)).tolist()]
    entropies = [ref.entropy(row, temperature) for row in rows]
    assert metrics["policy/entropy"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-4)
    other = make_learner(config(sampling__temperature=temperature + 0.4, **knobs), tiny.model(1), None, torch.float32)
    assert (other.logprobs(batch) - batch.engine_logprobs).abs()[:, len(PROMPT)].mean() > 0.05


@pytest.mark.parametrize("knob", ["top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty"])
def test_l7_training_rollouts_cannot_be_cut(knob: str) -> None:
    """L7: what would sample from another policy than the loss is about is refused, as a word and in a table."""
    base = {"model.path": "m", "data.source": "d.jsonl"}
    for layer in (f"sampling.{knob}=0.8", {"sampling": {knob: 0.8}}):
        with pytest.raises(ConfigError, match=rf"unknown key sampling\.{knob}"):
            load_config(base, layer)


def test_l7_the_models_own_generation_settings_do_not_reach_sampling(tmp_path: Path) -> None:
    """L7: generation_config.json may ask for top-k, top-p, a temperature, a penalty; rollouts are the policy's."""
    plain, cut = tiny.folder(tmp_path / "plain", 1), tiny.folder(tmp_path / "cut", 1)
    wishes = {"do_sample": True, "top_k": 1, "top_p": 0.1, "temperature": 0.2, "repetition_penalty": 3.0}
    (cut / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS} | wishes), encoding="utf-8")
    found = []
    for folder in (plain, cut):
        policy = load_model(ModelConfig(path=str(folder)), torch.float32, torch.device("cpu"))
        found.append(sampled(engine(policy), [2], max_new_tokens=30, n=4)[2])
    assert policy.generation_config.top_k == 1, "the wishes were not even read"
    assert [ids(r) for r in found[0]] == [ids(r) for r in found[1]]
    for one, other in zip(*found, strict=True):
        assert one.engine_logprobs.tolist() == other.engine_logprobs.tolist()


@pytest.mark.parametrize("length", [1, 40, 120])
def test_n1_the_engine_makes_logits_for_what_it_samples_alone(length: int) -> None:
    """N1: [prompt tokens, vocabulary] never exists in the engine: one row a prefill, one a slot in each step."""
    policy = tiny.model(0, tied=False)
    rows: list[int] = []
    made = engine(policy)
    policy.lm_head.register_forward_hook(lambda module, inputs, output: rows.append(output.numel() // VOCABULARY))
    sampled(made, [0, 1], [7] * length, max_new_tokens=5, n=5)
    assert len(rows) > 5
    assert max(rows) == 8


# --- masking ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", PACKINGS)
def test_k1_padding_that_is_the_eos(tmp_path: Path, packing: Packing) -> None:
    """K1: pad = eos, and the prompt ends in it too. One EOS of each ended response trains, none of a truncated one.

    What stands in the padding, an EOS in each place, changes no bit of the gradient.
    """
    model, tokenizer = tiny.model(4), tiny.tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = model.generation_config.pad_token_id = EOS
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    where = ModelConfig(path=str(tmp_path))
    tokenizer, model = load_tokenizer(where), load_model(where, torch.float32, torch.device("cpu"))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == EOS
    ends = eos_ids(model, tokenizer)
    assert ends == (EOS,)
    prompt = [5, EOS, 9, EOS]
    done = sampled(engine(model, slots=24, eos=ends), [0, 1], prompt, max_new_tokens=40, n=12)
    groups = groups_of(done, prompt)
    made = config(sampling__prompts_per_step=2, train__updates_per_step=1, train__packing=packing)
    batch = make_batch(groups, ends, made)
    rollouts: list[Response] = [r.response for g in groups for r in g.rollouts]
    assert {r.finish for r in rollouts} == {Finish.STOP, Finish.LENGTH}
    for row, made_response in enumerate(rollouts):
        trained = batch.token_ids[row][batch.loss_mask[row]].tolist()
        assert trained == ids(made_response), "all of the response, in its place, and nothing else"
        assert trained.count(EOS) == (made_response.finish is Finish.STOP)
    learner = torch_learner(tiny.model(4), packing=packing, tokens_per_microbatch=400)
    assert (learner.logprobs(batch) - batch.engine_logprobs)[batch.loss_mask].abs().max() < LOGPROB_BOUND
    batch = with_old(with_advantages(batch, groups, made), learner, 0.1)
    (minibatch,) = minibatches(batch, made, learner.cut)
    beyond = torch.arange(batch.token_ids.shape[1]) >= batch.lengths.unsqueeze(1)
    assert bool(beyond.any())
    padded = replace(minibatch, token_ids=minibatch.token_ids.masked_fill(beyond, EOS))
    gradients = Gradients(learner)
    first, second = gradients.of(minibatch), gradients.of(padded)
    assert all(torch.equal(first[name], second[name]) for name in first)


# --- data -------------------------------------------------------------------------------------------


def test_p2_a_file_of_copies_is_an_epoch_of_its_problems(tmp_path: Path) -> None:
    """P2: 17 problems, each in 100 rows that differ in their other columns: an epoch of 17 draws, and it is said."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"what is {i} + 1"}],
            "reward_model": {"ground_truth": str(i + 1)},
            "extra_info": {"index": f"{copy}-{i}"},
        }
        for copy in range(100)
        for i in range(17)
    ]
    path = str(tmp_path / "dapo.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    made = config(data__source=path, data__answer_column="reward_model.ground_truth")
    data = tokenise_data(made, check_data(made, Scorers.of(made).check), tiny.tokenizer())
    stream = PromptStream(data.by_source, seed=0)
    assert stream.epoch_size == 17
    epoch = [stream.prompt(index) for index in range(17)]
    assert len({prompt.id for prompt in epoch if prompt is not None}) == 17
    assert (data.counts["rows"], data.counts["duplicates"]) == (1700, 1683)
    assert "17 training prompts" in data_line(data)
    assert "1683 duplicates" in data_line(data)
    assert any(f"{path}, row 18, as {path}, row 1" in note for note in data.notes)


# --- engines and metrics ----------------------------------------------------------------------------


def test_e1_engines_with_one_seed_do_not_repeat_each_other() -> None:
    """E1: two engines of one seed that share a prompt's draws, and one started anew, give distinct responses.

    They are those of one engine: what a draw says belongs to its index, not to who samples it.
    """
    how: dict[str, Any] = {"max_new_tokens": 24, "n": 4, "seed": 5}
    whole = sampled(engine(tiny.model(3)), range(6), **how)
    split: Responses = {}
    for draws in ((0, 2), (1, 3), (4, 5)):
        split |= sampled(engine(tiny.model(3)), draws, **how)
    texts = [tuple(ids(r)) for responses in split.values() for r in responses]
    assert len(set(texts)) == len(texts) == 24
    assert len({text[:8] for text in texts}) == 24, "streams that meet after a few tokens are one stream"
    assert all([ids(r) for r in whole[draw]] == [ids(r) for r in done] for draw, done in split.items())


def gap(learner: Any, done: Responses) -> float:
    """Mean |learner's log-prob - engine's| over loss tokens."""
    batch = make_batch(groups_of(done), [EOS], config())
    return float((learner.logprobs(batch) - batch.engine_logprobs)[batch.loss_mask].abs().mean())


def test_e2_stale_weights_show_in_the_gap_and_new_ones_close_it() -> None:
    """E2: an engine left on the starting weights is far from the learner; after load_weights it is as near as ever."""
    learner, made = torch_learner(tiny.model(1)), engine(tiny.model(1))
    how: dict[str, Any] = {"max_new_tokens": 20, "n": 6}
    assert gap(learner, sampled(made, [0, 1], **how)) < LOGPROB_BOUND
    for _ in range(4):
        learner.update(with_old(batch_of(rows_of([(3, (6, 4)), (2, (5, 5))])), learner), 1e-2)
    assert gap(learner, sampled(made, [2, 3], **how)) > 0.1
    made.load_weights(1, learner.export_weights())
    made.close()  # as one that sleeps between steps
    assert gap(learner, sampled(made, [4, 5], **how)) < LOGPROB_BOUND


def test_e2_a_run_samples_from_the_policy_it_trains(tmp_path: Path) -> None:
    """E2: over a whole run whose policy moves far, the logged gap of every step is rounding alone."""
    words = ("train.num_steps=4", "train.learning_rate=5e-3", "eval.data=[]", "sampling.filter=off")
    run = helpers_run.train(tmp_path, *words)
    steps = [row for row in helpers_run.metrics(run) if row["step"] > 0]
    assert len(steps) == 4
    assert max(row["mismatch/logprob_abs_mean"] for row in steps) < LOGPROB_BOUND
    start, end = helpers_run.weights(helpers_run.warm_model()), helpers_run.weights_at(run, 4)
    assert helpers_run.largest_difference(start, end) > 0.01, "a policy that stays would hide stale weights"


@pytest.mark.parametrize("budget", [1, 40, 10_000])
@pytest.mark.parametrize("packing", PACKINGS)
def test_m2_entropy_is_of_loss_tokens_alone(packing: Packing, budget: int) -> None:
    """M2: the mean over tokens in the loss, whatever stands in padding, prompts, after an EOS or in a filtered row."""
    made = config(reward__overlong="filter", sampling__prompts_per_step=2, train__updates_per_step=1)
    trailing = response([10, 11, EOS, 12, 13], finish=Finish.STOP)
    groups = [
        group(2, PROMPT, [trailing, response([14] * 30), response([15, EOS])], [1, -1, 1]),
        group(1, [8], [response([16, 17, 18, EOS]), response([]), response([EOS])], [1, -1, -1]),
    ]
    learner = torch_learner(tiny.model(0), packing=packing, tokens_per_microbatch=budget)
    batch = with_advantages(with_old(make_batch(groups, [EOS], made), learner), groups, made)
    (minibatch,) = minibatches(batch, made, learner.cut)
    assert minibatch.loss_tokens.tolist() == [3, 0, 2, 4, 0, 1]
    counts = iter(minibatch.loss_tokens.tolist())
    plain, entropies = tiny.model(0), []
    for g in groups:
        for rollout, count in zip(g.rollouts, counts, strict=False):
            rows = plain_logits(plain, g.prompt.token_ids.tolist(), ids(rollout.response)) if count else []
            entropies += [ref.entropy(row.tolist()) for row in rows[:count]]
    assert learner.update(minibatch, 0.0)["policy/entropy"] == pytest.approx(sum(entropies) / 10, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_m2_entropy_is_never_negative(dtype: torch.dtype) -> None:
    """M2: nor for a policy that is certain, where rounding could put a probability over 1."""
    generator = torch.Generator().manual_seed(0)
    for scale in (0.0, 1.0, 10.0, 100.0, 1e4):
        logits = (torch.randn(300, 1000, generator=generator) * scale).to(dtype)
        logprobs, entropy = token_logprobs(logits, logits.argmax(dim=1))
        assert 0 <= float(entropy.min()) <= float(entropy.max()) <= math.log(1000) * (1 + 1e-6)
        assert float(logprobs.max()) <= 0
    learner = torch_learner(counting_model(), weight_decay=0.0)
    rows = [replace(row, prompt=(5,), response=(6, 7, 8)) for row in rows_of([(1, (3,))])]
    metrics = learner.update(with_old(batch_of(rows), learner), 0.0)
    assert 0 <= metrics["policy/entropy"] < 1e-3
