"""The simulated filling: closed forms, a lockstep oracle that decodes token by token, and the real admission rule."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo.config.schema import SamplingConfig
from dapo.plan.draws import PassRates, RateShare, uniform_rates
from dapo.plan.layout import Layout
from dapo.plan.lengths import Lengths, measured_lengths, stated_lengths
from dapo.plan.simulate import Filling, SimDraw, SimEngine, allowed, fill
from dapo.plan.speed import Decode
from dapo.plan.steps import DrawSource, Training, timings
from dapo.sampling import draws_allowed

STEP = Decode(fixed=0.5, row=0.125)  # a step of R rows: 0.5 + R / 8 seconds, exact in binary


def sampling(**values: object) -> SamplingConfig:
    """N = 2, G = 2, windows of 2 draws unless said otherwise."""
    return SamplingConfig(**{"prompts_per_step": 2, "responses_per_prompt": 2, "gen_prompts": 2} | values)  # type: ignore[arg-type]


def filled(
    config: SamplingConfig,
    draws: Iterator[SimDraw],
    decode: Decode = STEP,
    *,
    slots: int,
    prompt: float = 3.0,
    grade: float = 0.0,
    engines: int = 1,
) -> Filling:
    """A filling by these draws."""
    own = [SimEngine(decode, slots, prompt) for _ in range(engines)]
    return fill(config, own, lambda: next(draws), grade=grade, slots=slots * engines)


def alike(length: int, size: int = 2, kept: bool = True) -> Iterator[SimDraw]:
    """Draws of responses of one length."""
    return itertools.repeat(SimDraw((length,) * size, kept))


# --- closed forms -----------------------------------------------------------------------------------


def test_all_lengths_equal_and_slots_for_all() -> None:
    """N G = 4 rows at once. The first token is the prefill's, so L - 1 = 9 steps of 0.5 + 4 / 8 = 1 s: 9 s."""
    found = filled(sampling(), alike(10), slots=4)
    assert found.seconds == 9.0
    assert found.tokens == found.kept_tokens == 4 * 10
    assert found.used == 1.0
    assert found.past_cut == 0


def test_one_slot_decodes_one_after_another() -> None:
    """4 responses of 10 tokens, each 9 steps of 0.5 + 1 / 8: 4 x 9 x 0.625 = 22.5 s."""
    assert filled(sampling(), alike(10), slots=1).seconds == 22.5


def test_slots_without_end_take_as_long_as_the_longest() -> None:
    """With a step that does not depend on rows: (longest - 1) steps of 0.5 s, whatever the others."""
    draws = iter([SimDraw((3, 40), True), SimDraw((7, 5), True)])
    assert filled(sampling(), draws, Decode(fixed=0.5), slots=1000).seconds == 39 * 0.5


def test_rows_are_computed_in_blocks() -> None:
    """3 rows in blocks of 8 cost 8: 0.125 x 8 = 1 s a step, 4 steps."""
    found = filled(
        sampling(prompts_per_step=1, responses_per_prompt=3, gen_prompts=1),
        alike(5, 3),
        Decode(row=0.125, block=8),
        slots=8,
    )
    assert found.seconds == 4.0


def test_the_cache_makes_later_tokens_dearer() -> None:
    """One row behind a prompt of 3: steps at 4, 5, 6 cached tokens, at 1 s each: 15 s."""
    one = sampling(prompts_per_step=1, gen_prompts=1)
    assert filled(one, alike(4, 1), Decode(cached=1.0), slots=1).seconds == 4 + 5 + 6


def test_prefill_once_a_draw_and_grading_once_a_response() -> None:
    """2 draws x 0.25 s of prefill, 4 responses x 1 s of grading, 9 steps of 1 s."""
    found = filled(sampling(), alike(10), Decode(fixed=0.5, row=0.125, prefill=0.25), slots=4, grade=1.0)
    assert found.seconds == 9.0 + 0.5 + 4.0
    assert found.grading == 4.0


def test_two_engines_halve_what_one_does_alone() -> None:
    """Each has one draw of 2 rows: 9 steps of 0.75 s in place of 18 of them."""
    assert filled(sampling(), alike(10), slots=2, engines=2).seconds == 9 * 0.75
    assert filled(sampling(), alike(10), slots=2).seconds == 18 * 0.75


