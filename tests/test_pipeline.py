"""An engine that goes on during updates: what is trained on, how old it is, what a checkpoint holds of it."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import helpers_run as helpers
from dapo import probe
from dapo.errors import EngineError, Interrupted
from dapo.grading import GroupGrader
from dapo.ledger import ledger
from dapo.loop import check_versions
from dapo.pipeline import Ahead, Stream, make_supply
from dapo.reward import Scorer
from dapo.rollout.scripted import Order, ScriptedEngine
from dapo.rollout.torch_engine import TorchEngine
from dapo.run.directory import RunDirectory
from dapo.run.freeze import freeze_ahead, thaw_ahead
from dapo.types import Collected, Pending, TrainState
from helpers_engine import cached_logits, collect, ids, log_softmax, params, plain_logits
from test_checkpoint import check_equal, resume
from test_resume import counting
from test_sampling import EOS, by_draw, config, decode, draws, prompts, shuffled
from test_streaming import ORDERS, by_place, first_informative, places, random_plan
from tiny import model, prompt

STALE = ("pipeline.max_staleness=1", "algorithm.importance_cap=2")
ALL = ("train.num_steps=4", "checkpoint.every=1", "checkpoint.keep_last=100", "eval.every=2", "engine.slots=8")
AHEAD = (*ALL, *STALE, "sampling.gen_prompts=3")
IN_FLIGHT = (*ALL, *STALE, "pipeline.swap=in_flight", "sampling.schedule=streaming", "sampling.gen_prompts=6")


# --- one step ahead, between draws ------------------------------------------------------------------


@functools.cache
def ahead_run() -> Path:
    """A run one step ahead that never stopped."""
    return helpers.train(helpers.folder_of_this_process(), *AHEAD)


def test_every_step_but_the_first_is_one_version_late() -> None:
    """All of its tokens, with weights on them; a first step, of an empty pipeline, is fresh."""
    rows = helpers.metrics(ahead_run())[1:]
    assert [row["staleness/mean_versions"] for row in rows] == [0, 1, 1, 1]
    assert [row["staleness/max_versions"] for row in rows] == [0, 1, 1, 1]
    assert all(abs(row["importance/mean"] - 1) > 1e-5 for row in rows[1:])
    assert all(row["sampling/draws"] > row["sampling/kept"] for row in rows[:2])


def test_the_gap_to_the_engine_is_measured_at_every_step() -> None:
    """By a short draw of its newest weights, since no batch has tokens of them; the last step has no engine to come."""
    rows = helpers.metrics(ahead_run())[1:]
    assert all(0 <= row["mismatch/logprob_abs_mean"] < 1e-4 for row in rows[:-1])
    assert "mismatch/logprob_abs_mean" not in rows[-1] or rows[-1]["mismatch/logprob_abs_mean"] is None


def test_a_gap_that_the_short_draw_shows_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's log-probs go wrong after the first step, whose batch can't show it any more."""
    right = probe.short_draw

    def wrong(*args: Any) -> Any:
        batch = right(*args)
        return replace(batch, engine_logprobs=batch.engine_logprobs - 0.3)

    monkeypatch.setattr(probe, "short_draw", wrong)
    recipe = helpers.write_recipe(tmp_path)
    code, _, err = helpers.quiet_dapo("train", recipe, *AHEAD, "--output-dir", tmp_path / "run")
    assert code == 5, err
    assert "check engine_gap" in err.splitlines()[-1]


