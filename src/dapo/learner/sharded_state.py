"""Tensors that are spread over ranks by rows: gathered one at a time, filled from a source, written in parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from dapo.learner.collectives import Ranks
from dapo.learner.stored import Part, Source


def here(tensor: Tensor) -> Tensor:
    """What of a tensor is in this process, without a copy."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return tensor
    local: Tensor = tensor.to_local()
    return local


class ShardedState:
    """How FSDP2 spreads a tensor: rank k holds rows k c to (k + 1) c of the first axis, c = ceil(rows / ranks).

    A tensor of no axes is the same on every rank.
    """

    def __init__(self, ranks: Ranks, mesh: DeviceMesh, device: torch.device) -> None:
        self._ranks, self._mesh, self._device = ranks, mesh, device

    def whole(self, tensor: Tensor) -> Tensor:
        """All of a tensor, on every rank. Collective."""
        tensor = tensor.detach()
        if not isinstance(tensor, DTensor):
            return tensor
        placed: Any = tensor
        if tensor.device.type != self._device.type:  # shards kept in host memory
            placed = tensor.to(self._device)
        whole: Tensor = placed.full_tensor()
        return whole

    def rows(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """This rank's first row, and the one behind its last."""
        count = -(-shape[0] // self._ranks.count)
        start = min(shape[0], self._ranks.rank * count)
        return start, min(shape[0], start + count)

    def fill(self, tensor: Tensor, whole: Tensor) -> None:
        """Overwrites a tensor with this rank's part of the whole."""
        local = here(tensor)
        start, stop = self.rows(tuple(whole.shape))
        local.copy_(whole[start:stop])

    def read(self, tensor: Tensor, source: Source, name: str) -> None:
        """Overwrites a tensor with this rank's part of a source's. Raises ValueError where the shapes differ."""
        shape = source.shape(name)
        if shape != tuple(tensor.shape):
            raise ValueError(f"{name} has shape {shape}, not {tuple(tensor.shape)}")
        local = here(tensor)
        local.copy_(source.rows(name, *self.rows(shape)))

    def spread(self, source: Source, name: str) -> Tensor:
        """This rank's part of a source's tensor, in host memory."""
        shape = source.shape(name)
        local = source.rows(name, *self.rows(shape)).to("cpu", copy=True)
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            local, self._mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride
        )

    def gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of whole tensors in host memory, on rank 0; nothing elsewhere. Collective."""
        result = {}
        for name, tensor in tensors.items():
            whole = self.whole(tensor)
            if self._ranks.first:
                result[name] = whole.to("cpu", copy=True)
        return result

    def parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Part]:
        """What this rank writes of each: its own rows; of what every rank has, rank 0 all."""
        result = {}
        for name, tensor in tensors.items():
            if isinstance(tensor, DTensor):
                start, _ = self.rows(tuple(tensor.shape))
                result[name] = Part(here(tensor).cpu(), tuple(tensor.shape), start)
            else:
                own = tensor.detach().cpu()
                result[name] = Part(own if self._ranks.first else own.new_empty(0), tuple(tensor.shape), 0)
        return result
