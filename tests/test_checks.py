"""The self-checks alone: silent on what the loop makes, and each seen by a violation made by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import helpers_checks as helpers
import tiny
from dapo.batch import make_batch
from dapo.checks import gap, loss, rows, weights
from dapo.checks.findings import CHECKS, Finding
from dapo.checks.table import page_with_table
from dapo.config.checks import ChecksConfig
from dapo.errors import ConfigError
from dapo.rollout.base import weight_sample
from dapo.rollout.torch_engine import TorchEngine
from dapo.rollout.weights import EngineWeights
from dapo.run.directory import CHECKS_FILE, RunDirectory
from dapo.types import Finish, Group
from helpers_checks import EOS, Made, collected, config, made, two_groups
from helpers_learner import group, response

PAGE = Path(__file__).parents[1] / "docs/checks.md"
BOTH = ("eos_mask", "response_mask")


def names(found: list[Finding]) -> list[str]:
    """Which checks have found something, each once."""
    return sorted({finding.check for finding in found})


# --- the table ------------------------------------------------------------------------------------


def test_every_check_has_a_setting_and_a_row() -> None:
    """And no setting is without a check; findings carry names of the table alone."""
    assert list(ChecksConfig.model_fields) == list(CHECKS)


def test_the_page_is_what_the_table_makes() -> None:
    """docs/checks.md is made by `make checks-docs`."""
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_table(page) == page
    with pytest.raises(ConfigError, match="needs the lines"):
        page_with_table("no markers")


# --- rows and masks -------------------------------------------------------------------------------


@st.composite
def groups_of_all_kinds(draw: st.DrawFn) -> tuple[Group, ...]:
    """Groups of 2 to 4 responses: empty ones, EOS anywhere, tokens that were not generated, every way to end."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        responses = []
        for _ in range(draw(st.integers(2, 4))):
            tokens = draw(st.lists(st.sampled_from([EOS, 5, 6]), max_size=5))
            generated = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
            finish = draw(st.sampled_from([Finish.STOP, Finish.LENGTH]))
            responses.append(response(tokens, generated=generated, finish=finish))
        rewards = draw(st.lists(st.sampled_from([1.0, -1.0]), min_size=len(responses), max_size=len(responses)))
        found.append(group(number, [1, *draw(st.lists(st.sampled_from([5, EOS]), max_size=2))], responses, rewards))
    return tuple(found)


@settings(deadline=None)
@given(groups_of_all_kinds(), st.sampled_from(["none", "filter", "soft+filter"]), st.integers(0, 10**6))
def test_the_mask_is_told_again_from_the_responses(groups: tuple[Group, ...], overlong: str, place: int) -> None:
    """No finding on what make_batch makes; one for any single entry that is turned over."""
    made_for = config(reward__overlong=overlong, reward__overlong_buffer_tokens=2, sampling__max_response_tokens=5)
    batch = make_batch(groups, [EOS], made_for)
    assert rows.masks(batch, groups, [EOS], made_for, BOTH) == []
    mask = batch.loss_mask.clone()
    flat = mask.view(-1)
    flat[place % len(flat)] ^= True
    found = rows.masks(replace(batch, loss_mask=mask), groups, [EOS], made_for, BOTH)
    assert [(one.check, one.value) for one in found if one.check == "response_mask"] == [("response_mask", 1.0)]
    turned = int(batch.token_ids.view(-1)[place % len(flat)])
    assert ("eos_mask" in names(found)) is (turned == EOS)


def test_a_mask_without_its_eos_is_found() -> None:
    """Four of the eight responses end by one; those that a string or the limit ended have none to miss."""
    it = made()
    mask = it.batch.loss_mask & (it.batch.token_ids != EOS)
    found = rows.masks(replace(it.batch, loss_mask=mask), it.groups, [EOS], it.config, ["eos_mask"])
    assert [(one.check, one.value, one.bound) for one in found] == [("eos_mask", 4.0, 0.0)]


