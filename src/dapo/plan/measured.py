"""What a run's own files say of speed, acceptance, lengths and memory: metrics.jsonl, profile.jsonl, rollouts/."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapo.config.load import from_run
from dapo.config.schema import Config
from dapo.errors import UserError
from dapo.plan.shapes import Shape
from dapo.plan.speed import Decode, Learn, backward_multiple, work
from dapo.run.directory import RunDirectory

OF_STEP = ("checks", "metrics", "batch", "writing", "sampling", "update")  # spans that every step has once or so
SPREAD = 1.5  # of mean rows between lines: below it, a step's fixed part can't be told from its part by rows

Spans = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step's line of metrics.jsonl, and its spans where it was profiled."""

    number: int
    metrics: Mapping[str, float]
    spans: Spans | None

    def seconds(self, *names: str) -> float:
        """Of these spans together."""
        return sum(self.spans[name]["seconds"] for name in names if name in self.spans) if self.spans else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was read of a run. tokens: response lengths of what it sampled, [] where it kept no rollouts."""

    name: str
    config: Config
    steps: tuple[Step, ...]
    tokens: tuple[int, ...]

    @property
    def profiled(self) -> bool:
        """Whether every step has its spans."""
        return all(step.spans is not None for step in self.steps)

    def mean(self, name: str) -> float:
        """Of a metric over the steps that have it; NaN without any."""
        found = [value for step in self.steps if (value := step.metrics.get(name)) is not None and isfinite(value)]
        return sum(found) / len(found) if found else float("nan")

    def peak(self) -> float:
        """memory/peak_gb, or that of the device, at the end; NaN where it was not written."""
        last = self.steps[-1].metrics
        return last.get("memory/device_peak_gb", last.get("memory/peak_gb", float("nan")))


def read_run(name: str, until: int | None = None) -> Run:
    """A run's steps, to step `until` at the most. Raises UserError: no run, or none of its steps is there."""
    directory = RunDirectory.open(name)
    tree = directory.read_json("config.resolved.json")
    if not isinstance(tree, dict):
        raise UserError(f"{directory.path / 'config.resolved.json'}: not the configuration of a run; put it back")
    lines = {row["step"]: row for row in directory.metrics() if _is_step(row) and row["step"] > 0}
    lines = {number: row for number, row in lines.items() if until is None or number <= until}
    if not lines:
        raise UserError(f"{directory.path}: no finished step in metrics.jsonl to measure by")
    spans = {line["step"]: line["spans"] for line in _profile(directory) if _has_spans(line)}
    steps = tuple(
        Step(number=number, metrics=_numbers(row), spans=spans.get(number)) for number, row in sorted(lines.items())
    )
    for needed in ("tokens/generated", "sampling/draws", "time/rollout_s", "time/train_s", "tokens/kept"):
        if not all(step.metrics.get(needed, 0.0) > 0 for step in steps):
            raise UserError(f"{directory.path}: metrics.jsonl has no {needed} of every step; measure by another run")
    tokens = tuple(_tokens(directory, [step.number for step in steps]))
    return Run(name=name, config=from_run(tree), steps=steps, tokens=tokens)


def decode_speed(runs: Sequence[Run]) -> tuple[Decode, str]:
    """Seconds of a decode step, fitted to the steps of these runs; and how, in words.

        seconds of a training step's decoding = fixed x decode steps + row x tokens decoded

    by least squares of the relative error, neither part below 0. Where rows hardly differ between the lines, all is
    put on the rows. Without profiles, prompts are in it, and decode steps are not known.
    """
    if not all(run.profiled for run in runs):
        seconds = sum(step.metrics["time/rollout_s"] for run in runs for step in run.steps)
        tokens = sum(step.metrics["tokens/generated"] for run in runs for step in run.steps)
        return Decode(
            row=seconds * runs[0].config.cluster.engines / tokens
        ), "time/rollout_s over tokens/generated, prompts in it (--profile tells more)"
    rows, draws, prefill = [], 0.0, 0.0
    for run in runs:
        for step in run.steps:
            started = _responses(run, step)
            decoded = max(1.0, step.metrics["tokens/generated"] - started)
            calls = step.spans["decode"]["calls"] if step.spans and "decode" in step.spans else 1.0
            rows.append((calls, decoded, step.seconds("decode", "choose", "schedule")))
            draws += started / run.config.sampling.responses_per_prompt
            prefill += step.seconds("prefill")
    fixed, row, how = _fit(np.array(rows))
    block = 8 if runs[0].config.engine.kind == "torch" else 1
    return Decode(fixed=fixed, row=row, block=block, prefill=prefill / draws), how


def _fit(lines_N3: NDArray[np.float64]) -> tuple[float, float, str]:
    calls_N, decoded_N, seconds_N = lines_N3.T
    mean_rows_N = decoded_N / calls_N
    if mean_rows_N.max() < SPREAD * mean_rows_N.min():
        row = float(seconds_N.sum() / decoded_N.sum())
        return 0.0, row, f"{1 / row:.0f} tokens/s at {mean_rows_N.mean():.0f} rows, taken to be the same at any"
    from scipy.optimize import nnls

    (fixed, row), _ = nnls(lines_N3[:, :2] / seconds_N[:, None], np.ones(len(lines_N3)))
    words = (
        f"{fixed * 1e3:.0f} ms + {row * 1e3:.2f} ms a row, from {mean_rows_N.min():.0f} to {mean_rows_N.max():.0f} rows"
    )
    return float(fixed), float(row), words


