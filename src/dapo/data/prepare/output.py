"""The files of a prepared folder: tables, and the card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dapo.data.prepare.spool import Row
from dapo.data.tables import ORIGINALS, TABLE

_TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string(), "json": pa.string()}
_ORIGINALS = pa.schema([("problem", pa.string()), ("answer", pa.string())])
GROUP = 16_384  # rows of a row group

# The columns of every prepared table, before those that are kept from the sources.
OWN = (
    "id", "problem", "answer", "data_source", "language", "answer_type", "origin", "origin_row", "original_problem",
    "original_answer", "integer_form", "integer_proof",
)  # fmt: skip

# Of `dapo data rate`; kept from any source without asking.
RATINGS = ("pass_rate", "pass_rate_low", "pass_rate_high", "pass_right", "pass_responses")


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


def write_card(path: Path, card: dict[str, Any]) -> None:
    """The card as readable JSON."""
    path.write_text(json.dumps(card, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
