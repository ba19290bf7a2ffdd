"""The streaming schedule, carried surplus and the curriculum: what is kept is a function of the seed, never of time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

import tiny
from dapo.data import PromptStream
from dapo.difficulty import PromptRecord
from dapo.errors import Interrupted, SamplingExhausted
from dapo.grading import GroupGrader
from dapo.ledger import history_after, ledger, totals
from dapo.loop import check_versions
from dapo.reward import Scorer
from dapo.rollout.scripted import Order, Script, ScriptedEngine
from dapo.sampling import Collector, draws_allowed
from dapo.types import Collected, Finish, FinishedDraw, Group, Prompt, TrainState
from test_sampling import EOS, GROUP, by_draw, collect, config, decode, draws, prompts, shuffled, tokens

STREAM = {"sampling__schedule": "streaming"}
CARRY = {"sampling__surplus": "carry", "sampling__max_staleness": 1, "algorithm__importance_cap": 2.0}
N = 3  # prompts per step of most tests here


def longest(waiting: list[FinishedDraw]) -> int:
    """The adversary of draw order: the latest of the longest first."""
    return max(range(len(waiting)), key=lambda i: (sum(r.num_tokens for r in waiting[i].responses), i))


def first_last(waiting: list[FinishedDraw]) -> int:
    """The lowest draw in flight always finishes last."""
    return max(range(len(waiting)), key=lambda i: waiting[i].draw)


ORDERS: list[Order] = ["fifo", "lifo", "shortest", longest, first_last, *(shuffled(seed) for seed in range(8))]


def random_plan(seed: int, size: int = 400) -> str:
    """Right, wrong, mixed and unparsed groups at random."""
    generator = random.Random(seed)
    return "".join(generator.choices("MRWU", [3, 2, 4, 1], k=size))


def by_place(plan: str, seed: int) -> Script:
    """What a prompt gives depends on its place in the stream, its length on everything; informative ones are long."""

    def script(draw: int, prompt: Prompt, g: int) -> list[int]:
        letter = plan[int(prompt.id[1:])]
        kind = ("R" if g == 0 else "W") if letter == "M" else letter
        extra = random.Random(f"{seed} {prompt.id} {g}").randrange(1, 20)
        return tokens(kind, 2 + extra + (20 if letter == "M" else 0))

    return script


def first_informative(plan: str, first: int, count: int) -> list[int]:
    """The oracle: every draw waited for, in order, until enough stand."""
    return [place for place in range(first, len(plan)) if plan[place] == "M"][:count]


def places(groups: Sequence[Group]) -> list[int]:
    """Places in the stream, of prompts named after them."""
    return [int(group.prompt.id[1:]) for group in groups]


# --- the cut --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("window", "plan_seed"), [(1, 0), (2, 1), (3, 2), (7, 3), (40, 4)])
def test_the_kept_groups_are_those_of_waiting_for_every_draw(order: Order, window: int, plan_seed: int) -> None:
    """Whatever finishes first, whatever is in flight: the same draws, lengths and places, step after step."""
    made = config(sampling__prompts_per_step=N, sampling__gen_prompts=window, sampling__max_rounds=100, **STREAM)
    plan = random_plan(plan_seed)
    engine = ScriptedEngine(by_place(plan, plan_seed), order=order)
    state, place = TrainState(), 0
    for _ in range(4):
        got = collect(made, by_draw(""), engine=engine, state=state)
        wanted = first_informative(plan, place, N)
        assert places(got.kept) == wanted
        assert places(got.groups) == list(range(place, wanted[-1] + 1))  # nothing past the cut was even graded
        assert (got.next_place, got.cut) == (wanted[-1] + 1, wanted[-1] + 1 - place)
        state, place = replace(state, next_draw=got.next_draw, next_place=got.next_place), got.next_place
    assert len(set(engine.submitted)) == len(engine.submitted)  # a cancelled prompt comes back under a new index
    with pytest.raises(Exception, match="nothing in flight"):
        engine.poll()


def test_the_order_of_finishing_does_not_matter_at_all() -> None:
    """Everything of the outcome but seconds and tokens in vain is equal, to the response, over all orders."""
    made = config(sampling__prompts_per_step=N, sampling__gen_prompts=5, sampling__max_rounds=50, **STREAM)
    found = []
    for order in ORDERS:
        got = collect(made, by_place(random_plan(9), 9), order=order)
        rows = [[(g.draw, r.text, r.response.token_ids.tolist(), r.score) for r in g.rollouts] for g in got.groups]
        found.append((draws(got.kept), rows, got.cut, got.next_draw, got.next_place, got.cancelled))
    assert all(outcome == found[0] for outcome in found)


@pytest.mark.parametrize("window", [1, 2, 5, 30])
def test_the_window_changes_nothing_that_is_kept(window: int) -> None:
    """gen_prompts is speed alone, as long as max_rounds * gen_prompts, and so the numbering, is the same."""
    made = config(
        sampling__prompts_per_step=N, sampling__gen_prompts=window, sampling__max_rounds=60 // window, **STREAM
    )
    plan = random_plan(5)
    state = TrainState(next_draw=7, next_place=11)
    got = collect(made, by_place(plan, 5), order=shuffled(window), state=state)
    assert places(got.kept) == first_informative(plan, 11, N)
    assert [g.draw - 7 for g in got.kept] == [place - 11 for place in places(got.kept)]
    assert got.next_draw == 67


def test_both_schedules_keep_the_same() -> None:
    """From one place of the stream, rounds and streaming cut the same batch."""
    plan = random_plan(6)
    kept = [
        places(
            collect(
                config(sampling__prompts_per_step=N, sampling__gen_prompts=4, sampling__schedule=schedule),
                by_place(plan, 6),
                order="shortest",
            ).kept
        )
        for schedule in ("rounds", "streaming")
    ]
    assert kept[0] == kept[1] == first_informative(plan, 0, N)


def test_taking_the_first_to_finish_would_be_another_batch() -> None:
    """The trap that the orders above set: the N informative groups that finish first are others, and shorter."""
    plan = random_plan(0)
    script = by_place(plan, 0)
    waiting = [FinishedDraw(draw=d, responses=()) for d in range(40)]
    lengths = {
        d.draw: sum(len(script(d.draw, tiny.prompt([1], name=f"p{d.draw}"), g)) for g in range(GROUP)) for d in waiting
    }
    finished_first = sorted((d for d in lengths if plan[d] == "M"), key=lambda d: lengths[d])[:N]
    wanted = first_informative(plan, 0, N)
    assert sorted(finished_first) != wanted
    assert sum(lengths[d] for d in finished_first) < sum(lengths[d] for d in wanted)


@pytest.mark.parametrize("order", ["fifo", "lifo", "shortest", shuffled(3)])
def test_no_more_than_the_window_is_in_flight(order: Order) -> None:
    """And none once the batch is full; admission is one draw for one grade."""

    class Counting(ScriptedEngine):
        most = 0

        def poll(self) -> list[FinishedDraw]:
            Counting.most = max(Counting.most, len(self._waiting))
            return super().poll()

    Counting.most = 0
    made = config(sampling__prompts_per_step=N, sampling__gen_prompts=4, sampling__max_rounds=50, **STREAM)
    engine = Counting(by_place(random_plan(2), 2), order=order)
    got = collect(made, by_draw(""), engine=engine)
    assert Counting.most == 4
    assert got.cancelled == 3  # cut + window draws were started, the last grade started none
    assert len(engine.submitted) == got.cut + 3


def test_admission_is_a_pure_function_of_counts() -> None:
    """Over every reachable count: never past the cap, never less than started, none once full."""
    for schedule in ("rounds", "streaming"):
        sampling = config(
            sampling__prompts_per_step=2, sampling__gen_prompts=3, sampling__max_rounds=2, sampling__schedule=schedule
        ).sampling
        for started in range(8):
            for graded in range(started + 1):
                for kept in range(graded + 1):
                    allowed = draws_allowed(sampling, started=started, graded=graded, kept=kept)
                    assert allowed >= started
                    if kept >= 2:
                        assert allowed == started
                    if schedule == "streaming":
                        assert allowed == max(started, min(graded + 3, 6)) or kept >= 2


def test_filter_off_starts_exactly_what_it_needs() -> None:
    """Every draw is kept, so a wider window would only be thrown away."""
    engine = ScriptedEngine(by_draw("W"), order="lifo")
    made = config(sampling__filter="off", sampling__gen_prompts=50, **STREAM)
    got = collect(made, by_draw(""), engine=engine)
    assert (draws(got.kept), engine.submitted, got.cancelled) == ([0, 1], [0, 1], 0)


# --- exhaustion -----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fifo", "lifo", shuffled(1)])
def test_the_bound_of_streaming(order: Order) -> None:
    """D2: max_rounds * gen_prompts draws, then on_exhausted; all of them are graded, whatever their order."""
    made = config(sampling__gen_prompts=2, sampling__max_rounds=3, **STREAM)
    engine = ScriptedEngine(by_draw("RWRWMW"), order=order)
    with pytest.raises(
        SamplingExhausted, match=r"kept 1 of 2 groups out of 6 draws \(2 all right, 3 all wrong\): 6 draws"
    ):
        collect(made, by_draw(""), engine=engine)
    assert engine.submitted == list(range(6))


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
def test_an_exhausted_filling_goes_on_where_it_stopped(schedule: str) -> None:
    """D3: what was kept is kept. With a higher bound the rest is drawn, and nothing twice."""
    words: dict[str, Any] = {"sampling__gen_prompts": 2, "sampling__schedule": schedule}
    plan = "RWMWWWWRMW"
    engine = ScriptedEngine(by_place(plan, 0), order="lifo")
    made = config(sampling__max_rounds=2, sampling__on_exhausted="train_short", **words)
    first = collect(made, by_draw(""), engine=engine)
    assert places(first.kept) == [2]
    state = TrainState(
        next_draw=first.next_draw,
        next_place=first.next_place,
        carried=first.groups,
        unfinished=first.unfinished,
    )
    again = collect(made, by_draw(""), engine=engine, state=state)  # the same bound: the same end, no new draws
    assert (places(again.kept), len(engine.submitted)) == ([2], 4)
    higher = config(sampling__max_rounds=5, **words)
    got = collect(higher, by_draw(""), engine=engine, state=state)
    assert places(got.kept) == [2, 8]
    assert places(got.taken) == list(range(9))
    assert len(set(engine.submitted)) == len(engine.submitted)


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
def test_data_that_end_go_on_with_the_next_epoch(schedule: str) -> None:
    """repeat = true: mid-fill the stream starts again; what was kept before the end stays."""
    everything = [[tiny.prompt([1], name=f"p{i}") for i in range(5)]]
    stream = PromptStream(everything, seed=0, shuffle=False)
    made = config(sampling__prompts_per_step=4, sampling__gen_prompts=2, sampling__schedule=schedule)
    got = collect(made, by_draw("WMWMWMWM"), source=stream.prompt, order="lifo")
    assert [(g.draw, g.prompt.id) for g in got.kept] == [(1, "p1"), (3, "p3"), (5, "p0"), (7, "p2")]


def test_data_that_end_stop_streaming() -> None:
    """repeat = false: the end is waited for, and on_exhausted decides."""
    stream = PromptStream([[tiny.prompt([1], name=f"p{i}") for i in range(5)]], seed=0, shuffle=False, repeat=False)
    made = config(sampling__on_exhausted="train_short", sampling__gen_prompts=3, **STREAM)
    got = collect(made, by_draw("WWMWW"), source=stream.prompt, order="lifo")
    assert (draws(got.kept), draws(got.groups), got.next_place) == ([2], [0, 1, 2, 3, 4], 5)
    assert "the data ended" in got.short


# --- engines that fail, signals -------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
@pytest.mark.parametrize("order", ["fifo", "lifo", shuffled(5)])
def test_aborted_draws_change_nothing(schedule: str, order: Order) -> None:
    """Failure goes with length: whatever aborts, and however often, the kept groups are the same; it is counted."""
    plan, tries = random_plan(3), {}
    inner = by_place(plan, 3)

    def script(draw: int, prompt: Prompt, g: int) -> tuple[list[int], Finish]:
        found = inner(draw, prompt, g)
        assert isinstance(found, list)
        attempt = tries[draw, g] = tries.get((draw, g), 0) + 1
        aborts = len(found) > 25 and attempt <= 2
        return (found[:3], Finish.ABORT) if aborts else (found, Finish.STOP)

    made = config(sampling__prompts_per_step=N, sampling__gen_prompts=4, sampling__schedule=schedule)
    got = collect(made, script, order=order)
    assert places(got.kept) == first_informative(plan, 0, N)
    assert got.failures > 0
    assert got.lost_tokens > 0
    account = ledger(got, TrainState(), made)
    assert account["sampling/engine_failures"] == got.failures


class Raising(ScriptedEngine):
    """An engine that raises now and then, in poll and in submit."""

    def __init__(self, script: Script, failing: Callable[[str, int], bool], **named: Any) -> None:
        super().__init__(script, **named)
        self.failing, self.calls = failing, {"poll": 0, "submit": 0}

    def _maybe(self, what: str) -> None:
        self.calls[what] += 1
        if self.failing(what, self.calls[what]):
            raise RuntimeError("a request was lost")

    def submit(self, draw: int, prompt: Prompt, params: Any) -> None:
        self._maybe("submit")
        super().submit(draw, prompt, params)

    def poll(self) -> list[FinishedDraw]:
        self._maybe("poll")
        return super().poll()


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
@pytest.mark.parametrize("what", ["poll", "submit"])
def test_an_engine_that_raises_is_asked_again(schedule: str, what: str) -> None:
    """Every draw in flight is run again under its own index: the kept groups are the same, the failures counted."""
    plan = random_plan(4)
    made = config(sampling__prompts_per_step=N, sampling__gen_prompts=4, sampling__schedule=schedule)
    engine = Raising(by_place(plan, 4), lambda kind, call: kind == what and call % 5 == 3, order="lifo")
    got = collect(made, by_draw(""), engine=engine)
    assert places(got.kept) == first_informative(plan, 0, N)
    assert got.failures > 0


@pytest.mark.parametrize("what", ["poll", "submit"])
@pytest.mark.parametrize("reruns", [0, 2])
def test_an_engine_that_keeps_raising_stops_the_run(what: str, reruns: int) -> None:
    """After engine.reruns failures in a row, with the engine's own message; not for ever."""
    made = config(engine__reruns=reruns, **STREAM)
    engine = Raising(by_draw("M"), lambda kind, call: kind == what)
    with pytest.raises(Exception, match=rf"failed {reruns + 1} times in a row.*a request was lost"):
        collect(made, by_draw(""), engine=engine)


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
@pytest.mark.parametrize("polls", [0, 1, 3])
def test_a_signal_gives_the_filling_up(schedule: str, polls: int) -> None:
    """Nothing stays in flight, and sampling again from the same state gives what it would have given."""
    made = config(sampling__prompts_per_step=N, sampling__gen_prompts=4, sampling__schedule=schedule)
    engine = ScriptedEngine(by_place(random_plan(7), 7), order="lifo")
    grader = GroupGrader(made, Scorer(made.reward).score, decode, [EOS])
    collector = Collector(made, engine, grader, prompts)
    seen: list[int] = []

    def stopped() -> bool:
        seen.append(1)
        return len(seen) > polls

    with pytest.raises(Interrupted):
        collector.collect(TrainState(), stopped)
    with pytest.raises(Exception, match="nothing in flight"):
        engine.poll()
    assert places(collector.collect(TrainState()).kept) == first_informative(random_plan(7), 0, N)


