"""How a sharded learner is saved and put back: each rank its own rows, no weight or moment whole but one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapo.errors import ModelError
from dapo.learner.collectives import Ranks
from dapo.learner.hf_folder import FolderWriter, byte_sizes, untied, write_config, write_folder
from dapo.learner.lora import ALPHA, Adapters, check_merged
from dapo.learner.sharded_state import ShardedState
from dapo.learner.stored import Given, Source, model_files, state_files, write_index, write_part
from dapo.learner.torch_learner import ADAPTERS, REFERENCE

FLOAT = 4  # bytes


class SavesShards:
    """The part of FsdpLearner that reads and writes."""

    model: Any
    ranks: Ranks
    _state: ShardedState
    _adapters: Adapters | None
    _trained: dict[str, Tensor]
    _optimizer: torch.optim.AdamW
    _reference_model: Any | None
    _reference_moved: bool
    _unused_reference: dict[str, Tensor]
    export_weights: Callable[[], Iterator[tuple[str, Tensor]]]

    # --- writing --------------------------------------------------------------------------------

    def _held_state(self) -> dict[str, Tensor]:
        """What `state_dict` gives, as it is held: spread over the ranks, and not copied."""
        flat: dict[str, Tensor] = {}
        for name, parameter in self._trained.items():
            for key, value in self._optimizer.state[parameter].items():
                flat[f"{key}/{name}"] = value
        if self._reference_moved and self._reference_model is not None:
            flat |= {f"{REFERENCE}{name}": p.detach() for name, p in self._reference_model.named_parameters()}
        if self._adapters is not None:
            flat |= self._adapters.state(self._trained)
        return flat | self._unused_reference

    @torch.no_grad()
    def state_dict(self) -> dict[str, Tensor]:
        """See Learner. Complete on rank 0, empty elsewhere; `write_state` never gathers it."""
        return self._state.gathered(self._held_state())

    @torch.no_grad()
    def save_hf(self, path: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """See Learner. Rank 0 writes; without `weights` all ranks have to call it, and each tensor is gathered alone.

        Raises OSError on all ranks where it can't be written.
        """
        if weights is not None:
            if self.ranks.first:
                plain = untied(weights)
                write_folder(self.model, path, plain.items(), byte_sizes(plain))
            return
        self._raise_together(self._write_model(path))

    def write_state(self, folder: Path) -> None:
        """Writes `model/` and `optimizer/` of a checkpoint: what `read_state` reads, on any number of ranks.

        Collective, and it blocks: the weights must stay until they are on the disk. What was written is read back.
        The disk has to be one that all ranks see. Raises OSError on all ranks where one of them can't write.
        """
        self._raise_together(self._write_model(folder / "model"))
        own, parts, rows = folder / "optimizer", self._state.parts(self._held_state()), {}
        error = ""
        try:
            own.mkdir(parents=True, exist_ok=True)
            rows = write_part(own, self.ranks.rank, self.ranks.count, parts)
        except Exception as failure:
            error = told(failure)
        everybody = self.ranks.gather([error, rows])
        self._raise_first([one[0] for one in everybody])
        try:
            if self.ranks.first:
                write_index(own, parts, [one[1] for one in everybody])
        except OSError as failure:
            error = told(failure)
        self._raise_together(error)

    def _write_model(self, path: Path) -> str:
        """What went wrong, or "". Takes part in gathering every weight even where it can't be written."""
        error, writer = "", None
        try:
            if self.ranks.first:
                write_config(self.model, path)
                sizes = {name: parameter.numel() * FLOAT for name, parameter in self._plain_parameters()}
                buffers = self._buffers()
                writer = FolderWriter(path, sizes | byte_sizes(buffers))
        except Exception as failure:
            error = told(failure)
        for name, weight in self.export_weights():
            if writer is not None and not error:
                try:
                    writer.add(name, weight)
                except Exception as failure:
                    error = told(failure)
        if writer is not None and not error:
            try:
                for name, buffer in buffers.items():
                    writer.add(name, buffer)
                writer.finish()
            except Exception as failure:
                error = told(failure)
        return error

    def _plain_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.model.named_parameters():
            plain = name if self._adapters is None else self._adapters.plain_name(name)
            if plain is not None:
                yield plain, parameter

    def _buffers(self) -> dict[str, Tensor]:
        """Those that a folder holds; no rank's differ."""
        names = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        return {name: tensor.cpu() for name, tensor in self.model.state_dict().items() if name not in names}

    def _raise_together(self, error: str) -> None:
        self._raise_first(self.ranks.gather(error))

    def _raise_first(self, errors: list[str]) -> None:
        for rank, error in enumerate(errors):
            if error:
                raise OSError(f"rank {rank} of {len(errors)}: {error}")

    # --- reading --------------------------------------------------------------------------------

    @torch.no_grad()
    def restore(self, path: Path, state: Mapping[str, Any]) -> None:
        """See Learner. Every rank is given the whole state."""
        with model_files(path) as model:
            self._read(path, model, Given(state))

    @torch.no_grad()
    def read_state(self, folder: Path) -> None:
        """`restore` from a checkpoint's folder, of any number of ranks or of one process. Each rank reads its rows."""
        with model_files(folder / "model") as model, state_files(folder) as state:
            self._read(folder / "model", model, state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the optimiser (and a reset reference) as `state_dict` gave them, and nothing else."""
        self._read_optimizer(Given(state))

    def _read(self, path: Path, model: Source, state: Source) -> None:
        found = {name.removeprefix(ADAPTERS): state.shape(name) for name in state.names() if name.startswith(ADAPTERS)}
        adapters = self._adapters
        if adapters is None and found:
            raise ModelError(
                "the checkpoint holds adapters; set learner.lora_rank, lora_alpha and lora_targets as then"
            )
        if adapters is not None:
            alpha = float(state.whole(ALPHA)) if ALPHA in state.names() else 0.0
            adapters.check_fits(found, alpha, self._trained)
        names = set(model.names())
        for name, parameter in self._plain_parameters():
            if name not in names:
                raise ModelError(f"{path}: no weight {name}")
            if adapters is None:
                self._state.read(parameter, model, name)
        self._read_optimizer(state)
        if adapters is not None:
            for name, parameter in self._trained.items():
                self._state.read(parameter, state, f"{ADAPTERS}{name}")
            self._check_base(path, model)

    def _check_base(self, path: Path, model: Source) -> None:
        """Each rank compares its rows of every merged weight. Raises ModelError on all."""
        error = ""
        for name, weight in self.export_weights():
            start, stop = self._state.rows(tuple(weight.shape))
            try:
                check_merged(path, name, weight[start:stop], model.rows(name, start, stop))
            except ModelError as failure:
                error = error or failure.message
        if found := next(filter(None, self.ranks.gather(error)), None):
            raise ModelError(found)

    @torch.no_grad()
    def _read_optimizer(self, state: Source) -> None:
        names = set(state.names())
        for name, parameter in self._trained.items():
            self._optimizer.state.pop(parameter, None)
            own: dict[str, Tensor] = {}
            if f"step/{name}" in names:
                own["step"] = state.whole(f"step/{name}").to(parameter.device, copy=True)
            for key in ("exp_avg", "exp_avg_sq"):
                if f"{key}/{name}" in names:
                    own[key] = torch.empty_like(parameter.detach())
                    self._state.read(own[key], state, f"{key}/{name}")
            if own:
                self._optimizer.state[parameter] = own
        reference = [name for name in state.names() if name.startswith(REFERENCE)]
        if reference and self._reference_model is not None:
            for name, parameter in self._reference_model.named_parameters():
                self._state.read(parameter, state, f"{REFERENCE}{name}")
            self._reference_moved = True
        elif reference:
            self._unused_reference = {name: self._state.spread(state, name) for name in reference}


def told(error: Exception) -> str:
    """An error in one line."""
    return str(error) or type(error).__name__
