"""Configuration: who wins, what a word means, and that every mistake gets one clear line."""

from __future__ import annotations

import ast
import inspect
import json
import re
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from dapo.config import (
    Config,
    SourceConfig,
    batch_line,
    check,
    epoch_words,
    explain,
    from_tree,
    load_config,
    recipe_names,
    resolve,
)
from dapo.config import check as check_function
from dapo.config import load as load_module
from dapo.config.check import problems
from dapo.config.check_scale import scale_problems
from dapo.config.explain import ELSEWHERE
from dapo.config.load import all_keys, merge, parse_override, suggest_key
from dapo.config.reward import function_names
from dapo.config.schema import Section
from dapo.errors import ConfigError

BASE: dict[str, Any] = {"model.path": "m", "data.source": "d.jsonl"}
Layer = str | Path | Mapping[str, Any]


def load(*layers: Layer) -> Config:
    """A config from the least that loads, and these on top."""
    return load_config(BASE, *layers)


def value(config: Config, key: str) -> Any:
    """The value of a dotted key."""
    result: Any = config
    for part in key.split("."):
        result = getattr(result, part)
    return result


def refusal(*layers: Layer) -> str:
    """The message that these layers on top of BASE are refused with: always one plain line."""
    with pytest.raises(ConfigError) as caught:
        load(*layers)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert len(message.splitlines()) == 1, message
    assert not re.search(r"pydantic|Traceback|<class|\[type=", message)
    return message


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Text files below a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is also the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- composition ----------------------------------------------------------------------------------


def test_later_layers_win(folder: Path) -> None:
    """defaults < parent < recipe < overlay < mapping < key=value, each seen where nothing later speaks."""
    knobs = ["seed", "num_steps", "weight_decay", "adam_eps", "warmup_rollout_steps"]

    def table(number: int, upto: int) -> str:
        return "[train]\n" + "".join(f"{knob} = {number}\n" for knob in knobs[:upto])

    parent = "[train]\n" + "".join(f"{knob} = 1\n" for knob in knobs)
    write(folder, {"parent.toml": parent, "recipe.toml": 'extends = "parent.toml"\n' + table(2, 4)})
    write(folder, {"overlay.toml": table(3, 3)})
    mapping = {"train": dict.fromkeys(knobs[:2], 4)}
    config = load("recipe.toml", folder / "overlay.toml", mapping, "train.seed=5")
    assert [value(config, f"train.{knob}") for knob in knobs] == [5, 4, 3, 2, 1]
    assert config.train.num_steps != Config.model_fields["train"].default.num_steps
    assert load().train == Config.model_fields["train"].default
    assert load("train.seed=1", "train.seed=2").train.seed == 2


def test_tables_merge_and_lists_are_replaced() -> None:
    """A list is one value: overlays do not append to it."""
    config = load(
        {"model.chat_template_kwargs": {"a": 1, "b": 2}, "data.source": [{"source": "x"}, {"source": "y"}]},
        {"model": {"chat_template_kwargs": {"b": 3}}, "data.source": [{"source": "z"}]},
        "model.chat_template_kwargs.c=4",
    )
    assert config.model.chat_template_kwargs == {"a": 1, "b": 3, "c": 4}
    assert config.data.source == (SourceConfig(source="z"),)


def test_merge_leaves_its_arguments_alone() -> None:
    """A shipped recipe read once must not be changed by an override."""
    below, above = {"a": {"x": 1}}, {"a": {"y": 2}}
    assert merge(below, above) == {"a": {"x": 1, "y": 2}}
    assert (below, above) == ({"a": {"x": 1}}, {"a": {"y": 2}})
    assert merge({"a": {"x": 1}}, {"a": 2}) == {"a": 2}


def test_extends_finds_the_file_beside(folder: Path) -> None:
    """From the folder of the file that says so, not from where the command runs."""
    write(
        folder,
        {
            "deep/base.toml": "[train]\nseed = 1\nnum_steps = 7\n",
            "deep/child.toml": 'extends = "base.toml"\n[train]\nseed = 2\n',
            "deep/grandchild.toml": 'extends = "../deep/child.toml"\n[train]\nlearning_rate = 1e-5\n',
            "base.toml": "[train]\nnum_steps = 99\n",
        },
    )
    train = load("deep/grandchild.toml").train
    assert (train.seed, train.num_steps, train.learning_rate) == (2, 7, 1e-5)


