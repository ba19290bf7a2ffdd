"""Writing files so that a crash leaves the old one or the new one, never half of one."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from pathlib import Path


def sync_tree(folder: Path) -> None:
    """fsync every file below a folder, then the folders."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    for directory in [folder, *(d for d in folder.rglob("*") if d.is_dir())]:
        sync_directory(directory)


def sync_directory(folder: Path) -> None:
    """fsync a directory, so that a rename in it survives a crash. A no-op where unsupported."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fresh_folder(path: Path) -> Path:
    """Makes a folder that is nobody else's, as NAME-2, NAME-3, ... where NAME is taken; returns it. Raises OSError."""
    for number in itertools.count(1):
        own = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with contextlib.suppress(FileExistsError):
            own.mkdir()
            break
    return own


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, see `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file aside, sync it, and rename it into place; a write that fails leaves nothing."""
    aside = path.with_name(path.name + ".tmp")
    try:
        with aside.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sha256(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while piece := handle.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
