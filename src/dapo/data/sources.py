"""Rows from where the problems are: JSONL, parquet, reasoning-gym.

A row keeps its number in the file (the first is 1), so that every later message can name it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.config.schema import SourceConfig
from dapo.errors import DataError

REASONING_GYM = "reasoning-gym:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem as it stands in its source. `where` is 'file, row 7' for messages."""

    problem: Any
    answer: Any
    columns: dict[str, Any]
    source: str
    where: str


def read_rows(source: SourceConfig) -> Iterator[Row]:
    """All rows of a source, in its order.

    Raises:
        DataError: a missing file, column or task, or a row that is not a JSON object.
    """
    if source.source.startswith(REASONING_GYM):
        rows = _reasoning_gym(source)
    elif source.source.endswith(".parquet"):
        rows = _table(source, _parquet(Path(source.source)))
    elif source.source.endswith((".jsonl", ".json")):
        rows = _table(source, _jsonl(Path(source.source)))
    else:
        raise DataError(f"data.source = {source.source}: use a .jsonl or .parquet file, or reasoning-gym:TASK")
    for index, row in enumerate(rows):
        if source.max_rows is not None and index >= source.max_rows:
            return
        yield row


def _table(source: SourceConfig, rows: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[Row]:
    for number, columns in rows:
        where = f"{source.source}, row {number}"
        yield Row(
            problem=_column(columns, source.prompt_column, where, "prompt_column"),
            answer=_column(columns, source.answer_column, where, "answer_column"),
            columns={key: value for key, value in columns.items() if key != source.prompt_column},
            source=str(columns.get("data_source") or Path(source.source).stem),
            where=where,
        )


_MISSING = object()


def _column(columns: dict[str, Any], name: str, where: str, knob: str) -> Any:
    value: Any = columns
    for part in name.split("."):
        value = value.get(part, _MISSING) if isinstance(value, dict) else _MISSING
        if value is _MISSING:
            raise DataError(
                f"{where}: no column {name}; this row has {', '.join(map(str, columns)) or 'none'}; set data.{knob}"
            )
    return value


def _jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode("utf-8"))
                except UnicodeDecodeError:
                    raise DataError(f"{path}, row {number}: not UTF-8; convert the file") from None
                except (ValueError, RecursionError) as error:
                    raise DataError(f"{path}, row {number}: not valid JSON: {error}") from None
                if not isinstance(row, dict):
                    raise DataError(f"{path}, row {number}: a JSON object is wanted, one a line")
                yield number, row
    except FileNotFoundError:
        raise DataError(f"{path}: no such file (data.source)") from None
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error}") from None


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        raise DataError(f"{path}: no such file (data.source)")
    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=4096):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: not a readable parquet file: {str(error).splitlines()[0]}") from None


def _reasoning_gym(source: SourceConfig) -> Iterator[Row]:
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError:
        raise DataError(f'{source.source}: needs reasoning-gym; pip install "dapo-rl[demo]"') from None
    task = source.source.removeprefix(REASONING_GYM)
    if task not in DATASETS:
        close = difflib.get_close_matches(task, DATASETS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise DataError(f"{source.source}: reasoning-gym has no task {task}{hint}")
    try:
        problems = create_dataset(task, seed=source.seed, size=source.size, **source.options)
    except (TypeError, ValueError, AssertionError) as error:
        raise DataError(f"{source.source}: options {source.options}: {error}") from None
    for number in range(source.size):
        entry = problems[number]
        yield Row(
            problem=entry["question"],
            answer=entry["answer"],
            columns={"metadata": entry.get("metadata", {})},
            source=task,
            where=f"{source.source}, problem {number + 1}",
        )
