"""All of DAPO as pure tensor arithmetic. No I/O, no config objects, no collectives.

Section and equation numbers are those of arXiv 2503.14476.

Shape legend (suffixes): P prompts, G responses of each, B rows (responses), T tokens of a row,
N tokens picked out of many rows, V vocabulary.

Alignment: entry [b, t] concerns token t given the tokens before it. Nothing here shifts.
Reduction: every loss is  sum_{b,t} weight_B[b] * mask_BT[b, t] * loss_BT[b, t].  The weights
(one over the denominator) come from `row_weights`, computed once for the whole mini-batch and
handed in, so a gradient does not depend on how the mini-batch is cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["minibatch", "group", "sequence", "microbatch", "constant"]

SAME_REWARD = 1e-6  # rewards of a group within this of each other are one value


# --- from logits to log-probabilities ------------------------------------------------------------


def token_logprobs(
    logits_NV: Tensor, token_ids_N: Tensor, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probability of given tokens, and the entropy of their distributions.

    log pi(y) = z_y / T - log sum_v exp(z_v / T);  H = -sum_v pi_v log pi_v.

    Args:
        logits_NV: logits that predict the tokens (already aligned with them); computed in float32.
        token_ids_N: i64, the tokens.
        temperature: T > 0, the one they were sampled with.
        entropy_gradient: whether the entropy carries one (for a bonus); costs another [N, V] tensor.

    Returns:
        (logprobs_N, entropy_N), float32; entropy in nats.

    >>> logprobs, entropy = token_logprobs(torch.zeros(1, 4), torch.tensor([2]))
    >>> round(logprobs.item(), 4), round(entropy.item(), 4)
    (-1.3863, 1.3863)
    """
    scaled_NV = logits_NV.float() / temperature
    log_z_N = torch.logsumexp(scaled_NV, dim=-1)
    logprobs_N = scaled_NV.gather(-1, token_ids_N.unsqueeze(-1)).squeeze(-1) - log_z_N
    if entropy_gradient:
        all_NV = scaled_NV - log_z_N.unsqueeze(-1)
        entropy_N = -(torch.exp(all_NV) * all_NV.clamp_min(torch.finfo(all_NV.dtype).min)).sum(-1)
        return logprobs_N, entropy_N
    with torch.no_grad():
        probs_NV = torch.exp(scaled_NV.detach() - log_z_N.detach().unsqueeze(-1))
        entropy_N = torch.special.entr(probs_NV).sum(-1)
    return logprobs_N, entropy_N


def collision(logits_NV: Tensor, temperature: float = 1.0) -> Tensor:
    """f32 [N]: sum_v pi_v^2, the chance that two draws are the same token.

    By it the norm of a log-probability's gradient over the logits: |d log pi_y / dz| = sqrt(1 - 2 pi_y + sum_v pi_v^2)
    (times 1 / T).

    >>> round(collision(torch.zeros(1, 4)).item(), 4)
    0.25
    """
    return torch.softmax(logits_NV.detach().float() / temperature, dim=-1).square().sum(-1)


# --- rewards (sections 2.4 and 3.4) ---------------------------------------------------------------


def overlong_penalty(length: Tensor, *, max_tokens: int, buffer_tokens: int, factor: float = 1.0) -> Tensor:
    """Soft overlong punishment (Eq. 13).

    0                                    for  len <= Lmax - Lcache
    (Lmax - Lcache - len) / Lcache       for  Lmax - Lcache < len <= Lmax
    -1                                   for  len > Lmax

    Args:
        length: response tokens, the final EOS included, the prompt never; any shape.
        max_tokens: Lmax.
        buffer_tokens: Lcache in [1, Lmax].
        factor: multiplies the penalty, in (0, 2).

    Returns:
        float32, in [-factor, 0].

    Raises:
        ValueError: a buffer or factor out of range.

    >>> overlong_penalty(torch.tensor([16384, 18432, 20480]), max_tokens=20480, buffer_tokens=4096).tolist()
    [0.0, -0.5, -1.0]
    """
    if not 1 <= buffer_tokens <= max_tokens:
        raise ValueError(f"buffer_tokens must lie in [1, {max_tokens}], got {buffer_tokens}")
    if not 0 < factor < 2:
        raise ValueError(f"factor must lie in (0, 2), got {factor}")
    over = (max_tokens - buffer_tokens - length).float() / buffer_tokens
    return factor * over.clamp(-1.0, 0.0)


