"""The run directory: what is in it, who may write to it, and how a run stops."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import helpers_run as helpers
from dapo.config.load import from_tree, load_config
from dapo.errors import UserError
from dapo.run.directory import RunDirectory

# --- what is written ----------------------------------------------------------------------------------


def test_the_layout_is_what_the_documentation_says() -> None:
    """Section 8 of the design, file by file."""
    found = helpers.tree(helpers.finished_run())
    wanted = {
        "config.resolved.json",
        "manifest.json",
        "metrics.jsonl",
        "log.txt",
        "rollouts/step_000001.jsonl.zst",
        "rollouts/step_000002.jsonl.zst",
        "eval/step_000000.json",
        "eval/step_000002.json",
        "checkpoints/step_000002/manifest.json",
        "checkpoints/step_000002/model/model.safetensors",
        "checkpoints/step_000002/model/config.json",
        "checkpoints/step_000002/model/tokenizer.json",
    }
    assert wanted <= found
    assert not [name for name in found if name.endswith(".tmp")]


def test_the_resolved_config_is_the_whole_config() -> None:
    """Reading it back gives the config the run had; no default is left to a later version."""
    run = helpers.finished_run()
    tree = helpers.strict_json((run / "config.resolved.json").read_text(encoding="utf-8"))
    assert from_tree(tree) == load_config(run.parent / "recipe.toml")
    assert tree["train"]["adam_eps"] == 1e-8


def test_the_manifest_says_what_the_run_was_made_of() -> None:
    """Versions, digests, code, data, machine."""
    manifest = helpers.strict_json((helpers.finished_run() / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["recipe"] == "tiny"
    assert {"torch", "transformers", "numpy"} <= set(manifest["versions"])
    assert {"config", "training_data", "evaluation_data"} <= set(manifest["digests"])
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in manifest["digests"].values())
    assert manifest["data"]["training_prompts"] == 36  # 40 problems, 4 held out
    assert manifest["data"]["evaluation_prompts"] == 4
    assert manifest["data"]["counts"]["rows"] == 40
    assert "code" in manifest
    assert manifest["machine"]["cpus"] == os.cpu_count()


def test_metrics_have_one_line_per_step() -> None:
    """Step 0 holds the evaluation before, the last step the one after; every line is strict JSON."""
    rows = helpers.metrics(helpers.finished_run())
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert ["eval/accuracy" in row for row in rows] == [True, False, True]
    assert "sampled/accuracy" not in rows[0]
    names = """sampled/accuracy kept/accuracy sampling/acceptance sampling/all_wrong_fraction
        response/length_mean_tokens response/truncated_fraction loss/policy clip/high_fraction clip/low_fraction
        ratio/outside_fraction policy/entropy ratio/mean mismatch/logprob_abs_mean grad/norm time/rollout_s
        time/grade_s time/train_s tokens/per_s memory/peak_gb reward/grader_mean"""
    # the last of these is split in two, before and after the filter
    split = {"sampled/reward_grader_mean", "kept/reward_grader_mean"}
    assert {*names.split()} - {"reward/grader_mean"} | split <= set(rows[1])


def test_rollouts_are_read_back() -> None:
    """Every response of a step, with whether it was trained on."""
    run = RunDirectory.open(str(helpers.finished_run()))
    metrics = helpers.metrics(run.path)[1]
    rows = run.rollouts(1)
    kept = [row for row in rows if row["kept"]]
    assert len(kept) == 4 * metrics["sampling/kept"]
    assert sum(row["tokens"] for row in rows) == metrics["tokens/generated"]
    assert sum(row["tokens"] for row in kept) == metrics["tokens/kept"]
    right = [row for row in kept if row["verdict"] == "correct"]
    assert len(right) / len(kept) == metrics["kept/accuracy"]
    for row in rows:
        assert row["question"].startswith("say ")
        assert row["answer"] == "7"
        assert (row["extracted"] == "7") == (row["verdict"] == "correct")
        assert row["versions"][0][0] in (0, row["tokens"])
    with pytest.raises(UserError, match="no rollouts"):
        run.rollouts(9)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_damaged_rollouts_are_not_half_read(damage: str, tmp_path: Path) -> None:
    """A file that was cut off would otherwise give fewer rows, without a word."""
    run = helpers.copy_run(helpers.finished_run(), tmp_path / "run")
    file = run / "rollouts" / "step_000001.jsonl.zst"
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-9] ^= 0x40
    file.write_bytes({"cut": data[: len(data) // 2], "flip": data, "empty": b""}[damage])
    with pytest.raises(UserError, match=r"step_000001\.jsonl\.zst: damaged"):
        RunDirectory.open(str(run)).rollouts(1)


def test_evaluation_files_agree_with_the_metrics() -> None:
    """One figure, one source."""
    run = helpers.finished_run()
    rows = helpers.metrics(run)
    for row in (rows[0], rows[2]):
        written = helpers.strict_json((run / "eval" / f"step_{row['step']:06d}.json").read_text(encoding="utf-8"))
        figures = written["sets"]["holdout"]
        assert figures["accuracy"] == row["eval/accuracy"]
        assert (figures["problems"], figures["k"]) == (4, 2)
        graded = RunDirectory.open(str(run)).rollouts(row["step"], "eval")
        assert sum(r["verdict"] == "correct" for r in graded) / 8 == pytest.approx(figures["accuracy"])


def test_an_evaluation_of_one_problem_is_still_json(tmp_path: Path) -> None:
    """Its interval does not exist; NaN is no JSON."""
    run = helpers.train(tmp_path, "data.holdout=1", "train.num_steps=1")
    helpers.strict_json((run / "eval" / "step_000001.json").read_text(encoding="utf-8"))
    assert helpers.metrics(run)[-1]["eval/low"] is None


# --- who may write ------------------------------------------------------------------------------------


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    """A second run would mix with the first."""
    run = helpers.copy_run(helpers.finished_run(), tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    code, _, err = helpers.quiet_dapo("train", helpers.write_recipe(tmp_path), "--output-dir", run)
    assert code == 2
    assert f"--resume {run}" in err.splitlines()[-1]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize("verb", ["new", "resume"])
def test_two_runs_into_one_directory_are_refused(verb: str, tmp_path: Path) -> None:
    """The second finds the first's lock, and touches nothing."""
    recipe = helpers.write_recipe(tmp_path)
    path = tmp_path / "run"
    if verb == "resume":
        helpers.copy_run(helpers.finished_run(), path)
    first = RunDirectory(path)
    first.hold(new=False)
    try:
        before = helpers.tree(path)
        words = ["train", recipe, "--output-dir", path] if verb == "new" else ["train", "--resume", path]
        code, _, err = helpers.quiet_dapo(*words, "train.num_steps=3")
        assert code == 2
        assert "another process" in err.splitlines()[-1]
        assert helpers.tree(path) == before
    finally:
        first.release()
    code, _, err = helpers.quiet_dapo(*words, "train.num_steps=3")
    assert code == 0, err  # and with the lock free the same words work


