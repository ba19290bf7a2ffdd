"""A sharded learner as one: rank 0's process holds a Leader, and every call to it is made on all ranks.

The other processes follow: they wait for calls, make them on their own FsdpLearner, and end when the leader is
done or gone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from dapo.errors import LearnerLost
from dapo.learner.base import Trace
from dapo.learner.fsdp import FsdpLearner
from dapo.learner.line import Line, brief, is_of_the_line
from dapo.types import Batch

T = TypeVar("T")
BUCKET = "trace.bucket"
REFUSALS = (ValueError, OSError)  # what all ranks raise alike: a wrong argument, a file that can't be written or read


class Leader:
    """See Learner. Raises LearnerLost once a rank has gone, and from then on.

    `parameters` are rank 0's rows of each weight.
    """

    def __init__(self, learner: FsdpLearner, line: Line) -> None:
        self._learner, self._line = learner, line
        self._lost = ""
        self._export: Generator[tuple[str, Tensor], None, None] | None = None

    @property
    def summary(self) -> str | None:
        """How much is trained, in one line, where it is not all."""
        return self._learner.summary

    @property
    def model(self) -> Any:
        """Rank 0's."""
        return self._learner.model

    # --- the seam -------------------------------------------------------------------------------

    def logprobs(self, batch: Batch, *, reference: bool = False) -> Tensor:
        """See Learner."""
        run = lambda: self._learner.logprobs(batch, reference=reference)  # noqa: E731
        return self._call(run, "logprobs", tensors_of(batch), reference=reference)

    def reset_reference(self) -> None:
        """See Learner."""
        self._call(self._learner.reset_reference, "reset_reference")

    def cut(self, minibatch: Batch) -> list[list[int]]:
        """See Learner."""
        return self._learner.cut(minibatch)

    def update(self, minibatch: Batch, learning_rate: float, trace: Trace | None = None) -> dict[str, float]:
        """See Learner."""
        tensors = tensors_of(minibatch)
        if trace is not None and trace.bucket is not None:
            tensors[BUCKET] = trace.bucket
        run = lambda: self._learner.update(minibatch, learning_rate, trace)  # noqa: E731
        return self._call(run, "update", tensors, learning_rate=learning_rate, traced=trace is not None)

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See Learner. Whoever stops taking them early leaves the rest to the next call."""
        self._finish_export()
        self._export = self._exported()
        return self._export

    def parameters(self) -> Iterator[tuple[str, Tensor, bool]]:
        """See Learner."""
        return self._learner.parameters()

    def state_dict(self) -> dict[str, Tensor]:
        """See Learner."""
        return self._call(self._learner.state_dict, "state_dict")

    def restore(self, path: Path, state: Mapping[str, Any]) -> None:
        """See Learner."""
        self._call(lambda: self._learner.restore(path, state), "restore", dict(state), path=str(path.resolve()))

    def host_weights(self) -> dict[str, Tensor]:
        """See Learner."""
        return self._call(self._learner.host_weights, "host_weights")

    def save_hf(self, path: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """See Learner."""
        if weights is not None:
            self._learner.save_hf(path, weights)
            return
        self._call(lambda: self._learner.save_hf(path), "save_hf", path=str(path.resolve()))

    def write_state(self, folder: Path) -> None:
        """See SavesItself."""
        self._call(lambda: self._learner.write_state(folder), "write_state", path=str(folder.resolve()))

    def read_state(self, folder: Path) -> None:
        """See SavesItself."""
        self._call(lambda: self._learner.read_state(folder), "read_state", path=str(folder.resolve()))

    def close(self) -> None:
        """Sends the other ranks home. Safe to call twice, and when they are gone."""
        if self._lost:
            return
        try:
            self._finish_export()
            self._line.send({"call": "stop"})
            self._line.hang_up()
        except (RuntimeError, LearnerLost):
            pass
        self._lost = "the sharded learner was closed"

    # --- how it works ---------------------------------------------------------------------------

    def _call(self, run: Callable[[], T], name: str, tensors: Mapping[str, Tensor] | None = None, **plain: Any) -> T:
        self._finish_export()
        with self._watched():
            self._line.send({"call": name, **plain}, tensors)
            result, refusal = attempted(run)
            self._agree(refusal)
        if refusal is not None:
            raise refusal
        return result  # type: ignore[return-value]

    def _exported(self) -> Generator[tuple[str, Tensor], None, None]:
        with self._watched():
            self._line.send({"call": "export"})
            weights = self._learner.export_weights()
        try:
            while (pair := self._next(weights)) is not None:
                yield pair
        finally:
            while not self._lost and self._next(weights) is not None:
                pass  # the other ranks gather every weight
            with self._watched():
                self._agree(None)

    def _next(self, weights: Iterator[tuple[str, Tensor]]) -> tuple[str, Tensor] | None:
        with self._watched():
            return next(weights, None)

    def _finish_export(self) -> None:
        begun, self._export = self._export, None
        if begun is not None:
            begun.close()

    def _agree(self, refusal: Exception | None) -> None:
        answers = self._line.answers("" if refusal is None else type(refusal).__name__)
        for rank, answer in enumerate(answers):
            if answer != answers[0]:
                said = answer or f"did what rank 0 could not ({answers[0]}: {refusal})"
                self._lost = f"rank {rank} of {len(answers)} of the sharded learner: {said}"
                raise LearnerLost(self._lost)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Turns the loss of a rank into LearnerLost, which every later call raises again."""
        if self._lost:
            raise LearnerLost(self._lost)
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            if isinstance(error, LearnerLost):
                raise
            self._lost = (
                f"the sharded learner lost one of its {self._line.count} ranks ({brief(error)}); "
                "go on from the newest checkpoint with --resume"
            )
            if is_of_the_line(error):
                raise LearnerLost(self._lost) from error
            self._lost = f"the sharded learner stopped in the middle of a call: {brief(error)}"
            raise


