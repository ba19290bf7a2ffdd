"""The neighbours of DAPO: other advantages, objectives and weights, as pure tensor arithmetic.

Each has its equation and its paper. What they share with DAPO (group advantages, the clipped
objective, the reductions, the masks) is in `algorithm`, whose laws hold here too: entry [b, t]
concerns token t, values off the mask are arbitrary, and no function divides a loss. What is
chosen over a whole mini-batch (`token_covariance`) is fixed before it is cut into micro-batches.

Shape legend (suffixes): P prompts, G responses of each, B rows (responses), T tokens of a row.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dapo.algorithm import (
    SAME_REWARD,
    ObjectiveInputs,
    clipped_loss,
    dapo_objective,
    masked,
    masked_log_ratio,
    row_mean,
)

# --- advantages -----------------------------------------------------------------------------------


def mean_advantages(rewards_PG: Tensor) -> Tensor:
    """Dr.GRPO (arXiv 2503.20783): A = R - mean of the group, not divided by its spread. f32 [P, G].

    >>> mean_advantages(torch.tensor([[1., 1., 1., -1.]])).tolist()
    [[0.5, 0.5, 0.5, -1.5]]
    """
    rewards_PG = rewards_PG.double()
    return (rewards_PG - rewards_PG.mean(dim=1, keepdim=True)).float()


def leave_one_out_advantages(rewards_PG: Tensor) -> Tensor:
    """RLOO (arXiv 2402.14740): A_i = R_i - mean of the group's other rewards = G / (G - 1) (R_i - mean). f32 [P, G].

    Raises:
        ValueError: a group of one, which has no others.

    >>> leave_one_out_advantages(torch.tensor([[1., -1., -1.]])).tolist()
    [[2.0, -1.0, -1.0]]
    """
    size = rewards_PG.shape[1]
    if size < 2:
        raise ValueError("a group of 1 has no other rewards to compare with")
    rewards_PG = rewards_PG.double()
    others_PG = (rewards_PG.sum(dim=1, keepdim=True) - rewards_PG) / (size - 1)
    return (rewards_PG - others_PG).float()


def batch_std_advantages(rewards_B: Tensor, draw_B: Tensor, *, std_correction: int, eps: float) -> Tensor:
    """Lite PPO (arXiv 2508.08221): A = (R - mean of its group) / (std of all rewards + eps). f32 [B].

    Args:
        rewards_B: shaped rewards of the whole step.
        draw_B: i64, the group of each row; groups may differ in size.
        std_correction: c in std = sqrt(sum (R - mean)^2 / (B - c)).
        eps: >= 0.

    Returns:
        Exactly 0 everywhere when all rewards lie within 1e-6 of each other.
    """
    rewards_B = rewards_B.double()
    if not _differ(rewards_B):
        return torch.zeros_like(rewards_B).float()
    _, group_B = torch.unique(draw_B, return_inverse=True)
    groups = int(group_B.max()) + 1
    zeros_P = torch.zeros(groups, dtype=torch.float64)
    sizes_P = zeros_P.index_add(0, group_B, torch.ones_like(rewards_B))
    mean_P = zeros_P.index_add(0, group_B, rewards_B) / sizes_P
    return ((rewards_B - mean_P[group_B]) / (_std(rewards_B, std_correction) + eps)).float()


def rewards_to_go(rewards_B: Tensor, costs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """REINFORCE++ (arXiv 2501.03262): what is still to come at token t, R - sum of the costs of tokens i >= t.

    The response's reward comes at its end, a cost (coef * KL) at every token; nothing is discounted.

    Returns:
        float64 [B, T]; 0 outside the mask.
    """
    costs_BT = masked(costs_BT.double(), mask_BT)
    ahead_BT = costs_BT.flip(1).cumsum(dim=1).flip(1)
    return masked(rewards_B.double().unsqueeze(1) - ahead_BT, mask_BT)


def batch_advantages(returns_BT: Tensor, mask_BT: Tensor, *, std_correction: int, eps: float) -> Tensor:
    """REINFORCE++ (arXiv 2501.03262): (x - mean) / (std + eps) over all masked tokens of the step. f32 [B, T].

    Returns:
        0 outside the mask; exactly 0 everywhere when the values lie within 1e-6 of each other.
    """
    values = returns_BT[mask_BT].double()
    result_BT = torch.zeros(returns_BT.shape, dtype=torch.float64)
    if _differ(values):
        result_BT[mask_BT] = (values - values.mean()) / (_std(values, std_correction) + eps)
    return result_BT.float()


def _differ(values: Tensor) -> bool:
    return len(values) > 0 and bool(values.max() - values.min() > SAME_REWARD)


def _std(values: Tensor, correction: int) -> Tensor:
    return ((values - values.mean()).square().sum() / (len(values) - correction)).sqrt()


def gae(rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438), for those who bring a value model.

    delta_t = r_t + gamma V_{t+1} - V_t;  A_t = delta_t + gamma lam A_{t+1};  V past a response's last
    token is 0. Tokens off the mask are stepped over: the next one on it is the successor.

    Args:
        rewards_BT: reward of each token.
        values_BT: V before each token.
        mask_BT: bool, the response's own tokens.
        gamma, lam: in [0, 1].

    Returns:
        (advantages_BT, returns_BT), float32 by way of float64; returns = advantages + values; 0 outside the mask.

    Raises:
        ValueError: gamma or lam outside [0, 1].
    """
    if not (0 <= gamma <= 1 and 0 <= lam <= 1):
        raise ValueError(f"gamma and lam must lie in [0, 1], got {gamma} and {lam}")
    rewards_BT, values_BT = masked(rewards_BT.double(), mask_BT), masked(values_BT.double(), mask_BT)
    advantages_BT = torch.zeros_like(values_BT)
    next_value_B = next_advantage_B = torch.zeros(len(values_BT), dtype=torch.float64, device=values_BT.device)
    for t in reversed(range(values_BT.shape[1])):
        here_B = mask_BT[:, t]
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        advantage_B = delta_B + gamma * lam * next_advantage_B
        advantages_BT[:, t] = torch.where(here_B, advantage_B, advantages_BT[:, t])
        next_value_B = torch.where(here_B, values_BT[:, t], next_value_B)
        next_advantage_B = torch.where(here_B, advantage_B, next_advantage_B)
    return advantages_BT.float(), (advantages_BT + values_BT).float()


