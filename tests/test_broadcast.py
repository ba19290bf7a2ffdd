"""Weights by broadcast between plain processes: bit for bit, and what becomes of the others when a member fails."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dapo.cluster import broadcast
from dapo.cluster.broadcast import Broadcast, Meeting, Member
from dapo.cluster.broadcast_group import BroadcastGroup, Sending
from dapo.cluster.weights import Bucket, ObjectStore

SECONDS = 4.0  # that members wait for each other here
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["dapo.cluster.broadcast"])


def weights(version: int = 0) -> list[tuple[str, Tensor]]:
    """Several types, odd sizes, a scalar, empty ones."""
    generator = torch.Generator().manual_seed(version)
    shapes = {"matrix": (37, 129), "odd": (3, 5, 7), "one": (), "none": (0, 4), "long": (4099,)}
    found = [(name, torch.randn(shape, generator=generator)) for name, shape in shapes.items()]
    return [
        *found,
        ("half", found[0][1][:, :5].to(torch.bfloat16)),
        ("whole", torch.arange(-3, 4)),
        ("last", torch.empty(0)),
    ]


Plain = list[tuple[str, tuple[int, ...], str, bytes]]


def plain(tensors: Any) -> Plain:
    """Names, shapes, types and bits."""
    return [
        (name, tuple(t.shape), str(t.dtype), t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, t in tensors
    ]


# --- what members do, in processes of their own -------------------------------------------------------


def sends(transport: ObjectStore, version: int) -> list[Bucket]:
    """Member 0: what would go into the object store."""
    return list(transport.send(weights(version)))


def damages(transport: ObjectStore, version: int) -> list[Bucket]:
    """Member 0, whose bytes change on their way."""
    begin = Member.begin

    def damaged(member: Member, bucket: Bucket) -> None:
        data = bucket.data.copy()
        data[0] ^= 1
        begin(member, replace(bucket, data=data))

    Member.begin = damaged  # type: ignore[method-assign]
    try:
        return sends(transport, version)
    finally:
        Member.begin = begin  # type: ignore[method-assign]


def breaks_off(transport: ObjectStore, version: int) -> None:
    """Member 0, whose export fails after its first bucket."""
    stream = transport.send(weights(version))
    next(stream)
    stream.close()  # type: ignore[attr-defined]


def receives(transport: Broadcast) -> Plain:
    """An engine."""
    return plain(transport.receive(()))


def dies(transport: Broadcast) -> None:
    """An engine, in the middle."""
    next(transport.receive(()))
    os._exit(9)


def leaves(transport: Broadcast) -> None:
    """An engine that refuses a weight, in the middle."""
    for _ in transport.receive(()):
        raise KeyError("unknown weight")


def generations() -> tuple[int, bool]:
    """The generation that a member is in, and whether it was lost. The default group is not there."""
    assert not torch.distributed.is_initialized()
    assert broadcast._here is not None
    return broadcast._here.meeting.generation, broadcast._here.lost


def _serve(pipe: Any) -> None:
    torch.set_num_threads(1)
    while True:
        call, arguments = pipe.recv()
        try:
            pipe.send((call(*arguments), None))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}"))


class Worker:
    """A process that does one call after the other."""

    def __init__(self) -> None:
        self._pipe, there = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=_serve, args=(there,), daemon=True)
        self.process.start()
        there.close()

    def ask(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Begins a call."""
        self._pipe.send((call, arguments))

    def answer(self, seconds: float = 30) -> tuple[Any, str | None]:
        """What the call returned, and what it raised. A call that hangs fails the test."""
        assert self._pipe.poll(seconds), "it hangs"
        return self._pipe.recv()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.join()


