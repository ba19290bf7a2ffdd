"""The objective of a verl configuration: advantages, clipping, KL, averaging, importance weights."""

from __future__ import annotations

from dapo.config.foreign.report import Account
from dapo.config.foreign.verl_keys import ACTOR, CORRECTION, DEFAULTS

LOSS_MODE, POLICY = ACTOR + "policy_loss.loss_mode", ACTOR + "policy_loss."
ESTIMATORS = {
    "grpo": "group",
    "grpo_vectorized": "group",
    "rloo": "leave_one_out",
    "rloo_vectorized": "leave_one_out",
    "reinforce_plus_plus": "batch",
    "reinforce_plus_plus_baseline": "batch_std",
}
OTHER_ESTIMATORS = {
    "gae": "advantages from a learned value function (PPO)",
    "remax": "the reward of a greedy response as baseline",
    "opo": "a baseline weighted by length",
    "gpg": "GPG's advantages",
    "grpo_passk": "an advantage for the best response alone",
}
OBJECTIVES = {"vanilla": "dapo", "gspo": "gspo", "cispo": "cispo", "clip_cov": "clip_cov", "kl_cov": "kl_cov"}
KL = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}


def loss(account: Account) -> None:
    """Puts the section `algorithm`."""
    _advantage(account)
    objective = _objective(account)
    _clipping(account, objective)
    _averaging(account, objective)
    _kl(account)
    _importance(account)
    entropy = ACTOR + "entropy_coeff"
    account.put("algorithm.entropy_coef", account.number(entropy) or 0.0, entropy)


def _advantage(account: Account) -> None:
    key, by_std = "algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo"
    estimator = account.text(key)
    account.same(key, by_std, "algorithm.gamma")
    if estimator in ESTIMATORS:
        ours = ESTIMATORS[estimator]
        if ours == "group" and not account.flag(by_std):
            account.put("algorithm.advantage", "mean", by_std)
        else:
            account.put("algorithm.advantage", ours, key)
    else:
        what = OTHER_ESTIMATORS.get(estimator, f"the estimator {estimator}")
        account.lacks(key, f'{what}; dapo has none of it, and the recipe has advantage = "group" (GRPO) in its place')
    if estimator == "reinforce_plus_plus_baseline":
        account.differs(key, "verl divides by the standard deviation over tokens; dapo over the step's rewards")
    if account.number("algorithm.gamma") != 1.0 and estimator in ("gae", "reinforce_plus_plus"):
        account.lacks("algorithm.gamma", "discounting along the response; dapo has none (gamma = 1)")


def _objective(account: Account) -> str:
    mode = account.text(LOSS_MODE)
    objective = OBJECTIVES.get(mode, "dapo")
    account.same(LOSS_MODE)
    if mode in OBJECTIVES:
        account.put("algorithm.objective", objective, LOSS_MODE)
    else:
        account.lacks(LOSS_MODE, f'the loss {mode}; the recipe has objective = "dapo" in its place')
    covariance = {
        "clip_cov": {"fraction": "clip_cov_ratio", "low": "clip_cov_lb", "high": "clip_cov_ub"},
        "kl_cov": {"fraction": "kl_cov_ratio", "kl_coef": "ppo_kl_coef"},
    }
    for owner, keys in covariance.items():
        for ours, theirs in keys.items():
            account.same(POLICY + theirs)
            if owner == mode:
                account.put(f"algorithm.covariance.{ours}", account.number(POLICY + theirs), POLICY + theirs)
            elif account.has(POLICY + theirs) and account.value(POLICY + theirs) != DEFAULTS[POLICY + theirs]:
                account.differs(POLICY + theirs, f"belongs to loss_mode = {owner}; verl does not read it here")
    if mode in covariance:
        more = "; verl clips no ratio with it, and its KL is |log ratio|" if mode == "kl_cov" else ""
        how = (
            f"verl picks tokens in each micro-batch by its present policy; dapo in the mini-batch by the old one{more}"
        )
        account.differs(LOSS_MODE, how)
    return objective


def _clipping(account: Account, objective: str) -> None:
    plain, read = ACTOR + "clip_ratio", False
    for ours, theirs in (("clip_low", "clip_ratio_low"), ("clip_high", "clip_ratio_high")):
        bound = account.number(ACTOR + theirs)
        account.same(ACTOR + theirs)
        read = read or bound is None
        source = ACTOR + theirs if bound is not None else plain
        value = account.number(source)
        unbounded = ours == "clip_low" and value is not None and value >= 1  # a ratio is never below 1 - 1
        account.put(f"algorithm.{ours}", "off" if unbounded else value, source)
    account.same(plain)
    if not read and account.has(plain) and account.number(plain) != DEFAULTS[plain]:
        account.differs(
            plain, "verl reads it only where clip_ratio_low or clip_ratio_high is null, so it has no effect"
        )
    dual = ACTOR + "clip_ratio_c"
    if objective == "dapo":
        account.put("algorithm.clip_dual", account.number(dual), dual)
    else:
        account.same(dual)
        if account.has(dual):
            account.differs(dual, f"verl does not read it with loss_mode = {objective}")