def test_kept_groups_are_counted_again() -> None:
    """By correctness, whatever the shaped rewards are; the first N in draw order; fewer only when short."""
    right = group(0, [5], [response([EOS])] * 2, [1.0, 1.0])
    wrong = group(1, [5], [response([EOS])] * 2, [-1.0, -1.0], [0.0, -0.5])  # shaped rewards differ
    mixed = [group(n, [5], [response([EOS])] * 2, [1.0, -1.0]) for n in (2, 3, 4)]
    settings = config(sampling__prompts_per_step=2, train__updates_per_step=1)

    def found(kept: list[Group], taken: list[Group], short: str = "", **knobs: Any) -> list[float]:
        own = config(sampling__prompts_per_step=2, train__updates_per_step=1, **knobs) if knobs else settings
        return [one.value for one in rows.kept_groups(collected(taken, kept, short), own)]

    taken = [right, wrong, *mixed]
    assert found(mixed[:2], taken[:4]) == []
    assert found([wrong, mixed[0]], taken[:4]) == [2.0]  # one too many, one too few
    assert found(mixed[1::-1], taken[:4]) == [1.0]  # another order
    assert found(mixed[1:], taken) == [2.0]  # not the first
    assert found(mixed[:1], taken[:3]) == [1.0]  # one is missing
    assert found(mixed[:1], taken[:3], short="the data ended") == []
    assert found(mixed, taken) == [1.0]  # more than N
    assert found([right, wrong], [right, wrong], sampling__filter="off") == []
    assert found([right, mixed[0]], [right, mixed[0]], sampling__filter="nonzero_std") == [2.0]
    assert found(mixed[:2], [wrong, *mixed[:2]], sampling__filter="nonzero_std") == []  # unshaped, all are -1


def _swap_prompts(it: Made) -> Made:
    token_ids = it.batch.token_ids.clone()
    token_ids[0, 1] = 20
    return replace(it, batch=replace(it.batch, token_ids=token_ids))


def _shift_draws(it: Made) -> Made:
    return replace(it, batch=replace(it.batch, draw=it.batch.draw.roll(1)))


def _lose_a_part(it: Made) -> Made:
    return replace(it, parts=it.parts[:1])


def _repeat_a_part(it: Made) -> Made:
    return replace(it, parts=(it.parts[0], it.parts[0]))


def _split_a_group(it: Made) -> Made:
    return replace(it, parts=(it.batch.take([0, 1]), it.batch.take([2, 3, 4, 5, 6, 7])))


def _lose_a_row(it: Made) -> Made:
    return replace(it, batch=it.batch.take(list(range(7))))


def _lose_a_response(it: Made) -> Made:
    groups = (replace(it.groups[0], rollouts=it.groups[0].rollouts[:3]), it.groups[1])
    return replace(made(groups, it.config), config=it.config)


def _draw_twice(it: Made) -> Made:
    return made((it.groups[0], replace(it.groups[0])), it.config)


@pytest.mark.parametrize(
    "spoil",
    [
        _swap_prompts,
        _shift_draws,
        _lose_a_part,
        _repeat_a_part,
        _split_a_group,
        _lose_a_row,
        _lose_a_response,
        _draw_twice,
    ],
    ids=lambda spoil: spoil.__name__.strip("_"),
)
def test_rows_out_of_place_are_found(spoil: Callable[[Made], Made]) -> None:
    """Silent on what the loop makes."""
    it = made()
    assert rows.rows_of_groups(it.batch, it.groups, it.parts, it.config) == []
    it = spoil(it)
    assert names(rows.rows_of_groups(it.batch, it.groups, it.parts, it.config)) == ["groups"]


def test_groups_of_any_size_between_the_two_are_right() -> None:
    """sampling.min_responses_per_prompt."""
    groups = (replace(two_groups()[0], rollouts=two_groups()[0].rollouts[:2]), two_groups()[1])
    knobs = {"sampling__prompts_per_step": 2, "sampling__responses_per_prompt": 4, "train__updates_per_step": 1}
    it = made(groups, config(**knobs, sampling__min_responses_per_prompt=2))
    assert rows.rows_of_groups(it.batch, groups, it.parts, it.config) == []
    assert rows.rows_of_groups(it.batch, groups, it.parts, config(**knobs)) != []


