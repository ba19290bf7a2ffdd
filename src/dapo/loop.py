"""The data flow of a run, after Algorithm 1 of the paper. Knows Protocols, not backends.

1  for step = 1..M                                             train
2      sample a batch of prompts                               sample: supply.collect
3      pi_old <- pi_theta                                      finish: engine.load_weights
4      sample G responses for each prompt from pi_old          sample: supply.collect
5      compute rewards                                         sample: supply.collect
6-8    keep groups with 0 < right < G until the buffer is full sample: supply.collect
9      compute advantages                                      sample: with_advantages
10     for iteration = 1..mu                                   train
11         update pi_theta by the objective (Eq. 8)            update: learner.update

Between any two of these calls the state is whole: it can be saved, and going on from it gives the
same bits as never having stopped. With pipeline.max_staleness the supply goes on with lines 2 to 8 while
lines 10 and 11 run (`dapo.pipeline`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from dapo.advantages import reward_moments
from dapo.batch import make_batch, minibatches, with_advantages
from dapo.checks.watch import FINDINGS
from dapo.credit import make_buckets
from dapo.errors import EngineError
from dapo.evals.evaluation import Evaluation
from dapo.evals.run import evaluate
from dapo.learner.base import Trace
from dapo.ledger import history_after, ledger, prompts_drawn, totals
from dapo.metrics import batch_metrics, gap_metrics, kl_metrics, peak_memory, score, traced_metrics, update_metrics
from dapo.parts import Parts, due, learning_rate, rest
from dapo.probe import probed
from dapo.run.signals import StopRequest
from dapo.sampling import allowed_staleness, check_filled
from dapo.shown import Seen, report, write_rollouts, write_trace
from dapo.spans import span
from dapo.stopping import leave_if_asked, saved_on_error, stop_if_diverged
from dapo.types import Batch, Group, Pending, StepReport, TrainState


def steps(parts: Parts, state: TrainState, stop: StopRequest) -> Generator[tuple[TrainState, StepReport]]:
    """Trains from a state to the last step; yields the state after each step, and what the step did.

    Signals are `stop`'s only while a step is made, and as they were between two of them.

    Raises:
        Stopped: a signal, exhausted sampling, a failed save, too many non-finite gradients or a self-check; the
            state is saved, where the disk takes it.
    """
    config, saver = parts.config, parts.saver
    with stop, saver, parts.trackers, parts.supply:
        with saved_on_error(parts, state):
            begin(parts, state, stop)
        while state.step < config.train.num_steps:
            saver.check()
            if state.pending is None:
                with saved_on_error(parts, state), span("sampling"):
                    state = sample(parts, state, stop)
            parts.supply.proceed(state, given_up(parts, stop))
            while state.pending is not None and state.pending.minibatches:
                leave_if_asked(parts, state, stop)
                state = updated(parts, state)
                stop_if_diverged(parts, state)
            with saved_on_error(parts, state):
                state = settled(parts, state)
            with saved_on_error(parts, state):
                after, metrics = finish(parts, state, stop)
                report_of_step = report(parts, after, metrics)
            state = after
            if due(state.step, config.checkpoint.every, config.train.num_steps):
                with span("saving"):
                    saver.save(state, learning_rate(state.step, config))
            with stop.suspended():
                yield state, report_of_step
            if state.step < config.train.num_steps:
                leave_if_asked(parts, state, stop)
        saver.wait(final=True)


def begin(parts: Parts, state: TrainState, stop: StopRequest) -> None:
    """Hands the policy to the engine; evaluates it before the very first step."""
    lines = parts.run.metrics()
    parts.alerts.replay(lines)
    parts.trackers.start(lines[-1]["step"] + 1 if lines else 0)
    parts.checks.carry(sync(parts, state.version))
    fresh = state.step == 0 and state.pending is None and not lines
    if fresh and parts.tests and parts.config.eval.before:
        metrics = run_evaluation(parts, 0, stop).metrics()
        parts.trackers.log(0, metrics)
        parts.run.append_metrics(0, metrics)
        parts.alerts.replay([metrics])
    parts.view.begin()


def sample(parts: Parts, state: TrainState, stop: StopRequest) -> TrainState:
    """Lines 2 to 9: fills a batch and fixes old log-probs, advantages and denominators of its updates."""
    config, start, step = parts.config, time.perf_counter(), state.step + 1
    parts.view.phase("sampling")
    collected = parts.supply.collect(state, given_up(parts, stop))
    rest(parts)
    after = replace(state, next_draw=collected.next_draw, next_place=collected.next_place, ahead=None)
    if collected.short:
        unfinished = replace(after, carried=collected.groups, unfinished=collected.unfinished, score=None)
        with saved_on_error(parts, unfinished):
            check_filled(collected, config)
        parts.view.say(collected.short)
    check_versions(collected.kept, state.version, allowed_staleness(config))
    with span("metrics"):
        metrics = ledger(collected, state, config)
    metrics["data/epoch"] = collected.next_place / parts.epoch_size
    sums = totals(state.totals, metrics, prompts_drawn(collected))
    if config.reward.normalisation == "running":
        sums |= {name: state.totals.get(name, 0.0) + value for name, value in reward_moments(collected.kept).items()}
    batch_start = time.perf_counter()
    with span("batch"):
        batch, gap = with_policies(make_batch(collected.kept, parts.eos_ids, config), collected.kept, parts, state)
        batch = with_advantages(batch, collected.kept, config, sums)
        left = tuple(minibatches(batch, config, parts.learner.cut))
    recorded, findings = parts.checks.sampled(state, collected, batch, left, parts.learner)
    sums |= recorded
    write_start = time.perf_counter()
    write_rollouts(parts, step, collected, batch)
    with span("metrics"):
        metrics |= sums | gap | batch_metrics(batch) | kl_metrics(batch, config) | {FINDINGS: findings}
    end = time.perf_counter()
    metrics |= {
        "time/train_s": write_start - batch_start,
        "time/write_s": end - write_start,
        "time/step_s": end - start,
    }
    return replace(
        after,
        carried=collected.left,
        unfinished={},
        pending=Pending(minibatches=left, metrics=metrics),
        score=None,
        history=history_after(state.history, collected, step),
        totals=sums,
    )


def updated(parts: Parts, state: TrainState) -> TrainState:
    """The state behind one update that has been looked at. What an error saves is where the weights are."""
    with saved_on_error(parts, state), span("update"):
        state, seen = update(parts, state)
    with saved_on_error(parts, state):
        state = looked_at(parts, state, seen)
    with saved_on_error(parts, state):
        state = shown(parts, state, seen)
        parts.checks.raise_failed()
    return state


def update(parts: Parts, state: TrainState) -> tuple[TrainState, Seen]:
    """Lines 10 and 11: one optimiser step on the next mini-batch.

    Nothing that can fail follows the step: an error here means that the weights are still those of `state`.
    """
    pending, start, step = state.pending, time.perf_counter(), state.step + 1
    assert pending is not None
    rest(parts)
    parts.view.phase("training")
    minibatch, last = pending.minibatches[0], len(pending.minibatches) == 1
    asked = last and due(step, parts.config.log.credit_every, 0)
    buckets = make_buckets(minibatch) if asked else None
    trace = Trace(bucket=None if buckets is None else buckets.number_B)
    rate = learning_rate(step, parts.config)
    parts.checks.before_update(minibatch, rate, parts.learner)
    metrics = parts.learner.update(minibatch, rate, trace)
    after = replace(
        state,
        nonfinite_in_a_row=state.nonfinite_in_a_row + 1 if metrics["grad/nonfinite"] else 0,
        pending=replace(pending, minibatches=pending.minibatches[1:], updates=(*pending.updates, metrics)),
    )
    return with_time(after, start), Seen(minibatch, trace, buckets)


def looked_at(parts: Parts, state: TrainState, seen: Seen) -> TrainState:
    """The state after an update, with metrics of its tokens, and what the self-checks found in it counted."""
    pending, start = state.pending, time.perf_counter()
    assert pending is not None
    *before, metrics = pending.updates
    with span("metrics"):
        traced = traced_metrics(seen.minibatch, seen.trace, parts.config, first=not before)
    found = pending.metrics.get(FINDINGS, 0.0) + parts.checks.after_update(state, parts.learner)
    pending = replace(pending, updates=(*before, {**metrics, **traced}), metrics={**pending.metrics, FINDINGS: found})
    return with_time(replace(state, pending=pending), start)


def shown(parts: Parts, state: TrainState, seen: Seen) -> TrainState:
    """Writes what is shown of a step's last update; the state has the time that this took."""
    start = time.perf_counter()
    assert state.pending is not None
    if not state.pending.minibatches:
        write_trace(parts, state.step + 1, seen)
    return with_time(state, start)


