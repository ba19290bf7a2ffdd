"""Pass rates into a prepared folder: each problem's, with its interval, as columns of a new folder's table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dapo.data.prepare.inspection import read_card
from dapo.data.prepare.output import ParquetFile, write_card
from dapo.data.prepare.place import staged
from dapo.data.ratings import RATED, RESPONSES, RIGHT
from dapo.data.tables import CARD, ORIGINALS, TABLE, is_prepared
from dapo.errors import DataError
from dapo.files import sha256

Asked = tuple[str, str]  # a problem and its gold answer
Rates = Mapping[Asked, tuple[int, int]]  # -> (right responses, responses)

_COLUMNS = [
    (RATED, pa.float64()), (f"{RATED}_low", pa.float64()), (f"{RATED}_high", pa.float64()), (RIGHT, pa.int64()),
    (RESPONSES, pa.int64()), ("original_pass_rate", pa.float64()), ("original_pass_responses", pa.int64()),
]  # fmt: skip


@lru_cache(maxsize=4096)
def exact_interval(right: int, responses: int) -> tuple[float, float]:
    """95% interval of a pass rate from independent responses (Clopper and Pearson): it covers at least that often.

    >>> [round(bound, 3) for bound in exact_interval(0, 16)]
    [0.0, 0.206]
    """
    from scipy.stats import binomtest

    found = binomtest(right, responses).proportion_ci(method="exact")
    return float(found.low), float(found.high)


def check_folder(folder: Path) -> None:
    """Raises DataError unless `dapo data prepare` wrote this folder."""
    if not is_prepared(folder):
        raise DataError(f"{folder}: no prepared folder; make one with: dapo data prepare {folder} -o DIR")


def pairs(folder: Path) -> list[tuple[Asked, Asked]]:
    """(before, after) rewriting, of the rows whose answers were made integers."""
    table = pq.read_table(folder / TABLE, columns=["problem", "answer", "original_problem", "original_answer"])
    return [
        ((row["original_problem"], row["original_answer"]), (row["problem"], row["answer"]))
        for row in table.to_pylist()
        if row["original_problem"] is not None
    ]


def write_rated(folder: Path, out: Path, rates: Rates, about: dict[str, Any], overwrite: bool = False) -> int:
    """Writes `folder` again as `out` with pass rates. Returns how many rows are rated.

    Args:
        folder: prepared.
        out: the new folder.
        rates: by problem and answer, those before rewriting among them.
        about: what the card says of the rating.
        overwrite: replace a prepared folder at `out`.

    Raises:
        UserError: not a prepared folder, none of its problems rated, or `out` can't be written.
    """
    card = read_card(folder)
    rated = 0
    with staged(out, overwrite) as made, pq.ParquetFile(folder / TABLE) as source:
        names = {name for name, _ in _COLUMNS}
        fields = [field for field in source.schema_arrow.remove_metadata() if field.name not in names]
        table = ParquetFile(made / TABLE, pa.schema([*fields, *_COLUMNS]))
        for batch in source.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                found = _rating(row, rates)
                rated += found[RESPONSES] is not None
                table.add(row | found)
        table.close()
        if not rated:
            raise DataError(f"{folder}: none of its problems is among those that were sampled, with the same answer")
        if (folder / ORIGINALS).is_file():
            shutil.copyfile(folder / ORIGINALS, made / ORIGINALS)
        card["table"] = {"file": TABLE, "sha256": sha256(made / TABLE), "bytes": (made / TABLE).stat().st_size}
        card["rating"] = about | {"rows_rated": rated}
        write_card(made / CARD, json.loads(json.dumps(card)))
    return rated


def _rating(row: dict[str, Any], rates: Rates) -> dict[str, Any]:
    right, responses = rates.get((row["problem"], row["answer"]), (0, 0))
    before, of = rates.get((row.get("original_problem") or "", row.get("original_answer") or ""), (0, 0))
    low, high = exact_interval(right, responses) if responses else (None, None)
    return {
        RATED: right / responses if responses else None,
        f"{RATED}_low": low,
        f"{RATED}_high": high,
        RIGHT: right if responses else None,
        RESPONSES: responses or None,
        "original_pass_rate": before / of if of else None,
        "original_pass_responses": of or None,
    }
