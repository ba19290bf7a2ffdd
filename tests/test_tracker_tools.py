"""The trackers that have a name: what they are sent, and that a resume goes on where the run was."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import helpers_run as helpers
from dapo.config.schema import TRACKERS
from dapo.errors import ConfigError, UserError
from dapo.run import tools
from dapo.run.directory import RunDirectory
from dapo.run.tools import IDENTITY, TensorBoard, identity_of, numbers
from helpers_trackers import INITS, FakeRun, install, scalars

REMOTE = tuple(INITS)
SAVING = ("checkpoint.every=1", "checkpoint.keep_last=9")


def lines_of(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without null."""
    return [{k: v for k, v in row.items() if v is not None} for row in helpers.metrics(run)]


# --- TensorBoard ----------------------------------------------------------------------------------


def test_tensorboard_has_what_metrics_jsonl_has(tmp_path: Path) -> None:
    """Every figure of every step, the evaluation before the first among them, and nothing that is null."""
    run = helpers.train(tmp_path, 'trackers=["tensorboard"]', "train.num_steps=3")
    rows, read = lines_of(run), scalars(run / "tensorboard")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    for name in {name for row in rows for name in row} - {"step"}:
        wanted = [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in rows if name in row]
        assert read.pop(name) == wanted, name
    assert read == {}


@pytest.mark.parametrize("saved", [0, 2], ids=["from-the-start", "from-step-2"])
def test_a_resume_leaves_no_step_twice(saved: int, tmp_path: Path) -> None:
    """Steps past the checkpoint are void, and written again."""
    run = helpers.train(tmp_path, 'trackers=["tensorboard"]', "train.num_steps=4", *(SAVING if saved else ()))
    for folder in (run / "checkpoints").iterdir():
        if int(folder.name.removeprefix("step_")) > saved:
            shutil.rmtree(folder)
    assert helpers.dapo("train", "--resume", run, "--quiet") == 0
    read = scalars(run / "tensorboard")
    assert [step for step, _ in read["sampling/kept"]] == [1, 2, 3, 4]
    assert [step for step, _ in read["eval/accuracy"]] == [0, 4]
    assert len(list((run / "tensorboard").iterdir())) == 2


def test_void_is_what_comes_again_alone(tmp_path: Path) -> None:
    """Opened three times, the steps are each read once, with their last value; nothing before is lost."""
    for value, (first, last) in enumerate([(0, 5), (3, 4), (5, 6)]):
        board = TensorBoard(tmp_path)
        board.open(first)
        for step in range(first, last + 1):
            board.log(step, {"a": float(value)})
    assert scalars(tmp_path)["a"] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]