def test_the_clock_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle fills each batch at once, before the updates begin: the same bits as beside them."""

    begin = Ahead.proceed

    def proceed(supply: Ahead, *args: Any) -> None:
        begin(supply, *args)
        for thread in threading.enumerate():
            if thread.name == "dapo-sample":
                thread.join()

    monkeypatch.setattr(Ahead, "proceed", proceed)
    check_equal(helpers.train(tmp_path, *AHEAD), ahead_run())


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_run_goes_on_from_every_checkpoint(step: int, tmp_path: Path) -> None:
    """What was sampled ahead stands in the checkpoint: weights, metrics and responses are the same bits."""
    again = helpers.copy_run(ahead_run(), tmp_path / "run", up_to=step)
    assert (again / f"checkpoints/step_{step:06d}/ahead.json").is_file()
    resume(again)
    check_equal(again, ahead_run())


@pytest.mark.parametrize(("event", "number"), [("update", 1), ("update", 2), ("update", 3), ("update", 6), ("poll", 9)])
def test_a_signal_that_waits_for_the_cut_changes_nothing(event: str, number: int, tmp_path: Path) -> None:
    """checkpoint.on_signal = "cut": among updates too, the step that is being sampled is finished and kept."""
    words = (*AHEAD, "checkpoint.on_signal=cut")
    recipe = helpers.write_recipe(tmp_path)
    with counting((event, number)):
        code, _, err = helpers.quiet_dapo("train", recipe, *words, "--output-dir", tmp_path / "run")
    assert code == 3, err
    resume(tmp_path / "run")
    check_equal(tmp_path / "run", ahead_run())


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_signal_at_once_loses_no_draw(number: int, tmp_path: Path) -> None:
    """The default gives up what is being sampled; the same draws come again, by the policy that stands then."""
    recipe = helpers.write_recipe(tmp_path)
    with counting(("update", number)):
        code, _, err = helpers.quiet_dapo("train", recipe, *AHEAD, "--output-dir", tmp_path / "run")
    assert code == 3, err
    resume(tmp_path / "run")
    rows, straight = helpers.metrics(tmp_path / "run")[1:], helpers.metrics(ahead_run())[1:]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["staleness/max_versions"] <= 1 for row in rows)
    step = (number - 1) // 2  # the steps sampled before it are those of the run that never stopped
    for row, other in list(zip(rows, straight, strict=True))[: step + 1]:
        assert row["sampling/draws"] == other["sampling/draws"]
    assert rows[-1]["data/prompts_drawn"] >= straight[0]["data/prompts_drawn"]


def test_an_engine_that_fails_ahead_is_told_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the updates of step 2: these are finished and saved, the run ends with the engine's error."""
    inner, polls = TorchEngine.poll, 0

    def poll(engine: TorchEngine) -> Any:
        nonlocal polls
        polls += threading.current_thread() is not threading.main_thread()
        if polls > 4:
            raise EngineError("out of order")
        return inner(engine)

    with monkeypatch.context() as patch:
        patch.setattr(TorchEngine, "poll", poll)
        recipe = helpers.write_recipe(tmp_path)
        code, _, err = helpers.quiet_dapo("train", recipe, *AHEAD, "--output-dir", tmp_path / "run")
    assert code == 1
    assert "out of order" in err.splitlines()[-1]
    resume(tmp_path / "run")
    assert [row["step"] for row in helpers.metrics(tmp_path / "run")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pipeline.max_staleness=0",), "pipeline.max_staleness = 0"),
        (("pipeline.swap=in_flight", "sampling.schedule=streaming"), 'pipeline.swap = "in_flight"'),
        (("sampling.prompts_per_step=2",), "sampling.prompts_per_step = 2"),
        (("sampling.responses_per_prompt=8",), "sampling.responses_per_prompt = 8"),
        (("sampling.filter=off", "sampling.gen_prompts=off"), 'sampling.filter = "off"'),
    ],
)
def test_settings_that_can_not_use_what_was_sampled_ahead(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """One line, the setting by name, before anything is trained; the run is as it was."""
    again = helpers.copy_run(ahead_run(), tmp_path / "run", up_to=2)
    before = helpers.tree(again)
    code, _, err = helpers.quiet_dapo("train", "--resume", again, *words)
    assert code == 2, err
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err
    assert helpers.tree(again) == before


def test_what_was_sampled_ahead_survives_freezing() -> None:
    """Bit for bit, with the kept groups among all groups."""
    found = one_by_one(random_plan(3), "fifo", staleness=1, steps=1)[0][1]
    again = thaw_ahead(*freeze_ahead(found))
    assert draws(again.groups) == draws(found.groups)
    assert draws(again.kept) == draws(found.kept)
    for name in ("cut", "carried", "carried_in", "next_draw", "next_place", "lost_tokens", "short"):
        assert getattr(again, name) == getattr(found, name)
    assert again.kept[0] is again.groups[draws(again.groups).index(again.kept[0].draw)]


# --- in flight --------------------------------------------------------------------------------------


@contextmanager
def stream(plan: str, order: Order, seed: int = 0, **layer: Any) -> Iterator[tuple[Any, ScriptedEngine, Stream]]:
    """(config, engine, Stream) over a scripted engine, whose tokens carry the version at which a draw was admitted."""
    words: dict[str, Any] = {
        "sampling__schedule": "streaming",
        "pipeline__swap": "in_flight",
        "algorithm__importance_cap": 2.0,
    }
    made = config(
        **({"pipeline__max_staleness": 1, "sampling__max_rounds": 100, "train__num_steps": 50} | words | layer)
    )
    engine = ScriptedEngine(by_place(plan, seed), order=order)
    grader = GroupGrader(made, Scorer(made.reward).score, decode, [EOS])
    with Stream(made, engine, grader, prompts) as supply:
        yield made, engine, supply


def never() -> bool:
    """Nobody asks the run to stop."""
    return False


def one_by_one(
    plan: str, order: Order, *, staleness: int, steps: int, window: int = 5
) -> list[tuple[TrainState, Collected]]:
    """So many steps, the engine's version one behind for a while after each update."""
    layer = {"pipeline__max_staleness": staleness, "sampling__gen_prompts": window}
    with stream(plan, order, window, **layer) as (_, engine, supply):
        state, done = TrainState(), []
        for step in range(steps):
            got = supply.collect(state, never)
            done.append((state, got))
            behind = replace(state, next_draw=got.next_draw, next_place=got.next_place, carried=got.left)
            behind = replace(behind, pending=Pending(minibatches=()))
            supply.proceed(behind, never)
            with supply.exclusive():
                engine.load_weights(step + 1, [])
                supply.published(step + 1)
            state = replace(behind, step=step + 1, version=step + 1, pending=None)
        return done


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("staleness", "window"), [(1, 1), (1, 5), (2, 7), (3, 40)])
def test_draws_are_kept_in_order_and_never_too_old(order: Order, staleness: int, window: int) -> None:
    """Whatever finishes first: each draw is looked at once, in the order of the stream, and nothing is dropped."""
    plan = random_plan(window)
    run = one_by_one(plan, order, staleness=staleness, steps=8, window=window)
    seen: list[int] = []
    for state, got in run:
        check_versions(got.kept, state.version, staleness)
        assert len(got.kept) == 2
        assert draws(got.groups)[: got.carried_in] == draws(state.carried)
        seen += places(got.taken)
    kept = [place for _, got in run for place in places(got.kept)]
    assert seen == list(range(len(seen)))
    assert kept == first_informative(plan, 0, 16)


