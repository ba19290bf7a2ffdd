"""How far a step moves the weights: a sample of them against all of them."""

from __future__ import annotations

import math

import pytest
import torch

from dapo.learner.movement import ENTRIES, Movement


@pytest.mark.parametrize("shape", [(ENTRIES,), (64, 64), (3, 5, 7), (), (0, 4)], ids=str)
def test_small_tensors_are_exact(shape: tuple[int, ...]) -> None:
    """Every entry is looked at."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator)
    movement, added = Movement([weight]), torch.randn(shape, generator=generator)
    weight += added
    got = movement.norms()
    assert got["train/update_norm"] == pytest.approx(float(added.double().norm()), rel=1e-5)
    assert got["train/parameter_norm"] == pytest.approx(float(weight.double().norm()), rel=1e-5)


@pytest.mark.parametrize("shape", [(1024, 1024), (2048, 96), (300, 1536), (1000, 7, 30)], ids=str)
def test_no_column_and_no_row_is_passed_over(shape: tuple[int, ...]) -> None:
    """Weights of one column alone move, or of every second row: what widths and strides share must not show."""
    width = shape[-1]
    for column in (0, 1, 5, width // 2, width - 1):
        weight = torch.zeros(shape)
        movement = Movement([weight])
        weight[..., column] = 1.0
        assert movement.norms()["train/update_norm"] == pytest.approx(math.sqrt(weight.numel() / width), rel=0.35)
    for first in (0, 1):
        weight = torch.zeros(shape)
        movement = Movement([weight])
        weight[first::2] = 1.0
        assert movement.norms()["train/update_norm"] == pytest.approx(math.sqrt(weight.numel() / 2), rel=0.1)


def test_a_large_tensor_beside_a_small_one() -> None:
    """Each by its own scale; looking changes nothing."""
    large, small = torch.zeros(1000, 1000), torch.ones(10)
    movement = Movement([large, small.view(2, 5).t()])
    large += 0.5
    before = large.clone()
    got = movement.norms()
    assert got["train/update_norm"] == pytest.approx(500.0)
    assert got["train/parameter_norm"] == pytest.approx(math.sqrt(250_000 + 10))
    assert torch.equal(large, before)
