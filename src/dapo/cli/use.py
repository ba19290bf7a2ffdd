"""Verbs that use a model: sample, chat, export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dapo.errors import ConfigError
from dapo.printable import printable
from dapo.targets import find_checkpoint, resolve_target, split_step

if TYPE_CHECKING:
    from dapo.build import Sampler
    from dapo.types import Prompt

MODEL = click.argument("model", metavar="MODEL|RUN[@STEP]")
RECIPE = click.option("--recipe", metavar="RECIPE", help="Data, template and grading, for a bare model.")


def _sampler(model: str, recipe: str | None, max_tokens: int) -> Sampler:
    from dapo import build

    config = resolve_target(model, recipe)
    data = config.data.model_copy(update={"template": "chat" if config.data.template != "raw" else "raw"})
    limits = {"max_response_tokens": max_tokens}
    sampling = config.sampling.model_copy(update=limits)
    engine = config.engine.model_copy(update={"slots": 8})
    config = config.model_copy(update={"data": data, "sampling": sampling, "engine": engine})
    return build.build_sampler(config, all_positions=True)


def _prompt(sampler: Sampler, turns: list[dict[str, str]]) -> Prompt:
    from dapo.build import encode_turns

    return encode_turns(sampler, turns)


def _texts(sampler: Sampler, prompt: Prompt, n: int, temperature: float, draw: int, seed: int) -> list[str]:
    from dapo.flight import Flight
    from dapo.types import SamplingParams

    limit = sampler.config.sampling.max_response_tokens
    params = SamplingParams(temperature=temperature, max_new_tokens=limit, n=n, seed=seed)
    flight = Flight(sampler.engine, params, sampler.config.engine.reruns)
    flight.submit(draw, prompt)
    while not (done := flight.poll()):
        pass
    return [sampler.grader.text(response) for response in done[0].responses]


@click.command()
@MODEL
@click.argument("text")
@click.option("-n", default=4, type=click.IntRange(1), show_default=True, help="How many responses.")
@click.option("--temperature", default=1.0, type=click.FloatRange(0), show_default=True, help="0 is greedy.")
@click.option("--max-tokens", default=128, type=click.IntRange(1), show_default=True)
@click.option("--seed", default=0, type=click.IntRange(0), show_default=True)
@RECIPE
def sample(model: str, text: str, n: int, temperature: float, max_tokens: int, seed: int, recipe: str | None) -> None:
    """Sample responses to TEXT, as the run's template presents it."""
    sampler = _sampler(model, recipe, max_tokens)
    prompt = _prompt(sampler, [{"role": "user", "content": text}])
    for number, answer in enumerate(_texts(sampler, prompt, n, temperature, 0, seed), start=1):
        click.echo(f"[{number}] {printable(answer)}")


@click.command()
@MODEL
@click.option("--temperature", default=1.0, type=click.FloatRange(0), show_default=True, help="0 is greedy.")
@click.option("--max-tokens", default=256, type=click.IntRange(1), show_default=True)
@RECIPE
def chat(model: str, temperature: float, max_tokens: int, recipe: str | None) -> None:
    """Talk with a model; an empty line or Ctrl-D ends."""
    sampler = _sampler(model, recipe, max_tokens)
    turns: list[dict[str, str]] = []
    for draw in range(1_000_000):
        try:
            text = click.prompt("you", prompt_suffix="> ", default="", show_default=False)
        except click.Abort:
            return
        if not text.strip():
            return
        turns.append({"role": "user", "content": text})
        answer = _texts(sampler, _prompt(sampler, turns), 1, temperature, draw, 0)[0]
        turns.append({"role": "assistant", "content": answer})
        click.echo(f"model> {printable(answer)}")


@click.command()
@click.argument("run", metavar="RUN[@STEP]")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
def export(run: str, directory: Path, dtype: str) -> None:
    """Write a run's model as a plain Hugging Face folder: tokenizer and chat template included."""
    from dapo.run.directory import RunDirectory
    from dapo.run.export import export_model

    name, step = split_step(run)
    folder = RunDirectory.open(name).checkpoints
    found = find_checkpoint(folder, step)
    if directory.exists() and any(directory.iterdir() if directory.is_dir() else [directory]):
        raise ConfigError(f"{directory}: exists and is not empty; name a new folder")
    export_model(found.model, directory, dtype)
    click.echo(f"{directory}: {found.path.name} of {name}, {dtype}")
