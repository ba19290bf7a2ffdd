"""What a self-check returns, and the table of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dapo.config.checks import ChecksConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that does not hold.

    check: a name of CHECKS. message: what was found. value: what was measured. bound: what it may be at most.
    """

    check: str
    message: str
    value: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row of the table.

    bound: in words. meaning: what is likely wrong when it does not hold. cost: what it looks at.
    """

    bound: str
    meaning: str
    cost: str


CHECKS: Mapping[str, Check] = {
    "engine_gap": Check(
        bound="mean |log-prob gap| over the loss tokens of the present policy: 0.01 nats (bfloat16: 0.2) at the first "
        "step; then 4 times that step's 99.9th percentile, which counts as 0.00025 (0.025) at least; all divided by a "
        "temperature below 1",
        meaning="labels shifted by a token, a temperature on one side alone, or other weights than those that sampled",
        cost='a pass over the log-probs; with old_logprobs = "engine" some 128 tokens in the learner, once a run',
    ),
    "ratio_one": Check(
        bound="mean |log ratio| of a step's first update: 0 where old log-probs came from the same micro-batches in "
        "the same process on a CPU, else 0.0001 nats (bfloat16: 0.05), divided by a temperature below 1",
        meaning="the update's forward pass is not the one that gave old log-probs: dropout, another temperature, "
        "weights that moved in between",
        cost="a metric of the update",
    ),
    "engine_weights": Check(
        bound="0 weights of which 4 columns, as the engine decodes with them, are not what was handed over; and after "
        "updates that moved weights others are handed over than before",
        meaning="rollouts come from an older policy, or from one that was never trained: load_weights lost a weight, "
        "or adapters were not merged",
        cost="4 columns of each weight; of packed ones by a product with 4 rows",
    ),
    "eos_mask": Check(
        bound="0 responses",
        meaning="the policy is not taught to end, or is taught after its end",
        cost="a pass over the token ids",
    ),
    "response_mask": Check(
        bound="0 tokens",
        meaning="prompt, padding, a tool's words or text after the end are trained on, or a response is not",
        cost="a pass over the token ids",
    ),
    "filter": Check(
        bound="0 groups",
        meaning="groups are chosen by something else, such as the shaped reward, or not in the order of draws",
        cost="counting the right responses",
    ),
    "groups": Check(
        bound="0 rows or groups out of place",
        meaning="responses stand beside another prompt or in another group, so that their advantages are another's",
        cost="a comparison of prompts",
    ),
    "advantages": Check(
        bound='|mean over a group| at most 0.0001 of its largest (advantage = "batch" aside); not all 0 where shaped '
        "rewards differ (unless rewards are clipped or normalised)",
        meaning="advantages are taken over other rows than the group's, or the signal is lost",
        cost="a pass over the rewards",
    ),
    "reduction": Check(
        bound="row weights within 1e-9, relatively; where the first update's loss is known from advantages alone "
        "(objectives dapo and gspo), within its rounding and that of the ratios",
        meaning="a mean over samples stands in place of the mean over tokens, or the other way round",
        cost="a pass over the lengths, a sum over the mask",
    ),
    "trained_weights": Check(
        bound="some trained weight moves, where AdamW's step is over what float32 rounds away; none moves in a skipped "
        "update; 0 others ever move",
        meaning="the optimiser holds other tensors than the model, or a base under adapters is trained",
        cost="64 numbers of each weight, before and after the update",
    ),
    "learning_rate": Check(
        bound="over 0, but at step 1 under train.warmup_from_zero",
        meaning="the update does nothing",
        cost="a metric of the update",
    ),
    "finite": Check(
        bound="0 numbers that are not finite",
        meaning="weights or the forward pass have diverged",
        cost="a pass over the log-probs",
    ),
    "finite_updates": Check(
        bound="loss and gradient norm are finite",
        meaning="training diverges: a lower learning rate, or algorithm.log_ratio_clamp",
        cost="metrics of the update",
    ),
    "double_bos": Check(
        bound="0 prompts of kept groups",
        meaning="the chat template writes the BOS and the tokenizer another: prompts unlike those of pretraining",
        cost="two tokens a prompt",
    ),
}


def default_of(name: str) -> str:
    """The setting that a check has unless it is changed."""
    return str(ChecksConfig.model_fields[name].default)


def what(name: str) -> str:
    """What a check holds the run to, in one sentence."""
    return str(ChecksConfig.model_fields[name].description)