def informative(correct_PG: Tensor) -> Tensor:
    """Which groups carry a signal (Eq. 11): 0 < number of right responses < G.

    Args:
        correct_PG: bool, raw correctness; never the shaped reward (law 3).

    Returns:
        bool [P].

    >>> informative(torch.tensor([[True, False], [True, True], [False, False]])).tolist()
    [True, False, False]
    """
    if correct_PG.dtype != torch.bool:
        raise ValueError(f"correctness must be bool, got {correct_PG.dtype}")
    right_P = correct_PG.sum(dim=1)
    return (right_P > 0) & (right_P < correct_PG.shape[1])


def spread(rewards_PG: Tensor) -> Tensor:
    """For graded rewards: which groups' unshaped rewards differ by more than 1e-6. bool [P]."""
    return (rewards_PG.max(dim=1).values - rewards_PG.min(dim=1).values) > SAME_REWARD


def group_advantages(rewards_PG: Tensor, *, std_correction: int, eps: float) -> Tensor:
    """Group-relative advantage (Eq. 9): A = (R - mean) / (std + eps) within each group.

    Args:
        rewards_PG: shaped rewards.
        std_correction: c in std = sqrt(sum (R - mean)^2 / (G - c)); 0 or 1 (the paper does not say,
            the code uses 1).
        eps: >= 0 (the code uses 1e-6).

    Returns:
        float32 [P, G]; exactly 0 in a group whose rewards lie within 1e-6 of each other.
        |A| <= sqrt(G - 1) for std_correction 0.

    >>> group_advantages(torch.tensor([[1., 1., 1., -1.]]), std_correction=1, eps=0.0).tolist()
    [[0.5, 0.5, 0.5, -1.5]]
    """
    rewards_PG = rewards_PG.double()
    group_size = rewards_PG.shape[1]
    if group_size <= std_correction:
        raise ValueError(f"a group of {group_size} has no standard deviation with correction {std_correction}")
    centred_PG = rewards_PG - rewards_PG.mean(dim=1, keepdim=True)
    std_P1 = (centred_PG.square().sum(dim=1, keepdim=True) / (group_size - std_correction)).sqrt()
    differs_P1 = spread(rewards_PG).unsqueeze(1)
    safe_std_P1 = torch.where(differs_P1, std_P1 + eps, torch.ones_like(std_P1))
    return torch.where(differs_P1, centred_PG / safe_std_P1, torch.zeros_like(centred_PG)).float()


# --- the objective (sections 3.1 and 3.3) ---------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveInputs:
    """What a per-token loss may look at. Values outside the mask are arbitrary but finite.

    logprobs_BT: log pi_theta of each token, with gradient.
    old_logprobs_BT: log pi of the policy at the step's start.
    advantages_BT: A of each token; in most recipes one value for all tokens of a response.
    mask_BT: bool, tokens of the loss.
    ref_logprobs_BT: log pi_ref, or None.
    selected_BT: bool, the tokens that an entropy control picked (clip_cov, kl_cov), or None.
    """

    logprobs_BT: Tensor
    old_logprobs_BT: Tensor
    advantages_BT: Tensor
    mask_BT: Tensor
    ref_logprobs_BT: Tensor | None = None
    selected_BT: Tensor | None = None