def test_a_batch_that_does_not_fit_is_told_once() -> None:
    """The checks that compare row by row keep still."""
    it = made()
    narrow = it.batch.take([0, 1])
    assert rows.masks(narrow, it.groups, [EOS], it.config, BOTH) == []
    assert loss.advantages(narrow, it.groups, it.config) == []


def test_two_bos_tokens_are_counted() -> None:
    """At the beginning alone; a tokenizer without one has none to double."""
    groups = [group(n, ids, [response([EOS])] * 2, [1.0, -1.0]) for n, ids in enumerate(([1, 1, 5], [1, 5, 1, 1], [1]))]
    assert [one.value for one in rows.double_bos(groups, 1)] == [1.0]
    assert rows.double_bos(groups[1:], 1) == rows.double_bos(groups, None) == []


# --- advantages, reduction, finite ----------------------------------------------------------------

KINDS = ("group", "mean", "leave_one_out", "batch_std", "batch")


@settings(deadline=None)
@given(groups_of_all_kinds(), st.sampled_from(KINDS))
def test_every_estimator_passes(groups: tuple[Group, ...], kind: str) -> None:
    """Groups without a signal included (filter = "off")."""
    it = made(groups, config(algorithm__advantage=kind, train__updates_per_step=1))
    assert loss.advantages(it.batch, groups, it.config) == []
    assert loss.finite(it.batch, it.parts) == []


def test_advantages_that_are_not_of_the_group_are_found() -> None:
    """Over the whole batch; rolled into the next group; lost."""
    it = made()
    shaped = torch.tensor([r.shaped_reward for one in it.groups for r in one.rollouts])
    over_all = (shaped - shaped.mean()) / shaped.std()
    for advantages in (over_all, it.batch.advantages.roll(1), torch.zeros(8)):
        found = loss.advantages(replace(it.batch, advantages=advantages.float()), it.groups, it.config)
        assert names(found) == ["advantages"]


@pytest.mark.parametrize("knobs", [{"reward__clip": 0.5}, {"reward__normalisation": "running"}])
def test_rewards_that_became_one_value_are_no_lost_signal(knobs: dict[str, Any]) -> None:
    """All advantages 0 is right then."""
    it = made()
    gone = replace(it.batch, advantages=torch.zeros(8))
    assert loss.advantages(gone, it.groups, config(**knobs)) == []
    assert loss.advantages(gone, it.groups, it.config) != []


REDUCTIONS = ("minibatch", "group", "sequence", "constant", "microbatch")


def reduced(reduction: str, groups: tuple[Group, ...]) -> Made:
    """The two groups in one mini-batch."""
    constant: dict[str, Any] = {"algorithm__constant_tokens": 9} if reduction == "constant" else {}
    knobs = {"sampling__responses_per_prompt": 4, "reward__overlong": "filter", "train__updates_per_step": 1}
    return made(groups, config(**knobs, algorithm__reduction=reduction, **constant))


@settings(deadline=None)
@given(groups_of_all_kinds(), st.sampled_from(REDUCTIONS))
def test_row_weights_are_told_again_from_the_lengths(groups: tuple[Group, ...], reduction: str) -> None:
    """Filtered and empty rows included; a part in 10^6 off is found."""
    it = reduced(reduction, groups)
    (part,) = it.parts
    cut = [list(range(part.num_rows))]
    assert loss.row_weights(part, it.config, cut) == []
    off = replace(part, row_weights=part.row_weights * (1 + 1e-6))
    assert names(loss.row_weights(off, it.config, cut)) == (["reduction"] if bool(part.loss_mask.any()) else [])


