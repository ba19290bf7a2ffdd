"""Saves in the background: never half of one, never a lost failure, never the last good one gone."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import helpers_run as helpers
import tiny
from dapo.config.schema import CheckpointConfig
from dapo.difficulty import PromptRecord
from dapo.errors import SaveFailed, UserError
from dapo.run import checkpoint
from dapo.run.freeze import freeze_groups, freeze_pending, thaw_groups, thaw_pending
from dapo.run.manifest import MadeOf
from dapo.run.saver import Saver
from dapo.types import (
    Batch,
    Finish,
    Group,
    Pending,
    Prompt,
    Response,
    Rollout,
    Score,
    TrainState,
    Verdict,
)
from test_checkpoint import FakeLearner, check_equal, content, flip_a_byte, resume, save, steps_of

# --- what is frozen comes back --------------------------------------------------------------------


def a_group(draw: int, size: int = 3) -> Group:
    """A group with every awkward thing in it: lone surrogates, empty responses, infinities, several versions."""
    generator = np.random.default_rng(draw)
    rollouts = []
    for g in range(size):
        length = 0 if g == 1 else int(generator.integers(1, 9))
        response = Response(
            token_ids=generator.integers(0, 99, length).astype(np.int32),
            generated=generator.random(length) < 0.5,
            engine_logprobs=(-generator.random(length) * 1e-8).astype(np.float32),
            finish=Finish.STOP if g else Finish.LENGTH,
            token_versions=((draw, length),) if length < 2 else ((draw, 1), (draw + 1, length - 1)),
        )
        score = Score(
            verdict=list(Verdict)[g],
            correct=(True, False, None)[g % 3],
            reward=(0.1, float("inf"), -1 / 3)[g % 3],
            parts={"größe": 1 / 3, "nan": float("nan")},
            extracted=None if g else "\ud800 7",
            stage="é",
        )
        rollouts.append(Rollout(response=response, text="a\n\u2028\ud800", score=score, overlong=-1 / 3))
    prompt = Prompt(
        id=f"p{draw}",
        messages=({"role": "user", "content": "wie groß?"},) if draw % 2 else None,
        text="wie groß?",
        answer="\ud800" if draw % 2 else None,
        source="s",
        token_ids=np.arange(draw % 5, dtype=np.int32),
        columns={"left": "out"},
        rating=0.1 if draw % 2 else None,
        grading='{"extract": ["boxed"]}' if draw % 2 else "",
    )
    return Group(draw=draw, prompt=prompt, rollouts=tuple(rollouts))


def plain(value: Any) -> Any:
    """Dataclasses with arrays as nested tuples that compare, NaN included."""
    if isinstance(value, (Group, Prompt, Rollout, Response, Score)):
        return {name: plain(getattr(value, name)) for name in type(value).__slots__ if name != "columns"}
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tobytes()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(plain(part) for part in value)
    return repr(value)


def test_groups_come_back_bit_for_bit() -> None:
    """Through JSON as it is written."""
    groups = tuple(a_group(draw) for draw in (0, 1, 7, 2**31))
    tensors, data = freeze_groups(groups)
    again = thaw_groups(tensors, json.loads(json.dumps(data, allow_nan=False)))
    assert plain(again) == plain(groups)
    assert [group.prompt.columns for group in again] == [{}] * 4


def a_batch(rows: int, seed: int, *, old: bool = True) -> Batch:
    """Random tensors of every kind."""
    generator = torch.Generator().manual_seed(seed)

    def floats() -> torch.Tensor:
        return torch.randn(rows, 5, generator=generator)

    return Batch(
        draw=torch.arange(rows),
        prompt_lengths=torch.ones(rows, dtype=torch.long),
        lengths=torch.full((rows,), 4),
        token_ids=torch.randint(0, 9, (rows, 5), generator=generator),
        loss_mask=floats() > 0,
        engine_logprobs=floats(),
        advantages=floats()[:, 0],
        row_weights=floats()[:, 0].double() / 3,
        old_logprobs=floats() if old else None,
    )


@pytest.mark.parametrize("count", [0, 1, 3])
def test_pending_updates_come_back_bit_for_bit(count: int) -> None:
    """Missing tensors stay missing; a view is saved as what it shows; metrics keep NaN and every digit."""
    batches = tuple(a_batch(2 + i, i, old=i != 1).take([1, 0]) for i in range(count))
    pending = Pending(minibatches=batches, updates=({"a": 1 / 3, "b": float("nan")},), metrics={"c": float("-inf")})
    tensors, data = freeze_pending(pending)
    again = thaw_pending(tensors, json.loads(json.dumps(data, allow_nan=False)))
    assert len(again.minibatches) == count
    for one, other in zip(batches, again.minibatches, strict=True):
        for name in Batch.__slots__:
            mine, theirs = getattr(one, name), getattr(other, name)
            assert (mine is None) == (theirs is None)
            assert mine is None or (mine.dtype == theirs.dtype and torch.equal(mine, theirs))
    assert plain(again.updates) == plain(pending.updates)
    assert plain(again.metrics) == plain(pending.metrics)


def full_state() -> TrainState:
    """A state with everything in it."""
    return TrainState(
        step=3,
        version=3,
        next_draw=40,
        next_place=20,
        nonfinite_in_a_row=1,
        unfinished={"skipped": 1.0},
        carried=(a_group(1), a_group(2)),
        pending=Pending(minibatches=(a_batch(2, 0),), updates=({"a": 1.0},), metrics={"m": 2.0}),
        history={"p": PromptRecord(draws=1, responses=4, right=2, solved_in_a_row=0, last_step=3)},
        totals={"total/draws": 3.0},
    )


def test_a_whole_state_comes_back(tmp_path: Path) -> None:
    """Counters, carried groups, pending updates, history, totals."""
    state = full_state()
    path = checkpoint.write(tmp_path, content(state), FakeLearner())  # type: ignore[arg-type]
    assert path.name == "step_000003-u000001"
    found = checkpoint.newest(tmp_path)
    assert plain(found.state.carried) == plain(state.carried)
    assert found.state.pending is not None
    assert replace(found.state, carried=(), pending=None) == replace(state, carried=(), pending=None)
    assert found.made_of == MadeOf({"training_data": "d"}, {"training_data": "7 problems"})


def test_every_byte_of_every_file_is_watched(tmp_path: Path) -> None:
    """One flipped byte in any file of a checkpoint with everything in it: refused by name, the older one taken."""
    save(tmp_path, 2, 9)
    path = checkpoint.write(tmp_path, content(full_state()), FakeLearner())  # type: ignore[arg-type]
    files = sorted(name for name in helpers.tree(path) if (path / name).is_file())
    assert {"carried.json", "carried.safetensors", "pending.json", "pending.safetensors", "history.json"} < set(files)
    for name in files:
        whole = (path / name).read_bytes()
        for place in {0, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
            bad = bytearray(whole)
            bad[place] ^= 1 << place % 8
            (path / name).write_bytes(bad)
            found = checkpoint.find(tmp_path)
            assert found is not None
            assert found.state.step == 2
            assert name in found.passed_over[0], (name, place)
        (path / name).write_bytes(whole)
    found = checkpoint.find(tmp_path)
    assert found is not None
    assert found.path == path


def test_weights_nobody_listed_are_refused(tmp_path: Path) -> None:
    """A stray shard would be loaded over the real one; other files do not matter."""
    save(tmp_path, 1, 9)
    (tmp_path / "step_000001" / "notes.txt").write_text("mine")
    assert checkpoint.fault(tmp_path / "step_000001") is None
    save_file({"w": torch.zeros(1)}, tmp_path / "step_000001" / "model" / "model-2.safetensors")
    assert checkpoint.fault(tmp_path / "step_000001") == "model/model-2.safetensors is not in the manifest"


# --- verified before it counts --------------------------------------------------------------------


class Lossy(FakeLearner):
    """Writes something else than it was given."""

    def __init__(self, spoil: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.spoil = spoil

    def save_hf(self, path: Path, weights: Any = None) -> None:
        """A spoilt copy."""
        copies = {name: tensor.clone() for name, tensor in weights.items()}
        self.spoil(copies)
        super().save_hf(path, copies)


def _one_bit(weights: dict[str, Any]) -> None:
    weights["w"].view(torch.int32)[1] ^= 1


def _half(weights: dict[str, Any]) -> None:
    weights["w"] = weights["w"].half()


def _lost(weights: dict[str, Any]) -> None:
    weights["other"] = weights.pop("w")


@pytest.mark.parametrize("spoil", [_one_bit, _half, _lost])
def test_what_is_read_back_must_be_what_was_meant(spoil: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    """A learner or a disk that writes other weights: the checkpoint never gets its name."""
    save(tmp_path, 1, 1)
    with pytest.raises(OSError, match="read back is not what was written"):
        checkpoint.write(tmp_path, content(TrainState(step=2, version=2)), Lossy(spoil))  # type: ignore[arg-type]
    assert steps_of(tmp_path) == [1]
    assert not list(tmp_path.glob(".*"))


def test_weights_that_are_not_numbers_can_be_saved(tmp_path: Path) -> None:
    """NaN is not equal to itself; its bits are."""
    made = content(TrainState(step=1))
    spoilt = replace(made, weights={"w": torch.tensor([float("nan"), 1.0])})
    assert checkpoint.write(tmp_path, spoilt, FakeLearner()).is_dir()  # type: ignore[arg-type]


# --- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [9]),
        ({"keep_every": 4}, [4, 8, 9]),
        ({"keep_best": 1}, [3, 9]),
        ({"keep_best": 2}, [3, 7, 9]),
        ({"keep_best": 3, "keep_every": 5}, [2, 3, 5, 7, 9]),
    ],
)
def test_keep_every_and_keep_best(settings: dict[str, Any], kept: list[int], tmp_path: Path) -> None:
    """Beside the last one; the best by score, of two equal ones the later (7 beats 2)."""
    scores = {1: 0.1, 2: 0.5, 3: 0.9, 7: 0.5, 8: 0.2}
    for step in range(1, 10):
        save(tmp_path, step, 1, score=scores.get(step), **settings)
    assert steps_of(tmp_path) == kept


def test_states_within_a_step_go_when_a_later_one_stands(tmp_path: Path) -> None:
    """And do not count among the last ones."""
    for step in (1, 2, 3):
        save(tmp_path, step, 2)
    for done in (0, 2):
        pending = Pending(minibatches=(), updates=({},) * done, metrics={})
        path = checkpoint.write(tmp_path, content(TrainState(step=3, pending=pending)), FakeLearner())  # type: ignore[arg-type]
        checkpoint.prune(tmp_path, path, CheckpointConfig(keep_last=2))
    names = [path.name for path in checkpoint.folders(tmp_path)]
    assert names == ["step_000002", "step_000003", "step_000003-u000002"]
    save(tmp_path, 4, 2)
    assert [path.name for path in checkpoint.folders(tmp_path)] == ["step_000003", "step_000004"]


def test_the_best_outlives_states_within_its_step(tmp_path: Path) -> None:
    """keep_best = keep_last = 1, an exhausted filling after the best step, then worse ones."""
    settings = CheckpointConfig(keep_last=1, keep_best=1)
    save(tmp_path, 4, 1, keep_best=1, score=0.5)
    save(tmp_path, 5, 1, keep_best=1, score=0.9)
    stopped = content(TrainState(step=5, unfinished={"skipped": 0.0}, carried=(a_group(1),)))
    checkpoint.prune(tmp_path, checkpoint.write(tmp_path, stopped, FakeLearner()), settings)  # type: ignore[arg-type]
    save(tmp_path, 6, 1, keep_best=1, score=0.1)
    save(tmp_path, 7, 1, keep_best=1, score=0.2)
    assert [path.name for path in checkpoint.folders(tmp_path)] == ["step_000005", "step_000007"]


def test_places_are_in_the_order_of_a_run() -> None:
    """A step, its unfinished filling, its updates, the next step."""
    pending = Pending(minibatches=(), updates=({},) * 11, metrics={})
    states = [
        TrainState(step=9),
        TrainState(step=9, unfinished={"skipped": 0.0}),
        TrainState(step=9, pending=Pending(minibatches=())),
        TrainState(step=9, pending=pending),
        TrainState(step=10),
        TrainState(step=1_000_000),
    ]
    places = [checkpoint.place_of(state) for state in states]
    assert places == sorted(places)
    assert checkpoint.name_of(states[3]) == "step_000009-u000011"
    assert checkpoint.name_of(states[5]) == "step_1000000"


# --- the thread -----------------------------------------------------------------------------------


class Slow(FakeLearner):
    """A learner whose save waits until told, and whose weights go on moving."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(error)
        self.weights = {"w": torch.zeros(4)}
        self.started, self.go = threading.Event(), threading.Event()

    def host_weights(self) -> dict[str, Any]:
        """A copy."""
        return {name: tensor.clone() for name, tensor in self.weights.items()}

    def state_dict(self) -> dict[str, Any]:
        """A copy."""
        return {"exp_avg/w": self.weights["w"].clone()}

    def save_hf(self, path: Path, weights: Any = None) -> None:
        """Waits."""
        self.started.set()
        assert self.go.wait(20)
        super().save_hf(path, weights)