class Side:
    """A learner and engines in processes, and the group as a driver has it."""

    def __init__(self, engines: int) -> None:
        self.learner = Worker()
        self.engines = {number: Worker() for number in range(engines)}
        self.group = BroadcastGroup("127.0.0.1", lambda: self.engines, seconds=SECONDS)

    def round(
        self,
        version: int = 0,
        *,
        dtype: str | None = None,
        bucket_bytes: int = 5000,
        send: Callable[..., Any] = sends,
        receive: dict[int, Callable[..., Any] | None] | None = None,
    ) -> tuple[tuple[Any, str | None], dict[int, tuple[Any, str | None]], Sending]:
        """One version: what came of the learner, and of each engine that lives; how it was sent.

        receive: what engines do; None: nothing.
        """
        sending = self.group.begin(ObjectStore(dtype, bucket_bytes))
        self.learner.ask(send, sending.sender, version)
        asked = {}
        for number, (worker, transport) in sending.receivers.items():
            call = (receive or {}).get(number, receives)
            if call is not None and worker.process.is_alive():
                worker.ask(call, transport)
                asked[number] = worker
        learner = self.learner.answer()
        alive = {n: worker for n, worker in asked.items() if (receive or {}).get(n) is not dies}
        return learner, {n: worker.answer() for n, worker in alive.items()}, sending

    def close(self) -> None:
        """Ends all."""
        for worker in (self.learner, *self.engines.values()):
            worker.close()


def stored(buckets: list[Bucket]) -> Plain:
    """The weights in what was yielded for the object store."""
    return plain(ObjectStore().receive(buckets))


@pytest.fixture(name="side", params=[1, 2], ids=["2 members", "3 members"], scope="module")
def fixture_side(request: pytest.FixtureRequest) -> Iterator[Side]:
    """Processes that several tests share: one generation after the other."""
    side = Side(request.param)
    yield side
    side.close()


@pytest.fixture(name="three")
def fixture_three() -> Iterator[Side]:
    """A learner and two engines of which some will die."""
    side = Side(2)
    yield side
    side.close()


@pytest.mark.parametrize("dtype", [None, "bfloat16"], ids=["as they are", "bfloat16"])
@pytest.mark.parametrize("bucket_bytes", [1, 5000, 2**28])
def test_weights_arrive_bit_for_bit(side: Side, dtype: str | None, bucket_bytes: int) -> None:
    """By the broadcast and in the store the same: what the object store alone would have carried."""
    wanted = list(ObjectStore(dtype, bucket_bytes).send(weights(7)))
    (buckets, _), got, sending = side.round(7, dtype=dtype, bucket_bytes=bucket_bytes)
    assert [bucket.fingerprint for bucket in buckets] == [bucket.fingerprint for bucket in wanted]
    assert len(got) == len(side.engines)
    for found, error in got.values():
        assert error is None
        assert found == stored(wanted)
    sending.confirm()


def test_a_group_stands_until_something_changes(side: Side) -> None:
    """Versions one after the other by the same group; a version that nobody confirms is the last of its generation."""
    seen = []
    for version in range(3):
        (buckets, _), got, sending = side.round(version)
        assert all(found == stored(buckets) for found, _ in got.values())
        side.learner.ask(generations)
        seen.append(side.learner.answer()[0])
        if version == 0:
            sending.confirm()
    first = seen[0][0]
    assert seen == [(first, False), (first, False), (first + 1, False)]


def test_a_changed_byte_is_refused(three: Side) -> None:
    """By every engine, in the words of the object store; the learner goes on, and so does the next generation."""
    start = time.monotonic()
    (buckets, error), got, _ = three.round(1, send=damages)
    assert error is None
    assert stored(buckets) == plain(weights(1))
    told = [words for _, words in got.values() if words and words.startswith("EngineError: weights: part 0 arrived")]
    assert told
    assert all(found is None for found, _ in got.values())
    assert time.monotonic() - start < SECONDS  # nobody waited for somebody who had left
    assert_next(three, 2)


def assert_next(side: Side, version: int) -> None:
    """The next version reaches all."""
    (buckets, error), got, sending = side.round(version)
    assert error is None
    assert stored(buckets) == plain(weights(version))
    assert [found == plain(weights(version)) for found, _ in got.values()] == [True] * len(side.engines)
    sending.confirm()


