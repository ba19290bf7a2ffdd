"""Low-rank adapters: W + (alpha / r) B A is trained in A and B alone (LoRA, arXiv 2106.09685).

The library peft puts A and B beside the model's linear layers. The model stays the same transformers
object, so that packing, chunked logits and gradient checkpointing are those of the learner below. To
everyone else the policy is a plain model: exported and saved weights are merged, in float32.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dapo.config.schema import Config
from dapo.errors import ConfigError, ModelError
from dapo.learner.settings import LearnerSettings
from dapo.learner.torch_learner import ADAPTERS, Objective, TorchLearner, read_weights
from dapo.rng import derive_seed

Targets = Literal["all-linear", "attention"]
ATTENTION = re.compile("attn|attention")
NAME = "default"  # peft's name of the adapter
STARTING_VALUES = 3  # salt of the seed that A is drawn from
ALPHA = "lora_alpha"  # its name in `state_dict`


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """r, alpha, which layers, and the seed that A is drawn from."""

    rank: int
    alpha: float = 32.0
    targets: Targets = "all-linear"
    seed: int = 0

    @classmethod
    def of(cls, config: Config) -> LoraSettings | None:
        """What `learner.lora_*` asks for; None where all weights are trained."""
        own = config.learner
        if own.lora_rank is None:
            return None
        return cls(rank=own.lora_rank, alpha=own.lora_alpha, targets=own.lora_targets, seed=config.train.seed)


def need_peft() -> Any:
    """The module peft. Raises ConfigError where it is not installed."""
    try:
        import peft
    except ImportError:
        raise ConfigError('learner.lora_rank needs the library peft; pip install "dapo-rl[lora]"') from None
    return peft


def target_layers(model: Any, settings: LoraSettings) -> dict[str, Any]:
    """The linear layers of the body that get adapters, by name; never the head.

    Raises ModelError: there are none, r is over the smaller side of one, or one shares its weight.
    """
    from transformers.pytorch_utils import Conv1D

    body, head = set(model.base_model.modules()), model.get_output_embeddings()
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and module in body and module is not head
    }
    if settings.targets == "attention":
        layers = {name: module for name, module in layers.items() if ATTENTION.search(name)}
    kind = model.config.model_type
    if not layers:
        raise ModelError(
            f'learner.lora_targets = "{settings.targets}": {kind} has no such linear layers; '
            'set learner.lora_rank = "off", or other targets'
        )
    narrowest = min(layers, key=lambda name: min(layers[name].weight.shape))
    least = min(layers[narrowest].weight.shape)
    if settings.rank > least:
        raise ModelError(
            f"learner.lora_rank = {settings.rank} is over {least}, the smaller side of {narrowest}; use {least} or less"
        )
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    if shared := [name for name, module in layers.items() if uses[id(module.weight)] > 1]:
        raise ModelError(
            f"learner.lora_rank: {shared[0]} of {kind} shares its weight with another layer, and an adapter would part "
            'them; set learner.lora_rank = "off"'
        )
    return layers


def adapter_size(model: Any, settings: LoraSettings) -> int:
    """Numbers in all A and B of a model that has none yet. Raises ModelError as `target_layers` does."""
    return sum(settings.rank * sum(layer.weight.shape) for layer in target_layers(model, settings).values())


def inject(model: Any, settings: LoraSettings) -> dict[str, Any]:
    """Puts A and B beside the targeted layers, in place; returns peft's layers by the plain layers' names.

    A is uniform in +-1 / sqrt(inputs), a function of the seed and the layer's number; B is 0. No generator
    that others use is drawn from. Raises ConfigError without peft, and ModelError as `target_layers` does.
    """
    peft = need_peft()
    layers = target_layers(model, settings)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=list(layers),
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=any(not isinstance(layer, nn.Linear) for layer in layers.values()),
    )
    with torch.random.fork_rng(devices=[]):  # peft draws on the CPU
        peft.inject_adapter_in_model(config, model, NAME)
    adapted = {name: model.get_submodule(name) for name in layers}
    for number, layer in enumerate(adapted.values()):
        generator = torch.Generator().manual_seed(derive_seed(settings.seed, STARTING_VALUES, number))
        a, b = layer.lora_A[NAME].weight, layer.lora_B[NAME].weight
        bound = a.shape[1] ** -0.5
        a.data.copy_(torch.empty(a.shape).uniform_(-bound, bound, generator=generator))
        b.data.zero_()
    return adapted


class Adapters:
    """A and B beside the linear layers of one model, and the plain model that they and their base are.

    Args:
        model: gets adapters; its own weights are never changed.
        settings: see LoraSettings.
    """

    def __init__(self, model: Any, settings: LoraSettings) -> None:
        self.settings = settings
        self.layers = inject(model, settings)

    def chosen(self, model: Any) -> dict[str, Tensor]:
        """A and B by their names in `state_dict`; nothing else needs gradients."""
        model.requires_grad_(False)
        found = {}
        for name, layer in self.layers.items():
            found[f"{name}.lora_A"] = layer.lora_A[NAME].weight.requires_grad_(True)
            found[f"{name}.lora_B"] = layer.lora_B[NAME].weight.requires_grad_(True)
        return found

    def summary(self, model: Any, trained: Mapping[str, Tensor]) -> str:
        """How much is trained, in one line."""
        numbers = sum(parameter.numel() for parameter in trained.values())
        count = sum(parameter.numel() for parameter in model.parameters()) - numbers
        lora = self.settings
        return (
            f"adapters of rank {lora.rank} (alpha {lora.alpha:g}) in {len(self.layers)} linear layers: {numbers:,} "
            f"weights are trained, {numbers / count:.2%} of the model's {count:,}"
        )

    def plain_name(self, name: str) -> str | None:
        """The name in the plain model; None of A and B."""
        head, found, tail = name.rpartition(".base_layer.")
        if found and head in self.layers:
            return f"{head}.{tail}"
        return None if name.partition(".lora_")[0] in self.layers else name

    def layer_of(self, plain: str) -> Any | None:
        """The adapted layer whose weight has this plain name."""
        head, _, tail = plain.rpartition(".")
        return self.layers.get(head) if tail == "weight" else None

    @torch.no_grad()
    def merged(self, plain: str, tensor: Tensor, whole: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Tensor:
        """W + (alpha / r) B A of a layer that has adapters, else W as it is. `whole` is asked for A and B."""
        layer = self.layer_of(plain)
        if layer is None:
            return tensor.detach()
        a, b = whole(layer.lora_A[NAME].weight.detach()), whole(layer.lora_B[NAME].weight.detach())
        delta = b.to(tensor.device) @ a.to(tensor.device)
        scaling: float = layer.scaling[NAME]
        return tensor.detach() + (delta.T if layer.fan_in_fan_out else delta) * scaling

    def state(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What a checkpoint holds of adapters beside their moments: A, B (not copied) and alpha."""
        found = {f"{ADAPTERS}{name}": parameter.detach() for name, parameter in trained.items()}
        return found | {ALPHA: torch.tensor(self.settings.alpha, dtype=torch.float64)}

    def check_fits(self, found: Mapping[str, Sequence[int]], alpha: float, trained: Mapping[str, Tensor]) -> None:
        """Raises ModelError when adapters of a checkpoint, shapes by name, are not of this kind."""
        if not found:
            raise ModelError('the checkpoint holds no adapters: it was trained with learner.lora_rank = "off"')
        if found.keys() != trained.keys():
            raise ModelError("the checkpoint's adapters are in other layers; set learner.lora_targets as it was")
        for name, parameter in trained.items():
            if tuple(found[name]) != tuple(parameter.shape):
                raise ModelError(
                    f"learner.lora_rank = {self.settings.rank}, but the checkpoint's {name} is "
                    f"{tuple(found[name])} (rank {min(found[name])}); set it as it was"
                )
        if alpha != self.settings.alpha:
            raise ModelError(
                f"learner.lora_alpha = {self.settings.alpha:g}, but the checkpoint's is {alpha:g}; set it as it was"
            )


