"""Attention over lanes: prompts computed once, each response seeing its prompt and itself alone.

All tokens of a micro-batch stand in one row, so that the linear layers meet no padding. Attention
takes them apart again: runs of about equal length are gathered into a rectangle and attend
together. Against one dense mask over the row this saves the pairs of tokens that never see each
other, which for G responses of L tokens are most of (G L)^2.

Legend: N tokens of the row, R runs of a part, L tokens of its longest, P tokens of the longest
prefix, Q query heads, K key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dapo.errors import ModelError

ATTENTION = "dapo_lanes"
SHORTEST = 2 / 3  # of a part's longest run: shorter ones go into the next part
FEW = 32  # tokens; runs shorter than this are not told apart


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of the row that see each other causally, and the whole of a prefix before them."""

    start: int
    length: int
    prefix: tuple[int, int] = (0, 0)  # start and length in the row


@dataclass(frozen=True, slots=True)
class Part:
    """Runs of about equal length. Padding stands at place 0; nothing sees it, and its results are not read.

    places_RL: i64, where in the row the runs' tokens are.
    prefix_nP: i64, likewise of the distinct prefixes; None where no run has one: plain causal attention.
    owner_R: i64, which prefix is a run's.
    mask_R1LC: bool, C = P + L: what a run's token sees of its prefix and its run.
    """

    places_RL: Tensor
    prefix_nP: Tensor | None = None
    owner_R: Tensor | None = None
    mask_R1LC: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How the tokens of a row attend. result_N: i64, where among the parts' results each token's is."""

    parts: tuple[Part, ...]
    result_N: Tensor

    def to(self, device: torch.device) -> Layout:
        """The same on a device."""

        def moved(part: Part) -> Part:
            values = {name: getattr(part, name) for name in Part.__dataclass_fields__}
            return replace(part, **{k: v.to(device) for k, v in values.items() if v is not None})

        return Layout(tuple(map(moved, self.parts)), self.result_N.to(device))


def lay_out(runs: Sequence[Run], tokens: int) -> Layout:
    """The layout of runs that hold each of a row's tokens once."""
    parts, result_N, offset = [], torch.zeros(tokens, dtype=torch.long), 0
    for members in _alike(runs):
        places_RL = _rectangle((run.start, run.length) for run in members)
        rows, longest = places_RL.shape
        for index, run in enumerate(members):
            first = offset + index * longest
            result_N[run.start : run.start + run.length] = torch.arange(first, first + run.length)
        offset += rows * longest
        parts.append(_part(members, places_RL))
    return Layout(tuple(parts), result_N)


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs with and without a prefix apart; then prefixes of about one length; then runs of about one length."""
    filled = [run for run in runs if run.length]
    result = []
    for with_prefix in (False, True):
        found = [run for run in filled if bool(run.prefix[1]) == with_prefix]
        for same_prefix in _cut(found, lambda run: run.prefix[1]):
            result += _cut(same_prefix, lambda run: run.length)
    return result


def _cut(runs: Sequence[Run], length: Callable[[Run], int]) -> list[list[Run]]:
    """Longest first, cut where one is much shorter than the longest."""
    result: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: -length(run)):
        longest = length(result[-1][0]) if result else 0
        if result and (longest <= FEW or length(run) >= SHORTEST * longest):
            result[-1].append(run)
        else:
            result.append([run])
    return result


def _rectangle(runs: Iterable[tuple[int, int]]) -> Tensor:
    """i64 [R, L]: the places of runs given as (start, length); 0 beyond a run's end."""
    start, length = torch.tensor(list(runs)).unsqueeze(2).unbind(1)
    step = torch.arange(int(length.max()))
    return torch.where(step < length, start + step, 0)


def _part(members: Sequence[Run], places_RL: Tensor) -> Part:
    prefixes = list(dict.fromkeys(run.prefix for run in members))
    if prefixes == [(0, 0)]:
        return Part(places_RL)
    prefix_nP, (rows, longest) = _rectangle(prefixes), places_RL.shape
    length_R1 = torch.tensor([[run.prefix[1]] for run in members])
    sees_prefix_RP = torch.arange(prefix_nP.shape[1]) < length_R1
    causal_LL = torch.ones(longest, longest, dtype=torch.bool).tril()
    mask_RLC = torch.cat([sees_prefix_RP.unsqueeze(1).expand(-1, longest, -1), causal_LL.expand(rows, -1, -1)], dim=2)
    owner_R = torch.tensor([prefixes.index(run.prefix) for run in members])
    return Part(places_RL, prefix_nP, owner_R, mask_RLC.unsqueeze(1))


