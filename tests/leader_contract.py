"""tests/test_learner_contract.py on two ranks behind a Leader: a program for each, with torchrun's environment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import tiny
from dapo.learner import leader, line
from dapo.learner.leader import Leader
from helpers_fsdp import fsdp_learner

BUDGET = {"tokens_per_microbatch": 30}
made: list[Leader] = []


class Numbered:
    """The line of one of several leaders: before each message it says which learner the followers shall use."""

    def __init__(self, joined: Any, number: int) -> None:
        self._joined, self._number = joined, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._joined, name)

    def send(self, *message: Any) -> None:
        """See Line."""
        self._joined.send({"call": "use", "number": self._number})
        self._joined.send(*message)


def led(model: Any, reference: Any = None) -> Leader:
    """A learner of the given model on all ranks; what the one before left undone is finished first."""
    joined = line.join()
    if made:
        made[-1]._finish_export()
    joined.send({"call": "make", "reference": reference is not None}, named(model, "m.") | named(reference, "r."))
    own: Any = Numbered(joined, len(made))
    made.append(Leader(fsdp_learner(model, reference=reference, **BUDGET), own))
    return made[-1]


def named(model: Any, prefix: str) -> dict[str, Tensor]:
    """Weights of a model that may not be there."""
    return {} if model is None else {prefix + name: p.detach() for name, p in model.named_parameters()}


def filled(tensors: dict[str, Tensor], prefix: str) -> Any:
    """A tiny model of these weights."""
    model = tiny.model(9)
    for name, parameter in model.named_parameters():
        parameter.data.copy_(tensors[prefix + name])
    return model


def follow() -> None:
    """Makes what rank 0 makes, until it has no more tests."""
    joined, learners, number = line.join(), list[Any](), 0
    while True:
        header, tensors = joined.receive()
        if header["call"] == "stop":
            joined.hang_up()
            return
        if header["call"] == "make":
            reference = filled(tensors, "r.") if header["reference"] else None
            learners.append(fsdp_learner(filled(tensors, "m."), reference=reference, **BUDGET))
            continue
        if header["call"] == "use":
            number = header["number"]
            continue
        call = learners[number], header, tensors
        _, refusal = leader.attempted(lambda call=call: leader.make_call(*call))  # type: ignore[misc]
        joined.answers("" if refusal is None else type(refusal).__name__)


def lead() -> int:
    """Runs the contract's tests, of this learner alone (see LEARNERS there)."""
    contract = Path(__file__).parent / "test_learner_contract.py"
    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", str(contract), "-k", sys.argv[1]])
    sys.modules["leader_contract"].made.pop().close()  # this file runs under another name
    return int(code)


if __name__ == "__main__":
    sys.exit(lead() if line.started_as() == 0 else follow())