def test_rounds_consume_whole_rounds_and_streaming_stops_at_the_cut() -> None:
    """Draw 1 is dropped, 0 and 2 are kept; a window of 2 has draw 3 in flight at the cut, a round has finished it."""
    outcomes = [True, False, True, True]
    rounds = filled(sampling(), iter([SimDraw((10, 10), kept) for kept in outcomes]), slots=4)
    assert (rounds.draws, rounds.started, rounds.kept) == (3, 4, 2)
    assert rounds.past_cut == 20  # draw 3, whole
    assert rounds.seconds == 18.0
    long = [SimDraw((10 + 30 * (number == 3),) * 2, kept) for number, kept in enumerate(outcomes)]
    streaming = filled(sampling(schedule="streaming"), iter(long), slots=4)
    assert (streaming.draws, streaming.started) == (3, 4)
    assert streaming.past_cut == 20  # draw 3, cancelled after 10 of 40 tokens
    assert streaming.seconds == 18.0
    assert filled(sampling(), iter(long), slots=4).seconds == 18.0 + 30 * 0.75


def test_a_filling_that_runs_out_is_not_full() -> None:
    """2 rounds of 2 draws and nothing kept."""
    found = filled(sampling(max_rounds=2), alike(5, kept=False), slots=4)
    assert not found.full
    assert (found.draws, found.kept, found.kept_tokens) == (4, 0, 0)


# --- the lockstep oracle ----------------------------------------------------------------------------


