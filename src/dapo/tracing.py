"""What is shown of an update's tokens: some responses with the ratio of each token, and which were clipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dapo.config.schema import Config
from dapo.credit import flags_of
from dapo.learner.base import Trace
from dapo.records import Row
from dapo.types import Batch


def token_rows(
    minibatch: Batch, trace: Trace, config: Config, *, step: int, count: int, decode: Callable[[Sequence[int]], str]
) -> list[Row]:
    """Up to `count` responses, evenly spread over the mini-batch's rows that have loss tokens.

    Of each token: its text alone (a token that is part of a character shows as U+FFFD), log-prob when it was
    sampled, ratio at the update (NaN is None, and so is that of a token outside the loss), and 1 clipped high,
    -1 clipped low, 0 neither.
    """
    flags = flags_of(minibatch, trace, config)
    ratio = flags["ratio"].masked_fill(~minibatch.loss_mask, float("nan"))
    clipped = flags["clip/high"].long() - flags["clip/low"].long()
    filled = torch.nonzero(minibatch.loss_tokens > 0).flatten()
    places = torch.linspace(0, len(filled) - 1, min(count, len(filled))).round().long()
    rows = []
    for row in filled[places].tolist():
        place = slice(int(minibatch.prompt_lengths[row]), int(minibatch.lengths[row]))
        rows.append(
            {
                "step": step,
                "draw": int(minibatch.draw[row]),
                "g": -1 if minibatch.response is None else int(minibatch.response[row]),
                "tokens": [decode([token]) for token in minibatch.token_ids[row, place].tolist()],
                "logprobs": _rounded(minibatch.engine_logprobs[row, place].tolist()),
                "ratios": _rounded(ratio[row, place].tolist()),
                "clipped": clipped[row, place].tolist(),
            }
        )
    return rows


def _rounded(values: Sequence[float]) -> list[float | None]:
    return [round(value, 4) if abs(value) < float("inf") else None for value in values]