@pytest.mark.parametrize(
    ("files", "start"),
    [
        ({"a.toml": 'extends = "a.toml"'}, "a.toml"),
        ({"a.toml": 'extends = "a.toml"'}, "./a.toml"),
        ({"a.toml": 'extends = "b.toml"', "b.toml": 'extends = "a.toml"'}, "a.toml"),
        ({"d/a.toml": 'extends = "../d/a.toml"'}, "d/a.toml"),
    ],
)
def test_extends_in_a_circle_is_refused(folder: Path, files: dict[str, str], start: str) -> None:
    """However the path is spelled."""
    write(folder, files)
    assert "circle" in refusal(start)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('extends = "nosuch.toml"', "nosuch.toml: no such file"),
        ('extends = "nosuch"', "nosuch: no recipe of that name"),
        ("extends = 3", "extends takes one name or path"),
        ('extends = ["a", "b"]', "extends takes one name or path"),
        ("[train\n", "r.toml: not valid TOML"),
        ("[train]\nseed = 1\nseed = 2\n", "r.toml: not valid TOML"),
    ],
)
def test_files_that_cannot_be_read(folder: Path, text: str, said: str) -> None:
    """A missing parent, a broken file."""
    write(folder, {"r.toml": text})
    assert said in refusal("r.toml")


def test_a_file_that_is_not_there_or_not_text(folder: Path) -> None:
    """Named, with what is wrong."""
    assert refusal("nosuch.toml") == "nosuch.toml: no such file"
    (folder / "bytes.toml").write_bytes(b"\xff\xfe")
    assert refusal("bytes.toml").startswith("bytes.toml: can't be read")


def test_extends_in_a_mapping_is_not_dropped() -> None:
    """Law 7: a parent that is asked for is read or refused, never ignored."""
    assert "nosuch" in refusal({"extends": "nosuch"})


def test_function_paths_are_relative_to_their_file(folder: Path) -> None:
    """FILE.py:NAME moves with the recipe; MODULE:NAME and built-in names stay."""
    text = '[reward]\nfunctions = ["r.py:f", "pkg.mod:g", {function = "r.py:h", weight = 2.0}, "grader"]\n'
    write(folder, {"sub/r.toml": text + '[algorithm]\nobjective = "o.py:loss"\n'})
    config = load("sub/r.toml")
    here = (folder / "sub").resolve()
    plain, module, weighted, grader = config.reward.functions
    assert (plain, module, grader) == (f"{here}/r.py:f", "pkg.mod:g", "grader")
    assert not isinstance(weighted, str)
    assert (weighted.function, weighted.weight) == (f"{here}/r.py:h", 2.0)
    assert config.algorithm.objective == f"{here}/o.py:loss"


def test_function_paths_of_single_sources_are_relative_to_their_file_too(folder: Path) -> None:
    """In data.source and eval.data, in a file and in a word."""
    table = '{source = "a", reward = {functions = ["r.py:f", {function = "r.py:g"}]}}'
    write(folder, {"sub/r.toml": f"[data]\nsource = [{table}]\n[eval]\ndata = [{table}]\n"})
    here = (folder / "sub").resolve()
    config = load_config({"model.path": "m", **FLOATS}, "sub/r.toml")
    for table in (config.data.source[0], config.eval.data[0]):
        assert isinstance(table, SourceConfig)
        assert function_names(table.reward.over(config.reward)) == [f"{here}/r.py:f", f"{here}/r.py:g"]
    said = load(FLOATS, 'data.source=[{source = "a", reward = {functions = ["r.py:f"]}}]').data.source[0]
    assert isinstance(said, SourceConfig)
    assert said.reward.functions == (f"{folder.resolve()}/r.py:f",)


# --- key=value ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "key", "expected"),
    [
        *((f"train.learning_rate={spelling}", "train.learning_rate", 1e-6)
          for spelling in ("1e-6", "1E-6", "1e-06", "1.0e-6", "1.e-6", "+1e-6", "0.000001", ".000001",
                           "10e-7", "1_0e-7", '"1e-6"', "'1e-6'", " 1e-6 ")),
        ("algorithm.clip_dual=1e1", "algorithm.clip_dual", 10.0),
        ("algorithm.clip_dual=3", "algorithm.clip_dual", 3.0),
        ("algorithm.clip_dual=off", "algorithm.clip_dual", None),
        ('algorithm.clip_dual="off"', "algorithm.clip_dual", None),
        ("train.max_grad_norm=off", "train.max_grad_norm", None),
        ("log.rollouts_every=off", "log.rollouts_every", None),
        ("data.system=off", "data.system", None),
        ("train.num_steps=12", "train.num_steps", 12),
        ("train.num_steps=1_000", "train.num_steps", 1000),
        ("data.shuffle=false", "data.shuffle", False),
        ("model.trust_remote_code=true", "model.trust_remote_code", True),
        ("model.path=org/Name-1.5B", "model.path", "org/Name-1.5B"),
        ('model.path="1"', "model.path", "1"),
        ("data.template={{ problem }} = ?", "data.template", "{{ problem }} = ?"),
        ("description=a=b", "description", "a=b"),
        ("description=", "description", ""),
        ("reward.overlong=soft+filter", "reward.overlong", "soft+filter"),
        ("reward.overlong=none", "reward.overlong", "none"),
        ('reward.extract=["boxed", "last_number"]', "reward.extract", ("boxed", "last_number")),
        ("train.betas=[0.9, 0.95]", "train.betas", (0.9, 0.95)),
        ("model.chat_template_kwargs={enable_thinking = false}", "model.chat_template_kwargs",
         {"enable_thinking": False}),
        ("model.chat_template_kwargs.a.b=1", "model.chat_template_kwargs", {"a": {"b": 1}}),
        ('data.source=[{source = "a", weight = 1}]', "data.source", (SourceConfig(source="a", weight=1.0),)),
        ('data.source=[{source = "a", max_rows = "off"}]', "data.source", (SourceConfig(source="a"),)),
        ('data.source=[{source = "a", weight = "off"}]', "data.source", (SourceConfig(source="a"),)),
        ("algorithm.std_correction=0", "algorithm.std_correction", 0),
        ("schema=1", "schema_version", 1),
        ("train.seed = 3", "train.seed", 3),
    ],
)  # fmt: skip
def test_a_word_sets_its_key(word: str, key: str, expected: Any) -> None:
    """Every type, and 1e-6 in every spelling that people use."""
    got = value(load(word), key)
    assert got == expected
    assert type(got) is type(expected)


