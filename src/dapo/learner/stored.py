"""Tensors in safetensors files, read by rows: whole ones, and ones that were written in parts by several ranks.

    optimizer/index.json                       what there is: shape, dtype, and which rows stand in which file
    optimizer/part-00000-of-00002.safetensors  what rank 0 of 2 held: of each tensor consecutive rows of its first axis

torch.distributed.checkpoint is not used: its plans go between ranks as pickles, and so does its index to the disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

INDEX = "index.json"


class Source(Protocol):
    """Named tensors that can be read in parts."""

    def names(self) -> Sequence[str]:
        """Their names."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor. Raises KeyError."""

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows start to stop of its first axis."""

    def whole(self, name: str) -> Tensor:
        """All of it."""


class Given:
    """Tensors in memory."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = {name: torch.as_tensor(value) for name, value in tensors.items()}

    def names(self) -> Sequence[str]:
        """See Source."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """See Source."""
        return tuple(self._tensors[name].shape)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """See Source."""
        return self._tensors[name][start:stop]

    def whole(self, name: str) -> Tensor:
        """See Source."""
        return self._tensors[name]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows start to start + rows of a tensor, which are all of a file's tensor of that name."""

    file: Path
    start: int
    rows: int


class Files:
    """Tensors of safetensors files, opened once and read as they are asked for. Use it as a context."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], pieces: Mapping[str, Sequence[Piece]]) -> None:
        self._shapes, self._pieces = shapes, pieces
        self._opened: dict[Path, Any] = {}
        self._stack = ExitStack()

    @classmethod
    def of_whole(cls, files: Sequence[Path]) -> Files:
        """Of files that hold each tensor whole."""
        shapes: dict[str, tuple[int, ...]] = {}
        pieces: dict[str, list[Piece]] = {}
        for file in files:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    shapes[name] = tuple(opened.get_slice(name).get_shape())
                    pieces[name] = [Piece(file, 0, shapes[name][0] if shapes[name] else 1)]
        return cls(shapes, pieces)

    @classmethod
    def of_parts(cls, folder: Path) -> Files:
        """Of a folder that `write_index` described."""
        tensors = json.loads((folder / INDEX).read_text(encoding="utf-8"))["tensors"]
        shapes = {name: tuple(entry["shape"]) for name, entry in tensors.items()}
        pieces = {name: [Piece(folder / f, s, n) for f, s, n in entry["parts"]] for name, entry in tensors.items()}
        return cls(shapes, pieces)

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self._opened.clear()

    def names(self) -> Sequence[str]:
        """See Source."""
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """See Source."""
        return self._shapes[name]

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """See Source."""
        found = []
        for piece in self._pieces[name]:
            first, last = max(start, piece.start), min(stop, piece.start + piece.rows)
            if first < last:
                found.append(self._open(piece.file).get_slice(name)[first - piece.start : last - piece.start])
        if not found:
            return self._open(self._pieces[name][0].file).get_slice(name)[0:0]  # type: ignore[no-any-return]
        return found[0] if len(found) == 1 else torch.cat(found)

    def whole(self, name: str) -> Tensor:
        """See Source."""
        shape = self._shapes[name]
        if not shape or len(self._pieces[name]) == 1:
            return self._open(self._pieces[name][0].file).get_tensor(name)  # type: ignore[no-any-return]
        return self.rows(name, 0, shape[0])

    def _open(self, file: Path) -> Any:
        if file not in self._opened:
            self._opened[file] = self._stack.enter_context(safe_open(file, framework="pt"))
        return self._opened[file]


def state_files(checkpoint: Path) -> Files:
    """What a checkpoint holds beside the model: of one process, or of several ranks."""
    if (checkpoint / "optimizer").is_dir():
        return Files.of_parts(checkpoint / "optimizer")
    return Files.of_whole([checkpoint / "optimizer.safetensors"])


def model_files(folder: Path) -> Files:
    """The weights of a Hugging Face folder."""
    return Files.of_whole(sorted(folder.glob("*.safetensors")))


# --- writing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank holds of a tensor, on the CPU: rows from `start` on. shape: of the whole."""

    tensor: Tensor
    shape: tuple[int, ...]
    start: int


def part_name(rank: int, ranks: int) -> str:
    """The file of one rank."""
    return f"part-{rank:05d}-of-{ranks:05d}.safetensors"


def write_part(folder: Path, rank: int, ranks: int, parts: Mapping[str, Part]) -> dict[str, list[int]]:
    """Writes a rank's file and reads it back; returns [start, rows] of each tensor in it. Raises OSError."""
    file, held = folder / part_name(rank, ranks), {name: part for name, part in parts.items() if part.tensor.numel()}
    save_file({name: part.tensor.contiguous() for name, part in held.items()}, file)
    with file.open("rb") as written:
        os.fsync(written.fileno())
    check_written([file], ((name, part.tensor) for name, part in held.items()))
    return {name: [part.start, len(part.tensor) if part.shape else 1] for name, part in held.items()}


def check_written(files: Sequence[Path], tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Raises OSError where a tensor on disk is not bit for bit the one in memory."""
    with Files.of_whole(files) as found:
        for name, tensor in tensors:
            if not same_bits(found.whole(name), tensor):
                raise OSError(f"what was read back is not what was written: {name}")


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors on the CPU are the same, NaN included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.contiguous().flatten().view(torch.uint8), other.contiguous().flatten().view(torch.uint8))


def write_index(folder: Path, parts: Mapping[str, Part], written: Sequence[Mapping[str, Sequence[int]]]) -> None:
    """Writes the index of all ranks' files, `written` being what `write_part` returned on each.

    Raises OSError where a file is not there: the index would be of a checkpoint that can't be read.
    """
    for rank in range(len(written)):
        if not (folder / part_name(rank, len(written))).is_file():
            raise OSError(
                f"{part_name(rank, len(written))} was written by rank {rank}, but is not there for rank 0; "
                "the run's directory has to be on a disk that all ranks see"
            )
    tensors: dict[str, Any] = {
        name: {"shape": list(part.shape), "dtype": str(part.tensor.dtype).removeprefix("torch."), "parts": []}
        for name, part in parts.items()
    }
    for rank, rows in enumerate(written):
        for name, (start, count) in rows.items():
            tensors[name]["parts"].append([part_name(rank, len(written)), start, count])
    text = json.dumps({"format": 1, "ranks": len(written), "tensors": tensors})
    (folder / INDEX).write_text(text + "\n", encoding="utf-8")