@pytest.mark.parametrize("used", REDUCTIONS)
@pytest.mark.parametrize("configured", REDUCTIONS)
def test_a_reduction_in_place_of_another_is_found(configured: str, used: str) -> None:
    """All pairs; of one micro-batch that holds everything, the mean in it is that of the mini-batch."""
    own, other = (reduced(name, two_groups()) for name in (configured, used))
    cut = [list(range(8))]
    same = used == configured or {used, configured} == {"minibatch", "microbatch"}
    found = loss.row_weights(replace(own.parts[0], row_weights=other.parts[0].row_weights), own.config, cut)
    assert names(found) == ([] if same else ["reduction"])


def test_a_loss_of_other_weights_is_found() -> None:
    """At ratio 1 the loss is -sum of weight * advantage; ratios that are off by their gap are let pass."""
    it = reduced("minibatch", two_groups())
    (part,) = it.parts
    terms = part.row_weights.unsqueeze(1) * part.loss_mask * part.token_advantages.double()
    right = {"loss/policy": -float(terms.sum()), "ratio/logprob_abs_mean": 0.0}
    other = reduced("sequence", two_groups()).parts[0]
    wrong = right | {
        "loss/policy": -float((other.row_weights.unsqueeze(1) * part.loss_mask * part.token_advantages).sum())
    }
    assert loss.loss_at_one(part, right, it.config) == []
    assert names(loss.loss_at_one(part, wrong, it.config)) == ["reduction"]
    off = {"loss/policy": right["loss/policy"] + 0.9e-3 * float(terms.abs().sum()), "ratio/logprob_abs_mean": 1e-3}
    assert loss.loss_at_one(part, off, it.config) == []
    assert loss.loss_at_one(part, {}, it.config) == []  # a learner that does not tell
    for knobs in ({"entropy_coef": 0.1}, {"importance_cap": 2}, {"objective": "cispo"}):
        assert loss.loss_at_one(part, wrong, config(**{f"algorithm__{k}": v for k, v in knobs.items()})) == []


@pytest.mark.parametrize("name", ["old_logprobs", "ref_logprobs", "advantages", "row_weights"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_found(name: str, value: float) -> None:
    """On the loss mask; outside it nobody reads them."""
    it = made()
    batch = replace(it.batch, ref_logprobs=torch.zeros(it.batch.loss_mask.shape))
    outside = replace(batch, old_logprobs=torch.where(batch.loss_mask, 0.0, value))
    assert loss.finite(outside, it.parts) == []
    spoilt = getattr(batch, name).clone()
    spoilt[(0, 3) if spoilt.dim() == 2 else 0] = value
    if name == "row_weights":
        assert names(loss.finite(batch, [replace(batch, row_weights=spoilt)])) == ["finite"]
    else:
        assert names(loss.finite(replace(batch, **{name: spoilt}), it.parts)) == ["finite"]


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        ({"loss/policy": 0.1, "grad/norm": 1.0, "grad/nonfinite": 0.0}, False),
        ({}, False),
        ({"loss/policy": math.nan, "grad/norm": 1.0}, True),
        ({"loss/policy": 0.1, "grad/norm": math.inf, "grad/nonfinite": 1.0}, True),
        ({"grad/nonfinite": 1.0}, True),
    ],
)
def test_updates_that_are_not_finite_are_found(metrics: dict[str, float], found: bool) -> None:
    """By loss, norm, or what the learner says of it."""
    assert names(loss.finite_updates(metrics)) == (["finite_updates"] if found else [])


@pytest.mark.parametrize(
    ("rate", "step", "knobs", "found"),
    [
        (1e-6, 1, {}, False),
        (0.0, 1, {}, True),
        (0.0, 1, {"train__warmup_from_zero": True}, False),
        (0.0, 2, {"train__warmup_from_zero": True}, True),
        (0.0, 1, {"train__warmup_from_zero": True, "train__warmup_rollout_steps": 0}, True),
    ],
)
def test_a_rate_of_zero_is_found(rate: float, step: int, knobs: dict[str, Any], found: bool) -> None:
    """But where the configuration has it so."""
    assert names(loss.learning_rate(rate, step, config(**knobs))) == (["learning_rate"] if found else [])


# --- gaps -----------------------------------------------------------------------------------------


