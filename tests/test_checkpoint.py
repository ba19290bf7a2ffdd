"""Checkpoints: resume is as if nothing had happened, and what is broken is never taken."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import helpers_run as helpers
from dapo.config.schema import CheckpointConfig
from dapo.errors import UserError
from dapo.run import checkpoint
from dapo.run.manifest import MadeOf
from dapo.types import TrainState

STEPS = 4
KEEP_ALL = (f"train.num_steps={STEPS}", "checkpoint.every=1", "checkpoint.keep_last=10", "eval.every=1")
KL = ("algorithm.kl.place=loss", "algorithm.kl.coef=0.5")


@functools.cache
def straight(*words: str) -> Path:
    """A run of four steps that never stopped, with a checkpoint of each."""
    return helpers.train(helpers.folder_of_this_process(), *KEEP_ALL, *words)


def files_of(run: Path, step: int) -> dict[str, bytes]:
    """Every file of a checkpoint, byte by byte; the digest of the configuration, which names paths, aside."""
    folder = run / "checkpoints" / f"step_{step:06d}"
    found = {name: (folder / name).read_bytes() for name in helpers.tree(folder) if (folder / name).is_file()}
    del found["manifest.json"]
    state = json.loads(found["state.json"])
    del state["digests"]["config"]
    return found | {"state.json": json.dumps(state).encode()}


def responses(run: Path) -> dict[str, Any]:
    """Every response of every step, training and evaluation."""
    from dapo.run.directory import RunDirectory

    opened = RunDirectory.open(str(run))
    return {
        f"{folder}/{file.name}": opened.rollouts(int(file.name[5:11]), folder)
        for folder in ("rollouts", "eval")
        for file in (run / folder).glob("step_*.jsonl.zst")
    }


def check_equal(run: Path, other: Path, step: int = STEPS) -> None:
    """Bitwise the same weights, optimiser state, metrics and responses."""
    one, two = files_of(run, step), files_of(other, step)
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []
    assert helpers.comparable(helpers.metrics(run)) == helpers.comparable(helpers.metrics(other))
    assert responses(run) == responses(other)


def resume(run: Path, *words: str) -> str:
    """Resumes a run, which has to end with 0; returns stderr."""
    code, _, err = helpers.quiet_dapo("train", "--resume", run, *words)
    assert code == 0, err
    return err


# --- resume -------------------------------------------------------------------------------------------


def test_the_same_run_twice_is_the_same(tmp_path: Path) -> None:
    """What resume is held against below is itself reproducible, and it trains."""
    again = helpers.train(tmp_path, *KEEP_ALL)
    check_equal(again, straight())
    assert files_of(again, 1) != files_of(again, STEPS)


@pytest.mark.parametrize("step", range(1, STEPS))
@pytest.mark.parametrize("words", [KL], ids=["kl"])
def test_resume_is_bitwise_the_same_as_never_stopping(step: int, words: tuple[str, ...], tmp_path: Path) -> None:
    """From each step of a run that crashed later: metrics past the checkpoint are cut, not doubled.

    With a KL penalty the reference has to be the starting policy again, not the checkpoint.
    """
    run = helpers.copy_run(straight(*words), tmp_path / "run", up_to=step)
    err = resume(run)
    assert f"step {step})" in err
    check_equal(run, straight(*words))


def test_a_longer_horizon_goes_on_as_if_planned(tmp_path: Path) -> None:
    """Two steps, then two more, are four."""
    run = helpers.train(tmp_path, *KEEP_ALL, "train.num_steps=2")
    resume(run, f"train.num_steps={STEPS}")
    check_equal(run, straight())
    resolved = json.loads((run / "config.resolved.json").read_text(encoding="utf-8"))
    assert resolved["train"]["num_steps"] == STEPS


def test_resume_latest_takes_the_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the runs below runs/ in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    older = helpers.copy_run(straight(), tmp_path / "runs" / "zz-older", up_to=2)
    newer = helpers.copy_run(straight(), tmp_path / "runs" / "aa-newer", up_to=3)
    code, _, err = helpers.quiet_dapo("train", "--resume", "latest")
    assert code == 0, err
    assert "step 3)" in err
    check_equal(newer, straight())
    assert not (older / "checkpoints" / f"step_{STEPS:06d}").exists()


def test_a_finished_run_has_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, exits 0, loads nothing and changes nothing."""
    run = helpers.copy_run(straight(), tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    monkeypatch.setattr("dapo.build.load_model", lambda *a, **k: pytest.fail("the model was loaded"))
    code, _, err = helpers.quiet_dapo("train", "--resume", run)
    assert code == 0
    assert "nothing to do" in err
    assert f"train.num_steps={STEPS + 10}" in err
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_finished_run_still_answers_json(tmp_path: Path) -> None:
    """A script that reads stdout must not find it empty."""
    run = helpers.copy_run(straight(), tmp_path / "run")
    code, out, _ = helpers.quiet_dapo("train", "--resume", run, "--json")
    assert code == 0
    assert helpers.strict_json(out)["step"] == STEPS


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("one training answer", "training_data (40 problems, but not the same)"),
        ("one more problem", "training_data (40 problems then, 41 problems now)"),
    ],
)
def test_changed_data_is_refused(change: str, named: str, tmp_path: Path) -> None:
    """Going on with other data would make a run that nobody could repeat."""
    run = helpers.train(tmp_path, "train.num_steps=1", "data.holdout=0", "eval.data=[]")
    rows = helpers.problems(40 + (change == "one more problem"))
    rows[3]["answer"] = "8" if change == "one training answer" else "7"
    helpers.write_rows(tmp_path / "data.jsonl", rows)
    before = helpers.tree(run)
    code, _, err = helpers.quiet_dapo("train", "--resume", run, "train.num_steps=2")
    assert code == 2
    assert err.splitlines()[-1].startswith("error: ")
    assert named in err.splitlines()[-1]
    assert helpers.tree(run) == before


