"""Rows from where the problems are: a table file, a prepared folder, reasoning-gym, a named set."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.config.schema import SourceConfig
from dapo.data.tables import FILE_ENDINGS, Numbered, is_prepared, read_file
from dapo.errors import DataError

REASONING_GYM = "reasoning-gym:"
AUTO = "auto"

# Where column = "auto" looks, in order; a dot goes into a struct.
PROMPT_COLUMNS = ("prompt", "problem", "question")
ANSWER_COLUMNS = ("answer", "expected_answer", "final_answer", "reward_model.ground_truth", "ground_truth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem as it stands in its source. `where` is 'file, row 7' for messages."""

    problem: Any
    answer: Any
    columns: dict[str, Any]
    source: str
    where: str


def read_rows(source: SourceConfig, data_dir: str | None = None) -> Iterator[Row]:
    """All rows of a source, in its order.

    Args:
        source: a file, reasoning-gym:TASK or a named set (dapo.data.named), with its columns.
        data_dir: folder in which a named set is looked for; None: it is fetched. Other sources ignore it.

    Raises:
        DataError: a missing file, column or task, a row that is not a JSON object, or a set that
            can't be fetched.
    """
    from dapo.data import named  # it reads its files through this module

    if source.source.startswith(REASONING_GYM):
        rows = _reasoning_gym(source)
    elif named.is_named(source.source):
        rows = named.read_named(source, data_dir)
    elif is_prepared(Path(source.source)):
        own = {"prompt_column": "problem", "answer_column": "answer"}
        named_so = {name: column for name, column in own.items() if getattr(source, name) == AUTO}
        rows = _table(source.model_copy(update=named_so), read_file(Path(source.source)))
    elif source.source.startswith(("hf:", "modelscope:")):
        raise DataError(
            f"data.source = {source.source}: a hub is for dapo data prepare {source.source} -o data/NAME; then "
            "data.source = data/NAME"
        )
    elif source.source.endswith(FILE_ENDINGS):
        rows = _table(source, read_file(Path(source.source)))
    elif "/" in source.source and not Path(source.source).suffix and not Path(source.source).exists():
        raise DataError(
            f"data.source = {source.source}: no such folder; make it with: dapo data prepare SOURCE -o {source.source} "
            "(dapo recipe show RECIPE begins with what a shipped recipe is made from), or give another"
        )
    else:
        raise DataError(
            f"data.source = {source.source}: use a .parquet, .jsonl, .json, .csv or .tsv file, a folder that dapo "
            f"data prepare wrote, reasoning-gym:TASK, or for evaluation a named set ({', '.join(named.NAMES)})"
        )
    for index, row in enumerate(rows):
        if source.max_rows is not None and index >= source.max_rows:
            return
        yield row


def _table(source: SourceConfig, rows: Numbered) -> Iterator[Row]:
    prompt = answer = ""
    for number, columns in rows:
        where = f"{source.source}, row {number}"
        if not prompt:
            prompt = resolve(columns, source.prompt_column, PROMPT_COLUMNS, where, "prompt_column")
            answer = resolve(columns, source.answer_column, ANSWER_COLUMNS, where, "answer_column")
        yield Row(
            problem=column(columns, prompt, where, "prompt_column"),
            answer=column(columns, answer, where, "answer_column"),
            columns={key: value for key, value in columns.items() if key != prompt},
            source=str(columns.get("data_source") or Path(source.source).stem),
            where=where,
        )


_MISSING = object()


def resolve(columns: dict[str, Any], name: str, candidates: Sequence[str], where: str, knob: str) -> str:
    """The column's name: as given, or for "auto" the first candidate that this row has.

    Raises:
        DataError: it has none of them; lists what it has and names the knob.
    """
    if name != AUTO:
        return name
    for candidate in candidates:
        if _lookup(columns, candidate) is not _MISSING:
            return candidate
    raise _missing(columns, f"{', '.join(candidates[:-1])} or {candidates[-1]}", where, knob)


def column(columns: dict[str, Any], name: str, where: str, knob: str) -> Any:
    """The value of a column; a dot in its name goes into a struct. Raises DataError where it is missing."""
    value = _lookup(columns, name)
    if value is _MISSING:
        raise _missing(columns, name, where, knob)
    return value


def _lookup(columns: dict[str, Any], name: str) -> Any:
    if name in columns:
        return columns[name]
    value: Any = columns
    for part in name.split("."):
        value = value.get(part, _MISSING) if isinstance(value, dict) else _MISSING
    return value


def _missing(columns: dict[str, Any], name: str, where: str, knob: str) -> DataError:
    has = ", ".join(map(str, columns)) or "none"
    return DataError(f"{where}: no column {name}; this row has {has}; set data.{knob}")


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
