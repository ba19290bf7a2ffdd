"""Two ranks behind a Leader, of which one fails in a forward or backward pass: a program for each.

Arguments: the rank that fails, the call it fails in, and where ("forward" or "backward"). Prints what rank 0 is told.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from dapo.errors import LearnerLost
from dapo.learner import line
from dapo.learner.leader import Leader, follow
from helpers_fsdp import fsdp_learner
from helpers_learner import SHAPE, batch_of, rows_of, with_old

BUDGET = {"tokens_per_microbatch": 30}


class Failing(torch.autograd.Function):
    """Nothing, whose gradient can't be had."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        raise OSError("no such gradient")


def fail(where: str, model: Any) -> None:
    """Makes the model's last block fail from now on."""
    block = list(model.modules())[-1] if not hasattr(model, "model") else model.model.layers[-1]

    def hook(module: Any, inputs: Any, output: Any) -> Any:
        if where == "forward":
            raise ValueError("no such token")
        return Failing.apply(output if torch.is_tensor(output) else output[0])

    block.register_forward_hook(hook)


def main() -> None:
    rank, call, where = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    joined = line.join()
    learner = fsdp_learner(**BUDGET)
    batch = with_old(batch_of(rows_of(SHAPE)), learner)
    if joined.rank == rank:
        fail(where, learner.model)
    if joined.rank:
        follow(learner, joined)
        return
    led = Leader(learner, joined)
    for _ in range(2):  # lost once is lost for good
        try:
            led.logprobs(batch) if call == "logprobs" else led.update(batch, 1e-3)
            print("went through")
        except LearnerLost as error:
            print("lost:", error.message)
        except RuntimeError as error:
            print("ended:", error)
    led.close()


if __name__ == "__main__":
    main()
