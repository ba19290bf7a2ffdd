"""What mutation testing found unwatched: bounds, counts and order in sampling, the ledger, saving and resuming."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tiny
from dapo import loop
from dapo.difficulty import PromptRecord
from dapo.errors import (
    ConfigError,
    DapoError,
    EngineError,
    Interrupted,
    NonFiniteGradients,
    RewardError,
    SaveFailed,
    Stopped,
    UserError,
)
from dapo.flight import Flight
from dapo.ledger import history_after, ledger, totals
from dapo.provenance import check_carried, check_nothing_lost
from dapo.run import checkpoint
from dapo.run.directory import RunDirectory
from dapo.run.trackers import Trackers
from dapo.sampling import UNFINISHED, Collected, draws_allowed, rollout_params
from dapo.types import Batch, Finish, FinishedDraw, Group, Pending, Prompt, TrainState
from test_checkpoint import FakeLearner, content, save, steps_of
from test_sampling import by_draw, collect, config, draws, prompts
from test_saver import Slow, a_batch, saver, until_over
from test_streaming import CARRY, STREAM, solved, steps

# --- draws in flight --------------------------------------------------------------------------------


class Fake:
    """An engine whose answers are given beforehand: draws, or an error to raise."""

    def __init__(self, polls: Sequence[Any] = (), refuse: Sequence[Exception] = ()) -> None:
        self.polls, self.refuse = list(polls), list(refuse)
        self.asked: list[int] = []
        self.cancelled: list[list[int]] = []

    def submit(self, draw: int, prompt: Prompt, params: Any) -> None:
        """Noted; refused while there are errors left."""
        self.asked.append(draw)
        if self.refuse:
            raise self.refuse.pop(0)

    def poll(self) -> list[FinishedDraw]:
        """The next answer."""
        answer = self.polls.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [done(draw, Finish.STOP if draw >= 0 else Finish.ABORT) for draw in answer]

    def cancel(self, gone: list[int]) -> int:
        """Three tokens a draw."""
        self.cancelled.append(list(gone))
        return 3 * len(gone)


def done(draw: int, last: Finish) -> FinishedDraw:
    """A draw of four responses of two tokens; of -d the last response of d was aborted."""
    (group,) = collect(config(sampling__prompts_per_step=1), by_draw("M")).groups
    responses = [rollout.response for rollout in group.rollouts]
    return FinishedDraw(draw=abs(draw), responses=(*responses[:3], replace(responses[3], finish=last)))


def flight(engine: Any, reruns: int = 2, submit: Sequence[int] = (2, 1)) -> Flight:
    """Draws 2 and 1, started in that order."""
    made = Flight(engine, rollout_params(config()), reruns)
    for draw in submit:
        made.submit(draw, tiny.prompt([1]))
    return made


def test_a_draw_may_abort_as_often_as_it_may_be_run_again() -> None:
    """engine.reruns = 2: the third abort of one draw stops; each is counted, with the tokens it cost."""
    made = flight(Fake([[-1], [-1, -2], [1]]))
    assert [made.poll(), made.poll()] == [[], []]
    assert [draw.draw for draw in made.poll()] == [1]
    assert (made.failures, made.lost_tokens, len(made)) == (3, 3 * 8, 1)
    made = flight(Fake([[-1], [-1], [-1]]))
    assert [made.poll(), made.poll()] == [[], []]
    with pytest.raises(EngineError, match="aborted draw 1 3 times"):
        made.poll()


def test_polls_that_raise_count_in_a_row() -> None:
    """A finished draw ends the row, an empty poll does not. Draws in flight start anew, in draw order."""
    lost = RuntimeError("lost")
    engine = Fake([lost, [], lost, [2], lost, lost, [1]])
    made = flight(engine, submit=(2, 1, 3))
    got = [[draw.draw for draw in made.poll()] for _ in range(7)]
    assert got == [[], [], [], [2], [], [], [1]]
    assert engine.asked == [2, 1, 3, 1, 2, 3, 1, 2, 3, 1, 3, 1, 3]
    assert [sorted(gone) for gone in engine.cancelled] == [[1, 2, 3], [1, 2, 3], [1, 3], [1, 3]]
    assert (made.failures, made.lost_tokens) == (4, 30)
    made = flight(Fake([lost, [], lost, [], lost]))
    with pytest.raises(EngineError, match="failed 3 times in a row"):
        [made.poll() for _ in range(5)]


def test_a_refused_draw_is_submitted_again() -> None:
    """After the engine was told to forget it; reruns + 1 times in all."""
    engine = Fake(refuse=[RuntimeError("full")] * 2)
    made = flight(engine, submit=[4])
    assert (engine.asked, engine.cancelled, made.failures, len(made)) == ([4] * 3, [[4]] * 2, 2, 1)
    engine = Fake(refuse=[RuntimeError("full")] * 9)
    with pytest.raises(EngineError, match="RuntimeError: full"):
        flight(engine, submit=[4])
    assert engine.asked == [4] * 3


def test_errors_on_purpose_are_not_engine_failures() -> None:
    """A user's mistake or a signal goes through at once; an EngineError keeps its own words."""
    with pytest.raises(Interrupted, match="asked"):
        flight(Fake([Interrupted("asked")])).poll()
    with pytest.raises(EngineError, match="^broken$"):
        flight(Fake([EngineError("broken")]), reruns=0).poll()