def learn_speed(runs: Sequence[Run], shape: Shape, prompt: float) -> tuple[Learn, str]:
    """FLOP/s of the learner, and what updates and steps take beside it, from these runs; and how, in words."""
    profiled = all(run.profiled for run in runs)
    steps = [(run, step) for run in runs for step in run.steps]
    forward = backward = 0.0
    for run, step in steps:
        flop, multiple, passes = _work_of(run, step, shape, prompt)
        forward += flop * (1 if profiled else 1 + passes)
        backward += flop * multiple
    graded = sum(_responses(run, step) for run, step in steps)
    grade = sum(step.metrics.get("time/grade_s", 0.0) for _, step in steps) / graded
    if not profiled:
        rate = (forward + backward) / sum(step.metrics["time/train_s"] for _, step in steps)
        rest = [
            step.metrics["time/step_s"]
            - sum(step.metrics.get(f"time/{n}_s", 0.0) for n in ("rollout", "grade", "train"))
            for _, step in steps
        ]
        other = max(0.0, sum(rest) / len(rest))
        words = f"time/train_s: {rate / 1e9:.1f} GFLOP/s, forward and backward alike (--profile tells more)"
        return Learn(forward=rate, backward=rate, other=other, grade=grade), words
    spent = {
        name: sum(step.seconds(name) for _, step in steps) for name in ("forward", "backward", "optimiser", "sync")
    }
    updates = sum(step.metrics.get("train/updates", 1.0) for _, step in steps)
    learn = Learn(
        forward=forward / max(spent["forward"], 1e-9),
        backward=backward / max(spent["backward"], 1e-9),
        optimiser=spent["optimiser"] / updates,
        sync=spent["sync"] / max(1.0, sum(_calls(step, "sync") for _, step in steps)),
        other=sum(step.seconds(*OF_STEP) for _, step in steps) / len(steps),
        grade=grade,
    )
    return learn, f"profile.jsonl: {learn.forward / 1e9:.0f} GFLOP/s forward, {learn.backward / 1e9:.0f} backward"


def _calls(step: Step, name: str) -> float:
    return step.spans[name]["calls"] if step.spans and name in step.spans else 0.0


def _work_of(run: Run, step: Step, shape: Shape, prompt: float) -> tuple[float, float, int]:
    """(forward FLOP, backward over forward, passes) of a measured step."""
    config, kept = run.config, step.metrics.get("sampling/kept", float(run.config.sampling.prompts_per_step))
    size = config.sampling.responses_per_prompt
    length = step.metrics["tokens/kept"] / max(1.0, kept * size)
    multiple = backward_multiple(
        checkpointing=config.train.gradient_checkpointing, adapters=config.learner.lora_rank is not None
    )
    done = work(
        shape,
        kept,
        size,
        prompt,
        length,
        length**2,
        shared=config.train.packing == "shared_prompt",
        backward=multiple,
        passes=passes_of(config),
    )
    return done.forward, multiple, done.passes


def passes_of(config: Config) -> int:
    """Forward passes over a step's batch without gradient: old log-probs, and those of a reference."""
    return int(config.algorithm.old_logprobs == "learner") + int(config.algorithm.kl.place != "off")


def _responses(run: Run, step: Step) -> float:
    """Responses that were sampled: of draws up to the cut, past it, and about half of those cancelled."""
    metrics = step.metrics
    draws = metrics["sampling/draws"] + metrics.get("sampling/surplus_draws", 0.0)
    draws += metrics.get("sampling/cancelled_draws", 0.0) / 2 - metrics.get("sampling/carried_in_draws", 0.0)
    return max(1.0, draws) * run.config.sampling.responses_per_prompt


def _tokens(directory: RunDirectory, numbers: Iterable[int]) -> Iterator[int]:
    """Response lengths of these steps' rollouts."""
    for number in numbers:
        if not (directory.path / "rollouts" / f"step_{number:06d}.jsonl.zst").is_file():
            continue
        for row in directory.rollouts(number):
            if isinstance(row, dict) and isinstance(row.get("tokens"), int) and row["tokens"] > 0:
                yield row["tokens"]


def _profile(directory: RunDirectory) -> Iterator[Any]:
    """The lines of profile.jsonl that can be read; none where the run was not profiled."""
    file = directory.path / "profile.jsonl"
    for line in file.read_bytes().split(b"\n")[:-1] if file.is_file() else ():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if isinstance(value, (int, float))}


def _is_step(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("step"), int) and "time/step_s" in row


def _has_spans(line: Any) -> bool:
    return isinstance(line, dict) and isinstance(line.get("step"), int) and isinstance(line.get("spans"), dict)