def _averaging(account: Account, objective: str) -> None:
    key, scale = ACTOR + "loss_agg_mode", ACTOR + "loss_scale_factor"
    mode = "seq-mean-token-mean" if objective == "gspo" else account.text(key)
    account.same(key, scale)
    if objective == "gspo" and account.has(key) and account.text(key) != mode:
        account.differs(key, "with loss_mode = gspo verl always takes seq-mean-token-mean, and so does the recipe")
    names = {"token-mean": "minibatch", "seq-mean-token-mean": "sequence"}
    names |= dict.fromkeys(("seq-mean-token-sum", "seq-mean-token-sum-norm"), "constant")
    if mode not in names:
        account.lacks(key, f"the averaging {mode}; the recipe has the token mean of the mini-batch")
        return
    account.put("algorithm.reduction", names[mode], LOSS_MODE if objective == "gspo" and not account.has(key) else key)
    if mode == "token-mean":
        account.differs(
            key,
            "verl 4f80e465 takes the token mean of each micro-batch, then their mean weighted by responses, which "
            'depends on the cut (reduction = "microbatch" does the same); dapo of the mini-batch, like later cores',
        )
    elif mode == "seq-mean-token-sum":
        account.put("algorithm.constant_tokens", 1, key)
    elif mode == "seq-mean-token-sum-norm":
        given = account.value(scale) is not None
        source = scale if given else "data.max_response_length"
        account.put("algorithm.constant_tokens", account.count(source), source)
        account.differs(key, "verl divides the sum of a micro-batch by L alone; dapo by L and the number of responses")


def _kl(account: Account) -> None:
    in_loss, in_reward = ACTOR + "use_kl_loss", "algorithm.use_kl_in_reward"
    loss_keys = (ACTOR + "kl_loss_coef", ACTOR + "kl_loss_type")
    reward_keys = ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty", "algorithm.kl_ctrl.type")
    account.same(in_loss, in_reward, *loss_keys, *reward_keys)
    both = account.flag(in_loss) and account.flag(in_reward)
    if account.flag(in_loss):
        _kl_place(account, "loss", in_loss, *loss_keys)
        if both:
            account.lacks(in_reward, "KL in the reward beside the one in the loss; dapo has one place, here the loss")
    elif account.flag(in_reward):
        _kl_place(account, "reward", in_reward, *reward_keys[:2])
        if account.text(reward_keys[2]) != "fixed":
            account.lacks(reward_keys[2], "a KL weight steered towards a target; dapo's is fixed at kl_coef")


def _kl_place(account: Account, place: str, switch: str, coefficient: str, kind: str) -> None:
    weight, name = account.number(coefficient) or 0.0, account.text(kind)
    if weight <= 0:
        if weight < 0:
            account.lacks(coefficient, "a negative KL weight; the recipe has no KL")
        return
    straight = name.endswith("+") and name not in ("k2+", "mse+")
    estimator = "k2" if straight else KL.get(name.removesuffix("+"))
    if estimator is None:
        account.lacks(kind, f"the KL estimator {name}; the recipe has no KL")
        account.lacks(switch, f"left out, since dapo has no estimator {name}")
        return
    account.put("algorithm.kl.place", place, switch)
    account.put("algorithm.kl.coef", weight, coefficient)
    account.put("algorithm.kl.estimator", estimator, kind)
    if straight:
        account.differs(
            kind, f"{name} shows one estimate and has k2's gradient; the recipe has k2, whose gradient is the same"
        )


def _importance(account: Account) -> None:
    weights, cap = CORRECTION + "rollout_is", CORRECTION + "rollout_is_threshold"
    bypass, older = CORRECTION + "bypass_mode", ACTOR + "tis_imp_ratio_cap"
    account.same(weights, cap, bypass, older)
    level, bound = account.text(weights), account.number(older) or 0.0
    if account.flag(bypass):
        account.put("algorithm.old_logprobs", "engine", bypass)
        if level:
            account.lacks(
                weights, "importance weights beside bypass_mode; with the engine's log-probs they are 1 in dapo"
            )
    elif level in ("token", "sequence"):
        account.put("algorithm.importance_cap", account.number(cap), cap)
        account.put("algorithm.importance_level", level, weights)
    elif level:
        account.lacks(weights, f"importance weights of level {level}")
    elif bound > 0:
        account.put("algorithm.importance_cap", bound, older)
