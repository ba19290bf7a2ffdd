"""Grids for the tests of DAPO's neighbours: lists for the oracle, tensors for the package."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from dapo import algorithm as alg
from reference_neighbours import Grid, Mask

LOW, HIGH, DUAL, CLAMP = 0.2, 0.28, 3.0, 1.5
JUNK = (math.nan, math.inf, -math.inf, 1e30, -1e4)
KINKS = (math.log(1 - LOW), math.log(1 + HIGH), math.log(DUAL), CLAMP, -CLAMP)
checked = settings(max_examples=25, deadline=None, derandomize=True)
junk_values = st.sampled_from(JUNK)
numbers = st.floats(-3.0, 3.0, width=32)


def kinky(log_ratio: float) -> bool:
    """Too near to a clip, the dual bound or the clamp for its slope to be meant."""
    return min(abs(log_ratio - kink) for kink in KINKS) < 1e-3


log_ratios = st.floats(-2.5, 2.5).filter(lambda x: not kinky(x))


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    """1 to 4 rows of 1 to 5 tokens: whole, ragged, with holes, without tokens, and batches of nothing."""
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    any_row = st.lists(st.booleans(), min_size=width, max_size=width)
    cut_row = st.integers(0, width).map(lambda n: [t < n for t in range(width)])
    return draw(st.lists(any_row | cut_row, min_size=rows, max_size=rows))


def grids(mask: Mask, values: st.SearchStrategy[Any] = numbers) -> st.SearchStrategy[Any]:
    """A grid of such values in the mask's shape."""
    width = len(mask[0])
    return st.lists(st.lists(values, min_size=width, max_size=width), min_size=len(mask), max_size=len(mask))


def flags(mask: Mask) -> st.SearchStrategy[Mask]:
    """A selection; true outside the mask too, where nothing may look."""
    return grids(mask, st.booleans())


def tensor(grid: Any, mask: Mask | None = None, junk: float = 0.0) -> Tensor:
    """Floats as float64, bools as bool; `junk` wherever the mask is off."""
    kind = torch.bool if isinstance(grid[0][0], bool) else torch.float64
    result = torch.tensor(grid, dtype=kind)
    return result if mask is None else result.masked_fill(~torch.tensor(mask), junk)


def close(got: Tensor, expected: Grid, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    """Equal within these tolerances; as many infs of the same sign."""
    torch.testing.assert_close(got.double(), torch.tensor(expected, dtype=torch.float64), rtol=rtol, atol=atol)


def close32(got: Tensor, expected: Grid | list[float]) -> None:
    """What is computed in float64 and stored in float32 (or kept): half a unit in the last place, and little more."""
    torch.testing.assert_close(got.double(), torch.tensor(expected, dtype=torch.float64), rtol=2e-7, atol=1e-12)


@dataclass
class Case:
    """A mini-batch for an objective. `weights` weigh the tokens' losses apart, so leaks show."""

    mask: Mask
    logp: Grid
    old: Grid
    advantages: Grid
    selected: Mask

    @property
    def weights(self) -> Grid:
        """1/1, 1/2, 1/3, ...: no two alike."""
        width = len(self.mask[0])
        return [[1 / (1 + b * width + t) for t in range(width)] for b in range(len(self.mask))]

    @property
    def oracle(self) -> tuple[Grid, Grid, Grid, Mask, Grid]:
        """The arguments every objective of the oracle begins with."""
        return self.logp, self.old, self.advantages, self.mask, self.weights

    def inputs(self, junk: float = 0.0, **other: Any) -> alg.ObjectiveInputs:
        """The package's inputs in float64, with `junk` in every field outside the mask."""
        fields: dict[str, Any] = {
            "logprobs_BT": tensor(self.logp, self.mask, junk).requires_grad_(True),
            "old_logprobs_BT": tensor(self.old, self.mask, junk),
            "advantages_BT": tensor(self.advantages, self.mask, junk),
            "mask_BT": tensor(self.mask),
            "ref_logprobs_BT": tensor(self.old, self.mask, junk),
            "selected_BT": tensor(self.selected),
        }
        return alg.ObjectiveInputs(**{**fields, **other})

    def rows(self, picked: list[int]) -> Case:
        """Some of the rows."""
        fields = (self.mask, self.logp, self.old, self.advantages, self.selected)
        return Case(*[[grid[b] for b in picked] for grid in fields])  # type: ignore[arg-type]


@st.composite
def cases(draw: st.DrawFn, mask: st.SearchStrategy[Mask] | None = None, constant_rows: bool = False) -> Case:
    """Log-ratios within +-2.5 and away from kinks; advantages by token, or one a row."""
    kept = draw(mask if mask is not None else masks())
    old = draw(grids(kept, st.floats(-6.0, 0.0)))
    ratios = draw(grids(kept, log_ratios))
    if constant_rows:
        advantages = [[a] * len(kept[0]) for a in draw(st.lists(numbers, min_size=len(kept), max_size=len(kept)))]
    else:
        advantages = draw(grids(kept))
    logp = [[p + x for p, x in zip(*rows, strict=True)] for rows in zip(old, ratios, strict=True)]
    return Case(kept, logp, old, advantages, draw(flags(kept)))


one_token_rows = st.integers(1, 5).map(lambda rows: [[True]] * rows)


def value_and_gradient(
    objective: Callable[..., Tensor], inputs: alg.ObjectiveInputs, weights: Grid | Tensor, **knobs: Any
) -> tuple[Tensor, Tensor]:
    """The token losses, and d (sum of weights * losses) / d log pi."""
    loss_BT = objective(inputs, **knobs)
    weights_BT = torch.as_tensor(weights, dtype=loss_BT.dtype)
    (gradient_BT,) = torch.autograd.grad((loss_BT * weights_BT).sum(), inputs.logprobs_BT)
    return loss_BT.detach(), gradient_BT


def one_token(
    log_ratio: float,
    advantage: float,
    old: float = -0.5,
    dtype: torch.dtype = torch.float64,
    selected: bool = True,
) -> alg.ObjectiveInputs:
    """Inputs of a single token."""
    return alg.ObjectiveInputs(
        logprobs_BT=torch.tensor([[old + log_ratio]], dtype=dtype, requires_grad=True),
        old_logprobs_BT=torch.tensor([[old]], dtype=dtype),
        advantages_BT=torch.tensor([[advantage]], dtype=dtype),
        mask_BT=torch.tensor([[True]]),
        selected_BT=torch.tensor([[selected]]),
    )
