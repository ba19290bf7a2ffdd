"""A preallocated key-value cache of slots, and the attention function that reads it.

Legend: S slots, K key-value heads, Q query heads, C cache positions, D head size, R rows of the
current decode step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

ATTENTION = "dapo_slots"
READ_BLOCK = 64  # cache positions read are a multiple of this; of the product with the values, so many at a time


class SlotCache:
    """Keys and values of S responses, written in place; transformers calls `update` per layer.

    A decode step covers slots 0..rows-1. Each writes its new key and value at its own position
    and reads positions 0..filled-1 (the mask hides what lies beyond each row's own length).
    """

    is_compileable = False

    def __init__(self, config: Any, slots: int, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        config = config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (slots, heads, positions, size)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]
        self._rows, self._filled = 0, 0
        self._heads_K = torch.arange(heads, device=device)
        self._place_RK = torch.zeros(0, dtype=torch.long, device=device)

    def begin_step(self, position_R: Tensor, filled: int) -> None:
        """The next forward pass decodes one token in each of the first R slots, at these positions."""
        self._rows, self._filled = len(position_R), filled
        _, heads, positions, _ = self.keys[0].shape
        slot_R1 = torch.arange(self._rows, device=position_R.device).unsqueeze(1)
        self._place_RK = ((slot_R1 * heads + self._heads_K) * positions + position_R.unsqueeze(1)).flatten()

    def update(self, key_RK1D: Tensor, value_RK1D: Tensor, layer_idx: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Writes this step's keys and values; returns the filled part of the rows being decoded."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        for tensor, new_RK1D in ((keys, key_RK1D), (values, value_RK1D)):
            size = tensor.shape[3]
            tensor.view(-1, size).index_copy_(0, self._place_RK, new_RK1D.reshape(-1, size))
        return keys[: self._rows, :, : self._filled], values[: self._rows, :, : self._filled]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are always given explicitly; transformers only asks."""
        return 0

    def copy_prompt(self, slot: int, prompt: list[tuple[Tensor, Tensor]]) -> None:
        """Puts a prefilled prompt, [1, K, tokens, D] per layer, into a slot."""
        for layer, (key, value) in enumerate(prompt):
            self.keys[layer][slot, :, : key.shape[2]] = key[0]
            self.values[layer][slot, :, : value.shape[2]] = value[0]

    def move(self, source: int, target: int, filled: int) -> None:
        """Copies the first `filled` positions of one slot over another."""
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                tensor[target, :, :filled] = tensor[source, :, :filled]


class PromptMask(Tensor):
    """What goes through a transformers model as its attention mask where prompts stand side by side in a row."""

    lengths: tuple[int, ...] = ()

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device) -> PromptMask:
        """A mask that carries the prompts' lengths; `slot_attention` reads them and nothing else of it."""
        mask: PromptMask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device).as_subclass(PromptMask)
        mask.lengths = tuple(lengths)
        return mask


def slot_attention(
    module: nn.Module,
    query_RQTD: Tensor,
    key_RKCD: Tensor,
    value_RKCD: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Grouped-query attention without repeating keys and values.

    In a decode step (T = 1, an additive mask) the Q / K query heads that share a key-value head
    stand in for query positions; otherwise (prefill) heads are repeated by the kernel, and the
    prompts of a PromptMask attend each on its own, as they would alone.
    """
    rows, query_heads, tokens, size = query_RQTD.shape
    heads = key_RKCD.shape[1]
    if isinstance(attention_mask, PromptMask):
        results = []
        for end, length in zip(accumulate(attention_mask.lengths), attention_mask.lengths, strict=True):
            query, key, value = (x[:, :, end - length : end] for x in (query_RQTD, key_RKCD, value_RKCD))
            results.append(slot_attention(module, query, key, value, None, scaling)[0])
        return torch.cat(results, dim=1), None
    if tokens == 1 and attention_mask is not None:
        grouped = query_RQTD.reshape(rows, heads, query_heads // heads, size)
        attend = _two_products if query_RQTD.device.type == "cpu" and query_RQTD.dtype == torch.float32 else _fused
        output = attend(grouped, key_RKCD, value_RKCD, attention_mask, scaling or size**-0.5)
        return output.reshape(rows, 1, query_heads, size), None
    output = nn.functional.scaled_dot_product_attention(
        query_RQTD,
        key_RKCD,
        value_RKCD,
        attn_mask=attention_mask,
        scale=scaling,
        is_causal=attention_mask is None and tokens > 1,
        enable_gqa=query_heads != heads,
    )
    return output.transpose(1, 2).contiguous(), None


def _fused(query_RKGD: Tensor, key_RKCD: Tensor, value_RKCD: Tensor, mask_R11C: Tensor, scaling: float) -> Tensor:
    return nn.functional.scaled_dot_product_attention(
        query_RKGD, key_RKCD, value_RKCD, attn_mask=mask_R11C, scale=scaling
    )


def _two_products(
    query_RKGD: Tensor, key_RKCD: Tensor, value_RKCD: Tensor, mask_R11C: Tensor, scaling: float
) -> Tensor:
    """The plain form: for a few queries a row, faster on a CPU than the fused kernel.

    In float32 a row's result is the same bits however many positions beyond its own length are read, as long as
    that is a multiple of READ_BLOCK: what is masked adds zeros behind the sums. With the values only in pieces of
    one shape: matrix libraries cut a longer sum in places that depend on its length.
    """
    rows, heads, group, size = query_RKGD.shape
    filled = key_RKCD.shape[2]
    keys, values = key_RKCD.flatten(0, 1), value_RKCD.flatten(0, 1)
    scores = torch.bmm(query_RKGD.reshape(rows * heads, group, size) * scaling, keys.transpose(1, 2))
    masked = scores.view(rows, heads, group, filled).add_(mask_R11C)
    weights = torch.softmax(masked, dim=-1).view(rows * heads, group, filled)
    result = torch.bmm(weights[:, :, :READ_BLOCK], values[:, :READ_BLOCK])
    for start in range(READ_BLOCK, filled, READ_BLOCK):
        result.baddbmm_(weights[:, :, start : start + READ_BLOCK], values[:, start : start + READ_BLOCK])
    return result


def register() -> None:
    """Makes the function known to transformers under ATTENTION. Safe to call twice."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, slot_attention)
