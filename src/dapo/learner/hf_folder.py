"""A model as a Hugging Face folder, written one tensor at a time into files of bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dapo.learner.stored import check_written

FILE_BYTES = 4 * 2**30  # of one file, but for a larger tensor


def plan(sizes: Mapping[str, int], limit: int = FILE_BYTES) -> list[list[str]]:
    """Names of the tensors of each file, in order.

    >>> plan({"a": 3, "b": 3, "c": 9, "d": 1}, 6)
    [['a', 'b'], ['c'], ['d']]
    """
    files: list[list[str]] = []
    size = 0
    for name, own in sizes.items():
        if files and size + own <= limit:
            files[-1].append(name)
            size += own
        else:
            files.append([name])
            size = own
    return files


def file_names(count: int) -> list[str]:
    """As transformers names them."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def write_config(model: Any, path: Path) -> None:
    """config.json and generation_config.json of a model with float32 weights, and its own code where it has any."""
    from transformers.dynamic_module_utils import custom_object_save

    path.mkdir(parents=True, exist_ok=True)
    model.config.dtype = "float32"
    model.config.architectures = [type(model).__name__]
    if model.is_remote_code():
        custom_object_save(model, path, config=model.config)
    model.config.save_pretrained(path)
    if model.can_generate():
        model.generation_config.save_pretrained(path)


class FolderWriter:
    """Takes the tensors in the order of `sizes` (bytes by name), on the CPU; holds one file's worth of them.

    A tensor is written as it is when it comes, and read back. `finish` writes the index of several files.
    """

    def __init__(self, path: Path, sizes: Mapping[str, int], limit: int = FILE_BYTES) -> None:
        self._path, self._total = path, sum(sizes.values())
        self._files = plan(sizes, limit)
        self._names = file_names(len(self._files))
        self._written: dict[str, str] = {}
        self._held: dict[str, Tensor] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        """The next tensor. Raises OSError."""
        self._held[name] = tensor.detach().to("cpu").contiguous()
        wanted = self._files[0]
        if len(self._held) < len(wanted):
            return
        if list(self._held) != wanted:
            raise ValueError(f"the tensors of {self._names[0]} came in another order")
        file = self._path / self._names.pop(0)
        save_file(self._held, file, metadata={"format": "pt"})
        check_written([file], iter(self._held.items()))
        self._written |= dict.fromkeys(self._files.pop(0), file.name)
        self._held = {}

    def finish(self) -> None:
        """Once all have come."""
        if self._files:
            raise ValueError(f"{self._path}: weights are missing, the first: {self._files[0][0]}")
        if len(set(self._written.values())) > 1:
            index = {"metadata": {"total_size": self._total}, "weight_map": self._written}
            text = json.dumps(index, indent=2, sort_keys=True) + "\n"
            (self._path / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def write_folder(model: Any, path: Path, tensors: Iterable[tuple[str, Tensor]], sizes: Mapping[str, int]) -> None:
    """The whole folder at once."""
    write_config(model, path)
    writer = FolderWriter(path, sizes)
    for name, tensor in tensors:
        writer.add(name, tensor)
    writer.finish()


def byte_sizes(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Bytes of each tensor's entries."""
    return {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}


def untied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without second names of one storage: a file holds a tied weight once."""
    seen: set[tuple[int, torch.Size]] = set()
    result = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape)
        if key not in seen or not tensor.numel():
            result[name] = tensor
        seen.add(key)
    return result
