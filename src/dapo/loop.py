"""The data flow of a run, after Algorithm 1 of the paper. Knows Protocols, not backends.

1  for step = 1..M
2      sample a batch of prompts                               collector.collect
3      pi_old <- pi_theta                                      engine.load_weights
4      sample G responses for each prompt from pi_old          collector.collect
5      compute rewards                                         collector.collect
6-8    keep groups with 0 < right < G until the buffer is full collector.collect
9      compute advantages                                      with_advantages
10     for iteration = 1..mu                                   minibatches
11         update pi_theta by the objective (Eq. 8)            learner.update
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dapo.batch import make_batch, minibatches, with_advantages
from dapo.config.schema import Config
from dapo.errors import EngineError, NonFiniteGradients, SamplingExhausted, Stopped
from dapo.evaluate import Evaluation, evaluate
from dapo.grading import GroupGrader, mean_or_nan
from dapo.learner.base import Learner
from dapo.rollout.base import RolloutEngine
from dapo.run import checkpoint
from dapo.run.directory import RunDirectory
from dapo.run.signals import StopRequest
from dapo.run.view import View
from dapo.sampling import Collected, Collector, ledger
from dapo.types import Batch, Group, Prompt, StepReport, TrainState


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run is made of; `build.py` puts it together."""

    config: Config
    engine: RolloutEngine
    learner: Learner
    collector: Collector
    grader: GroupGrader
    holdout: Sequence[Prompt]
    eos_ids: Sequence[int]
    run: RunDirectory
    view: View
    save_tokenizer: Callable[[Path], None]


def train(parts: Parts, state: TrainState, on_step: Callable[[StepReport], None] | None = None) -> TrainState:
    """Trains from a state to the last step; returns the final state.

    Raises:
        Stopped: a signal, exhausted sampling or too many non-finite gradients; the state is saved.
    """
    config, view = parts.config, parts.view
    parts.engine.load_weights(state.version, parts.learner.export_weights())
    saved = state.step if state.step else None  # the step of the newest checkpoint
    if state.step == 0 and parts.holdout and config.eval.before and not parts.run.metrics():
        parts.run.append_metrics(0, run_evaluation(parts, 0).metrics())
    view.begin()
    with StopRequest(view.say) as stop:
        while state.step < config.train.num_steps:
            try:
                state, metrics = train_step(parts, state)
            except SamplingExhausted:
                if saved != state.step:
                    save(parts, state)
                raise
            if parts.holdout and _due(state.step, config.eval.every, config.train.num_steps):
                metrics |= run_evaluation(parts, state.step).metrics()
            parts.run.append_metrics(state.step, metrics)
            view.step(state.step, metrics)
            if on_step is not None:
                on_step(StepReport(step=state.step, metrics=metrics))
            given_up = state.nonfinite_in_a_row >= config.train.max_nonfinite_updates
            if _due(state.step, config.checkpoint.every, config.train.num_steps) or stop.requested or given_up:
                saved = save(parts, state)
            if given_up:
                raise NonFiniteGradients(
                    f"{state.nonfinite_in_a_row} updates in a row had non-finite gradients "
                    "(train.max_nonfinite_updates); lower train.learning_rate or set algorithm.log_ratio_clamp"
                )
            if stop.requested and state.step < config.train.num_steps:
                raise Stopped(f"stopped after step {state.step}; go on with: dapo train --resume {parts.run.path}")
    return state


def train_step(parts: Parts, state: TrainState) -> tuple[TrainState, dict[str, float]]:
    """One rollout step: sample, filter, weigh, update, hand the new policy to the engine."""
    config, learner, view = parts.config, parts.learner, parts.view
    step, start = state.step + 1, time.perf_counter()
    view.phase("sampling")
    collected = parts.collector.collect(state.next_draw)
    if collected.short:
        view.say(collected.short)
    check_versions(collected.kept, state.version)
    view.phase("training")
    train_start = time.perf_counter()
    batch, mismatch = with_policies(make_batch(collected.kept, parts.eos_ids, config), parts)
    batch = with_advantages(batch, collected.kept, config)
    rate = learning_rate(step, config)
    updates = [learner.update(minibatch, rate) for minibatch in minibatches(batch, config, learner.cut)]
    parts.engine.load_weights(step, learner.export_weights())
    train_seconds = time.perf_counter() - train_start
    if _due(step, config.log.rollouts_every, 0):
        parts.run.write_rollouts(step, collected.groups, collected.kept)
    metrics = ledger(collected, config) | step_metrics(updates, mismatch, batch, collected)
    metrics |= {
        "train/policy_version": float(step),
        "time/train_s": train_seconds,
        "time/step_s": time.perf_counter() - start,
        "memory/peak_gb": peak_memory_gb(),
    }
    new_state = TrainState(
        step=step,
        version=step,
        next_draw=collected.next_draw,
        nonfinite_in_a_row=nonfinite_in_a_row(state.nonfinite_in_a_row, updates),
    )
    return new_state, metrics


