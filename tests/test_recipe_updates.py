"""Where two recipes give the same update on the same rollouts, and how far apart they are where they do not.

The rollouts and the update are those of benchmarks/recipe_updates.py, whose table stands in docs/recipes.md.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from dapo.config import load_config, recipe_names
from dapo.config.load import from_tree, merge, resolve

ROOT = Path(__file__).parents[1]


def _benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("recipe_updates", ROOT / "benchmarks" / "recipe_updates.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["recipe_updates"] = module
    spec.loader.exec_module(module)
    return module


bench = _benchmark()


@functools.cache
def update(name: str, budget: int = 48) -> Any:
    """The update of a recipe as it is shipped."""
    return bench.update(bench.scaled(load_config(name), budget), bench.rollouts())


def changed(name: str, **changes: Any) -> Any:
    """The update of a recipe with other settings in its section `algorithm`."""
    tree = merge(resolve(bench.scaled(load_config(name))), {"algorithm": changes})
    return bench.update(from_tree(tree), bench.rollouts())


# --- the same ----------------------------------------------------------------------------------------

SAME = [
    ("dapo-paper", "dapo-table1-5"),
    ("dapo-paper", "dapo-table2-28"),
    ("dapo-verl-4f80e46", "dapo-qwen2.5-7b-math"),  # they differ in model and lengths
    ("dapo", "math-7b-8gpu"),
    ("dapo", "gsm8k-0.5b-1gpu"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_update_bit_for_bit(one: str, other: str) -> None:
    """Loss and every number of the gradient."""
    a, b = update(one), update(other)
    assert a.loss == b.loss
    assert a.gradient.keys() == b.gradient.keys()
    assert all(torch.equal(value, b.gradient[name]) for name, value in a.gradient.items())


def test_with_one_micro_batch_the_codes_reduction_is_the_exact_one() -> None:
    """dapo-verl-4f80e46 and dapo-recipe-52cdedf part only where the mini-batch is cut (no ratio meets the clamp)."""
    whole = 10_000
    assert update("dapo-verl-4f80e46", whole).distance(update("dapo-recipe-52cdedf", whole)) < 1e-6
    assert update("dapo-verl-4f80e46").distance(update("dapo-recipe-52cdedf")) > 0.1
    assert update("dapo-recipe-52cdedf", whole).distance(update("dapo-recipe-52cdedf")) < 1e-5  # no cut moves it
    assert update("dapo-verl-4f80e46", whole).distance(update("dapo-verl-4f80e46")) > 0.1  # the cut moves this


def test_the_dual_clip_is_the_difference_of_the_codes_objective() -> None:
    """Without it, and with the paper's reduction, the code's update is the paper's."""
    undone = changed("dapo-verl-4f80e46", clip_dual=None, reduction="group")
    assert undone.distance(update("dapo-paper")) < 1e-5
    assert changed("dapo-verl-4f80e46", reduction="group").distance(update("dapo-paper")) > 0.1


# --- not the same, and by how much --------------------------------------------------------------------


def test_each_row_of_table_1_changes_the_update() -> None:
    """Row by row, by 1 % of the gradient or more."""
    for row, following in pairwise(f"dapo-table1-{i}" for i in range(6)):
        assert update(row).distance(update(following)) > 0.01, (row, following)


def test_the_sweep_of_clip_high_moves_the_loss_one_way() -> None:
    """A wider upper clip lets more of r A through, so the loss only falls; 0.28 lies between its neighbours."""
    losses = [update(f"dapo-table2-{high}").loss for high in (20, 25, 28, 30, 40)]
    assert all(a > b for a, b in pairwise(losses))


def test_the_size_of_clip_higher_is_that_of_the_tokens_between_the_clips() -> None:
    """Loss(0.2) - loss(0.28) = sum of weight * A * (min(r, 1.28) - min(r, 1.2)) over tokens of A > 0, by hand."""
    config = bench.scaled(load_config("dapo-table2-28"))
    learner, minibatch = bench.prepared(config, bench.rollouts())
    logprobs = learner.logprobs(minibatch)
    total = 0.0
    for row, weight in enumerate(minibatch.row_weights.tolist()):
        advantage = float(minibatch.advantages[row])
        for place in torch.nonzero(minibatch.loss_mask[row]).flatten().tolist():
            r = math.exp(float(logprobs[row, place]) - float(minibatch.old_logprobs[row, place]))
            total += weight * max(advantage, 0.0) * (min(r, 1.28) - min(r, 1.2))
    assert update("dapo-table2-20").loss - update("dapo-table2-28").loss == pytest.approx(total, rel=1e-4)
    assert total > 1e-3


def test_the_kl_of_grpo_adds_beta_times_its_own_gradient() -> None:
    """g(beta) - g(0) is linear in beta, and so is the loss."""
    none = changed("grpo-deepseekmath", kl={"place": "off", "coef": 0.0})
    one, two = (changed("grpo-deepseekmath", kl={"coef": beta}) for beta in (0.04, 0.08))
    assert two.loss - none.loss == pytest.approx(2 * (one.loss - none.loss), rel=1e-3)
    for name, value in none.gradient.items():
        assert torch.allclose(two.gradient[name] - value, 2 * (one.gradient[name] - value), atol=1e-6, rtol=1e-3)
    assert one.loss - none.loss > 1e-4  # k3 is never negative


def test_the_table_of_the_documentation_is_what_is_measured() -> None:
    """Every recipe has its row in docs/recipes.md, and its numbers are those of today's code (within 0.002)."""
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([\w.-]+) \| (-?\d+\.\d{4} \| .*) \|$", page, flags=re.MULTILINE))
    assert sorted(rows) == recipe_names()
    base = update("dapo-paper")
    for name, written in rows.items():
        one = update(name)
        numbers = (one.loss, one.loss - base.loss, one.norm / base.norm, base.distance(one), base.cosine(one))
        assert [float(text) for text in written.split(" | ")] == pytest.approx(numbers, abs=2e-3, rel=2e-3), name
