"""What surrounds a resume: changed settings, damaged files, foreign folders, disks, functions that leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import helpers_run as helpers
from dapo.run import checkpoint
from test_checkpoint import check_equal, resume, steps_of
from test_resume import SCHEDULES, counting, stopped_at, straight

SAVING = ("train.num_steps=3", "checkpoint.every=1", "checkpoint.keep_last=9")


def refused(run: Path, *words: str | Path) -> str:
    """The one line with which a resume is refused; nothing of the run may have changed."""
    before = {name: (run / name).read_bytes() for name in ("config.resolved.json", "manifest.json")}
    code, _, err = helpers.quiet_dapo("train", "--resume", run, *words)
    assert code == 2, err
    assert "Traceback" not in err
    after = {name: (run / name).read_bytes() for name in before}
    assert after == before
    return err.splitlines()[-1]


# --- the command line -----------------------------------------------------------------------------


def test_a_dry_run_of_a_resume_trains_nothing(tmp_path: Path) -> None:
    """Refused: it would have nothing to check that a resume does not."""
    run = helpers.train(tmp_path, "train.num_steps=1")
    assert "--dry-run" in refused(run, "train.num_steps=2", "--dry-run")
    assert steps_of(run / "checkpoints") == [1]


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "rollouts", "eval"])
def test_a_folder_of_something_else_is_not_trained_into(name: str, tmp_path: Path) -> None:
    """Another program's checkpoints/ would be pruned, its metrics mixed in."""
    place = tmp_path / "run" / name
    place.parent.mkdir()
    if name == "metrics.jsonl":
        place.write_text("{}\n")
    else:
        (place / "step_000001").mkdir(parents=True)
        (place / "step_000001" / "precious.pt").write_bytes(b"x")
    before = helpers.tree(tmp_path)
    recipe = helpers.write_recipe(tmp_path)
    code, _, err = helpers.quiet_dapo("train", recipe, "--output-dir", tmp_path / "run")
    assert code == 2
    assert f"holds {name} of something else" in err.splitlines()[-1]
    assert helpers.tree(tmp_path) - {"recipe.toml", "data.jsonl"} == before


def test_the_lock_is_taken_before_anything_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another process could finish steps between the look and the lock, and lose them."""
    run = helpers.train(tmp_path, "train.num_steps=1")
    held: list[bool] = []
    inner = checkpoint.find
    script = [
        sys.executable,
        "-c",
        f"from filelock import FileLock; FileLock({str(run / '.lock')!r}).acquire(timeout=0)",
    ]

    def find_from_outside(folder: Path) -> Any:
        held.append(subprocess.run(script, capture_output=True).returncode != 0)
        return inner(folder)

    monkeypatch.setattr(checkpoint, "find", find_from_outside)
    resume(run, "train.num_steps=2")
    assert held
    assert all(held)


# --- without checkpoints --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["dangling", "file", "gone"])
def test_checkpoints_out_of_reach_do_not_cost_the_logs(how: str, tmp_path: Path) -> None:
    """An unmounted disk is not a run that never saved."""
    run = helpers.train(tmp_path, *SAVING)
    place = run / "checkpoints"
    place.rename(tmp_path / "elsewhere")
    if how == "dangling":
        place.symlink_to(tmp_path / "nowhere")
    elif how == "file":
        place.write_text("")
    before = (run / "metrics.jsonl").read_bytes(), helpers.tree(run / "rollouts")
    last = refused(run, "train.num_steps=5")
    assert "checkpoint" in last
    assert ((run / "metrics.jsonl").read_bytes(), helpers.tree(run / "rollouts")) == before


def test_checkpoints_may_lie_on_another_disk(tmp_path: Path) -> None:
    """A link to a folder is as good, and old ones that can't be removed do not fail the new."""
    run = helpers.train(tmp_path, *SAVING)
    (run / "checkpoints").rename(tmp_path / "other")
    (run / "checkpoints").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "step_000001").rename(tmp_path / "moved")
    (tmp_path / "other" / "step_000001").symlink_to(tmp_path / "moved")
    err = resume(run, "train.num_steps=5", "checkpoint.keep_last=1")
    assert "could not be removed" in (run / "log.txt").read_text() + err
    assert checkpoint.newest(run / "checkpoints").state.step == 5