def saver(tmp_path: Path, learner: Any, said: list[str] | None = None, **settings: Any) -> Saver:
    """A saver of a fake run."""
    run: Any = SimpleNamespace(path=tmp_path, checkpoints=tmp_path / "checkpoints", sync=lambda: None)
    return Saver(
        run,
        CheckpointConfig(**settings),
        learner,
        save_tokenizer=lambda folder: (folder / "tokenizer.json").write_text("{}"),
        made_of=MadeOf({}, {}),
        say=(said if said is not None else []).append,
    )


def until_over() -> None:
    """Waits for the saving thread, as the next rollout would."""
    for thread in threading.enumerate():
        if thread.name == "dapo-save":
            thread.join(20)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """save returns at once; what is written is the weights of the moment, not those of the next update."""
    learner = Slow()
    with saver(tmp_path, learner) as made:
        made.save(TrainState(step=1), 1e-6)
        assert learner.started.wait(20)
        assert made.saved is None
        learner.weights["w"] += 1  # the next update
        learner.go.set()
        made.wait()
    found = checkpoint.newest(tmp_path / "checkpoints")
    assert helpers.weights(found.model)["w"].tolist() == [0.0] * 4
    assert made.saved == (1, "", 0)
    assert not [t for t in threading.enumerate() if t.name == "dapo-save"]


