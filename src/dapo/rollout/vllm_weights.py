"""The policy's weights on their way into vLLM, and as vLLM decodes with them.

Knows vLLM's modules by their attributes alone, so that it loads without vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dapo.errors import EngineError
from dapo.rollout.base import sampled_columns, weight_sample


class ModelWeights:
    """Names and shapes that the weights of a model have, and the type that vLLM holds them in.

    Args:
        model: a transformers causal LM; it is not kept.
        dtype: of vLLM's weights.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.shapes: dict[str, torch.Size] = {name: weight.shape for name, weight in model.named_parameters()}
        first = {id(weight): name for name, weight in model.named_parameters()}
        every = model.named_parameters(remove_duplicate=False)
        self._tied: dict[str, str] = {name: first[id(weight)] for name, weight in every if name not in self.shapes}

    def plain(self, name: str) -> str:
        """The name under which a weight is handed over: the first one of a tied weight."""
        return self._tied.get(name, name)

    def fault(self, name: str, tensor: Tensor) -> str:
        """What is wrong with a weight that comes; "" if nothing is."""
        if self.plain(name) not in self.shapes:
            return f"unknown weight {name}"
        expected = tuple(self.shapes[self.plain(name)])
        return "" if tensor.shape == expected else f"{name} has shape {tuple(tensor.shape)}, not {expected}"

    @torch.inference_mode()
    def samples(self, model: Any) -> list[tuple[str, Tensor]] | None:
        """`weight_sample` of every weight of vLLM's model under its Hugging Face name.

        None where a module holds weights in a way that isn't known here, or one has no counterpart.
        """
        found: list[tuple[str, Tensor]] = []
        fused: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
        for prefix, module in model.named_modules():
            for kind, weight in module.named_parameters(recurse=False):
                above, _, last = prefix.rpartition(".")
                names = [self.plain(f"{above}.{part}.{kind}".lstrip(".")) for part in fused.get(last, (last,))]
                sample = _sample(module, kind, weight)
                if sample is None or not all(name in self.shapes for name in names):
                    return None
                rows = [self.shapes[name][0] for name in names]
                if sum(rows) > len(sample):
                    return None
                found += zip(names, torch.split(sample[: sum(rows)], rows), strict=True)  # behind them: padding
        return found if {name for name, _ in found} == set(self.shapes) else None


def _sample(module: Any, kind: str, weight: Tensor) -> Tensor | None:
    """The sampled columns of what a module of vLLM computes with; None where that isn't known.

    On a CPU linear layers and the output head multiply by a packed copy of their weight, of which the columns are
    what it makes of rows that are 1 in one place, exactly.
    """
    method = getattr(module, "quant_method", None)
    if method is not None and not type(method).__name__.startswith("Unquantized"):
        return None
    if kind != "weight" or not hasattr(module, "cpu_linear") or type(module).__name__ == "VocabParallelEmbedding":
        return weight_sample(weight) if weight.numel() else None
    width = getattr(module, "input_size", None) or getattr(module, "embedding_dim", None)
    if width is None:
        return None
    columns = sampled_columns(width)
    rows = torch.zeros(len(columns), width, dtype=weight.dtype)
    rows[range(len(columns)), columns] = 1.0
    product: Tensor = method.apply(module, rows).t()  # type: ignore[union-attr]
    return product


class Incoming:
    """Weights as vLLM's loader reads them, one at a time: checked, in vLLM's type, and copies.

    vLLM keeps what it is given until a layer is whole, so a buffer that is filled again needs a copy. It must also
    be given every weight, or the next reload starts from half a layer. So after a fault the rest is zeros, and
    `check` raises.
    """

    def __init__(self, weights: ModelWeights, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._weights, self._tensors = weights, tensors
        self._missing = set(weights.shapes)
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        try:
            for name, tensor in self._tensors:
                if fault := self._weights.fault(name, tensor):
                    raise EngineError(f"load_weights: {fault}")
                if name in self._missing:  # not a second name of a tied weight, nor a second copy
                    self._missing.discard(name)
                    yield name, tensor.detach().to(self._weights.dtype, copy=True)
        except Exception as error:
            self._error = error
        if self._missing and self._error is None:
            count, first = len(self._missing), min(self._missing)
            self._error = EngineError(f"load_weights: {count} weights missing, the first: {first}")
        for name in sorted(self._missing):
            yield name, torch.zeros(self._weights.shapes[name], dtype=self._weights.dtype)

    def check(self) -> None:
        """Raises what went wrong."""
        if self._error is not None:
            raise self._error