# --- changed settings on what a checkpoint carries ------------------------------------------------


def carrying(tmp_path: Path) -> Path:
    """A run whose newest checkpoint carries four groups."""
    run = helpers.copy_run(straight("carry")[0], tmp_path / "run", up_to=3)
    found = checkpoint.newest(run / "checkpoints")
    assert len(found.state.carried) == 4
    return run


@pytest.mark.parametrize(
    ("words", "needle"),
    [
        (("sampling.responses_per_prompt=6",), "responses_per_prompt = 6, but the checkpoint carries 4 groups of 4"),
        (("sampling.surplus=discard", "sampling.max_staleness=0", "algorithm.importance_cap=off"), "max_staleness = 0"),
        (("sampling.prompts_per_step=1", "train.updates_per_step=1"), "prompts_per_step"),
    ],
)
def test_settings_that_do_not_fit_the_carried_groups(words: tuple[str, ...], needle: str, tmp_path: Path) -> None:
    """Refused by name before anything is written; without them the run goes on as before."""
    run = carrying(tmp_path)
    assert needle in refused(run, *words)
    resume(run)
    check_equal(run, straight("carry")[0])


def test_settings_that_fit_are_told_and_taken(tmp_path: Path) -> None:
    """Another schedule and a longer wait are no contradiction to what is carried."""
    run = carrying(tmp_path)
    err = resume(run, "sampling.max_staleness=2", "sampling.schedule=rounds", "train.num_steps=6")
    assert 'changed: sampling.schedule: "streaming" -> "rounds"' in err
    assert max(row.get("staleness/max_versions", 0) for row in helpers.metrics(run)) <= 2


def test_pending_updates_are_told(tmp_path: Path) -> None:
    """They are made as they were sampled, whatever was changed since."""
    run = stopped_at("streaming", "update", 2, tmp_path / "run")
    err = resume(run, "train.learning_rate=1e-3")
    assert "2 updates of step 1 are left, as they were sampled" in err


def test_columns_that_grading_reads_are_part_of_the_data(tmp_path: Path) -> None:
    """A changed test or target column is other data, though problem and answer are the same."""
    rows = [row | {"target": 2} for row in helpers.problems(40)]
    recipe = helpers.write_recipe(tmp_path)
    helpers.write_rows(tmp_path / "data.jsonl", rows)
    code, _, err = helpers.quiet_dapo("train", recipe, "train.num_steps=1", "--output-dir", tmp_path / "run")
    assert code == 0, err
    helpers.write_rows(tmp_path / "data.jsonl", [row | {"target": 4} for row in rows])
    assert "training_data" in refused(tmp_path / "run", "train.num_steps=2")


# --- damaged files --------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [b"{\n", b"7\n", b'{"x": 1}\n', b'{"step": "a"}\n', b"\xff\xfe\n", b'{"step": 1.5}\n'])
def test_a_damaged_line_in_the_middle_is_named(bad: bytes, tmp_path: Path) -> None:
    """The sound lines behind it must not be lost without a word."""
    run = helpers.train(tmp_path, *SAVING)
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join([*lines[:2], bad, *lines[3:]]))
    assert "metrics.jsonl, line 3: damaged" in refused(run, "train.num_steps=4")


@pytest.mark.parametrize("tail", [b'{"step": 4, "a', b'{"step": 9}', b"\xff", b"7"])
def test_a_torn_last_line_is_cut(tail: bytes, tmp_path: Path) -> None:
    """Without a newline it was never finished, whatever it looks like."""
    run = helpers.train(tmp_path, *SAVING)
    with (run / "metrics.jsonl").open("ab") as handle:
        handle.write(tail)
    resume(run, "train.num_steps=4")
    assert [row["step"] for row in helpers.metrics(run)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["config.resolved.json", "manifest.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe", b"[", b"7", b"{}"])
def test_a_damaged_run_is_told_in_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    """Not UTF-8, not JSON, not what it should hold."""
    run = helpers.train(tmp_path, "train.num_steps=1")
    (run / name).write_bytes(content)
    code, _, err = helpers.quiet_dapo("train", "--resume", run, "train.num_steps=2")
    assert code == 2, err
    assert "Traceback" not in err


