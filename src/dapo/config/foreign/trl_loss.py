"""The objective of a TRL configuration: advantages, clipping, averaging, KL, importance weights."""

from __future__ import annotations

from dapo.config.foreign.report import Account
from dapo.errors import ConfigError

REDUCTIONS = {
    "grpo": "sequence",
    "bnpo": "minibatch",
    "dr_grpo": "constant",
    "dapo": "minibatch",
    "cispo": "minibatch",
    "luspo": "constant",
}
ADVANTAGES = {"group": "group", "true": "group", "batch": "batch_std", "none": "mean", "false": "mean"}


def loss(account: Account) -> None:
    """Puts the section `algorithm`."""
    _advantage(account)
    objective = _objective(account)
    _clipping(account, objective)
    _kl(account)
    _importance(account)
    weight = account.number("entropy_coef") or 0.0
    account.put("algorithm.entropy_coef", weight, "entropy_coef")
    if weight and account.text("loss_type") not in ("dapo", "cispo"):
        account.differs("entropy_coef", "TRL's bonus is a token mean of each pass; dapo's is averaged as the loss is")


def _advantage(account: Account) -> None:
    scale, many = account.text("scale_rewards").lower(), account.text("multi_objective_aggregation")
    account.same("scale_rewards", "multi_objective_aggregation")
    if scale not in ADVANTAGES:
        raise ConfigError(f"scale_rewards = {scale}: TRL has group, batch and none; correct it")
    account.put("algorithm.advantage", ADVANTAGES[scale], "scale_rewards")
    account.put("algorithm.advantage_eps", 1e-4, "scale_rewards")
    if many != "sum_then_normalize":
        account.lacks("multi_objective_aggregation", "each reward normalised on its own; dapo normalises their sum")


def _objective(account: Account) -> str:
    kind, level = account.text("loss_type"), account.text("importance_sampling_level")
    account.same("loss_type", "importance_sampling_level")
    if kind not in REDUCTIONS:
        account.lacks("loss_type", f"the loss {kind}; the recipe has DAPO's in its place")
    account.put("algorithm.reduction", REDUCTIONS.get(kind, "minibatch"), "loss_type")
    if kind == "dr_grpo":
        account.put("algorithm.constant_tokens", account.count("max_completion_length"), "max_completion_length")
    elif kind == "luspo":
        account.put("algorithm.constant_tokens", 1, "loss_type")
    elif kind == "bnpo":
        account.differs("loss_type", "TRL takes the token mean of each forward pass; dapo that of the whole mini-batch")
    elif kind in ("dapo", "cispo") and account.recipe["train.updates_per_step"] > 1:
        account.differs(
            "loss_type",
            "TRL divides by the tokens of the generation over its updates; dapo by those of each mini-batch",
        )
    if account.flag("mask_truncated_completions") and kind in ("grpo", "dr_grpo", "luspo"):
        account.differs(
            "mask_truncated_completions", "TRL counts masked responses in the mean over responses; dapo does not"
        )
    objective = "cispo" if kind == "cispo" else "gspo" if level == "sequence" else "dapo"
    if kind == "cispo" and level == "sequence":
        account.lacks(
            "importance_sampling_level", "CISPO with ratios of whole responses; the recipe has those of tokens"
        )
    source = "importance_sampling_level" if objective == "gspo" else "loss_type"
    account.put("algorithm.objective", objective, source)
    return objective


def _clipping(account: Account, objective: str) -> None:
    low = account.number("epsilon")
    high = account.number("epsilon_high")
    account.same("epsilon", "epsilon_high", "delta")
    source = "epsilon" if high is None else "epsilon_high"
    high = low if high is None else high
    delta = account.number("delta")
    if low is None or high is None:
        raise ConfigError("epsilon = null: a number is wanted; correct it")
    if objective == "cispo":
        if high <= 1:
            raise ConfigError(
                f"{source} = {high:g}: with loss_type = cispo TRL bounds the weight by it, and dapo by 1 + clip_high, "
                "so it has to be over 1 (ScaleRL: 5); add epsilon_high=VALUE"
            )
        account.put("algorithm.clip_low", "off", "loss_type")
        account.put("algorithm.clip_high", round(high - 1, 12), source)
        if account.has("epsilon"):
            account.differs("epsilon", "TRL does not read it with loss_type = cispo, which has no lower bound")
    else:
        account.put("algorithm.clip_low", "off" if low >= 1 else low, "epsilon")
        account.put("algorithm.clip_high", high, source)
    _delta(account, objective, delta, high)


def _delta(account: Account, objective: str, delta: float | None, high: float) -> None:
    """TRL bounds the unclipped ratio by delta. Where delta >= 1 + epsilon_high, that is the dual clip.

    For A < 0 TRL's loss is |A| max(min(r, delta), clip(r)) and dapo's |A| min(max(r, 1 - low), c): equal with
    c = delta. For A > 0 clip(r) is the smaller one anyway.
    """
    if delta is None:
        return
    if objective != "dapo":
        account.lacks(
            "delta", f'a bound of the ratio; dapo has it for objective = "dapo" alone, and this is {objective}'
        )
    elif delta >= 1 + high and delta > 1:
        account.put("algorithm.clip_dual", delta, "delta")
    else:
        account.lacks("delta", "a bound of the ratio under 1 + epsilon_high; dapo's clip_dual is not the same there")


def _kl(account: Account) -> None:
    beta = account.number("beta") or 0.0
    account.same("beta", "use_bias_correction_kl")
    if beta < 0:
        account.lacks("beta", "a negative KL weight; the recipe has no KL")
    if beta <= 0:
        return
    account.put("algorithm.kl.place", "loss", "beta")
    account.put("algorithm.kl.coef", beta, "beta")
    account.put("algorithm.kl.estimator", "k3", "beta")
    if account.flag("use_bias_correction_kl"):
        account.differs(
            "use_bias_correction_kl", "TRL multiplies the KL by the ratio, which changes its gradient; dapo not"
        )


def _importance(account: Account) -> None:
    prefix, older = "vllm_importance_sampling_", "vllm_importance_sampling_cap"
    keys = [prefix + leaf for leaf in ("correction", "mode", "clip_max")]
    account.same("use_vllm", older, *keys)
    if not account.flag("use_vllm") or not account.flag(keys[0]):
        return
    mode, source = account.text(keys[1]), older if account.value(older) is not None else keys[2]
    cap = account.number(source)
    if mode not in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        raise ConfigError(
            f"{keys[1]} = {mode}: TRL has token_truncate, token_mask, sequence_truncate and sequence_mask"
        )
    if cap is None:
        account.lacks(keys[2], "importance weights without an upper bound; dapo's have one: algorithm.importance_cap")
        return
    account.put("algorithm.importance_cap", cap, source)
    account.put("algorithm.importance_level", mode.partition("_")[0], keys[1])
    if mode.endswith("_mask"):
        account.differs(keys[1], "TRL drops what has a weight over the bound; dapo keeps it, with the bound as weight")