def test_parse_override_keeps_the_first_equals_sign() -> None:
    """key, then everything behind the first =."""
    assert parse_override("description=a=b=c") == {"description": "a=b=c"}
    assert parse_override("train.betas=[0.9, 1]") == {"train": {"betas": [0.9, 1]}}


@pytest.mark.parametrize(
    ("layer", "right"),
    [
        ("lr=1e-6", "train.learning_rate"),
        ("train.lr=1e-6", "train.learning_rate"),
        ("--train.lr=1e-6", "train.learning_rate"),
        ("--train.learning_rate=1e-6", "train.learning_rate=1e-6"),
        ("train.leraning_rate=1e-6", "train.learning_rate"),
        ("clip_low=.2", "algorithm.clip_low"),
        ("train.clip_low=.2", "algorithm.clip_low"),
        ("trian.learning_rate=1", "train.learning_rate"),
        ("algorithm.kl.coeff=1", "algorithm.kl.coef"),
        ("kl.coef=1", "algorithm.kl.coef"),
        ("group_size=8", "sampling.responses_per_prompt"),
        ("train=1", "train.num_steps=..."),
        ("algorithm.kl=1", "algorithm.kl.place=..."),
        ({"train": {"lr": 1e-6}}, "train.learning_rate"),
        ({"trian": {"seed": 1}}, "did you mean train?"),
        ({"samplng": {"temperature": 1}}, "did you mean sampling?"),
        ({"sampling": {"responses_per_promt": 8}}, "sampling.responses_per_prompt"),
        ({"algorithm": {"kl": {"plase": "loss"}}}, "algorithm.kl.place"),
        ({"data.source": [{"source": "a", "wieght": 1}]}, "weight?)"),
        ({"eval.data": [{"source": "a", "max_rwos": 5}]}, "max_rows?)"),
        ({"reward.functions": [{"functon": "a.py:f"}]}, "function?)"),
        ({"data.source": [{"source": "a", "reward": {"extrct": ["boxed"]}}]}, "data.source.0.reward.extrct (did you "),
        ({"eval.data": [{"source": "a", "reward": {"compt": "off"}}]}, "compat?)"),
    ],
)
def test_wrong_spellings_are_answered_with_the_right_one(layer: Layer, right: str) -> None:
    """What was written is named, and what was meant."""
    message = refusal(layer)
    assert right in message
    if isinstance(layer, str):
        assert layer in message


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("[train]\nlearning_rat = 1e-6\n", "train.learning_rate"),
        ("[trian]\nseed = 1\n", "did you mean train?"),
        ("[[data.source]]\nsource = 'a'\nwieght = 1\n", "weight?)"),
    ],
)
def test_misspelt_keys_of_a_file(folder: Path, text: str, right: str) -> None:
    """As for words."""
    write(folder, {"r.toml": text})
    assert right in refusal("r.toml")


