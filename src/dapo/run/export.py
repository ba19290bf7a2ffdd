"""A checkpoint's model as a folder of its own, written aside and renamed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from dapo.errors import UserError
from dapo.files import sync_directory, sync_tree


def export_model(model: Path, target: Path, dtype: str) -> None:
    """Copies a Hugging Face folder; bfloat16 rounds every float32 weight on the way. Raises UserError."""
    aside = target.with_name(f".{target.name}.tmp")
    try:
        _export(model, target, aside, dtype)
    except OSError as error:
        raise UserError(f"{target}: can't be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _export(model: Path, target: Path, aside: Path, dtype: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(model, aside)
    if dtype == "bfloat16":
        _round_weights(aside)
    sync_tree(aside)
    if target.is_dir():
        target.rmdir()
    aside.rename(target)
    sync_directory(target.parent)


def _round_weights(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        rounded = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in tensors.items()}
        save_file(rounded, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = "bfloat16"
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
