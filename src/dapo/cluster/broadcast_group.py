"""Who takes part in broadcasts of weights, as the process that drives the run sees it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from dapo.cluster.broadcast import SECONDS, Broadcast, Meeting
from dapo.cluster.weights import ObjectStore, Published


@dataclass(frozen=True, slots=True)
class Sending:
    """One version on its way.

    sender: the first rank's transport.
    receivers: engine number -> its actor, and its transport.
    confirm: to be called once all of them have the version.
    """

    sender: ObjectStore
    receivers: Mapping[int, tuple[Any, Broadcast]]
    confirm: Callable[[], None]


class BroadcastGroup:
    """Who takes part in broadcasts. A new generation is formed when an engine was replaced, or a broadcast failed.

    Args:
        host: address of this machine that members reach; the store where they meet listens there alone.
        members: engine number -> actor, of engines that can take part now.
        gpus: every member has one.
        seconds: that members wait for each other.
    """

    def __init__(
        self, host: str, members: Callable[[], Mapping[int, Any]], *, gpus: bool = False, seconds: float = SECONDS
    ) -> None:
        with socket.socket() as listener:
            listener.bind((host, 0))
            port = int(listener.getsockname()[1])
            self._store = dist.TCPStore(  # type: ignore[attr-defined]
                host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
            )
        self._address, self._gpus, self._seconds = f"{host}:{port}", gpus, seconds
        self._members, self._last = members, dict[int, Any]()
        self._generation, self._sound = 0, False

    def begin(self, plain: ObjectStore) -> Sending:
        """Of a version that is about to be exported. plain: how it is sent where no engine can take part."""
        members = dict(self._members())
        if not self._sound or members != self._last:
            self._generation += 1
        self._last, self._sound = members, False
        meeting = Meeting(self._address, self._generation, len(members) + 1, self._gpus, self._seconds)
        receivers = {
            number: (actor, Broadcast(meeting, place)) for place, (number, actor) in enumerate(members.items(), 1)
        }
        sender = Broadcast(meeting, 0, plain.dtype, plain.bucket_bytes) if members else plain
        return Sending(sender, receivers, self._confirm)

    def _confirm(self) -> None:
        self._sound = True


class Underway(Published):
    """A version that the learner sends as soon as the engines receive it. See Published.

    Args:
        sending: who receives it, and how.
        stored: waits until all of it is in the object store; gives parts and samples.
        fetch, transport: see Published.
    """

    def __init__(
        self, sending: Sending, stored: Callable[[], tuple[list[Any], Any]], fetch: Callable[[Any], Any],
        transport: ObjectStore,
    ) -> None:  # fmt: skip
        super().__init__((), None, fetch, transport)
        self.sending, self._stored, self._known = sending, stored, False

    def found(self) -> tuple[tuple[Any, ...], Any]:
        """See Published."""
        if not self._known:
            parts, samples = self._stored()
            self._found, self._known = (tuple(parts), samples), True
        return self._found