@pytest.mark.parametrize("key", [k for k in all_keys() if len(k.split(".")[-1]) > 4])
def test_every_key_survives_a_slip_of_the_finger(key: str) -> None:
    """The last two letters swapped: the suggestion is the key, and no other."""
    slip = key[:-2] + key[-1] + key[-2]
    if slip in set(all_keys()) or slip == key:
        pytest.skip("the slip is a key too")
    assert suggest_key(slip) == f" (did you mean {key}?)"


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("train.learning_rate=abc", "train.learning_rate = 'abc'"),
        ("train.learning_rate=", "train.learning_rate = ''"),
        ("train.learning_rate=true", "not true or false"),
        ("train.learning_rate=nan", "finite"),
        ('train.learning_rate="inf"', "finite"),
        ("algorithm.clip_dual=inf", "finite"),
        ("algorithm.clip_dual=true", "not true or false"),
        ("train.learning_rate=-1", "greater than 0"),
        ("train.learning_rate=off", "train.learning_rate = 'off'"),
        ("train.num_steps=1.5", "integer"),
        ("train.num_steps=true", "train.num_steps"),
        ("sampling.gen_prompts=true", "sampling.gen_prompts"),
        ("train.num_steps=0", "train.num_steps = 0"),
        ("data.shuffle=maybe", "boolean"),
        ("model.path=1", "model.path = 1"),
        ("model.dtype=bf16", "did you mean bfloat16"),
        ("algorithm.reduction=minibach", "did you mean minibatch"),
        ("algorithm.std_correction=2", "0 or 1"),
        ('reward.extract=["box"]', "did you mean boxed"),
        ("reward.extract=boxed", "reward.extract = 'boxed'"),
        ("train.betas=[0.9]", "train.betas"),
        ('data.source=[{weight = 1.0}]', "data.source.0.source is not set"),
        ('data.source=[{source = "a", weight = -1.0}]', "data.source.0.weight = -1.0"),
        ("data.source=3", "data.source = 3"),
        ('data.source=[{source = "a", reward = {extract = ["box"]}}]', "data.source.0.reward.extract.0 = 'box'"),
        ('data.source=[{source = "a", reward = {tests_limit_s = 0}}]', "data.source.0.reward.tests_limit_s = 0"),
        ('data.source=[{source = "a", reward = 3}]', "data.source.0.reward = 3"),
        ('eval.data=[{source = "a", reward = {overlong = "none"}}]',
         "unknown key eval.data.0.reward.overlong; a source's own reward takes extract, compat, unevaluated"),
        ('data.source=[{source = "a"}, {source = "b", reward = {placebo = true}}]',
         "unknown key data.source.1.reward.placebo; a source's own reward takes extract"),
        ("model.chat_template_kwargs=1", "model.chat_template_kwargs = 1"),
        ("train.learning_rate.x=1", "has no keys below it"),
        ("algorithm.clip_dual=none", "algorithm.clip_dual=off"),
        ("algorithm.clip_dual=null", "algorithm.clip_dual=off"),
        ("schema=2", "reads schema = 1"),
        ({"schema": 2}, "reads schema = 1"),
        ({"schema": "1"}, "reads schema = 1"),
        ({"schema": True}, "reads schema = 1"),
        ({"train": 1}, "train = 1"),
        ({"train": None}, "train = None"),
        ({"data": "x"}, "data = 'x'"),
        ({"nosuch\nkey": 1}, "unknown key"),
        ("lr=a\nb", "train.learning_rate"),
        ("train.seed=1\nnum_steps = 2", "train.seed"),
        ("=3", "=3"),
        ("nosuch", "nosuch: no recipe of that name"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_used(layer: Layer, said: str) -> None:
    """One line each, with the key."""
    assert said in refusal(layer)


@pytest.mark.parametrize(("layer", "missing"), [({}, "model"), ({"model.path": "m"}, "data")])
def test_what_must_be_given(layer: Layer, missing: str) -> None:
    """A recipe names a model and data."""
    with pytest.raises(ConfigError, match=rf"^{missing}\b.* is not set"):
        load_config(layer)


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm.reduction=constant", "algorithm.constant_tokens=-5"],  # row_weights refuses it
        ["log.rollouts_every=0"],  # a remainder by 0
        ["train.max_grad_norm=0"],  # every gradient scaled to nothing
        ["train.max_grad_norm=-1"],  # or turned round
        ["eval.max_response_tokens=0"],
        ["train.betas=[2, 3]"],  # AdamW refuses it
        ["train.seed=18446744073709551616"],  # 2**64: the generator refuses it
        ["eval.seed=18446744073709551616"],
        ['data.source=[{source = "a", max_rows = 0}]'],
        ["data.source=holdout"],  # refused in a table, so also by name
    ],
)
def test_what_a_run_could_not_use_is_refused_here(words: list[str]) -> None:
    """Law 8: fail before anything is loaded, with the key's name."""
    key = words[-1].partition("=")[0]
    assert key in refusal(*words)


# --- combinations (check.py) ----------------------------------------------------------------------

BEST: dict[str, Any] = {
    "checkpoint.keep_best": 1, "eval.data": "e.jsonl", "checkpoint.every": 10, "eval.every": 5,
}  # fmt: skip
FLOATS: dict[str, Any] = {"reward.functions": ["a.py:f"], "sampling.filter": "nonzero_std"}
RATED: dict[str, Any] = {"data.rating_column": "pass_rate"}
CARRY: dict[str, Any] = {"sampling.surplus": "carry", "sampling.max_staleness": 1, "algorithm.importance_cap": 2}


def own(reward: dict[str, Any]) -> dict[str, Any]:
    """Two sources, the second with a reward of its own."""
    return {"data.source": [{"source": "a"}, {"source": "b", "reward": reward}]}


