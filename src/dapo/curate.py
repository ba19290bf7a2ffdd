"""Puts preparing together: the grader's checks, integer answers by rule or with a model's help, a tokenizer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dapo.config.schema import ModelConfig, RewardConfig
from dapo.data import integers
from dapo.data.prepare.pipeline import prepare
from dapo.data.prepare.plan import Options, Tools
from dapo.data.prepare.writing import Made
from dapo.reward import Scorer
from dapo.rollout.openai_api import KEY_VARIABLE
from dapo.types import Prompt, SamplingParams

REPLY_TOKENS = 4096  # of a model that words a rewrite


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An OpenAI-compatible server that words rewrites: its address up to /v1, the model, the key."""

    url: str
    model: str
    api_key: str | None = None
    key_variable: str = KEY_VARIABLE


def run(
    options: Options,
    out: Path,
    *,
    rejects: Path | None = None,
    overwrite: bool = False,
    tokenizer: str | None = None,
    server: Server | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Made:
    """`dapo data prepare`.

    Args:
        options: sources and steps.
        out: the folder to write.
        rejects: where dropped rows go; None: nowhere.
        overwrite: replace a prepared folder at `out`.
        tokenizer: model whose tokens lengths are counted in; None: words alone.
        server: asked where `options.rewriter` is llm.
        say: gets a line about each step.

    Raises:
        UserError: a source, option or place that can't be used; nothing is left behind.
    """
    scorer = Scorer(RewardConfig())
    assert scorer.equal is not None
    count = _token_counter(tokenizer) if tokenizer else None
    with _rewriter(server) as rewrite:
        tools = Tools(
            check_answers=scorer.check,
            same_answers=scorer.equal,
            rewrite=rewrite,
            count_tokens=count,
            tokenizer=tokenizer,
            say=say,
        )
        return prepare(options, tools, out, rejects, overwrite)


def _token_counter(name: str) -> Callable[[Sequence[str]], list[int]]:
    from dapo.model.loading import load_tokenizer

    tokenizer = load_tokenizer(ModelConfig(path=name))

    def count(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]] if texts else []

    return count


@contextmanager
def _rewriter(server: Server | None) -> Iterator[Callable[[str, str, str], Any]]:
    """Integer answers by rule; with a server, what the rule has to leave is put to its model."""
    if server is None:
        yield integers.rewrite
        return
    from dapo.rollout.endpoint_engine import EndpointEngine

    engine = EndpointEngine(
        server.url, server.model, api_key=server.api_key, key_variable=server.key_variable, concurrency=1
    )
    draws = itertools.count()

    def ask(text: str) -> str:
        prompt = Prompt(
            id="rewrite",
            messages=({"role": "user", "content": text},),
            text=text,
            answer=None,
            source="rewrite",
            token_ids=np.zeros(0, np.int32),
            columns={},
        )
        params = SamplingParams(temperature=0.0, top_p=1.0, max_new_tokens=REPLY_TOKENS, n=1, seed=0)
        engine.submit(next(draws), prompt, params)
        return engine.poll()[0].responses[0].text or ""

    try:
        yield partial(_with_model, ask)
    finally:
        engine.close()


def _with_model(ask: Callable[[str], str], problem: str, answer: str, language: str) -> Any:
    from dapo.data.integers.llm import LLM_MAY_TRY, llm_rewrite

    made = integers.rewrite(problem, answer, language)
    if isinstance(made, integers.Refusal) and made.reason in LLM_MAY_TRY:
        return llm_rewrite(problem, answer, ask, language)
    return made
