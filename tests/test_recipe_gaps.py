"""What mutants of the neighbours, recipes and adapters showed to be untested: each test kills one or more of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import test_sampling as sampling
import tiny
from dapo.advantages import reward_moments, step_advantages
from dapo.algorithm import ObjectiveInputs
from dapo.batch import make_batch, minibatches
from dapo.config import load_config
from dapo.config.keys import all_keys, defaults, resolve
from dapo.config.origins import parse_origin
from dapo.config.release import recipe_digest, release
from dapo.config.schema import AlgorithmConfig
from dapo.difficulty import adaptive_size
from dapo.errors import ConfigError, ModelError, UserError
from dapo.flight import Flight
from dapo.learner.lora import LoraSettings, inject
from dapo.ledger import ledger
from dapo.objectives import BUILT_IN
from dapo.provenance import check_carried
from dapo.rollout.scripted import ScriptedEngine
from dapo.sampling import keep_mask
from dapo.types import Finish, FinishedDraw, Prompt, SamplingParams, TrainState
from helpers_learner import EOS, batch_of, config, group, lora_learner, response, rows_of, torch_learner

# --- advantages -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("correction", "eps"), [(0, 0.0), (1, 0.0), (0, 0.5), (1, 0.5)])
def test_batch_advantages_heed_the_correction_and_eps(correction: int, eps: float) -> None:
    """Two tokens of reward 1 and two of -1: (x - 0) / (sqrt(4 / (4 - correction)) + eps)."""
    settings = config(
        algorithm__advantage="batch",
        algorithm__std_correction=correction,
        algorithm__advantage_eps=eps,
        reward__overlong="none",
    )
    one = group(0, [4], [response([5, EOS]), response([6, EOS])], [1.0, -1.0])
    batch = make_batch([one], [EOS], settings)
    got = step_advantages(batch, [one], settings, {})[batch.loss_mask]
    size = 1.0 / (math.sqrt(4 / (4 - correction)) + eps)
    assert got.tolist() == pytest.approx([size, size, -size, -size])


def test_a_spread_of_rounding_is_not_normalised_to_one() -> None:
    """s = 1e-8 is noise: it divides nothing; nor may s^2, which is -1e-16 of seven times 0.9, raise."""
    settings = config(algorithm__advantage="mean", reward__normalisation="running", reward__overlong="none")
    for rewards, largest in (([0.5, 0.5 + 2e-8], 2e-8), ([0.9] * 7, 1e-12)):
        one = group(0, [4], [response([5, EOS])] * len(rewards), rewards)
        totals = reward_moments([one])
        got = step_advantages(make_batch([one], [EOS], settings), [one], settings, totals)
        assert got.abs().max() <= largest


# --- picked tokens --------------------------------------------------------------------------------


def _picked(
    draws: Sequence[int] = (0,),
    prompt: Sequence[int] = (4,),
    fraction: float = 0.5,
    covariance: Sequence[float] = (1.0,),
) -> Tensor:
    """bool [draw, 2, 20]: what Clip-Cov picks of two responses to each draw, whose tokens have these covariances."""
    settings = config(
        algorithm__objective="clip_cov",
        algorithm__covariance={"fraction": fraction, "low": 0.5, "high": 2.0},
        train__updates_per_step=1,
        sampling__prompts_per_step=1,
        sampling__responses_per_prompt=2,
        reward__overlong="none",
    )
    sides = [response([5] * 20), response([5] * 20)]
    batch = make_batch([group(draw, prompt, sides, [1.0, -1.0]) for draw in draws], [EOS], settings)
    sign = torch.tensor([1.0, -1.0]).repeat(len(draws))  # of A - 0 and of log pi - (-9)
    size = torch.tensor([*prompt, *list(covariance) * 20])[: batch.token_ids.shape[1]]
    old = -9.0 + sign.unsqueeze(1) * size
    (part,) = minibatches(replace(batch, old_logprobs=old, advantages=sign), settings, lambda _: [])
    assert part.selected is not None
    assert not part.selected[:, : len(prompt)].any()
    return part.selected[:, len(prompt) :].view(len(draws), 2, 20)


def test_responses_of_one_draw_are_picked_from_apart() -> None:
    """The numbers are of each response, not of the draw."""
    ((first, second),) = _picked()
    assert int(first.sum() + second.sum()) == 20
    assert not torch.equal(first, second)


def test_picks_are_by_draw_and_by_the_place_in_the_response() -> None:
    """Other rows before them move none, nor does a longer prompt, as another template gives it."""
    assert torch.equal(_picked(), _picked(prompt=(4, 4, 4)))
    assert torch.equal(_picked((3, 7)), _picked((7, 3)).flip(0))


def test_picks_lie_between_the_bounds() -> None:
    """Of covariances 0.2, 1 and 4 those of 1, whatever the share."""
    between = torch.tensor([False, True, False, False] * 5)
    assert torch.equal(_picked(fraction=1.0, covariance=(0.2, 1.0, 4.0, -1.0)), between.expand(1, 2, 20))


# --- objectives -----------------------------------------------------------------------------------


def _loss(objective: str, log_ratio: float, advantage: float, *, picked: bool = False, **knobs: Any) -> float:
    """Of one token, by the table that `algorithm.objective` is looked up in."""
    inputs = ObjectiveInputs(
        logprobs_BT=torch.tensor([[-1.0]]),
        old_logprobs_BT=torch.tensor([[-1.0 - log_ratio]]),
        advantages_BT=torch.tensor([[advantage]]),
        mask_BT=torch.tensor([[True]]),
        selected_BT=torch.tensor([[picked]]),
    )
    return float(BUILT_IN[objective](AlgorithmConfig(objective=objective, **knobs), inputs))


ROOT = math.exp(0.5)


@pytest.mark.parametrize(
    ("objective", "log_ratio", "advantage", "knobs", "loss"),
    [
        ("dapo", 1.0, 1.0, {"log_ratio_clamp": 0.5, "clip_high": None}, -ROOT),
        ("gspo", 1.0, 1.0, {"log_ratio_clamp": 0.5, "clip_high": None}, -ROOT),
        ("cispo", 1.0, 1.0, {"log_ratio_clamp": 0.5, "clip_high": None}, ROOT),  # -weight A log pi, log pi = -1
        ("clip_cov", 1.0, 1.0, {"log_ratio_clamp": 0.5, "clip_high": None}, -ROOT),
        ("kl_cov", 1.0, 1.0, {"log_ratio_clamp": 0.5}, -ROOT),
        ("gspo", -1.0, -1.0, {"clip_low": 0.2}, 0.8),
        ("gspo", 1.0, 1.0, {"clip_high": 0.3}, -1.3),
        ("cispo", -1.0, 1.0, {"clip_low": 0.2}, 0.8),
        ("cispo", 1.0, 1.0, {"clip_high": 0.3}, 1.3),
        ("clip_cov", -1.0, -1.0, {"clip_low": 0.2}, 0.8),
        ("clip_cov", 1.0, 1.0, {"clip_high": 0.3}, -1.3),
        ("dapo", 2.0, -1.0, {"clip_dual": 3.0}, 3.0),
        ("clip_cov", 2.0, -1.0, {"clip_dual": 3.0}, 3.0),
    ],
)
def test_every_setting_reaches_its_objective(
    objective: str, log_ratio: float, advantage: float, knobs: dict[str, Any], loss: float
) -> None:
    """One token off every bound, so that a setting that is not handed on shows; worked out by hand."""
    assert _loss(objective, log_ratio, advantage, **knobs) == pytest.approx(loss)


def test_the_kl_of_kl_cov_is_weighed_by_its_own_coefficient() -> None:
    """-r A + coef (r - 1 - log r), with algorithm.covariance.kl_coef and not algorithm.kl.coef."""
    knobs: dict[str, Any] = {"covariance": {"kl_coef": 2.0}, "kl": {"place": "loss", "coef": 0.3}}
    loss = _loss("kl_cov", 0.5, 1.0, picked=True, **knobs)
    assert loss == pytest.approx(-ROOT + 2.0 * (ROOT - 1.5))


# --- origins --------------------------------------------------------------------------------------


def test_a_papers_number_is_spelled_one_way() -> None:
    """`arxiv 2510.13786` would be read as a place in DAPO's own paper."""
    with pytest.raises(ConfigError, match=r"arXiv NNNN\.NNNNN"):
        parse_origin("paper: arxiv 2510.13786 Table 2", "train.seed")