def test_foreign_files_beside_the_logs_are_left_alone(tmp_path: Path) -> None:
    """A copy somebody made is neither cut nor a crash."""
    run = helpers.train(tmp_path, *SAVING)
    (run / "rollouts" / "step_copy.jsonl.zst").write_bytes(b"x")
    resume(run, "train.num_steps=4")
    assert (run / "rollouts" / "step_copy.jsonl.zst").read_bytes() == b"x"


def test_a_file_in_the_place_of_a_checkpoint_is_told(tmp_path: Path) -> None:
    """Exit 3 and its name; what stands stays."""
    run = helpers.train(tmp_path, *SAVING)
    (run / "checkpoints" / "step_000004").write_text("not a folder")
    code, _, err = helpers.quiet_dapo("train", "--resume", run, "train.num_steps=4")
    assert code == 3
    assert "step_000004" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert checkpoint.newest(run / "checkpoints").state.step == 3


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root reads everything")
def test_a_checkpoint_that_may_not_be_read_is_passed_over(tmp_path: Path) -> None:
    """As a damaged one is."""
    run = helpers.train(tmp_path, *SAVING)
    (run / "checkpoints" / "step_000003" / "history.json").chmod(0)
    found = checkpoint.find(run / "checkpoints")
    assert found is not None
    assert found.state.step == 2


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """One line, whatever the system says."""
    code, _, err = helpers.quiet_dapo("train", helpers.write_recipe(tmp_path), "--output-dir", "/sys/kernel")
    assert code == 2
    assert "Traceback" not in err
    assert "/sys/kernel" in err.splitlines()[-1]


# --- saving on the way out ------------------------------------------------------------------------

LEAVING = """
import sys
calls = 0
def leave(completions, **columns):
    global calls
    calls += 1
    if calls > 8:
        sys.exit(0)
    return [0.0] * len(completions)
def tracker(step, metrics):
    sys.exit(0)
"""


def test_a_reward_that_calls_exit_is_an_error_of_its_own(tmp_path: Path) -> None:
    """Not an end with exit 0 that a script takes for success."""
    (tmp_path / "leaving.py").write_text(LEAVING, encoding="utf-8")
    words = (f'reward.functions=["grader", "{tmp_path}/leaving.py:leave"]', "eval.data=[]", "sampling.filter=off")
    words += ("train.num_steps=9",)
    code, _, err = helpers.quiet_dapo("train", helpers.write_recipe(tmp_path), *words, "--output-dir", tmp_path / "run")
    assert code == 2, err
    assert "scores of a round failed" in err.splitlines()[-1]
    assert steps_of(tmp_path / "run" / "checkpoints") == [2]


def test_a_tracker_that_calls_exit_is_a_failed_tracker(tmp_path: Path) -> None:
    """Counted, like any other."""
    (tmp_path / "leaving.py").write_text(LEAVING, encoding="utf-8")
    run = helpers.train(tmp_path, f'trackers=["{tmp_path}/leaving.py:tracker"]', "train.num_steps=2")
    assert sum(row.get("trackers/failures", 0) for row in helpers.metrics(run)) in (1, 2)  # in the line after, or later
    assert "tracker did not get 2 steps" in (run / "log.txt").read_text()


def test_metrics_that_cannot_be_written_cost_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's updates are saved, its line is written by the resume: nothing is missing."""
    from dapo.run.directory import RunDirectory

    inner, calls = RunDirectory.append_metrics, []

    def append(run: RunDirectory, step: int, metrics: Any) -> None:
        calls.append(step)
        if step == 3:
            from dapo.errors import SaveFailed

            raise SaveFailed("metrics.jsonl: can't be written: No space left on device")
        inner(run, step, metrics)

    monkeypatch.setattr(RunDirectory, "append_metrics", append)
    words = ("train.num_steps=4", "checkpoint.keep_last=9")
    recipe = helpers.write_recipe(tmp_path)
    code, _, _ = helpers.quiet_dapo("train", recipe, *words, "--output-dir", tmp_path / "run")
    assert code == 3
    monkeypatch.undo()
    resume(tmp_path / "run")
    check_equal(tmp_path / "run", helpers.train(tmp_path / "straight", *words))


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    """`dapo train ... 2>&1 | head -1`: training goes on to its end, in silence."""
    recipe = helpers.write_recipe(tmp_path)
    command = f"{sys.executable} -m dapo train {recipe} train.num_steps=3 --output-dir {tmp_path}/run 2>&1 >/dev/null"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        ["bash", "-c", f"{command} | head -1"], env=environment, check=True, capture_output=True, timeout=200
    )
    assert [row["step"] for row in helpers.metrics(tmp_path / "run")] == [0, 1, 2, 3]
    assert steps_of(tmp_path / "run" / "checkpoints") == [3]