# --- objectives -----------------------------------------------------------------------------------


def gspo_objective(
    inputs: ObjectiveInputs, *, clip_low: float | None, clip_high: float | None, log_ratio_clamp: float | None = None
) -> Tensor:
    """GSPO (arXiv 2507.18071): -min(s A, clip(s, 1-low, 1+high) A) with the ratio of the whole response,

    s = (pi_theta(y) / pi_old(y))^(1/|y|) = exp(mean over its loss tokens of log r). Every loss token of the
    response holds that value, so with reduction "sequence" the loss is the mean over responses.

    Args:
        inputs: see ObjectiveInputs.
        clip_low, clip_high: of the order 1e-4, because s hardly leaves 1.
        log_ratio_clamp: None, or the bound on |log s|.

    Returns:
        [B, T]; 0 outside the mask.
    """
    mask_BT = inputs.mask_BT
    log_ratio_B = row_mean(masked_log_ratio(inputs), mask_BT)
    if log_ratio_clamp is not None:
        log_ratio_B = log_ratio_B.clamp(-log_ratio_clamp, log_ratio_clamp)
    advantages_B = row_mean(inputs.advantages_BT, mask_BT)
    loss_B = clipped_loss(log_ratio_B, advantages_B, clip_low=clip_low, clip_high=clip_high)
    return masked(loss_B.unsqueeze(1).expand(mask_BT.shape), mask_BT)


def cispo_objective(
    inputs: ObjectiveInputs, *, clip_low: float | None, clip_high: float | None, log_ratio_clamp: float | None = None
) -> Tensor:
    """CISPO (MiniMax-M1, arXiv 2506.13585): -sg[clip(r, 1-low, 1+high)] A log pi_theta.

    The clipped ratio is a weight without gradient, so no token loses its gradient. At r = 1 it is REINFORCE.

    Returns:
        [B, T]; 0 outside the mask.
    """
    advantages_BT = masked(inputs.advantages_BT, inputs.mask_BT)
    log_ratio_BT = masked(masked_log_ratio(inputs, log_ratio_clamp).detach(), advantages_BT != 0)
    floor = None if clip_low is None else 1.0 - clip_low
    weight_BT = torch.exp(log_ratio_BT).clamp(floor, torch.inf if clip_high is None else 1.0 + clip_high)
    return -weight_BT * advantages_BT * masked(inputs.logprobs_BT, inputs.mask_BT)


def clip_cov_objective(
    inputs: ObjectiveInputs,
    *,
    clip_low: float | None,
    clip_high: float | None,
    clip_dual: float | None = None,
    log_ratio_clamp: float | None = None,
) -> Tensor:
    """Clip-Cov (arXiv 2505.22617): the clipped objective, without the tokens that `pick_clip_cov` picked.

    A picked token adds nothing, in value or gradient, and stays in the denominator.
    """
    if inputs.selected_BT is not None:
        inputs = replace(inputs, mask_BT=inputs.mask_BT & ~inputs.selected_BT)
    return dapo_objective(
        inputs, clip_low=clip_low, clip_high=clip_high, clip_dual=clip_dual, log_ratio_clamp=log_ratio_clamp
    )


def kl_cov_objective(inputs: ObjectiveInputs, *, kl_coef: float, log_ratio_clamp: float | None = None) -> Tensor:
    """KL-Cov (arXiv 2505.22617): -r A without clipping, plus coef * KL(pi_old || pi_theta) on picked tokens.

    The KL is estimated at tokens of pi_old by r - 1 - log r >= 0 (k3). The published code takes |log r|.
    """
    log_ratio_BT = masked_log_ratio(inputs, log_ratio_clamp)
    advantages_BT = masked(inputs.advantages_BT, inputs.mask_BT)
    loss_BT = -torch.exp(masked(log_ratio_BT, advantages_BT != 0)) * advantages_BT  # 0 * inf would be NaN
    if inputs.selected_BT is None:
        return loss_BT
    picked_BT = masked(log_ratio_BT, inputs.selected_BT)
    return loss_BT + kl_coef * (torch.expm1(picked_BT) - picked_BT)


# --- which tokens an entropy control picks --------------------------------------------------------


def token_covariance(logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """(log pi - mean) (A - mean) of each loss token, means over all of them (arXiv 2505.22617, Eq. 10).

    Tokens with a large value are those whose update takes most of the entropy.

    Returns:
        float64 [B, T]; 0 outside the mask.
    """
    result_BT = torch.zeros(mask_BT.shape, dtype=torch.float64)
    logprobs, advantages = logprobs_BT[mask_BT].double(), advantages_BT[mask_BT].double()
    result_BT[mask_BT] = (logprobs - logprobs.mean()) * (advantages - advantages.mean())
    return result_BT


def pick_clip_cov(
    covariance_BT: Tensor, mask_BT: Tensor, uniforms_BT: Tensor, *, fraction: float, low: float, high: float
) -> Tensor:
    """Clip-Cov's choice: at random among loss tokens with low < covariance < high.

    Args:
        covariance_BT: of `token_covariance`.
        mask_BT: bool, loss tokens.
        uniforms_BT: a random number of each token; the smallest are picked, so the rows' order doesn't matter.
        fraction: max(1, int(fraction * loss tokens)) are picked, or all candidates where there are fewer.
        low, high: the open interval.

    Returns:
        bool [B, T].
    """
    candidates_BT = mask_BT & (covariance_BT > low) & (covariance_BT < high)
    return _smallest(uniforms_BT.double(), candidates_BT, _count(mask_BT, fraction))


def pick_kl_cov(covariance_BT: Tensor, mask_BT: Tensor, *, fraction: float) -> Tensor:
    """KL-Cov's choice: the max(1, int(fraction * loss tokens)) loss tokens of largest covariance. bool [B, T]."""
    return _smallest(-covariance_BT.double(), mask_BT, _count(mask_BT, fraction))


def _count(mask_BT: Tensor, fraction: float) -> int:
    return max(1, int(fraction * int(mask_BT.sum())))


def _smallest(keys_BT: Tensor, among_BT: Tensor, count: int) -> Tensor:
    places = torch.nonzero(among_BT.flatten()).flatten()
    order = torch.argsort(keys_BT.flatten()[places], stable=True)[:count]
    picked = torch.zeros(among_BT.numel(), dtype=torch.bool)
    picked[places[order]] = True
    return picked.view(among_BT.shape)


# --- weights --------------------------------------------------------------------------------------


def sequence_importance_weights(
    old_logprobs_BT: Tensor, engine_logprobs_BT: Tensor, mask_BT: Tensor, cap: float
) -> Tensor:
    """Truncated weight of a whole response that another policy sampled: min(exp(sum of log p - log b), C), detached.

    p is the learner's policy at the step's start, b the engine's; the sum is over the response's loss tokens.

    Returns:
        [B, T]: the response's weight on its loss tokens, 1 outside the mask.
    """
    gap_B = masked((old_logprobs_BT - engine_logprobs_BT).detach(), mask_BT).sum(dim=1)
    weight_B1 = torch.exp(gap_B).clamp_max(cap).unsqueeze(1)
    return torch.where(mask_BT, weight_B1, torch.ones_like(weight_B1))
