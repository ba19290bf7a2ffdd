"""Checkpoints: a directory each, written aside, synced, verified, renamed.

checkpoints/step_000050/
    model/               a plain Hugging Face folder (float32) with tokenizer and chat template
    optimizer.safetensors
    state.json           counters of TrainState
    manifest.json        name, size and sha256 of every file; written last

A checkpoint without a manifest, or whose files differ from it, is incomplete and passed over.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo.errors import UserError
from dapo.files import sha256, sync_directory, sync_tree
from dapo.types import TrainState

if TYPE_CHECKING:
    from dapo.learner.base import Learner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    state: TrainState

    @property
    def model(self) -> Path:
        return self.path / "model"


def save(
    folder: Path, state: TrainState, learner: Learner, save_tokenizer: Callable[[Path], None], keep_last: int
) -> Path:
    """Writes checkpoints/step_NNNNNN; older ones go only after it stands verified."""
    from safetensors.torch import save_file

    target = folder / f"step_{state.step:06d}"
    aside = folder / f".{target.name}.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    (aside / "model").mkdir(parents=True)
    learner.save_hf(aside / "model")
    save_tokenizer(aside / "model")
    save_file({key: value.contiguous() for key, value in learner.state_dict().items()}, aside / "optimizer.safetensors")
    (aside / "state.json").write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
    files = sorted(file for file in aside.rglob("*") if file.is_file())
    manifest = {str(f.relative_to(aside)): {"size": f.stat().st_size, "sha256": sha256(f)} for f in files}
    (aside / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    sync_tree(aside)
    if target.exists():
        shutil.rmtree(target)
    aside.rename(target)
    sync_directory(folder)
    for old in [path for path in _folders(folder) if path.name <= target.name][:-keep_last]:
        shutil.rmtree(old)
    return target


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step_*") if path.is_dir())


def fault(path: Path) -> str | None:
    """Why a checkpoint can't be used, or None."""
    try:
        manifest: Mapping[str, Any] = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "it has no manifest.json (not finished)"
    except (OSError, ValueError) as error:
        return f"manifest.json can't be read: {error}"
    if not isinstance(manifest, dict) or not all(map(_is_entry, manifest.values())):
        return "manifest.json is damaged"
    for name, entry in manifest.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["size"] or sha256(file) != entry["sha256"]:
            return f"{name} is not what the manifest says"
    return None


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and {"size", "sha256"} <= entry.keys()


def newest(folder: Path) -> Checkpoint:
    """The newest complete checkpoint; says which it passed over and why. Raises UserError."""
    for path in reversed(_folders(folder)):
        if reason := fault(path):
            logger.warning("passing over %s: %s", path, reason)
            continue
        return Checkpoint(path, _state(path))
    raise UserError(f"{folder}: no complete checkpoint")


def at_step(folder: Path, step: int) -> Checkpoint:
    """The checkpoint of a step. Raises UserError."""
    path = folder / f"step_{step:06d}"
    if not path.is_dir():
        steps = ", ".join(str(int(p.name[5:])) for p in _folders(folder)) or "none"
        raise UserError(f"{folder}: no checkpoint of step {step}; there are: {steps}")
    if reason := fault(path):
        raise UserError(f"{path}: {reason}")
    return Checkpoint(path, _state(path))


def _state(path: Path) -> TrainState:
    return TrainState(**json.loads((path / "state.json").read_text(encoding="utf-8")))


def restore(checkpoint: Checkpoint, learner: Learner) -> None:
    """Puts weights and optimiser state back into a learner."""
    from safetensors.torch import load_file

    learner.load_hf(checkpoint.model)
    learner.load_state_dict(load_file(checkpoint.path / "optimizer.safetensors"))
