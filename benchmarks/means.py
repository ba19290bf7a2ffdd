"""What each means of docs/performance.md gains by itself: the plain form and ours, in turn, on one machine.

    .venv/bin/python benchmarks/means.py

Shapes are SmolLM2-135M's, 64 rows in a decode step, a group of 16 in an update; float32. Medians in
milliseconds over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dapo.algorithm import token_logprobs as plain_logprobs
from dapo.learner.lane_attention import LaneMask, Run, lane_attention, lay_out
from dapo.learner.logprobs import token_logprobs
from dapo.rollout.sampler import sample
from dapo.rollout.slot_cache import _fused, _two_products

HIDDEN, VOCABULARY, ROWS, QUERIES, HEADS, SIZE = 576, 49152, 64, 9, 3, 64
LAYER = ((576, 576), (576, 192), (576, 192), (576, 576), (576, 1536), (576, 1536), (1536, 576))
Forms = dict[str, Callable[[], object]]


def linear_layers() -> Forms:
    """All linear layers of the model on 64 rows."""
    weights = [torch.randn(n, k) for k, n in [*LAYER * 30, (HIDDEN, VOCABULARY)]]
    inputs = {k: torch.randn(ROWS, k) for k in (576, 1536)}
    blocked = [torch.ops.mkldnn._reorder_linear_weight(weight, ROWS) for weight in weights]
    pointwise = torch.ops.mkldnn._linear_pointwise
    return {
        "plain": lambda: [nn.functional.linear(inputs[w.shape[1]], w) for w in weights],
        "ours": lambda: [
            pointwise(inputs[w.shape[1]], b, None, "none", [], "") for w, b in zip(weights, blocked, strict=True)
        ],
    }


def choosing_tokens() -> Forms:
    """64 tokens from 64 rows of logits."""
    logits, u, ones = torch.randn(ROWS, VOCABULARY) * 3, torch.rand(ROWS, dtype=torch.float64), torch.ones(ROWS)

    def plain() -> Tensor:
        mass = torch.exp(logits - logits.amax(dim=1, keepdim=True))
        cdf = torch.cumsum(mass, dim=1, dtype=torch.float64)
        return torch.searchsorted(cdf, u.unsqueeze(1) * cdf[:, -1:], right=True)

    return {"plain": plain, "ours": lambda: sample(logits, u, ones, ones)}


def decode_attention() -> Forms:
    """One layer's, 64 rows, 128 positions."""
    query = torch.randn(ROWS, HEADS, QUERIES // HEADS, SIZE)
    keys, values = (torch.randn(ROWS, HEADS, 320, SIZE)[:, :, :128] for _ in range(2))
    mask = torch.zeros(ROWS, 1, 1, 128)
    return {
        "plain": lambda: _fused(query, keys, values, mask, 0.125),
        "ours": lambda: _two_products(query, keys, values, mask, 0.125),
    }


def update_attention() -> Forms:
    """One layer's forward and backward: prompt 40, 16 responses of 72 tokens."""
    prompt, count, length = 40, 16, 72
    runs = [Run(0, prompt), *(Run(prompt + i * length, length, (0, prompt)) for i in range(count))]
    tokens = prompt + count * length
    segment = torch.tensor([0] * prompt + [1 + i for i in range(count) for _ in range(length)])
    dense = torch.ones(tokens, tokens, dtype=torch.bool).tril() & (
        (segment[None] == 0) | (segment[None] == segment[:, None])
    )
    mask = LaneMask.of(lay_out(runs, tokens), torch.device("cpu"))
    query, key, value = (torch.randn(1, h, tokens, SIZE, requires_grad=True) for h in (QUERIES, HEADS, HEADS))

    def plain() -> None:
        output = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=dense, enable_gqa=True)
        output.sum().backward()

    return {"plain": plain, "ours": lambda: lane_attention(nn.Identity(), query, key, value, mask)[0].sum().backward()}


def head_and_logprobs() -> Forms:
    """512 tokens from hidden states to log-probs and back."""
    hidden = torch.randn(512, HIDDEN, requires_grad=True)
    weight = (torch.randn(VOCABULARY, HIDDEN) * 0.1).requires_grad_(True)
    tokens = torch.randint(VOCABULARY, (512,))

    def plain() -> None:
        logprobs, _ = checkpoint(lambda h: plain_logprobs(h @ weight.T, tokens), hidden, use_reentrant=False)
        logprobs.sum().backward()

    def ours() -> None:
        token_logprobs(hidden @ weight.T, tokens, 1.0)[0].sum().backward()

    return {"plain": plain, "ours": ours}


def main() -> None:
    """Every means in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for make in (linear_layers, choosing_tokens, decode_attention, update_attention, head_and_logprobs):
        forms, found = make(), {"plain": [], "ours": []}
        no_gradient = make in (linear_layers, choosing_tokens, decode_attention)
        with torch.inference_mode(no_gradient):
            for number in range(arguments.rounds + 1):
                for name, form in forms.items():
                    start = time.perf_counter()
                    form()
                    if number:  # the first warms up
                        found[name].append(round(1e3 * (time.perf_counter() - start), 2))
        middle = {name: statistics.median(values) for name, values in found.items()}
        ratio = round(middle["plain"] / middle["ours"], 2)
        print(json.dumps({"means": make.__name__, "median_ms": middle, "ratio": ratio, "samples_ms": found}))


if __name__ == "__main__":
    main()