def test_cancel_forgets_whatever_the_engine_says() -> None:
    """An engine that can't cancel is logged; nothing to cancel is not asked."""
    engine: Any = Fake()
    made = flight(engine)
    engine.cancel = lambda gone: 1 / 0
    made.cancel()
    assert len(made) == 0
    made.cancel()


# --- admission, the cut -----------------------------------------------------------------------------


def test_admission_by_rounds() -> None:
    """The next round when all is graded and the bound (6) is not reached; streaming never takes draws back."""
    sampling = config(sampling__gen_prompts=3, sampling__max_rounds=2).sampling
    asked = [(0, 0, 0), (3, 2, 0), (3, 3, 1), (3, 3, 2), (5, 5, 0), (6, 6, 0), (7, 7, 0)]
    got = [draws_allowed(sampling, started=s, graded=g, kept=k) for s, g, k in asked]
    assert got == [3, 3, 6, 3, 8, 6, 7]
    streaming = config(sampling__gen_prompts=3, sampling__max_rounds=2, **STREAM).sampling
    assert [draws_allowed(streaming, started=s, graded=g, kept=0) for s, g in [(9, 0), (9, 9), (3, 1)]] == [9, 9, 4]


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
def test_the_account_of_an_exhausted_filling_goes_on(schedule: str) -> None:
    """Everything it had counted is in the account of the filling that finishes it."""
    made = config(sampling__gen_prompts=2, sampling__schedule=schedule, sampling__skip_solved_after=1)
    before = {name: 100.0 * (place + 1) for place, name in enumerate(UNFINISHED)}
    state = TrainState(step=1, history={"p0": solved(1, 1)})
    plain = collect(made, by_draw("M"), state=state)
    got = collect(made, by_draw("M"), state=replace(state, unfinished=before))
    assert got.carried_in == 100
    for name in ("skipped", "failures", "lost_tokens", "rounds"):
        assert getattr(got, name) == before[name] + getattr(plain, name)
    assert (got.rollout_seconds, got.grade_seconds) == (pytest.approx(600, abs=5), pytest.approx(700, abs=5))
    assert got.unfinished.keys() == before.keys()


def test_cancelled_draws_that_had_finished_are_counted_with_their_tokens() -> None:
    """Window 4, draw 0 last: 1 to 3 are finished when the batch of one is full with draw 0."""
    made = config(sampling__prompts_per_step=1, sampling__gen_prompts=4, **STREAM)
    got = collect(made, by_draw("M", lambda draw, g: 10 + draw), order="lifo")
    assert (draws(got.groups), got.cancelled, got.lost_tokens) == ([0], 3, 4 * (11 + 12 + 13))


def test_many_solved_prompts_in_a_row_are_skipped() -> None:
    """A thousand at least, before it says that all of them rest."""
    made = config(sampling__prompts_per_step=1, sampling__skip_solved_after=1, sampling__skip_solved_steps=9)
    state = TrainState(step=1, history={f"p{i}": solved(1, 1) for i in range(999)})
    got = collect(made, by_draw("M"), state=state)
    assert (got.groups[0].prompt.id, got.skipped, got.next_place) == ("p999", 999, 1000)


