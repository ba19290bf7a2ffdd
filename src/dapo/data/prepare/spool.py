"""The distinct rows while they are prepared: on disk, since a big source does not fit in memory."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dapo.data.prepare.validate import Item

BATCH = 2048  # rows

_SCHEMA = pa.schema(
    [("problem", pa.string()), ("answer", pa.string()), ("source", pa.string()), ("file", pa.string()),
     ("row", pa.int64()), ("columns", pa.string())]
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A distinct row. number: its place among them. columns: the kept ones."""

    number: int
    problem: str
    answer: str
    source: str
    file: str
    row: int
    columns: dict[str, Any]

    @property
    def where(self) -> str:
        return f"{self.file}, row {self.row}"

    @property
    def before(self) -> tuple[str, str]:
        """Problem and answer; those before rewriting, where the row comes from a set with integer answers."""
        return rewritten_from(self.columns) or (self.problem, self.answer)


def rewritten_from(columns: Mapping[str, Any]) -> tuple[str, str] | None:
    """Problem and answer before rewriting, by a prepared set's columns; None where nothing was rewritten."""
    problem, answer = columns.get("original_problem"), columns.get("original_answer")
    return (problem, answer) if isinstance(problem, str) and isinstance(answer, str) else None


class Spool:
    """Rows written once, then read any number of times."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._file, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd"))
        self._batch: list[dict[str, Any]] = []
        self._types: dict[str, set[str]] = defaultdict(set)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, item: Item, columns: dict[str, Any]) -> None:
        """Appends a row with the columns it keeps."""
        for name, value in columns.items():
            self._types[name].add(_type(value))
        raw = item.raw
        self._batch.append(
            {
                "problem": item.problem,
                "answer": item.answer,
                "source": raw.source,
                "file": str(columns.get("origin") or raw.file),
                "row": columns["origin_row"] if isinstance(columns.get("origin_row"), int) else raw.number,
                "columns": json.dumps(columns, ensure_ascii=False, default=str),
            }
        )
        self._rows += 1
        if len(self._batch) == BATCH:
            self._flush()

    def _flush(self) -> None:
        if self._batch:
            self._writer.write_batch(pa.RecordBatch.from_pylist(self._batch, schema=_SCHEMA))
            self._batch = []

    def finish(self) -> None:
        """Ends writing."""
        self._flush()
        self._writer.close()
        self._file.close()

    def batches(self) -> Iterator[list[Row]]:
        """The rows in order."""
        number = 0
        with pa.OSFile(str(self._path), "rb") as file, pa.ipc.open_stream(file) as reader:
            for batch in reader:
                rows = []
                for values in batch.to_pylist():
                    rows.append(Row(number=number, **{**values, "columns": json.loads(values["columns"])}))
                    number += 1
                yield rows

    def some(self, wanted: Collection[int]) -> dict[int, Row]:
        """The rows with some numbers, by number."""
        if not wanted:
            return {}
        return {row.number: row for rows in self.batches() for row in rows if row.number in wanted}

    def kinds(self) -> dict[str, str]:
        """Kept column -> its type in the table: int, float, bool, str, or json where its values differ."""
        return {name: _kind(found) for name, found in sorted(self._types.items())}


def _type(value: Any) -> str:
    return "big" if isinstance(value, int) and not -(2**63) <= value < 2**63 else type(value).__name__


def _kind(types: set[str]) -> str:
    types = types - {"NoneType"}
    if types <= {"int", "float"} and types:
        return "float" if "float" in types else "int"
    return next(iter(types)) if types in ({"str"}, {"bool"}) else "str" if not types else "json"