def test_changed_evaluation_data_is_refused(tmp_path: Path) -> None:
    """The difference is named: the evaluation's, not the training's."""
    other = helpers.write_rows(tmp_path / "other.jsonl", [{"prompt": "other", "answer": "7"}])
    run = helpers.train(tmp_path, "train.num_steps=1", "data.holdout=0", f"eval.data={other}")
    helpers.write_rows(other, [{"prompt": "changed", "answer": "7"}])
    code, _, err = helpers.quiet_dapo("train", "--resume", run, "train.num_steps=2")
    assert code == 2
    assert "evaluation_data" in err.splitlines()[-1]


def test_a_changed_template_is_refused(tmp_path: Path) -> None:
    """The same problems in other words are other prompts."""
    run = helpers.copy_run(straight(), tmp_path / "run", up_to=2)
    code, _, err = helpers.quiet_dapo("train", "--resume", run, "data.template=tell {{{{ problem }}}}".format())
    assert code == 2
    assert "template" in err.splitlines()[-1]


def test_lines_past_the_checkpoint_and_a_torn_one_are_cut(tmp_path: Path) -> None:
    """A crash in the middle of a write leaves no double and no half line."""
    run = helpers.copy_run(straight(), tmp_path / "run", up_to=2)
    file = run / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2], encoding="utf-8")
    resume(run)
    assert [row["step"] for row in helpers.metrics(run)] == list(range(STEPS + 1))
    check_equal(run, straight())


# --- broken checkpoints -------------------------------------------------------------------------------

CHECKPOINT_FILES = [
    "history.json",
    "manifest.json",
    "model/chat_template.jinja",
    "model/config.json",
    "model/generation_config.json",
    "model/model.safetensors",
    "model/tokenizer.json",
    "model/tokenizer_config.json",
    "optimizer.safetensors",
    "state.json",
]


def test_the_list_of_files_is_whole() -> None:
    """What is damaged below is everything that there is."""
    folder = straight() / "checkpoints" / f"step_{STEPS:06d}"
    assert sorted(name for name in helpers.tree(folder) if (folder / name).is_file()) == CHECKPOINT_FILES