def test_an_origin_is_written_with_seven_digits_of_its_commit() -> None:
    """As in a recipe, though the whole commit is known."""
    assert str(parse_origin("code: verl-project/verl@4f80e465c2 a  b", "k")) == "code: verl-project/verl@4f80e46 a b"


def test_a_repository_is_named_in_ascii() -> None:
    """As GitHub names them; a look-alike letter names another."""
    with pytest.raises(ConfigError, match="OWNER/REPO@COMMIT"):
        parse_origin("code: ver\u04cf/verl@4f80e46 a", "k")


# --- release --------------------------------------------------------------------------------------


def test_a_record_grows_at_its_end_and_holds_a_recipe_to_its_values() -> None:
    """On a made-up record, so that nothing rests on what was released: keys and old defaults stay, counts are whole."""
    words = {"model.path": "m", "data.source": "d", "name": "early"}
    old = [key for key in reversed(list(all_keys())) if key not in ("model.path", "train.seed")]
    came_with = {key: value for key, value in defaults().items() if key in old} | {"algorithm.clip_low": 0.1}
    early = load_config(words, {"algorithm.clip_low": 0.3})
    record = {
        "keys": old,
        "defaults": came_with,
        "counted": {"early": len(old)},
        "digests": {"early": recipe_digest(early, old)},
    }
    late = load_config(words, "name=late")
    made = release(record, "late", late)
    assert made["keys"] == [*old, "model.path", "train.seed"]  # a key without a default can't be held to it
    assert made["counted"] == {"early": len(old), "late": len(old) + 2}
    assert made["defaults"] == came_with | {"train.seed": 0}
    assert made["digests"] == record["digests"] | {"late": recipe_digest(late)}
    assert release(made, "late", late) == release(made, "early", early) == made
    for name, config_ in (("late", late), ("early", early)):
        with pytest.raises(ConfigError, match=f"{name}: is released"):
            release(made, name, load_config(words, resolve(config_), "train.seed=9"))


