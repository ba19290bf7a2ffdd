"""Table files: numbered rows of .parquet, .jsonl, .json, .csv and .tsv files, and prepared folders.

A row keeps its number in the file (the first is 1), so that every later message can name it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dapo.errors import DataError

Numbered = Iterator[tuple[int, dict[str, Any]]]  # (row number from 1, its columns)

FILE_ENDINGS = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
TABLE, CARD = "train.parquet", "card.json"  # of a folder that `dapo data prepare` wrote
ORIGINALS = "originals.parquet"  # there too: the problems whose answers were made integers, as they were before

MAX_LINE_BYTES = 32 * 2**20  # a longer line is no row of problems, and would fill the memory
_BOM = b"\xef\xbb\xbf"


def is_prepared(path: Path) -> bool:
    """Whether this is a folder that `dapo data prepare` wrote."""
    return (path / TABLE).is_file() and (path / CARD).is_file()


def read_file(path: Path) -> Numbered:
    """(number from 1, columns) of each row of a file with one of FILE_ENDINGS, or of a prepared folder.

    A .json file holds one array of objects, or objects in lines as a .jsonl file does. A .csv or .tsv file
    begins with the names of its columns; all its values are text. Text is UTF-8.

    Raises:
        DataError: naming the file, and the row where one is at fault; also for a file without rows.
    """
    if path.is_dir():
        if not is_prepared(path):
            raise DataError(f"{path}: a folder without {TABLE} and {CARD}; give a file, or one of dapo data prepare")
        path = path / TABLE
    readers = {".parquet": _parquet, ".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".tsv": _csv}
    empty = True
    reader = next(reader for ending, reader in readers.items() if path.name.endswith(ending))
    for row in reader(path):
        empty = False
        yield row
    if empty:
        raise DataError(f"{path}: no rows in it, no problems; give a file with rows")


def _jsonl(path: Path) -> Numbered:
    try:
        with path.open("rb") as lines:
            number = 0
            while line := lines.readline(MAX_LINE_BYTES + 1):
                number += 1
                where = f"{path}, row {number}"
                if len(line) > MAX_LINE_BYTES:
                    raise DataError(f"{where}: a line over {MAX_LINE_BYTES >> 20} MiB; give one JSON object a line")
                if number == 1:
                    line = line.removeprefix(_BOM)
                if line.strip():
                    yield number, _object(_parsed(line, where), where, "one a line")
    except FileNotFoundError:
        raise no_file(path) from None
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error}") from None


def _json(path: Path) -> Numbered:
    try:
        with path.open("rb") as handle:
            array = handle.read(4096).removeprefix(_BOM).lstrip().startswith(b"[")
        if not array:
            yield from _jsonl(path)
            return
        content = path.read_bytes().removeprefix(_BOM)
    except FileNotFoundError:
        raise no_file(path) from None
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error}") from None
    for number, row in enumerate(_parsed(content, str(path)), start=1):
        yield number, _object(row, f"{path}, row {number}", "each element one row")


def _parsed(content: bytes, where: str) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise DataError(f"{where}: not UTF-8; convert the file") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}") from None


def _object(row: Any, where: str, how: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f"{where}: a JSON object is wanted, {how}")
    return row


def no_file(path: Path) -> DataError:
    """The error for a file that is not there."""
    return DataError(f"{path}: no such file (data.source)")


def _csv(path: Path) -> Numbered:
    number = 0
    csv.field_size_limit(MAX_LINE_BYTES)
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            rows = csv.reader(
                _bounded(handle, path), delimiter="\t" if path.name.endswith(".tsv") else ",", strict=True
            )
            names = next(rows, [])
            if len(set(names)) != len(names) or not all(name.strip() for name in names):
                raise DataError(f"{path}: its first line should be the names of its columns, each once")
            for values in rows:
                if not values:
                    continue
                number += 1
                if len(values) != len(names):
                    raise DataError(
                        f"{path}, row {number}: {len(values)} values for {len(names)} columns; quote values that hold "
                        "commas, quotes or line breaks"
                    )
                yield number, dict(zip(names, values, strict=True))
    except FileNotFoundError:
        raise no_file(path) from None
    except UnicodeDecodeError:
        raise DataError(f"{path}, after row {number}: not UTF-8; convert the file") from None
    except csv.Error as error:
        raise DataError(f"{path}, row {number + 1}: not valid CSV: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error}") from None


def _bounded(handle: Any, path: Path) -> Iterator[str]:
    while line := handle.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise DataError(f"{path}: a line over {MAX_LINE_BYTES >> 20} MiB; it is no table of problems")
        yield line


def _parquet(path: Path) -> Numbered:
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        raise no_file(path)
    number = 0
    try:
        # In pieces: a row group read whole may be most of a big file.
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (OSError, pyarrow.ArrowException, ValueError, OverflowError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: not a readable parquet file: {said}") from None