def test_files_are_read_in_the_order_they_were_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their names, also within a second, and where the clock was put back."""
    for now in (2e9, 2e9, 1e9):
        monkeypatch.setattr("time.time", lambda now=now: now)
        board = TensorBoard(tmp_path)
        board.open(0)
        board.log(0, {"a": 1.0})
    names = sorted(file.name for file in tmp_path.iterdir())
    assert [int(name.split(".")[3]) for name in names] == [2000000000, 2000000001, 2000000002]
    assert len(scalars(tmp_path)["a"]) == 1


def test_names_of_any_script(tmp_path: Path) -> None:
    """As tags and as folders; what is no valid text keeps nothing else from being written."""
    folder = tmp_path / "läuft-日本"
    board = TensorBoard(folder)
    board.open(1)
    board.log(1, {"eval/数学/accuracy": 0.5, "reward/\ud800": 1.0})
    assert set(scalars(folder)) == {"eval/数学/accuracy", "reward/?"}


def test_a_torn_record_hides_no_later_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk took half of a record: on in a new file."""
    board = TensorBoard(tmp_path)
    board.open(1)
    board.log(1, {"a": 1.0})
    opened = Path.open

    def half(self: Path, *words: Any) -> Any:
        handle = opened(self, *words)
        whole = handle.write

        class Half:
            def __enter__(self) -> Half:
                return self

            def __exit__(self, *error: object) -> None:
                handle.close()

            def write(self, data: bytes) -> None:
                whole(data[: len(data) // 2])
                raise OSError(28, "No space left on device")

        return Half()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", half)
        with pytest.raises(OSError, match="No space"):
            board.log(2, {"a": 2.0})
    board.log(3, {"a": 3.0})
    assert scalars(tmp_path)["a"] == [(1, 1.0), (3, 3.0)]


def test_tensorboard_loads_neither_tensorflow_nor_torch(tmp_path: Path) -> None:
    """A TensorFlow beside it is not even looked at."""
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('tensorflow was imported')\n", encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; from dapo.run.tools import TensorBoard\n"
        "before = set(sys.modules); board = TensorBoard(Path('board')); board.open(1); board.log(1, {'a': 1.0})\n"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before} & {'torch', 'tensorflow'}))"
    )
    source = str(Path(tools.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{source}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
    assert scalars(tmp_path / "board") == {"a": [(1, 1.0)]}


# --- wandb, swanlab, trackio ----------------------------------------------------------------------


@pytest.mark.parametrize("name", REMOTE)
def test_a_run_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Project, name and settings; every step with its number; ended at the end."""
    runs = install(monkeypatch, name)
    for variable in tools.PROJECTS.values():
        monkeypatch.delenv(variable, raising=False)
    run = helpers.train(tmp_path, f'trackers=["{name}"]', "train.num_steps=2", run="läuft")
    (there,) = runs
    assert there.started["project"] == "dapo"
    assert there.started["name"].startswith("läuft")
    assert there.started["config"] == json.loads((run / "config.resolved.json").read_text())
    rows = [{k: v for k, v in row.items() if k != "step"} for row in lines_of(run)]
    assert there.steps == list(enumerate(rows))
    assert there.finished == 1


@pytest.mark.parametrize("name", REMOTE)
def test_a_resume_goes_on_in_the_same_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the id in the run's directory; another run of the same folder name has another."""
    runs = install(monkeypatch, name)
    words = (f'trackers=["{name}"]', "train.num_steps=2", *SAVING)
    run = helpers.train(tmp_path / "one", *words)
    assert helpers.dapo("train", "--resume", run, "train.num_steps=3", "--quiet") == 0
    helpers.train(tmp_path / "two", *words)
    first, resumed, other = (started.started["id"] for started in runs)
    assert first == resumed != other
    assert [started.started["resume"] for started in runs] == ["allow"] * 3
    assert [step for step, _ in runs[1].steps] == [3]


@pytest.mark.parametrize("name", sorted(tools.PROJECTS))
def test_the_tools_own_variable_names_the_project(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its users know it."""
    runs = install(monkeypatch, name)
    monkeypatch.setenv(tools.PROJECTS[name], "mine")
    helpers.train(tmp_path, f'trackers=["{name}"]', "train.num_steps=1")
    assert runs[0].started["project"] == "mine"


def test_several_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that can't begin its run is told; the others have all of it."""
    runs = {name: install(monkeypatch, name) for name in REMOTE}

    def refused(**words: Any) -> FakeRun:
        raise RuntimeError("No API key configured")

    install(monkeypatch, "wandb", refused)
    named = json.dumps(list(TRACKERS))
    code, _, err = helpers.quiet_dapo(
        "train", helpers.write_recipe(tmp_path), f"trackers={named}", "--output-dir", tmp_path / "run"
    )
    assert code == 0
    assert [line for line in err.splitlines() if "wandb" in line] == [
        "tracker wandb failed (open): RuntimeError: No API key configured; training goes on, metrics.jsonl holds "
        "everything",
        "tracker wandb did not get 3 steps; metrics.jsonl has them",
    ]
    assert [len(runs[name][0].steps) for name in ("swanlab", "trackio")] == [3, 3]
    assert len(scalars(tmp_path / "run" / "tensorboard")["sampling/kept"]) == 2


@pytest.mark.parametrize("name", REMOTE)
def test_results_alone_on_stdout(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tool prints goes to stderr, so that --json can be piped."""
    runs: list[FakeRun] = []

    def loud(*words: Any, **named: Any) -> FakeRun:
        print("* hello from the tool")
        runs.append(FakeRun())
        return runs[-1]

    install(monkeypatch, name, loud)
    code, out, err = helpers.quiet_dapo(
        "train", helpers.write_recipe(tmp_path), f'trackers=["{name}"]', "--json", "--output-dir", tmp_path / "run"
    )
    assert (code, json.loads(out)["step"]) == (0, 2)
    assert "hello from the tool" in err
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [(("train.num_steps=2",), 0), (("sampling.max_rounds=1", "sampling.on_exhausted=error", "train.num_steps=50"), 2)],
    ids=["done", "error"],
)
def test_the_run_there_is_ended_on_every_way_out(
    words: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where training ends with an error."""
    runs = install(monkeypatch, "wandb")
    found, _, err = helpers.quiet_dapo(
        "train", helpers.write_recipe(tmp_path), 'trackers=["wandb"]', *words, "--output-dir", tmp_path / "run"
    )
    assert (found != 0) == (code != 0), err
    assert [there.finished for there in runs] == [1]


def test_a_package_that_is_missing_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a model is loaded, with the mend, once; the run goes on and counts."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    recipe = helpers.write_recipe(tmp_path)
    code, out, _ = helpers.quiet_dapo("train", recipe, 'trackers=["wandb"]', "--dry-run")
    mend = 'note: trackers: wandb is not installed, and gets nothing; pip install "dapo-rl[wandb]"'
    assert code == 0
    assert mend in out.splitlines()
    code, _, err = helpers.quiet_dapo(
        "train", recipe, 'trackers=["wandb"]', "train.num_steps=3", "--output-dir", tmp_path / "run"
    )
    assert code == 0
    assert [line == mend for line in err.splitlines() if "not installed" in line] == [True]
    rows = helpers.metrics(tmp_path / "run")
    assert sum(row.get("trackers/failures", 0) for row in rows) >= 2


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb leaves a folder wandb where it runs, which Python would import."""
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "wandb").mkdir()
    assert not tools._installed("wandb")
    (tmp_path / "wandb" / "__init__.py").touch()
    assert tools._installed("wandb")


def test_the_mend_is_an_extra_that_exists() -> None:
    """Each tool but TensorBoard, which comes with dapo."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f'\n{name} = ["{name}>=' in text for name in REMOTE)
    assert '\n    "tensorboard>=' in text
    assert set(TRACKERS) == {*REMOTE, "tensorboard"}


# --- what is sent, and under which name -----------------------------------------------------------


def test_numbers() -> None:
    """Finite values alone."""
    metrics = {"a": 1, "b": float("nan"), "c": float("inf"), "d": None, "e\ud800": -2.5}
    assert numbers(metrics) == {"a": 1.0, "e?": -2.5}  # type: ignore[arg-type]


def test_the_identity_is_kept(tmp_path: Path) -> None:
    """One for a directory, drawn once."""
    run, other = RunDirectory(tmp_path / "a"), RunDirectory(tmp_path / "b")
    first = identity_of(run)
    assert identity_of(RunDirectory(tmp_path / "a")) == first
    assert identity_of(other) != first
    assert json.loads((tmp_path / "a" / IDENTITY).read_text()) == {"id": first}


@pytest.mark.parametrize("text", ['{"id": "../../x"}', '{"id": 3}', "[]", "{", '{"id": ""}'])
def test_a_damaged_identity_is_refused(text: str, tmp_path: Path) -> None:
    """With its file; nothing of it reaches a tool."""
    (tmp_path / IDENTITY).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=IDENTITY):
        identity_of(RunDirectory(tmp_path))


def test_a_damaged_identity_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker has failed, and the run goes on."""
    runs = install(monkeypatch, "wandb")
    run = helpers.train(tmp_path, 'trackers=["wandb"]', "train.num_steps=1", *SAVING)
    (run / IDENTITY).write_text("[]", encoding="utf-8")
    code, _, err = helpers.quiet_dapo("train", "--resume", run, "train.num_steps=2")
    assert code == 0
    assert any(line.startswith("tracker wandb failed (open)") and IDENTITY in line for line in err.splitlines())
    assert len(runs) == 1


@pytest.mark.parametrize("name", [IDENTITY, "tensorboard"])
def test_a_new_run_does_not_go_on_with_what_lies_there(name: str, tmp_path: Path) -> None:
    """Another run's id or event files, in a folder that holds no run."""
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"holds {name} of something else"):
        RunDirectory.create("run", str(tmp_path))


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ('["wand"]', 'trackers = ["wand"]: not known; write tensorboard, wandb'),
        ('["tensorboard", "tensorboard"]', 'trackers names "tensorboard" twice'),
    ],
)
def test_names_that_are_none(named: str, said: str, tmp_path: Path) -> None:
    """One line and exit 2, before anything is loaded."""
    code, _, err = helpers.quiet_dapo("train", helpers.write_recipe(tmp_path), f"trackers={named}", "--dry-run")
    assert code == ConfigError.exit_code
    assert said in err.splitlines()[-1]
