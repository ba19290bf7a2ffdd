"""What the ranks of a sharded learner tell each other beside weights and gradients: numbers, as JSON or tensors.

Everything goes through the host: gloo, also where weights go by NCCL. Nothing is pickled.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """This process among those of the default process group, which has to be there. Made by all ranks together.

    group: a gloo group of all ranks; the default one, or a new one beside it where that knows no CPU.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        if group is None and "cpu:gloo" not in dist.get_backend_config():
            group = dist.new_group(backend="gloo")
        self.group = group

    @property
    def first(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Every rank's plain value (what JSON can say; floats exactly, not finite ones too), in their order."""
        if self.count == 1:
            return [value]
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor([len(data)]), group=self.group)
        longest = max(map(int, sizes))
        found = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.count)]
        dist.all_gather(found, torch.nn.functional.pad(data, (0, longest - len(data))), group=self.group)
        return [json.loads(bytes(one[: int(size)].tolist())) for one, size in zip(found, sizes, strict=True)]

    def sum(self, value: float) -> float:
        """The sum of a number over the ranks, added in their order: the same bits on each."""
        return float(sum(self.gather(value)))

    def add(self, tensor: Tensor) -> Tensor:
        """Adds the ranks' tensors up, in place. On the CPU."""
        if self.count > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor
