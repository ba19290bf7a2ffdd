"""Whole runs on the tiny model: a recipe, its data and model in a folder, and the command in process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import tiny
from dapo import build, loop
from dapo.cli import main
from dapo.config.schema import Config
from dapo.parts import Parts
from dapo.run.directory import RunDirectory
from dapo.run.signals import StopRequest
from dapo.run.view import View
from dapo.types import TrainState

NOT_COMPARED = (
    "time/",
    "memory/",
    "tokens/per_s",
    "total/device_hours",
    "progress/",
    "pipeline/",
)  # what two equal runs may differ in

RECIPE = """
schema = 1
name = "tiny"
description = "the tiny model learns to say 7"

[model]
path = "{model}"
dtype = "float32"
device = "cpu"

[data]
source = "{data}"
max_prompt_tokens = 16
holdout = 4

[sampling]
prompts_per_step = 4
responses_per_prompt = 4
max_rounds = 4
max_response_tokens = 4
on_exhausted = "train_short"

[reward]
extract = ["last_number"]
overlong = "none"

[train]
num_steps = 2
updates_per_step = 2
learning_rate = 1e-3
warmup_rollout_steps = 0
weight_decay = 0.0
tokens_per_microbatch = 128

[eval]
data = "holdout"
k = 2
top_p = 1.0

[engine]
slots = 16
"""


def folder_of_this_process() -> Path:
    """A temporary folder, removed at exit."""
    path = Path(tempfile.mkdtemp(prefix="dapo-tests-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@functools.cache
def cold_model() -> Path:
    """The random tiny model: its last number is 7 in about one response of 25."""
    return tiny.folder(folder_of_this_process() / "cold", seed=2)


@functools.cache
def warm_model(*, tied: bool = True, head_dim: int = 8) -> Path:
    """The tiny model taught to say 7 about every fourth token and to end about every fifth.

    So its groups have right and wrong, ended and truncated responses.
    """
    model = tiny.model(0, tied=tied, head_dim=head_dim).requires_grad_(True)
    prompts = torch.randint(4, len(tiny.VOCABULARY), (32, 12), generator=torch.Generator().manual_seed(0))
    prompts[:, 7] = tiny.VOCABULARY.index(tiny.TURN)
    wanted = torch.full((len(tiny.VOCABULARY),), 0.5 / len(tiny.VOCABULARY))
    wanted[tiny.VOCABULARY.index("7")] += 0.3
    wanted[tiny.EOS_ID] += 0.2
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        (-(model(input_ids=prompts).logits.log_softmax(-1) * wanted).sum(-1).mean()).backward()
        optimizer.step()
    path = folder_of_this_process() / "warm"
    model.save_pretrained(path)
    tiny.tokenizer().save_pretrained(path)
    return path


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A JSONL file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def problems(count: int, answer: str = "7") -> list[dict[str, str]]:
    """Distinct problems with one answer: `say aa`, `say ba`, ..."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [{"prompt": f"say {letters[i % 26]}{letters[i // 26]}", "answer": answer} for i in range(count)]


def write_recipe(folder: Path, *, model: Path | None = None, count: int = 40, answer: str = "7") -> Path:
    """recipe.toml with its data.jsonl in a folder. Settings are changed with key=value words."""
    data = write_rows(folder / "data.jsonl", problems(count, answer))
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(model=model or warm_model(), data=data), encoding="utf-8")
    return path


def dapo(*words: str | Path) -> int:
    """Runs the command in this process; returns its exit code."""
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        return 0 if end.code is None else int(end.code)
    return 0


def quiet_dapo(*words: str | Path) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = dapo(*words)
    return code, out.getvalue(), err.getvalue()


def train(folder: Path, *words: str, model: Path | None = None, run: str = "run") -> Path:
    """Trains by `write_recipe` into folder/run; fails unless it ends with 0."""
    folder.mkdir(parents=True, exist_ok=True)
    code, _, err = quiet_dapo("train", write_recipe(folder, model=model), *words, "--output-dir", folder / run)
    assert code == 0, err
    return folder / run


def run_loop(parts: Parts, state: TrainState) -> TrainState:
    """All steps that are left; the state after them."""
    for after, _ in loop.steps(parts, state, StopRequest(parts.view.say)):
        state = after
    return state


def train_config(config: Config, folder: Path) -> Path:
    """Trains by a configuration that is made already."""
    run = RunDirectory.create(config.name, str(folder))
    try:
        run_loop(build.build(config, run, View(config.train.num_steps, quiet=True)), TrainState())
    finally:
        run.release()
    return folder


@functools.cache
def finished_run() -> Path:
    """A finished run of two steps with evaluations at 0 and 2; for tests that only read it."""
    return train(folder_of_this_process())


VOWELS = """
def vowels(completions, **columns):
    return [sum(letter in "aeiou" for letter in turns[0]["content"]) for turns in completions]
"""


@functools.cache
def babbling_run() -> Path:
    """Two steps of the random model towards vowels: its greedy text depends on every token before it."""
    folder = folder_of_this_process()
    (folder / "vowels.py").write_text(VOWELS, encoding="utf-8")
    words = (f'reward.functions=["{folder / "vowels.py"}:vowels"]', "sampling.filter=nonzero_std", "eval.data=[]")
    words += ("data.max_prompt_tokens=64",)
    return train(folder, *words, model=cold_model())


def copy_run(run: Path, target: Path, *, up_to: int | None = None) -> Path:
    """A copy of a run, without its checkpoints past a step: as after a crash."""
    shutil.copytree(run, target)
    for folder in (target / "checkpoints").glob("step_*"):
        if up_to is not None and int(folder.name[5:]) > up_to:
            shutil.rmtree(folder)
    return target


def metrics(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl, every line of which has to parse without NaN."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [strict_json(line) for line in lines]


def comparable(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Metrics without what is measured in seconds or bytes."""
    return [{k: v for k, v in row.items() if not k.startswith(NOT_COMPARED)} for row in rows]


def strict_json(text: str) -> Any:
    """Parses JSON as the standard has it: no NaN, no Infinity."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Every weight of a Hugging Face folder."""
    found: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(file)
    return found


def weights_at(run: Path, step: int) -> dict[str, torch.Tensor]:
    """The weights of a run's checkpoint."""
    return weights(run / "checkpoints" / f"step_{step:06d}" / "model")


def largest_difference(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """Over all weights."""
    assert one.keys() == other.keys()
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)


def tree(folder: Path) -> set[str]:
    """Names of everything below a folder, byte code aside."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}