def test_the_bound_is_reached_and_not_more() -> None:
    """All informative, the engine at version 0: N (k + 1) draws may be in flight, whatever the window would allow."""
    with stream("M" * 99, "fifo", pipeline__max_staleness=2, sampling__gen_prompts=50) as (_, engine, supply):
        supply.collect(TrainState(), never)
        with supply.quiet():
            pass
        assert sorted(engine.submitted) == list(range(6))  # 2 * (2 + 1), the batch among them
        supply.proceed(TrainState(pending=Pending(minibatches=())), never)
        with supply.exclusive():
            engine.load_weights(1, [])
            supply.published(1)
        until = time.monotonic() + 20
        while len(engine.submitted) < 8 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)  # for one that may not come
        assert sorted(engine.submitted) == list(range(8))  # a version later, N more


@pytest.mark.parametrize("staleness", [1, 3])
def test_tokens_balance_step_by_step(staleness: int) -> None:
    """generated + carried_in = kept + wasted + carried, and what one step carries the next carries in."""
    with stream(random_plan(5), shuffled(3), pipeline__max_staleness=staleness) as (made, _, _):
        pass
    carried = 0.0
    for state, got in one_by_one(random_plan(5), shuffled(3), staleness=staleness, steps=6):
        told = ledger(got, state, made)
        assert told["tokens/carried_in"] == carried
        left = told["tokens/kept"] + told["tokens/wasted"] + told["tokens/carried"]
        assert told["tokens/generated"] + told["tokens/carried_in"] == left
        carried = told["tokens/carried"]