def follow(learner: FsdpLearner, line: Line) -> None:
    """Makes every call that rank 0 makes, until it says stop. Raises LearnerLost when rank 0 has gone."""
    try:
        while True:
            header, tensors = line.receive()
            if header["call"] == "stop":
                line.hang_up()
                return
            _, refusal = attempted(lambda: make_call(learner, header, tensors))  # noqa: B023 - called at once
            line.answers("" if refusal is None else type(refusal).__name__)
    except RuntimeError as error:
        if not is_of_the_line(error):
            raise
        raise LearnerLost(f"rank {line.rank} of {line.count}: rank 0 has gone, or another rank has") from error


def attempted(run: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What a call gives, or why it was refused."""
    try:
        return run(), None
    except REFUSALS as error:
        return None, error


def make_call(learner: FsdpLearner, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """One call, by its name; what it gives stays on rank 0."""
    call, path = header["call"], Path(header.get("path", ""))
    if call == "logprobs":
        learner.logprobs(batch_of(tensors), reference=header["reference"])
    elif call == "update":
        trace = Trace(bucket=tensors.get(BUCKET)) if header["traced"] else None
        learner.update(batch_of(tensors), header["learning_rate"], trace)
    elif call == "export":
        for _ in learner.export_weights():
            pass
    elif call == "restore":
        learner.restore(path, tensors)
    elif call in ("save_hf", "write_state", "read_state"):
        getattr(learner, call)(path)
    elif call in ("reset_reference", "state_dict", "host_weights"):
        getattr(learner, call)()
    else:
        raise RuntimeError(f"rank 0 asks for {call}, which this version does not know")


def tensors_of(batch: Batch) -> dict[str, Tensor]:
    """A batch's tensors by their names."""
    found = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def batch_of(tensors: Mapping[str, Tensor]) -> Batch:
    """The batch again."""
    return Batch(**{name: tensor for name, tensor in tensors.items() if name != BUCKET})