def flip_a_byte(path: Path) -> None:
    """A bit error: the size stays."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def empty(path: Path) -> None:
    """What a file system without a sync may leave."""
    path.write_bytes(b"")


DAMAGES: dict[str, Callable[[Path], None]] = {"flip": flip_a_byte, "delete": Path.unlink, "empty": empty}


@pytest.mark.parametrize("name", CHECKPOINT_FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over(
    name: str, damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each file, in each way: the one before is taken, and the reason names the file."""
    folder = tmp_path / "checkpoints"
    for step in (3, STEPS):
        shutil.copytree(straight() / "checkpoints" / f"step_{step:06d}", folder / f"step_{step:06d}")
    DAMAGES[damage](folder / f"step_{STEPS:06d}" / name)
    with caplog.at_level("WARNING", logger="dapo"):
        found = checkpoint.newest(folder)
    assert found.state.step == 3
    assert f"step_{STEPS:06d}: " in caplog.text
    assert name in caplog.text
    with pytest.raises(UserError, match=f"step_{STEPS:06d}: "):
        checkpoint.at_step(folder, STEPS)


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_no_bit_of_the_manifest_may_flip(mask: int, tmp_path: Path) -> None:
    """A damaged manifest may be no UTF-8, no JSON, or JSON of another shape; it is never a crash."""
    folder = tmp_path / "step_000001"
    folder.mkdir()
    (folder / "state.json").write_text("{}", encoding="utf-8")
    entry = {"state.json": {"size": 2, "sha256": checkpoint.sha256(folder / "state.json")}}
    good = checkpoint.manifest_text(entry).encode()
    (folder / "manifest.json").write_bytes(good)
    assert checkpoint.fault(folder) is None
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= mask
        (folder / "manifest.json").write_bytes(bad)
        assert checkpoint.fault(folder), bytes(bad)