class OneSecond(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: Any = None) -> OneSecond:
        """A second of the past."""
        return cls(2026, 1, 2, 3, 4, 5)


def test_runs_that_begin_in_the_same_second_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a loop over seeds with & behind each; whoever named a folder is told that it is taken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dapo.run.directory.datetime", OneSecond)
    made = [RunDirectory.create("tiny", None) for _ in range(8)]
    assert not list(tmp_path.iterdir())
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda one: one.claim(), made)) == [True] * 8
    names = sorted((one.path.name for one in made), key=len)
    assert names[0] == "tiny-20260102-030405"
    assert set(names[1:]) == {f"{names[0]}-{number}" for number in range(2, 9)}
    assert all(one.path.is_dir() and one.checkpoints.parent == one.path for one in made)
    assert made[0].claim() is False  # a second time nothing is made


@pytest.mark.parametrize("what", ["file", "dangling link"])
def test_runs_that_is_no_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """As a link to a disk that is not mounted."""
    monkeypatch.chdir(tmp_path)
    if what == "file":
        Path("runs").write_text("")
    else:
        Path("runs").symlink_to(tmp_path / "missing" / "disk")
    with pytest.raises(UserError, match="can't be made"):
        RunDirectory.create("tiny", None).claim()


def test_two_runs_in_the_same_second_both_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that turns out to be none leaves no folder."""
    recipe = helpers.write_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dapo.run.directory.datetime", OneSecond)
    words = ("train", recipe, "train.num_steps=1", "eval.data=[]")
    code, _, _ = helpers.quiet_dapo(*words, "data.source=missing.jsonl")
    assert code == 2
    assert not (tmp_path / "runs").exists()
    for _ in range(2):
        code, _, err = helpers.quiet_dapo(*words)
        assert code == 0, err
    first, second = sorted((tmp_path / "runs").iterdir())
    assert second.name == f"{first.name}-2"
    assert helpers.metrics(first)[-1]["loss/policy"] == helpers.metrics(second)[-1]["loss/policy"]


def test_a_file_is_no_output_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the name itself, which is told before anything is loaded, nor a folder on the way."""
    recipe = helpers.write_recipe(tmp_path)
    for target in (recipe / "below", recipe):
        if target == recipe:
            monkeypatch.setattr("dapo.build.load_model", lambda *a, **k: pytest.fail("the model was loaded"))
        code, _, err = helpers.quiet_dapo("train", recipe, "--output-dir", target)
        assert code == 2
        assert str(recipe) in err.splitlines()[-1]


