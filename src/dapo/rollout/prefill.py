"""Prefill: the keys and values of prompts, and the logits behind their last tokens.

Several prompts stand in one row of the model, each attending within itself. A product over a few
hundred tokens runs at about twice the rate of one over a short prompt's few dozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dapo.rollout.slot_cache import PromptMask
from dapo.spans import span

TOKENS = 256  # of the prompts that share a pass; a longer prompt has its own
TOLERANCE = 1e-3  # logits of two prompts together from those of each alone, in parts of the largest


@dataclass(slots=True)
class Prefilled:
    """A prompt's keys and values, [1, heads, tokens, head size] per layer, and its last logits [V]."""

    cache: list[tuple[Tensor, Tensor]]
    logits: Tensor


class Prefill:
    """Runs prompts through a model whose attention is `slot_attention`.

    Args:
        model: a transformers causal LM. Where it doesn't attend by the prompts (some have an
            attention of their own), prompts are never put together.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._together = self._attends_by_prompts()

    def fits(self, lengths: Sequence[int]) -> bool:
        """Whether prompts of these lengths go through the model in one pass."""
        return len(lengths) == 1 or (self._together and sum(lengths) <= TOKENS)

    @torch.inference_mode()
    def __call__(self, prompts: Sequence[Sequence[int] | NDArray[np.int32]]) -> list[Prefilled]:
        """Prefills prompts that fit together. What comes of a prompt does not depend on the others
        (bit for bit where the model's linear layers are packed, else to rounding)."""
        from transformers import DynamicCache

        lengths = [len(prompt) for prompt in prompts]
        last = torch.tensor(lengths, device=self._device).cumsum(0) - 1
        cache = DynamicCache()
        with span("prefill"):
            output = self._model(
                input_ids=torch.tensor([[int(t) for prompt in prompts for t in prompt]], device=self._device),
                position_ids=torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0).to(self._device),
                attention_mask=PromptMask.of(lengths, self._device) if len(lengths) > 1 else None,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=last,
            )
        layers = [(layer.keys.split(lengths, dim=2), layer.values.split(lengths, dim=2)) for layer in cache.layers]
        logits = output.logits[0]
        if len(logits) != len(prompts):  # of a model that gives them all
            logits = logits[last]
        return [Prefilled([(keys[i], values[i]) for keys, values in layers], logits[i]) for i in range(len(prompts))]

    def _attends_by_prompts(self) -> bool:
        vocabulary = self._model.config.get_text_config().vocab_size
        step = max(1, vocabulary // 11)
        tokens = [place * step % vocabulary for place in range(11)]
        prompts = [tokens[:9], tokens[9:]]
        try:
            together = torch.stack([prefilled.logits for prefilled in self(prompts)])
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            return False
        alone = torch.stack([self([prompt])[0].logits for prompt in prompts])
        return bool((together - alone).abs().max() <= TOLERANCE * alone.abs().max())