@pytest.mark.parametrize("content", ["[]", "3", "null", '{"state.json": 3}', '{"state.json": {}}'])
def test_a_manifest_of_another_shape_is_a_fault(content: str, tmp_path: Path) -> None:
    """Valid JSON that is no manifest."""
    (tmp_path / "state.json").write_text("{}", encoding="utf-8")
    (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    assert checkpoint.fault(tmp_path)


def test_resume_goes_on_from_the_one_before(tmp_path: Path) -> None:
    """The whole command: says which it passed over and why, and ends bitwise the same."""
    run = helpers.copy_run(straight(), tmp_path / "run")
    (run / "checkpoints" / f"step_{STEPS:06d}" / "manifest.json").unlink()
    flip_a_byte(run / "checkpoints" / "step_000003" / "optimizer.safetensors")
    err = resume(run)
    assert "step_000004: it has no manifest.json" in err
    assert "step_000003: optimizer.safetensors" in err
    assert "step 2)" in err
    check_equal(run, straight())


def test_with_no_complete_checkpoint_resume_says_so(tmp_path: Path) -> None:
    """One line, and the run stays as it is."""
    run = helpers.copy_run(straight(), tmp_path / "run", up_to=1)
    (run / "checkpoints" / "step_000001" / "state.json").unlink()
    before = helpers.tree(run)
    code, _, err = helpers.quiet_dapo("train", "--resume", run)
    assert code == 2
    assert err.splitlines()[-1].startswith("error: ")
    assert "no complete checkpoint" in err.splitlines()[-1]
    assert helpers.tree(run) == before


def test_a_save_killed_half_way_does_not_matter(tmp_path: Path) -> None:
    """C4: its folder is neither taken nor in the way."""
    run = helpers.copy_run(straight(), tmp_path / "run", up_to=2)
    left = run / "checkpoints" / ".step_000003.tmp"
    (left / "model").mkdir(parents=True)
    (left / "model" / "old.safetensors").write_bytes(b"half")
    (left / "manifest.json").write_text("{}", encoding="utf-8")
    resume(run)
    check_equal(run, straight())
    assert not left.exists()
    assert not (run / "checkpoints" / "step_000003" / "model" / "old.safetensors").exists()


# --- what is kept -------------------------------------------------------------------------------------


class FakeLearner:
    """Saves a byte, or fails while doing so."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def save_hf(self, path: Path, weights: Any = None) -> None:
        """One file; then the disk is full."""
        save_file(dict(weights), path / "model.safetensors")
        if self.error:
            raise self.error


def content(state: TrainState, seed: int = 0) -> checkpoint.Content:
    """Something small to save."""
    generator = torch.Generator().manual_seed(seed)
    return checkpoint.Content(
        state=state,
        weights={"w": torch.randn(3, generator=generator)},
        optimizer={"step/w": torch.tensor(2.0), "exp_avg/w": torch.randn(3, generator=generator)},
        tokenizer={"tokenizer.json": b"{}"},
        made_of=MadeOf({"training_data": "d"}, {"training_data": "7 problems"}),
        learning_rate=1e-6,
    )


def save(folder: Path, step: int, keep_last: int, error: Exception | None = None, **settings: Any) -> None:
    """Saves a checkpoint of a fake learner."""
    folder.mkdir(exist_ok=True)
    state = TrainState(step=step, version=step, next_draw=4 * step, score=settings.pop("score", None))
    path = checkpoint.write(folder, content(state), FakeLearner(error))  # type: ignore[arg-type]
    checkpoint.prune(folder, path, CheckpointConfig(keep_last=keep_last, **settings))


def steps_of(folder: Path) -> list[int]:
    """The checkpoints there."""
    return sorted(int(path.name[5:]) for path in folder.glob("step_*"))


@pytest.mark.parametrize("keep_last", [1, 2, 3])
def test_keep_last_keeps_the_last(keep_last: int, tmp_path: Path) -> None:
    """As many as asked for, and the state comes back."""
    for step in range(1, 5):
        save(tmp_path, step, keep_last)
    assert steps_of(tmp_path) == [1, 2, 3, 4][-keep_last:]
    assert checkpoint.newest(tmp_path).state == TrainState(step=4, version=4, next_draw=16)


def test_nothing_is_removed_before_the_new_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment of the first removal the new checkpoint is complete under its name."""
    save(tmp_path, 1, 1)
    seen: list[str | None] = []
    remove = shutil.rmtree

    def watched(path: Path, *arguments: Any, **named: Any) -> None:
        if Path(path).name == "step_000001":
            seen.append(checkpoint.fault(tmp_path / "step_000002"))
        remove(path, *arguments, **named)

    monkeypatch.setattr(shutil, "rmtree", watched)
    save(tmp_path, 2, 1)
    assert seen == [None]


@pytest.mark.parametrize("place", ["save_hf", "sync_tree"])
def test_a_save_that_fails_leaves_the_old_one(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs the new checkpoint, never the last good one."""
    save(tmp_path, 1, 1)
    error = OSError("No space left on device")

    def full(*arguments: Any) -> None:
        raise error

    if place == "sync_tree":
        monkeypatch.setattr(checkpoint, "sync_tree", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2, 1, error if place == "save_hf" else None)
    assert steps_of(tmp_path) == [1]
    assert checkpoint.newest(tmp_path).state.step == 1


def test_a_newer_broken_checkpoint_does_not_push_out_a_good_one(tmp_path: Path) -> None:
    """After a resume from before a broken checkpoint, the fresh one must outlive the broken one."""
    for step in (2, 4):
        save(tmp_path, step, 10)
    (tmp_path / "step_000004" / "manifest.json").unlink()
    save(tmp_path, 3, 1)
    assert checkpoint.newest(tmp_path).state.step == 3


def test_a_checkpoint_lists_every_file(tmp_path: Path) -> None:
    """What the manifest leaves out is not checked."""
    save(tmp_path, 1, 1)
    listed = json.loads((tmp_path / "step_000001" / "manifest.json").read_text(encoding="utf-8"))["files"]
    assert {*listed, "manifest.json"} == {
        name for name in helpers.tree(tmp_path / "step_000001") if (tmp_path / "step_000001" / name).is_file()
    }
    assert {"state.json", "optimizer.safetensors", "model/model.safetensors"} <= set(listed)


def test_another_step_is_named(tmp_path: Path) -> None:
    """RUN@STEP of a step that is not there lists those that are."""
    save(tmp_path, 2, 1)
    with pytest.raises(UserError, match=r"no checkpoint of step 7; there are: 2"):
        checkpoint.at_step(tmp_path, 7)
