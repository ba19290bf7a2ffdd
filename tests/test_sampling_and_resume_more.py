"""What mutation testing found unwatched: bounds, counts and order in sampling, the ledger, saving and resuming."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

import helpers_run as helpers
import tiny
from dapo import loop, sampling, stopping
from dapo.config.schema import CheckpointConfig
from dapo.errors import (
    DapoError,
    EngineError,
    Interrupted,
    LearnerLost,
    RewardError,
    SamplingExhausted,
    SaveFailed,
    Stopped,
    UserError,
)
from dapo.flight import Flight
from dapo.ledger import history_after, ledger
from dapo.provenance import check_carried, check_nothing_lost
from dapo.run import checkpoint
from dapo.run.directory import RunDirectory
from dapo.run.trackers import FunctionTracker, Trackers
from dapo.sampling import rollout_params
from dapo.types import UNFINISHED, Finish, FinishedDraw, Group, Pending, Prompt, TrainState, Verdict
from test_checkpoint import FakeLearner, content, save, steps_of
from test_sampling import by_draw, collect, config, tokens
from test_saver import Slow, saver, until_over
from test_streaming import CARRY, STREAM, solved, steps


class Fake:
    """An engine whose answers are given beforehand: draws, or an error to raise."""

    def __init__(self, polls: Sequence[Any] = (), refuse: Sequence[Exception] = ()) -> None:
        self.polls, self.refuse = list(polls), list(refuse)
        self.asked: list[int] = []
        self.cancelled: list[list[int]] = []

    def submit(self, draw: int, prompt: Prompt, params: Any) -> None:
        self.asked.append(draw)
        if self.refuse:
            raise self.refuse.pop(0)

    def poll(self) -> list[FinishedDraw]:
        answer = self.polls.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [done(draw, Finish.STOP if draw >= 0 else Finish.ABORT) for draw in answer]

    def cancel(self, gone: list[int]) -> int:
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
    assert [len(made.poll()) for _ in range(3)] == [0, 0, 1]
    assert (made.failures, made.lost_tokens, len(made)) == (3, 3 * 8, 1)
    made = flight(Fake([[-1], [-1], [-1]]))
    with pytest.raises(EngineError, match="aborted draw 1 3 times"):
        [made.poll() for _ in range(3)]


def test_polls_that_raise_count_in_a_row() -> None:
    """A finished draw ends the row, an empty poll does not. Draws in flight start anew, in draw order."""
    lost = RuntimeError("lost")
    engine = Fake([lost, [], lost, [2], lost, lost, [1]])
    made = flight(engine, submit=(2, 1, 3))
    assert [[draw.draw for draw in made.poll()] for _ in range(7)] == [[], [], [], [2], [], [], [1]]
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
    with pytest.raises(EngineError, match="RuntimeError: full"):
        flight(Fake(refuse=[RuntimeError("full")] * 3))


def test_errors_on_purpose_are_not_engine_failures() -> None:
    """A user's mistake or a signal goes through at once; an EngineError keeps its own words."""
    with pytest.raises(Interrupted, match="asked"):
        flight(Fake([Interrupted("asked")])).poll()
    with pytest.raises(EngineError, match=r"^broken$"):
        flight(Fake([EngineError("broken")]), reruns=0).poll()
    engine: Any = Fake()
    made = flight(engine)
    engine.cancel = lambda gone: engine.missing  # an engine that can't cancel either
    made.cancel()
    assert len(made) == 0