def test_one_save_waits_for_the_one_before(tmp_path: Path) -> None:
    """Never two at a time; both stand."""
    learner = Slow()
    learner.go.set()
    with saver(tmp_path, learner) as made:
        for step in (1, 2):
            made.save(TrainState(step=step), 1e-6)
            assert sum(t.name == "dapo-save" for t in threading.enumerate()) <= 1
        made.wait(final=True)
    assert steps_of(tmp_path / "checkpoints") == [1, 2]


def test_a_failed_save_surfaces_at_the_next_step(tmp_path: Path) -> None:
    """Under "stop": check raises once the thread is done, naming what still stands."""
    learner = Slow()
    learner.go.set()
    made = saver(tmp_path, learner)
    made.ensure(TrainState(step=1), 1e-6)
    learner.error = OSError(errno.ENOSPC, "No space left on device")
    made.save(TrainState(step=2), 1e-6)
    until_over()
    with pytest.raises(SaveFailed, match=r"No space left on device; step_000001 stands; .*--resume"):
        made.check()
    assert steps_of(tmp_path / "checkpoints") == [1]
    assert not list((tmp_path / "checkpoints").glob(".*"))
    made.check()  # told once


def test_a_failed_save_may_be_gone_on_from(tmp_path: Path) -> None:
    """Under "go_on": said, counted, and the next one is tried; but the last one of a run has to be written."""
    learner, said = Slow(OSError(errno.ENOSPC, "No space left on device")), list[str]()
    learner.go.set()
    made = saver(tmp_path, learner, said, on_failure="go_on")
    made.save(TrainState(step=1), 1e-6)
    made.wait()
    assert made.failed == 1
    assert "No space left" in said[0]
    assert made.saved is None
    made.save(TrainState(step=2), 1e-6)
    with pytest.raises(SaveFailed, match="there is none yet"):
        made.wait(final=True)
    made.save(TrainState(step=2), 1e-6)
    until_over()
    learner.error = None
    made.ensure(TrainState(step=2), 1e-6)  # the save before it failed; this one is tried all the same
    assert steps_of(tmp_path / "checkpoints") == [2]


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")], ids=["host", "device"])
def test_memory_that_runs_out_in_a_save_is_a_failed_save(error: Exception, tmp_path: Path) -> None:
    """While it is copied, and in the thread: the older one stands, and the next one is tried."""
    learner, said = Slow(), list[str]()
    learner.go.set()
    made = saver(tmp_path, learner, said)
    made.ensure(TrainState(step=1), 1e-6)
    learner.error = error
    made.save(TrainState(step=2), 1e-6)
    with pytest.raises(SaveFailed, match=r"out of memory \(.*(Memory|memory).*step_000001 stands"):
        made.wait()
    learner.error, copying = None, learner.host_weights
    learner.host_weights = lambda: (_ for _ in ()).throw(error)  # type: ignore[method-assign]
    made.save(TrainState(step=3), 1e-6)
    with pytest.raises(SaveFailed, match="out of memory"):
        made.check()
    made.save(TrainState(step=3), 1e-6)
    learner.host_weights = copying  # type: ignore[method-assign]
    made.ensure(TrainState(step=3), 1e-6)
    assert "out of memory" in said[-1]
    assert steps_of(tmp_path / "checkpoints") == [1, 3]