def with_time(state: TrainState, start: float, names: Sequence[str] = ("time/train_s", "time/step_s")) -> TrainState:
    """The time since `start`, added to the step's."""
    pending, seconds = state.pending, time.perf_counter() - start
    assert pending is not None
    spent = {name: pending.metrics[name] + seconds for name in names}
    return replace(state, pending=replace(pending, metrics={**pending.metrics, **spent}))


def sync(parts: Parts, version: int) -> float:
    """Hands the policy to the engine as this version; returns what the self-checks found."""
    with parts.supply.exclusive():
        with span("sync"):
            weights = parts.checks.handing(parts.learner)
            asked = {"recompute": True} if parts.config.pipeline.kv_cache == "recompute" else {}
            parts.engine.load_weights(version, weights, **asked)
        parts.supply.published(version)
        return parts.checks.handed(version, weights, parts.engine)


def settled(parts: Parts, state: TrainState) -> TrainState:
    """The state with what was sampled ahead of it; what goes wrong from here on saves that too."""
    start = time.perf_counter()
    return with_time(parts.supply.settle(state), start, ("time/step_s",))


def finish(parts: Parts, state: TrainState, stop: StopRequest) -> tuple[TrainState, dict[str, float]]:
    """Line 3 of the next step: the new policy goes to the engine. Evaluates it where that is due."""
    start = time.perf_counter()
    assert state.pending is not None
    step = state.step + 1
    findings = sync(parts, step)
    gap, more = probed(parts, state)
    if parts.config.algorithm.kl.reset_every is not None and step % parts.config.algorithm.kl.reset_every == 0:
        parts.learner.reset_reference()
    metrics = {**state.pending.metrics, **update_metrics(state.pending), **gap}
    metrics[FINDINGS] = metrics.get(FINDINGS, 0.0) + findings + more
    metrics["time/step_s"] += time.perf_counter() - start
    if parts.tests and due(step, parts.config.eval.every, parts.config.train.num_steps):
        metrics |= run_evaluation(parts, step, stop).metrics()
    metrics |= {
        "train/policy_version": float(step),
        "checkpoint/failed_saves": float(parts.saver.counted()),
        "grading/lost_workers": float(parts.grader.lost_workers()),
        "time/save_s": parts.saver.seconds(),
    } | (peak_memory() | parts.supply.metrics())
    metrics |= parts.progress.at(step, metrics)
    return replace(state, step=step, version=step, pending=None, score=score(metrics, parts.config.checkpoint)), metrics


