"""Sharded learners for tests: a world of one in this process, and functions that run on several ranks."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

import torch.distributed as dist

from dapo.learner.fsdp import FsdpLearner, FsdpSettings
from helpers_learner import torch_learner


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def world_of_one() -> None:
    """A process group of this process alone, for as long as it lives."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)


def fsdp_learner(
    model: Any = None, *, sharding: FsdpSettings | None = None, lora: Any = None, **rest: Any
) -> FsdpLearner:
    """A sharded learner of a tiny model; more keywords are those of `torch_learner`."""
    made: FsdpLearner = torch_learner(
        model, make=partial(FsdpLearner, sharding=sharding or FsdpSettings(), lora=lora), **rest
    )
    return made


def alone(model: Any = None, **rest: Any) -> FsdpLearner:
    """One of a world of one."""
    world_of_one()
    return fsdp_learner(model, **rest)
