"""`dapo doctor`: the laws that can be checked before training, each with its bound and its mend."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dapo import build
from dapo.batch import make_batch
from dapo.config import batch_line
from dapo.config.schema import Config
from dapo.data import LoadedData, tokenise_data
from dapo.errors import DapoError
from dapo.learner.lora import LoraSettings, adapter_size
from dapo.learners import alone, make_learner
from dapo.model.loading import load_tokenizer, pick_device, pick_dtype
from dapo.model.paths import cache_root
from dapo.parts import learning_rate
from dapo.rollout.base import RolloutEngine
from dapo.run.manifest import machine, versions
from dapo.types import FinishedDraw, Prompt, SamplingParams

GAP_BOUND = {torch.float32: 1e-3, torch.bfloat16: 0.5}  # largest |engine - learner| log-prob of a token
PROBE_PROMPTS, PROBE_RESPONSES, PROBE_TOKENS = 2, 4, 12
COMPANY = 6  # draws in flight at once, of as many prompts as there are


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found, and the mend where it failed."""

    name: str
    passed: bool
    found: str
    mend: str = ""


def environment() -> dict[str, Any]:
    """What a bug report needs."""
    report: dict[str, Any] = {**versions(), **machine()}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    from dapo.config.schema import ModelConfig

    report["compute_dtype_auto"] = str(pick_dtype(ModelConfig(path="-"), device)).removeprefix("torch.")
    report["model_cache"] = str(cache_root()).replace(os.path.expanduser("~"), "~")
    report["executable_bits"] = 64 if sys.maxsize > 2**32 else 32
    return report


def checks(config: Config) -> Iterator[Check]:
    """All checks of a recipe, the cheap ones first. A check that can't run fails with its reason."""
    yield Check("batch sizes", True, batch_line(config))
    rate = learning_rate(1, config)
    meant = config.train.warmup_from_zero and config.train.warmup_rollout_steps > 0
    found = f"{rate:.3g}, as train.warmup_from_zero asks for" if meant else f"{rate:.3g}"
    yield Check("learning rate at step 1", rate > 0 or meant, found, "set train.learning_rate over 0")
    try:
        _, checked = build.check_inputs(config)
    except DapoError as error:
        yield Check("data and rewards", False, error.message, "see the message")
        return
    count = sum(map(len, checked.training))
    yield Check("data and rewards", True, f"{count} training problems; every gold answer can be graded")
    try:
        tokenizer = load_tokenizer(config.model)
        data = tokenise_data(config, checked, tokenizer)
        policy, learner_model, engine_model = build.load_policy(config, tokenizer)
    except DapoError as error:
        yield Check("model and template", False, error.message, "see the message")
        return
    yield Check("model and template", True, f"{_parameters(learner_model) / 1e6:.1f}M parameters, {config.model.path}")
    yield from _tokens(data, policy)
    yield _memory(config, learner_model)
    yield from _engine_against_learner(config, data, policy, learner_model, engine_model)


def _tokens(data: LoadedData, policy: build.Policy) -> Iterator[Check]:
    prompt = data.by_source[0][0]
    ids = prompt.token_ids.tolist()
    text = policy.tokenizer.decode(ids, skip_special_tokens=False)
    again = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    yield Check("template round trip", again == ids, f"{len(ids)} tokens", "mend the tokenizer's chat template")
    bos = getattr(policy.tokenizer, "bos_token_id", None)
    doubled = bos is not None and ids[:2] == [bos, bos]
    yield Check("one BOS", not doubled, "two" if doubled else "not doubled", "mend the chat template")
    names = ", ".join(repr(policy.tokenizer.decode([i])) for i in policy.eos_ids)
    ends = any(policy.tokenizer.decode([i]) in text for i in policy.eos_ids) or prompt.messages is None
    yield Check("EOS", ends, names, "the template ends turns with a token that is no EOS; set eos_token_id")


def _parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


