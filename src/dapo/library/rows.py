"""Problems given as rows, as a file that a run or an evaluation reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dapo.errors import DataError, UserError
from dapo.files import write_text

PROMPTS_FILE = "prompts.jsonl"


def write_rows(rows: Any, target: Path) -> None:
    """Writes rows as lines of JSON, aside and renamed.

    Args:
        rows: mappings with the same columns, of what JSON can hold.
        target: a file that is not there yet.

    Raises:
        DataError: naming the row, where it can't be a row.
        UserError: the file is there, or can't be written.
    """
    lines = [_line(row, number) for number, row in enumerate(_listed(rows), start=1)]
    if not lines:
        raise DataError("prompts: no rows")
    if target.exists():
        raise UserError(f"{target}: is there already; name another output_dir")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise UserError(f"{target}: can't be written: {error.strerror or error}") from None


def _listed(rows: Any) -> Iterable[Any]:
    if isinstance(rows, (str, Path)):
        raise DataError(f"prompts = {str(rows)!r}: give rows; a file is data.source, e.g. {{'data.source': 'FILE'}}")
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a data frame, whose iteration gives column names
        raise DataError("prompts: a data frame is no list of rows; give frame.to_dict('records')")
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise DataError(f"prompts: give a list of rows, e.g. [{{'problem': '1 + 1', 'answer': '2'}}], not {type(rows)}")
    return rows


def _line(row: Any, number: int) -> str:
    if not isinstance(row, Mapping):
        raise DataError(f"prompts, row {number}: is no mapping of columns: {row!r}")
    try:
        return json.dumps({str(key): value for key, value in row.items()}, default=_plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"prompts, row {number}: can't be written as JSON: {error}") from None


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy and torch."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")
