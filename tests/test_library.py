"""The library: its names, runs step by step against the command, parts handed over in code, what it leaves behind."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch

import dapo
from dapo import build
from dapo.algorithm import dapo_objective
from dapo.engines import make_engine
from dapo.errors import OutOfMemory, OutOfMemoryLoading
from dapo.given import given_parts
from dapo.learners import make_learner
from dapo.run import notebook
from dapo.run.directory import RunDirectory
from dapo.run.signals import StopRequest, interrupt
from helpers_run import (
    comparable,
    largest_difference,
    metrics,
    problems,
    quiet_dapo,
    train,
    tree,
    weights,
    weights_at,
    write_recipe,
)

# --- names ------------------------------------------------------------------------------------------

NAMES = {
    "CheckFailed", "Config", "ConfigError", "DapoError", "DataError", "EngineError", "Group", "ModelError", "Prompt",
    "Response", "RewardError", "Rollout", "Run", "SamplingParams", "Score", "StepReport", "Stopped", "Trainer",
    "UserError", "Verdict", "evaluate", "grade", "load_config", "train",
}  # fmt: skip

PARTS = "reward=None, prompts=None, engine=None, learner=None, objective=None, output_dir=None, quiet=False"
SIGNATURES = {
    "load_config": "*layers",
    "train": f"*layers, {PARTS}",
    "Trainer": f"config, *, {PARTS}",
    "Trainer.resume": "run, *words, reward=None, engine=None, learner=None, objective=None, allow_changed=(), "
    "quiet=False",
    "Trainer.save": "self",
    "Trainer.evaluate": "self",
    "Trainer.export": "self, path, *, dtype='float32'",
    "Run": "path",
    "Run.rollouts": "self, step",
    "Run.tokens": "self, step",
    "Run.export": "self, path, *, step=None, dtype='float32'",
    "Run.report": "self, path=None, *, rollouts_mb=12.0",
    "evaluate": "model, prompts, *, k, reward=None, settings=None",
    "grade": "text, gold, **policy",
}


def shown(signature: inspect.Signature) -> str:
    """Without the types."""
    parameters = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))[1:-1]


def test_the_public_names_are_these() -> None:
    """Taking one away breaks somebody's script: CHANGELOG has to say so, and this set changes with it."""
    assert set(dapo.__all__) == NAMES
    assert all(getattr(dapo, name) is not None for name in NAMES)
    assert set(dir(dapo)) >= NAMES
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        dapo.trian  # noqa: B018


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_public_signatures_are_these(name: str) -> None:
    """As they are documented."""
    found: Any = dapo
    for part in name.split("."):
        found = getattr(found, part)
    assert shown(inspect.signature(found)) == SIGNATURES[name]
    assert found.__doc__


def test_what_a_run_has() -> None:
    """Properties, which have no signature."""
    for kind, names in ((dapo.Run, ("path", "config", "metrics")), (dapo.Trainer, ("run", "step", "finished"))):
        assert all(isinstance(getattr(kind, name), property) for name in names)


