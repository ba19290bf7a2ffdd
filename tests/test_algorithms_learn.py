"""Every algorithm that a recipe names raises the reward of the tiny model on a trivial task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import helpers_run as helpers
from dapo.config import load_config, recipe_names
from dapo.config.load import from_tree, merge
from dapo.config.schema import Config

SMALL: dict[str, Any] = {
    "sampling": {"prompts_per_step": 8, "responses_per_prompt": 8, "max_rounds": 4},
    "train": {"num_steps": 8, "learning_rate": 4e-3, "tokens_per_microbatch": 1024},
    "data": {"holdout": 16},
    "eval": {"k": 4},
    "engine": {"slots": 64},
}
# What is not the paper's, and what no recipe switches on.
MORE: dict[str, dict[str, Any]] = {
    "adaptive groups": {"sampling": {"min_responses_per_prompt": 2}},
    "normalised rewards": {"reward": {"normalisation": "running", "clip": 1.5}, "algorithm": {"advantage": "mean"}},
    "entropy bonus": {"algorithm": {"entropy_coef": 0.01}},
    "kl k2": {"algorithm": {"kl": {"place": "loss", "coef": 0.01, "estimator": "k2"}}},
}


def of_recipe(name: str) -> dict[str, Any]:
    """What makes a recipe the algorithm it is; lengths and sizes as the task needs them."""
    config = load_config(name)
    algorithm = config.algorithm.model_dump(mode="json")
    if algorithm["constant_tokens"] and algorithm["constant_tokens"] > 1:
        algorithm["constant_tokens"] = 4
    if algorithm["kl"]["reset_every"]:
        algorithm["kl"]["reset_every"] = 3
    shaping = config.reward.overlong
    return {
        "algorithm": algorithm,
        "sampling": {"filter": config.sampling.filter, "schedule": config.sampling.schedule},
        "reward": {"overlong": shaping, "overlong_buffer_tokens": 2},
    }


def algorithms() -> dict[str, dict[str, Any]]:
    """Every recipe's, each once."""
    found: dict[str, dict[str, Any]] = {}
    for name in recipe_names():
        if (made := of_recipe(name)) not in found.values():
            found[name] = made
    return found | MORE


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms())
def test_every_algorithm_raises_the_reward(name: str, tmp_path: Path) -> None:
    """From right once in four to right three times in four or better, in a few steps."""
    tree = merge(SMALL, algorithms()[name])
    recipe = load_config(str(helpers.write_recipe(tmp_path)), tree)
    rows = helpers.metrics(helpers.train_config(recipe, tmp_path / "run"))
    before, after = rows[0]["eval/accuracy"], rows[-1]["eval/accuracy"]
    assert before < 0.5
    assert after > 0.75
    assert rows[-1]["sampled/reward_mean"] > rows[1]["sampled/reward_mean"]


TECHNIQUES = {
    "clip_higher": ({"algorithm.clip_high": 0.2}, {"algorithm.clip_high": 0.28}),
    "dynamic_sampling": ({"sampling.filter": "off"}, {"sampling.filter": "correctness"}),
    "token_level_loss": ({"algorithm.reduction": "sequence"}, {"algorithm.reduction": "group"}),
    "overlong_shaping": ({"reward.overlong": "none"}, {"reward.overlong": "soft", "reward.overlong_buffer_tokens": 2}),
}


def combination(bits: int) -> dict[str, Any]:
    """Settings of one of the 16 on/off combinations."""
    return {k: v for place, pair in enumerate(TECHNIQUES.values()) for k, v in pair[bits >> place & 1].items()}


@pytest.mark.parametrize("bits", range(16))
def test_the_four_techniques_are_independent_switches(bits: int, tmp_path: Path) -> None:
    """All 16 combinations build and step, and no two of them are one configuration."""
    config = load_config(
        str(helpers.write_recipe(tmp_path)), combination(bits), {"train.num_steps": 1, "eval.data": []}
    )
    row = helpers.metrics(helpers.train_config(config, tmp_path / "run"))[-1]
    assert row["train/updates"] == 2
    assert row["grad/nonfinite_updates"] == 0
    assert (row["response/overlong_penalty_mean"] < 0) == bool(bits & 8)
    assert bool(bits & 2) or row["sampling/kept"] == row["sampling/draws"]
    others = [from_tree(load_tree(config, combination(other))) for other in range(16) if other != bits]
    assert config not in others


def load_tree(config: Config, settings: dict[str, Any]) -> dict[str, Any]:
    """A configuration's tree with other settings."""
    tree = config.model_dump(mode="json", by_alias=True)
    for key, value in settings.items():
        section, _, name = key.partition(".")
        tree[section][name] = value
    return tree
