"""The dimensions of a GGUF file, from its header: no weight is read.

Layout (version 2 and later, little endian): "GGUF", version u32, tensors u64, entries u64; each entry a name, a type
u32 and a value; then each tensor's name, number of dimensions u32, dimensions u64, type u32 and offset u64. A string
is its length u64 and its bytes; an array its element type u32, its length u64 and its elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from dapo.errors import ModelError
from dapo.plan.shapes import Shape, of_config

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MANY = 2**24  # entries, elements or bytes of a name: no header has more
DEEP = 4  # arrays in arrays


def read_header(path: Path) -> Shape:
    """The shape of a GGUF file's decoder. Raises ModelError."""
    try:
        with path.open("rb") as file:
            fields, tensors = _parsed(_Reader(file))
    except FileNotFoundError:
        raise ModelError(f"model.path = {path}: no such file") from None
    except (OSError, ValueError, struct.error, RecursionError) as error:
        raise ModelError(f"model.path = {path}: not a readable GGUF file: {error}") from None
    kind = fields.get("general.architecture")
    named = {
        "num_hidden_layers": "block_count",
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "vocab_size": "vocab_size",
    }
    tree: dict[str, Any] = {ours: fields.get(f"{kind}.{theirs}") for ours, theirs in named.items()}
    embedding = tensors.get("token_embd.weight")
    tree["vocab_size"] = embedding[-1] if embedding else tree["vocab_size"]
    tree["tie_word_embeddings"] = "output.weight" not in tensors
    tree["model_type"] = str(kind)
    return of_config(tree, f"header of {path.name}")


def _parsed(read: _Reader) -> tuple[Mapping[str, Any], Mapping[str, tuple[int, ...]]]:
    if read.bytes(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version = read.number("I")
    if not 2 <= version <= 3:
        raise ValueError(f"version {version}")
    tensors, entries = read.count(), read.count()
    fields = {read.string(): read.value(read.number("I")) for _ in range(entries)}
    shapes = {}
    for _ in range(tensors):
        name, dimensions = read.string(), read.number("I")
        shapes[name] = tuple(read.number("Q") for _ in range(min(dimensions, 8)))
        read.bytes(12)
    return fields, shapes


class _Reader:
    """Numbers, strings and arrays of a file, in turn."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def bytes(self, count: int) -> bytes:
        found = self._file.read(count)
        if len(found) != count:
            raise ValueError("it ends too early")
        return found

    def number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))[0]

    def count(self) -> int:
        found = int(self.number("Q"))
        if found > MANY:
            raise ValueError(f"a count of {found}")
        return found

    def string(self) -> str:
        return self.bytes(self.count()).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        """A value; of an array only its length."""
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            if kind not in FORMATS:
                raise ValueError(f"type {kind}")
            return self.number(FORMATS[kind])
        inner, length = self.number("I"), self.count()
        if inner in FORMATS:
            self.bytes(length * struct.calcsize(f"<{FORMATS[inner]}"))
        elif depth >= DEEP:
            raise ValueError("arrays in arrays")
        else:
            skip: Callable[[], Any] = self.string if inner == STRING else lambda: self.value(inner, depth + 1)
            for _ in range(length):
                skip()
        return length
