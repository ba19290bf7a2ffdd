"""Step time under each schedule: the simulated filling, the updates, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import nan

import numpy as np

from dapo.config.schema import SamplingConfig
from dapo.difficulty import adaptive_size, predicted_acceptance
from dapo.errors import UserError
from dapo.plan.draws import PassRates
from dapo.plan.layout import Layout
from dapo.plan.lengths import Lengths
from dapo.plan.simulate import Filling, SimDraw, SimEngine, fill
from dapo.plan.speed import Decode

MANY = 3_000_000  # responses of a filling; more are not simulated
REPEATS, RESPONSES = 8, 60_000  # of fillings, and of responses simulated for each schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Seconds of a step's other parts. logprobs, updates: of the learner. sync: weights to the engine."""

    logprobs: float
    updates: float
    sync: float
    other: float

    @property
    def learner(self) -> float:
        """What the learner is busy with."""
        return self.logprobs + self.updates + self.other


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A step under one schedule; means over simulated fillings.

    sampling, step: seconds. grading: part of the sampling. learner_idle, engine_idle: shares of the step in which it
    waits for the other. used: of slots x sampling time, occupied. wasted: tokens past the cut; dropped: of draws that
    the filter left out; generated: all. draws: to the cut, and started. short: share of fillings that ran out of draws.
    reason: why there are no figures, else "".
    """

    name: str
    step: float = nan
    sampling: float = nan
    grading: float = nan
    engine_idle: float = nan
    learner_idle: float = nan
    used: float = nan
    generated: float = nan
    dropped: float = nan
    wasted: float = nan
    draws: float = nan
    started: float = nan
    short: float = nan
    reason: str = ""


class DrawSource:
    """Draws with lengths and outcomes: a function of the seed.

    Args:
        rates: what draws fall on.
        sampling: group sizes, filter.
        lengths: of responses, each on its own.
        acceptance: in place of what the rates give, or None.
        seed: of everything.
    """

    def __init__(
        self, rates: PassRates, sampling: SamplingConfig, lengths: Lengths, acceptance: float | None, seed: int
    ) -> None:
        self._rng = np.random.Generator(np.random.Philox(key=seed))
        least, most = sampling.min_responses_per_prompt, sampling.responses_per_prompt
        sizes = [most if least is None else adaptive_size(None, one.rate, least, most) for one in rates.shares]
        accepted = [
            acceptance if acceptance is not None else (predicted_acceptance(one.record, one.rate, size) or 0.0)
            for one, size in zip(rates.shares, sizes, strict=True)
        ]
        self._sizes, self._accepted = np.array(sizes), np.array(accepted)
        self._cumulative = np.cumsum([one.share for one in rates.shares])
        self._values = lengths.values

    def __call__(self) -> SimDraw:
        """The next draw."""
        u, v = self._rng.random(2)
        place = min(
            int(np.searchsorted(self._cumulative, u * self._cumulative[-1], side="right")), len(self._sizes) - 1
        )
        lengths = self._rng.choice(self._values, size=int(self._sizes[place]))
        return SimDraw(tuple(lengths.tolist()), bool(v < self._accepted[place]))


def timings(
    sampling: SamplingConfig,
    layout: Layout,
    decode: Decode,
    slots: int,
    prompt: float,
    training: Training,
    source: Callable[[int], DrawSource],
    *,
    grade: float,
    expected: float,
) -> list[Timing]:
    """The step under each schedule: rounds, streaming, one step off, in flight.

    Args:
        sampling: of the recipe; its schedule is replaced in turn.
        layout: how many engines; whether engine and learner share devices.
        decode, slots, prompt: of an engine.
        training: the rest of a step.
        source: draws for a seed.
        grade: seconds of a response's grading.
        expected: responses of a filling, about.

    Raises:
        UserError: too many to simulate.
    """
    if expected > MANY:
        raise UserError(
            f"a step would sample about {expected:,.0f} responses, over the {MANY:,} that are simulated; lower "
            "sampling.prompts_per_step or responses_per_prompt, or raise the acceptance"
        )
    repeats = int(max(1, min(REPEATS, RESPONSES // max(1.0, expected))))
    slots_in_all = layout.engines * slots

    def filled(schedule: str, wanted: int = 0) -> list[Filling]:
        own = sampling.model_copy(update={"schedule": schedule})
        return [
            fill(
                own,
                [SimEngine(decode, slots, prompt) for _ in range(layout.engines)],
                source(number),
                grade=grade,
                slots=slots_in_all,
                wanted=wanted,
            )
            for number in range(repeats)
        ]

    rounds, streaming = filled("rounds"), filled("streaming")
    own = streaming if sampling.schedule == "streaming" else rounds
    taking_turns = [_turns("rounds", rounds, training), _turns("streaming", streaming, training)]
    if layout.shared:
        why = "engine and learner share their devices, so nothing can overlap"
        return [*taking_turns, Timing(name="one step off", reason=why), Timing(name="in flight", reason=why)]
    off = _overlapped("one step off", own, _mean(own, "seconds"), training)
    steady = filled("streaming", wanted=3 * sampling.prompts_per_step)
    intervals = [(one.full_at[-1] - one.full_at[0]) / 2 for one in steady if len(one.full_at) == 3]
    if not intervals:
        return [*taking_turns, off, Timing(name="in flight", reason="fillings run out of draws")]
    scaled = [_third(one) for one in steady]
    flight = _overlapped("in flight", scaled, sum(intervals) / len(intervals), training)
    return [*taking_turns, off, replace(flight, wasted=0.0)]


def _third(one: Filling) -> Filling:
    """Of three steps' worth, one's."""
    return replace(
        one,
        tokens=one.tokens / 3,
        kept_tokens=one.kept_tokens // 3,
        taken_tokens=one.taken_tokens // 3,
        draws=one.draws // 3,
        started=one.started // 3,
        grading=one.grading / 3,
    )


def _turns(name: str, fillings: list[Filling], training: Training) -> Timing:
    """Sampling, then updates, then weights to the engine."""
    sampling = _mean(fillings, "seconds")
    step = sampling + training.learner + training.sync
    return _timing(name, fillings, sampling, step, training)


def _overlapped(name: str, fillings: list[Filling], sampling: float, training: Training) -> Timing:
    """The engine samples the next step meanwhile; the slower one sets the pace, and both stop for the weights."""
    return _timing(name, fillings, sampling, max(sampling, training.learner) + training.sync, training)


def _timing(name: str, fillings: list[Filling], sampling: float, step: float, training: Training) -> Timing:
    return Timing(
        name=name,
        step=step,
        sampling=sampling,
        grading=_mean(fillings, "grading"),
        engine_idle=1.0 - sampling / step if step else nan,
        learner_idle=1.0 - training.learner / step if step else nan,
        used=_mean(fillings, "used"),
        generated=_mean(fillings, "tokens"),
        dropped=_mean(fillings, "taken_tokens") - _mean(fillings, "kept_tokens"),
        wasted=_mean(fillings, "past_cut"),
        draws=_mean(fillings, "draws"),
        started=_mean(fillings, "started"),
        short=sum(not one.full for one in fillings) / len(fillings),
    )


def _mean(fillings: list[Filling], name: str) -> float:
    return sum(float(getattr(one, name)) for one in fillings) / len(fillings)
