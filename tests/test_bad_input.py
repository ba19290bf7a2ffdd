"""The user's mistakes: exit 2, one clear line that names the place and the mend, nothing written."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import helpers_run as helpers
from dapo import errors


def no_model(*arguments: Any, **named: Any) -> None:
    """Stands in for load_model where the mistake can be told without weights."""
    raise AssertionError("the model was loaded before the mistake was told")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a test, with recipe.toml, data.jsonl and a copy of the tiny model in it."""
    monkeypatch.chdir(tmp_path)
    model = shutil.copytree(helpers.warm_model(), tmp_path / "model")
    helpers.write_recipe(tmp_path, model=model)
    return tmp_path


def check_refusal(bench: Path, code: int, err: str, needles: list[str]) -> None:
    """One error line at the end, which holds the needles, and no traceback."""
    lines = [line for line in err.splitlines() if line.strip()]
    assert code == 2, err
    assert "Traceback" not in err
    assert [line for line in lines if line.startswith("error:")] == lines[-1:], err
    # Before it stands at most what every start prints.
    assert [line for line in lines[:-1] if not line.startswith(("tiny: ", "writing to "))] == [], err
    for needle in needles:
        assert needle.format(bench=bench) in lines[-1]


@dataclass(frozen=True)
class Mistake:
    """What the user does wrong, and what the message has to say."""

    needles: list[str]
    words: tuple[str, ...] = ()
    spoil: Callable[[Path], None] = lambda bench: None
    needs_model: bool = False  # can be told only with the model loaded


def append_toml(text: str) -> Callable[[Path], None]:
    """Adds lines to the end of the recipe."""

    def spoil(bench: Path) -> None:
        path = bench / "recipe.toml"
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")

    return spoil


def edit_toml(old: str, new: str) -> Callable[[Path], None]:
    """Replaces a text of the recipe."""

    def spoil(bench: Path) -> None:
        path = bench / "recipe.toml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return spoil


def rows(*content: dict[str, Any]) -> Callable[[Path], None]:
    """Other data."""
    return lambda bench: helpers.write_rows(bench / "data.jsonl", content) and None


def file(name: str, text: str) -> Callable[[Path], None]:
    """One more file."""
    return lambda bench: (bench / name).write_text(text, encoding="utf-8") and None


def remove(*names: str) -> Callable[[Path], None]:
    """Takes files out of the model's folder; "" is the folder itself."""

    def spoil(bench: Path) -> None:
        for name in names:
            path = bench / "model" / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return spoil


def edit_model_json(name: str, **changes: Any) -> Callable[[Path], None]:
    """Changes a JSON file of the model's folder; None takes a key out."""

    def spoil(bench: Path) -> None:
        path = bench / "model" / name
        content = json.loads(path.read_text(encoding="utf-8")) | changes
        content = {key: value for key, value in content.items() if value is not None}
        path.write_text(json.dumps(content), encoding="utf-8")

    return spoil


def only_pickled(bench: Path) -> None:
    """Weights as torch.save writes them, which can run code when they are read."""
    torch.save(helpers.weights(bench / "model"), bench / "model" / "pytorch_model.bin")
    (bench / "model" / "model.safetensors").unlink()


def no_chat_template(bench: Path) -> None:
    """A base model's tokenizer."""
    (bench / "model" / "chat_template.jinja").unlink(missing_ok=True)
    edit_model_json("tokenizer_config.json", chat_template=None)(bench)


