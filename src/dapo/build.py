"""The composition root: the only file that names concrete backends."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from dapo.alerts import Watch
from dapo.checks.watch import SelfChecks
from dapo.cluster.makers import Factories
from dapo.config.explain import epoch_words
from dapo.config.load import from_run, with_words
from dapo.config.schema import Config
from dapo.data import (
    CheckedData,
    LoadedData,
    PromptStream,
    PromptTemplate,
    check_data,
    check_evaluation,
    forecast_notes,
    tokenise_data,
)
from dapo.engines import BUILT_IN_ENGINES
from dapo.engines import Policy as Policy
from dapo.engines import make_engine as make_engine
from dapo.engines import max_tokens as max_tokens
from dapo.errors import ConfigError, UserError
from dapo.given import NOTHING, Given
from dapo.grading import GroupGrader
from dapo.learner.base import Learner
from dapo.learner.lora import need_peft
from dapo.learners import (
    LEARNERS,
    call_ranks,
    learner_device,
    load_reference,
    make_learner,
    make_objective,
)
from dapo.ledger import Progress
from dapo.model.loading import check_architecture, eos_ids, load_model, load_tokenizer, pick_device, pick_dtype
from dapo.parts import Parts
from dapo.pipeline import make_supply
from dapo.pipeline.resume import check_ahead
from dapo.plugins import plugin
from dapo.provenance import (
    check_adapters,
    check_carried,
    check_nothing_lost,
    evaluation_settings,
    made_of_now,
    record_resume,
    record_start,
)
from dapo.reward import Scorers
from dapo.reward.pool import lost_workers
from dapo.rollout.base import RolloutEngine
from dapo.rollout.vllm_engine import need_vllm
from dapo.run import checkpoint, manifest
from dapo.run.directory import RunDirectory
from dapo.run.saver import Saver
from dapo.run.tools import load_functions, make_trackers, missing_notes
from dapo.run.trackers import Trackers
from dapo.run.view import View
from dapo.spans import span
from dapo.started import Started, start_on_cluster
from dapo.types import Prompt, TrainState

logger = logging.getLogger(__name__)


def check_inputs(config: Config, given: Given = NOTHING) -> tuple[Scorers, CheckedData]:
    """Everything that can be checked before a model is loaded: rewards, data, answers."""
    given.check(config)
    make_objective(config, given.functions)
    load_functions(config)
    if config.learner.lora_rank is not None:
        need_peft()
    if config.engine.kind == "vllm":
        need_vllm()
    for field, kind, built_in, own in (
        ("engine", config.engine.kind, BUILT_IN_ENGINES, given.engine),
        ("learner", config.learner.kind, LEARNERS, given.learner),
    ):
        if kind not in built_in and own is None:
            plugin(f"dapo.{field}s", kind, f"{field}.kind", built_in)
    scorers = Scorers.of(config, given.functions)
    checked = check_data(config, scorers.check if scorers.has_correctness else None)
    checked.notes += forecast_notes(config, checked.training, checked.weights) + missing_notes(config)
    return scorers, checked


def load_policy(config: Config, tokenizer: Any) -> tuple[Policy, Any, Any]:
    """(policy, learner's model in float32, engine's model in the compute type).

    vLLM only reads the weights of the model that it is made of, and holds its own: there the two are one.
    """
    import torch

    device = pick_device(config.model)
    dtype = pick_dtype(config.model, device)
    learner_model = load_model(config.model, torch.float32, learner_device(config))
    check_architecture(learner_model, max_tokens(config))
    engine_model = learner_model if config.engine.kind == "vllm" else load_model(config.model, dtype, device)
    return Policy(tokenizer, eos_ids(learner_model, tokenizer)), learner_model, engine_model


def make_grader(config: Config, scorers: Scorers, policy: Policy) -> GroupGrader:
    """The grader of draws."""
    return GroupGrader(config, scorers.score, policy.decode, policy.eos_ids, lost_workers, scorers.equal)


def make_stream(config: Config, data: LoadedData) -> PromptStream:
    """The training prompts in the order of the seed."""
    return PromptStream(
        data.by_source,
        weights=data.weights,
        seed=config.train.seed,
        shuffle=config.data.shuffle,
        repeat=config.data.repeat,
    )


def build(
    config: Config,
    run: RunDirectory,
    view: View,
    found: checkpoint.Checkpoint | None = None,
    allowed: Collection[str] = (),
    given: Given = NOTHING,
) -> Parts:
    """All parts of a training run, checked in the order of their cost. Nothing is trained yet.

    Args:
        config: of the run.
        run: its directory; held already when a run is resumed.
        view: what a person sees.
        found: the checkpoint that will be gone on from, if any.
        allowed: what may differ from it, by name (see `manifest.ROOTS`).
        given: parts that were handed over in code.
    """
    scorers, checked = check_inputs(config, given)
    if config.cluster.kind == "local":
        pick_device(config.model)
    call_ranks(config)
    view.phase("loading the model")
    tokenizer = load_tokenizer(config.model)
    data = tokenise_data(config, checked, tokenizer)
    stream = make_stream(config, data)
    if config.cluster.kind == "ray":
        factories = Factories(policy=Policy, engine=make_engine, max_tokens=max_tokens(config))
        started = start_on_cluster(config, factories, tokenizer, scorers, view)
    else:
        started = start_here(config, tokenizer, scorers, given)
    try:
        for note in data.notes:
            view.say(f"note: {note}")
        view.say(f"{data_line(data)}; {epoch_words(config, stream.epoch_size)}")
        if summary := getattr(started.learner, "summary", None):
            view.say(summary)
        return put_together(config, checked, data, stream, started, run, view, found, allowed, given)
    except BaseException:
        started.close()
        raise


@span("loading")
def start_here(config: Config, tokenizer: Any, scorers: Scorers, given: Given = NOTHING) -> Started:
    """Engine and learner in this process."""
    policy, learner_model, engine_model = load_policy(config, tokenizer)
    device = pick_device(config.model)
    dtype = pick_dtype(config.model, device)
    reference = load_reference(config)
    starting = manifest.Starting.of(learner_model)
    plain = given.without_parts(config)
    engine = (given.engine or make_engine)(plain, engine_model, policy)
    if given.learner is not None:
        learner = given.learner(plain, learner_model, reference)
    else:
        learner = make_learner(config, learner_model, reference, dtype, given.functions)
    return Started(
        policy=policy,
        engine=engine,
        learner=learner,
        grader=make_grader(config, scorers, policy),
        starting=starting,
        computes=(device, dtype),
    )


def put_together(
    config: Config,
    checked: CheckedData,
    data: LoadedData,
    stream: PromptStream,
    started: Started,
    run: RunDirectory,
    view: View,
    found: checkpoint.Checkpoint | None,
    allowed: Collection[str],
    given: Given,
) -> Parts:
    """See `build`, once all that is costly has started."""
    policy, engine, grader, learner = started.policy, started.engine, started.grader, started.learner
    dtype = str(started.computes[1]).removeprefix("torch.")
    made_of = made_of_now(config, checked, data, policy.tokenizer, started.starting, policy.eos_ids, dtype, given)
    if not run.held:
        run.hold(new=True)
        record_start(run, config, data, made_of)
    else:
        record_resume(run, config, made_of, found, allowed, view)
    return Parts(
        config=config,
        engine=engine,
        learner=learner,
        supply=make_supply(config, engine, grader, stream.prompt, shared_threads(config)),
        epoch_size=stream.epoch_size,
        grader=grader,
        tests=data.tests,
        settings=evaluation_settings(config, checked.evaluation, data.tests, given),
        eos_ids=policy.eos_ids,
        run=run,
        view=view,
        saver=make_saver(config, run, learner, policy, made_of, view, found),
        trackers=Trackers(make_trackers(config, run)),
        alerts=Watch(config),
        progress=Progress(run.metrics),
        checks=SelfChecks.of(config, policy.tokenizer, policy.eos_ids, run, view, started.computes),
        close=started.close,
    )


def shared_threads(config: Config) -> int | None:
    """Torch's threads where engine and learner compute on this process's processor; None elsewhere."""
    import torch

    here = config.cluster.kind == "local" and pick_device(config.model).type == "cpu"
    return torch.get_num_threads() if here else None


def make_saver(
    config: Config,
    run: RunDirectory,
    learner: Learner,
    policy: Policy,
    made_of: manifest.MadeOf,
    view: View,
    found: checkpoint.Checkpoint | None,
) -> Saver:
    """What saves the run's checkpoints."""
    return Saver(
        run,
        config.checkpoint,
        learner,
        save_tokenizer=policy.tokenizer.save_pretrained,
        made_of=made_of,
        say=view.say,
        saved=None if found is None else checkpoint.place_of(found.state),
        broken=() if found is None else found.broken,
    )


