"""Whole training runs through the command: they learn, and every option runs."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest

import helpers_run as helpers
from dapo import build
from dapo.config import load_config, recipe_names, resolve
from dapo.config.load import from_tree
from dapo.model.paths import resolve_model
from dapo.run.directory import RunDirectory
from dapo.run.view import View
from dapo.types import TrainState

LEARN = (
    "sampling.prompts_per_step=8",
    "sampling.responses_per_prompt=8",
    "train.num_steps=16",
    "train.learning_rate=4e-3",
    "data.holdout=16",
    "eval.k=4",
    "engine.slots=64",
    "train.tokens_per_microbatch=1024",
)


def accuracies(run: Path) -> tuple[float, float]:
    """Held-out accuracy before and after."""
    rows = helpers.metrics(run)
    return rows[0]["eval/accuracy"], rows[-1]["eval/accuracy"]


def test_a_random_model_learns_a_trivial_task(tmp_path: Path) -> None:
    """The whole loop pulls in the right direction: from nothing to nearly always right."""
    run = helpers.train(tmp_path, *LEARN, model=helpers.cold_model())
    before, after = accuracies(run)
    assert before < 0.2
    assert after > 0.8
    last = helpers.metrics(run)[-1]
    assert last["sampled/accuracy"] > 0.8  # the training prompts agree


def test_a_placebo_reward_teaches_nothing(tmp_path: Path) -> None:
    """With the scores dealt at random the same run stays where it was: what rose above came from the reward."""
    run = helpers.train(tmp_path, *LEARN, "sampling.filter=off", "reward.placebo=true", model=helpers.warm_model())
    real = helpers.train(tmp_path, *LEARN, "sampling.filter=off", model=helpers.warm_model(), run="real")
    before, after = accuracies(run)
    real_before, real_after = accuracies(real)
    assert before == real_before
    assert real_after > real_before + 0.3
    assert after < before + 0.15


# --- every option, two steps ------------------------------------------------------------------------


@functools.cache
def baseline() -> Path:
    """Two steps with the defaults of the tiny recipe."""
    return helpers.finished_run()


OBJECTIVE = """
def plain(inputs):
    ratio = (inputs.logprobs_BT - inputs.old_logprobs_BT).exp()
    return -ratio * inputs.advantages_BT
"""
REWARD = """
def sevens(completions, answer, **columns):
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [text.count(gold) / 4 for text, gold in zip(texts, answer)]
"""

# options -> does it change the weights against the defaults ("differs"), or must it not ("same")?
OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "padded": (("train.packing=padded",), "same"),
    "gradient_checkpointing": (("train.gradient_checkpointing=true",), "same"),
    "small_microbatches": (("train.tokens_per_microbatch=16",), "same"),
    "old_learner": (("algorithm.old_logprobs=learner",), "same"),
    "logits_chunks": (("train.logits_chunk_tokens=3",), "same"),
    "importance_cap": (("algorithm.importance_cap=2",), "same"),  # weights exp(old - engine) = 1 to rounding
    "filter_off": (("sampling.filter=off",), "any"),
    "old_engine": (("algorithm.old_logprobs=engine",), "any"),
    "group": (("algorithm.reduction=group",), "differs"),
    "sequence": (("algorithm.reduction=sequence",), "differs"),
    "microbatch": (("algorithm.reduction=microbatch", "train.tokens_per_microbatch=16"), "differs"),
    "constant": (("algorithm.reduction=constant", "algorithm.constant_tokens=2"), "differs"),
    "hard": (("reward.overlong=hard",), "differs"),
    "soft": (("reward.overlong=soft", "reward.overlong_buffer_tokens=2"), "differs"),
    "filter": (("reward.overlong=filter",), "differs"),
    "soft_filter": (("reward.overlong=soft+filter", "reward.overlong_buffer_tokens=2"), "differs"),
    "kl_loss": (("algorithm.kl.place=loss", "algorithm.kl.coef=1.0"), "differs"),
    "kl_reward": (("algorithm.kl.place=reward", "algorithm.kl.coef=100"), "differs"),
    "clip_dual": (("algorithm.clip_dual=10",), "any"),
    "std_correction": (("algorithm.std_correction=0", "algorithm.advantage_eps=0.1"), "any"),
    "raw": (("data.template=raw",), "differs"),
    "untied": (("train.seed=0",), "other model"),
    "custom_objective": (("algorithm.objective={folder}/objective.py:plain",), "any"),
    "custom_reward": (
        ('reward.functions=["{folder}/reward.py:sevens"]', "sampling.filter=nonzero_std", "eval.data=[]"),
        "differs",
    ),
    "reward_and_grader": (
        ('reward.functions=["grader", {{function = "{folder}/reward.py:sevens", weight = 0.5}}]',),
        "any",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_runs_two_steps(name: str, tmp_path: Path) -> None:
    """No option is dead: each trains, and acts on (or leaves alone) the weights as its documentation says."""
    words, effect = OPTIONS[name]
    (tmp_path / "objective.py").write_text(OBJECTIVE, encoding="utf-8")
    (tmp_path / "reward.py").write_text(REWARD, encoding="utf-8")
    model = helpers.warm_model(tied=False) if effect == "other model" else None
    run = helpers.train(tmp_path, *(word.format(folder=tmp_path) for word in words), model=model)
    rows = helpers.metrics(run)
    assert [row["step"] for row in rows][-2:] == [1, 2]
    for row in rows[-2:]:
        assert math.isfinite(row["loss/policy"])
        assert row["grad/nonfinite_updates"] == 0
        assert row["train/updates"] == 2
    after = helpers.weights_at(run, 2)
    start = helpers.weights(model or helpers.warm_model())
    assert helpers.largest_difference(after, start) > 1e-4
    if effect in ("same", "differs"):
        gap = helpers.largest_difference(after, helpers.weights_at(baseline(), 2))
        # Adam's first steps move by about the sign of the gradient: rounding is seen where it is near 0.
        assert (gap < 5e-4) == (effect == "same"), gap
    observed(name, rows[-1])


def observed(name: str, row: dict[str, Any]) -> None:
    """What the metrics of a step have to show of an option."""
    if name == "filter_off":
        assert row["sampling/kept"] == row["sampling/draws"] == 4
        assert row["sampling/rounds"] == 1
    if name in ("hard", "soft", "soft_filter"):
        assert row["response/overlong_penalty_mean"] < -0.1
        assert row["kept/shaped_reward_mean"] < row["kept/reward_mean"]
    if name in ("filter", "soft_filter"):
        assert row["tokens/loss"] < row["tokens/kept"]
    if name == "kl_loss":
        assert row["policy/kl_to_reference"] > 0
    if name == "importance_cap":
        assert row["importance/mean"] == pytest.approx(1, abs=1e-4)
    if name in ("custom_reward", "reward_and_grader"):
        assert 0 < row["kept/reward_sevens_mean"] < 1
        assert ("sampled/accuracy" in row) == (name == "reward_and_grader")


def test_a_step_without_loss_tokens_is_told_as_such(tmp_path: Path) -> None:
    """No loss tokens at all: a loss of zero, counted, and weights that stay (section 4 of the design)."""
    eos_never = ("sampling.max_response_tokens=1", "reward.overlong=filter", "sampling.filter=off", "train.num_steps=1")
    run = helpers.train(tmp_path, *eos_never, model=helpers.cold_model())
    row = helpers.metrics(run)[-1]
    assert row["response/truncated_fraction"] == 1.0
    assert row["tokens/loss"] == 0
    assert row["loss/policy"] == 0
    assert row["grad/norm"] == 0
    assert helpers.largest_difference(helpers.weights_at(run, 1), helpers.weights(helpers.cold_model())) == 0


# --- recipes ----------------------------------------------------------------------------------------


def start(name: str) -> str:
    """The model that a scaled-down recipe starts from: the recipe's own where it is as small."""
    own = load_config(name).model.path
    return own if own == "random:tiny" else str(helpers.warm_model())