# --- what a step is made of -----------------------------------------------------------------------


def given_up(parts: Parts, stop: StopRequest) -> Callable[[], bool]:
    """Says that a filling need not be finished: after a signal, as checkpoint.on_signal has it."""
    at_once = parts.config.checkpoint.on_signal == "step_start"
    return lambda: at_once and stop.requested


def check_versions(groups: Sequence[Group], version: int, max_staleness: int) -> None:
    """Law 6: every token was sampled by the step's own policy, or by one at most so many versions older."""
    for group in groups:
        for rollout in group.rollouts:
            for v, _ in rollout.response.token_versions:
                if not version - max_staleness <= v <= version:
                    raise EngineError(
                        f"draw {group.draw} holds tokens of policy version {v}, but the step starts from {version} "
                        f"and max_staleness is {max_staleness}; the engine did not take the new weights"
                    )


def with_policies(
    batch: Batch, groups: Sequence[Group], parts: Parts, state: TrainState
) -> tuple[Batch, dict[str, float]]:
    """Fixes the old (and reference) log-probs of the step; returns the engine/learner gap, see `gap_metrics`.

    The gap is over tokens that the present policy sampled: carried ones differ because the policy moved
    (NaN where there are no others). With old_logprobs = "engine" it is empty: the first update measures it
    instead, whose weights are still those that the engine sampled with.
    """
    algorithm = parts.config.algorithm
    gap: dict[str, float] = {}
    if algorithm.old_logprobs == "engine":
        batch = replace(batch, old_logprobs=batch.engine_logprobs)
    else:
        old = parts.learner.logprobs(batch)
        fresh = [all(v == state.version for v, _ in r.response.token_versions) for g in groups for r in g.rollouts]
        rows = [row for row, is_fresh in enumerate(fresh) if is_fresh]
        gap = gap_metrics(old[rows], batch.engine_logprobs[rows], batch.loss_mask[rows])
        batch = replace(batch, old_logprobs=old)
    if algorithm.kl.place != "off":
        batch = replace(batch, ref_logprobs=parts.learner.logprobs(batch, reference=True))
    return batch, gap


def run_evaluation(parts: Parts, step: int, stop: StopRequest) -> Evaluation:
    """Evaluates the engine's policy on the evaluation sets and writes eval/. A signal gives it up."""
    parts.view.phase("evaluating")
    with span("evaluation"), parts.supply.quiet(lambda: stop.requested):
        result = evaluate(
            parts.engine, parts.grader, parts.tests, parts.config, step=step, stopped=lambda: stop.requested
        )
    parts.run.write_json(f"eval/step_{step:06d}.json", {"step": step} | result.summary() | {"settings": parts.settings})
    parts.run.write_rows(step, result.rows, "eval")
    for line in result.lines():
        parts.view.say(f"evaluation at step {step}: {line}")
    return result
