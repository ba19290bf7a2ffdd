"""Weights on their way from the learner to the engines, past the process that drives the run.

The learner's first rank packs a version into buckets, which Ray's object store carries to each node once.
The driver holds references. Each bucket brings a fingerprint of what was packed, and an engine that finds
another one refuses it. `dapo.cluster.broadcast` is the other way to the engines.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dapo.errors import EngineError
from dapo.rollout.base import weight_sample

BUCKET_BYTES = 2**28
BLOCK = 512  # 64-bit words that one sum of a fingerprint is over
_ODD = np.arange(1, 2 * BLOCK, 2, dtype=np.uint64)
Named = Iterable[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor stands in its bucket: bytes from `start` on. dtype: torch's name of it, e.g. "bfloat16"."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors packed into one row of bytes, with the fingerprint that was taken there."""

    entries: tuple[Entry, ...]
    data: NDArray[np.uint8]
    fingerprint: str


def fingerprint(entries: Sequence[Entry], data: NDArray[np.uint8]) -> str:
    """A digest of names, shapes, types, places and bytes.

    The bytes are first summed in blocks of 512 words, each word times an odd number, modulo 2^64: one word that
    changes always changes its sum. That is several times faster than hashing them, and it guards against faults,
    not against an adversary.
    """
    digest = hashlib.blake2b(repr(tuple(entries)).encode(), digest_size=16)
    whole = data.size // (8 * BLOCK) * (8 * BLOCK)
    digest.update((data[:whole].view(np.uint64).reshape(-1, BLOCK) @ _ODD).tobytes())
    digest.update(data[whole:].tobytes())
    return digest.hexdigest()


class WeightTransport(Protocol):
    """How a version's weights get from the learner's first rank to an engine.

    Built: `ObjectStore`, and `broadcast.Broadcast`, whose `receive` takes part in a broadcast and needs no parts.
    """

    def send(self, weights: Named) -> Iterator[Any]:
        """In the learner: takes the weights; each part that it yields reaches every engine."""

    def receive(self, parts: Iterable[Any]) -> Iterator[tuple[str, Tensor]]:
        """In an engine: the weights of these parts. Raises EngineError when they are not what was sent."""


class ObjectStore:
    """See WeightTransport: the parts are buckets of bytes.

    Args:
        dtype: what floating-point weights are sent as, e.g. "bfloat16"; None: as they are.
        bucket_bytes: a bucket is closed once it is this large.
    """

    def __init__(self, dtype: str | None = None, bucket_bytes: int = BUCKET_BYTES) -> None:
        self.dtype, self.bucket_bytes = dtype, bucket_bytes

    def send(self, weights: Named) -> Iterator[Bucket]:
        """See WeightTransport."""
        waiting: list[tuple[str, Tensor]] = []
        size = 0
        for name, weight in weights:
            tensor = weight.detach()
            if self.dtype is not None and tensor.is_floating_point():
                tensor = tensor.to(getattr(torch, self.dtype))
            waiting.append((name, tensor.to("cpu").contiguous()))
            size += tensor.numel() * tensor.element_size()
            if size >= self.bucket_bytes:
                yield _packed(waiting)
                waiting, size = [], 0
        if waiting:
            yield _packed(waiting)

    def receive(self, parts: Iterable[Bucket]) -> Iterator[tuple[str, Tensor]]:
        """See WeightTransport. The tensors share the store's memory: they are to be read, not written."""
        for number, bucket in enumerate(parts):
            check(number, bucket.entries, bucket.data, bucket.fingerprint)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the store's memory is read-only, and nobody writes to it
                whole = torch.from_numpy(bucket.data)
            yield from unpacked(bucket.entries, whole)


def check(number: int, entries: Sequence[Entry], data: NDArray[np.uint8], sent: str) -> None:
    """Raises EngineError when part `number` has another fingerprint than was sent."""
    found = fingerprint(entries, data)
    if found != sent:
        raise EngineError(f"weights: part {number} arrived with the fingerprint {found}, and {sent} was sent")


def _packed(weights: Sequence[tuple[str, Tensor]]) -> Bucket:
    entries, start = [], 0
    for name, tensor in weights:
        entries.append(Entry(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), start))
        start += -(-tensor.numel() * tensor.element_size() // 8) * 8  # each begins at a whole word
    data = np.zeros(start, dtype=np.uint8)
    for entry, (_, tensor) in zip(entries, weights, strict=True):
        raw = tensor.reshape(-1).view(torch.uint8).numpy()
        data[entry.start : entry.start + raw.size] = raw
    return Bucket(tuple(entries), data, fingerprint(entries, data))


def unpacked(entries: Sequence[Entry], whole: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors in a bucket's bytes, whose memory they share."""
    for entry in entries:
        dtype: torch.dtype = getattr(torch, entry.dtype)
        count = int(np.prod(entry.shape, dtype=np.int64))
        raw = whole[entry.start : entry.start + count * dtype.itemsize]
        yield entry.name, (raw.view(dtype) if count else raw.new_empty(0, dtype=dtype)).reshape(entry.shape)


class Published:
    """A version's weights in the object store, as `Learner.export_weights` of a remote learner gives them.

    Engines of the cluster take `parts`, by reference. Everybody else iterates over them, which fetches them here.

    Args:
        parts: references to what the transport sent.
        samples: a reference to `weight_sample` of every weight in float32, taken before they were packed.
        fetch: a reference -> what it stands for.
        transport: unpacks them.
    """

    def __init__(
        self, parts: Sequence[Any], samples: Any, fetch: Callable[[Any], Any], transport: WeightTransport
    ) -> None:
        self._found = tuple(parts), samples
        self._fetch, self._transport = fetch, transport

    def found(self) -> tuple[tuple[Any, ...], Any]:
        """References to the parts and to the samples."""
        return self._found

    @property
    def parts(self) -> tuple[Any, ...]:
        """References to what the transport sent."""
        return self.found()[0]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._transport.receive(self._fetch(part) for part in self.parts)

    def samples(self) -> Mapping[str, Tensor]:
        """Of all weights, as the learner holds them."""
        samples: Mapping[str, Tensor] = self._fetch(self.found()[1])
        return samples


def sampled(weights: Named, into: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The weights as they pass, a sample of each being kept."""
    for name, weight in weights:
        into[name] = weight_sample(weight.detach()).to("cpu", torch.float32, copy=True)
        yield name, weight
