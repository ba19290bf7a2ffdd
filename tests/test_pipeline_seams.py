"""The pipeline at its seams: signals, failures and errors beside the updates, settings changed on resume."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import helpers_run as helpers
from dapo import loop
from dapo.difficulty import PromptRecord
from dapo.errors import EngineError, Interrupted, RewardError, UserError
from dapo.grading import GroupGrader
from dapo.learner.torch_learner import TorchLearner
from dapo.pipeline import Stream
from dapo.pipeline.resume import check_ahead
from dapo.provenance import check_carried
from dapo.rollout.scripted import ScriptedEngine
from dapo.rollout.torch_engine import TorchEngine
from dapo.types import Pending, Prompt, Score, TrainState, Verdict
from test_checkpoint import check_equal, resume
from test_pipeline import AHEAD, IN_FLIGHT, ahead_run, never, stream
from test_sampling import EOS, by_draw, config, decode, draws, prompts

IN_FLIGHT_LAYER = {
    "sampling__schedule": "streaming",
    "pipeline__swap": "in_flight",
    "algorithm__importance_cap": 2.0,
}
BEGUN = Pending(minibatches=())  # a batch of which no update was made


# --- whole runs ---------------------------------------------------------------------------------------


def test_a_signal_during_an_evaluation_keeps_what_was_sampled_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation is given up and made again; the batch of the next step, sampled before it, is not drawn again."""
    inner = loop.evaluate

    def evaluate(*args: Any, step: int, **named: Any) -> Any:
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(*args, step=step, **named)

    recipe = helpers.write_recipe(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate", evaluate)
        words = (*AHEAD, "checkpoint.on_signal=cut", "--output-dir", tmp_path / "run")
        code, _, err = helpers.quiet_dapo("train", recipe, *words)
    assert code == 3, err
    resume(tmp_path / "run")
    check_equal(tmp_path / "run", ahead_run())


def test_a_signal_and_an_engine_that_fails_with_it_lose_no_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Ctrl-C reaches the engine's processes too: the engine's error is told, the updates made are saved."""
    update, asked = TorchLearner.update, threading.Event()

    def signalled(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        asked.set()
        return update(*args)

    def poll(engine: TorchEngine) -> Any:
        if threading.current_thread() is threading.main_thread():
            return inner(engine)
        asked.wait(20)
        raise EngineError("out of order")

    inner = TorchEngine.poll
    recipe = helpers.write_recipe(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(TorchEngine, "poll", poll)
        patch.setattr(TorchLearner, "update", signalled)
        words = (*AHEAD, "checkpoint.on_signal=cut", "engine.reruns=0", "--output-dir", tmp_path / "run")
        code, _, err = helpers.quiet_dapo("train", recipe, *words)
    assert code == 1, err
    assert "out of order" in err.splitlines()[-1]
    assert (tmp_path / "run/checkpoints/step_000000-u000001").is_dir()


def test_a_run_that_ended_in_flight_goes_on_between_draws(tmp_path: Path) -> None:
    """Its pipeline is empty, and an empty one is no filling."""
    run = helpers.train(tmp_path, *IN_FLIGHT, "train.num_steps=2")
    resume(run, "train.num_steps=3", "pipeline.swap=between_draws")
    assert [row["step"] for row in helpers.metrics(run)] == [0, 1, 2, 3]


# --- the stream ---------------------------------------------------------------------------------------


def test_a_stream_rests_prompts_that_were_just_solved() -> None:
    """sampling.skip_solved_steps = 1: solved in step 1, not drawn for step 2."""
    words: dict[str, Any] = {"sampling__skip_solved_after": 1, "sampling__skip_solved_steps": 1}
    solved = PromptRecord(draws=1, responses=4, right=4, solved_in_a_row=1, last_step=1)
    state = TrainState(pending=BEGUN, history={"p0": solved})
    with stream("M" * 99, "fifo", **words) as (_, _, supply):
        supply.proceed(state, never)
        supply.published(1)
        got = supply.collect(replace(state, step=1, version=1, pending=None), never)
    assert got.kept[0].prompt.id == "p1"
    assert got.skipped == 1


def test_a_stream_samples_nothing_by_weights_that_have_no_version() -> None:
    """A run that goes on among a step's updates: what the engine got is neither the version before nor the next."""
    state = TrainState(pending=Pending(minibatches=(), updates=({},)))
    with stream("M" * 99, "fifo") as (_, engine, supply):
        supply.proceed(state, never)
        time.sleep(0.3)
        assert engine.submitted == []
        assert supply.settle(state) is state
        engine.load_weights(1, [])
        supply.published(1)
        got = supply.collect(replace(state, step=1, version=1, pending=None), never)
    assert {v for group in got.kept for r in group.rollouts for v, _ in r.response.token_versions} == {1}


def test_a_stream_counts_errors_of_grading_at_every_cut() -> None:
    """As every filling does, however many draws its window holds."""
    made = config(**IN_FLIGHT_LAYER, pipeline__max_staleness=1, sampling__gen_prompts=50)

    def score(prompt: Prompt, texts: Sequence[str], tokens: Sequence[Sequence[int]]) -> list[Score]:
        wrong = [Score(verdict=Verdict.ERROR, correct=False, reward=-1.0)] * (len(texts) - 1)
        return [Score(verdict=Verdict.GRADED, correct=True, reward=1.0), *wrong]

    grader = GroupGrader(made, score, decode, [EOS])
    with (
        Stream(made, ScriptedEngine(by_draw("M" * 99)), grader, prompts) as supply,
        pytest.raises(RewardError, match="max_error_fraction"),
    ):
        supply.collect(TrainState(), never)


def test_a_signal_ends_the_wait_for_draws_in_flight() -> None:
    """An evaluation that will be given up anyway does not wait for them; nothing is left draining."""
    with stream("M" * 99, lambda waiting: time.sleep(0.5) or 0) as (_, engine, supply):
        supply.collect(TrainState(), never)
        with pytest.raises(Interrupted), supply.quiet(lambda: True):
            pass
        before = len(engine.submitted)
        supply.published(1)
        until = time.monotonic() + 20
        while len(engine.submitted) == before and time.monotonic() < until:
            time.sleep(0.01)
        assert len(engine.submitted) > before


# --- settings changed on resume -----------------------------------------------------------------------


def filled(staleness: int = 3) -> TrainState:
    """Between steps 1 and 2: as many groups of version 0 as such a staleness lets in, of which two make a step."""
    words = {"pipeline__max_staleness": staleness, "sampling__gen_prompts": 50}
    with stream("M" * 99, "fifo", **words) as (_, _, supply):
        first = supply.collect(TrainState(), never)
        with supply.quiet():
            pass
        state = TrainState(next_draw=first.next_draw, next_place=first.next_place, carried=first.left)
        state = supply.settle(replace(state, pending=BEGUN))
    assert state.ahead is not None
    assert draws(state.ahead.groups) == list(range(2, 2 * (staleness + 1)))
    return state


@pytest.mark.parametrize("pending", [True, False])
@pytest.mark.parametrize(
    ("layer", "refused"),
    [
        ({}, False),
        ({"pipeline__max_staleness": 2}, True),
        ({"sampling__prompts_per_step": 1}, True),
        ({"sampling__prompts_per_step": 3}, False),
    ],
    ids=["as it was", "max_staleness", "smaller batches", "larger batches"],
)
def test_groups_in_flight_that_would_wait_too_long(layer: dict[str, Any], refused: bool, pending: bool) -> None:
    """One line that names the settings, before anything is trained; not the engine's fault in a later step."""
    state = filled()
    if not pending:
        state = replace(state, step=1, version=1, pending=None)
    made = config(**(IN_FLIGHT_LAYER | {"pipeline__max_staleness": 3} | layer))
    if not refused:
        check_carried(made, state)
        check_ahead(made, state)
        return
    with pytest.raises(UserError, match=r"pipeline\.max_staleness"):
        check_ahead(made, state)


def test_carried_groups_wait_for_the_updates_that_are_left() -> None:
    """Saved among the updates of step 1: what it carries is trained on from version 1, not 0."""
    state = filled()
    assert state.ahead is not None
    state = replace(state, carried=state.ahead.groups[:1], ahead=None)
    made = config(**IN_FLIGHT_LAYER, pipeline__max_staleness=1)
    check_carried(made, state)
    with pytest.raises(UserError, match="max_staleness = 0"):
        check_carried(config(), state)
