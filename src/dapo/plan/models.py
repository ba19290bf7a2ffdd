"""Where a model's dimensions come from: stated, a folder, a GGUF file's header, the hub's cache, a table, the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dapo.config.schema import ModelConfig
from dapo.errors import ModelError
from dapo.model.paths import package_file
from dapo.plan.gguf import read_header
from dapo.plan.shapes import LARGEST, Shape, of_config

SOURCE = "built-in table, as the model's published config.json has it"


def _qwen2(layers: int, hidden: int, intermediate: int, heads: int, kv: int, vocabulary: int, tied: bool) -> Shape:
    return Shape(layers=layers, hidden=hidden, intermediate=intermediate, heads=heads, kv_heads=kv,
                 head_dim=hidden // heads, vocabulary=vocabulary, tied=tied, bias=True, source=SOURCE)  # fmt: skip


_SMALL = _qwen2(24, 896, 4864, 14, 2, 151936, True)
_MEDIUM = _qwen2(28, 1536, 8960, 12, 2, 151936, True)
_LARGE = _qwen2(28, 3584, 18944, 28, 4, 152064, False)
KNOWN: dict[str, Shape] = {
    "HuggingFaceTB/SmolLM2-135M": Shape(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64,
                                        vocabulary=49152, source=SOURCE),
    "Qwen/Qwen2.5-0.5B": _SMALL,
    "Qwen/Qwen2.5-1.5B": _MEDIUM,
    "Qwen/Qwen2.5-Math-1.5B": _MEDIUM,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": replace(_MEDIUM, tied=False),
    "Qwen/Qwen2-7B": _LARGE,
    "Qwen/Qwen2.5-7B": _LARGE,
    "Qwen/Qwen2.5-Math-7B": _LARGE,
    "Qwen/Qwen2.5-14B": _qwen2(48, 5120, 13824, 40, 8, 152064, False),
    "Qwen/Qwen2.5-32B": _qwen2(64, 5120, 27648, 40, 8, 152064, False),
    "Qwen/Qwen3-4B": Shape(layers=36, hidden=2560, intermediate=9728, heads=32, kv_heads=8, head_dim=128,
                           vocabulary=151936, normed=True, source=SOURCE),
    "Qwen/Qwen3-30B-A3B": Shape(layers=48, hidden=2048, intermediate=768, heads=32, kv_heads=4, head_dim=128,
                                vocabulary=151936, tied=False, normed=True, experts=128, active=8, source=SOURCE),
    "deepseek-ai/deepseek-math-7b": Shape(layers=30, hidden=4096, intermediate=11008, heads=32, kv_heads=32,
                                          head_dim=128, vocabulary=102400, tied=False, source=SOURCE),
    "random:tiny": Shape(layers=2, hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=16, vocabulary=53,
                         source="dapo.model.random"),
}  # fmt: skip
ENDINGS = ("-Instruct", "-instruct", "-Base", "-base")  # of names whose dimensions are those without it


def find_shape(model: ModelConfig, stated: Mapping[str, int]) -> Shape:
    """The dimensions of `model.path`.

    Args:
        model: says where the model is. Nothing of it is loaded; of a Hugging Face id only config.json is read.
        stated: dimensions by hand, by the names of `Shape`; `weights` is their number.

    Raises:
        ModelError: no such model, a config.json that can't be read, or a model that nobody knows offline.
    """
    for name, value in stated.items():
        if not 1 <= value <= LARGEST * (1024 if name == "weights" else 1):
            raise ModelError(f"--{name.replace('_', '-')} {value}: a count of 1 or more that a model can have")
    needed = ("layers", "hidden", "intermediate", "heads", "kv_heads", "vocabulary")
    if all(name in stated for name in needed):
        head_dim = max(1, stated["hidden"] // stated["heads"])
        whole: dict[str, Any] = {"head_dim": head_dim, "source": "stated: flags", **stated}
        return Shape(**whole)
    try:
        found = _found(model)
    except ModelError as error:
        if not stated:
            raise
        missing = ", ".join(f"--{name.replace('_', '-')}" for name in needed if name not in stated)
        raise ModelError(f"{error.message}; with dimensions stated by hand, {missing} are needed too") from None
    if not stated:
        return found
    said = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in stated.items())
    values: dict[str, Any] = dict(stated)
    return replace(found, **values, source=f"{found.source}; but stated: {said}")


def _found(model: ModelConfig) -> Shape:
    path = model.path
    if path.startswith("pkg:"):
        path = str(package_file(path))
    if path.endswith(".gguf"):
        return read_header(Path(path).expanduser())
    if path in KNOWN and path.startswith("random:"):
        return KNOWN[path]
    folder = Path(path).expanduser()
    if folder.is_dir():
        return _of_file(folder / "config.json")
    if path.startswith((".", "/", "~", "random:")) or path.count("/") > 1:
        raise ModelError(f"model.path = {path}: no such folder")
    return _of_id(path, model.revision)


def _of_file(file: Path) -> Shape:
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"model.path = {file.parent}: no config.json in this folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file}: can't be read: {str(error).splitlines()[0]}") from None
    if not isinstance(tree, dict):
        raise ModelError(f"{file}: a JSON object is wanted")
    return of_config(tree, str(file))


def _of_id(path: str, revision: str | None) -> Shape:
    """The hub's cache, then the table, then the hub itself."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(path, "config.json", revision=revision)
    except (HFValidationError, OSError, ValueError) as error:
        raise ModelError(f"model.path = {path}: {str(error).splitlines()[0]}") from None
    if isinstance(cached, str):
        return replace(_of_file(Path(cached)), source=f"config.json of {path} in the hub's cache")
    if (known := known_shape(path)) is not None:
        return known
    try:
        fetched = hf_hub_download(path, "config.json", revision=revision, etag_timeout=5)
    except Exception as error:  # the hub's client raises what its own libraries raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"model.path = {path}: neither in the hub's cache nor in the table of known models, and can't be fetched "
            f"({reason}); state --layers, --hidden, --intermediate, --heads, --kv-heads and --vocabulary"
        ) from None
    return replace(_of_file(Path(fetched)), source=f"config.json of {path}")


def known_shape(name: str) -> Shape | None:
    """The table's dimensions of a model, whichever way it was tuned."""
    if name in KNOWN:
        return KNOWN[name]
    return next((KNOWN[cut] for end in ENDINGS if (cut := name.removesuffix(end)) != name and cut in KNOWN), None)