class LaneMask(Tensor):
    """What goes through a transformers model as its attention mask; `lanes` is for `lane_attention` alone."""

    lanes: Layout | None = None

    @staticmethod
    def of(layout: Layout, device: torch.device) -> LaneMask:
        """A mask that carries this layout."""
        mask: LaneMask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device).as_subclass(LaneMask)
        mask.lanes = layout.to(device)
        return mask


def lane_attention(
    module: nn.Module,
    query_nQTD: Tensor,
    key_nKTD: Tensor,
    value_nKTD: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: causal without a mask, by the layout with a LaneMask."""
    if attention_mask is None:
        output = _attend(query_nQTD, key_nKTD, value_nKTD, None, scaling, dropout)
        return output.transpose(1, 2).contiguous(), None
    layout = getattr(attention_mask, "lanes", None)
    if layout is None:
        raise ModelError('this model changes the attention mask that it is given; set train.packing = "padded"')
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query_nQTD, key_nKTD, value_nKTD))
    results = [_part_attention(part, query, key, value, scaling, dropout) for part in layout.parts]
    return torch.cat(results).index_select(0, layout.result_N).unsqueeze(0), None


def _part_attention(
    part: Part, query_NQD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scaling: float | None, dropout: float
) -> Tensor:
    """[R L, Q, D]: the results of a part's runs, padding included."""
    query, key, value = (_gather(tensor, part.places_RL) for tensor in (query_NQD, key_NKD, value_NKD))
    if part.prefix_nP is not None and part.owner_R is not None:
        prefix_key, prefix_value = (
            _gather(tensor, part.prefix_nP).index_select(0, part.owner_R) for tensor in (key_NKD, value_NKD)
        )
        key, value = torch.cat([prefix_key, key], dim=2), torch.cat([prefix_value, value], dim=2)
    output = _attend(query, key, value, part.mask_R1LC, scaling, dropout)
    return output.transpose(1, 2).flatten(0, 1)


def _gather(tensor_NHD: Tensor, places_RL: Tensor) -> Tensor:
    """[R, H, L, D]: a tensor's rows at these places."""
    taken = tensor_NHD.index_select(0, places_RL.flatten())
    return taken.view(*places_RL.shape, *tensor_NHD.shape[1:]).transpose(1, 2)


def _attend(
    query_RQLD: Tensor, key_RKCD: Tensor, value_RKCD: Tensor, mask: Tensor | None, scaling: float | None, dropout: float
) -> Tensor:
    grouped = query_RQLD.shape[1] // key_RKCD.shape[1]
    # CUDA's fused kernels take a mask or grouped heads, not both.
    if grouped > 1 and mask is not None and query_RQLD.device.type != "cpu":
        key_RKCD, value_RKCD = (tensor.repeat_interleave(grouped, dim=1) for tensor in (key_RKCD, value_RKCD))
        grouped = 1
    return nn.functional.scaled_dot_product_attention(
        query_RQLD,
        key_RKCD,
        value_RKCD,
        attn_mask=mask,
        dropout_p=dropout,
        scale=scaling,
        is_causal=mask is None and query_RQLD.shape[2] > 1,
        enable_gqa=grouped > 1,
    )


def use(model: Any, *, packed: bool) -> None:
    """Makes a model attend by `lane_attention`. Raises ModelError where packed rows would come out wrong."""
    register()
    model.set_attn_implementation(ATTENTION)
    if packed:
        _check(model.base_model, model.config.model_type, next(model.parameters()).device)


@torch.no_grad()
def _check(body: Callable[..., Any], name: str, device: torch.device) -> None:
    """Compares hidden states of two responses behind one prompt with those of each alone."""
    prompt, responses = [0, 1, 2], ([1, 0], [2])
    tokens, positions = torch.tensor([[*prompt, 1, 0, 2]]), torch.tensor([[0, 1, 2, 3, 4, 3]])
    layout = lay_out([Run(0, 3), Run(3, 2, (0, 3)), Run(5, 1, (0, 3))], 6)
    got = body(
        input_ids=tokens.to(device),
        position_ids=positions.to(device),
        attention_mask=LaneMask.of(layout, device),
        use_cache=False,
    ).last_hidden_state[0, 3:]
    alone = [body(input_ids=torch.tensor([prompt + r], device=device), use_cache=False) for r in responses]
    expected = torch.cat([output.last_hidden_state[0, 3:] for output in alone])
    if not bool((got - expected).abs().max() <= 1e-3 * expected.abs().max()):
        raise ModelError(f'model: {name} does not attend as packed prompts need; set train.packing = "padded"')


def register() -> None:
    """Makes the function known to transformers under ATTENTION. Safe to call twice."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, lane_attention)