def test_gaps_are_of_the_loss_tokens_of_fresh_rows() -> None:
    """A group of an older version has no say."""
    groups = two_groups()
    responses = [replace(r.response, token_versions=((4, r.response.num_tokens),)) for r in groups[1].rollouts]
    older = [replace(r, response=other) for r, other in zip(groups[1].rollouts, responses, strict=True)]
    groups = (groups[0], replace(groups[1], rollouts=tuple(older)))
    it = made(groups)
    assert gap.fresh_rows(groups, 0) == [0, 1, 2, 3]
    off = it.batch.engine_logprobs + 0.5
    found = gap.gaps(it.batch, off, gap.fresh_rows(groups, 0))
    assert found.tolist() == pytest.approx([0.5] * int(it.batch.loss_mask[:4].sum()))
    assert len(gap.gaps(it.batch, off, gap.fresh_rows(groups, 9))) == 0


@pytest.mark.parametrize(
    ("most", "rows_taken"), [(1, [1]), (5, [1]), (6, [1, 2]), (8, [1, 2, 3]), (10, [1, 2, 3]), (11, [1, 2, 3, 4])]
)
def test_a_probe_holds_few_tokens_and_at_least_one_row(most: int, rows_taken: list[int]) -> None:
    """Rows without loss tokens are no use."""
    it = made()
    mask = it.batch.loss_mask.clone()
    mask[0] = False
    batch = replace(it.batch, loss_mask=mask)
    assert gap.probe_rows(batch, range(8), most) == rows_taken
    assert gap.probe_rows(batch, [0]) == []


@pytest.mark.parametrize(("count", "place"), [(1, 1), (999, 999), (1000, 999), (1001, 1000), (10000, 9990)])
def test_the_percentile_is_an_order_statistic(count: int, place: int) -> None:
    """The smallest value that 99.9 % keep to; NaN is the largest."""
    values = torch.arange(1, count + 1, dtype=torch.float64)[torch.randperm(count)]
    assert gap.percentile(values) == place
    assert math.isnan(gap.percentile(torch.tensor([1.0, math.nan], dtype=torch.float64)))


def test_gaps_over_their_bound_are_found() -> None:
    """Absolute at first, then by what was recorded, with a least."""
    small = torch.full((10,), 0.009, dtype=torch.float64)
    assert gap.first_gap(small, gap.FLOAT32) == []
    assert names(gap.first_gap(small + 0.002, gap.FLOAT32)) == ["engine_gap"]
    assert names(gap.first_gap(small * math.nan, gap.FLOAT32)) == ["engine_gap"]
    assert gap.first_gap(small + 0.1, gap.BFLOAT16) == []
    assert gap.later_gap(0.00099, 1e-6, gap.FLOAT32) == []  # 4 * 0.00025
    assert names(gap.later_gap(0.00101, 1e-6, gap.FLOAT32)) == ["engine_gap"]
    assert gap.later_gap(0.0039, 1e-3, gap.FLOAT32) == []
    assert gap.later_gap(0.0041, 1e-3, gap.FLOAT32)[0].bound == pytest.approx(0.004)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0, 2.0])
def test_bounds_grow_as_the_temperature_falls(temperature: float) -> None:
    """It divides the logits, and with them what they differ by."""
    scale = max(1.0, 1 / temperature)
    for dtype, base in ((torch.float32, gap.FLOAT32), (torch.bfloat16, gap.BFLOAT16)):
        bounds = gap.Bounds.of(dtype, temperature)
        assert bounds.first == pytest.approx(base.first * scale)
        assert bounds.rounding == pytest.approx(base.rounding * scale)


@pytest.mark.parametrize(
    ("knobs", "seen"),
    [({}, True), ({"train__adam_eps": 1e3}, False), ({"train__max_grad_norm": 1e-12}, False)],
)
def test_an_update_that_nobody_could_see_is_not_asked_for(knobs: dict[str, Any], seen: bool) -> None:
    """AdamW's eps over the gradient, or a gradient that clipping makes that small."""
    standing = weights.Standing.of([("a", torch.full((1000,), 0.02), True)])
    assert weights.should_move(standing, GOOD, 1e-6, config(**knobs)) is seen