# --- adapters -------------------------------------------------------------------------------------


def test_adapters_are_what_the_configuration_says() -> None:
    """All four, none at its default."""
    settings = config(learner__lora_rank=3, learner__lora_alpha=7.5, learner__lora_targets="attention", train__seed=11)
    assert LoraSettings.of(settings) == LoraSettings(rank=3, alpha=7.5, targets="attention", seed=11)
    assert LoraSettings.of(config()) is None


def test_adapters_of_an_alpha_that_no_float32_holds_are_restored(tmp_path: Path) -> None:
    """0.1 is 0.1 again."""
    saved = lora_learner(alpha=0.1)
    saved.save_hf(tmp_path)
    lora_learner(alpha=0.1).restore(tmp_path, saved.state_dict())


def test_a_base_that_was_trained_a_little_further_is_refused(tmp_path: Path) -> None:
    """One weight, by 1e-3: far over float32's rounding, far under what a look at it would tell."""
    saved = lora_learner()
    saved.save_hf(tmp_path)
    model = tiny.model()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] += 1e-3
    with pytest.raises(ModelError, match=r"put model\.path back"):
        lora_learner(model).restore(tmp_path, saved.state_dict())


def test_putting_adapters_in_draws_from_nobodys_generator() -> None:
    """The sampler's and the data's numbers are the same with and without."""
    model = tiny.model()
    before = torch.random.get_rng_state()
    inject(model, LoraSettings(rank=2))
    assert torch.equal(torch.random.get_rng_state(), before)


# --- adaptive groups ------------------------------------------------------------------------------

ADAPTIVE = {"sampling__min_responses_per_prompt": 2, "sampling__filter": "off"}


def rated(index: int) -> Prompt | None:
    """Prompts that came with a pass rate."""
    prompt = sampling.prompts(index)
    return None if prompt is None else replace(prompt, rating=0.9)


def test_a_rating_sizes_the_first_group_of_a_prompt_and_its_forecast() -> None:
    """round(2 + 2 * 0.1) = 2 responses of at most 4; 1 - 0.9^2 - 0.1^2 of such groups are mixed."""
    made = sampling.config(**ADAPTIVE)
    got = sampling.collect(made, sampling.by_draw("M"), source=rated)
    assert [len(one.rollouts) for one in got.kept] == [2, 2]
    figures = ledger(got, TrainState(), made)
    assert figures["sampling/predicted_acceptance"] == pytest.approx(0.18)


