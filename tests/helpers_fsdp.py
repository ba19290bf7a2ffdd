"""Sharded learners for tests: a world of one in this process, and functions that run on several ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dapo.learner.fsdp import FsdpLearner
from dapo.learner.sharded_model import FsdpSettings
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


def start(command: list[str], ranks: int, **environment: str) -> list[subprocess.Popen[str]]:
    """The same command as several ranks, with the environment that torchrun would give each."""
    port, source = str(free_port()), Path(__file__).parents[1]
    common = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source / "src"), str(source / "tests")]),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        **environment,
    }
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def ended(processes: list[subprocess.Popen[str]], seconds: float) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each; whatever happens, none is left behind."""
    try:
        found = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    return [(process.returncode, *texts) for process, texts in zip(processes, found, strict=True)]