def test_ratios_are_one() -> None:
    """Exactly where both passes are the same, else to rounding."""
    assert gap.ratio_one(0.0, exact=True, bounds=gap.FLOAT32) == []
    assert names(gap.ratio_one(1e-9, exact=True, bounds=gap.FLOAT32)) == ["ratio_one"]
    assert gap.ratio_one(9e-5, exact=False, bounds=gap.FLOAT32) == []
    assert names(gap.ratio_one(2e-4, exact=False, bounds=gap.FLOAT32)) == ["ratio_one"]
    assert names(gap.ratio_one(math.nan, exact=False, bounds=gap.BFLOAT16)) == ["ratio_one"]


@pytest.mark.parametrize(
    ("device", "updates", "emptied", "same"),
    [("cpu", 1, False, True), ("cuda", 1, False, False), ("cpu", 2, False, False), ("cpu", 1, True, False)],
)
def test_when_two_passes_have_the_same_bits(device: str, updates: int, emptied: bool, same: bool) -> None:
    """An update leaves rows without loss tokens out, which cuts the others otherwise."""
    batch = made().batch
    batch = replace(batch, loss_mask=batch.loss_mask & (torch.arange(8) > 0).unsqueeze(1)) if emptied else batch
    assert gap.same_bits(batch, torch.device(device), updates) is same


# --- weights --------------------------------------------------------------------------------------


def engine(*, tied: bool = False, dtype: torch.dtype = torch.float32) -> TorchEngine:
    """Of the tiny model."""
    return TorchEngine(tiny.model(tied=tied).to(dtype), eos_ids=[EOS], slots=8, max_tokens=32)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_engine_tells_the_weights_it_decodes_with(tied: bool, dtype: torch.dtype) -> None:
    """Bit for bit in its own type, packed ones too; each that is left out is found by its name."""
    built = engine(tied=tied, dtype=dtype)
    fresh = {name: weight + 0.01 for name, weight in tiny.model(1, tied=tied).named_parameters()}
    handed = weights.Handed(fresh.items())
    built.load_weights(1, handed)
    samples = handed.samples()
    assert weights.held(samples, built.weight_samples()) == []
    before = dict(tiny.model(2, tied=tied).named_parameters())
    for name in fresh:
        built.load_weights(1, ({**fresh, name: before[name]}).items())
        (found,) = weights.held(samples, built.weight_samples())
        assert name in found.message
        assert found.check == "engine_weights"


def test_packed_weights_are_read_where_they_are_decoded_from() -> None:
    """A blocked copy that is not renewed is found, though the plain weight is the new one."""
    built = engine(tied=True)
    inner: EngineWeights = built._weights
    if not inner.packed:
        pytest.skip("this machine packs nothing")
    fresh = dict(tiny.model(1, tied=True).named_parameters())
    handed = weights.Handed(fresh.items())
    built.load_weights(1, handed)
    name = "model.embed_tokens.weight"  # held twice: for looking up, and blocked for the head
    assert [own for own, _ in built.weight_samples()].count(name) == 2
    (linear,) = inner._packed[name]
    linear.take(tiny.model(3, tied=True).get_parameter(name))
    assert [one.value for one in weights.held(handed.samples(), built.weight_samples())] == [1.0]


def test_weights_that_nobody_takes_are_looked_at_all_the_same() -> None:
    """An engine that ignores what it is given."""
    handed = weights.Handed({"a": torch.ones(3), "b": torch.ones(2, 8)}.items())
    next(iter(handed))
    assert {name: tuple(sample.shape) for name, sample in handed.samples().items()} == {"a": (3,), "b": (2, 4)}
    assert weights.held(handed.samples(), [("c", torch.ones(1))])[0].value == 1.0
    assert weights.Handed({"a": torch.ones(3)}.items(), keep=False).samples() == {}