@pytest.mark.parametrize("fault", ["abort", "raise"])
def test_a_draw_that_is_run_again_keeps_its_size(fault: str) -> None:
    """The engine aborts it, or fails with it in flight."""
    asked: list[int] = []

    class Faulty(ScriptedEngine):
        def submit(self, draw: int, prompt: Prompt, params: SamplingParams) -> None:
            asked.append(params.n)
            super().submit(draw, prompt, params)

        def poll(self) -> list[FinishedDraw]:
            if len(asked) > 1:
                return super().poll()
            if fault == "raise":
                raise OSError("gone")
            return [replace(d, responses=(replace(d.responses[0], finish=Finish.ABORT),)) for d in super().poll()]

    flight = Flight(Faulty(sampling.by_draw("M")), sampling.rollout_params(sampling.config()), reruns=2)
    flight.submit(0, tiny.prompt([1]), 2)
    assert flight.poll() == [] or fault == "raise"
    while not (done := flight.poll()):
        pass
    assert (asked, [len(d.responses) for d in done]) == ([2, 2], [2])


@pytest.mark.parametrize(
    ("size", "least", "fits"), [(2, 2, True), (3, 2, True), (1, 2, False), (5, 2, False), (3, None, False)]
)
def test_carried_groups_are_of_any_size_between_the_two(size: int, least: int | None, fits: bool) -> None:
    """G is 4; without an adaptive size it is 4 alone."""
    made = sampling.config(sampling__min_responses_per_prompt="off" if least is None else least)
    one = group(0, [4], [response([5, EOS])] * size, [1.0] * size)
    with nullcontext() if fits else pytest.raises(UserError, match="responses_per_prompt = 4"):
        check_carried(made, TrainState(carried=(one,)))


def test_correctness_is_not_a_reward_over_0() -> None:
    """Half a point for a wrong answer is a reward, and no sign that the group has right and wrong."""
    wrong = group(0, [4], [response([5, EOS])] * 2, [-1.0, -1.0])
    first = wrong.rollouts[0]
    half = replace(first, score=replace(first.score, reward=0.5))
    mixed = group(1, [4], [response([5, EOS])] * 2, [1.0, -1.0])
    assert keep_mask([replace(wrong, rollouts=(half, first)), mixed], "correctness") == [False, True]


@pytest.mark.parametrize(("rating", "size"), [(0.2, 4), (0.25, 4), (0.75, 2), (0.9, 2)])
def test_sizes_are_rounded_half_to_even(rating: float, size: int) -> None:
    """3.6, 3.5, 2.5 and 2.2 of 2 to 4."""
    assert adaptive_size(None, rating, 2, 4) == size


# --- metrics of the learner -----------------------------------------------------------------------


@pytest.mark.parametrize(("level", "share"), [("token", 0.5), ("sequence", 0.0)])
def test_clip_fractions_are_of_the_level_that_is_clipped(level: str, share: float) -> None:
    """Log-ratios of 0.5, -0.5, 0.5, -0.5 with A > 0: half the tokens, or a response whose ratio is 1."""
    learner = torch_learner(ratio_level=level)
    batch = batch_of(rows_of([(3, (4,))]))
    old = learner.logprobs(batch)
    old[0, 3:7] += torch.tensor([-0.5, 0.5, -0.5, 0.5])
    metrics = learner.update(replace(batch, old_logprobs=old, advantages=torch.ones(1)), 0.0)
    assert metrics["clip/high_fraction"] == pytest.approx(share)


def test_the_selected_share_is_of_the_loss_tokens() -> None:
    """Two of four, padding and prompt not counted, whatever else is marked."""
    learner = torch_learner()
    batch = batch_of(rows_of([(3, (4,))]))
    selected = torch.ones(batch.loss_mask.shape, dtype=torch.bool)
    selected[0, 3:5] = False
    metrics = learner.update(replace(batch, old_logprobs=learner.logprobs(batch), selected=selected), 0.0)
    assert metrics["clip/selected_fraction"] == pytest.approx(0.5)
