"""The engine's copy of the policy: weights that are overwritten in place, laid out for fast decoding.

A decode step multiplies few rows (one per response) by every weight matrix. Matrix libraries for
large products reorder the weight on each call, which for few rows takes as long as the product.
On a CPU the linear layers of the engine therefore hold their weights reordered once, in oneDNN's
blocked form, and no second time: a plain weight that only linear layers use is given up.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dapo.errors import EngineError
from dapo.rollout.base import sampled_columns, weight_sample

logger = logging.getLogger(__name__)

ROWS = 64  # of the products that the blocked form is chosen for; any other number of rows works too
PROBED = 16  # tokens, spread over the vocabulary, by whose logits packed layers are held to plain ones
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # packed logits from plain ones, in parts of the largest


class EngineWeights:
    """Takes the policy's weights by their Hugging Face names.

    Args:
        model: the engine's own; its linear layers are changed where that makes decoding faster.
    """

    def __init__(self, model: Any) -> None:
        self._plain: dict[str, Tensor] = dict(model.named_parameters())
        self._shapes = {name: weight.shape for name, weight in self._plain.items()}
        self._packed: dict[str, list[PackedLinear]] = {}
        self._elsewhere = False  # matrices are multiplied by something else than linear layers
        if packs(next(iter(self._plain.values()))):
            self._pack(model)

    @property
    def packed(self) -> int:
        """Linear layers that hold their weight in the blocked form."""
        return sum(map(len, self._packed.values()))

    @property
    def all_packed(self) -> bool:
        """Whether every matrix product of the model is by packed layers: a row's result is its own then."""
        return self.packed > 0 and not self._elsewhere

    @torch.no_grad()
    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Overwrites every weight. Raises EngineError for an unknown or missing one, or another shape."""
        missing = set(self._shapes)
        for name, tensor in tensors:
            if name not in self._shapes:
                raise EngineError(f"load_weights: unknown weight {name}")
            if self._shapes[name] != tensor.shape:
                shapes = f"{tuple(tensor.shape)}, not {tuple(self._shapes[name])}"
                raise EngineError(f"load_weights: {name} has shape {shapes}")
            if name in self._plain:
                self._plain[name].copy_(tensor)
            for linear in self._packed.get(name, ()):
                linear.take(tensor)
            missing.discard(name)
        if missing:
            raise EngineError(f"load_weights: {len(missing)} weights missing, the first: {min(missing)}")

    @torch.inference_mode()
    def samples(self) -> Iterator[tuple[str, Tensor]]:
        """See RolloutEngine.weight_samples."""
        for name, weight in self._plain.items():
            yield name, weight_sample(weight)
        for name, linears in self._packed.items():
            for linear in linears:
                yield name, linear.sample()

    @torch.inference_mode()
    def _pack(self, model: Any) -> None:
        """Changes the linear layers; changes them back if the logits are then not the same to rounding."""
        names = {id(weight): name for name, weight in self._plain.items()}
        users: dict[str, list[nn.Linear]] = {}
        others: set[str] = set()
        for module in model.modules():
            for own in module.parameters(recurse=False):
                name = names[id(own)]
                if type(module) is nn.Linear and own is module.weight:
                    users.setdefault(name, []).append(module)
                else:
                    others.add(name)
                    self._elsewhere |= own.ndim > 1 and not isinstance(module, nn.Embedding)
        try:
            expected = _some_logits(model)
            for name, linears in users.items():
                self._packed[name] = [PackedLinear(linear) for linear in linears]
            for name, linears in users.items():
                if name not in others:
                    for linear in linears:
                        linear.weight = nn.Parameter(linear.weight.to("meta"), requires_grad=False)
            same = _close(_some_logits(model), expected)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            logger.debug("packed linear layers: %s", error)
            same = False
        if same:
            self._plain = {name: weight for name, weight in self._plain.items() if name in others or name not in users}
            return
        logger.warning("engine: this model's linear layers can't be packed; it decodes with plain ones")
        for name, linears in users.items():
            for linear in linears:
                linear.weight = self._plain[name]
                linear.__dict__.pop("forward", None)
        self._packed = {}


class PackedLinear:
    """The forward pass of one nn.Linear over its weight in oneDNN's blocked form."""

    def __init__(self, linear: nn.Linear) -> None:
        self._dtype = linear.weight.dtype
        self._bias = linear.bias
        self.take(linear.weight)
        linear.forward = self  # type: ignore[assignment]

    def take(self, weight: Tensor) -> None:
        """Packs a new weight, of any float type and device."""
        plain = weight.detach().to("cpu", self._dtype).contiguous()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(plain, ROWS)
        self._width = plain.shape[1]

    def sample(self) -> Tensor:
        """Columns of the blocked weight itself, exactly: what it makes of rows that are 1 in one place, else 0."""
        rows = _unit_rows(self._width, self._dtype)
        return torch.ops.mkldnn._linear_pointwise(rows, self._weight, None, "none", [], "").t()  # type: ignore[no-any-return]

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden @ weight.T + bias, [..., in] -> [..., out]. A row's result does not depend on the others.

        A single row goes twice: with AVX-512 oneDNN sums the product of one row, wider than 1024, in another order
        than those of several.
        """
        alone = hidden.numel() == self._width
        rows = hidden.reshape(1, -1).repeat(2, 1) if alone else hidden
        result: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return result[0].reshape(*hidden.shape[:-1], -1) if alone else result


@functools.lru_cache(maxsize=16)
def _unit_rows(width: int, dtype: torch.dtype) -> Tensor:
    """[columns, width]: 1 at each of the sampled columns."""
    columns = sampled_columns(width)
    rows = torch.zeros(len(columns), width, dtype=dtype)
    rows[range(len(columns)), columns] = 1.0
    return rows


def packs(weight: Tensor) -> bool:
    """Whether linear layers of this type and place are faster packed: on a CPU that multiplies the type natively."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    needed = {"_reorder_linear_weight", "_linear_pointwise"}
    if not all(hasattr(torch.ops.mkldnn, name) for name in needed):
        return False
    capable: Callable[[], bool] = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and bool(capable()))


def _some_logits(model: Any) -> Tensor:
    vocabulary = model.config.get_text_config().vocab_size
    tokens = torch.arange(PROBED) * max(1, vocabulary // PROBED) % vocabulary
    logits: Tensor = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits
    return logits


def _close(got: Tensor, expected: Tensor) -> bool:
    """Whether logits [1, tokens, V] are the same to rounding at most positions.

    A layer that computes something else changes all of them. Rounding alone can be blown up at single ones: of a
    trained SmolLM2-135M the logits behind a token that it never meets moved 100 times more than elsewhere.
    """
    difference, largest = (got - expected).abs().amax(dim=-1).median(), expected.abs().max()
    return float(difference) <= TOLERANCE[expected.dtype] * float(largest)
