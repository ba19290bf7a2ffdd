"""What a step leaves for those who look at the run: rollouts, token traces, credit, alerts, a line of metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dapo.credit import Buckets, proxy, row_advantages, table
from dapo.errors import SaveFailed
from dapo.learner.base import Trace
from dapo.parts import Parts, due
from dapo.spans import span
from dapo.tracing import token_rows
from dapo.types import Batch, Collected, StepReport, TrainState


@dataclass(frozen=True, slots=True)
class Seen:
    """What an update saw of its mini-batch. buckets: where the credit table was asked for."""

    minibatch: Batch
    trace: Trace
    buckets: Buckets | None


def write_rollouts(parts: Parts, step: int, collected: Collected, batch: Batch) -> None:
    """rollouts/ of a step, where that is due. A disk that refuses is as for a checkpoint."""
    if not due(step, parts.config.log.rollouts_every, 0):
        return
    try:
        with span("writing"):
            groups, advantages = (*collected.taken, *collected.surplus), row_advantages(batch).tolist()
            parts.run.write_rollouts(step, groups, collected.kept, advantages)
    except SaveFailed as error:
        parts.saver.tolerate(error)


def write_trace(parts: Parts, step: int, seen: Seen) -> None:
    """Of a step's last update: tokens/ and credit/, for whoever looks at the run. A full disk is as for rollouts."""
    minibatch, trace, buckets = seen.minibatch, seen.trace, seen.buckets
    if trace.logprobs is None:
        return
    try:
        with span("writing"):
            if (count := parts.config.log.token_rows) and due(step, parts.config.log.rollouts_every, 0):
                rows = token_rows(minibatch, trace, parts.config, step=step, count=count, decode=parts.grader.decode)
                parts.run.write_rows(step, rows, "tokens")
            if buckets is not None and trace.credit is not None:
                found = table(minibatch, buckets, trace.credit, proxy(minibatch, trace, parts.config))
                parts.run.write_json(f"credit/step_{step:06d}.json", {"step": step} | found)
    except SaveFailed as error:
        parts.saver.tolerate(error)


def report(parts: Parts, state: TrainState, metrics: dict[str, float]) -> StepReport:
    """A finished step, for everyone who listens. With the line of metrics.jsonl it is done."""
    with span("writing"):
        tell_alerts(parts, state.step, metrics)
        metrics["trackers/failures"] = float(parts.trackers.failures())
        parts.trackers.log(state.step, metrics)
        parts.run.append_metrics(state.step, metrics)
        parts.view.step(state.step, metrics)
    return StepReport(step=state.step, metrics=metrics)


def tell_alerts(parts: Parts, step: int, metrics: dict[str, float]) -> None:
    """The alerts that begin with a step: to the person, to alerts.jsonl, and counted."""
    begun = parts.alerts.feed(metrics)
    metrics["alerts/raised"] = float(len(begun))
    for alert in begun:
        parts.run.append_line("alerts.jsonl", {"step": step, **asdict(alert)})
        parts.view.say(f"alert {alert.alert}: {alert.message}. To do: {alert.advice}")
