"""Where a prepared set goes: written aside, synced, renamed into place; a failure leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from dapo.data.tables import CARD, ORIGINALS, TABLE, is_prepared
from dapo.errors import UserError
from dapo.files import sync_directory, sync_tree

SPOOL = "spool"  # in the folder while it is made


def check_place(out: Path, overwrite: bool) -> None:
    """Raises UserError where there is something at `out` that may not be replaced."""
    try:
        there = os.path.lexists(out) or out.exists()
        if not there:
            return
        if not overwrite:
            raise UserError(f"{out}: it exists; give another -o, or --overwrite")
        held = sorted(path.name for path in out.iterdir()) if out.is_dir() and not out.is_symlink() else ["."]
    except OSError as error:
        raise UserError(f"{out}: can't be written: {error.strerror or error}") from None
    foreign = [name for name in held if name not in (TABLE, CARD, ORIGINALS) and not name.endswith(".jsonl")]
    if held and (foreign or not is_prepared(out)):
        raise UserError(f"{out}: not only a prepared set, so it is not overwritten; give another -o")


@contextlib.contextmanager
def staged(out: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to write in, which becomes `out` when the block ends well, and is deleted when it doesn't.

    Raises:
        UserError: there is something at `out` that may not be replaced, or no folder can be made there.
    """
    check_place(out, overwrite)
    with _parents(out, str(out)):
        try:
            folder = Path(tempfile.mkdtemp(prefix=f".{out.name[:100]}.", dir=out.parent))
        except OSError as error:
            raise UserError(f"{out}: can't be written: {error.strerror or error}") from None
        try:
            folder.chmod(0o777 & ~_umask())
            yield folder
            sync_tree(folder)
            check_place(out, overwrite)  # another process may have come first
            _replace(folder, out)
        except OSError as error:
            raise UserError(f"{out}: can't be written: {error.strerror or error}") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _parents(path: Path, name: str) -> Iterator[None]:
    """Makes the folders above a path; those it made go again when the block fails."""
    made = []
    try:
        made = [parent for parent in path.absolute().parents if not parent.exists()]
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{name}: can't be written: {error.strerror or error}") from None
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for parent in made:
                parent.rmdir()
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _replace(folder: Path, out: Path) -> None:
    old = None
    if out.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{out.name[:100]}.", dir=out.parent))
        out.rename(old / "old")
    try:
        folder.rename(out)
    except OSError:
        if old is not None:
            (old / "old").rename(out)
            old.rmdir()
        raise
    sync_directory(out.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def check_rejects(path: Path, out: Path, inputs: Sequence[str]) -> None:
    """Raises UserError where the rejects can't go: a folder, a device, `out` itself, a file that is read or
    that belongs to a prepared set."""
    try:
        taken = path.exists() and not path.is_file()
        read = any(os.path.exists(name) and path.exists() and os.path.samefile(path, name) for name in inputs)
        folder = os.path.abspath(path.parent)
        made = path.name in (TABLE, CARD, ORIGINALS, SPOOL) and (
            folder == os.path.abspath(out) or is_prepared(path.parent)
        )
    except OSError as error:
        raise UserError(f"--rejects {path}: can't be written: {error.strerror or error}") from None
    if taken or os.path.abspath(path) == os.path.abspath(out):
        raise UserError(f"--rejects {path}: give the name of a file")
    if read or made:
        said = "this file is read" if read else "a prepared set has a file of this name"
        raise UserError(f"--rejects {path}: {said}; give another name")


@contextlib.contextmanager
def places(out: Path, overwrite: bool, path: Path | None) -> Iterator[tuple[Path, Rejects]]:
    """`staged`, with the rejects; a path of theirs below `out` goes into the folder that is made."""
    with contextlib.ExitStack() as stack:
        path = path and Path(os.path.abspath(path))
        inside = path is not None and path.is_relative_to(os.path.abspath(out))
        dropped = Rejects(None)
        if path is not None and not inside:
            dropped = stack.enter_context(rejects(path))
        folder = stack.enter_context(staged(out, overwrite))
        if path is not None and inside:
            dropped = stack.enter_context(rejects(folder / path.relative_to(os.path.abspath(out))))
        yield folder, dropped


@contextlib.contextmanager
def rejects(path: Path) -> Iterator[Rejects]:
    """A file of rejects, which is there when the block ends well."""
    with _parents(path, f"--rejects {path}"):
        try:
            descriptor, aside = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        except OSError as error:
            raise UserError(f"--rejects {path}: can't be written: {error.strerror or error}") from None
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                yield Rejects(file)
                file.flush()
                os.fsync(file.fileno())
            Path(aside).chmod(0o666 & ~_umask())
            os.replace(aside, path)
            sync_directory(path.parent)
        except OSError as error:
            raise UserError(f"--rejects {path}: can't be written: {error.strerror or error}") from None
        finally:
            Path(aside).unlink(missing_ok=True)


class Rejects:
    """The dropped rows as JSON lines; without a file they go nowhere."""

    def __init__(self, file: IO[str] | None) -> None:
        self._file = file

    def add(self, step: str, reason: str, where: tuple[str, int], problem: Any, answer: Any, detail: Any) -> None:
        """One dropped row, with the step and reason, and what it was dropped for."""
        if self._file is not None:
            row = {
                "step": step, "reason": reason, "file": where[0], "row": where[1], "detail": detail,
                "problem": problem, "answer": answer,
            }  # fmt: skip
            json.dump(row, self._file, ensure_ascii=False, default=str)
            self._file.write("\n")
