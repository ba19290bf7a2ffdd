"""Pass rates of problems, out of a file."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dapo.data.ratings import RATED, RESPONSES, RIGHT
from dapo.data.tables import FILE_ENDINGS, TABLE, is_prepared, read_file
from dapo.difficulty import PromptRecord
from dapo.errors import DataError
from dapo.plan.draws import PassRates, RateShare


def read_pass_rates(name: str, column: str = RATED) -> PassRates:
    """What draws fall on, each problem alike.

    Args:
        name: a folder of `dapo data rate`; a .parquet, .csv, .jsonl or .json file whose rows have the column; or a
            .json file that holds one object, pass rate -> weight, e.g. {"0": 40, "0.25": 10, "1": 50}.
        column: of the pass rate.

    Raises:
        DataError: no such file, no such column, nothing rated, or no pass rates.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if not is_prepared(path):
            raise DataError(f"--pass-rates {name}: no folder that dapo data rate wrote")
        return _of_rows(read_file(path / TABLE), column, name)
    if not path.is_file():
        raise DataError(f"--pass-rates {name}: no such file or folder")
    if path.suffix not in FILE_ENDINGS:
        raise DataError(f"--pass-rates {name}: use a folder of dapo data rate or a {', '.join(FILE_ENDINGS)} file")
    if path.suffix == ".json" and (weights := _histogram(path)) is not None:
        return _of_histogram(weights, name)
    return _of_rows(read_file(path), column, name)


def _histogram(path: Path) -> Mapping[str, Any] | None:
    """The one object of a .json file whose keys are numbers; None of rows."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return None  # rows, one a line, or nothing that can be read; the reader of rows says which
    return tree if isinstance(tree, dict) and tree and all(_number(key) is not None for key in tree) else None


def _of_histogram(weights: Mapping[str, Any], name: str) -> PassRates:
    pairs: list[tuple[float, float]] = []
    for key, weight in weights.items():
        rate = _number(key)
        if rate is None or not 0 <= rate <= 1:
            raise DataError(f"--pass-rates {name}: {key}: a pass rate from 0 to 1 is wanted")
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
            raise DataError(f"--pass-rates {name}: weight {weight!r} of {key}: a number of 0 or more is wanted")
        pairs.append((rate, float(weight)))
    whole = sum(weight for _, weight in pairs)
    if not 0 < whole < math.inf:
        raise DataError(f"--pass-rates {name}: its weights add up to {whole:g}")
    shares = tuple(RateShare(weight / whole, rate) for rate, weight in pairs)
    return PassRates(shares=shares, source=f"measured: {name}, a histogram of {len(pairs)} pass rates")


def _of_rows(rows: Iterable[tuple[int, dict[str, Any]]], column: str, name: str) -> PassRates:
    found: Counter[tuple[float, PromptRecord | None]] = Counter()
    unrated = 0
    for number, row in rows:
        if column not in row:
            has = ", ".join(map(str, row)) or "none"
            raise DataError(f"--pass-rates {name}, row {number}: no column {column}; this row has {has}")
        value = row[column]
        if value is None or value == "":
            unrated += 1
            continue
        rate = _number(value)
        if rate is None or not 0 <= rate <= 1:
            raise DataError(
                f"--pass-rates {name}, row {number}: {column} = {value!r}: a pass rate from 0 to 1 is wanted"
            )
        found[rate, _record(row, column)] += 1
    whole = sum(found.values())
    if not whole:
        raise DataError(f"--pass-rates {name}: no problem in it has a pass rate")
    shares = tuple(RateShare(count / whole, rate, record) for (rate, record), count in found.items())
    left_out = f", {unrated} unrated ones taken to be like them" if unrated else ""
    return PassRates(shares=shares, source=f"measured: {name}, {whole} rated problems{left_out}")


def _record(row: Mapping[str, Any], column: str) -> PromptRecord | None:
    """The counts behind a rate, which predict without bias; None where the row has none that can be used."""
    right, responses = row.get(RIGHT), row.get(RESPONSES)
    whole = all(isinstance(count, int) and not isinstance(count, bool) for count in (right, responses))
    if column != RATED or not whole or right is None or responses is None or not 0 <= right <= responses:
        return None
    return PromptRecord(draws=1, responses=responses, right=right) if responses else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