def test_ensure_does_not_write_twice(tmp_path: Path) -> None:
    """What stands already, or was passed, is not saved again."""
    learner = Slow()
    learner.go.set()
    made = saver(tmp_path, learner)
    made.ensure(TrainState(step=2), 1e-6)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for step in (1, 2):
        made.ensure(TrainState(step=step), 1e-6)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


# --- whole runs whose disk is full ----------------------------------------------------------------

SAVING = ("train.num_steps=4", "checkpoint.every=1", "checkpoint.keep_last=9", "eval.data=[]")


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """No file may grow past so many bytes: what a full disk does to a save."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)


@pytest.mark.parametrize("limit", [0, 5_000, 60_000])
def test_a_full_disk_during_a_save(limit: int, tmp_path: Path) -> None:
    """C3: exit 3 and one line; the older checkpoint stands, and the run goes on from it to the same bits."""
    run = helpers.train(tmp_path, *SAVING, "train.num_steps=2")
    with small_files(limit):
        code, _, err = helpers.quiet_dapo("train", "--resume", run, "train.num_steps=4")
    assert code == 3, err
    assert "Traceback" not in err
    assert "File too large" in err.splitlines()[-1]
    assert steps_of(run / "checkpoints") == [1, 2]
    assert checkpoint.newest(run / "checkpoints").state.step == 2
    assert not [name for name in helpers.tree(run / "checkpoints") if "tmp" in name]
    resume(run, "train.num_steps=4")
    check_equal(run, helpers.train(tmp_path / "straight", *SAVING))


def test_a_full_disk_may_be_gone_on_from(tmp_path: Path) -> None:
    """checkpoint.on_failure = "go_on": each failure is told and counted; the last save decides."""
    with small_files(60_000):  # metrics fit, weights do not
        recipe = helpers.write_recipe(tmp_path, model=helpers.warm_model())
        words = ("checkpoint.on_failure=go_on", "--output-dir", tmp_path / "run")
        code, _, err = helpers.quiet_dapo("train", recipe, *SAVING, *words)
    assert code == 3, err
    assert err.count("going on without it") >= 3
    rows = helpers.metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert sum(row["checkpoint/failed_saves"] for row in rows) >= 2
    resume(tmp_path / "run")  # nothing stands: it starts again
    check_equal(tmp_path / "run", helpers.train(tmp_path / "straight", *SAVING))


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs to mount a tmpfs")
@pytest.mark.parametrize("size", [200, 400, 700])
def test_a_small_file_system(size: int, tmp_path: Path) -> None:
    """A real ENOSPC, wherever it falls (kilobytes): whatever stands is complete, and there is no traceback."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs here: {mounted.stderr!r}")
    try:
        recipe = helpers.write_recipe(tmp_path)
        words = (*SAVING, "train.num_steps=9", "--output-dir", place / "run")
        code, _, err = helpers.quiet_dapo("train", recipe, *words)
        assert code in (2, 3), err
        assert "Traceback" not in err
        assert "No space left" in err.splitlines()[-1]
        for path in checkpoint.folders(place / "run" / "checkpoints"):
            assert checkpoint.fault(path) is None
        copied = shutil.copytree(place / "run", tmp_path / "run")
        if (copied / "config.resolved.json").exists():
            resume(copied, "train.num_steps=4") if not steps_of(copied / "checkpoints") else resume(copied)
    finally:
        subprocess.run(["umount", str(place)], check=True)