def test_a_stream_goes_on_from_what_it_settled() -> None:
    """A new Stream takes over graded groups and draws the rest again under their numbers: none lost, none twice."""
    plan = random_plan(11)
    with stream(plan, "shortest", sampling__gen_prompts=7) as (_, _, supply):
        first = supply.collect(TrainState(), never)
        state = TrainState(next_draw=first.next_draw, next_place=first.next_place, carried=first.left)
        state = replace(state, pending=Pending(minibatches=()))
        supply.proceed(state, never)
        settled = supply.settle(state)
    assert settled.ahead is not None
    assert draws(settled.ahead.groups)[: len(first.left)] == draws(first.left)
    with stream(plan, "lifo", sampling__gen_prompts=7) as (_, engine, supply):
        engine.load_weights(1, [])
        supply.published(1)
        second = supply.collect(replace(settled, step=1, version=1, pending=None), never)
    assert min(engine.submitted) == settled.ahead.next_draw
    looked = places(first.taken) + places(second.taken)
    assert looked == list(range(len(looked)))
    assert places(first.kept) + places(second.kept) == first_informative(plan, 0, 4)
    assert second.carried_in == first.carried


@pytest.mark.parametrize("ends", ["limit", "data"])
def test_an_exhausted_stream_gives_what_it_has(ends: str) -> None:
    """At max_rounds * gen_prompts draws, or at the end of the data: short, all of it taken, with the reason."""
    layer = {"sampling__max_rounds": 3, "sampling__gen_prompts": 4}
    made = config(
        **layer,
        sampling__schedule="streaming",
        pipeline__swap="in_flight",
        pipeline__max_staleness=1,
        algorithm__importance_cap=2.0,
    )
    source = prompts if ends == "limit" else lambda index: prompts(index) if index < 5 else None
    grader = GroupGrader(made, Scorer(made.reward).score, decode, [EOS])
    with Stream(made, ScriptedEngine(by_draw("WWMW")), grader, source) as supply:
        got = supply.collect(TrainState(), never)
    assert len(got.kept) == 1
    assert got.cut == len(got.groups) == (12 if ends == "limit" else 5)
    assert ("12 draws are the limit" if ends == "limit" else "the data ended") in got.short


def test_a_stream_can_be_given_up_and_tells_what_failed() -> None:
    """`stopped` ends the wait; an exception of the sampling thread is raised where the batch is asked for."""
    with stream("W" * 99, "fifo", sampling__max_rounds=10**6) as (_, _, supply), pytest.raises(Interrupted):
        supply.collect(TrainState(), lambda: True)
    with (
        stream("M" * 99, lambda waiting: 1 // 0) as (_, _, supply),
        pytest.raises(EngineError, match="ZeroDivisionError"),
    ):
        supply.collect(TrainState(), never)
    assert not [thread for thread in threading.enumerate() if thread.name == "dapo-sample"]


def check_in_flight(run: Path, staleness: int) -> list[dict[str, Any]]:
    """What holds of every such run, whatever the clock did."""
    rows = helpers.metrics(run)[1:]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["staleness/max_versions"] <= staleness for row in rows)
    carried = 0.0
    for row in rows:
        assert row["tokens/carried_in"] == carried
        assert row["tokens/generated"] + carried == row["tokens/kept"] + row["tokens/wasted"] + row["tokens/carried"]
        carried = row["tokens/carried"]
    return rows


