"""A model in shards: FSDP2 over its decoder blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from dapo.config.scale import FsdpConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpSettings:
    """See the configuration fields learner.fsdp.*."""

    reshard_after_forward: bool = True
    cpu_offload: bool = False

    @classmethod
    def of(cls, config: FsdpConfig) -> FsdpSettings:
        """Of a configuration."""
        return cls(reshard_after_forward=config.reshard_after_forward, cpu_offload=config.cpu_offload)


class Whole(nn.Module):
    """The outermost sharded module. Body and head are called apart, and its own weights are gathered around both."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: Callable[[], Any]) -> Any:
        """Runs a forward pass of the model."""
        return run()


def shard(model: Any, mesh: DeviceMesh, sharding: FsdpSettings, dtype: torch.dtype) -> Any:
    """Shards each decoder block, then all the rest, in place; returns the outermost module. Gradients are summed."""
    lower = None if dtype == torch.float32 else dtype
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=lower, reduce_dtype=lower and torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
        if sharding.cpu_offload
        else OffloadPolicy(),
    }
    for block in decoder_blocks(model):
        fully_shard(block, reshard_after_forward=sharding.reshard_after_forward, **options)
    root: Any = fully_shard(Whole(model), reshard_after_forward=False, **options)
    for module in sharded_modules(root):
        module.set_gradient_divide_factor(1.0)  # the denominator was handed in
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no other way to a sum
    if hasattr(root, "set_reduce_scatter_unused_params"):  # experts that only some ranks' tokens reach
        root.set_reduce_scatter_unused_params(True)
    return root


def decoder_blocks(model: Any) -> list[nn.Module]:
    """The modules that transformers never splits over devices. None are found in some models: one shard then."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    found = [module for module in model.modules() if type(module).__name__ in names]
    inner = {id(child) for module in found for child in module.modules() if child is not module}
    return [module for module in found if id(module) not in inner]


def sharded_modules(root: nn.Module) -> list[Any]:
    """Those with shards of their own."""
    return [module for module in root.modules() if isinstance(module, FSDPModule)]