# --- what a resume refuses, and what it writes down -----------------------------------------------


def resumed(run: Path, *words: str | Path) -> tuple[int, str]:
    """(exit code, the last line of stderr) of a resume."""
    code, _, err = helpers.quiet_dapo("train", "--resume", run, *words)
    return code, err.splitlines()[-1]


def test_a_change_that_is_allowed_by_name(tmp_path: Path) -> None:
    """Only the named one; it is told and written into the manifest."""
    run = helpers.train(tmp_path, "train.num_steps=1", "data.holdout=0", "eval.data=[]")
    rows = helpers.problems(40)
    rows[3]["answer"] = "8"
    helpers.write_rows(tmp_path / "data.jsonl", rows)
    code, last = resumed(run, "train.num_steps=2")
    assert (code, "training_data" in last, "--allow-changed training_data" in last) == (2, True, True)
    assert resumed(run, "train.num_steps=2", "--allow-changed", "tokenizer")[0] == 2
    err = resume(run, "train.num_steps=2", "--allow-changed", "training_data")
    assert "changed: training_data changed, as allowed" in err
    entry = json.loads((run / "manifest.json").read_text())["resumed"][-1]
    assert entry["changed"] == ["training_data", "train.num_steps: 1 -> 2"]
    assert resumed(run, "train.num_steps=3")[0] == 0  # the newest checkpoint is of the new data


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    """The same ids for the same prompts are not enough."""
    model = shutil.copytree(helpers.warm_model(), tmp_path / "model")
    run = helpers.train(tmp_path, "train.num_steps=1", model=model)
    file = model / "tokenizer.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["model"]["vocab"]["Q"] = data["model"]["vocab"].pop("R")  # no prompt holds an R
    file.write_text(json.dumps(data), encoding="utf-8")
    code, last = resumed(run, "train.num_steps=2")
    assert code == 2
    assert "not what the run began with: tokenizer (60 tokens, but not the same)" in last
    assert "training_data" not in last