def test_grading_is_no_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that ticks once a look: 0 and 5 around two gradings of one tick each."""
    monkeypatch.setattr(sampling, "time", SimpleNamespace(perf_counter=iter(range(99)).__next__))
    got = collect(config(), by_draw("M"))
    assert (got.rollout_seconds, got.grade_seconds) == (3, 2)


def test_the_placebo_is_dealt_anew_in_every_round() -> None:
    """The same answers in another round go to other responses."""
    made = config(sampling__gen_prompts=8, reward__placebo=True)
    dealt = [collect(made, lambda d, prompt, g: tokens("RW"[d % 8 > 3]), first=first) for first in (0, 8)]
    flags = [[[r.score.correct for r in group.rollouts] for group in got.groups] for got in dealt]
    assert flags[0] != flags[1]


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
def test_the_account_of_an_exhausted_filling_goes_on(schedule: str) -> None:
    """Everything it had counted is in the account of the filling that finishes it."""
    made = config(sampling__gen_prompts=2, sampling__schedule=schedule, sampling__skip_solved_after=1)
    before = {name: 100.0 * (place + 1) for place, name in enumerate(UNFINISHED)}
    state = TrainState(step=1, history={"p0": solved(1, 1)})
    plain = collect(made, by_draw("M"), state=state)
    got = collect(made, by_draw("M"), state=replace(state, unfinished=before))
    for name in ("skipped", "failures", "lost_tokens", "rounds"):
        assert getattr(got, name) == before[name] + getattr(plain, name)
    assert (got.carried_in, got.rollout_seconds, got.grade_seconds) == pytest.approx((100, 600, 700), abs=5)


def failing(group: Group, count: int) -> Group:
    """A group whose first scores failed."""
    bad = [replace(r, score=replace(r.score, verdict=Verdict.ERROR)) for r in group.rollouts[:count]]
    return replace(group, rollouts=(*bad, *group.rollouts[count:]))


def test_reward_errors_of_a_block_that_is_not_whole() -> None:
    """Windows of 2, three groups: three failures among the last eight scores, of which two were looked at before."""
    words = {"sampling__prompts_per_step": 1, "sampling__gen_prompts": 2, "reward__max_error_fraction": 0.25}
    wrong, mixed, *_ = collect(config(), by_draw("WMM")).groups
    state = TrainState(carried=(wrong, failing(wrong, 2), failing(mixed, 1)))
    with pytest.raises(RewardError, match="3 of 8 scores"):
        collect(config(**words, **STREAM, **CARRY), by_draw("M"), state=state)


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
    assert 0 < kept < sum(size[g.draw] for g in second.kept)
    assert account["time/rollout_kept_s"] == pytest.approx(kept * share)
    assert account["time/rollout_wasted_s"] == pytest.approx(100 - (kept + carried) * share)
    assert "sampling/rounds" not in account
    rollout, *others = second.kept[0].rollouts
    response = replace(rollout.response, token_versions=((-9, 0), (1, rollout.response.num_tokens)))
    odd = replace(rollout, response=response, score=replace(rollout.score, parts={"bonus": 2.0}))
    account = ledger(replace(second, kept=(replace(second.kept[0], rollouts=(odd, *others)),)), state, made)
    assert account["staleness/max_versions"] == 1
    assert account["kept/reward_bonus_mean"] == 0.5  # 2 of one of four
    lazy = config(sampling__gen_prompts=9, **STREAM, **CARRY | {"sampling__max_staleness": 2})
    state, second = steps(lazy, "M" * 400, "fifo", 2)[1]  # lives on what was carried alone
    account = ledger(second, state, lazy)
    names = ("time/rollout_wasted_s", "sampling/carried_in_draws", "sampling/carried_draws")
    assert [account[name] for name in names] == [0, 4, 2]


def test_one_kept_of_a_short_filling_has_an_acceptance() -> None:
    """1 of 2 rounds of 2 draws; the last draw is judged too. Surplus is part of the history, carried is not."""
    made = config(sampling__on_exhausted="train_short", sampling__max_rounds=2)
    got = collect(made, by_draw("WWMW"))
    account = ledger(got, TrainState(), made)
    assert (account["sampling/acceptance"], account["difficulty/unseen_draws"], got.carried) == (0.25, 4, 0)
    surplus = collect(config(sampling__gen_prompts=4), by_draw("MMRW"))
    assert sorted(history_after({}, surplus, 1)) == ["p0", "p1", "p2", "p3"]
    ungraded = replace(surplus, groups=tuple(unjudged(group) for group in surplus.groups))
    assert history_after({}, ungraded, 1) == {}
    with pytest.raises(SamplingExhausted, match="kept 0 of 2 groups out of 4 draws: "):  # none right or wrong
        collect(config(sampling__max_rounds=2), by_draw("W"), state=TrainState(carried=ungraded.groups))


def unjudged(group: Group) -> Group:
    """A group without a notion of correctness."""
    return replace(group, rollouts=tuple(replace(r, score=replace(r.score, correct=None)) for r in group.rollouts))


@pytest.mark.parametrize("error", [Interrupted("asked"), ValueError("bad"), SystemExit(0)])
@pytest.mark.parametrize("refused", [None, SaveFailed, LearnerLost])
def test_whatever_goes_wrong_the_state_is_saved(error: BaseException, refused: type[Stopped] | None) -> None:
    """And the first error is told, where the save fails too; a signal's own save may fail as itself."""
    saved, said, state = list[TrainState](), list[str](), TrainState(step=3)

    def ensure(state: TrainState, learning_rate: float) -> None:
        saved.append(state)
        if refused:
            raise refused("not to be saved")

    places: dict[str, Any] = {"run": SimpleNamespace(path=Path("r")), "view": SimpleNamespace(say=said.append)}
    parts: Any = SimpleNamespace(config=config(), saver=SimpleNamespace(ensure=ensure), **places)
    raised = DapoError if isinstance(error, SystemExit) else type(error)
    wanted = refused if refused and raised is Interrupted else raised
    with pytest.raises(wanted) as caught, stopping.saved_on_error(parts, state):
        raise error
    assert (saved, said) == ([state], ["not to be saved"] if refused and wanted is raised else [])
    if wanted is Interrupted:
        assert str(caught.value) == "asked; stopped after step 3; go on with: dapo train --resume r"