def data_line(data: LoadedData) -> str:
    """What is trained and tested on, and what was left out, in one line."""
    training = sum(map(len, data.by_source))
    tested = sum(map(len, data.tests.values()))
    told = ("rows", "eval_rows", "unrated")  # not left out
    dropped = {key: count for key, count in sorted(data.counts.items()) if count and key not in told}
    left_out = ", ".join(f"{count} {key.replace('_', ' ')}" for key, count in dropped.items()) or "nothing"
    return f"data: {training} training prompts, {tested} evaluation prompts; left out: {left_out}"


def config_of_run(run: RunDirectory) -> Config:
    """The configuration a run was started with."""
    tree = run.read_json("config.resolved.json")
    if not isinstance(tree, dict):
        raise UserError(f"{run.path / 'config.resolved.json'}: not the configuration of a run; put it back")
    return from_run(tree)


def resume(
    run: RunDirectory,
    config: Config,
    found: checkpoint.Checkpoint | None,
    view: View,
    allowed: Collection[str] = (),
    given: Given = NOTHING,
) -> tuple[Parts, TrainState]:
    """Parts and state of a run, held already, at a checkpoint of its own, or at its start when it has none."""
    if found is None:
        check_nothing_lost(run, config_of_run(run))
        view.say(f"{run.path}: stopped before its first checkpoint; starting again from step 0")
        parts = build(config, run, view, None, allowed, given)
        checkpoint.sweep(run.checkpoints)
        run.cut_after(-1)
        return parts, TrainState()
    state = found.state
    check_carried(config, state)
    check_ahead(config, state)
    check_adapters(config_of_run(run), config)
    for line in found.passed_over:
        logger.warning("%s", line)
    view.say(f"resuming from {found.path} (step {state.step})")
    if state.pending is not None:
        view.say(f"{len(state.pending.minibatches)} updates of step {state.step + 1} are left, as they were sampled")
    run.metrics()  # a damaged line is found before anything is loaded
    parts = build(config, run, view, found, allowed, given)
    checkpoint.sweep(run.checkpoints)
    checkpoint.restore(found, parts.learner)
    if (pending := state.pending) is None:
        run.cut_after(state.step)
    else:
        run.cut_after(state.step, sampled=state.step + 1, updates=len(pending.updates), updated=not pending.minibatches)
    return parts, state