STALE: dict[str, Any] = {"pipeline.max_staleness": 1, "algorithm.importance_cap": 2.0}
COMBINATIONS: list[tuple[dict[str, Any], str]] = [
    ({"cluster.engines": 2}, 'cluster.engines = 2 needs cluster.kind = "ray"'),
    ({"cluster.kind": "ray", "learner.kind": "fsdp"}, "set cluster.learner_ranks"),
    ({"cluster.kind": "ray", "cluster.learner_ranks": 2, "learner.kind": "mine"}, "runs in one process"),
    ({"cluster.weights": "broadcast"}, 'cluster.weights = "broadcast" needs cluster.kind = "ray"'),
    (
        {"cluster.kind": "ray", "cluster.weights": "broadcast", "engine.kind": "vllm"},
        'reaches engines of engine.kind = "torch" alone, and it is "vllm"; leave it out',
    ),
    ({"cluster.kind": "ray", "engine.vllm.sleep": True}, "engines have GPUs of their own"),
    ({"engine.vllm.sleep": True}, 'engine.vllm.sleep needs engine.kind = "vllm"'),
    (STALE | {"engine.kind": "vllm", "engine.vllm.sleep": True}, "engine.vllm.sleep stops it then"),
    ({"engine.kind": "vllm", "learner.kind": "fsdp"}, "each needs the process group to itself"),
    ({"pipeline.kv_cache": "recompute"}, "no response outlives a policy"),
    (STALE | {"pipeline.max_staleness": 2}, "set max_staleness = 1"),
    (STALE | {"pipeline.swap": "in_flight"}, 'needs sampling.schedule = "streaming"'),
    (STALE | {"sampling.surplus": "carry", "sampling.max_staleness": 1}, 'set sampling.surplus = "discard"'),
    ({"pipeline.max_staleness": 1, "algorithm.old_logprobs": "engine"}, "trains on tokens of older policies and needs"),
    ({"pipeline.max_staleness": 1}, "set algorithm.importance_cap (e.g. 2)"),
    ({"trackers": ["wand"]}, 'trackers = ["wand"]: not known'),
    ({"trackers": ["wandb", "wandb"]}, 'trackers names "wandb" twice'),
    ({"sampling.responses_per_prompt": 1}, "sampling.responses_per_prompt = 1"),
    ({"train.updates_per_step": 7}, "train.updates_per_step = 7 does not divide"),
    ({"sampling.gen_prompts": 0}, "sampling.gen_prompts = 0"),
    ({"sampling.filter": "off", "sampling.gen_prompts": 600}, 'sampling.gen_prompts = "off"'),
    ({"reward.overlong_buffer_tokens": 20481}, "reward.overlong_buffer_tokens = 20481"),
    ({"reward.overlong": "soft+filter", "reward.overlong_buffer_tokens": 20481}, "20481"),
    ({"reward.overlong_factor": 2}, "reward.overlong_factor = 2"),
    ({"reward.overlong": "hard", "reward.overlong_factor": 2.5}, "reward.overlong_factor = 2.5"),
    ({"reward.functions": ["a.py:f"]}, 'sampling.filter = "nonzero_std"'),
    ({"reward.extract": []}, "reward.extract is empty"),
    ({"reward.extract": [], "reward.functions": ["grader"]}, "reward.extract is empty"),
    ({"reward.functions": ["grader", "python-tests"]}, "only one of them"),
    ({"reward.compat": "verl-math-dapo", "reward.functions": ["python-tests"]}, "reward.compat"),
    ({"algorithm.clip_dual": 1}, "algorithm.clip_dual = 1"),
    ({"algorithm.reduction": "constant"}, "algorithm.constant_tokens"),
    ({"algorithm.constant_tokens": 5}, "algorithm.constant_tokens"),
    ({"algorithm.log_ratio_clamp": 0}, "algorithm.log_ratio_clamp = 0"),
    ({"algorithm.importance_cap": -1}, "algorithm.importance_cap = -1"),
    ({"algorithm.kl.coef": 0.1}, "algorithm.kl.place"),
    ({"learner.lora_alpha": 16}, "learner.lora_alpha does nothing without adapters; set learner.lora_rank"),
    ({"learner.lora_targets": "attention"}, "learner.lora_targets does nothing without adapters"),
    ({"learner.lora_rank": 8, "learner.kind": "mine"}, 'is of learner.kind = "torch" or "fsdp", not "mine"'),
    ({"learner.lora_rank": 8, "learner.lora_alpha": 0}, "learner.lora_alpha = 0"),
    ({"learner.lora_rank": 0}, "learner.lora_rank = 0"),
    ({"learner.lora_rank": 8, "learner.lora_targets": "head"}, "learner.lora_targets"),
    ({"algorithm.kl.place": "loss"}, "algorithm.kl.coef"),
    ({"sampling.min_responses_per_prompt": 1}, "sampling.min_responses_per_prompt = 1: use 2 to"),
    ({"sampling.min_responses_per_prompt": 17}, "responses_per_prompt = 16"),
    ({"algorithm.covariance.low": 5}, "algorithm.covariance.low = 5 is not under high = 5"),
    (
        {"algorithm.objective": "gspo", "algorithm.clip_dual": 3},
        'algorithm.clip_dual bounds the loss of objective = "dapo"',
    ),
    ({"algorithm.objective": "kl_cov", "algorithm.clip_dual": 3}, 'with "kl_cov" it would do nothing'),
    ({"algorithm.importance_level": "sequence"}, 'algorithm.importance_level = "sequence" needs'),
    ({"algorithm.kl": {"place": "loss", "coef": 0.1, "estimator": "k1"}}, "gradient of zero in the mean"),
    ({"algorithm.kl.reset_every": 5}, "algorithm.kl.reset_every has no reference"),
    ({"data.source": []}, "data.source is empty"),
    ({"data.source": [{"source": "a", "weight": 1}, {"source": "b"}]}, "a weight, or none"),
    ({"data.source": [{"source": "holdout"}], "data.holdout": 1}, '"holdout" is for eval.data'),
    ({"data.source": "holdout", "data.holdout": 1}, '"holdout" is for eval.data'),
    ({"eval.data": "holdout"}, "data.holdout over 0"),
    ({"eval.data": [{"source": "holdout"}]}, "data.holdout over 0"),
    ({"eval.every": 0}, "eval.every = 0"),
    ({"checkpoint.every": -1}, "checkpoint.every = -1"),
    ({"sampling.max_staleness": 1}, "sampling.max_staleness = 1"),
    ({**CARRY, "sampling.max_staleness": 0}, 'surplus = "carry" needs sampling.max_staleness'),
    ({**CARRY, "algorithm.old_logprobs": "engine"}, 'needs algorithm.old_logprobs = "learner"'),
    ({**CARRY, "algorithm.importance_cap": "off"}, "set algorithm.importance_cap"),
    ({"algorithm.old_logprobs": "engine", "algorithm.importance_cap": 2}, 'set importance_cap = "off"'),
    (
        {"sampling.skip_solved_after": 2, "reward.functions": ["a.py:f"], "sampling.filter": "off"},
        "sampling.skip_solved_after needs rewards",
    ),
    ({"reward.placebo": True, "sampling.schedule": "streaming"}, 'schedule = "rounds"'),
    ({"checkpoint.keep_best": 1}, "checkpoint.keep_best = 1 needs evaluations"),
    ({**BEST, "eval.data": "a.jsonl,b.jsonl"}, 'checkpoint.best_on = "a" (the others stay tests)'),
    ({**BEST, "checkpoint.best_on": "c"}, "is no set of eval.data, which has e"),
    ({**BEST, **FLOATS, "checkpoint.best_metric": "pass"}, 'checkpoint.best_metric = "pass" needs rewards'),
    ({**BEST, "reward.functions": ["python-tests"], "checkpoint.best_metric": "maj"}, 'use "pass"'),
    ({"eval.data": "a.jsonl,a.jsonl"}, "two sets are called a"),
    ({"eval.data": [{"source": "a.jsonl", "name": "a/b"}]}, 'name = "a/b": use letters'),
    ({"checkpoint.keep_every": 5}, "keep_every = 5 keeps nothing"),
    (
        {"checkpoint.keep_best": 1, "eval.data": "e.jsonl", "checkpoint.every": 7, "eval.every": 20},
        "keep_best = 1 keeps nothing",
    ),
    ({"checkpoint.keep_every": 25, "checkpoint.every": 10}, "keep_every = 25 keeps nothing"),
    ({"sampling.gen_prompts": 16}, "160 draws can never fill"),
    ({**CARRY, "sampling.schedule": "streaming", "sampling.filter": "off"}, "nothing to carry"),
    ({"data.min_pass_rate": 0.1}, "data.min_pass_rate = 0.1 needs data.rating_column"),
    ({"data.max_pass_rate": 0}, "data.max_pass_rate = 0 needs data.rating_column"),
    ({**RATED, "data.min_pass_rate": 0.6, "data.max_pass_rate": 0.4}, "data.min_pass_rate = 0.6 is over"),
    ({**RATED, "data.min_pass_rate": -0.1}, "data.min_pass_rate = -0.1"),
    ({**RATED, "data.max_pass_rate": 1.5}, "data.max_pass_rate = 1.5"),
    (own({"extract": []}), "data.source[1].reward.extract is empty"),
    (
        own({"functions": ["python-tests"], "compat": "verl-math-dapo"}),
        'data.source[1].reward.compat = "verl-math-dapo" needs "grader" in data.source[1].reward.functions',
    ),
    (own({"functions": ["grader", "python-tests"]}), "data.source[1].reward.functions names grader and python-tests"),
    (
        own({"functions": ["a.py:f"]}),
        "data.source[1].reward.functions = ['a.py:f'] do not, and reward.functions = ['grader'] say what is right",
    ),
    (
        {**FLOATS, "eval.data": [{"source": "e.jsonl", "reward": {"functions": ["grader"]}}]},
        "eval.data[0].reward.functions = ['grader'] say what is right, and reward.functions = ['a.py:f'] do not",
    ),
    (
        {"eval.data": [{"source": "holdout", "reward": {"extract": ["boxed"]}}], "data.holdout": 1},
        'eval.data[0].reward: "holdout" is judged as the sources',
    ),
    (
        {
            **BEST,
            "checkpoint.best_metric": "maj",
            "eval.data": [{"source": "e.jsonl", "reward": {"functions": ["python-tests"]}}],
        },
        'use "pass"',
    ),
]