@pytest.mark.parametrize(("staleness", "kv_cache"), [(1, "keep"), (2, "recompute")])
def test_a_run_in_flight(staleness: int, kv_cache: str, tmp_path: Path) -> None:
    """Whole runs: bounded, balanced, every self-check passes, evaluations see the step's own policy; resumed too."""
    words = (*IN_FLIGHT, f"pipeline.max_staleness={staleness}", f"pipeline.kv_cache={kv_cache}")
    run = helpers.train(tmp_path, *words)
    rows = check_in_flight(run, staleness)
    assert max(row["staleness/max_versions"] for row in rows) > 0
    again = helpers.copy_run(run, tmp_path / "again", up_to=2)
    resume(again)
    after = check_in_flight(again, staleness)
    assert helpers.comparable(after[:2]) == helpers.comparable(rows[:2])
    indices = [row["draw"] for step in range(1, 5) for row in RunDirectory(again).rollouts(step)]
    assert indices == sorted(indices)


# --- keys and values of older weights -----------------------------------------------------------------


@pytest.mark.parametrize("recompute", [False, True])
def test_rows_in_flight_keep_their_cache_or_have_it_made_anew(recompute: bool) -> None:
    """Kept: each token as a cache filled by the versions on record says. Recomputed: as the new weights alone say."""
    words = [7, 8, 9, 10, 11, 12]
    engine = TorchEngine(model(6), eos_ids=[], slots=8, max_tokens=64)
    engine.submit(0, prompt([5, 6, 7]), params(5))
    engine.submit(1, prompt(words), params(30, n=4))
    assert [result.draw for result in engine.poll()] == [0]
    with torch.inference_mode():
        engine.load_weights(7, model(7).named_parameters(), recompute=recompute)
    for response in collect(engine, [1])[1]:
        assert response.token_versions == ((0, 5), (7, 25))
        kept = log_softmax(cached_logits({0: model(6), 7: model(7)}, words, response), 1.0)
        anew = log_softmax(plain_logits(model(7), words, ids(response)), 1.0)
        chosen = np.arange(5, 30), response.token_ids[5:]
        expected, other = (anew, kept) if recompute else (kept, anew)
        np.testing.assert_allclose(response.engine_logprobs[5:], expected[chosen], atol=2e-5)
        assert np.abs(response.engine_logprobs[5:] - other[chosen]).max() > 1e-3


def test_ahead_waits_for_nothing_it_has_not_begun() -> None:
    """Settling twice, or without anything under way, gives the state back as it is."""
    supply = Ahead(collector=None, num_steps=3)  # type: ignore[arg-type]
    state = TrainState(step=1)
    assert supply.settle(state) is state
    assert supply.metrics() == {"pipeline/learner_wait_s": 0.0, "pipeline/engine_wait_s": 0.0}
    with supply, supply.quiet(), supply.exclusive():
        pass


def test_two_sides_on_one_processor_share_its_threads() -> None:
    """Half for each, at least one; what there was before comes back."""
    before, seen = torch.get_num_threads(), []
    made = config(pipeline__max_staleness=1, algorithm__importance_cap=2.0)
    supply = make_supply(made, ScriptedEngine(by_draw("M")), None, prompts, threads=6)  # type: ignore[arg-type]
    with supply:
        seen.append(torch.get_num_threads())
    assert seen == [3]
    assert torch.get_num_threads() == before
