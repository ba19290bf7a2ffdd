"""Rollout engines by their names in a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dapo.config.schema import Config
from dapo.model.loading import pick_device, pick_dtype
from dapo.plugins import plugin
from dapo.rollout.base import RolloutEngine
from dapo.rollout.torch_engine import TorchEngine
from dapo.rollout.vllm_engine import VllmEngine

BUILT_IN_ENGINES = ("torch", "vllm")


@dataclass(frozen=True, slots=True)
class Policy:
    """A loaded tokenizer and what it says about ends of text."""

    tokenizer: Any
    eos_ids: tuple[int, ...]

    def decode(self, token_ids: Any) -> str:
        """Text of token ids, special tokens left out."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)  # type: ignore[no-any-return]


def max_tokens(config: Config) -> int:
    """The longest sequence that training or evaluation can meet."""
    response = max(config.sampling.max_response_tokens, config.eval.max_response_tokens or 0)
    return config.data.max_prompt_tokens + response


def make_engine(config: Config, model: Any, policy: Policy) -> RolloutEngine:
    """The engine that `engine.kind` names.

    The model is the engine's own ("torch"), or is read while the engine is made and not kept ("vllm").
    """
    engine = config.engine
    if engine.kind == "vllm":
        device = pick_device(config.model)
        return VllmEngine(
            model,
            dtype=pick_dtype(config.model, device),
            device=device.type,
            eos_ids=policy.eos_ids,
            slots=engine.slots,
            max_tokens=max_tokens(config),
            decode=policy.decode,
            settings=engine.vllm,
        )
    if engine.kind == "torch":
        return TorchEngine(
            model,
            eos_ids=policy.eos_ids,
            slots=engine.slots,
            max_tokens=max_tokens(config),
            decode=policy.decode,
        )
    factory = plugin("dapo.engines", engine.kind, "engine.kind", BUILT_IN_ENGINES)
    return factory(config, model, policy)  # type: ignore[no-any-return]