@pytest.mark.parametrize(("layer", "said"), COMBINATIONS)
def test_combinations_that_cannot_be_used(layer: dict[str, Any], said: str) -> None:
    """Refused by name."""
    assert said in refusal(layer)


@pytest.mark.parametrize(
    "layer",
    [
        {"sampling.responses_per_prompt": 2},
        {"sampling.gen_prompts": 1536},
        {"reward.overlong": "hard", "reward.overlong_buffer_tokens": 20481},
        {"reward.overlong": "filter", "reward.overlong_factor": 3},
        {"reward.overlong_buffer_tokens": 20480, "reward.overlong_factor": 1.99},
        {"reward.functions": ["a.py:f"], "sampling.filter": "nonzero_std"},
        {"reward.functions": ["a.py:f", "grader"]},
        {"algorithm.reduction": "constant", "algorithm.constant_tokens": 5},
        {"algorithm.kl": {"place": "loss", "coef": 0.1}},
        {"algorithm.kl": {"place": "reward", "coef": 0.1, "estimator": "k1", "reset_every": 5}},
        {"algorithm.clip_low": "off", "algorithm.objective": "clip_cov", "algorithm.clip_dual": 3},
        {"algorithm.importance_cap": 2, "algorithm.importance_level": "sequence"},
        {"sampling.min_responses_per_prompt": 16},
        {"learner.lora_rank": 8, "learner.lora_alpha": 16, "learner.lora_targets": "attention"},
        {"learner": {"lora_rank": "off", "lora_alpha": 32}},
        {"eval.data": "holdout", "data.holdout": 1},
        {"data.source": [{"source": "a", "weight": 1}, {"source": "b", "weight": 2}]},
        CARRY,
        {**CARRY, "sampling.schedule": "streaming"},
        {"sampling.schedule": "streaming", "sampling.filter": "off", "sampling.gen_prompts": 600},
        {"sampling.skip_solved_after": 2, "reward.functions": ["a.py:f", "grader"]},
        {"checkpoint.keep_best": 1, "eval.data": "e.jsonl", "checkpoint.every": 10, "eval.every": 5},
        {"checkpoint.keep_every": 20, "checkpoint.every": 10},
        {"sampling.gen_prompts": 52},
        {"algorithm.old_logprobs": "engine"},
        {"cluster.kind": "ray", "cluster.weights": "broadcast"},
        {**RATED, "data.min_pass_rate": 0.5, "data.max_pass_rate": 0.5},
        {**RATED, "data.min_pass_rate": 0, "data.max_pass_rate": 1},
        own({"extract": ["boxed"], "compat": "verl-math-dapo", "unevaluated": "right", "convert_units": True}),
        own({"functions": ["python-tests"], "tests_column": "t", "tests_limit_s": 1, "tests_memory_mb": 64}),
        own({"functions": ["a.py:f", "grader"]}),
        {"reward.compat": "verl-math-dapo", **own({"functions": ["python-tests"]})},
        {**FLOATS, **own({"functions": ["b.py:g"]})},
        {
            **BEST,
            "checkpoint.best_metric": "maj",
            "checkpoint.best_on": "e",
            "eval.data": [{"source": "e.jsonl"}, {"source": "p.jsonl", "reward": {"functions": ["python-tests"]}}],
        },
    ],
)
def test_their_neighbours_can(layer: dict[str, Any]) -> None:
    """The checks refuse no more than they must."""
    check(load(layer))