def test_names_survive_the_modules_they_are_made_of() -> None:
    """A submodule of a function's name would take its place once it is imported."""
    code = (
        "import dapo, importlib, pkgutil\n"
        "for found in pkgutil.walk_packages(dapo.__path__, 'dapo.'):\n"
        "    if not found.name.startswith(('dapo.__main__', 'dapo.rollout.vllm')):\n"
        "        importlib.import_module(found.name)\n"
        "print([n for n in dapo.__all__ if type(getattr(dapo, n)).__name__ == 'module'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "[]", done.stderr


# --- runs -------------------------------------------------------------------------------------------


def config_of(folder: Path, *words: str) -> dapo.Config:
    """The tiny recipe of the tests."""
    folder.mkdir(parents=True, exist_ok=True)
    return dapo.load_config(write_recipe(folder), *words)


def trainer(folder: Path, *words: str, **parts: Any) -> dapo.Trainer:
    """Of the tiny recipe, into folder/run."""
    return dapo.Trainer(config_of(folder, *words), output_dir=folder / "run", quiet=True, **parts)


def same_runs(one: Path, other: Path, step: int) -> None:
    """Metrics and weights, bit for bit."""
    assert comparable(metrics(one)) == comparable(metrics(other))
    assert largest_difference(weights_at(one, step), weights_at(other, step)) == 0.0


def test_a_trainer_is_the_command(tmp_path: Path) -> None:
    """Step by step, and in one call: the run that `dapo train` makes."""
    command = train(tmp_path / "command")
    with trainer(tmp_path / "steps") as one:
        reports = list(one)
        assert one.finished
    assert [report.step for report in reports] == [1, 2]
    lines = [row for row in one.run.metrics if row["step"] > 0]
    assert [report.metrics["sampled/accuracy"] for report in reports] == [row["sampled/accuracy"] for row in lines]
    same_runs(command, tmp_path / "steps" / "run", 2)
    run = dapo.train(write_recipe(tmp_path / "steps"), output_dir=tmp_path / "call", quiet=True)
    same_runs(command, run.path, 2)


def test_twice_in_one_process_and_from_a_thread(tmp_path: Path) -> None:
    """Nothing of the first run is left in the second; off the main thread no signal handler is set."""
    before = signal.getsignal(signal.SIGINT)
    runs: list[dapo.Run] = []

    def work(name: str) -> None:
        (tmp_path / name).mkdir()
        runs.append(dapo.train(write_recipe(tmp_path / name), output_dir=tmp_path / name / "run", quiet=True))

    work("first")
    thread = threading.Thread(target=work, args=("thread",))
    thread.start()
    thread.join()
    work("second")
    assert len(runs) == 3
    assert signal.getsignal(signal.SIGINT) is before
    for run in runs[1:]:
        same_runs(runs[0].path, run.path, 2)


def test_two_at_once_in_two_threads(tmp_path: Path) -> None:
    """Runs share nothing but the process."""
    alone = train(tmp_path / "alone")
    threads = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        recipe = write_recipe(tmp_path / name)
        arguments = {"output_dir": tmp_path / name / "run", "quiet": True}
        threads.append(threading.Thread(target=dapo.train, args=(recipe,), kwargs=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same_runs(alone, tmp_path / "a" / "run", 2)
    same_runs(alone, tmp_path / "b" / "run", 2)


AHEAD = ("pipeline.max_staleness=1", "algorithm.importance_cap=2")


@pytest.mark.parametrize("pipeline", [(), AHEAD], ids=["turns", "ahead"])
def test_broken_off_and_begun_again(tmp_path: Path, pipeline: Sequence[str]) -> None:
    """By `break` in one block, and by leaving the block and resuming: the run that never stopped."""
    words = ("train.num_steps=4", "checkpoint.every=100", *pipeline)
    whole = train(tmp_path / "whole", *words)
    with trainer(tmp_path / "again", *words) as one:
        for report in one:
            if report.step == 1:
                break
        assert [report.step for report in one] == [2, 3, 4]
    same_runs(whole, one.run.path, 4)
    with trainer(tmp_path / "left", *words) as one:
        next(iter(one))
    assert one.run.metrics[-1]["step"] == 1
    with dapo.Trainer.resume(one.run, quiet=True) as resumed:
        assert resumed.step == 1
        assert [report.step for report in resumed] == [2, 3, 4]
    same_runs(whole, one.run.path, 4)


def test_an_error_in_the_block_loses_nothing(tmp_path: Path) -> None:
    """The state of the step before it is saved; the error goes on."""
    one = trainer(tmp_path, "checkpoint.every=100")

    def work() -> None:
        with one:
            for _ in one:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with dapo.Trainer.resume(one.run.path, quiet=True) as resumed:
        assert resumed.step == 1
        assert [report.step for report in resumed] == [2]
    same_runs(train(tmp_path / "whole"), one.run.path, 2)


def test_a_resume_of_a_finished_run_loads_nothing(tmp_path: Path) -> None:
    """Until something is asked of it; more steps are a key=value word away."""
    run = train(tmp_path)
    with dapo.Trainer.resume(run, quiet=True) as one:
        assert one.finished
        assert list(one) == []
        assert one._parts is None
        texts = [row["text"] for row in one.evaluate().rows]
    first, last = ([row["text"] for row in RunDirectory(run).rollouts(step, "eval")] for step in (0, 2))
    assert texts == last != first  # by the weights of the end, which the engine had to be given
    with dapo.Trainer.resume(run, "train.num_steps=3", quiet=True) as one:
        assert [report.step for report in one] == [3]


def interrupt_myself() -> None:
    """Ctrl-C, as the kernel gives it."""
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own answer to Ctrl-C, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_signals_are_the_callers_between_steps(tmp_path: Path) -> None:
    """Ctrl-C in somebody's own code is theirs, and a stop inside a step is told and saved."""
    before = signal.getsignal(signal.SIGINT)
    with trainer(tmp_path, "checkpoint.every=100") as one:
        steps = iter(one)
        next(steps)
        assert signal.getsignal(signal.SIGINT) is before
        with pytest.raises(KeyboardInterrupt):
            interrupt_myself()
        learner = one._needed().learner
        update = learner.update

        def interrupted(*arguments: Any, **named: Any) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            return update(*arguments, **named)

        learner.update = interrupted  # type: ignore[method-assign]
        with pytest.raises(dapo.Stopped, match="go on with: dapo train --resume"):
            next(steps)
    assert signal.getsignal(signal.SIGINT) is before
    with dapo.Trainer.resume(one.run, quiet=True) as resumed:
        assert [report.step for report in resumed] == [2]
    same_runs(train(tmp_path / "whole"), one.run.path, 2)


def test_a_second_interrupt_does_not_end_the_program() -> None:
    """As it does for the command, whose process it is."""
    with StopRequest(lambda text: None, leave=interrupt) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            interrupt_myself()


def test_save_evaluate_and_export_between_steps(tmp_path: Path) -> None:
    """Each is of the policy as it is, and changes nothing of the run."""
    whole = train(tmp_path / "whole")
    with trainer(tmp_path / "one") as one:
        before = one.evaluate().metrics()["eval/accuracy"]
        for report in one:
            folder = one.export(tmp_path / f"model{report.step}")
            assert one.save().name == f"step_{report.step:06d}"
            figures = one.evaluate().metrics()
            assert largest_difference(weights(folder), weights_at(one.run.path, report.step)) == 0.0
    assert before == metrics(whole)[0]["eval/accuracy"]
    assert figures["eval/accuracy"] == metrics(whole)[-1]["eval/accuracy"]
    same_runs(whole, one.run.path, 2)


@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
def test_a_second_block_goes_on(tmp_path: Path, resumed: bool) -> None:
    """From where the first one ended; what is evaluated in it is the policy of that step."""
    words = ("train.num_steps=4", "checkpoint.every=100", "train.learning_rate=1e-2")
    one = trainer(tmp_path / "again", *words)
    if resumed:
        with one:
            next(iter(one))
        one = dapo.Trainer.resume(one.run, quiet=True)
    with one:
        steps = iter(one)
        while one.step < 3:
            next(steps)
        before = one.evaluate()
        with pytest.raises(dapo.UserError, match="open already"):
            one.__enter__()
    with one:
        assert one.step == 3
        assert one.evaluate().rows == before.rows
        assert [report.step for report in one] == [4]
    same_runs(train(tmp_path / "whole", *words), one.run.path, 4)


@pytest.mark.parametrize("times", [1, 2])
def test_nothing_goes_on_in_the_middle_of_a_step(tmp_path: Path, times: int) -> None:
    """After Ctrl-C between two updates (1), or at once (2): the weights are not those of any step."""
    words = ("train.num_steps=3", "checkpoint.every=100")
    with trainer(tmp_path / "one", *words) as one:
        steps = iter(one)
        next(steps)
        learner = one._needed().learner
        update = learner.update

        def interrupted(*arguments: Any, **named: Any) -> Any:
            learner.update = update  # type: ignore[method-assign]
            done = update(*arguments, **named)
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            return done

        learner.update = interrupted  # type: ignore[method-assign]
        with pytest.raises(dapo.Stopped if times == 1 else KeyboardInterrupt):
            next(steps)
        for use in (lambda: list(one), one.evaluate, one.save, lambda: one.export(tmp_path / "model")):
            with pytest.raises(dapo.UserError, match=r"middle of a step.*dapo\.Trainer\.resume"):
                use()
    with dapo.Trainer.resume(one.run, quiet=True) if one.run.metrics[-1]["step"] else one as again:
        list(again)
    same_runs(train(tmp_path / "whole", *words), one.run.path, 3)


def test_a_part_cannot_use_the_trainer_that_calls_it(tmp_path: Path) -> None:
    """An evaluation within a step would call the reward that asked for it, without end."""
    told: list[str] = []

    def curious(completions: Sequence[Any], **columns: Any) -> list[float]:
        for use in (one.evaluate, one.save, lambda: list(one)):
            with pytest.raises(dapo.UserError) as caught:
                use()
            told.append(caught.value.message)
        return [0.0] * len(completions)

    with trainer(tmp_path, "train.num_steps=1", "eval.data=[]", reward=["grader", curious]) as one:
        list(one)
    assert len(told) >= 3
    assert all("a step is being made" in message for message in told)


@pytest.mark.parametrize("where", ["load", "trainer", "evaluate"])
def test_memory_that_runs_out_is_told_in_one_line(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of torch and of Python, as the command tells it."""

    def full(*arguments: Any, **named: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    one = trainer(tmp_path)
    if where == "load":
        monkeypatch.setattr(build, "load_model", full)
        with pytest.raises(OutOfMemoryLoading, match="while the model was loaded"):
            one.__enter__()
        assert not (tmp_path / "run").exists()
    elif where == "trainer":
        with one:
            monkeypatch.setattr(one._needed().engine, "submit", full)
            with pytest.raises(OutOfMemory, match="in an evaluation"):
                one.evaluate()
    else:
        run = train(tmp_path / "run")
        monkeypatch.setattr(build, "load_model", full)
        with pytest.raises(OutOfMemoryLoading, match="while the model was loaded"):
            dapo.evaluate(run, problems(2), k=1)


def test_a_trainer_that_is_not_open_says_so(tmp_path: Path) -> None:
    """Outside its block, before and after."""
    one = trainer(tmp_path)
    for use in (lambda: list(one), one.evaluate, one.save):
        with pytest.raises(dapo.UserError, match=r"with dapo\.Trainer"):
            use()
    with one:
        pass
    with pytest.raises(dapo.UserError, match=r"with dapo\.Trainer"):
        list(one)


# --- parts ------------------------------------------------------------------------------------------


def vowels(completions: Sequence[Any], **columns: Any) -> list[float]:
    """A reward without right and wrong."""
    return [float(sum(letter in "aeiou" for letter in turns[0]["content"])) for turns in completions]


def sevens(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> float:
    """In verl's signature."""
    return float(solution_str.count("7"))


def test_a_function_of_ones_own_is_the_one_in_a_file(tmp_path: Path) -> None:
    """Handed over, and named in the configuration: the same run, under another name."""
    (tmp_path / "mine.py").write_text(inspect.getsource(vowels).replace("Any", "object"), encoding="utf-8")
    (tmp_path / "mine.py").write_text(
        "from collections.abc import Sequence\n" + (tmp_path / "mine.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    words = ("sampling.filter=nonzero_std",)
    named = train(tmp_path / "file", *words, f'reward.functions=["{tmp_path / "mine.py"}:vowels"]')
    with trainer(tmp_path / "code", *words, reward=vowels) as one:
        list(one)
    assert one.config.reward.functions == ("given:vowels",)
    same_runs(named, one.run.path, 2)


def test_rewards_in_a_list(tmp_path: Path) -> None:
    """Names, functions and weights together; two of one name stay two."""
    nothing = lambda completions, **columns: [0.0] * len(completions)  # noqa: E731
    with trainer(tmp_path, reward=["grader", {"function": sevens, "weight": 0.5}, vowels, nothing, vowels]) as one:
        next(iter(one))
    functions = [f if isinstance(f, str) else f.function for f in one.config.reward.functions]
    assert functions == ["grader", "given:sevens", "given:vowels", "given:lambda", "given:vowels_2"]
    row = one.run.rollouts(1)[0]
    assert set(row["parts"]) == {"grader", "sevens", "vowels", "lambda", "vowels_2"}
    expected = row["parts"]["grader"] + 0.5 * row["parts"]["sevens"] + 2 * row["parts"]["vowels"]
    assert row["reward"] == pytest.approx(expected)


def test_a_run_with_given_parts_is_resumed_with_them(tmp_path: Path) -> None:
    """Without them it says so, from Python and from the command line, and another text of a function is told."""
    words = ("sampling.filter=nonzero_std", "checkpoint.every=100")
    with trainer(tmp_path, *words, reward=vowels) as one:
        next(iter(one))
    with pytest.raises(dapo.RewardError, match=r"given:vowels: was handed over in code .*dapo.Trainer.resume"):
        dapo.Trainer.resume(one.run, quiet=True).__enter__()
    code, _, err = quiet_dapo("train", "--resume", one.run.path)
    assert code == 2
    assert "given:vowels: was handed over in code" in err
    with dapo.Trainer.resume(one.run, reward=vowels, quiet=True) as resumed:
        list(resumed)
    with trainer(tmp_path / "whole", *words, reward=vowels) as whole:
        list(whole)
    same_runs(whole.run.path, one.run.path, 2)


def test_another_text_of_a_function_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cell that was edited between a run and its resume."""
    words = ("sampling.filter=nonzero_std", "checkpoint.every=100", "train.num_steps=3")
    with trainer(tmp_path, *words, reward=vowels) as one:
        next(iter(one))

    def edited(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [float(len(turns[0]["content"])) for turns in completions]

    edited.__name__ = "vowels"
    with dapo.Trainer.resume(one.run, reward=vowels) as resumed:
        next(iter(resumed))
    assert "are not what they were" not in capsys.readouterr().err
    with dapo.Trainer.resume(one.run, reward=edited) as resumed:
        next(iter(resumed))
    assert "are not what they were" in capsys.readouterr().err


class Counting:
    """A reward that is an object."""

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float]:
        return [float(len(completions))] * len(completions)

    method = __call__


@pytest.mark.parametrize(
    ("part", "held"),
    [
        (vowels, "def vowels"),
        (functools.partial(functools.partial(vowels, columns=1), more=2), "def vowels"),
        (Counting(), "class Counting"),
        (Counting().method, "def __call__"),
        (Counting, "class Counting"),
        (max, ""),
        (FunctionType(vowels.__code__.replace(co_filename="<nowhere>"), {}), ""),
    ],
    ids=["function", "partial", "object", "method", "class", "builtin", "no source"],
)
def test_the_text_of_what_is_handed_over(part: Any, held: str) -> None:
    """So that another one is told on a resume; nothing where Python knows none."""
    given = given_parts(reward=part)
    (name,) = given.functions
    text = given.code(name)
    assert text is not None
    assert held in text.decode()
    assert bool(text) is bool(held)
    assert given.code("given:other") is None


def test_prompts_as_rows(tmp_path: Path) -> None:
    """The run of a file with these rows; the command line can go on with it."""
    rows = [{"problem": row["prompt"], "answer": row["answer"], "level": 3} for row in problems(40)]
    named = train(tmp_path / "file")
    with trainer(tmp_path / "rows", "checkpoint.every=100", prompts=iter(rows)) as one:
        next(iter(one))
    assert one.run.rollouts(1)[0]["columns"] == {"level": 3} if "columns" in one.run.rollouts(1)[0] else True
    code, _, err = quiet_dapo("train", "--resume", one.run.path)
    assert code == 0, err
    same_runs(named, one.run.path, 2)
    assert (one.run.path / "prompts.jsonl").read_text(encoding="utf-8").count("\n") == 40


def deep(count: int) -> list[Any]:
    """Lists in lists."""
    found: list[Any] = []
    for _ in range(count):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no rows"),
        ("data.jsonl", "data.source"),
        ({"problem": "1", "answer": "1"}, "list of rows"),
        (7, "list of rows"),
        ([{"problem": "1", "answer": "1"}, 5], "row 2: is no mapping"),
        ([{"problem": "1", "answer": object()}], "row 1: can't be written as JSON"),
        ([{"problem": "1", "answer": float("nan")}], "row 1: can't be written as JSON"),
        ([{"problem": "1", "answer": "1", "deep": deep(9999)}], "row 1: can't be written as JSON"),
        ([{"question": "1"}], "no column answer"),
        ([{"problem": "say a", "answer": "7"}], "more|few|holdout|left"),
    ],
)
def test_rows_that_cannot_be_used_leave_nothing_behind(tmp_path: Path, rows: Any, message: str) -> None:
    """One line, and no folder: not even a parent of it."""
    write_recipe(tmp_path)
    with pytest.raises(dapo.UserError, match=message):
        dapo.train(tmp_path / "recipe.toml", prompts=rows, output_dir=tmp_path / "deep" / "run", quiet=True)
    assert tree(tmp_path) == {"recipe.toml", "data.jsonl"}


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    """With what was in it."""
    write_recipe(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(dapo.DataError):
        dapo.train(tmp_path / "recipe.toml", prompts=[{"question": "1"}], output_dir=tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "notes.txt").read_text(encoding="utf-8") == "mine"
    (tmp_path / "run" / "prompts.jsonl").write_text("theirs", encoding="utf-8")
    with pytest.raises(dapo.UserError, match="is there already"):
        dapo.train(tmp_path / "recipe.toml", prompts=problems(40), output_dir=tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "prompts.jsonl").read_text(encoding="utf-8") == "theirs"


def test_an_engine_and_a_learner_of_ones_own(tmp_path: Path) -> None:
    """Factories that give the built-in ones: the same run, bit for bit; the configuration names them."""
    made: list[str] = []

    def my_engine(config: dapo.Config, model: Any, policy: Any) -> Any:
        made.append("engine")
        return make_engine(config, model, policy)

    class MyLearner:
        def __new__(cls, config: dapo.Config, model: Any, reference: Any) -> Any:
            made.append("learner")
            return make_learner(config, model, reference, torch.float32)

    with trainer(tmp_path / "own", engine=my_engine, learner=MyLearner) as one:
        list(one)
    assert made == ["engine", "learner"]
    assert (one.config.engine.kind, one.config.learner.kind) == ("given:my_engine", "given:MyLearner")
    same_runs(train(tmp_path / "whole"), one.run.path, 2)
    code, _, err = quiet_dapo("eval", one.run.path, "--k", "1")
    assert code == 2
    assert "engine.kind = given:my_engine: was handed over in code" in err
    code, _, err = quiet_dapo("eval", one.run.path, "engine.kind=torch", "--k", "1", "-o", tmp_path / "eval")
    assert code == 0, err


def test_an_objective_of_ones_own(tmp_path: Path) -> None:
    """The paper's, written out: the same run."""

    def mine(inputs: Any) -> torch.Tensor:
        return dapo_objective(inputs, clip_low=0.2, clip_high=0.28, clip_dual=None, log_ratio_clamp=None)

    words = (
        "algorithm.clip_low=0.2",
        "algorithm.clip_high=0.28",
        "algorithm.clip_dual=off",
        "algorithm.log_ratio_clamp=off",
    )
    with trainer(tmp_path / "own", *words, objective=mine) as one:
        list(one)
    same_runs(train(tmp_path / "whole", *words), one.run.path, 2)


@pytest.mark.parametrize(
    ("parts", "words", "message"),
    [
        ({"reward": 5}, (), "reward = 5"),
        ({"reward": []}, (), "reward = "),
        ({"reward": [5]}, (), "reward = 5: is no function"),
        ({"reward": "grader.py:none"}, (), "grader.py"),
        ({"reward": vowels}, (), "sampling.filter"),
        ({"engine": 5}, (), "engine = 5.*submit"),
        ({"learner": "torch"}, (), "learner = 'torch'.*update"),
        ({"objective": 3}, (), "objective = 3: is no function"),
        ({"reward": ["grader", vowels]}, ("cluster.kind=ray",), "vowels was handed over in code, and other processes"),
        ({"engine": lambda *a: None}, ("cluster.kind=ray",), "engine was handed over in code"),
        ({"objective": vowels}, ("learner.kind=fsdp",), "vowels was handed over in code"),
    ],
)
def test_parts_that_cannot_be_used(tmp_path: Path, parts: Any, words: Sequence[str], message: str) -> None:
    """One line that names the part; nothing is written."""
    with pytest.raises(dapo.UserError, match=message), trainer(tmp_path, *words, **parts):
        pass
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["n" * 300, "n\ud800", "n\0"], ids=["long", "surrogate", "null"])
def test_a_folder_that_no_file_system_takes(tmp_path: Path, name: str) -> None:
    """One line, before anything is loaded."""
    with pytest.raises(dapo.UserError, match="--output-dir"):
        dapo.Trainer(config_of(tmp_path), output_dir=tmp_path / name)


def test_no_config(tmp_path: Path) -> None:
    """The name of a recipe is for `train`."""
    with pytest.raises(dapo.UserError, match=r"dapo.load_config\('tiny'\)"):
        dapo.Trainer("tiny")  # type: ignore[arg-type]


@pytest.mark.parametrize("running", [False, True])
def test_an_async_reward_inside_a_running_loop(tmp_path: Path, running: bool) -> None:
    """As in a notebook, whose cells run inside one."""

    async def slow(completions: Sequence[Any], **columns: Any) -> list[float]:
        await asyncio.sleep(0)
        return vowels(completions)

    def work() -> dapo.Run:
        with trainer(tmp_path, "sampling.filter=nonzero_std", reward=slow) as one:
            next(iter(one))
        return one.run

    async def cell() -> dapo.Run:
        return work()

    run = asyncio.run(cell()) if running else work()
    assert run.metrics[-1]["reward/mean"] > 0 if "reward/mean" in run.metrics[-1] else True
    assert {row["verdict"] for row in run.rollouts(1)} == {"graded"}


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    """A reward in a file, changed between two runs of one process."""
    values = []
    for number in ("1.0", "2.0"):
        (tmp_path / "mine.py").write_text(
            f"def same(completions, **columns):\n    return [{number} + len(str(c)) for c in completions]\n",
            encoding="utf-8",
        )
        folder = tmp_path / number
        with trainer(folder, "sampling.filter=nonzero_std", reward=f"{tmp_path / 'mine.py'}:same") as one:
            next(iter(one))
        values.append(one.run.rollouts(1)[0]["reward"])
    assert values[1] == values[0] + 1.0


def test_a_reward_that_fails_is_told_with_what_it_raised(tmp_path: Path) -> None:
    """A person in a notebook sees their own mistake, not only the number of failures."""

    def broken(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [columns["levle"] for _ in completions]

    with (
        pytest.raises(dapo.RewardError, match=r"16 of 16 scores.*given:broken raised KeyError: 'levle'"),
        trainer(tmp_path, "sampling.filter=nonzero_std", reward=broken) as one,
    ):
        list(one)


# --- the rest ---------------------------------------------------------------------------------------


def test_a_run_on_disk(tmp_path: Path) -> None:
    """What it holds, and what it refuses."""
    run = dapo.Run(train(tmp_path))
    assert run.config.train.num_steps == 2
    assert [row["step"] for row in run.metrics] == [0, 1, 2]
    assert len(run.rollouts(2)) >= 16
    assert {row["step"] for row in run.tokens(2)} == {2}
    assert run.report().read_text(encoding="utf-8").startswith("<!doctype html>")
    assert run.report(tmp_path / "page.html") == tmp_path / "page.html"
    assert run.export(tmp_path / "model", step=2, dtype="bfloat16") == tmp_path / "model"
    assert {tensor.dtype for tensor in weights(tmp_path / "model").values()} == {torch.bfloat16}
    for call, message in (
        (lambda: run.export(tmp_path / "model"), "not empty"),
        (lambda: run.export(tmp_path / "m", dtype="float16"), "dtype"),
        (lambda: run.export(tmp_path / "m", step=9), "9"),
        (lambda: run.export(tmp_path / "page.html" / "m"), "can't be written"),
        (lambda: run.export(tmp_path / "m", step="first"), "step = 'first'"),
        (lambda: run.rollouts(9), "no rollouts"),
        (lambda: run.report(tmp_path / "page.txt"), ".html"),
        (lambda: dapo.Run(tmp_path), "no run directory"),
    ):
        with pytest.raises(dapo.UserError, match=message):
            call()


def test_evaluate_has_the_figures_of_the_command(tmp_path: Path) -> None:
    """Of a run and of a folder, on rows and on a file."""
    run = dapo.Run(train(tmp_path))
    rows = problems(6)
    found = dapo.evaluate(run, rows, k=3)
    assert found.named("prompts").problems == 6
    from_file = dapo.evaluate(str(run.path), tmp_path / "data.jsonl", k=2, settings={"eval.seed": 5})
    code, out, err = quiet_dapo(
        "eval",
        run.path,
        "--data",
        tmp_path / "data.jsonl",
        "--k",
        "2",
        "--seed",
        "5",
        "--json",
        "-o",
        tmp_path / "eval",
    )
    assert code == 0, err
    told = __import__("json").loads(out)["sets"]["data"]
    assert from_file.named("data").summary()["accuracy"] == told["accuracy"]
    exported = run.export(tmp_path / "model")
    settings = {
        "data.template": "chat",
        "reward.extract": ["last_number"],
        "eval.max_response_tokens": 4,
        "eval.top_p": 1.0,
        "model.dtype": "float32",
    }
    bare = dapo.evaluate(
        exported, rows, k=3, settings={**settings, "sampling.max_response_tokens": 4, "reward.overlong": "none"}
    )
    assert [row["text"] for row in bare.rows] == [row["text"] for row in found.rows]
    with pytest.raises(dapo.UserError, match=r"eval\.k"):
        dapo.evaluate(run, rows, k=0)
    with pytest.raises(dapo.UserError, match="unknown key"):
        dapo.evaluate(run, rows, k=1, settings={"eval.temperatur": 0})


@pytest.mark.parametrize(
    ("text", "gold", "policy", "correct"),
    [
        (r"so \boxed{0.5}", "1/2", {}, True),
        ("Answer: 3", "4", {}, False),
        ("nothing", "4", {}, False),
        (r"\boxed{5}", "5", {"extract": ["answer_line"]}, False),
        ("Answer: 12+13", "25", {"unevaluated": "right"}, True),
        ("Answer: 34", "34", {"compat": "verl-math-dapo"}, True),
    ],
)
def test_grade(text: str, gold: str, policy: dict[str, Any], correct: bool) -> None:
    """As `dapo grade` does."""
    assert dapo.grade(text, gold, **policy).correct is correct
    assert dapo.grade(text, gold, **policy).reward == (1.0 if correct else -1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dapo.grade("1", ""), "can't be graded"),
        (lambda: dapo.grade(1, "1"), "text = 1"),  # type: ignore[arg-type]
        (lambda: dapo.grade("1", 1), "gold = 1"),  # type: ignore[arg-type]
        (lambda: dapo.grade("1", "1", extrakt=["boxed"]), "extrakt"),
        (lambda: dapo.grade("1", "1", extract=["box"]), "box"),
    ],
)
def test_grade_refuses(call: Callable[[], object], message: str) -> None:
    """One line each."""
    with pytest.raises(dapo.UserError, match=message):
        call()


# --- notebooks --------------------------------------------------------------------------------------


def test_a_notebook_is_known_by_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython in a terminal has none, and a thread has no cell of its own."""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert notebook.in_notebook()
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(notebook.in_notebook()))
    thread.start()
    thread.join()
    assert seen == [False]
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert not notebook.in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not notebook.in_notebook()


def test_progress_in_a_notebook_is_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made once, then written anew; its cells can hold no markup of a response."""
    pages: list[str] = []

    class Handle:
        def update(self, page: Any) -> None:
            pages.append(page)

    def display(page: Any, *, display_id: bool) -> Handle:
        pages.append("first:" + page)
        return Handle()

    shown = SimpleNamespace(HTML=lambda text: text, display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())))
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    with dapo.Trainer(config_of(tmp_path), output_dir=tmp_path / "run") as one:
        list(one)
    assert [page.startswith("first:") for page in pages] == [True, False]
    assert "step 2/2" in pages[1]
    assert pages[1].count("<tr>") == 3
    assert "writing to" in capsys.readouterr().out