def test_a_failed_save_is_told_before_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not one is due; and the last one has to be written."""
    monkeypatch.setattr(loop, "sample", lambda parts, state, stop: replace(state, pending=Pending(minibatches=())))
    monkeypatch.setattr(loop, "settled", lambda parts, state: state)
    monkeypatch.setattr(loop, "finish", lambda parts, state, stop: (TrainState(step=state.step + 1), {}))
    parts = MagicMock(config=config(train__num_steps=3, checkpoint__every=9), holdout=())
    assert helpers.run_loop(parts, TrainState()).step == 3
    parts.saver.wait.assert_called_once_with(final=True)
    parts.saver.check.side_effect = [None, SaveFailed("full")]
    with pytest.raises(SaveFailed):
        helpers.run_loop(parts, TrainState())
    assert [call.args[0] for call in parts.run.append_metrics.call_args_list] == [1, 2, 3, 1]
    parts.saver.check.side_effect, parts.run.append_metrics.side_effect = None, SaveFailed("full")
    with pytest.raises(SaveFailed):  # the step's line could not be written: its updates are saved
        helpers.run_loop(parts, TrainState())
    assert parts.saver.ensure.call_args.args[0].pending is not None


@pytest.mark.parametrize(("version", "fits"), [(0, False), (1, True), (2, True), (3, False)])
def test_token_versions_fit_the_step(version: int, fits: bool) -> None:
    """Step of version 2, max_staleness 1: not older than 1, not newer than 2. A resume looks at the oldest token."""
    (group,) = collect(config(sampling__prompts_per_step=1), by_draw("M")).groups
    odd = [replace(r, response=replace(r.response, token_versions=((2, 1), (version, 1)))) for r in group.rollouts]
    group = replace(group, rollouts=tuple(odd))
    with nullcontext() if fits else pytest.raises(EngineError, match=f"policy version {version}"):
        loop.check_versions([group], 2, 1)
    with nullcontext() if version > 1 else pytest.raises(UserError, match="max_staleness = 0"):
        check_carried(config(), TrainState(version=2, carried=(group,)))


@pytest.mark.parametrize(
    ("plan", "version", "staleness", "fits"),
    [
        ("MMMM", 0, 1, True),  # the last two wait one step
        ("MMMM", 1, 1, False),
        ("MWWM", 1, 1, True),  # uninformative ones fill no batch
        ("MWMM", 1, 1, False),
        ("MMMM", 1, None, False),
        ("MMMM", 0, None, True),  # discarded before they are too old
    ],
)
def test_carried_groups_and_how_long_they_wait(plan: str, version: int, staleness: int | None, fits: bool) -> None:
    """N = 2. Without a staleness: surplus = discard, and what is carried waits for one step alone."""
    groups = collect(config(sampling__gen_prompts=4), by_draw(plan)).groups
    made = config() if staleness is None else config(**CARRY | {"sampling__max_staleness": staleness})
    with nullcontext() if fits else pytest.raises(UserError, match="carries 4 groups"):
        check_carried(made, TrainState(version=version, carried=groups))


@pytest.mark.parametrize(("done", "on_failure", "fits"), [(4, "stop", True), (5, "stop", False), (5, "go_on", True)])
def test_a_run_that_should_have_had_a_checkpoint(done: int, on_failure: str, fits: bool, tmp_path: Path) -> None:
    """checkpoint.every = 2: one is due, and the one before may be on its way; after five steps one is missing."""
    run: Any = SimpleNamespace(path=tmp_path, checkpoints=tmp_path / "c", metrics=lambda: [{"step": done}, {"step": 1}])
    with nullcontext() if fits else pytest.raises(UserError, match=f"holds {done} steps"):
        check_nothing_lost(run, config(checkpoint__every=2, checkpoint__on_failure=on_failure))


def test_logs_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both, before a checkpoint that is ahead of them can stand."""
    run, synced = RunDirectory(tmp_path), list[int]()
    monkeypatch.setattr("os.fsync", synced.append)
    for name in ("log.txt", "metrics.jsonl"):
        (tmp_path / name).write_text("")
        run.sync()
    assert len(synced) == 3


def test_trackers_get_copies(caplog: pytest.LogCaptureFixture) -> None:
    """One that changes its metrics changes nobody's, and when it fails that is said once."""
    seen = list[Any]()

    def spoil(step: int, metrics: Any) -> None:
        raise ValueError(metrics.popitem())

    functions = (spoil, lambda step, metrics: seen.append(metrics))
    with Trackers([FunctionTracker("f", function) for function in functions]) as made:
        made.start(1)
        made.log(1, {"a": 1.0})
        made.log(2, {"a": 1.0})
    assert (seen, caplog.text.count("tracker f failed")) == ([{"a": 1.0}] * 2, 1)


