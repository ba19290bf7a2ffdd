"""Runs with DAPO's neighbours switched on: resumed is uninterrupted, and what each option does is seen."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import helpers_run as helpers
import tiny
from dapo.config import load_config
from dapo.difficulty import PromptRecord, adaptive_size
from dapo.parts import learning_rate
from dapo.run.directory import RunDirectory
from helpers_learner import SHAPE, batch_of, rows_of, same, torch_learner, weights, with_old

STEPS = 4
EVERYTHING = (
    f"train.num_steps={STEPS}",
    "checkpoint.every=1",
    "checkpoint.keep_last=100",
    "algorithm.objective=clip_cov",
    "algorithm.covariance.fraction=0.2",
    "algorithm.covariance.low=0.01",
    "algorithm.advantage=batch",
    "algorithm.kl.place=reward",
    "algorithm.kl.coef=0.5",
    "algorithm.kl.estimator=k1",
    "algorithm.kl.reset_every=2",
    "algorithm.entropy_coef=0.01",
    "algorithm.importance_cap=2",
    "algorithm.importance_level=sequence",
    "reward.normalisation=running",
    "reward.clip=1.5",
    "sampling.min_responses_per_prompt=2",
    "train.warmup_rollout_steps=2",
    "train.warmup_from_zero=true",
)


@functools.cache
def straight() -> Path:
    """A run with all of it that never stopped."""
    return helpers.train(helpers.folder_of_this_process(), *EVERYTHING)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_resumed_is_uninterrupted(step: int, tmp_path: Path) -> None:
    """Before, at and after the reset of the reference; moments, history and warm-up go on."""
    run = helpers.copy_run(straight(), tmp_path / "run", up_to=step)
    code, _, err = helpers.quiet_dapo("train", "--resume", run)
    assert code == 0, err
    assert helpers.comparable(helpers.metrics(run)) == helpers.comparable(helpers.metrics(straight()))
    assert same(helpers.weights_at(run, STEPS), helpers.weights_at(straight(), STEPS))


def test_a_reference_is_in_the_checkpoint_once_it_was_reset() -> None:
    """Not before: the starting policy is where it was loaded from."""
    held = {}
    for step in range(1, STEPS + 1):
        state = straight() / "checkpoints" / f"step_{step:06d}"
        names = {name for file in state.glob("*.safetensors") for name in _names(file)}
        held[step] = any(name.startswith("reference/") for name in names)
    assert held == {1: False, 2: True, 3: True, 4: True}


def _names(file: Path) -> list[str]:
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        return list(json.loads(stream.read(size)))


def test_what_the_options_do_is_in_the_metrics() -> None:
    """Picked tokens, moments, warm-up, ragged groups."""
    rows = [row for row in helpers.metrics(straight()) if row["step"] and "train/learning_rate" in row]
    assert [row["train/learning_rate"] for row in rows] == pytest.approx([0.0, 5e-4, 1e-3, 1e-3])
    assert all(0.05 < row["clip/selected_fraction"] <= 0.2 for row in rows)
    assert [row["total/rewards"] for row in rows] == sorted(row["total/rewards"] for row in rows)
    assert rows[0]["total/rewards"] == 16  # 4 groups of 4
    start = helpers.weights(helpers.warm_model())
    assert helpers.largest_difference(helpers.weights_at(straight(), 1), start) == 0  # a rate of 0 moves nothing
    assert helpers.largest_difference(helpers.weights_at(straight(), 2), start) > 1e-4


def test_warmup_from_zero_is_the_codes_and_the_default_never_trains_at_zero() -> None:
    """Step s of the first w: (s - 1) / w there, s / (w + 1) here; then the whole rate."""
    code = load_config("dapo-verl-4f80e46")
    assert [learning_rate(s, code) / 1e-6 for s in (1, 2, 6, 11, 12)] == pytest.approx([0, 0.1, 0.5, 1, 1])
    paper = load_config("dapo-paper")
    assert [learning_rate(s, paper) / 1e-6 for s in (1, 20, 21, 22)] == pytest.approx([1 / 21, 20 / 21, 1, 1])
    none = load_config("dapo-paper", {"train.warmup_rollout_steps": 0, "train.warmup_from_zero": True})
    assert learning_rate(1, none) == 1e-6


# --- reward-adaptive group size ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "responses", "rating", "size"),
    [
        (0, 8, None, 16),
        (8, 8, None, 4),
        (4, 8, None, 10),
        (4, 8, 1.0, 10),  # draws of the run come before a rating
        (0, 0, 1.0, 4),
        (0, 0, None, 16),
        (1, 3, None, 12),
    ],
)
def test_adaptive_size(right: int, responses: int, rating: float | None, size: int) -> None:
    """By the formula of its documentation, worked out by hand."""
    record = PromptRecord(draws=1, responses=responses, right=right, last_step=1)
    assert adaptive_size(record, rating, 4, 16) == size


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
def test_prompts_that_were_right_get_smaller_groups(schedule: str, tmp_path: Path) -> None:
    """Few problems, so that they come back: by the record of the steps before, never by the present one."""
    words = ("sampling.min_responses_per_prompt=2", "train.num_steps=4", f"sampling.schedule={schedule}")
    more = ("sampling.filter=off", "data.holdout=0", "eval.data=[]", "train.learning_rate=4e-3")
    recipe = helpers.write_recipe(tmp_path, count=6)
    code, _, err = helpers.quiet_dapo("train", recipe, *words, *more, "--output-dir", tmp_path / "run")
    assert code == 0, err
    sizes: list[int] = []
    records: dict[str, PromptRecord] = {}
    for step in range(1, 5):
        drawn: dict[int, list[Any]] = {}
        for row in RunDirectory(tmp_path / "run").rollouts(step):
            drawn.setdefault(row["draw"], []).append(row)
        before = dict(records)
        for members in drawn.values():
            name = members[0]["prompt_id"]
            expected = adaptive_size(before.get(name), None, 2, 4)
            assert len(members) == expected
            sizes.append(expected)
            right = sum(row["verdict"] == "correct" for row in members)
            records[name] = records.get(name, PromptRecord()).after(right, len(members), step)
    assert len(set(sizes)) > 1


# --- the reference ----------------------------------------------------------------------------------


def test_a_reset_reference_is_the_present_policy_and_the_optimiser_starts_afresh() -> None:
    """As a learner that begins there; twice is once; later updates leave the reference alone."""
    learner = torch_learner(tiny.model(), reference=tiny.model(1))
    batch = with_old(batch_of(rows_of(SHAPE)), learner)
    learner.update(batch, 1e-2)
    learner.reset_reference()
    learner.reset_reference()
    now = learner.logprobs(batch)
    assert torch.equal(learner.logprobs(batch, reference=True), now)
    assert not any(name.startswith(("exp_avg/", "step/")) for name in learner.state_dict())
    fresh_model = tiny.model()
    fresh_model.load_state_dict(dict(learner.model.state_dict()))
    fresh = torch_learner(fresh_model, reference=tiny.model(1))
    again = with_old(batch, learner)
    for one in (learner, fresh):
        one.update(again, 1e-2)
    assert same(weights(learner), weights(fresh))
    assert torch.equal(learner.logprobs(batch, reference=True), now)


def test_a_reset_without_a_reference_is_an_error() -> None:
    """Not quietly nothing."""
    with pytest.raises(Exception, match="reference"):
        torch_learner(tiny.model()).reset_reference()
