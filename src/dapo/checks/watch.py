"""What the loop asks after each phase of a step: makes the checks, tells what they find, applies the settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dapo.checks import gap, loss, rows, weights
from dapo.checks.findings import CHECKS, Finding
from dapo.config.schema import Config
from dapo.errors import SelfCheckFailed
from dapo.learner.base import Learner
from dapo.model.loading import pick_device, pick_dtype
from dapo.rollout.base import RolloutEngine
from dapo.run.directory import CHECKS_FILE, RunDirectory
from dapo.run.view import View
from dapo.spans import span
from dapo.types import Batch, Collected, TrainState

FINDINGS = "checks/findings"
ADAPTER = ".lora_"  # in the names of what is trained where learner.lora_rank is set


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the checks need to know of a run beside its configuration.

    bos_id: the tokenizer's, or None. device, dtype: of the learner's forward pass. write: takes a line of
    checks.jsonl. say: takes a line for the person who watches.
    """

    eos_ids: Sequence[int]
    bos_id: int | None
    device: torch.device
    dtype: torch.dtype
    write: Callable[[Mapping[str, Any]], None]
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Before:
    """What is known before an update."""

    minibatch: Batch
    rate: float
    standing: weights.Standing | None


class SelfChecks:
    """The self-checks of a run, by its settings in [checks].

    Every finding is a line of checks.jsonl, a line to the view, and one more in checks/findings. One whose
    setting is "stop" raises SelfCheckFailed; after an update the error waits in `failed`, because the state
    that has to be saved then is the one behind the update.
    """

    def __init__(self, config: Config, around: Surroundings) -> None:
        self._config, self._around = config, around
        self._bounds = gap.Bounds.of(around.dtype, config.sampling.temperature)
        self._before: _Before | None = None
        self._handed: weights.Samples | None = None  # when weights were last handed to the engine
        self._moved = False  # whether updates should have moved them since then
        self._uncounted = 0.0  # findings before the first step
        self._sampled_step: int | None = None  # by this process
        self._told: set[str] = set()
        self.failed: SelfCheckFailed | None = None

    @classmethod
    def of(
        cls,
        config: Config,
        tokenizer: Any,
        eos_ids: Sequence[int],
        run: RunDirectory,
        view: View,
        computes: tuple[torch.device, torch.dtype] | None = None,
    ) -> SelfChecks:
        """Of a run that writes to its directory and tells its view.

        computes: device and type of the learner's forward pass, where they are not what this process would pick.
        """
        device, dtype = computes or (own := pick_device(config.model), pick_dtype(config.model, own))
        around = Surroundings(
            eos_ids=eos_ids,
            bos_id=getattr(tokenizer, "bos_token_id", None),
            device=device,
            dtype=dtype,
            write=partial(run.append_line, CHECKS_FILE),
            say=view.say,
        )
        return cls(config, around)

    # --- the phases -------------------------------------------------------------------------------

    def sampled(
        self, state: TrainState, collected: Collected, batch: Batch, minibatches: Sequence[Batch], learner: Learner
    ) -> tuple[dict[str, float], float]:
        """Looks at a step's batch before its first update.

        Args:
            state: before the step.
            collected: the filling; its kept groups are what the batch was made of.
            batch: with old log-probs and advantages.
            minibatches: its cut.
            learner: gives log-probs and the cut into micro-batches.

        Returns:
            (what belongs into TrainState.totals, the number of findings).
        """
        groups, config, eos = collected.kept, self._config, self._around.eos_ids
        self._sampled_step = state.step + 1
        with span("checks"):
            totals, found = self._gap(state, collected, batch, learner)
            found += self._look("filter", lambda: rows.kept_groups(collected, config))
            found += self._look("groups", lambda: rows.rows_of_groups(batch, groups, minibatches, config))
            if wanted := [name for name in ("eos_mask", "response_mask") if self._on(name)]:
                found += rows.masks(batch, groups, eos, config, wanted)
            found += self._look("double_bos", lambda: rows.double_bos(groups, self._around.bos_id))
            found += self._look("advantages", lambda: loss.advantages(batch, groups, config))
            found += self._look("finite", lambda: loss.finite(batch, minibatches))
            for minibatch in minibatches:
                found += self._look("reduction", partial(self._row_weights, minibatch, learner))
        count = self._settle(found, state.step + 1, "sampling")
        self.raise_failed()
        return totals, count

    def before_update(self, minibatch: Batch, rate: float, learner: Learner) -> None:
        """Keeps what the look after the update needs."""
        with span("checks"):
            self._before = _Before(minibatch, rate, self._standing(learner))

    def after_update(self, state: TrainState, learner: Learner) -> float:
        """Looks at the update that a state ends with; returns the number of findings. See `failed`."""
        before, pending, config = self._before, state.pending, self._config
        assert before is not None
        assert pending is not None
        number, metrics = len(pending.updates), pending.updates[-1]
        with span("checks"):
            found = self._look("finite_updates", lambda: loss.finite_updates(metrics))
            rate = metrics.get("train/learning_rate", before.rate)
            found += self._look("learning_rate", lambda: loss.learning_rate(rate, state.step + 1, config))
            if number == 1:
                found += self._first_update(state, before.minibatch, metrics)
            after = self._standing(learner)
            if before.standing is not None and after is not None:
                found += weights.moved(before.standing, after, metrics, rate, config)
                enough = rate >= weights.ADAPTER_RATE or config.learner.lora_rank is None
                self._moved |= enough and weights.should_move(before.standing, metrics, rate, config)
        self._before = None
        return self._settle(found, state.step + 1, "update", number)

    def handing(self, learner: Learner) -> weights.Handed:
        """The learner's weights for `load_weights`, watched on their way."""
        return weights.Handed(learner.export_weights(), keep=self._on("engine_weights"))

    def handed(self, step: int, given: weights.Handed, engine: RolloutEngine) -> float:
        """Looks at the engine's weights once it has been given new ones; returns the number of findings."""
        if not self._on("engine_weights"):
            return self._settle([], step, "sync")
        with span("checks"):
            samples, own = given.samples(), getattr(engine, "weight_samples", lambda: None)()
            found = weights.unmoved(self._handed, samples, moved=self._moved)
            if own is None:
                self._note("engine_weights", "this engine's weights can't be read back")
            else:
                found += weights.held(samples, own)
            self._handed, self._moved = samples, False
        count = self._settle(found, step, "sync")
        self.raise_failed()
        return count

    def probed(self, state: TrainState, mean: float) -> float:
        """Looks at the mean gap, in nats, of a draw by the engine's newest weights; returns the number of findings."""
        recorded = state.totals.get(gap.GAP, 0.0)
        found = self._look("engine_gap", lambda: gap.later_gap(mean, recorded, self._bounds))
        count = self._settle(found, state.step + 1, "sync")
        self.raise_failed()
        return count

    def carry(self, count: float) -> None:
        """Findings before the first step, which its metrics will count."""
        self._uncounted += count

    def raise_failed(self) -> None:
        """Raises what a check with the setting "stop" has found, once."""
        error, self.failed = self.failed, None
        if error is not None:
            raise error

    # --- how it works -----------------------------------------------------------------------------

    def _on(self, name: str) -> bool:
        return self._action(name) != "off"

    def _action(self, name: str) -> str:
        return str(getattr(self._config.checks, name))

    def _look(self, name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
        return check() if self._on(name) else []

    def _gap(
        self, state: TrainState, collected: Collected, batch: Batch, learner: Learner
    ) -> tuple[dict[str, float], list[Finding]]:
        """Engine against learner; what the first step records."""
        recorded, by_engine = state.totals.get(gap.GAP), self._config.algorithm.old_logprobs == "engine"
        if not self._on("engine_gap") or (by_engine and recorded is not None):
            return {}, []  # by the engine's log-probs, later gaps are measured by each first update
        fresh = gap.fresh_rows(collected.kept, state.version)
        if by_engine:
            batch = batch.take(gap.probe_rows(batch, fresh))
            fresh = list(range(batch.num_rows))
            logprobs = learner.logprobs(batch) if fresh else None
        else:
            logprobs = batch.old_logprobs
        if logprobs is None or not len(found := gap.gaps(batch, logprobs, fresh)):
            return {}, []
        if recorded is None:
            return {gap.GAP: gap.percentile(found)}, gap.first_gap(found, self._bounds)
        return {}, gap.later_gap(float(found.mean()), recorded, self._bounds)

    def _row_weights(self, minibatch: Batch, learner: Learner) -> list[Finding]:
        cut = learner.cut(minibatch) if self._config.algorithm.reduction == "microbatch" else None
        return loss.row_weights(minibatch, self._config, cut)

    def _first_update(self, state: TrainState, minibatch: Batch, metrics: Mapping[str, float]) -> list[Finding]:
        """Its ratios and its loss are known beforehand."""
        config, bounds = self._config, self._bounds
        found = self._look("reduction", lambda: loss.loss_at_one(minibatch, metrics, config))
        mean = metrics.get("ratio/logprob_abs_mean")
        if mean is None:
            return found
        if config.algorithm.old_logprobs == "engine":
            recorded = state.totals.get(gap.GAP, 0.0)
            return found + self._look("engine_gap", lambda: gap.later_gap(mean, recorded, bounds))
        # After a resume the other pass was another process's, perhaps of other threads or another machine.
        own = self._sampled_step == state.step + 1
        exact = own and gap.same_bits(minibatch, self._around.device, config.train.updates_per_step)
        return found + self._look("ratio_one", lambda: gap.ratio_one(mean, exact=exact, bounds=bounds))

    def _standing(self, learner: Learner) -> weights.Standing | None:
        if not self._on("trained_weights"):
            return None
        parameters = getattr(learner, "parameters", None)
        if parameters is None:
            self._note("trained_weights", "this learner's weights can't be looked at")
            return None
        adapters = self._config.learner.lora_rank is not None
        if (samples := getattr(learner, "parameter_samples", None)) is not None:  # its weights are in other processes
            return weights.Standing.of_samples(
                (name, sample, count, moves and (not adapters or ADAPTER in name))
                for name, sample, count, moves in samples()
            )
        return weights.Standing.of(
            (name, weight, moves and (not adapters or ADAPTER in name)) for name, weight, moves in parameters()
        )

    def _note(self, name: str, why: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._around.say(f"note: checks.{name} is not made: {why}")

    def _settle(self, found: Sequence[Finding], step: int, phase: str, update: int = 0) -> float:
        """Tells the findings; returns how many there are, those before the first step among them."""
        for line in self._lines(found, step, phase, update):
            self._around.write(line)
        count, self._uncounted = self._uncounted + len(found), 0.0
        return count

    def _lines(self, found: Sequence[Finding], step: int, phase: str, update: int) -> Iterator[dict[str, Any]]:
        for finding in found:
            action, name = self._action(finding.check), finding.check
            text = f"{finding.message}: {finding.value:.6g}, over the bound of {finding.bound:.6g}"
            self._around.say(f"check {name} ({action}): {text}")
            if action == "stop" and self.failed is None:
                self.failed = SelfCheckFailed(
                    f"check {name}: {text}; this means: {CHECKS[name].meaning}; checks.{name}=warn lets the run go on"
                )
            yield {
                "step": step,  # phase and update say how much of a step that was not finished has to stay on resume
                "phase": phase,
                "update": update,
                "check": name,
                "message": finding.message,
                "value": finding.value if math.isfinite(finding.value) else None,
                "bound": finding.bound,
                "action": action,
            }
