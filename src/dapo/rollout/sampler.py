"""Turn logits into tokens: one uniform number each, inverted through a float64 CDF.

Legend: R rows (responses being decoded), V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sample(logits_RV: Tensor, uniform_R: Tensor, temperature_R: Tensor, top_p_R: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row by inverse CDF in vocabulary order (law 5).

    p = softmax(z / T), cut to the smallest set of most likely tokens that holds mass top_p and
    renormalised; the token is the first v with  cumsum(p)[v] > u.  temperature 0 takes the
    argmax (the lowest index on ties) and reports its log-probability at temperature 1.

    Args:
        logits_RV: any float dtype; computed in float32, summed in float64.
        uniform_R: float64 in [0, 1).
        temperature_R: float32, >= 0.
        top_p_R: float32, in (0, 1].

    Returns:
        (token ids i64 [R], log-probabilities f32 [R] under the distribution sampled from).
    """
    greedy_R = temperature_R == 0
    scaled_RV = logits_RV.float() / torch.where(greedy_R, 1.0, temperature_R).unsqueeze(1)
    shifted_RV = scaled_RV - scaled_RV.amax(dim=1, keepdim=True)
    mass_RV = torch.exp(shifted_RV)
    if bool((top_p_R < 1).any()):
        mass_RV = _nucleus(mass_RV, torch.where(greedy_R, 1.0, top_p_R))
    cdf_RV = torch.cumsum(mass_RV, dim=1, dtype=torch.float64)
    total_R1 = cdf_RV[:, -1:]
    tokens_R = torch.searchsorted(cdf_RV, uniform_R.unsqueeze(1) * total_R1, right=True).squeeze(1)
    tokens_R = tokens_R.clamp_max(logits_RV.shape[1] - 1)
    if bool(greedy_R.any()):
        tokens_R = torch.where(greedy_R, scaled_RV.argmax(dim=1), tokens_R)
    chosen_R = shifted_RV.gather(1, tokens_R.unsqueeze(1)).squeeze(1)
    return tokens_R, (chosen_R.double() - total_R1.squeeze(1).log()).float()


def _nucleus(mass_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Zero outside each row's nucleus: tokens before which less than top_p of the mass lies.

    Ties at the edge are cut in vocabulary order (stable sort). A row with top_p 1 is untouched.
    """
    sorted_RV, order_RV = torch.sort(mass_RV, dim=1, descending=True, stable=True)
    cumulative_RV = torch.cumsum(sorted_RV, dim=1, dtype=torch.float64)
    before_RV = cumulative_RV - sorted_RV
    keep_RV = before_RV < top_p_R.double().unsqueeze(1) * cumulative_RV[:, -1:]
    keep_RV |= (top_p_R >= 1).unsqueeze(1)
    kept_RV = torch.where(keep_RV, sorted_RV, torch.zeros_like(sorted_RV))
    return torch.zeros_like(mass_RV).scatter(1, order_RV, kept_RV)
