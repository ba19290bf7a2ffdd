"""Stopping anywhere and going on is, bit by bit, never having stopped: both schedules, carry, every point of a step."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import helpers_run as helpers
from dapo.learner.torch_learner import TorchLearner
from dapo.rollout.torch_engine import TorchEngine
from test_checkpoint import check_equal, resume

STEPS = 4
ALL = (f"train.num_steps={STEPS}", "checkpoint.every=1", "checkpoint.keep_last=100", "eval.every=2", "engine.slots=8")
SCHEDULES: dict[str, tuple[str, ...]] = {
    "rounds": ("sampling.gen_prompts=3",),
    "streaming": ("sampling.schedule=streaming", "sampling.gen_prompts=6", "train.updates_per_step=4"),
    "carry": (
        "sampling.schedule=streaming",
        "sampling.gen_prompts=6",
        "sampling.surplus=carry",
        "sampling.max_staleness=1",
        "algorithm.importance_cap=2",
        "sampling.skip_solved_after=1",
        "sampling.skip_solved_steps=2",
    ),
    "rounds and carry": (
        "sampling.gen_prompts=9",
        "sampling.surplus=carry",
        "sampling.max_staleness=2",
        "algorithm.importance_cap=2",
    ),
}
EVENTS = {"poll": (TorchEngine, "poll"), "update": (TorchLearner, "update")}


@contextmanager
def counting(at: tuple[str, int] | None = None) -> Iterator[dict[str, int]]:
    """Counts polls and updates; sends this process a SIGTERM during the n-th."""
    counts = dict.fromkeys(EVENTS, 0)
    with pytest.MonkeyPatch.context() as patch:
        for event, (owner, name) in EVENTS.items():
            inner = getattr(owner, name)

            def outer(*args: Any, event: str = event, inner: Any = inner, **named: Any) -> Any:
                counts[event] += 1
                if at == (event, counts[event]):
                    os.kill(os.getpid(), signal.SIGTERM)
                return inner(*args, **named)

            patch.setattr(owner, name, outer)
        yield counts


@functools.cache
def straight(schedule: str) -> tuple[Path, dict[str, int]]:
    """A run that never stopped, and how many polls and updates it took."""
    with counting() as counts:
        run = helpers.train(helpers.folder_of_this_process(), *ALL, *SCHEDULES[schedule])
    return run, counts


def stopped_at(schedule: str, event: str, number: int, folder: Path, *words: str) -> Path:
    """The same run in another folder, with a SIGTERM during one event."""
    run, _ = straight(schedule)
    with counting((event, number)):
        code, _, err = helpers.quiet_dapo(
            "train", run.parent / "recipe.toml", *ALL, *SCHEDULES[schedule], *words, "--output-dir", folder
        )
    if code == 0:  # in the very last evaluation poll there is nothing left to stop
        assert helpers.metrics(folder)[-1]["step"] == STEPS
        return folder
    assert code == 3, err
    assert "Traceback" not in err
    assert f"dapo train --resume {folder}" in err.splitlines()[-1]
    return folder


def test_the_runs_here_do_what_they_should() -> None:
    """They keep and drop, carry and skip; else the comparisons below would show little."""
    for schedule in SCHEDULES:
        rows = helpers.metrics(straight(schedule)[0])[1:]
        assert any(row["sampling/draws"] > row["sampling/kept"] for row in rows), schedule
        carried = sum(row["sampling/carried_draws"] for row in rows)
        assert (carried > 0) == ("carry" in schedule), schedule
        assert (max(row["staleness/max_versions"] for row in rows) > 0) == ("carry" in schedule)
        stale = [row for row in rows if row["staleness/max_versions"]]
        assert all(abs(row["importance/mean"] - 1) > 1e-5 for row in stale)  # old policies' tokens carry their weight
        fresh = [row for row in rows if "carry" in schedule and not row["staleness/max_versions"]]
        assert all(abs(row["importance/mean"] - 1) < 1e-5 for row in fresh)
        cancelled = sum(row["sampling/cancelled_draws"] for row in rows)
        assert (cancelled > 0) == (not schedule.startswith("rounds")), schedule
    assert straight("rounds")[1]["update"] == 2 * STEPS
    assert straight("streaming")[1]["update"] == 4 * STEPS


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("step", range(STEPS))
def test_from_every_checkpoint(schedule: str, step: int, tmp_path: Path) -> None:
    """k steps, then N - k: weights, optimiser, carried groups, history, metrics and responses are the same bits.

    Without any checkpoint (step 0) the run starts again.
    """
    run, _ = straight(schedule)
    again = helpers.copy_run(run, tmp_path / "run", up_to=step)
    if step == 0:  # killed in the second step, while the first was being saved
        lines = (again / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (again / "metrics.jsonl").write_text("".join(lines[:2]), encoding="utf-8")
    err = resume(again)
    assert ("starting again" in err) == (step == 0)
    check_equal(again, run)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.55, 0.8, 0.99])
@pytest.mark.parametrize("event", EVENTS)
def test_from_a_signal_anywhere(schedule: str, share: float, event: str, tmp_path: Path) -> None:
    """While sampling, evaluating or updating: a checkpoint, exit 3, and the resumed run is the same bits."""
    run, counts = straight(schedule)
    again = stopped_at(schedule, event, 1 + int(share * counts[event]), tmp_path / "run")
    resume(again)
    check_equal(again, run)


@pytest.mark.parametrize("update", range(1, 9))
def test_from_every_update(update: int, tmp_path: Path) -> None:
    """The pending mini-batches are saved with advantages, old log-probs and row weights; none is done twice."""
    run, _ = straight("streaming")
    again = stopped_at("streaming", "update", update, tmp_path / "run")
    step, done = divmod(update, 4)
    names = {path.name for path in (again / "checkpoints").glob("step_*")}
    assert (f"step_{step:06d}-u{done:06d}" in names) == (done > 0)
    with counting() as counts:
        resume(again)
    assert counts["update"] == 4 * STEPS - update
    check_equal(again, run)


def test_stopped_again_and_again(tmp_path: Path) -> None:
    """A signal in every third event of each resume: it still gets there, and to the same bits."""
    run, _ = straight("carry")
    again = stopped_at("carry", "update", 1, tmp_path / "run")
    for number in range(80):
        with counting(("update", 1) if number % 2 else ("poll", 3)):
            code, _, err = helpers.quiet_dapo("train", "--resume", again)
        assert code in (0, 3), err
        if code == 0:
            break
    assert code == 0
    assert number > 3
    check_equal(again, run)


def test_a_signal_while_sampling_may_wait_for_the_cut(tmp_path: Path) -> None:
    """checkpoint.on_signal = "cut": the batch is saved before its first update, and nothing is sampled twice."""
    run, counts = straight("streaming")
    for number in range(2, 8):
        folder = tmp_path / str(number)
        again = stopped_at("streaming", "poll", number, folder, "checkpoint.on_signal=cut")
        before_updates = list((folder / "checkpoints").glob("*-u000000"))
        with counting() as left:
            resume(again)
        check_equal(again, run)
        if before_updates:
            assert left["poll"] < counts["poll"] - number
            return
    pytest.fail("none of these polls was of a filling")


def test_the_epoch_boundary(tmp_path: Path) -> None:
    """C1: stopped exactly where the data end, the next epoch follows, in its own order."""
    words = ("sampling.filter=off", "data.holdout=0", "eval.data=[]", "checkpoint.every=1", "checkpoint.keep_last=9")
    recipe_of = functools.partial(helpers.write_recipe, count=8)  # two steps of four prompts are an epoch
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    code, _, err = helpers.quiet_dapo(
        "train", recipe_of(tmp_path / "one"), *words, "train.num_steps=4", "--output-dir", tmp_path / "one" / "run"
    )
    assert code == 0, err
    for steps in (2, 4):
        target = tmp_path / "two" / "run"
        start = ("--resume", target) if steps == 4 else (recipe_of(tmp_path / "two"), *words, "--output-dir", target)
        code, _, err = helpers.quiet_dapo("train", *start, f"train.num_steps={steps}")
        assert code == 0, err
    check_equal(tmp_path / "two" / "run", tmp_path / "one" / "run")


def test_the_schedule_of_the_learning_rate_goes_on(tmp_path: Path) -> None:
    """C5, C6: warm-up counts rollout steps of the whole run, whatever was stopped or resumed."""
    words = ("train.warmup_rollout_steps=3", "eval.data=[]", "train.updates_per_step=4")
    run = helpers.train(tmp_path, *words, "train.num_steps=1")
    for steps in (2, 3, 5):
        resume(run, f"train.num_steps={steps}")
    rates = [row["train/learning_rate"] for row in helpers.metrics(run)]
    assert rates == pytest.approx([1e-3 * min(1, step / 4) for step in (1, 2, 3, 4, 5)])
    state = json.loads((run / "checkpoints" / "step_000005" / "state.json").read_text())
    assert state["scheduler"] == {"rollout_steps": 5, "learning_rate": 1e-3}


def test_an_exhausted_run_loses_nothing(tmp_path: Path) -> None:
    """D2, D3: it stops with what it kept, stops again unchanged, and goes on from it once the bound is raised."""
    words = ("sampling.schedule=streaming", "sampling.gen_prompts=4", "eval.data=[]", "sampling.on_exhausted=stop")
    recipe = helpers.write_recipe(tmp_path)
    code, _, err = helpers.quiet_dapo(
        "train", recipe, *words, "sampling.max_rounds=1", "--output-dir", tmp_path / "run"
    )
    assert code == 3
    last = err.splitlines()[-1]
    assert "4 draws are the limit" in last
    assert last.count("go on with: dapo train --resume") == 1
    run = tmp_path / "run"
    names = [path.name for path in (run / "checkpoints").glob("step_*")]
    assert names == ["step_000000-d000004"]
    with counting() as counts:
        code, _, err = helpers.quiet_dapo("train", "--resume", run)
    assert (code, counts["poll"]) == (3, 0)
    assert [path.name for path in (run / "checkpoints").glob("step_*")] == names
    resume(run, "sampling.max_rounds=20", "train.num_steps=1")
    row = helpers.metrics(run)[-1]
    assert (row["step"], row["sampling/carried_in_draws"], row["sampling/kept"]) == (1, 0, 4)
    assert row["tokens/generated"] == row["tokens/kept"] + row["tokens/wasted"]
    assert row["total/tokens_generated"] == row["tokens/generated"]


def test_a_run_off_the_interval_writes_a_last_checkpoint(tmp_path: Path) -> None:
    """every = 3 of 4 steps: 3 and 4 are there."""
    run = helpers.train(tmp_path, "train.num_steps=4", "checkpoint.every=3", "eval.data=[]")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_000003", "step_000004"]
