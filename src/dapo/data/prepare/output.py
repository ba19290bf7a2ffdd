"""Writes a prepared folder aside, synced, and renamed into place; a failure leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from dapo.data.prepare.spool import Row
from dapo.data.tables import ORIGINALS, TABLE
from dapo.errors import UserError
from dapo.files import sync_directory, sync_tree

_TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string(), "json": pa.string()}
_ORIGINALS = pa.schema([("problem", pa.string()), ("answer", pa.string())])
GROUP = 16_384  # rows of a row group

# The columns of every prepared table, before those that are kept from the sources.
OWN = (
    "id", "problem", "answer", "data_source", "language", "answer_type", "origin", "origin_row", "original_problem",
    "original_answer", "integer_form", "integer_proof",
)  # fmt: skip


def check_place(out: Path, overwrite: bool) -> None:
    """Raises UserError where there is something at `out` that may not be replaced."""
    if out.exists() or out.is_symlink():
        if not overwrite:
            raise UserError(f"{out}: it exists; give another -o, or --overwrite")
        if not out.is_dir() or (any(out.iterdir()) and not (out / "card.json").is_file()):
            raise UserError(f"{out}: no prepared folder, so it is not overwritten; give another -o")


@contextlib.contextmanager
def staged(out: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to write in, which becomes `out` when the block ends well, and is deleted when it doesn't.

    Raises:
        UserError: there is something at `out` that may not be replaced, or no folder can be made there.
    """
    check_place(out, overwrite)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise UserError(f"{out}: can't be written: {error.strerror or error}") from None
    try:
        folder.chmod(0o777 & ~_umask())
        yield folder
        sync_tree(folder)
        _replace(folder, out)
    except OSError as error:
        raise UserError(f"{out}: can't be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _replace(folder: Path, out: Path) -> None:
    old = None
    if out.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        out.rename(old / "old")
    folder.rename(out)
    sync_directory(out.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


class ParquetFile:
    """A parquet file that is written row by row; the same rows give the same bytes."""

    def __init__(self, path: Path, schema: Any) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", compression_level=3)
        self._rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row."""
        self._rows.append(row)
        if len(self._rows) == GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []

    def close(self) -> None:
        """Ends writing."""
        self._flush()
        self._writer.close()


class Tables:
    """The prepared table; and beside it the problems whose answers were made integers, as they were before.

    kept: the sources' columns with their types (`Spool.kinds`).
    """

    def __init__(self, folder: Path, kept: dict[str, str]) -> None:
        self._kept = {name: kind for name, kind in kept.items() if name not in OWN}
        columns = [(name, pa.int64() if name == "origin_row" else pa.string()) for name in OWN]
        columns += [(name, _TYPES[kind]) for name, kind in self._kept.items()]
        self._table = ParquetFile(folder / TABLE, pa.schema(columns))
        self._folder = folder
        self._originals: ParquetFile | None = None

    def add(self, own: dict[str, Any], row: Row) -> None:
        """Appends a row: its own columns, and what it keeps of the source's."""
        self._table.add(own | {name: _as(row.columns.get(name), kind) for name, kind in self._kept.items()})
        if own["original_problem"] is not None:
            if self._originals is None:
                self._originals = ParquetFile(self._folder / ORIGINALS, _ORIGINALS)
            self._originals.add({"problem": own["original_problem"], "answer": own["original_answer"]})

    def close(self) -> None:
        """Ends writing."""
        self._table.close()
        if self._originals is not None:
            self._originals.close()


def _as(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        return json.dumps(value, ensure_ascii=False)
    return float(value) if kind == "float" else value


class Rejects:
    """The dropped rows as JSON lines, written aside; without a path they go nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[str] | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        except OSError as error:
            raise UserError(f"--rejects {path}: can't be written: {error.strerror or error}") from None
        self._aside = Path(aside)
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogatepass")

    def add(self, step: str, reason: str, where: tuple[str, int], problem: Any, answer: Any, detail: Any) -> None:
        """One dropped row, with the step and reason, and what it was dropped for."""
        if self._file is not None:
            row = {
                "step": step, "reason": reason, "file": where[0], "row": where[1], "detail": detail,
                "problem": problem, "answer": answer,
            }  # fmt: skip
            json.dump(row, self._file, ensure_ascii=False, default=str)
            self._file.write("\n")

    def keep(self) -> None:
        """Puts the file in place."""
        if self._file is not None and self._path is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._aside.chmod(0o666 & ~_umask())
            self._aside.replace(self._path)
            sync_directory(self._path.parent)

    def discard(self) -> None:
        """Deletes what was written, unless it was kept."""
        if self._file is not None:
            self._file.close()
            self._aside.unlink(missing_ok=True)


def write_card(path: Path, card: dict[str, Any]) -> None:
    """The card as readable JSON."""
    path.write_text(json.dumps(card, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