def test_places_and_their_order(tmp_path: Path) -> None:
    """By number, not by spelling; carried groups alone make no state within a step."""
    groups = collect(config(), by_draw("M")).groups
    assert checkpoint.place_of(TrainState(step=1, carried=groups)) == (1, "", 0)
    names = ["step_000005", "step_000005-d000010", "step_000005-u000000", "step_999999", "step_1000000"]
    for name in names:
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoint.folders(tmp_path)] == names
    there = tmp_path / "there"
    save(there, 1, 2)
    save(there, 2, 2)
    (there / "step_000009").mkdir()  # broken: not one of the last two, nor is a state within a step
    stopped = content(TrainState(step=2, unfinished={"skipped": 0.0}))
    checkpoint.prune(there, checkpoint.write(there, stopped, FakeLearner()), CheckpointConfig(keep_last=2))  # type: ignore[arg-type]
    assert [path.name[9:] for path in checkpoint.folders(there)] == ["01", "02", "02-d000000", "09"]


@pytest.mark.parametrize("what", ["type", "shape", "optimizer", "other"])
def test_what_is_read_back_is_compared_whole(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes as another type or shape, another optimiser state, another file."""
    learner: Any = FakeLearner()
    if what == "type":
        learner.save_hf = lambda path, w: FakeLearner().save_hf(path, {"w": w["w"].view(torch.int32)})
    if what == "shape":
        learner.save_hf = lambda path, w: FakeLearner().save_hf(path, {"w": w["w"][None].clone()})
    if what == "optimizer":
        monkeypatch.setattr(
            checkpoint, "_save_tensors", lambda path, all: save_file({n: t + 1 for n, t in all.items()}, path)
        )
    if what == "other":  # damaged on its way to the disk
        monkeypatch.setattr(checkpoint, "sync_tree", lambda aside: (aside / "state.json").write_text("{}"))
    with pytest.raises(OSError, match="what was read back is not what was written"):
        checkpoint.write(tmp_path, content(TrainState(step=1)), learner)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_are_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a save of another process, and a checkpoint that was passed over; the name is synced too."""
    synced: list[Path] = []
    monkeypatch.setattr(checkpoint, "sync_directory", synced.append)
    for name in (".step_000001.tmp", "step_000001"):
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "stray.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match=r"step_000001: it has no manifest"):
        checkpoint.at_step(tmp_path, 1)
    save(tmp_path, 1, 1)
    assert checkpoint.at_step(tmp_path, 1).state.step == 1
    assert ([path.name for path in tmp_path.iterdir()], synced) == (["step_000001"], [tmp_path])


def test_a_save_that_failed_is_told_once(tmp_path: Path) -> None:
    """ensure says so and saves; logs are synced first; sound checkpoints alone stand; counts start anew."""
    learner, said = Slow(), list[str]()
    learner.go.set()
    made: Any = saver(tmp_path, learner, said)
    synced = list[list[int]]()
    made._run.sync = lambda: synced.append(steps_of(tmp_path / "checkpoints"))
    made.ensure(TrainState(step=1), 1e-6)
    made.ensure(TrainState(step=2), 1e-6)
    assert (synced, made.saved) == ([[], [1]], (2, "", 0))
    (tmp_path / "checkpoints" / "step_000003").mkdir()
    learner.error = OSError("full")
    made.save(TrainState(step=4), 1e-6)
    until_over()
    learner.error = None
    made.ensure(TrainState(step=5), 1e-6)
    assert (["full; step_000002 stands" in line for line in said], len(synced)) == ([True], 4)
    assert made.seconds() > 0 == made.seconds()


def test_failures_that_are_gone_on_from_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Under go_on; but ensure has to write, a fault of ours is raised, and an end under an error logs the last."""
    learner, said = Slow(SafetensorError("full")), list[str]()
    made = saver(tmp_path, learner, said, on_failure="go_on")
    made.save(TrainState(step=1), 1e-6)
    made.check()  # not done yet: does not wait
    learner.go.set()
    made.wait()
    made.tolerate(SaveFailed("rollouts"))
    assert (len(said), made.counted(), made.counted()) == (2, 2, 0)
    learner.error = ValueError("ours")
    made.save(TrainState(step=2), 1e-6)
    with pytest.raises(ValueError, match="ours"):
        made.wait()
    made.save(TrainState(step=3), 1e-6)
    with pytest.raises(KeyError), made:
        raise KeyError
    assert "could not be written either: ours" in caplog.text