def test_nonfinite_updates_in_a_row_stop_within_a_step(tmp_path: Path) -> None:
    """Three bad ones of every four are three in a row, though each step ends with a good one."""
    (tmp_path / "mostly.py").write_text(
        "calls = 0\ndef mostly(inputs):\n    global calls\n    calls += 1\n"
        "    return inputs.logprobs_BT * (-1.0 if calls % 4 == 0 else float('nan'))\n",
        encoding="utf-8",
    )
    words = (f"algorithm.objective={tmp_path}/mostly.py:mostly", "train.updates_per_step=4", "eval.data=[]")
    words += ("train.tokens_per_microbatch=100000", "sampling.filter=off", "train.max_nonfinite_updates=3")
    code, _, err = helpers.quiet_dapo("train", helpers.write_recipe(tmp_path), *words, "--output-dir", tmp_path / "run")
    assert code == 3
    assert "3 updates in a row" in err.splitlines()[-1]
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000000-u000003"]


def test_a_signal_after_a_failed_save_still_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transient failure in the background must not cost the steps since."""
    run, inner, tries = straight("rounds")[0], checkpoint.write, []

    def write(folder: Path, content: Any, learner: Any) -> Path:
        tries.append(content.state.step)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        return inner(folder, content, learner)

    monkeypatch.setattr(checkpoint, "write", write)
    words = ("train.num_steps=4", "checkpoint.every=2", "checkpoint.on_failure=go_on", *SCHEDULES["rounds"])
    with counting(("update", 5)):
        code, _, err = helpers.quiet_dapo("train", run.parent / "recipe.toml", *words, "--output-dir", tmp_path / "run")
    assert code == 3, err
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000002-u000001"]


def test_evaluations_count_engine_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 7: they are in metrics and in eval/."""
    from dapo.rollout.torch_engine import TorchEngine

    inner, calls = TorchEngine.poll, []

    def poll(engine: TorchEngine) -> Any:
        calls.append(1)
        if len(calls) <= 2:
            raise RuntimeError("lost")
        return inner(engine)

    monkeypatch.setattr(TorchEngine, "poll", poll)
    run = helpers.train(tmp_path, "train.num_steps=1")
    assert helpers.metrics(run)[0]["eval/engine_failures"] == 2
    sets = json.loads((run / "eval" / "step_000000.json").read_text())["sets"]
    assert sets["holdout"]["spent"]["engine_failures"] == 2