def test_reward_errors_are_counted_per_block() -> None:
    """Streaming has no rounds: every gen_prompts graded draws, and the last so many, are looked at."""
    made = config(reward__max_error_fraction=0.5, sampling__gen_prompts=2, sampling__prompts_per_step=N, **STREAM)
    grader: Any = GroupGrader(made, Scorer(made.reward).score, decode, [EOS])
    right = grader.group

    def failing(finished: FinishedDraw, prompt: Prompt) -> Group:
        group = right(finished, prompt)
        if finished.draw < 2:
            return group
        bad = [replace(r, score=replace(r.score, verdict=type(r.score.verdict).ERROR)) for r in group.rollouts]
        return replace(group, rollouts=tuple(bad))

    grader.group = failing
    with pytest.raises(Exception, match="8 of 8 scores of a round failed"):
        Collector(made, ScriptedEngine(by_draw("W")), grader, prompts).collect(TrainState())


# --- carry ----------------------------------------------------------------------------------------


def steps(made: Any, plan: str, order: Order, count: int, seed: int = 0) -> list[tuple[TrainState, Collected]]:
    """So many steps in a row, versions going up by one."""
    engine = ScriptedEngine(by_place(plan, seed), order=order)
    state, done = TrainState(), []
    for step in range(count):
        engine.load_weights(step, [])
        state = replace(state, step=step, version=step)
        got = collect(made, by_draw(""), engine=engine, state=state)
        done.append((state, got))
        state = replace(state, next_draw=got.next_draw, next_place=got.next_place, carried=got.left)
    return done


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
@pytest.mark.parametrize("staleness", [1, 2, 3])
@pytest.mark.parametrize("window", [2, 5, 25])
def test_carried_groups_wait_in_draw_order_and_never_too_long(schedule: str, staleness: int, window: int) -> None:
    """Every draw is looked at once, in the order of the stream; no token is older than max_staleness versions."""
    words = CARRY | {"sampling__max_staleness": staleness}
    made = config(
        sampling__prompts_per_step=2,
        sampling__gen_prompts=window,
        sampling__max_rounds=100,
        sampling__schedule=schedule,
        **words,
    )
    plan = random_plan(window)
    runs = [steps(made, plan, order, 8, window) for order in ("fifo", "lifo", "shortest", longest)]
    for run in runs:
        looked_at: list[int] = []
        for state, got in run:
            check_versions(got.kept, state.version, staleness)
            assert len(got.kept) == 2
            assert got.carried <= 2 * staleness
            assert got.carried_in == len(state.carried)
            looked_at += places(got.taken)
            if schedule == "streaming":
                assert not got.surplus
        if schedule == "streaming":  # nothing is skipped, nothing comes twice
            assert looked_at == list(range(len(looked_at)))
            assert [p for _, got in run for p in places(got.kept)] == first_informative(plan, 0, 16)
        assert looked_at == sorted(looked_at)
    outcomes = [[(draws(got.kept), draws(got.left), got.next_draw, got.next_place) for _, got in run] for run in runs]
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_carry_by_hand() -> None:
    """N = 2, window 4, K = 2. M at draw 2; 3 and 4 are finished, 5 is cancelled. Then 3, 4, new draws."""
    made = config(sampling__gen_prompts=4, **STREAM, **CARRY)
    (_, first), (state, second) = steps(made, "MWMWMWWMW" + "W" * 400, "lifo", 2)
    assert (places(first.kept), places(first.left), first.cancelled) == ([0, 2], [3, 4], 1)
    assert (first.next_place, first.next_draw) == (5, 40)
    assert (places(second.kept), second.carried_in) == ([4, 7], 2)
    assert [g.rollouts[0].response.token_versions[0][0] for g in second.kept] == [0, 1]
    account = ledger(second, state, made)
    stale = sum(r.response.num_tokens for r in second.kept[0].rollouts)
    fresh = sum(r.response.num_tokens for r in second.kept[1].rollouts)
    assert account["staleness/max_versions"] == 1
    assert account["staleness/mean_versions"] == pytest.approx(stale / (stale + fresh))