def failing(group: Group, count: int) -> Group:
    """A group whose first scores failed."""
    rollouts = [
        replace(r, score=replace(r.score, verdict=type(r.score.verdict).ERROR)) if place < count else r
        for place, r in enumerate(group.rollouts)
    ]
    return replace(group, rollouts=tuple(rollouts))


def test_reward_errors_are_of_the_last_block_alone() -> None:
    """Windows of 2: four failures of eight are too many even behind good ones; carried ones count too."""
    made = config(sampling__gen_prompts=2, reward__max_error_fraction=0.25, **STREAM, **CARRY)
    good = collect(made, by_draw("WWWMM")).groups
    carried = (*good[:2], failing(good[2], 2), failing(good[3], 1))
    with pytest.raises(RewardError, match="3 of 8 scores"):
        collect(made, by_draw("M"), state=TrainState(carried=carried, next_draw=9, next_place=9))
    fine = (*good[:2], failing(good[2], 2), good[3])
    assert len(collect(made, by_draw("M"), state=TrainState(carried=fine, next_draw=9, next_place=9)).kept) == 2
    with pytest.raises(RewardError, match="3 of 8 scores"):  # in the last, incomplete block
        collect(made, by_draw("M"), state=TrainState(carried=(good[0], *carried[2:], good[4]), next_draw=9))


# --- the ledger -------------------------------------------------------------------------------------


def test_the_ledger_of_carried_groups() -> None:
    """Seconds go to this filling's own tokens; a version without tokens is not stale; parts may be missing."""
    made = config(sampling__gen_prompts=4, **STREAM, **CARRY)
    (_, first), (state, second) = steps(made, "MWMWMWWMMM" + "W" * 400, "fifo", 2)
    second = replace(second, rollout_seconds=100.0)
    account = ledger(second, state, made)
    new = [group for group in second.groups if group not in first.left]
    size = {group.draw: sum(r.response.num_tokens for r in group.rollouts) for group in second.groups}
    share = 100 / (sum(size[g.draw] for g in new) + second.lost_tokens)
    kept = sum(size[g.draw] for g in second.kept if g in new)
    carried = sum(size[g.draw] for g in second.left if g in new)
    assert second.carried_in == 2
    assert carried > 0
    assert 0 < kept < sum(size[g.draw] for g in second.kept)
    assert account["time/rollout_kept_s"] == pytest.approx(kept * share)
    assert account["time/rollout_wasted_s"] == pytest.approx(100 - (kept + carried) * share)
    assert (account["sampling/carried_in_draws"], account["sampling/carried_draws"]) == (2, second.carried)
    assert "sampling/rounds" not in account

    (rollout, *others) = second.kept[0].rollouts
    odd = replace(rollout, response=replace(rollout.response, token_versions=((-9, 0), (1, rollout.response.num_tokens))))
    odd = replace(odd, score=replace(odd.score, parts={"bonus": 2.0}))
    group = replace(second.kept[0], rollouts=(odd, *others))
    account = ledger(replace(second, kept=(group,)), state, made)
    assert account["staleness/max_versions"] == 1
    assert account["kept/reward_bonus_mean"] == 0.5  # 2 of one of four
    assert totals({"total/draws": 7.0}, account)["total/draws"] == 7 + account["sampling/draws"]


def test_one_kept_of_a_short_filling_has_an_acceptance() -> None:
    """1 of 2 rounds of 2 draws; the last draw is judged too. Surplus is part of the history, carried is not."""
    made = config(sampling__on_exhausted="train_short", sampling__max_rounds=2)
    got = collect(made, by_draw("WWMW"))
    account = ledger(got, TrainState(), made)
    assert (account["sampling/acceptance"], account["difficulty/unseen_draws"]) == (0.25, 4)
    surplus = collect(config(sampling__gen_prompts=4), by_draw("MMRW"))
    assert sorted(history_after({}, surplus, 1)) == ["p0", "p1", "p2", "p3"]
    ungraded = replace(surplus, groups=tuple(unjudged(group) for group in surplus.groups))
    known = {"p9": PromptRecord()}
    assert history_after(known, ungraded, 1) is known


def unjudged(group: Group) -> Group:
    """A group without a notion of correctness."""
    return replace(group, rollouts=tuple(replace(r, score=replace(r.score, correct=None)) for r in group.rollouts))