def check_versions(groups: Sequence[Group], version: int) -> None:
    """Law 6: without allowed staleness every token was sampled by the step's own policy."""
    for group in groups:
        for rollout in group.rollouts:
            if stale := [v for v, _ in rollout.response.token_versions if v != version]:
                raise EngineError(
                    f"draw {group.draw} holds tokens of policy version {stale[0]}, but the step starts from "
                    f"{version}; the engine did not take the new weights"
                )


def with_policies(batch: Batch, parts: Parts) -> tuple[Batch, float | None]:
    """Fixes the old (and reference) log-probs of the step; returns the engine/learner gap if measured.

    With old_logprobs = "engine" the gap is measured by the first update instead, whose weights are
    still those that the engine sampled with.
    """
    algorithm = parts.config.algorithm
    gap: float | None = None
    if algorithm.old_logprobs == "engine":
        batch = replace(batch, old_logprobs=batch.engine_logprobs)
    else:
        old = parts.learner.logprobs(batch)
        difference = (old - batch.engine_logprobs)[batch.loss_mask]
        gap = float(difference.abs().double().mean()) if len(difference) else 0.0
        batch = replace(batch, old_logprobs=old)
    if algorithm.kl.place != "off":
        batch = replace(batch, ref_logprobs=parts.learner.logprobs(batch, reference=True))
    return batch, gap


def learning_rate(step: int, config: Config) -> float:
    """Linear warm-up in rollout steps: base * min(1, step / (warm-up + 1)); over 0 at step 1."""
    train = config.train
    return train.learning_rate * min(1.0, step / (train.warmup_rollout_steps + 1))


def step_metrics(
    updates: Sequence[Mapping[str, float]], mismatch: float | None, batch: Batch, collected: Collected
) -> dict[str, float]:
    """Means over the step's updates; maxima and counts where the name says so."""
    names = sorted({name for update in updates for name in update})
    metrics = {name: mean_or_nan([update[name] for update in updates if name in update]) for name in names}
    metrics["ratio/max"] = max((update.get("ratio/max", 0.0) for update in updates), default=0.0)
    metrics["grad/nonfinite_updates"] = sum(update["grad/nonfinite"] for update in updates)
    metrics.pop("grad/nonfinite", None)
    first = updates[0].get("ratio/logprob_abs_mean", 0.0) if updates else 0.0
    metrics["mismatch/logprob_abs_mean"] = first if mismatch is None else mismatch
    metrics["train/updates"] = float(len(updates))
    metrics["tokens/loss"] = float(batch.loss_mask.sum())
    advantages, tokens = batch.advantages.double(), batch.loss_tokens.double()
    metrics["advantage/abs_mean"] = float(advantages.abs().mean())
    metrics["advantage/length_weighted_mean"] = float((advantages * tokens).sum() / tokens.sum().clamp_min(1))
    return metrics


def nonfinite_in_a_row(before: int, updates: Sequence[Mapping[str, float]]) -> int:
    """Skipped updates since the last good one."""
    for update in updates:
        before = before + 1 if update["grad/nonfinite"] else 0
    return before


def run_evaluation(parts: Parts, step: int) -> Evaluation:
    """Evaluates the engine's policy on the held-out prompts and writes eval/."""
    parts.view.phase("evaluating")
    result = evaluate(parts.engine, parts.grader, parts.holdout, parts.config)
    parts.run.write_json(f"eval/step_{step:06d}.json", {"step": step} | result.summary())
    parts.run.write_rollouts(step, result.groups, result.groups, "eval")
    parts.view.say(f"evaluation at step {step}: {result.line()}")
    return result


def save(parts: Parts, state: TrainState) -> int:
    """Writes a checkpoint; returns its step."""
    parts.view.phase("saving")
    folder = parts.run.checkpoints
    folder.mkdir(exist_ok=True)
    checkpoint.save(folder, state, parts.learner, parts.save_tokenizer, parts.config.checkpoint.keep_last)
    return state.step


def _due(step: int, every: int | None, last: int) -> bool:
    return step == last or (every is not None and step % every == 0)


def peak_memory_gb() -> float:
    """Peak resident memory of this process, in GB (2**30 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
