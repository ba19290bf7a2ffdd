"""One rank of the learner, in a process of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import Tensor

from dapo.cluster.replies import Actor, Reply
from dapo.cluster.session import need_ray
from dapo.cluster.weights import WeightTransport, sampled
from dapo.learner.base import Learner, Trace, weight_numbers
from dapo.types import Batch

GROUP_TIMEOUT = timedelta(minutes=30)  # of a collective: a peer that died is seen much sooner, by its closed connection


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank of how many, and where they meet. address: "HOST:PORT" of rank 0; "" for one rank alone."""

    rank: int = 0
    size: int = 1
    address: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """What a rank builds: its learner, and plain facts that the run's own process asks for."""

    learner: Learner
    facts: Any


class RankActor(Actor):
    """Builds a learner and calls it. Calls come in order; `save_hf` may run beside them."""

    def address(self, alone: bool) -> Reply:
        """ "HOST:PORT", free just now, where the other ranks can meet this one. alone: they are on this machine."""
        host = "127.0.0.1" if alone else need_ray().util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return self._reply(f"{host}:{probe.getsockname()[1]}")

    def start(self, make: Callable[[Place], Made], place: Place) -> Reply:
        """Joins the process group, builds the learner anew; rank 0 replies with the facts."""
        _join(place)
        self._learner, self._place = (made := make(place)).learner, place
        return self._answer(made.facts)

    def call(self, name: str, *arguments: Any, **more: Any) -> Reply:
        """A method of the learner. Rank 0 replies with what it returned."""
        result = getattr(self._learner, name)(*arguments, **more)
        return self._answer(list(result) if isinstance(result, Iterator) else result)

    def update(self, minibatch: Batch, learning_rate: float, trace: Trace | None) -> Reply:
        """See Learner. Rank 0 replies with the metrics and the trace."""
        return self._answer((self._learner.update(minibatch, learning_rate, trace), trace))

    def parameter_samples(self) -> Reply:
        """(name, `weight_numbers` of it, how many numbers it has, whether updates move it) of what is held here."""
        own = self._learner
        return self._reply([(name, weight_numbers(w), w.numel(), moves) for name, w, moves in own.parameters()])

    def export(self, transport: WeightTransport) -> Iterator[Any]:
        """Rank 0: yields what the transport sends, then samples of the weights. The others only take part."""
        samples: dict[str, Tensor] = {}
        if self._place.rank:
            for _ in self._learner.export_weights():
                pass
            return
        yield from transport.send(sampled(self._learner.export_weights(), samples))
        yield samples

    def save_hf(self, *arguments: Any) -> Reply:
        """See Learner."""
        self._learner.save_hf(*arguments)
        return self._answer(None)

    def _answer(self, value: Any) -> Reply:
        return self._reply(value if self._place.rank == 0 else None)


def _join(place: Place) -> None:
    """Enters the process group of a generation, after leaving an earlier one. A rank alone has none."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    if place.size == 1:
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend,
        init_method=f"tcp://{place.address}",
        rank=place.rank,
        world_size=place.size,
        timeout=GROUP_TIMEOUT,
    )
