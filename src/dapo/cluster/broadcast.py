"""Weights by a broadcast of torch.distributed, in place of the object store alone.

The learner's first rank and the engines form a process group of their own, made of the backend's class itself, so that
the default group, which is the learner's, is not touched: ProcessGroupGloo, or ProcessGroupNCCL where all of them have
GPUs. While a bucket is broadcast, the same bucket is put into the object store. That is where an engine takes a
version from whose broadcast failed, or that it was not there for; so a death costs time and no weights.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dapo.cluster.weights import BUCKET_BYTES, Bucket, Entry, Named, ObjectStore, check, unpacked
from dapo.errors import EngineError

logger = logging.getLogger(__name__)

SECONDS = 60.0  # that members wait for each other, to meet and in each broadcast
GRACE_S = 5.0  # after which an operation is given up that the backend should have given up
LEFT = "left"  # what the store says of a generation that a member has left
LOOK_S = 0.001  # between two looks at an operation
WATCHDOG = timedelta(minutes=30)  # of NCCL, which ends the process: we give up long before


class BroadcastLost(Exception):
    """A member is gone, or kept the others waiting."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """One generation of a group. Member 0 is the learner's first rank, the others are engines.

    address: "HOST:PORT" of the store where members meet.
    generation: told apart by it from earlier groups at the same address.
    gpus: every member has one.
    seconds: that members wait for each other.
    """

    address: str
    generation: int
    size: int
    gpus: bool = False
    seconds: float = SECONDS


class Member:
    """This process in a generation: meets the others once, then sends or receives until one of them is lost."""

    def __init__(self, meeting: Meeting, number: int) -> None:
        self.meeting, self._number = meeting, number
        self._device = torch.device("cuda" if meeting.gpus else "cpu")
        self._store: Any = None
        self._group: Any = None
        self._sending: Any = None
        self.lost = False

    def meet(self) -> None:
        """Waits for the others, the first time. Raises BroadcastLost: they did not come, or one was lost before."""
        if self.lost:
            raise BroadcastLost("an earlier broadcast of this group failed")
        if self._group is None:
            with self._told():
                self._store = _store(self.meeting)
                self._group = _group(self.meeting, self._number, self._store)

    def begin(self, bucket: Bucket) -> None:
        """Announces a bucket and begins to send its bytes, which `finish` waits for."""
        entries = [(entry.name, entry.shape, entry.dtype, entry.start) for entry in bucket.entries]
        words = bytearray(json.dumps([bucket.fingerprint, entries]).encode())
        with self._told():
            self._wait(self._broadcast(torch.tensor([len(words), bucket.data.size])))
            self._wait(self._broadcast(torch.frombuffer(words, dtype=torch.uint8)))
            if bucket.data.size:
                self._sending = self._broadcast(torch.from_numpy(bucket.data))

    def finish(self) -> None:
        """Waits until the bytes have been sent."""
        work, self._sending = self._sending, None
        if work is not None:
            with self._told():
                self._wait(work)

    def end(self) -> None:
        """Says that there is no further bucket."""
        with self._told():
            self._wait(self._broadcast(torch.zeros(2, dtype=torch.int64)))

    def arriving(self) -> Iterator[tuple[tuple[Entry, ...], Tensor, str]]:
        """Buckets as they arrive: entries, bytes, and the fingerprint that was taken before they were sent."""
        while True:
            words, size = self._take(2, torch.int64).tolist()
            if not words:
                return
            told = bytes(self._take(words, torch.uint8).tolist())
            try:
                fingerprint, entries = json.loads(told)
                stated = tuple(Entry(name, tuple(shape), dtype, start) for name, shape, dtype, start in entries)
            except (ValueError, TypeError) as error:
                raise EngineError(f"weights: what announces a part can't be read ({error})") from None
            yield stated, self._take(size, torch.uint8), fingerprint

    def leave(self) -> None:
        """Closes the connections, by which the others see it; who comes later reads it in the store."""
        store, self._store = self._store, None
        if store is not None:
            with suppress(RuntimeError):
                store.set(LEFT, "")
        group, self._group, self._sending, self.lost = self._group, None, None, True
        if group is not None and self.meeting.gpus:
            group.abort()

    def _take(self, count: int, dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(count, dtype=dtype, device=self._device)
        if count:
            with self._told():
                self._wait(self._broadcast(tensor))
        return tensor

    def _broadcast(self, tensor: Tensor) -> Any:
        return self._group.broadcast([tensor.to(self._device)])  # from member 0

    def _wait(self, work: Any) -> None:
        """Looks instead of waiting: NCCL's own wait returns at once, and then the GPU waits without a limit."""
        until = time.monotonic() + self.meeting.seconds + GRACE_S
        while not work.is_completed():
            if time.monotonic() > until:
                raise RuntimeError(f"nothing came within {self.meeting.seconds:.0f} seconds")
            time.sleep(LOOK_S)
        work.wait()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What torch raises, as BroadcastLost; the group is left."""
        try:
            yield
        except RuntimeError as error:
            self.leave()
            raise BroadcastLost(f"the broadcast failed: {' '.join(str(error).split())[:200]}") from None


_here: Member | None = None  # of this process, which is in one group at a time


def _member(meeting: Meeting, number: int) -> Member:
    """This process's member of a generation; an earlier one is left."""
    global _here
    if _here is None or _here.meeting != meeting:
        if _here is not None:
            _here.leave()
        _here = Member(meeting, number)
    return _here


