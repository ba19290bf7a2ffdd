"""The line between the ranks that torchrun started: rank 0 says what is to be done, the others do it too.

A message is a JSON header and tensors in the safetensors form, sent by gloo on the CPU. Nothing is pickled.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from dapo.errors import ConfigError, LearnerLost
from dapo.learner.collectives import Ranks

TIMEOUT = timedelta(minutes=30)  # for which a rank waits for another that works on the same call
PATIENCE = timedelta(days=30)  # for which a rank waits for the next call: steps are as long as they are
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PLACE = re.compile(r"^\[[^\]]*\]\s*")
GONE = ("connection", "gloo", "nccl", "timed out", "timeout", "socket", "peer", "tcpstore", "broken pipe")


def started_as() -> int | None:
    """The rank that torchrun gave this process; None where it was not started by it.

    Raises ConfigError where the environment holds what torchrun would not write.
    """
    if not all(os.environ.get(name) for name in NEEDED):
        return None
    ranks = _number("WORLD_SIZE", 1, sys.maxsize)
    _number("MASTER_PORT", 0, 65535)
    return _number("RANK", 0, ranks - 1)


def ranks_started() -> int:
    """How many processes torchrun started; 1 without it. Raises ConfigError, see `started_as`."""
    return int(os.environ["WORLD_SIZE"]) if started_as() is not None else 1


def _number(name: str, least: int, most: int) -> int:
    text = os.environ[name]
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        range_told = f"of {least} to {most}" if most < sys.maxsize else f"of at least {least}"
        raise ConfigError(
            f"the environment says {name} = {text}, not a number {range_told}; "
            f"start it by torchrun, or without {', '.join(NEEDED)}"
        )
    return int(text)


def lost(error: BaseException) -> LearnerLost:
    """What the loss of a rank while all begin is told as."""
    return LearnerLost(f"the ranks of the sharded learner did not all begin: {brief(error)}")


def brief(error: BaseException) -> str:
    """What an error says first, without the place in gloo's source before it and the advice behind it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return PLACE.sub("", lines[0]).split(". ")[0]


def need_torchrun() -> None:
    """Raises ConfigError where torchrun's environment is missing."""
    if started_as() is None:
        missing = ", ".join(name for name in NEEDED if not os.environ.get(name))
        raise ConfigError(
            f'learner.kind = "fsdp" is started by torchrun ({missing} not set): '
            "torchrun --nproc-per-node N -m dapo train RECIPE learner.kind=fsdp; "
            'or set learner.kind = "torch", or cluster.kind = "ray" with cluster.learner_ranks'
        )


class Line:
    """Made by all ranks together, once the process group is there."""

    def __init__(self) -> None:
        world = dist.get_world_size()
        self.rank, self.count = dist.get_rank(), world
        self._calls = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._answers = Ranks(dist.new_group(backend="gloo", timeout=TIMEOUT))

    def send(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
        """Rank 0's side of `receive`."""
        if self.count == 1:
            return
        text = json.dumps(header).encode()  # tensors are cloned: some of a batch's are one and the same
        data = save({name: tensor.clone().contiguous() for name, tensor in tensors.items()}) if tensors else b""
        dist.broadcast(torch.tensor([len(text), len(data)]), 0, group=self._calls)
        dist.broadcast(torch.frombuffer(bytearray(text + data), dtype=torch.uint8), 0, group=self._calls)

    def receive(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The next message of rank 0, whenever it comes. Raises RuntimeError once rank 0 is gone."""
        sizes = torch.zeros(2, dtype=torch.long)
        dist.broadcast(sizes, 0, group=self._calls)
        text, data = map(int, sizes)
        whole = torch.zeros(text + data, dtype=torch.uint8)
        dist.broadcast(whole, 0, group=self._calls)
        message = whole.numpy().tobytes()
        return json.loads(message[:text]), load(message[text:]) if data else {}

    def answers(self, own: str) -> list[str]:
        """What each rank has to say of a call: why it refused it, or ""."""
        return [str(one) for one in self._answers.gather(own)]

    def hang_up(self) -> None:
        """Ends the process group, on all ranks together."""
        dist.barrier(group=self._answers.group)  # some runs abort without it
        dist.destroy_process_group()


@functools.cache
def join() -> Line:
    """Joins the other ranks, once in a process. Where there are GPUs, LOCAL_RANK's becomes the current one.

    Raises ConfigError without torchrun's environment.
    """
    need_torchrun()
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % gpus)
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=TIMEOUT)
    return Line()


def is_of_the_line(error: BaseException) -> bool:
    """Whether an error is that of a rank which has gone or does not answer."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (isinstance(error, dist.DistError) or any(word in text for word in GONE))