def test_a_step_may_live_on_carried_groups_alone() -> None:
    """Then it draws nothing, and what is left of the queue stays in order."""
    made = config(
        sampling__prompts_per_step=2, sampling__gen_prompts=9, **STREAM, **CARRY | {"sampling__max_staleness": 2}
    )
    run = steps(made, "M" * 400, "shortest", 4)
    assert [places(got.kept) for _, got in run] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [got.carried for _, got in run] == [4, 2, 0, 4]
    assert [len(got.groups) - got.carried_in for _, got in run] == [6, 0, 0, 6]


def test_tokens_balance_to_the_last_one() -> None:
    """generated + carried_in = kept + wasted + carried, and what the engine sampled is what is accounted for."""
    for schedule in ("rounds", "streaming"):
        for surplus in ({}, CARRY):
            made = config(
                sampling__prompts_per_step=2,
                sampling__gen_prompts=5,
                sampling__max_rounds=50,
                sampling__schedule=schedule,
                **surplus,
            )
            sampled: list[int] = []
            plan = random_plan(8)
            inner = by_place(plan, 8)

            def script(draw: int, prompt: Prompt, g: int, inner: Script = inner, sampled: list[int] = sampled) -> Any:
                found = inner(draw, prompt, g)
                sampled.append(len(found))
                return found

            engine = ScriptedEngine(script, order="shortest")
            state, sums, carried = TrainState(), {}, 0.0
            for step in range(5):
                sampled.clear()
                state = replace(state, step=step, version=step)
                engine.load_weights(step, [])
                got = collect(made, by_draw(""), engine=engine, state=state)
                account = ledger(got, state, made)
                assert account["tokens/generated"] == sum(sampled)
                assert account["tokens/carried_in"] == carried
                carried = account["tokens/carried"]
                balance = account["tokens/kept"] + account["tokens/wasted"] + carried
                assert account["tokens/generated"] + account["tokens/carried_in"] == balance
                sums = totals(sums, account)
                state = replace(state, next_draw=got.next_draw, next_place=got.next_place, carried=got.left)
            assert sums["total/kept"] == 10
            assert sums["total/tokens_generated"] >= sums["total/tokens_kept"] + sums["total/tokens_wasted"]