def test_another_chat_template_is_refused(tmp_path: Path) -> None:
    """Even where it renders these prompts alike."""
    model = shutil.copytree(helpers.warm_model(), tmp_path / "model")
    run = helpers.train(tmp_path, "train.num_steps=1", model=model)
    (model / "chat_template.jinja").write_text(tiny.CHAT_TEMPLATE + "{# other #}", encoding="utf-8")
    code, last = resumed(run, "train.num_steps=2")
    assert code == 2
    assert "not what the run began with: template (data.template = chat, data.system = off, but not the same);" in last


def test_other_starting_weights_are_refused(tmp_path: Path) -> None:
    """A KL penalty would be to another policy."""
    model = shutil.copytree(helpers.warm_model(), tmp_path / "model")
    run = helpers.train(tmp_path, "train.num_steps=1", model=model)
    shutil.copy(helpers.cold_model() / "model.safetensors", model / "model.safetensors")
    code, last = resumed(run, "train.num_steps=2")
    assert code == 2
    assert "starting_weights" in last


def test_other_limits_on_prompts_are_refused(tmp_path: Path) -> None:
    """max_prompt_tokens decides which prompts there are, and so what every draw is about."""
    run = helpers.train(tmp_path, "train.num_steps=1", "data.holdout=0", "eval.data=[]")
    code, last = resumed(run, "train.num_steps=2", "data.holdout=3")
    assert code == 2
    assert "training_data" in last