@dataclass
class Lockstep:
    """One engine, token by token, straight from the words: slots, draws in order, the cut."""

    config: SamplingConfig
    draws: Sequence[SimDraw]
    decode: Decode
    slots: int
    prompt: float
    grade: float
    clock: float = 0.0
    tokens: int = 0
    waiting: list[tuple[int, int]] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)  # draw, tokens left, tokens sampled
    left: dict[int, int] = field(default_factory=dict)
    prefilled: int = -1
    started: int = 0
    graded: int = 0
    kept: int = 0
    cut: int = 0

    def run(self) -> Lockstep:
        """To the cut."""
        self.start()
        while not self.done() and self.rows:
            self.clock += self.decode.linear(len(self.rows))
            self.clock += self.decode.cached * sum(self.prompt + sampled for _, _, sampled in self.rows)
            for row in self.rows:
                row[1], row[2] = row[1] - 1, row[2] + 1
                self.tokens += 1
            ended = [row for row in self.rows if not row[1]]
            if not ended:
                continue
            self.rows = [row for row in self.rows if row[1]]
            for draw, _, _ in ended:
                self.left[draw] -= 1
            self.admit()
            if self.take():
                self.start()
        return self

    def done(self) -> bool:
        """Full, and no round is open."""
        full = self.kept == self.config.prompts_per_step
        return full and (self.config.schedule == "streaming" or self.graded == self.started)

    def start(self) -> None:
        """New draws, as many as may be."""
        while True:
            most = draws_allowed(self.config, started=self.started, graded=self.graded, kept=self.kept)
            fresh = range(self.started, most)
            self.started = most
            for draw in fresh:
                self.left[draw] = len(self.draws[draw].lengths)
                self.waiting += [(draw, length) for length in self.draws[draw].lengths]
                self.admit()
            self.take()
            if not fresh:
                return

    def admit(self) -> None:
        """Waiting responses into free slots."""
        while self.waiting and len(self.rows) < self.slots:
            draw, length = self.waiting.pop(0)
            if draw != self.prefilled:
                self.prefilled = draw
                self.clock += self.decode.prefill
            self.tokens += 1
            if length == 1:
                self.left[draw] -= 1
            else:
                self.rows.append([draw, length - 1, 1])

    def take(self) -> bool:
        """Grades in draw order."""
        before = self.graded
        while self.graded < self.started and not self.left[self.graded]:
            if self.config.schedule == "streaming" and self.kept == self.config.prompts_per_step:
                break
            self.clock += self.grade * len(self.draws[self.graded].lengths)
            if self.draws[self.graded].kept and self.kept < self.config.prompts_per_step:
                self.kept += 1
                self.cut = self.graded + 1
            self.graded += 1
        return self.graded > before


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    schedule=st.sampled_from(["rounds", "streaming"]),
    wanted=st.integers(1, 5),
    size=st.integers(1, 4),
    window=st.integers(1, 6),
    rounds=st.integers(1, 5),
    slots=st.integers(1, 9),
    longest=st.integers(1, 12),
    rest=st.sampled_from([(0.0, 0.0, 0.0), (0.25, 0.5, 0.0), (0.0, 0.0, 2.0**-6), (0.125, 0.25, 2.0**-6)]),
)
def test_events_are_what_lockstep_gives(
    seed: int,
    schedule: str,
    wanted: int,
    size: int,
    window: int,
    rounds: int,
    slots: int,
    longest: int,
    rest: tuple[float, float, float],
) -> None:
    """The same draws, tokens and clock, for any lengths, outcomes, window and slots."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    draws = [
        SimDraw(tuple(rng.integers(1, longest + 1, size).tolist()), bool(rng.random() < 0.6))
        for _ in range(window * rounds)
    ]
    config = sampling(
        schedule=schedule, prompts_per_step=wanted, responses_per_prompt=size, gen_prompts=window, max_rounds=rounds
    )
    prefill, grade, cached = rest
    decode = Decode(fixed=0.5, row=0.125, cached=cached, prefill=prefill, block=2)
    expected = Lockstep(config, draws, decode, slots, 3.0, grade).run()
    found = filled(config, iter(draws), decode, slots=slots, grade=grade)
    assert found.full == (expected.kept == wanted)
    assert (found.started, found.kept) == (expected.started, expected.kept)
    assert found.draws == (expected.cut if found.full else expected.graded)
    assert found.tokens == expected.tokens
    assert found.seconds == pytest.approx(expected.clock, rel=1e-12)


def test_a_response_of_one_token_frees_its_slot_for_a_prefill_before_it_is_graded() -> None:
    """One slot, two draws, the first of one token: 2 x 0.25 s of prefill and 0.5 s of grading, so 1.0 s."""
    check = test_events_are_what_lockstep_gives.hypothesis.inner_test
    check(674, "streaming", 1, 1, 2, 1, 1, 2, (0.25, 0.5, 0.0))


@settings(max_examples=200, deadline=None)
@given(
    schedule=st.sampled_from(["rounds", "streaming"]),
    rule=st.sampled_from(["correctness", "off"]),
    wanted=st.integers(1, 9),
    window=st.integers(1, 9),
    rounds=st.integers(1, 4),
    data=st.data(),
)
def test_admission_is_the_collectors_own(
    schedule: str, rule: str, wanted: int, window: int, rounds: int, data: st.DataObject
) -> None:
    """plan's copy, which loads no torch, against sampling.draws_allowed."""
    config = sampling(schedule=schedule, filter=rule, prompts_per_step=wanted, gen_prompts=window, max_rounds=rounds)
    started = data.draw(st.integers(0, window * rounds))
    graded = data.draw(st.integers(0, started))
    kept = data.draw(st.integers(0, min(graded, wanted)))
    assert allowed(config, started=started, graded=graded, kept=kept, wanted=wanted) == draws_allowed(
        config, started=started, graded=graded, kept=kept
    )


# --- draws and lengths ------------------------------------------------------------------------------


def test_simulated_draws_have_the_acceptance_of_their_rates() -> None:
    """Uniform pass rates at G = 4: 1 - 2 / 5 = 0.6; 20,000 draws, so a standard error of 0.0035."""
    config = sampling(responses_per_prompt=4)
    source = DrawSource(uniform_rates(), config, Lengths(np.array([1, 3]), ""), None, seed=1)
    draws = [source() for _ in range(20_000)]
    assert np.mean([draw.kept for draw in draws]) == pytest.approx(0.6, abs=5 * 0.0035)
    assert np.mean([draw.lengths for draw in draws]) == pytest.approx(2.0, abs=0.02)