# --- curriculum, history --------------------------------------------------------------------------


def solved(times: int, step: int) -> PromptRecord:
    """A prompt solved so often in a row, last at that step."""
    return PromptRecord(draws=times, responses=4 * times, right=4 * times, solved_in_a_row=times, last_step=step)


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
def test_solved_prompts_rest_and_are_counted(schedule: str) -> None:
    """Skipped while they rest, drawn again after; skipping is by earlier steps alone."""
    made = config(
        sampling__skip_solved_after=2,
        sampling__skip_solved_steps=3,
        sampling__gen_prompts=2,
        sampling__schedule=schedule,
    )
    history = {"p0": solved(2, 1), "p2": solved(1, 1), "p3": solved(5, 1)}
    state = TrainState(step=1, history=history)
    got = collect(made, by_draw("M"), state=state)
    assert places(got.kept) == [1, 2]
    assert (got.skipped, got.next_place) == (1, 3)
    after = replace(state, next_draw=got.next_draw, next_place=got.next_place)
    assert places(collect(made, by_draw("M"), state=after).kept) == [4, 5]
    assert places(collect(made, by_draw("M"), state=TrainState(step=4, history=history)).kept) == [0, 1]
    assert places(collect(config(), by_draw("M"), state=state).kept) == [0, 1]  # off by default


