"""Turn logits into tokens: one uniform number each, inverted through a float64 CDF.

Legend: R rows (responses being decoded), V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 16  # at a time on a CPU: what the passes over a vocabulary write and read again stays in its cache
BLOCK = 128  # tokens whose probabilities are summed together before one of them is looked for


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
    rows = ROWS if logits_RV.device.type == "cpu" else max(1, len(logits_RV))
    parts = zip(*(torch.split(tensor, rows) for tensor in (logits_RV, uniform_R, temperature_R, top_p_R)), strict=True)
    tokens, logprobs = zip(*(_sample(*part) for part in parts), strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def _sample(logits_RV: Tensor, uniform_R: Tensor, temperature_R: Tensor, top_p_R: Tensor) -> tuple[Tensor, Tensor]:
    greedy_R = temperature_R == 0
    scaled_RV = logits_RV.float()
    if bool(((temperature_R != 1) & ~greedy_R).any()):
        scaled_RV = scaled_RV / torch.where(greedy_R, 1.0, temperature_R).unsqueeze(1)
    largest_R1 = scaled_RV.amax(dim=1, keepdim=True)
    mass_RV = (scaled_RV - largest_R1).exp_()
    if bool((top_p_R < 1).any()):
        mass_RV = _nucleus(mass_RV, torch.where(greedy_R, 1.0, top_p_R))
    tokens_R, total_R = _invert_cdf(mass_RV, uniform_R)
    if bool(greedy_R.any()):
        tokens_R = torch.where(greedy_R, scaled_RV.argmax(dim=1), tokens_R)
    chosen_R1 = scaled_RV.gather(1, tokens_R.unsqueeze(1)) - largest_R1
    return tokens_R, (chosen_R1.squeeze(1).double() - total_R.log()).float()


def _invert_cdf(mass_RV: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor]:
    """(the first v with cumsum(mass)[v] > u * total, total f64 [R]), summed in float64.

    In two stages, so that the vocabulary is read once: sums of blocks of BLOCK tokens, then the
    running sum inside the one block where u falls.
    """
    rows, size = mass_RV.shape
    blocks = -(-size // BLOCK)
    padded_RNB = nn.functional.pad(mass_RV, (0, blocks * BLOCK - size)).view(rows, blocks, BLOCK)
    ends_RN = torch.cumsum(padded_RNB.sum(dim=2, dtype=torch.float64), dim=1)
    wanted_R1 = torch.minimum(uniform_R.unsqueeze(1) * ends_RN[:, -1:], _below(ends_RN[:, -1:]))
    block_R1 = torch.searchsorted(ends_RN, wanted_R1, right=True).clamp_max(blocks - 1)
    before_R1 = torch.where(block_R1 > 0, ends_RN.gather(1, (block_R1 - 1).clamp_min(0)), 0.0)
    inside_RB = padded_RNB[torch.arange(rows, device=mass_RV.device), block_R1.squeeze(1)]
    cdf_RB = before_R1 + torch.cumsum(inside_RB, dim=1, dtype=torch.float64)
    inside_R1 = torch.minimum(wanted_R1, _below(cdf_RB[:, -1:]))  # the two sums may differ in their last bit
    tokens_R1 = block_R1 * BLOCK + torch.searchsorted(cdf_RB, inside_R1, right=True).clamp_max(BLOCK - 1)
    return tokens_R1.squeeze(1).clamp_max(size - 1), ends_RN[:, -1]


def _below(total: Tensor) -> Tensor:
    """The next smaller number: a target under it is always passed at a token that has mass."""
    return torch.nextafter(total, torch.zeros_like(total))


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