def _store(meeting: Meeting) -> Any:
    """The part of the store that is of this generation."""
    host, port = meeting.address.rsplit(":", 1)
    limit = timedelta(seconds=meeting.seconds)
    c10d: Any = dist
    there = c10d.TCPStore(host, int(port), is_master=False, timeout=limit, wait_for_workers=False)
    return c10d.PrefixStore(str(meeting.generation), there)


def _group(meeting: Meeting, number: int, store: Any) -> Any:
    """The process group, once every member is there."""
    limit = timedelta(seconds=meeting.seconds)
    c10d: Any = dist
    if store.check([LEFT]):  # connecting to who has left takes several times as long as members wait
        raise RuntimeError("a member has left the group before this one came")
    store.set(f"here/{number}", "")
    store.wait([f"here/{other}" for other in range(meeting.size)], limit)
    if meeting.gpus:
        nccl = c10d.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = WATCHDOG
        return nccl(store, number, meeting.size, options)
    gloo = c10d.ProcessGroupGloo
    options = gloo._Options()  # the public constructor listens where the machine's name leads, which may be nowhere
    options._timeout = limit
    host, port = meeting.address.rsplit(":", 1)
    options._devices = [gloo.create_device(hostname=_own_address(host, int(port)))]
    return gloo(store, number, meeting.size, options)


def _own_address(host: str, port: int) -> str:
    """This machine's address as `host` sees it; 127.0.0.1 when that is the host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


class Broadcast(ObjectStore):
    """See WeightTransport: of one member in one generation.

    What `send` yields are the object store's buckets. `receive` takes no parts, since all comes by the group.

    Args:
        meeting: the generation.
        number: of this member in it.
        dtype, bucket_bytes: see ObjectStore.
    """

    def __init__(
        self, meeting: Meeting, number: int, dtype: str | None = None, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        super().__init__(dtype, bucket_bytes)
        self._meeting, self._number = meeting, number

    def send(self, weights: Named) -> Iterator[Bucket]:
        """See WeightTransport. A bucket is stored while it is broadcast; once the group is lost, it is stored alone."""
        own, whole = _member(self._meeting, self._number), False

        def attempt(step: Callable[..., None], *arguments: Any) -> None:
            try:
                if not own.lost:
                    step(*arguments)
            except BroadcastLost as error:
                logger.warning("weights: %s; the engines get them from the object store", error)

        attempt(own.meet)
        try:
            for bucket in super().send(weights):
                attempt(own.begin, bucket)
                yield bucket
                attempt(own.finish)
            attempt(own.end)
            whole = True
        finally:
            if not whole:
                own.leave()  # the engines would wait for the rest

    def receive(self, parts: Iterable[Any]) -> Iterator[tuple[str, Tensor]]:
        """See WeightTransport. Raises BroadcastLost too; weights that were handed out until then are too few."""
        own, whole = _member(self._meeting, self._number), False
        try:
            own.meet()
            for number, (entries, data, sent) in enumerate(own.arriving()):
                check(number, entries, data.cpu().numpy(), sent)
                yield from unpacked(entries, data)
            whole = True
        finally:
            if not whole:
                own.leave()