def test_newer_code_is_told_and_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other code or versions warn, and the manifest holds both."""
    run = helpers.train(tmp_path, "train.num_steps=1")
    monkeypatch.setattr("dapo.run.manifest.code_revision", lambda: "f00")
    monkeypatch.setattr("dapo.run.manifest.versions", lambda: {"torch": "99"})
    err = resume(run, "train.num_steps=2")
    assert "note: other code than before" in err
    assert "-> f00" in err
    assert "-> 99" in err
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["code"] != "f00"
    assert manifest["resumed"][-1]["code"] == "f00"
    err = resume(run, "train.num_steps=3")
    assert "other code" not in err  # the same as at the last resume


def test_allow_changed_needs_a_resume(tmp_path: Path) -> None:
    """A new run has nothing that could have changed."""
    code, _, err = helpers.quiet_dapo("train", helpers.write_recipe(tmp_path), "--allow-changed", "template")
    assert code == 2
    assert "--allow-changed is for --resume" in err


def test_a_checkpoint_of_another_format_is_named(tmp_path: Path) -> None:
    """Sound, but of another version: one line, not a KeyError."""
    save(tmp_path, 1, 1)
    path = tmp_path / "step_000001"
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | {"format": 99}))
    (path / "manifest.json").unlink()
    (path / "manifest.json").write_text(checkpoint._manifest(path))
    with pytest.raises(UserError, match="written in format 99"):
        checkpoint.newest(tmp_path)


def test_broken_checkpoints_are_told_in_the_log(tmp_path: Path) -> None:
    """log.txt and the manifest say which were passed over and why."""
    run = helpers.train(tmp_path, *SAVING, "train.num_steps=3")
    flip_a_byte(run / "checkpoints" / "step_000003" / "history.json")
    resume(run)
    assert "step_000003: history.json is not what" in (run / "log.txt").read_text()
    entry = json.loads((run / "manifest.json").read_text())["resumed"][-1]
    assert entry["checkpoint"] == "step_000002"
    assert "history.json" in entry["passed_over"][0]


# --- survived, and counted ------------------------------------------------------------------------


def test_a_tracker_that_raises(tmp_path: Path) -> None:
    """M1: a warning, a count, and training goes on; the good one beside it gets every step."""
    (tmp_path / "mine.py").write_text(
        "import pathlib\nHERE = pathlib.Path(__file__).parent\n"
        "def bad(step, metrics):\n    metrics.clear()\n    raise RuntimeError('the server is away')\n"
        "def good(step, metrics):\n"
        "    with (HERE / 'seen').open('a') as f: f.write(f\"{step} {metrics['sampling/kept']}\\n\")\n",
        encoding="utf-8",
    )
    trackers = f'trackers=["{tmp_path}/mine.py:bad", "{tmp_path}/mine.py:good"]'
    run = helpers.train(tmp_path, trackers, "train.num_steps=3")
    assert (tmp_path / "seen").read_text() == "1 4.0\n2 4.0\n3 4.0\n"
    counted = [row.get("trackers/failures", 0) for row in helpers.metrics(run)]
    assert 1 <= sum(counted) <= 3  # each in the line after, or later
    log = (run / "log.txt").read_text()
    assert log.count("the server is away") == 1
    assert "bad did not get 3 steps" in log


def test_a_tracker_that_is_not_there(tmp_path: Path) -> None:
    """Found out before the model is loaded."""
    code, _, err = helpers.quiet_dapo("train", helpers.write_recipe(tmp_path), 'trackers=["nowhere.py:f"]', "--dry-run")
    assert code == 2
    assert "trackers" in err.splitlines()[-1]


def test_a_loss_that_is_not_a_number_once(tmp_path: Path) -> None:
    """One NaN update is skipped and counted; the run ends, and its weights are numbers."""
    (tmp_path / "once.py").write_text(
        "calls = 0\ndef once(inputs):\n    global calls\n    calls += 1\n"
        "    return inputs.logprobs_BT * (float('nan') if calls == 2 else -1.0)\n",
        encoding="utf-8",
    )
    words = (f"algorithm.objective={tmp_path}/once.py:once", "train.num_steps=3", "train.tokens_per_microbatch=100000")
    run = helpers.train(tmp_path, *words)
    rows = helpers.metrics(run)[1:]
    assert sum(row["grad/nonfinite_updates"] for row in rows) == 1
    assert all(bool(torch.isfinite(w).all()) for w in helpers.weights_at(run, 3).values())


def test_an_engine_that_raises_once_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws are run again; what is trained on is the same bits, and the failure is a metric."""
    from dapo.rollout.torch_engine import TorchEngine

    straight = helpers.train(tmp_path / "straight", *SAVING)
    inner, calls = TorchEngine.poll, []

    def poll(engine: TorchEngine) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return inner(engine)

    monkeypatch.setattr(TorchEngine, "poll", poll)
    run = helpers.train(tmp_path / "failing", *SAVING)
    rows = helpers.metrics(run)
    assert sum(row["sampling/engine_failures"] for row in rows) == 1
    assert "out of memory" in (run / "log.txt").read_text()
    assert helpers.largest_difference(helpers.weights_at(run, 4), helpers.weights_at(straight, 4)) == 0