def check_merged(where: Path, name: str, weight: Tensor, saved: Tensor) -> None:
    """Raises ModelError when a merged weight is not the saved one, to rounding: the base is another."""
    if not torch.allclose(weight.cpu(), saved.float(), rtol=1e-4, atol=1e-5):
        raise ModelError(
            f"{where}: {name} is not model.path's with the checkpoint's adapters; with learner.lora_rank a run "
            "goes on from the starting weights it began with: put model.path back"
        )


class LoraLearner(TorchLearner):
    """A TorchLearner that trains adapters over fixed weights.

    `state_dict` holds A, B and their moments; AdamW's weight decay is of A and B too. `export_weights`,
    `host_weights` and `save_hf` give W + (alpha / r) B A, computed in float32, under W's own name.

    Args:
        model: see TorchLearner; its weights are never changed. Adapters are put into it.
        settings, objective, dtype, reference: see TorchLearner.
        lora: see LoraSettings.
    """

    def __init__(
        self,
        model: Any,
        settings: LearnerSettings,
        objective: Objective,
        *,
        lora: LoraSettings,
        dtype: torch.dtype = torch.float32,
        reference: Any | None = None,
    ) -> None:
        self._adapters = Adapters(model, lora)
        super().__init__(model, settings, objective, dtype=dtype, reference=reference)

    @property
    def summary(self) -> str:
        """How much is trained, in one line."""
        return self._adapters.summary(self.model, self._trained)

    def _choose_trained(self) -> dict[str, Tensor]:
        return self._adapters.chosen(self.model)

    # --- merged weights -------------------------------------------------------------------------

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See Learner."""
        for name, parameter in self.model.named_parameters():
            if (plain := self._adapters.plain_name(name)) is not None:
                yield plain, self._adapters.merged(plain, parameter)

    def host_weights(self) -> dict[str, Tensor]:
        """See Learner."""
        result: dict[str, Tensor] = {}
        copies: dict[tuple[int, torch.Size], Tensor] = {}  # of what lives in the model: merged ones come and go
        for name, tensor in self.model.state_dict().items():
            plain = self._adapters.plain_name(name)
            if plain is None:
                continue
            if self._adapters.layer_of(plain) is not None:
                result[plain] = self._adapters.merged(plain, tensor).cpu()
            else:
                result[plain] = copies.setdefault((tensor.data_ptr(), tensor.shape), tensor.to("cpu", copy=True))
        return result

    def save_hf(self, path: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """See Learner."""
        super().save_hf(path, self.host_weights() if weights is None else weights)

    # --- saving and going on --------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """See Learner: of A and B also their values, as lora/NAME, and alpha."""
        own = self._adapters.state(self._trained)
        return super().state_dict() | {name: tensor.to("cpu", copy=True) for name, tensor in own.items()}

    @torch.no_grad()
    def restore(self, path: Path, state: Mapping[str, Any]) -> None:
        """See Learner: A and B come from the state, and the folder is only held against base and adapters.

        Merged weights were rounded; the base could not be had back from them exactly.
        """
        shapes = {key.removeprefix(ADAPTERS): v.shape for key, v in state.items() if key.startswith(ADAPTERS)}
        self._adapters.check_fits(shapes, float(state.get(ALPHA, 0.0)), self._trained)
        self.load_state_dict(state)
        for name, parameter in self._trained.items():
            parameter.copy_(state[f"{ADAPTERS}{name}"])
        saved = read_weights(path)
        for name, weight in self.export_weights():
            if name not in saved:
                raise ModelError(f"{path}: no weight {name}")
            check_merged(path, name, weight, saved[name])