def test_when_every_prompt_rests_it_says_so() -> None:
    """Not an endless loop over the data."""
    made = config(sampling__skip_solved_after=1)
    stream = PromptStream([[tiny.prompt([1], name=f"p{i}") for i in range(3)]], seed=0)
    state = TrainState(step=1, history={f"p{i}": solved(1, 1) for i in range(3)})
    with pytest.raises(SamplingExhausted, match="skipped as solved"):
        collect(made, by_draw("M"), source=stream.prompt, state=state)


def test_the_only_prompt_left_is_found() -> None:
    """999 solved prompts in a row are no reason to give up."""
    made = config(sampling__skip_solved_after=1, sampling__prompts_per_step=1, sampling__gen_prompts=1)
    history = {f"p{i}": solved(1, 1) for i in range(999)}
    got = collect(made, by_draw("M"), state=TrainState(step=1, history=history))
    assert (places(got.kept), got.skipped, got.next_place) == ([999], 999, 1000)


def test_history_holds_what_was_looked_at_once() -> None:
    """Draws up to the cut and graded surplus; carried groups count in the step that takes them."""
    made = config(sampling__gen_prompts=6, **STREAM, **CARRY)
    run = steps(made, "RMWMWRMMWW" + "W" * 400, "lifo", 2)
    history = history_after({}, run[0][1], 1)
    assert {name: (r.draws, r.right, r.solved_in_a_row, r.last_step) for name, r in history.items()} == {
        "p0": (1, 4, 1, 1),
        "p1": (1, 1, 0, 1),
        "p2": (1, 0, 0, 1),
        "p3": (1, 1, 0, 1),
    }
    later = history_after(history, run[1][1], 2)
    assert later["p4"].last_step == 2
    assert sum(record.draws for record in later.values()) == run[0][1].cut + run[1][1].cut