def masked(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The values on the mask, exactly 0 off it, in value and gradient, whatever stood there."""
    return torch.where(mask_BT, values_BT, torch.zeros_like(values_BT))


def masked_log_ratio(inputs: ObjectiveInputs, clamp: float | None = None) -> Tensor:
    """log r = log pi_theta - log pi_old on the mask, exactly 0 outside it.

    Outside values are removed before any exp, so padding gives neither NaN nor inf, in value or
    gradient. `clamp` bounds |log r| (no gradient beyond it); None leaves it alone.
    """
    log_ratio_BT = masked(inputs.logprobs_BT - inputs.old_logprobs_BT, inputs.mask_BT)
    return log_ratio_BT if clamp is None else log_ratio_BT.clamp(-clamp, clamp)


def dapo_objective(
    inputs: ObjectiveInputs,
    *,
    clip_low: float | None,
    clip_high: float | None,
    clip_dual: float | None = None,
    log_ratio_clamp: float | None = None,
) -> Tensor:
    """Per-token loss with decoupled clipping (Eq. 10): -min(r A, clip(r, 1-low, 1+high) A).

    Equal to -A min(r, 1+high) for A > 0 and -A max(r, 1-low) for A < 0. With `clip_dual` = c the
    loss of a token with A < 0 is at most c |A| (in the paper's code, not in the paper).

    Args:
        inputs: see ObjectiveInputs.
        clip_low: in (0, 1), or None for no lower bound.
        clip_high: > 0, or None for no upper bound.
        clip_dual: None, or c > 1.
        log_ratio_clamp: None, or the bound on |log r|.

    Returns:
        [B, T]; 0 outside the mask.
    """
    log_ratio_BT = masked_log_ratio(inputs, log_ratio_clamp)
    advantages_BT = masked(inputs.advantages_BT, inputs.mask_BT)
    return clipped_loss(log_ratio_BT, advantages_BT, clip_low=clip_low, clip_high=clip_high, clip_dual=clip_dual)


def clipped_loss(
    log_ratio: Tensor,
    advantages: Tensor,
    *,
    clip_low: float | None,
    clip_high: float | None,
    clip_dual: float | None = None,
) -> Tensor:
    """-min(r A, clip(r, 1-low, 1+high) A) of log r and A, of any one shape; see `dapo_objective`."""
    # Clipping is a bound on log r on the side that A's sign selects, applied before exp: a ratio
    # too large for a float then meets the bound instead of turning the gradient into 0 * inf.
    rising = advantages >= 0
    bound = log_ratio.new_tensor
    floor = -math.inf if clip_low is None else math.log(1.0 - clip_low)
    ceiling = math.inf if clip_high is None else math.log(1.0 + clip_high)
    dual = math.inf if clip_dual is None else math.log(clip_dual)
    lower = torch.where(rising, bound(-math.inf), bound(floor))
    upper = torch.where(rising, bound(ceiling), bound(dual))
    log_ratio = torch.where(advantages != 0, log_ratio, torch.zeros_like(log_ratio))  # without a ceiling, 0 * inf
    return -advantages * torch.exp(torch.clamp(log_ratio, lower, upper))


KLEstimator = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, mask_BT: Tensor, estimator: KLEstimator = "k3") -> Tensor:
    """Estimate of KL(pi || ref) at each token sampled from pi, of x = log ref - log pi; 0 off the mask.

    k1: -x;  k2: x^2 / 2;  k3: exp(x) - x - 1, never negative (the form of GRPO's objective, DeepSeekMath).
    As values, k1 and k3 have the KL as their mean; as losses, k2's mean gradient is the KL's and k1's is 0.
    Schulman, "Approximating KL divergence" (2020).
    """
    x_BT = masked(ref_logprobs_BT - logprobs_BT, mask_BT)
    if estimator == "k1":
        return -x_BT
    if estimator == "k2":
        return x_BT.square() / 2
    if estimator == "k3":
        return torch.expm1(x_BT) - x_BT  # exp(x) - x - 1 would round below 0 near 0
    raise ValueError(f"unknown estimator {estimator!r}; there are k1, k2 and k3")


def importance_weights(old_logprobs_BT: Tensor, engine_logprobs_BT: Tensor, mask_BT: Tensor, cap: float) -> Tensor:
    """Truncated weight of a token sampled by another policy: min(exp(log p - log b), C), detached.

    p is the learner's policy at the step's start, b the engine's when the token was sampled.
    Multiplies the token's loss; denominators ignore it. 1 outside the mask.
    """
    gap_BT = masked((old_logprobs_BT - engine_logprobs_BT).detach(), mask_BT)
    return torch.exp(gap_BT).clamp_max(cap)


# --- the reduction (Eq. 12) -----------------------------------------------------------------------


def row_weights(
    tokens_B: Tensor,
    draw_B: Tensor,
    reduction: Reduction,
    *,
    constant_tokens: int | None = None,
    microbatches: Sequence[Sequence[int]] | None = None,
) -> Tensor:
    """The weight of each row's tokens, one over the denominator, for one whole mini-batch.

    minibatch   1 / (all loss tokens)                                      (DAPO, exact token mean)
    group       1 / (groups with loss tokens * loss tokens of the group)   (Eq. 12 per prompt)
    sequence    1 / (rows with loss tokens * loss tokens of the row)       (GRPO)
    constant    1 / (rows with loss tokens * L)                            (Dr.GRPO)
    microbatch  (rows of its micro-batch / rows) / loss tokens of its micro-batch
                (what verl 4f80e46 does; depends on the cut, for reproduction only)

    Args:
        tokens_B: i64, loss tokens of each row, over ALL ranks and micro-batches.
        draw_B: i64, the group of each row.
        reduction: see above.
        constant_tokens: L of "constant".
        microbatches: row indices of each micro-batch, for "microbatch".

    Returns:
        float64 [B]; 0 for rows without loss tokens, so no tokens at all gives zeros, not NaN.

    >>> row_weights(torch.tensor([1, 3]), torch.tensor([0, 0]), "minibatch").tolist()
    [0.25, 0.25]
    """
    tokens_B = tokens_B.double()
    has_tokens_B = tokens_B > 0
    rows = has_tokens_B.sum().double()
    if reduction == "minibatch":
        denominator_B = tokens_B.sum().expand_as(tokens_B)
    elif reduction == "group":
        _, group_B = torch.unique(draw_B, return_inverse=True)
        tokens_P = torch.zeros(int(group_B.max()) + 1 if len(group_B) else 0, dtype=torch.float64)
        tokens_P.index_add_(0, group_B, tokens_B)
        denominator_B = (tokens_P > 0).sum() * tokens_P[group_B]
    elif reduction == "sequence":
        denominator_B = rows * tokens_B
    elif reduction == "constant":
        if not constant_tokens or constant_tokens < 1:
            raise ValueError("reduction 'constant' needs constant_tokens >= 1")
        denominator_B = (rows * constant_tokens).expand_as(tokens_B)
    elif reduction == "microbatch":
        denominator_B = _microbatch_denominator(tokens_B, microbatches)
    else:
        raise ValueError(f"unknown reduction {reduction!r}")
    weights_B = torch.where(has_tokens_B, 1.0 / denominator_B.clamp_min(1e-300), torch.zeros_like(tokens_B))
    return weights_B


def _microbatch_denominator(tokens_B: Tensor, microbatches: Sequence[Sequence[int]] | None) -> Tensor:
    if microbatches is None:
        raise ValueError("reduction 'microbatch' needs the packer's cut")
    if sorted(row for rows in microbatches for row in rows) != list(range(len(tokens_B))):
        raise ValueError("the micro-batches must hold every row exactly once")
    denominator_B = torch.zeros_like(tokens_B)
    for rows in microbatches:
        index = torch.tensor(list(rows))
        denominator_B[index] = tokens_B[index].sum() * len(tokens_B) / len(rows)
    return denominator_B


def row_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B]: mean over each row's masked tokens; 0 for a row without any."""
    return masked(values_BT, mask_BT).sum(dim=1) / mask_BT.sum(dim=1).clamp_min(1)


def weighted_loss(loss_BT: Tensor, mask_BT: Tensor, weights_B: Tensor) -> Tensor:
    """sum over b, t of weights_B * mask_BT * loss_BT: a scalar, finite, 0 without loss tokens."""
    return (masked(loss_BT, mask_BT).sum(dim=1) * weights_B.to(loss_BT.dtype)).sum()


# --- what to watch --------------------------------------------------------------------------------