def test_an_engine_that_stays_broken_saves_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After engine.reruns the run ends with the engine's message; what was trained is saved."""
    from dapo.rollout.torch_engine import TorchEngine

    inner, calls = TorchEngine.poll, []

    def poll(engine: TorchEngine) -> Any:
        calls.append(1)
        if len(calls) > 6:
            raise RuntimeError("the device is gone")
        return inner(engine)

    monkeypatch.setattr(TorchEngine, "poll", poll)
    recipe = helpers.write_recipe(tmp_path)
    words = (*SAVING, "checkpoint.every=off", "--output-dir", tmp_path / "run")
    code, _, err = helpers.quiet_dapo("train", recipe, *words)
    assert code == 1
    assert "Traceback" not in err
    assert "the device is gone" in err.splitlines()[-1]
    done = len(helpers.metrics(tmp_path / "run"))
    assert done > 0
    assert steps_of(tmp_path / "run" / "checkpoints") == [done]
    monkeypatch.undo()
    resume(tmp_path / "run")
    check_equal(tmp_path / "run", helpers.train(tmp_path / "straight", *SAVING, "checkpoint.every=off"))


def test_a_grader_worker_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL to every idle worker before each question: replaced, every answer graded as without, nothing dropped."""
    from dapo.reward.pool import Pool

    def run(name: str) -> list[dict[str, Any]]:
        folder = tmp_path / name
        folder.mkdir()
        recipe = helpers.write_recipe(folder, answer="\\sqrt{x^2+98}+\\sqrt{x^2}")  # no number decides this one
        words = ("sampling.filter=off", "eval.data=[]", "data.holdout=0", "train.num_steps=3")
        code, _, err = helpers.quiet_dapo("train", recipe, *words, "--output-dir", folder / "run")
        assert code == 0, err
        return helpers.comparable(helpers.metrics(folder / "run"))

    wanted = run("untouched")
    assert sum(row.pop("grading/lost_workers") for row in wanted) == 0
    killed: list[int] = []
    inner = Pool.ask_all

    def ask_all(pool: Pool, questions: Any) -> Any:
        for worker in list(pool._idle):
            if worker.pid not in killed:  # of two killed, one may still lie there
                os.kill(worker.pid, signal.SIGKILL)
                killed.append(worker.pid)
        return inner(pool, questions)

    monkeypatch.setattr(Pool, "ask_all", ask_all)
    found = run("killed")
    assert 3 < sum(row.pop("grading/lost_workers") for row in found) <= len(killed)
    assert found == wanted