def replaced(side: Side, number: int) -> None:
    """A fresh process takes a dead one's place."""
    side.engines[number].close()
    side.engines = {**side.engines, number: Worker()}


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("standing", [False, True], ids=["first broadcast", "later one"])
def test_an_engine_that_dies_in_a_broadcast(three: Side, victim: int, standing: bool) -> None:
    """The learner stores all of it, the other engine is told; the replacement is in the next generation."""
    if standing:
        assert_next(three, 0)
    (buckets, error), got, _ = three.round(1, receive={victim: dies, 1 - victim: receives})
    assert error is None
    assert stored(buckets) == plain(weights(1))
    ((found, told),) = got.values()
    assert found == plain(weights(1)) or (told or "").startswith("BroadcastLost")
    replaced(three, victim)
    assert_next(three, 2)


def test_an_engine_that_was_dead_before(three: Side) -> None:
    """In a group that stands the closed connection tells; one that is only formed waits for so many seconds."""
    assert_next(three, 0)
    three.engines[1].close()
    for version in (1, 2):
        start = time.monotonic()
        (buckets, error), got, _ = three.round(version)
        assert error is None
        assert stored(buckets) == plain(weights(version))
        assert list(got) == [0]
        assert got[0][0] == plain(weights(version)) or (got[0][1] or "").startswith("BroadcastLost")
        assert time.monotonic() - start < 3 * SECONDS + broadcast.GRACE_S
    replaced(three, 1)
    assert_next(three, 3)


def test_an_engine_that_does_not_come(three: Side) -> None:
    """The others give up after so many seconds. When it comes late, it gives up too."""
    (buckets, error), got, sending = three.round(1, receive={1: None})
    assert error is None
    assert stored(buckets) == plain(weights(1))
    assert (got[0][1] or "").startswith("BroadcastLost: the broadcast failed")
    start = time.monotonic()
    three.engines[1].ask(receives, sending.receivers[1][1])
    assert (three.engines[1].answer()[1] or "").startswith("BroadcastLost")
    assert time.monotonic() - start < SECONDS
    assert_next(three, 2)


@pytest.mark.parametrize("way", [breaks_off, leaves], ids=["the learner", "an engine"])
def test_who_breaks_off_does_not_keep_the_others(three: Side, way: Callable[..., Any]) -> None:
    """Well before the time that members wait."""
    assert_next(three, 0)
    start = time.monotonic()
    if way is breaks_off:
        _, got, _ = three.round(1, send=breaks_off)
        assert [(told or "").split(":")[0] for _, told in got.values()] == ["BroadcastLost"] * 2
    else:
        (buckets, error), _, _ = three.round(1, receive={0: leaves})
        assert error is None
        assert stored(buckets) == plain(weights(1))
    assert time.monotonic() - start < SECONDS
    assert_next(three, 2)


def test_without_engines_there_is_no_broadcast() -> None:
    """All of them are being replaced: the object store alone."""
    group = BroadcastGroup("127.0.0.1", dict)
    own = ObjectStore("bfloat16", 17)
    sending = group.begin(own)
    assert sending.sender is own
    assert not sending.receivers


def test_generations_change_with_the_members() -> None:
    """And the type and the size of buckets are those of the object store."""
    actors: dict[int, Any] = {0: "a", 1: "b"}
    group = BroadcastGroup("127.0.0.1", lambda: actors)
    seen = []
    for change in ({}, {}, {1: "c"}, {}):
        actors.update(change)
        sending = group.begin(ObjectStore("bfloat16", 17))
        assert (sending.sender.dtype, sending.sender.bucket_bytes) == ("bfloat16", 17)
        meetings: list[Meeting] = [sending.sender._meeting, *(t._meeting for _, t in sending.receivers.values())]  # type: ignore[attr-defined]
        assert len(set(meetings)) == 1
        assert meetings[0].size == 3
        seen.append(meetings[0].generation)
        sending.confirm()
    assert np.diff(seen).tolist() == [0, 1, 0]
