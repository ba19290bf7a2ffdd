"""Configuration in words: the start-up line and `dapo config --explain`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from dapo.config.elsewhere import ELSEWHERE
from dapo.config.schema import Config, SamplingConfig


def batch_line(config: Config) -> str:
    """The batch sizes spelled out, printed at every start."""
    sampling, train = config.sampling, config.train
    prompts, group, updates = (
        sampling.prompts_per_step,
        sampling.responses_per_prompt,
        train.updates_per_step,
    )
    most = "" if sampling.min_responses_per_prompt is None else "at most "
    return (
        f"{prompts} prompts x {group_words(sampling)} = {most}{prompts * group} responses a step, each at most "
        f"{sampling.max_response_tokens} tokens; {updates} updates of {prompts // updates} prompts = "
        f"{most}{prompts * group // updates} responses; {_sampling_words(config)}; {train.num_steps} steps = "
        f"{train.num_steps * updates} updates"
    )


def group_words(sampling: SamplingConfig) -> str:
    """The size of a group, or its range."""
    least, most = sampling.min_responses_per_prompt, sampling.responses_per_prompt
    return f"{most}" if least is None else f"{least} to {most}"


def epoch_words(config: Config, size: int) -> str:
    """How long an epoch is, and how many the run takes at the least."""
    steps = config.train.num_steps
    least = steps * config.sampling.prompts_per_step
    epochs = least / size
    return (
        f"an epoch is {size} prompts drawn, and {steps} full steps draw {least} or more "
        f"({epochs:{'.3g' if epochs < 10 else '.1f'}} epochs)"
    )


def _sampling_words(config: Config) -> str:
    sampling = config.sampling
    drawn = sampling.gen_prompts or sampling.prompts_per_step
    if sampling.filter == "off":
        words = "no dynamic sampling"
    elif sampling.schedule == "streaming":
        words = (
            f"dynamic sampling on {sampling.filter}: a window of {drawn} prompts, "
            f"at most {drawn * sampling.max_rounds} a step"
        )
    else:
        words = f"dynamic sampling on {sampling.filter}: rounds of {drawn} prompts, at most {sampling.max_rounds}"
    if sampling.surplus == "carry":
        words += f", at most {sampling.prompts_per_step * sampling.max_staleness} carried to the next step"
    return words


def explain(config: Config | None = None) -> Iterator[tuple[str, Any, str, str]]:
    """(key, value or default, meaning, name elsewhere) for every knob."""
    yield from _walk(Config, config, "")


def _walk(model: type[BaseModel], values: BaseModel | None, prefix: str) -> Iterator[tuple[str, Any, str, str]]:
    for name, info in model.model_fields.items():
        key = prefix + (info.alias or name)
        value = getattr(values, name) if values is not None else info.default
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, value if isinstance(value, BaseModel) else None, key + ".")
        else:
            meaning = " ".join((info.description or "").split())
            yield key, value, meaning, ELSEWHERE.get(key, "")