def with_overrides(config: Config, words: tuple[str, ...]) -> Config:
    """The config with key=value words on top."""
    return with_words(config, words)


def with_model(config: Config, path: str) -> Config:
    """The config with another model path."""
    return config.model_copy(update={"model": config.model.model_copy(update={"path": path, "revision": None})})


@dataclass(frozen=True, slots=True)
class Sampler:
    """An engine with what is needed to use it without a learner."""

    config: Config
    policy: Policy
    engine: RolloutEngine
    grader: GroupGrader
    model: Any
    weights: str  # digest; see manifest.weights_digest


LONGEST_CHAT = 4096  # tokens of prompt and response, where a model could take more


@span("loading")
def build_sampler(
    config: Config, *, all_positions: bool = False, tokenizer: Any = None, given: Given = NOTHING
) -> Sampler:
    """Tokenizer, engine and grader of a model, for evaluation and sampling.

    all_positions: prompts may fill the model's positions (up to LONGEST_CHAT), whatever
    data.max_prompt_tokens says. tokenizer: where it is loaded already.
    """
    scorers = Scorers.of(config, given.functions)
    device = pick_device(config.model)
    tokenizer = tokenizer if tokenizer is not None else load_tokenizer(config.model)
    model: Any = load_model(config.model, pick_dtype(config.model, device), device)
    if all_positions:
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or LONGEST_CHAT
        room = max(1, min(positions, LONGEST_CHAT) - config.sampling.max_response_tokens)
        config = config.model_copy(update={"data": config.data.model_copy(update={"max_prompt_tokens": room})})
    check_architecture(model, max_tokens(config))
    policy = Policy(tokenizer, eos_ids(model, tokenizer))
    weights = manifest.weights_digest(model.named_parameters())  # before the engine packs them
    engine, grader = make_engine(config, model, policy), make_grader(config, scorers, policy)
    return Sampler(config, policy, engine, grader, model, weights)


def evaluation_data(config: Config, given: Given = NOTHING) -> CheckedData:
    """The problems of `eval.data`, checked before any model is loaded. Raises ConfigError when there are none."""
    scorers = Scorers.of(config, given.functions)
    checked = check_evaluation(config, scorers.check if scorers.has_correctness else None)
    if not checked.evaluation:
        raise ConfigError("eval.data is empty; name sets or files, e.g. --data math500 or --data problems.jsonl")
    return checked


def encode_turns(sampler: Sampler, turns: list[dict[str, str]]) -> Prompt:
    """A prompt of chat turns (or of the one turn's text, for a raw template), without an answer."""
    template = PromptTemplate(sampler.config, sampler.policy.tokenizer)
    problem = turns[-1]["content"] if sampler.config.data.template == "raw" else turns
    messages = template.messages(problem, {}, "the prompt")
    text, ids = template.encode(messages, "" if messages is not None else str(problem))
    room = max_tokens(sampler.config) - sampler.config.sampling.max_response_tokens
    if len(ids) > room:
        raise UserError(f"the prompt takes {len(ids)} tokens, over data.max_prompt_tokens = {room}")
    return Prompt(
        id="", messages=messages, text=text, answer=None, source="", token_ids=np.asarray(ids, dtype=np.int32)
    )