def test_a_second_signal_during_a_save_leaves_what_stands(tmp_path: Path) -> None:
    """Ctrl-C twice while the checkpoint is being written: exit 130, and the older one is sound."""
    script = f"""
import os, signal, sys
sys.path[:0] = {[str(Path(__file__).parent)]!r}
signal.signal(signal.SIGINT, signal.default_int_handler)
from dapo.learner.torch_learner import TorchLearner
from dapo.cli import main
inner, calls = TorchLearner.save_hf, []
def save_hf(self, path, weights=None):
    calls.append(1)
    inner(self, path, weights)
    if len(calls) == 2:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            import time; time.sleep(0.5)
        time.sleep(60)
TorchLearner.save_hf = save_hf
main(["train", {str(helpers.write_recipe(tmp_path))!r}, "checkpoint.every=1", "checkpoint.keep_last=1",
      "train.num_steps=50", "--output-dir", {str(tmp_path / "run")!r}])
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, timeout=200)
    assert done.returncode == 130, done.stderr
    assert b"Traceback" not in done.stderr
    found = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert found.state.step == 1
    resume(tmp_path / "run", "train.num_steps=3")
    left = [name for name in helpers.tree(tmp_path / "run" / "checkpoints") if ".tmp" in name]
    assert left == []


# --- what a second review found -------------------------------------------------------------------


def test_an_override_does_not_make_a_killed_run_look_robbed(tmp_path: Path) -> None:
    """Killed with checkpoint.every off, resumed with it on: there never was a checkpoint to miss."""
    run = helpers.train(tmp_path, "train.num_steps=3")
    for path in (run / "checkpoints").iterdir():
        path.rename(tmp_path / path.name)
    err = resume(run, "checkpoint.every=1")
    assert "starting again from step 0" in err


def test_an_exception_in_an_update_costs_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory in the fifth update: what was trained is saved, and the resume is the same bits."""
    from dapo.learner.torch_learner import TorchLearner

    inner, calls = TorchLearner._loss, []

    def loss(learner: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("out of memory")
        return inner(learner, *arguments)

    words = ("train.num_steps=4", "checkpoint.keep_last=9", "train.tokens_per_microbatch=64")
    straight_run = helpers.train(tmp_path / "straight", *words)
    monkeypatch.setattr(TorchLearner, "_loss", loss)
    recipe = helpers.write_recipe(tmp_path)
    code, _, err = helpers.quiet_dapo("train", recipe, *words, "--output-dir", tmp_path / "run")
    assert (code, len(calls)) == (1, 5), err
    assert list((tmp_path / "run" / "checkpoints").glob("step_*"))
    monkeypatch.undo()
    resume(tmp_path / "run")
    check_equal(tmp_path / "run", straight_run)


@pytest.mark.parametrize("place", ["first", "last"])
def test_one_number_of_the_starting_weights_is_noticed(place: str, tmp_path: Path) -> None:
    """Not only the first 1,024 numbers of each weight; and no pair of changes that cancel in a plain sum."""
    import shutil

    from safetensors.torch import save_file

    model = shutil.copytree(helpers.warm_model(), tmp_path / "model")
    run = helpers.train(tmp_path, "train.num_steps=1", model=model)
    weights = {name: tensor.clone() for name, tensor in helpers.weights(model).items()}
    name = "model.layers.1.mlp.down_proj.weight"
    flat = weights[name].view(-1)
    one, other = (0, 1) if place == "first" else (len(flat) - 2, len(flat) - 1)
    flat[one], flat[other] = flat[other].item(), flat[one].item()
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert "starting_weights" in refused(run, "train.num_steps=2")


def test_another_model_config_is_refused(tmp_path: Path) -> None:
    """The weights may be the same and the model another."""
    import shutil

    model = shutil.copytree(helpers.warm_model(), tmp_path / "model")
    run = helpers.train(tmp_path, "train.num_steps=1", model=model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    assert "not what the run began with: model_config" in refused(run, "train.num_steps=2")


def test_an_engine_that_keeps_its_old_weights_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 6, in a whole run: tokens of another version stop it before they are trained on."""
    from dapo.rollout.torch_engine import TorchEngine

    inner = TorchEngine.load_weights

    def load_weights(engine: TorchEngine, version: int, tensors: Any, **how: Any) -> None:
        inner(engine, 0, tensors, **how)

    monkeypatch.setattr(TorchEngine, "load_weights", load_weights)
    recipe = helpers.write_recipe(tmp_path)
    code, _, err = helpers.quiet_dapo("train", recipe, "eval.data=[]", "--output-dir", tmp_path / "run")
    assert code == 1
    assert "did not take the new weights" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert [row["step"] for row in helpers.metrics(tmp_path / "run")] == [1]
    assert steps_of(tmp_path / "run" / "checkpoints") == [1]


def test_half_written_saves_are_swept(tmp_path: Path) -> None:
    """Under any name, also one that is not written again."""
    run = helpers.train(tmp_path, *SAVING)
    (run / "checkpoints" / ".step_000002-u000001.tmp" / "model").mkdir(parents=True)
    resume(run, "train.num_steps=4")
    assert not list((run / "checkpoints").glob(".*"))


def test_a_changed_reward_function_is_told(tmp_path: Path) -> None:
    """Not refused (it may be the mend that a RewardError asked for), but said and written down."""
    file = tmp_path / "mine.py"
    file.write_text("def f(completions, **columns):\n    return [0.0] * len(completions)\n", encoding="utf-8")
    run = helpers.train(tmp_path, f'reward.functions=["grader", "{file}:f"]', "train.num_steps=1")
    assert "reward.functions" not in resume(run, "train.num_steps=2")
    file.write_text("def f(completions, **columns):\n    return [1.0] * len(completions)\n", encoding="utf-8")
    assert "the files of reward.functions or algorithm.objective are not what they were" in resume(
        run, "train.num_steps=3"
    )
    assert "functions" in json.loads((run / "manifest.json").read_text())["resumed"][-1]["changed"]


def test_broken_checkpoints_do_not_push_out_sound_ones(tmp_path: Path) -> None:
    """keep_last = 2: steps 2 and 4 stay, not the broken 3 and 4."""
    run = helpers.train(tmp_path, *SAVING, "checkpoint.keep_last=2")
    file = run / "checkpoints" / "step_000003" / "optimizer.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    resume(run, "checkpoint.every=4", "train.num_steps=4")
    sound = [path.name for path in checkpoint.folders(run / "checkpoints") if checkpoint.fault(path) is None]
    assert sound == ["step_000002", "step_000004"]


def test_another_number_of_threads_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes the last bit, so it stands beside code and versions."""
    from dapo.run import manifest

    run = helpers.train(tmp_path, "train.num_steps=1")
    inner = manifest.machine
    monkeypatch.setattr("dapo.run.manifest.machine", lambda: inner() | {"torch_threads": 77})
    assert "other machine than before: torch_threads" in resume(run, "train.num_steps=2")


@pytest.mark.parametrize(("first", "then"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_another_machine_does_not_change_the_type_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, then: str
) -> None:
    """model.dtype = "auto" is another type where the CPU multiplies bfloat16; whoever means that says so."""
    monkeypatch.setattr("dapo.model.loading._cpu_multiplies_bf16", lambda: first == "bfloat16")
    run = helpers.train(tmp_path, "train.num_steps=1", "model.dtype=auto")
    resume(run, "train.num_steps=2")
    monkeypatch.setattr("dapo.model.loading._cpu_multiplies_bf16", lambda: then == "bfloat16")
    before = helpers.tree(run)
    last = refused(run, "train.num_steps=3")
    assert f"it computed in {first}" in last
    assert f"model.dtype={first} to go on" in last
    assert helpers.tree(run) == before
    resume(run, "train.num_steps=3", f"model.dtype={first}")
    resume(run, "train.num_steps=4", f"model.dtype={then}")
    resume(run, "train.num_steps=5")


def test_relative_paths_name_the_folder_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was started in another folder says in which."""
    (tmp_path / "here").mkdir()
    recipe = helpers.write_recipe(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    words = ("data.source=data.jsonl", "train.num_steps=1", "--output-dir", "run")
    assert helpers.quiet_dapo("train", recipe, *words)[0] == 0
    monkeypatch.chdir(tmp_path)
    last = refused(tmp_path / "here" / "run", "train.num_steps=2")
    assert f"the run was started in {tmp_path / 'here'}" in last


def test_rows_have_one_digest_in_every_process() -> None:
    """Columns may hold sets, tuples as keys, objects without a name: a resume must not be refused over those."""
    script = (
        "import datetime, numpy as np\n"
        "from dapo.run.manifest import data_digest\n"
        "class Thing: pass\n"
        "row = {'b': {('x', 1): {'one', 'two', 'three'}, 2: None, 'k': 1.5}, 'a': np.arange(3), 'c': Thing(),\n"
        "       'd': datetime.date(2020, 1, 2), 'e': '\\ud800'}\n"
        "print(data_digest([('what', '7', row)]))\n"
        "row['b'][2] = 0\n"
        "print(data_digest([('what', '7', row)]))\n"
    )
    found = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        found.add(tuple(done.stdout.split()))
    assert len(found) == 1
    one, other = found.pop()
    assert one != other
