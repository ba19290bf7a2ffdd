"""A learner whose ranks are actors: every call goes to all of them, rank 0 answers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo.cluster.broadcast_group import BroadcastGroup, Underway
from dapo.cluster.rank import Made, Place
from dapo.cluster.replies import Died, cause_of, reason_of, receive
from dapo.cluster.session import need_ray
from dapo.cluster.weights import ObjectStore, Published
from dapo.errors import LearnerLost
from dapo.learner.base import Trace
from dapo.types import Batch

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

PEERS_S = 30.0  # that ranks get to come to the same end as one that failed, before all of them are given up


class RemoteLearner:
    """See Learner: r ranks in actors.

    All ranks get each call with the same arguments, which stand in the object store once. When a rank dies, or
    fails where others do not, the others are ended too, since they would wait for it: every call from then on
    raises LearnerLost.

    Args:
        ranks: actors, rank 0 first.
        make: builds the learner of a rank; a function that can be imported there, or a partial of one.
        transport: of weights.
        stop: ends an actor.

    Attributes:
        group: by which weights are broadcast too; None: they go by the transport alone.

    The ranks begin at once; `ready` waits for them.
    """

    def __init__(
        self,
        ranks: Sequence[Any],
        make: Callable[[Place], Made],
        *,
        transport: ObjectStore,
        stop: Callable[[Any], None],
    ) -> None:
        self._ranks, self._stop = list(ranks), stop
        self.transport = transport
        self.group: BroadcastGroup | None = None
        self._lost: str | None = None
        self._lock = threading.Lock()
        size, ray = len(self._ranks), need_ray()
        if size == 1:
            address = ""
        else:
            nodes = ray.get([rank.__ray_call__.remote(_node) for rank in self._ranks])
            address = receive(self._ranks[0].address.remote(len(set(nodes)) == 1), "rank 0")
        self._begun = [rank.start.remote(make, Place(number, size, address)) for number, rank in enumerate(self._ranks)]

    def ready(self) -> Any:
        """Waits until the learner is built; returns the facts that rank 0's `make` tells."""
        begun, self._begun = self._begun, []
        return self._gather(begun)

    # --- the seam ---------------------------------------------------------------------------------

    def logprobs(self, batch: Batch, *, reference: bool = False) -> Tensor:
        """See Learner."""
        return self._call("logprobs", _stored(batch), reference=reference)  # type: ignore[no-any-return]

    def reset_reference(self) -> None:
        """See Learner."""
        self._call("reset_reference")

    def cut(self, minibatch: Batch) -> list[list[int]]:
        """See Learner."""
        return self._call("cut", _stored(minibatch))  # type: ignore[no-any-return]

    def update(self, minibatch: Batch, learning_rate: float, trace: Trace | None = None) -> dict[str, float]:
        """See Learner."""
        batch = _stored(minibatch)
        metrics, filled = self._gather(self._each("update", batch, learning_rate, trace))
        if trace is not None and filled is not None:
            trace.logprobs, trace.collision, trace.credit = filled.logprobs, filled.collision, filled.credit
        return metrics  # type: ignore[no-any-return]

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See Learner. What is returned is a `Published`: the weights of now, in the object store.

        With a group the ranks have begun when this returns, and wait for the engines: the weights are `Underway`.
        """
        self._refuse_lost()
        sending = None if self.group is None else self.group.begin(self.transport)
        transport = self.transport if sending is None else sending.sender
        streams = [rank.export.options(num_returns="streaming").remote(transport) for rank in self._ranks]
        fetch = need_ray().get
        if sending is not None:
            return Underway(sending, lambda: self._exported(streams), fetch, self.transport)  # type: ignore[return-value]
        return Published(*self._exported(streams), fetch, self.transport)  # type: ignore[return-value]

    def parameters(self) -> Iterator[tuple[str, Tensor, bool]]:
        """See Learner. Fetches every weight; `parameter_samples` is what checks need."""
        return iter(self._call("parameters"))

    def parameter_samples(self) -> Iterator[tuple[str, Tensor, int, bool]]:
        """(name, numbers of it, how many it has in all, whether updates move it) of every weight.

        Of a weight that is spread over the ranks, `weight_numbers` of each rank's part, one behind the other.
        """
        import torch

        for parts in zip(*self._gather_all(self._each("parameter_samples")), strict=True):
            name, _, _, moves = parts[0]
            yield name, torch.cat([sample for _, sample, _, _ in parts]), sum(count for _, _, count, _ in parts), moves

    def state_dict(self) -> dict[str, Tensor]:
        """See Learner."""
        return self._call("state_dict")  # type: ignore[no-any-return]

    def restore(self, path: Path, state: Mapping[str, Any]) -> None:
        """See Learner. Every rank reads `path` itself."""
        self._call("restore", path, _stored(dict(state)))

    def host_weights(self) -> dict[str, Tensor]:
        """See Learner."""
        return self._call("host_weights")  # type: ignore[no-any-return]

    def save_hf(self, path: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """See Learner. The first rank writes, on a file system that it shares with this process."""
        if weights is None:
            self._call("save_hf", path)
            return
        self._refuse_lost()
        save = self._ranks[0].save_hf.options(concurrency_group="save").remote
        self._gather([save(path, _stored(dict(weights)))])

    def close(self) -> None:
        """Ends the ranks. Safe to call twice."""
        with self._lock:
            ranks, self._ranks = self._ranks, []
            self._lost = self._lost or "it was closed"
            self.group = None
        for rank in ranks:
            self._stop(rank)

    # --- how it works -----------------------------------------------------------------------------

    def _exported(self, streams: Sequence[Any]) -> tuple[list[Any], Any]:
        """References to the parts of an export, and to its samples; waits for the ranks."""
        ray = need_ray()
        try:
            refs, *_ = [list(stream) for stream in streams]
            *parts, samples = refs
            ray.wait(refs, num_returns=len(refs), fetch_local=False)
            ray.get(samples)  # an exception would stand in the last one
        except ray.exceptions.RayTaskError as error:
            raise self._lose(0, f"weights could not be exported: {cause_of(error)}") from None
        except ray.exceptions.RayError as error:
            raise self._lose(0, reason_of(error)) from None
        return parts, samples

    def _call(self, name: str, *arguments: Any, **more: Any) -> Any:
        return self._gather(self._each("call", name, *arguments, **more))

    def _each(self, method: str, *arguments: Any, **more: Any) -> list[Any]:
        """A call of every rank."""
        self._refuse_lost()
        return [getattr(rank, method).remote(*arguments, **more) for rank in self._ranks]

    def _refuse_lost(self) -> None:
        if self._lost is not None:
            raise LearnerLost(self._lost)

    def _gather(self, calls: Sequence[Any]) -> Any:
        """Rank 0's answer, once all have answered. Raises as `_gather_all`."""
        return self._gather_all(calls)[0]

    def _gather_all(self, calls: Sequence[Any]) -> list[Any]:
        """The answers of all ranks.

        Raises:
            LearnerLost: a rank died, or failed in another way than the others.
            Exception: what all of them raised.
        """
        ray = need_ray()
        waiting = {call: rank for rank, call in enumerate(calls)}
        answers: dict[int, Any] = {}
        failed: dict[int, Exception] = {}
        until: float | None = None
        while waiting:
            for call in ray.wait(list(waiting), num_returns=1, timeout=1.0)[0]:
                rank = waiting.pop(call)
                try:
                    answers[rank] = receive(call, f"rank {rank}")
                except Died as error:
                    raise self._lose(rank, str(error)) from None
                except Exception as error:
                    failed[rank] = error
            if failed and until is None:
                until = time.monotonic() + PEERS_S
            if until is not None and waiting and time.monotonic() > until:
                break
        if not failed:
            return [answers[rank] for rank in range(len(calls))]
        rank, first = next(iter(failed.items()))
        if len({(type(e), str(e)) for e in failed.values()}) == 1 and len(failed) == len(calls):
            raise first
        raise self._lose(rank, f"it failed where the others did not, with {type(first).__name__}: {first}") from first

    def _lose(self, rank: int, why: str) -> LearnerLost:
        """Ends all ranks, so that none waits for another; returns the error to be raised."""
        message = f"rank {rank} of the learner is lost: {' '.join(why.split())}"
        with self._lock:
            self._lost = self._lost or message
            ranks, self._ranks = self._ranks, []
        for actor in ranks:
            self._stop(actor)
        return LearnerLost(self._lost)


class RemoteShards(RemoteLearner):
    """A learner of several ranks, which write and read checkpoints themselves. See SavesItself.

    The disk has to be one that all ranks and this process see.
    """

    def write_state(self, folder: Path) -> None:
        """See SavesItself."""
        self._call("write_state", folder)

    def read_state(self, folder: Path) -> None:
        """See SavesItself."""
        self._call("read_state", folder)


def _node(actor: Any) -> str:
    return str(need_ray().get_runtime_context().get_node_id())


def _stored(value: Any) -> Any:
    """A reference to it in the object store, where it stands once for all ranks."""
    return need_ray().put(value)