def test_bands_come_from_earlier_draws_never_from_the_group_itself() -> None:
    """Turning the judged groups around moves no band; an earlier record or a rating does."""
    made = config(sampling__prompts_per_step=2, sampling__gen_prompts=4)
    hard = PromptRecord(draws=1, responses=4, right=1, last_step=1)
    state = TrainState(step=1, history={"p0": hard, "p1": hard, "p2": PromptRecord(draws=1, responses=4, right=4)})
    accounts = []
    for plan in ("MRMM", "MWMM"):
        got = collect(made, by_draw(plan), state=state)
        accounts.append(ledger(got, state, made))
    for account in accounts:
        assert {k: v for k, v in account.items() if k.startswith("difficulty/")} == {
            "difficulty/hard_draws": 2,
            "difficulty/hard_acceptance": 0.5,
        }
        assert account["sampling/predictable_acceptance"] == 0.5
        assert account["sampling/predicted_acceptance"] == 1.0  # both had a right and a wrong response
    rated = replace(tiny.prompt([1], name="p9"), rating=0.9)
    got = collect(made, by_draw("MMMM"), source=lambda index: rated)
    account = ledger(got, TrainState(), made)
    assert account["difficulty/easy_draws"] == 1
    assert account["sampling/predicted_acceptance"] == pytest.approx(1 - 0.9**4 - 0.1**4)


def test_acceptance_counts_every_draw_when_it_did_not_stop_at_a_success() -> None:
    """Short: 1 of 6 draws, the ones after the last kept group included."""
    made = config(sampling__on_exhausted="train_short", sampling__max_rounds=3, sampling__gen_prompts=2)
    account = ledger(collect(made, by_draw("WMWWWW")), TrainState(), made)
    assert (account["sampling/draws"], account["sampling/acceptance"]) == (6, 1 / 6)
    assert not math.isnan(account["shift/total_variation"])
