"""Log-probabilities, entropies and collision probabilities over a vocabulary with few passes over the logits.

The plain forms are `algorithm.token_logprobs` and `algorithm.collision`; the tests hold this one to them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def token_logprobs(logits_NV: Tensor, token_ids_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(logprobs_N, entropy_N, collision_N); the first two carry a gradient. Give it logits of its own: see below."""
    result: tuple[Tensor, Tensor, Tensor] = TokenLogprobs.apply(logits_NV, token_ids_N, temperature)  # type: ignore[no-untyped-call]
    return result


class TokenLogprobs(torch.autograd.Function):
    """(logprobs_N, entropy_N, collision_N), float32, of logits_NV at temperature T.

    See `algorithm.token_logprobs`, and `algorithm.collision` for sum_v p_v^2.

    Backward, with p = softmax(z / T), g and h the gradients of log-prob and entropy H:

        dz_v = (g (1[v = y] - p_v) - h p_v (log p_v + H)) / T

    The gradient is written over the logits, so backward can be run once, and the logits must not
    be used by anything else.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, token_ids_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """One pass for the largest, one for exp and its sums."""
        scaled_NV = logits_NV.float()
        if temperature != 1.0:
            scaled_NV = scaled_NV.div_(temperature) if scaled_NV is not logits_NV else scaled_NV / temperature
        log_z_N = torch.empty(len(scaled_NV), dtype=torch.float32, device=scaled_NV.device)
        entropy_N, collision_N = torch.empty_like(log_z_N), torch.empty_like(log_z_N)
        for part in _parts(scaled_NV):
            log_z_N[part], entropy_N[part], collision_N[part] = _of_distributions(scaled_NV[part])
        chosen_N = scaled_NV.gather(-1, token_ids_N.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(scaled_NV, token_ids_N, log_z_N, entropy_N)
        ctx.temperature, ctx.dtype = temperature, logits_NV.dtype
        ctx.mark_non_differentiable(collision_N)
        return chosen_N - log_z_N, entropy_N, collision_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """See the class."""
        scaled_NV, token_ids_N, log_z_N, entropy_N = ctx.saved_tensors
        of_logprob_N, of_entropy_N, _ = gradients
        with_entropy = bool(of_entropy_N.any())
        for part in _parts(scaled_NV):
            log_p = scaled_NV[part].sub_(log_z_N[part].unsqueeze(1))
            weight = -of_logprob_N[part].unsqueeze(1)
            if with_entropy:
                finite = log_p.clamp_min(LEAST)
                weight = weight - of_entropy_N[part].unsqueeze(1) * (finite + entropy_N[part].unsqueeze(1))
            log_p.exp_().mul_(weight)
        scaled_NV.scatter_add_(1, token_ids_N.unsqueeze(1), of_logprob_N.unsqueeze(1))
        if ctx.temperature != 1.0:
            scaled_NV.div_(ctx.temperature)
        return scaled_NV.to(ctx.dtype), None, None


LEAST = -1e4  # a log-probability whose exp is 0 in float32; keeps 0 * log 0 finite
# Below the largest logit: exp(-40) = 4e-18 is nothing beside 1 in float32 even 2^20 times, and the square of it is
# still a normal number (sums of subnormal ones take ten times as long on a CPU).
FAR = -40.0
ROWS = 16  # at a time on a CPU: what one pass writes is still in the cache for the next


def _parts(tensor: Tensor) -> list[slice]:
    """ROWS rows each on a CPU; all at once elsewhere, where launches cost more than passes."""
    rows = ROWS if tensor.device.type == "cpu" else max(1, len(tensor))
    return [slice(start, start + rows) for start in range(0, len(tensor), rows)]


def _of_distributions(scaled_RV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log Z = m + log s,  H = log s - sum_v e_v (z_v - m) / s,  sum_v p_v^2 = sum_v e_v^2 / s^2.

    With e_v = exp(z_v - m), s their sum.
    """
    largest_R1 = scaled_RV.amax(dim=1, keepdim=True)
    shifted_RV = (scaled_RV - largest_R1).clamp_min_(FAR)
    exp_RV = shifted_RV.exp()
    total_R = exp_RV.sum(dim=1)
    norm_R = torch.linalg.vector_norm(exp_RV, dim=1)
    weighted_R = exp_RV.mul_(shifted_RV).sum(dim=1)
    log_total_R = total_R.log()
    return largest_R1.squeeze(1) + log_total_R, log_total_R - weighted_R / total_R, (norm_R / total_R).square()