def test_adaptive_groups_are_smaller_where_much_is_right() -> None:
    """round(2 + (8 - 2) (1 - q)) at q = 0 and 1: 8 and 2."""
    config = sampling(responses_per_prompt=8, min_responses_per_prompt=2)
    rates = PassRates(shares=(RateShare(0.5, 0.0), RateShare(0.5, 1.0)), source="")
    source = DrawSource(rates, config, Lengths(np.array([1]), ""), None, seed=0)
    assert {len(source().lengths) for _ in range(100)} == {2, 8}


@pytest.mark.parametrize("mean", [1, 2.5, 100, 299, 300])
@pytest.mark.parametrize("spread", [0, 0.5, 3])
def test_stated_lengths_have_their_mean_after_the_cut(mean: float, spread: float) -> None:
    """Within 1 to the limit."""
    lengths = stated_lengths(mean, spread, 300, "stated")
    assert lengths.mean == pytest.approx(mean, abs=0.01)
    assert lengths.values.min() >= 1
    assert lengths.values.max() <= 300
    assert lengths.mean_square >= lengths.mean**2 * (1 - 1e-12)


def test_lengths_under_another_limit() -> None:
    """A lower limit cuts; under a higher one those that were cut go on, with the chance so far: ended / tokens."""
    lower, note = measured_lengths([2, 4, 8, 8], 8, 5, "run")
    assert lower.values.tolist() == [2, 4, 5, 5]
    assert note == ""
    higher, note = measured_lengths([2, 4, *[8] * 200], 8, 10_000, "run")
    chance = 2 / (2 + 4 + 8 * 200)
    assert higher.values[2:].mean() == pytest.approx(8 + 1 / chance, rel=0.02)
    assert "were cut at 8 tokens" in note
    same, note = measured_lengths([2, 4, 8], 8, 8, "run")
    assert (same.values.tolist(), note) == ([2, 4, 8], "")


# --- schedules --------------------------------------------------------------------------------------


def schedules(training: Training, *, shared: bool, length: int = 11) -> dict[str, tuple[float, float, float]]:
    """(step, engine idle, learner idle) by name: one engine of 4 slots, a filling of 10 s."""
    layout = Layout(gpus=2, ranks=1, engines=1, devices_per_engine=1, shared=shared, note="")
    source = PassRates(shares=(RateShare(1.0, 0.5),), source="")
    lengths = Lengths(np.array([length]), "")
    found = timings(
        sampling(),
        layout,
        STEP,
        4,
        3.0,
        training,
        lambda seed: DrawSource(source, sampling(), lengths, 1.0, seed),
        grade=0.0,
        expected=4,
    )
    return {one.name: (one.step, one.engine_idle, one.learner_idle) for one in found}


def test_taking_turns_adds_and_overlapping_takes_the_longer() -> None:
    """Filling 10 s, training 2 + 1 + 1 = 4 s, sync 1 s: 15 in turns, max(10, 4) + 1 = 11 one step off."""
    found = schedules(Training(logprobs=1, updates=2, sync=1, other=1), shared=False)
    assert found["rounds"] == pytest.approx((15, 1 - 10 / 15, 1 - 4 / 15))
    assert found["streaming"] == found["rounds"]
    assert found["one step off"] == pytest.approx((11, 1 - 10 / 11, 1 - 4 / 11))
    assert found["in flight"] == pytest.approx((11, 1 - 10 / 11, 1 - 4 / 11))


def test_a_slow_learner_sets_the_pace() -> None:
    """Training 30 s: the engine waits 21 of 31 s."""
    found = schedules(Training(logprobs=0, updates=30, sync=1, other=0), shared=False)
    assert found["one step off"] == pytest.approx((31, 21 / 31, 1 / 31))


def test_shared_devices_overlap_nothing() -> None:
    """Neither schedule has a figure."""
    found = schedules(Training(logprobs=0, updates=30, sync=1, other=0), shared=True)
    assert found["rounds"][0] == 41
    assert np.isnan(found["one step off"]).all()
    assert np.isnan(found["in flight"]).all()


def test_whole_blocks() -> None:
    """The block that rows are computed in, at its edges."""
    step = Decode(row=1.0, block=8)
    assert [step.linear(rows) for rows in (1, 8, 9)] == [8 * ceil(rows / 8) for rows in (1, 8, 9)]
