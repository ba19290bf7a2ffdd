"""Puts an evaluation together: problems, grader, and what samples, a model loaded here or a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dapo import build
from dapo.config.schema import Config
from dapo.config.sets import evaluation_sources
from dapo.data import CheckedData, named, tokenise_evaluation
from dapo.data.prompts import problem_text
from dapo.data.template import Wording
from dapo.errors import ConfigError, DataError
from dapo.evals.run import sampling_params
from dapo.given import NOTHING, Given
from dapo.grading import GroupGrader
from dapo.model.loading import load_tokenizer
from dapo.provenance import Settings, evaluation_settings
from dapo.reward import Scorers
from dapo.reward.pool import lost_workers
from dapo.rollout.base import RolloutEngine
from dapo.rollout.openai_api import KEY_VARIABLE
from dapo.run import manifest
from dapo.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible server: its address up to /v1, the key and the variable it is in, requests at a time."""

    url: str
    api_key: str | None = None
    key_variable: str = KEY_VARIABLE
    concurrency: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """What `evaluate` takes. settings: what the figures depend on, the model included."""

    config: Config
    engine: RolloutEngine
    grader: GroupGrader
    sets: Mapping[str, Sequence[Prompt]]
    settings: Settings
    notes: Sequence[str]


def prepare(config: Config) -> Config:
    """The configuration as an evaluation uses it: one limit of tokens, and what a set of programs needs.

    That is the judge that runs them, and no "Answer:" line: the sets word their problems themselves.
    """
    names = [source.source for source in evaluation_sources(config).values()]
    programs = [name for name in names if named.is_named(name) and named.SETS[name].judge == "python-tests"]
    reward, data = config.reward, config.data
    if names and len(programs) == len(names):
        functions = reward.functions or ("python-tests",)
        reward = reward.model_copy(update={"functions": functions})
        data = data.model_copy(update={"template": "chat" if data.template == "dapo" else data.template})
    limit = sampling_params(config).max_new_tokens
    sampling = config.sampling.model_copy(update={"max_response_tokens": limit})
    reward = reward.model_copy(update={"overlong": "none"})
    evaluation = config.eval.model_copy(update={"max_response_tokens": limit})
    return config.model_copy(update={"data": data, "reward": reward, "sampling": sampling, "eval": evaluation})


def for_model(config: Config, model: Mapping[str, Any], given: Given = NOTHING) -> Evaluator:
    """An evaluator of a model that is loaded here. Problems are read and checked before it is.

    Args:
        config: `prepare`d; `model.path` is what is loaded.
        model: what the settings say of it.
        given: rewards that were handed over in code.

    Raises:
        UserError: data, template or model can't be used.
    """
    checked = build.evaluation_data(config, given)
    tokenizer = load_tokenizer(config.model)
    sets = tokenise_evaluation(config, checked, tokenizer)
    longest = max(len(prompt.token_ids) for prompts in sets.values() for prompt in prompts)
    config = config.model_copy(update={"data": config.data.model_copy(update={"max_prompt_tokens": longest})})
    sampler = build.build_sampler(config, tokenizer=tokenizer, given=given)
    settings = evaluation_settings(config, checked.evaluation, sets, given)
    chat_template = getattr(tokenizer, "chat_template", None) if config.data.template != "raw" else None
    about = {
        **model,
        "weights": sampler.weights[:16],
        "dtype": str(sampler.model.dtype).removeprefix("torch."),
        "chat_template": chat_template and manifest.text_digest(chat_template)[:16],
    }
    return Evaluator(
        config=config,
        engine=sampler.engine,
        grader=sampler.grader,
        sets=sets,
        settings={"model": about} | settings,
        notes=checked.notes,
    )


def for_endpoint(config: Config, model: Mapping[str, Any], endpoint: Endpoint) -> Evaluator:
    """An evaluator of a model behind a server, which does its own tokenisation.

    Raises:
        UserError: data or address can't be used.
    """
    from dapo.rollout.endpoint_engine import EndpointEngine

    checked = build.evaluation_data(config)
    engine = EndpointEngine(
        endpoint.url,
        str(model["name"]),
        api_key=endpoint.api_key,
        key_variable=endpoint.key_variable,
        concurrency=endpoint.concurrency,
    )
    scorers = Scorers.of(config)
    grader = GroupGrader(config, scorers.score, _no_tokens, (), lost_workers, scorers.equal)
    sets = _worded(config, checked)
    settings = evaluation_settings(config, checked.evaluation, sets)
    return Evaluator(
        config=config,
        engine=engine,
        grader=grader,
        sets=sets,
        settings={"model": dict(model)} | settings,
        notes=checked.notes,
    )


def _worded(config: Config, checked: CheckedData) -> dict[str, list[Prompt]]:
    """The prompts in words: the server's own template and tokenizer take it from there."""
    if config.data.template == "raw" and config.data.system:
        raise ConfigError('data.system is set, but data.template = "raw" has no system turn; remove one')
    wording = Wording(config.data.template)

    def prompt(problem: Any) -> Prompt:
        row = problem.row
        turns = wording.turns(row.problem, row.columns, row.where)
        if turns is not None and config.data.system and turns[0]["role"] != "system":
            turns = ({"role": "system", "content": config.data.system}, *turns)
        text = row.problem if turns is None else "\n".join(turn["content"] for turn in turns)
        return Prompt(
            id=problem.id,
            messages=turns,
            text=text,
            answer=problem.answer,
            source=row.source,
            token_ids=np.zeros(0, np.int32),
            columns=row.columns,
            problem=problem_text(row.problem),
            grading=problem.grading,
        )

    return {name: [prompt(problem) for problem in problems] for name, problems in checked.evaluation.items()}


def _no_tokens(token_ids: Sequence[int]) -> str:
    raise DataError("a server's response came without its text")