def test_a_path_with_an_at_sign_is_a_path(tmp_path: Path) -> None:
    """RUN@STEP must not cut user@host out of a folder's name."""
    run = helpers.copy_run(helpers.finished_run(), tmp_path / "me@home")
    for name in (str(run), f"{run}@2"):
        code, _, err = helpers.quiet_dapo("export", name, tmp_path / f"out{len(name)}")
        assert code == 0, err


# --- how a run stops ----------------------------------------------------------------------------------


def test_exhausted_data_stops_the_run(tmp_path: Path) -> None:
    """Exit 3, the counts in the message, and the checkpoint of the last full step."""
    words = ("data.repeat=false", "sampling.filter=off", "sampling.on_exhausted=stop", "train.num_steps=9")
    words += ("data.holdout=0", "eval.data=[]")
    recipe = helpers.write_recipe(tmp_path, count=10)
    code, _, err = helpers.quiet_dapo("train", recipe, *words, "--output-dir", tmp_path / "run")
    assert code == 3
    last = err.splitlines()[-1]
    assert last.startswith("stopped: ")
    assert "kept 2 of 4 groups out of 2 draws" in last  # 10 problems: two steps of 4, then 2 are left
    assert "data ended" in last
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step_*")] == ["step_000002-d000002"]
    code, _, err = helpers.quiet_dapo("train", "--resume", tmp_path / "run", "sampling.on_exhausted=train_short")
    assert "step 2)" in err  # it is resumable; then the data is at its end for good
    assert [row["step"] for row in helpers.metrics(tmp_path / "run")][:3] == [1, 2, 3]
    assert code == 3


def test_exhaustion_at_the_first_step_is_resumable_too(tmp_path: Path) -> None:
    """Exit 3 promises a saved state; and step 0 must not stand in the metrics twice after a resume."""
    recipe = helpers.write_recipe(tmp_path, answer="31415")
    words = ("sampling.on_exhausted=stop", "sampling.max_rounds=2")
    code, _, err = helpers.quiet_dapo("train", recipe, *words, "--output-dir", tmp_path / "run")
    assert code == 3
    assert "kept 0 of 4 groups out of 8 draws (0 all right, 8 all wrong)" in err.splitlines()[-1]
    code, _, err = helpers.quiet_dapo("train", "--resume", tmp_path / "run", "sampling.filter=off", "train.num_steps=1")
    assert code == 0, err
    assert [row["step"] for row in helpers.metrics(tmp_path / "run")] == [0, 1]


def test_non_finite_gradients_in_a_row_stop_the_run(tmp_path: Path) -> None:
    """Each update is skipped and counted; the run ends with exit 3, in the middle of a step, and unspoilt weights."""
    objective = "def bad(inputs):\n    return inputs.logprobs_BT * float('nan')\n"
    (tmp_path / "bad.py").write_text(objective, encoding="utf-8")
    words = (f"algorithm.objective={tmp_path / 'bad.py'}:bad", "train.num_steps=9", "train.max_nonfinite_updates=3")
    recipe = helpers.write_recipe(tmp_path)
    code, _, err = helpers.quiet_dapo("train", recipe, *words, "--output-dir", tmp_path / "run")
    assert code == 3
    last = err.splitlines()[-1]
    assert last.startswith("stopped: 3 updates in a row")  # two of the first step, one of the second
    assert "train.max_nonfinite_updates" in last
    rows = helpers.metrics(tmp_path / "run")
    assert [row.get("grad/nonfinite_updates") for row in rows] == [None, 2]
    start = helpers.weights(helpers.warm_model())
    (saved,) = (tmp_path / "run" / "checkpoints").glob("step_*")
    assert saved.name == "step_000001-u000001"
    assert helpers.largest_difference(helpers.weights(saved / "model"), start) == 0