@pytest.mark.parametrize("shape", [(5,), (7, 3), (3, 16), (2, 3, 9), (4, 0)])
def test_samples_are_columns(shape: tuple[int, ...]) -> None:
    """Of the last dimension; all of a vector."""
    weight = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    sample = weight_sample(weight)
    assert sample.shape[:-1] == weight.shape[:-1]
    assert sample.shape[-1] <= max(4, shape[-1] if len(shape) == 1 else 4)


def test_a_policy_that_is_handed_over_again_is_found() -> None:
    """Only after updates that moved it."""
    one, other = {"a": torch.ones(2)}, {"a": torch.zeros(2)}
    assert names(weights.unmoved(one, one, moved=True)) == ["engine_weights"]
    assert weights.unmoved(one, one, moved=False) == weights.unmoved(None, one, moved=True) == []
    assert weights.unmoved(one, other, moved=True) == []


GOOD = {"grad/norm": 0.5, "grad/nonfinite": 0.0}


@pytest.mark.parametrize(
    ("trained", "others", "metrics", "rate", "found"),
    [
        (1.0, 0.0, GOOD, 1e-6, 0),
        (0.0, 0.0, GOOD, 1e-6, 1),
        (0.0, 0.0, GOOD, 0.0, 0),  # told by learning_rate
        (0.0, 0.0, {"grad/norm": 0.0}, 1e-6, 0),  # no loss tokens
        (0.0, 0.0, {"grad/norm": 1e-12}, 1e-6, 0),  # swallowed by eps
        (0.0, 0.0, GOOD, 1e-9, 0),  # rounded away beside 0.02
        (0.0, 0.0, {"grad/norm": math.nan, "grad/nonfinite": 1.0}, 1e-6, 0),
        (1.0, 0.0, {"grad/norm": math.nan, "grad/nonfinite": 1.0}, 1e-6, 1),
        (1.0, 1.0, GOOD, 1e-6, 1),
        (0.0, 1.0, GOOD, 1e-6, 2),
        (math.nan, 0.0, GOOD, 1e-6, 0),
    ],
)
def test_what_an_update_moves(
    trained: float, others: float, metrics: dict[str, float], rate: float, found: int
) -> None:
    """Trained weights alone, and some of them."""

    def standing(a: float, b: float) -> weights.Standing:
        named = (("a", torch.full((100,), 0.02 + a), True), ("b", torch.full((3, 3), b), False))
        return weights.Standing.of(named)

    got = weights.moved(standing(0.0, 0.0), standing(trained, others), metrics, rate, config())
    assert [one.check for one in got] == ["trained_weights"] * found


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampled", "updates", "kept"),
    [
        (None, 0, [(1, "sync", 0), (2, "update", 2), (2, "sync", 0)]),
        (3, 0, [(1, "sync", 0), (2, "update", 2), (2, "sync", 0), (3, "sampling", 0)]),
        (3, 1, [(1, "sync", 0), (2, "update", 2), (2, "sync", 0), (3, "sampling", 0), (3, "update", 1)]),
    ],
)
def test_findings_past_a_checkpoint_are_cut(
    tmp_path: Path, sampled: int | None, updates: int, kept: list[tuple[int, str, int]]
) -> None:
    """What a resume will find again goes; a step that was left between its updates keeps what was found until then."""
    places = [*kept[:3], (3, "sampling", 0), (3, "update", 1), (3, "update", 2), (3, "sync", 0), (4, "sampling", 0)]
    helpers.write_lines(tmp_path, [{"step": s, "phase": p, "update": u} for s, p, u in places])
    run = RunDirectory(tmp_path)
    run.cut_after(2, sampled=sampled, updates=updates)
    lines = [helpers.json.loads(line) for line in (tmp_path / CHECKS_FILE).read_text().splitlines()]
    assert [(line["step"], line["phase"], line["update"]) for line in lines] == kept


def test_a_run_without_findings_has_no_file(tmp_path: Path) -> None:
    """Nor does a cut make one."""
    RunDirectory(tmp_path).cut_after(2)
    assert not (tmp_path / CHECKS_FILE).exists()