def lines_of(layer: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """(file, line) of the checks whose `yield` this layer reaches, whatever else is wrong with it."""
    tree: dict[str, Any] = {}
    for key, part in {**BASE, **layer}.items():
        for name in reversed(key.split(".")):
            part = {name: part}
        tree = merge(tree, part)
    try:
        generator = problems(Config.model_validate(tree))
    except ValidationError:
        return  # refused by the schema, before any combination is looked at
    for _ in generator:
        inner = generator
        while isinstance(inner.gi_yieldfrom, types.GeneratorType):  # type: ignore[attr-defined]
            inner = inner.gi_yieldfrom
        yield inner.gi_frame.f_code.co_filename, inner.gi_frame.f_lineno


def test_every_check_is_provoked() -> None:
    """A check added without a case above fails here."""
    reached = {place for layer, _ in COMBINATIONS for place in lines_of(layer)}
    for file in map(inspect.getfile, (check_function, scale_problems)):
        yields = [n for n in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))) if isinstance(n, ast.Yield)]
        hit = {line for place, line in reached if place == file}
        silent = [n.lineno for n in yields if not hit & set(range(n.lineno, (n.end_lineno or 0) + 1))]
        assert yields
        assert not silent, f"no case provokes the check at line {silent} of {file}"


# --- round trip, documentation, recipes -----------------------------------------------------------