GOOD = {"prompt": "say aa", "answer": "7"}
MISTAKES: dict[str, Mistake] = {
    # --- keys and values
    "misspelt_key_in_toml": Mistake(
        ["train.learning_rat", "did you mean train.learning_rate"], spoil=edit_toml("learning_rate", "learning_rat")
    ),
    "misspelt_section_in_toml": Mistake(["trian", "did you mean train"], spoil=edit_toml("[train]", "[trian]")),
    "misspelt_key_on_the_command_line": Mistake(
        ["train.learning_rat", "did you mean train.learning_rate"], ("train.learning_rat=1e-6",)
    ),
    "dashes": Mistake(["--train.lr", "train.learning_rate=1e-6"], ("--train.lr", "1e-6")),
    "dashes_with_equals": Mistake(["train.learning_rate=1e-6"], ("--train.learning-rate=1e-6",)),
    "wrong_type": Mistake(["train.num_steps", "'many'"], ("train.num_steps=many",)),
    "not_a_number": Mistake(["train.learning_rate"], ("train.learning_rate=nan",)),
    "wrong_choice": Mistake(["algorithm.reduction", "minibatch"], ("algorithm.reduction=minbatch",)),
    "none_for_off": Mistake(["eval.every=off"], ("eval.every=none",)),
    "invalid_toml": Mistake(["recipe.toml", "not valid TOML", "line"], spoil=append_toml("\n[train\n")),
    "unknown_recipe": Mistake(["quickstrat", "did you mean quickstart"], ("quickstrat",)),
    "missing_overlay": Mistake(["other.toml", "no such file"], ("other.toml",)),
    "rates_without_a_column": Mistake(["data.min_pass_rate = 0.1", "data.rating_column"], ("data.min_pass_rate=0.1",)),
    "no_problem_within_the_rates": Mistake(
        ["data.source[0]", "pass_rate from 0.5 to 1 (1 below, 0 above)", "lower data.min_pass_rate"],
        ("data.rating_column=pass_rate", "data.min_pass_rate=0.5"),
        spoil=rows({"prompt": "say aa", "answer": "7", "pass_rate": 0.25}),
    ),
    "shaping_of_one_source": Mistake(
        ["data.source.0.reward.overlong", "takes extract, compat", "[reward]"],
        ('data.source=[{{source = "data.jsonl", reward = {{overlong = "none"}}}}]',),
    ),
    "floats_of_one_source": Mistake(
        ["data.source[0].reward.functions", "let all say what is right, or none"],
        ('data.source=[{{source = "data.jsonl", reward = {{functions = ["r.py:f"]}}}}]',),
    ),
    "group_of_one": Mistake(["sampling.responses_per_prompt", "2 or more"], ("sampling.responses_per_prompt=1",)),
    "buffer_over_limit": Mistake(
        ["reward.overlong_buffer_tokens = 5", "sampling.max_response_tokens = 4", "lower"],
        ("reward.overlong=soft", "reward.overlong_buffer_tokens=5"),
    ),
    "not_divisible": Mistake(
        ["train.updates_per_step = 3", "sampling.prompts_per_step = 4", "divisor"], ("train.updates_per_step=3",)
    ),
    "penalty_outranks": Mistake(
        ["reward.overlong_factor = 2", "less than 2"], ("reward.overlong=hard", "reward.overlong_factor=2")
    ),
    # --- data
    "missing_file": Mistake(
        ["{bench}/data.jsonl", "no such file", "data.source"], spoil=lambda bench: (bench / "data.jsonl").unlink()
    ),
    "a_hub_to_train_from": Mistake(
        ["data.source = modelscope:OWNER/NAME", "dapo data prepare modelscope:OWNER/NAME -o"],
        ("data.source=modelscope:OWNER/NAME",),
    ),
    "missing_column": Mistake(["data.jsonl, row 2", "answer", "data.answer_column"], spoil=rows(GOOD, {"prompt": "x"})),
    "missing_prompt_column": Mistake(
        ["data.jsonl, row 1", "question", "data.prompt_column"], ("data.prompt_column=question",)
    ),
    "empty_answer": Mistake(["data.jsonl, row 2", "empty"], spoil=rows(GOOD, {"prompt": "b", "answer": " "})),
    "null_answer": Mistake(["data.jsonl, row 2", "empty"], spoil=rows(GOOD, {"prompt": "b", "answer": None})),
    "empty_prompt": Mistake(
        ["data.jsonl, row 2", "empty"],
        ("data.holdout=0", "eval.data=[]"),
        spoil=rows(GOOD, {"prompt": "", "answer": "7"}),
    ),
    "two_answers": Mistake(["row 2", "row 1", "keep one"], spoil=rows(GOOD, GOOD | {"answer": "8"})),
    "not_json": Mistake(["data.jsonl, row 1", "not valid JSON"], spoil=file("data.jsonl", "{\n")),
    "no_rows": Mistake(["data.jsonl", "no problems"], spoil=file("data.jsonl", "\n")),
    "holdout_takes_all": Mistake(["data.holdout = 40"], ("data.holdout=40",)),
    "holdout_of_nothing": Mistake(["eval.data", "data.holdout over 0"], ("data.holdout=0",)),
    "all_too_long": Mistake(
        ["data.jsonl, row", "data.max_prompt_tokens = 2", "raise it"],
        ("data.max_prompt_tokens=2", "data.holdout=0", "eval.data=[]"),
    ),
    "one_too_long_refused": Mistake(
        ["data.jsonl, row 41", "data.max_prompt_tokens = 16", "raise it"],
        ("data.overlong_prompts=refuse", "data.holdout=0", "eval.data=[]"),
        spoil=lambda bench: (
            helpers.write_rows(bench / "data.jsonl", [*helpers.problems(40), {"prompt": "a" * 30, "answer": "7"}])
            and None
        ),
    ),
    "too_few_without_repeat": Mistake(
        ["data.repeat = false", "36 prompts", "64", "lower"],
        ("data.repeat=false", "sampling.prompts_per_step=64"),
    ),
    "bad_template": Mistake(["data.template", "{{ problem }}"], ("data.template=qwen",)),
    "no_chat_template": Mistake(['data.template = "raw"', "no chat template"], spoil=no_chat_template),
    # --- rewards and objectives
    "reward_file_missing": Mistake(
        ["reward.functions[0]", "no such file"], ('reward.functions=["{bench}/no.py:f", "grader"]',)
    ),
    "reward_function_missing": Mistake(
        ["reward.functions[1]", "no function f"],
        ('reward.functions=["grader", "{bench}/own.py:f"]',),
        spoil=file("own.py", "x = 1\n"),
    ),
    "reward_raises_at_import": Mistake(
        ["reward.functions[0]", "ZeroDivisionError"],
        ('reward.functions=["{bench}/own.py:f", "grader"]',),
        spoil=file("own.py", "1 / 0\n"),
    ),
    "reward_without_name": Mistake(["FILE.py:NAME"], ('reward.functions=["{bench}/own.py", "grader"]',)),
    "reward_without_correctness": Mistake(
        ["sampling.filter", "nonzero_std", "grader"],
        ('reward.functions=["{bench}/own.py:f"]',),
        spoil=file("own.py", "def f(completions, **columns):\n    return [0.0] * len(completions)\n"),
    ),
    "objective_missing": Mistake(["algorithm.objective", "no such file"], ("algorithm.objective={bench}/no.py:f",)),
    "unknown_objective": Mistake(["algorithm.objective", "there are: dapo"], ("algorithm.objective=dopa",)),
    # --- engine, learner, device
    "unknown_engine": Mistake(["engine.kind", "torch"], ("engine.kind=tortch",)),
    "unknown_learner": Mistake(["learner.kind", "torch"], ("learner.kind=tortch",)),
    "no_cuda": Mistake(["model.device", "cpu"], ("model.device=cuda",)),
    # --- the model
    "no_model_folder": Mistake(["model.path = {bench}/model", "no such folder"], spoil=remove("")),
    "no_config": Mistake(["model.path = {bench}/model", "config.json"], spoil=remove("config.json")),
    "no_weights": Mistake(
        ["model.path = {bench}/model", "safetensors"], spoil=remove("model.safetensors"), needs_model=True
    ),
    "only_pickled": Mistake(["model.path = {bench}/model", "safetensors"], spoil=only_pickled, needs_model=True),
    "no_tokenizer": Mistake(
        ["model.path = {bench}/model", "tokenizer"], spoil=remove("tokenizer.json", "tokenizer_config.json")
    ),
    "unknown_architecture": Mistake(
        ["model.path = {bench}/model", "madeup"],
        spoil=edit_model_json("config.json", model_type="madeup", architectures=["MadeUpForCausalLM"]),
        needs_model=True,
    ),
    "no_such_package": Mistake(
        ["model.path", "dapo_no_such_package", "pip install"], ("model.path=pkg:dapo_no_such_package/m.gguf",)
    ),
    "no_file_in_package": Mistake(["model.path", "no file m.gguf"], ("model.path=pkg:dapo/m.gguf",)),
    "no_gguf": Mistake(["model.path = {bench}/m.gguf", "no such file"], ("model.path={bench}/m.gguf",)),
    "too_few_positions": Mistake(
        ["256 positions", "data.max_prompt_tokens", "sampling.max_response_tokens", "lower"],
        ("sampling.max_response_tokens=250",),
        needs_model=True,
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_one_line(name: str, bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 2, the place and the mend, before the model loads where possible, and nothing written."""
    mistake = MISTAKES[name]
    if name == "no_cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    mistake.spoil(bench)
    if not mistake.needs_model:
        monkeypatch.setattr("dapo.build.load_model", no_model)
    before = helpers.tree(bench)
    code, out, err = helpers.quiet_dapo("train", "recipe.toml", *(w.format(bench=bench) for w in mistake.words))
    check_refusal(bench, code, err, mistake.needles)
    assert out == ""
    assert helpers.tree(bench) == before


def test_the_bench_itself_trains(bench: Path) -> None:
    """None of the refusals above may come from the bench."""
    code, _, err = helpers.quiet_dapo("train", "recipe.toml", "train.num_steps=1")
    assert code == 0, err
    assert len(list((bench / "runs").glob("tiny-*/config.resolved.json"))) == 1


@pytest.mark.parametrize(
    ("words", "needles"),
    [
        (["train"], ["quickstart"]),
        (["train", "recipe.toml", "--output-dir", "data.jsonl"], ["data.jsonl", "is a file"]),
        (["train", "--resume", "nowhere"], ["nowhere", "config.resolved.json"]),
        (["train", "--resume", "latest"], ["runs/"]),
        (["train", "--resume", "nowhere", "recipe.toml"], ["recipe.toml", "key=value"]),
        (["train", "--resume", "nowhere", "--output-dir", "x"], ["--output-dir"]),
        (["train", "recipe.toml", "--no-such-option"], ["--no-such-option"]),
        (["eval", "model"], ["eval.data", "--data"]),
        (["eval", "model", "--recipe", "recipe.toml", "--data", "no.jsonl"], ["no.jsonl", "no such file"]),
        (["eval", "model", "--recipe", "recipe.toml", "--k", "0"], ["--k"]),
        (["sample", "./nowhere", "hello"], ["./nowhere", "no such folder"]),
        (["chat", "./nowhere"], ["./nowhere", "no such folder"]),
        (["export", "nowhere", "x"], ["nowhere", "config.resolved.json"]),
        (["config", "recipe.toml", "train.lr=1"], ["train.lr", "train.learning_rate"]),
        (["config"], ["recipe"]),
        (["doctor", "quickstrat"], ["quickstart"]),
        (["recipe", "show", "quickstrat"], ["quickstart"]),
        (["recipe", "show", "recipe.toml", "--jsno"], ["--jsno"]),
        (["recipe", "diff", "quickstart", "quickstrat"], ["quickstart"]),
        (["recipe", "diff", "quickstart", "model"], ["model", "config.resolved.json"]),
        (["recipe", "diff", "quickstart", "train.seed=1"], ["train.seed=1", "key=value"]),
        (["recipe", "copy", "quickstart", "recipe.toml"], ["recipe.toml", "there already"]),
        (["recipe", "copy", "quickstart", "copy"], [".toml"]),
        (["recipe", "copy", "quickstart", "no/copy.toml"], ["no/copy.toml", "no such folder"]),
        (["recipe", "copy", "quickstart"], ["FILE.toml"]),
        (["recipe", "table", "quickstart", "nosuch"], ["nosuch", "quickstart"]),
        (["recipe", "verify", "nowhere", "nowhere"], ["nowhere", "config.resolved.json"]),
        (["recipe", "verify", "model", "model"], ["model", "config.resolved.json"]),
        (["grade", "7", "none"], ["none", "can't be graded"]),
        (["grade", "7"], ["7", "no such file"]),
        (["grade", "7", "7", "7"], ["TEXT GOLD"]),
        (["grade", "7", "--jsno"], ["--jsno"]),
        (["grade", "7", "7", "--extract", "last_nmber"], ["reward.extract", "last_number"]),
        (["tarin"], ["tarin"]),
    ],
)
def test_every_verb_refuses_in_one_line(words: list[str], needles: list[str], bench: Path) -> None:
    """The same contract for every verb."""
    before = helpers.tree(bench)
    code, out, err = helpers.quiet_dapo(*words)
    check_refusal(bench, code, err, needles)
    assert out == ""
    assert helpers.tree(bench) == before


# --- the errors themselves -----------------------------------------------------------------------------

EXIT_CODES = {  # by the table in errors.py and section 9 of the design
    errors.DapoError: 1,
    errors.UserError: 2,
    errors.ConfigError: 2,
    errors.DataError: 2,
    errors.ModelError: 2,
    errors.RewardError: 2,
    errors.UngradableGold: 2,
    errors.HubUnreachable: 2,
    errors.ResumeRefused: 2,
    errors.VersionConflict: 2,
    errors.OutOfMemory: 2,
    errors.OutOfMemoryLoading: 2,
    errors.Stopped: 3,
    errors.Interrupted: 3,
    errors.SaveFailed: 3,
    errors.SamplingExhausted: 3,
    errors.NonFiniteGradients: 3,
    errors.EnginesLost: 3,
    errors.LearnerLost: 3,
    errors.RunOutOfMemory: 3,
    errors.OutOfMemorySampling: 3,
    errors.OutOfMemoryLogprobs: 3,
    errors.OutOfMemoryUpdating: 3,
    errors.OutOfMemoryEvaluating: 3,
    errors.SelfCheckFailed: 5,
    errors.CheckFailed: 4,
    errors.EngineError: 1,
}


def test_every_error_is_in_the_table() -> None:
    """A new error class needs an exit code that somebody thought of."""
    found = {c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.DapoError)}
    assert found == set(EXIT_CODES)


@pytest.mark.parametrize("kind", EXIT_CODES, ids=lambda kind: kind.__name__)
def test_errors_carry_their_exit_code_through_pickle(kind: type[errors.DapoError]) -> None:
    """Errors cross process borders; class, message and exit code have to survive that."""
    error = kind("train.x = 1: use 2")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert again.message == str(again) == "train.x = 1: use 2"
        assert again.exit_code == EXIT_CODES[kind]


@pytest.mark.parametrize("kind", EXIT_CODES, ids=lambda kind: kind.__name__)
def test_the_command_ends_with_the_errors_code(
    kind: type[errors.DapoError], bench: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, whitespace folded, and the exit code of the class; a stop is not called an error."""

    def fail(*arguments: Any, **named: Any) -> None:
        raise kind("first\nsecond")

    monkeypatch.setattr("dapo.build.build", fail)
    code, _, err = helpers.quiet_dapo("train", "recipe.toml")
    word = "stopped" if issubclass(kind, errors.Stopped) else "error"
    assert code == EXIT_CODES[kind]
    assert err.splitlines()[-1] == f"{word}: first second  [dapo explain {kind.code}]"
    assert "Traceback" not in err


@pytest.mark.parametrize("exception", [RuntimeError("boom"), KeyError("boom")])
def test_a_bug_of_ours_shows_its_traceback(exception: Exception, bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 1 and the traceback: the report has to be of use."""

    def fail(*arguments: Any, **named: Any) -> None:
        raise exception

    monkeypatch.setattr("dapo.build.build", fail)
    code, _, err = helpers.quiet_dapo("train", "recipe.toml")
    assert code == 1
    assert "Traceback" in err
    assert "boom" in err
    assert "bug in dapo" in err.splitlines()[-1]


def test_ctrl_c_before_training_ends_with_130(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is there to save yet."""

    def interrupt(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dapo.build.build", interrupt)
    code, _, err = helpers.quiet_dapo("train", "recipe.toml")
    assert code == 130
    assert "Traceback" not in err
