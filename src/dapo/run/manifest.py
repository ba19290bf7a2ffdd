"""What a run was made of: code, versions, data, tokenizer, recipe, machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.config.load import from_run, resolve
from dapo.errors import ConfigError
from dapo.types import Prompt

PACKAGES = (
    "dapo-rl",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "safetensors",
    "peft",
    "ray",
    "reasoning-gym",
    "math-verify",
)


def versions() -> dict[str, str]:
    """Installed versions of what decides results."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, memory and accelerators, as far as they can be told."""
    import torch

    info: dict[str, Any] = {
        "system": platform.system(),
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        info["memory_gb"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    if torch.cuda.is_available():
        info["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return info


def code_revision() -> str | None:
    """The git commit of this source tree, with "+changes" when it has any; None outside git."""
    here = Path(__file__).parents[1]
    try:
        commit = _git(here, "rev-parse", "HEAD")
        dirty = _git(here, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if dirty else "")


def code_digest() -> str:
    """sha256 over the names and contents of every .py and .toml file of this package, inside git or outside."""
    here = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(here.rglob("*"), key=lambda path: path.relative_to(here).as_posix()):
        if file.suffix in (".py", ".toml") and file.is_file():
            digest.update(file.relative_to(here).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def lock_digest() -> str:
    """sha256 over the sorted name==version of everything that is installed."""
    lines = set()
    for package in importlib.metadata.distributions():
        name = package.metadata["Name"] if package.metadata else None
        if name:
            lines.add(f"{re.sub(r'[-_.]+', '-', name).lower()}=={package.version}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603
    return result.stdout.strip()


@dataclass(frozen=True, slots=True)
class MadeOf:
    """What a run is made of: sha256 by name, and a few words about each for a person."""

    digests: Mapping[str, str]
    described: Mapping[str, str]


def data_digest(problems: Iterable[tuple[Any, ...]]) -> str:
    """sha256 over rows in order, as they stand in the files."""
    digest = hashlib.sha256()
    for row in problems:
        digest.update(json.dumps(_plain(row)).encode() + b"\0")
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """A row's value as JSON that is the same in every process: no order of sets, no address of an object."""
    if isinstance(value, Mapping):
        return ["mapping", sorted([json.dumps(_plain(key)), json.dumps(_plain(part))] for key, part in value.items())]
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return ["set", sorted(json.dumps(_plain(part)) for part in value)]
    if value is None or isinstance(value, (str, int, float)):
        return value
    if hasattr(value, "tolist"):  # arrays
        return _plain(value.tolist())
    text = str(value)
    return [type(value).__name__, "" if " at 0x" in text else text]


def prompts_digest(prompts: Iterable[Prompt]) -> str:
    """sha256 over ids, answers and token ids, in order: what the model will be asked."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(prompt.id.encode())
        digest.update((prompt.answer or "").encode("utf-8", "surrogatepass") + b"\0")
        digest.update(prompt.token_ids.tobytes())
    return digest.hexdigest()


def tokenizer_digest(tokenizer: Any) -> str:
    """sha256 of how a tokenizer maps text to ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    special = json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str)
    return hashlib.sha256((text + special).encode("utf-8", "surrogatepass")).hexdigest()


def text_digest(*parts: Any) -> str:
    """sha256 of plain values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


ROOTS = ("training_data", "evaluation_data", "tokenizer", "eos_ids", "template", "starting_weights", "model_config")


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What a run was made of and is not any more, by name.

    Prompts follow from data, tokenizer and template; they are named only when none of those differs.
    """
    changed = [name for name in ROOTS if name in before and before[name] != now[name]]
    if (
        not set(changed) & {"training_data", "evaluation_data", "tokenizer", "template"}
        and before.get("prompts", now["prompts"]) != now["prompts"]
    ):
        changed.append("prompts")
    return changed


NOTES = {"description", "provenance"}


def complete(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run's resolved configuration, with keys that came later at their defaults; as it stands if it can't be read."""
    try:
        return resolve(from_run(tree))
    except ConfigError:
        return tree


def config_changes(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every setting of two resolved configurations that differs, as "key: old -> new".

    What only speaks of settings, `description` and `provenance`, is left out.
    """
    lines = []
    for key in sorted({*before, *now} - (set() if prefix else NOTES)):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += config_changes(old, new, f"{prefix}{key}.")
        elif old != new:
            lines.append(f"{prefix}{key}: {json.dumps(old)} -> {json.dumps(new)}")
    return lines


def weights_digest(parameters: Iterable[tuple[str, Any]]) -> str:
    """sha256 over names, shapes, the first 1,024 numbers of every weight and two sums over all its bits.

    The sums (of the numbers' bit patterns, plain and times their place, modulo 2**64) notice any one number
    that changes, and cost a pass over memory instead of a hash of it.
    """
    digest = hashlib.sha256()
    for name, tensor in parameters:
        flat = tensor.detach().flatten().float().cpu()
        digest.update(f"{name}{tuple(tensor.shape)}{_bit_sums(flat)}".encode())
        digest.update(flat[:1024].numpy().tobytes())
    return digest.hexdigest()


def _bit_sums(flat: Any, piece: int = 1 << 22) -> tuple[int, int]:
    import torch

    plain = placed = 0
    for start in range(0, len(flat), piece):
        bits = flat[start : start + piece].contiguous().view(torch.int32).long()
        plain += int(bits.sum())
        placed += int((bits * torch.arange(start + 1, start + 1 + len(bits))).sum())  # wraps; so does the other run
    return plain, placed


def model_digest(config: Any) -> str:
    """sha256 of a model's configuration, but for names, dtype and versions."""
    left_out = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")
    return text_digest({key: value for key, value in config.to_dict().items() if key not in left_out})


@dataclass(frozen=True, slots=True)
class Starting:
    """Digests of the model that a run starts from."""

    weights: str
    config: str

    @classmethod
    def of(cls, model: Any) -> Starting:
        """Of a transformers model, before anybody changes it."""
        return cls(weights_digest(model.named_parameters()), model_digest(model.config))


def folder_digest(folder: Path) -> str:
    """sha256 over the names and contents of a folder's own .py files."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def functions_digest(names: Iterable[str], code: Callable[[str], bytes]) -> str:
    """sha256 of where functions come from.

    Args:
        names: FILE.py:NAME or MODULE:NAME.
        code: of such a name, what stands in its file; empty where there is none.
    """
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.rpartition(":")[2].encode() + b"\0")
        digest.update(code(name))
    return digest.hexdigest()