@pytest.mark.parametrize(
    "layer",
    [
        {},
        {"algorithm.clip_dual": 10, "train.max_grad_norm": "off", "sampling.gen_prompts": 1536},
        {"data.source": [{"source": "a", "weight": 0.1, "options": {"n": [1, 2]}}]},
        {"reward.functions": ["grader", {"function": "a.py:f", "weight": 1e-3}], "train.learning_rate": 1e-6},
        own({"extract": ["tag"], "functions": ["grader", {"function": "a.py:f", "weight": 0.5}]}),
        {"model.chat_template_kwargs": {"enable_thinking": False}, "provenance": {"train.seed": "chosen: by lot"}},
    ],
)
def test_a_resolved_config_reads_back_the_same(layer: dict[str, Any]) -> None:
    """Through JSON, as config.resolved.json holds it, with every default filled in."""
    config = load(layer)
    plain = json.loads(json.dumps(resolve(config)))
    assert from_tree(plain) == config
    assert resolve(from_tree(plain)) == plain
    assert plain["schema"] == 1
    for key in all_keys():
        part = plain
        for name in key.split("."):
            assert name in part, key
            part = part[name]


def test_configs_are_frozen() -> None:
    """Nothing changes a run's config after it was checked."""
    config = load()
    with pytest.raises(ValueError, match="frozen"):
        config.train.seed = 3  # type: ignore[misc]


def sections(base: type[BaseModel] = Section) -> Iterator[type[BaseModel]]:
    """Every section of the schema, those inside lists included."""
    for section in base.__subclasses__():
        if section.__module__.startswith("dapo."):
            yield section
            yield from sections(section)


@pytest.mark.parametrize("section", list(sections()))
def test_every_field_says_what_it_is(section: type[BaseModel]) -> None:
    """`dapo config --explain` prints nothing empty; unknown keys are errors in every section."""
    assert section.__doc__
    assert section.model_config["extra"] == "forbid"
    assert section.model_config["frozen"]
    for name, info in section.model_fields.items():
        assert info.annotation is not None
        is_section = isinstance(info.annotation, type) and issubclass(info.annotation, Section)
        described = (info.annotation.__doc__ if is_section else info.description) or ""
        assert described.strip(), f"{section.__name__}.{name} has no docstring"


def test_explain_covers_every_key() -> None:
    """Once each, with the config's value; names elsewhere belong to keys that exist."""
    config = load("train.learning_rate=3e-6")
    rows = list(explain(config))
    assert [key for key, _, _, _ in rows] == list(all_keys())
    assert {key: shown for key, shown, _, _ in rows}["train.learning_rate"] == 3e-6
    assert all(meaning for _, _, meaning, _ in rows)
    assert set(ELSEWHERE) <= set(all_keys())
    assert [key for key, _, _, _ in explain()] == list(all_keys())


def test_batch_line_does_the_sums() -> None:
    """512 x 16 = 8192; in 16 updates of 32 prompts, 512 responses; 100 steps are 1600 updates."""
    line = batch_line(load("sampling.gen_prompts=1536"))
    assert len(line.splitlines()) == 1
    for part in ("512 prompts x 16 = 8192", "16 updates of 32 prompts", "512 responses", "1536", "1600"):
        assert part in line
    assert epoch_words(load("train.num_steps=10"), 1000) == (
        "an epoch is 1000 prompts drawn, and 10 full steps draw 5120 or more (5.12 epochs)"
    )
    assert epoch_words(load(), 1).endswith("(51200.0 epochs)")
    assert "no dynamic sampling" in batch_line(load("sampling.filter=off"))
    streaming = batch_line(load({"sampling.schedule": "streaming", "sampling.gen_prompts": 64, **CARRY}))
    assert "a window of 64 prompts, at most 640 a step, at most 512 carried" in streaming


def test_an_unknown_recipe_is_answered_with_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with all there are."""
    monkeypatch.setattr(load_module, "recipe_names", lambda: ["dapo-32b", "smoke"])
    message = refusal("dapo-23b")
    assert "did you mean dapo-32b?" in message
    assert "smoke" in message


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_load(name: str) -> None:
    """Each by itself, round trip included; provenance speaks of keys that exist, by a known kind."""
    config = load_config(name)
    assert from_tree(resolve(config)) == config
    assert config.description
    assert batch_line(config)
    for key, origin in config.provenance.items():
        assert any(key == known or known.startswith(f"{key}.") for known in all_keys()), key
        assert origin.startswith(("paper", "code", "rebuttal", "chosen")), f"{key}: {origin}"