SLOW_REWARD = """
import pathlib, time
HERE = pathlib.Path(__file__).parent
calls = 0

def slow(completions, **columns):
    global calls
    calls += 1
    if calls == 12:  # in the second step or later: wait there until told to go on
        (HERE / "inside").touch()
        while not (HERE / "go").exists():
            time.sleep(0.01)
    return [0.0] * len(completions)
"""


@dataclass
class Stopping:
    """A run in a process of its own that waits in the middle of a step."""

    folder: Path
    process: subprocess.Popen[str]

    @property
    def stderr(self) -> str:
        """What it has said so far."""
        return (self.folder / "stderr").read_text(encoding="utf-8")

    def until(self, what: str) -> None:
        """Waits for a text on stderr, or for the file "inside"."""
        deadline = time.monotonic() + 200
        while not ((self.folder / "inside").exists() if what == "inside" else what in self.stderr):
            assert self.process.poll() is None, self.stderr
            assert time.monotonic() < deadline, self.stderr
            time.sleep(0.02)

    def end(self) -> int:
        """The exit code."""
        return self.process.wait(timeout=200)


def start_slowly(folder: Path) -> Stopping:
    """Starts a long run that waits in its second step."""
    folder.mkdir()
    (folder / "slow.py").write_text(SLOW_REWARD, encoding="utf-8")
    recipe = helpers.write_recipe(folder)
    words = [
        'reward.functions=["grader", "' + str(folder / "slow.py") + ':slow"]',
        "sampling.filter=off",
        "train.num_steps=5000",
    ]
    words += ["eval.data=[]", "data.holdout=0", "--output-dir", "run"]
    command = [sys.executable, "-m", "dapo", "train", str(recipe), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with (folder / "stderr").open("w") as err:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=err, env=environment)
    return Stopping(folder, process)


@pytest.mark.timeout(280)
@pytest.mark.slow
def test_signals_stop_a_run(tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM save and end with 3; a second Ctrl-C leaves at once with 130.

    One test, so that the three processes start side by side.
    """
    once, twice, term = runs = [start_slowly(tmp_path / name) for name in ("once", "twice", "term")]
    try:
        for run, number in zip(runs, (signal.SIGINT, signal.SIGINT, signal.SIGTERM), strict=True):
            run.until("inside")
            run.process.send_signal(number)
            run.until("stopping at the next safe point")
        twice.process.send_signal(signal.SIGINT)
        assert twice.end() == 130
        assert "Traceback" not in twice.stderr
        for run in (once, term):
            (run.folder / "go").touch()
            assert run.end() == 3
            last = run.stderr.splitlines()[-1]
            step = int(
                re.findall(r"^stopped: .*stopped after step (\d+).*; go on with: dapo train --resume run", last)[0]
            )
            assert "Traceback" not in run.stderr
            assert [row["step"] for row in helpers.metrics(run.folder / "run")] == list(range(1, step + 1))
            code, _, err = helpers.quiet_dapo("train", "--resume", run.folder / "run", f"train.num_steps={step + 1}")
            assert code == 0, err
            assert f"step {step})" in err
            assert helpers.metrics(run.folder / "run")[-1]["step"] == step + 1
    finally:
        for run in runs:
            run.process.kill()
            run.process.wait()


def test_the_log_holds_what_was_said(tmp_path: Path) -> None:
    """log.txt is what is left of a run whose terminal is gone: a reward that failed must stand in it."""
    source = "def bad(completions, **columns):\n    raise ValueError('half of them')\n"
    (tmp_path / "bad.py").write_text(source, encoding="utf-8")
    words = (f'reward.functions=["grader", "{tmp_path}/bad.py:bad"]', "reward.max_error_fraction=1.0", "eval.data=[]")
    run = helpers.train(tmp_path, *words, "sampling.filter=off", "train.num_steps=1")
    assert "half of them" in (run / "log.txt").read_text(encoding="utf-8")
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["sampled/error_fraction"] == 1.0