def scaled_down(name: str, folder: Path) -> dict[str, Any]:
    """A shipped recipe's tree with the tiny model and small sizes; everything else as shipped."""
    tree = resolve(load_config(name))
    sources = tree["data"]["source"]
    if isinstance(sources, list) and all(s["source"].startswith("reasoning-gym:") for s in sources):
        pytest.importorskip("reasoning_gym", reason="the recipe's problems come from reasoning-gym")
        for source in sources:
            source["size"] = 60
        tree["data"]["holdout"] = min(tree["data"]["holdout"], 8)
    else:
        tree["data"]["source"] = str(helpers.write_rows(folder / "data.jsonl", helpers.problems(40)))
        tree["data"]["holdout"] = 8
        tree["eval"]["data"] = "holdout"
    tree["model"] |= {"path": start(name), "revision": "off", "dtype": "float32", "device": "cpu"}
    tree["data"]["max_prompt_tokens"] = 248  # the paper's wording around a short problem; the tiny model has 256
    tree["sampling"] |= {"prompts_per_step": 4, "responses_per_prompt": 4, "max_response_tokens": 8}
    tree["sampling"]["gen_prompts"] = (16 if name == "tiny" else 4) if tree["sampling"]["gen_prompts"] else None
    tree["sampling"] |= {"min_responses_per_prompt": None, "on_exhausted": "train_short"}
    tree["reward"] |= {"overlong_buffer_tokens": 4, "compat": "off", "extract": ["last_number"]}  # it knows one number
    tree["train"] |= {"updates_per_step": 2, "num_steps": 2, "learning_rate": 1e-3, "tokens_per_microbatch": 600}
    tree["eval"] |= {"k": 1, "max_response_tokens": None, "every": None, "before": False}
    tree["checkpoint"] |= {"every": None, "keep_every": None}
    tree["engine"]["slots"] = 8
    if tree["learner"].get("lora_rank"):
        tree["learner"]["lora_rank"] = 2
    return tree


def test_there_are_recipes() -> None:
    """The parametrised test below holds of none, too."""
    assert "quickstart" in recipe_names()


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_takes_two_steps(name: str, tmp_path: Path) -> None:
    """A recipe that loads but can't be built, or can't step, would fail only on the user's machine."""
    config = from_tree(scaled_down(name, tmp_path))
    run = RunDirectory.create(name, str(tmp_path / "run"))
    try:
        parts = build.build(config, run, View(1, quiet=True))
        helpers.run_loop(parts, TrainState())
    finally:
        run.release()
    steps = helpers.metrics(tmp_path / "run")[-2:]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["train/updates"] and not row["grad/nonfinite_updates"] for row in steps)
    assert steps[-1]["grad/norm"] > 0
    before = helpers.weights(Path(resolve_model(start(name))))
    assert helpers.largest_difference(helpers.weights_at(tmp_path / "run", 2), before) > 0
    assert parts.config == config
    assert (tmp_path / "run" / "manifest.json").is_file()
    assert len(parts.tests["holdout"]) == config.data.holdout
    assert parts.supply is not None
    text = parts.tests["holdout"][0].text
    assert text.endswith(("<turn>", "?", "<eos>")) or config.data.template == "raw"