def _memory(config: Config, model: Any) -> Check:
    """Weights, gradients and two Adam moments in float32; the engine's copy; its cache; a logits chunk."""
    count, spec = _parameters(model), model.config.get_text_config()
    lora = LoraSettings.of(config)
    learner = 16 * count if lora is None else 4 * count + 16 * adapter_size(model, lora)
    engine_bytes = pick_dtype(config.model, pick_device(config.model)).itemsize
    heads = getattr(spec, "num_key_value_heads", None) or spec.num_attention_heads
    size = getattr(spec, "head_dim", None) or spec.hidden_size // spec.num_attention_heads
    slots = -(-config.engine.slots // 8) * 8
    cache = 2 * spec.num_hidden_layers * slots * heads * size * build.max_tokens(config) * engine_bytes
    logits = 4 * 4 * config.train.logits_chunk_tokens * spec.vocab_size
    total = (learner + engine_bytes * count + cache + logits) / 2**30
    available = _available_gb(config)
    found = f"about {total:.1f} GB beside activations (cache {cache / 2**30:.1f}), of {available:.1f} GB"
    return Check("memory", total < available, found, "lower engine.slots, max_response_tokens, or take a smaller model")


def _available_gb(config: Config) -> float:
    if pick_device(config.model).type == "cuda":
        return torch.cuda.mem_get_info()[1] / 2**30
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def _engine_against_learner(
    config: Config, data: LoadedData, policy: build.Policy, learner_model: Any, engine_model: Any
) -> Iterator[Check]:
    """Samples a few responses; compares the engine's log-probs with the learner's, and a draw with itself alone."""
    dtype = pick_dtype(config.model, pick_device(config.model))
    engine = build.make_engine(config, engine_model, policy)
    scorers, _ = build.check_inputs(config)
    grader = build.make_grader(config, scorers, policy)
    learner = make_learner(alone(config), learner_model, None, dtype)
    engine.load_weights(0, learner.export_weights())
    tokens = min(PROBE_TOKENS, config.sampling.max_response_tokens)
    params = SamplingParams(
        temperature=config.sampling.temperature, max_new_tokens=tokens, n=PROBE_RESPONSES, seed=config.train.seed
    )
    prompts = data.by_source[0][:PROBE_PROMPTS]
    everybody = data.by_source[0][:COMPANY]
    draws = _sampled(engine, {draw: everybody[draw % len(everybody)] for draw in range(COMPANY)}, params)
    groups = [grader.group(done, prompts[done.draw]) for done in draws if done.draw < len(prompts)]
    batch = make_batch(groups, policy.eos_ids, config)
    everything = make_batch(groups, (), config) if not batch.loss_mask.any() else batch
    gap = (learner.logprobs(batch) - batch.engine_logprobs)[everything.loss_mask].abs()
    largest, bound = float(gap.max()) if len(gap) else 0.0, GAP_BOUND.get(dtype, 0.5)
    mean = float(np.mean(gap.tolist())) if len(gap) else 0.0
    yield Check(
        "engine log-prob = learner log-prob",
        largest <= bound,
        f"largest {largest:.2e}, mean {mean:.2e} over {len(gap)} tokens (bound {bound:g}, {dtype})".replace(
            "torch.", ""
        ),
        'the engine does not sample from what the learner trains; try model.dtype = "float32"',
    )
    (alone_again,) = _sampled(engine, {0: prompts[0]}, params)
    yield _in_company(engine.reproducible, alone_again, next(done for done in draws if done.draw == 0))


def _sampled(engine: RolloutEngine, prompts: Mapping[int, Prompt], params: SamplingParams) -> list[FinishedDraw]:
    for draw, prompt in prompts.items():
        engine.submit(draw, prompt, params)
    found: list[FinishedDraw] = []
    while len(found) < len(prompts):
        found += engine.poll()
    return found


def _in_company(promised: bool, one: FinishedDraw, other: FinishedDraw) -> Check:
    """Law 5 on this machine: what else is in flight changes no bit of a draw."""
    pairs = list(zip(one.responses, other.responses, strict=True))
    tokens = all(np.array_equal(a.token_ids, b.token_ids) for a, b in pairs)
    same = tokens and all(np.array_equal(a.engine_logprobs, b.engine_logprobs) for a, b in pairs)
    found = "the same bits" if same else "the same tokens, other log-probs" if tokens else "other tokens"
    if not promised:
        found += "; not promised by this engine here"
    mend = "arithmetic here depends on what else is in flight, and so may a resumed run; please report it"
    return Check("a draw alone = the draw in company", tokens or not promised, found, mend)
