"""Running out of memory, told in one line: what was going on, and the knobs of that."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dapo.config.schema import Config
from dapo.errors import (
    DapoError,
    EngineError,
    OutOfMemory,
    OutOfMemoryEvaluating,
    OutOfMemoryLoading,
    OutOfMemoryLogprobs,
    OutOfMemorySampling,
    OutOfMemoryUpdating,
    RunOutOfMemory,
)
from dapo.spans import passed


@dataclass(frozen=True, slots=True)
class Phase:
    """Part of a run. spans: what it is known by (see `dapo.spans`). knobs: keys that lower what it needs."""

    kind: type[DapoError]
    words: str
    spans: frozenset[str]
    knobs: tuple[str, ...]


# The first that an error has left a span of is the one to tell: an evaluation samples, and sampling a batch ends with
# its log-probs.
PHASES = (
    Phase(
        OutOfMemoryLoading,
        "while the model was loaded",
        frozenset({"loading"}),
        ("engine.slots", "learner.lora_rank", "algorithm.kl.place", "model.path"),
    ),
    Phase(
        OutOfMemoryEvaluating,
        "in an evaluation",
        frozenset({"evaluation"}),
        ("engine.slots", "eval.max_response_tokens"),
    ),
    Phase(
        OutOfMemoryLogprobs,
        "while log-probs were computed",
        frozenset({"log-probs"}),
        ("train.tokens_per_microbatch", "train.logits_chunk_tokens", "algorithm.old_logprobs"),
    ),
    Phase(
        OutOfMemoryUpdating,
        "in an update",
        frozenset({"forward", "backward", "optimiser", "credit", "update"}),
        (
            "train.gradient_checkpointing",
            "train.tokens_per_microbatch",
            "train.logits_chunk_tokens",
            "learner.lora_rank",
            "log.credit_every",
        ),
    ),
    Phase(
        OutOfMemorySampling,
        "while responses were sampled",
        frozenset({"prefill", "decode", "choose", "schedule"}),
        ("engine.slots", "sampling.max_response_tokens"),
    ),
)
ELSEWHERE = Phase(RunOutOfMemory, "between the large computations", frozenset(), ("engine.slots",))


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a device or on the host.

    torch has a class for devices; of the host's memory its allocator says so in words. An engine that ran out more
    often than `engine.reruns` is an EngineError with that as its cause.

    >>> ran_out(MemoryError()), ran_out(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"))
    (True, True)
    >>> ran_out(RuntimeError("shapes differ"))
    False
    """
    error = _first(error)
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    if any(said in str(error) for said in ("can't allocate memory: you tried", "MPS backend out of memory")):
        return True
    if "torch" not in sys.modules:  # then it is not torch's
        return False
    import torch

    return isinstance(error, torch.OutOfMemoryError)


def phase_of(error: BaseException) -> Phase:
    """What was going on when it was raised."""
    left = {*passed(error), *passed(_first(error))}
    return next((phase for phase in PHASES if left & phase.spans), ELSEWHERE)


def _first(error: BaseException) -> BaseException:
    """What an engine failed with; any other error as it is."""
    return error.__cause__ if isinstance(error, EngineError) and error.__cause__ is not None else error


def in_run(error: BaseException, config: Config, where: str) -> DapoError:
    """The error to tell of a run whose state is saved. where: the state, and how to go on."""
    phase = phase_of(error)
    kind = phase.kind if issubclass(phase.kind, RunOutOfMemory) else RunOutOfMemory
    knobs = ", ".join(f"{knob} = {_shown(config, knob)}" for knob in phase.knobs)
    return kind(f"{_happened(error, phase)}; its knobs: {knobs} (dapo plan names what fits); {where}")


def in_command(error: BaseException) -> DapoError:
    """The error to tell where there is no state to save."""
    phase = phase_of(error)
    kind = OutOfMemoryLoading if phase.kind is OutOfMemoryLoading else OutOfMemory
    if phase is ELSEWHERE:
        return kind(f"out of memory{_said(error)}; this machine has too little for what was asked")
    return kind(f"{_happened(error, phase)}; its knobs: {', '.join(phase.knobs)} (dapo plan names what fits)")


@contextmanager
def told() -> Iterator[None]:
    """Memory that runs out inside, where there is no state to save, is told as `in_command` has it."""
    try:
        yield
    except Exception as error:
        if ran_out(error):
            raise in_command(error) from error
        raise


def _happened(error: BaseException, phase: Phase) -> str:
    return f"out of memory {phase.words}{_said(error)}"


def _said(error: BaseException) -> str:
    """What the allocator said: its first two sentences hold the sizes."""
    text = ". ".join(" ".join(str(_first(error)).split()).split(". ")[:2]).rstrip(".")[:200]
    return f" ({text})" if text else ""


def _shown(config: Config, knob: str) -> str:
    value: object = config
    for name in knob.split("."):
        value = getattr(value, name)
    return "off" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
