"""Reading a run that may still be running: what is torn, damaged or missing is left out and told of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import zstandard

Row = dict[str, Any]
_STEP = re.compile(r"step_(\d{6,})\.(jsonl\.zst|json)")
parsed = partial(json.loads, parse_constant=lambda name: None)  # NaN, which JSON lacks, is null


@dataclass(slots=True)
class Files:
    """The files of a run directory. notes: what could not be read, in words."""

    path: Path
    notes: list[str] = field(default_factory=list)

    def json(self, name: str) -> Any:
        """A JSON file; None where it is missing or can't be read."""
        try:
            return parsed((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError):
            self.note(f"{name}: damaged, left out")
            return None

    def mapping(self, name: str) -> Row:
        """A JSON file that holds an object; {} for all else."""
        found = self.json(name)
        return found if isinstance(found, dict) else {}

    def lines(self, name: str) -> list[Row] | None:
        """The objects of a JSONL file that have an integer step, in step order; None where the file is missing.

        A step that stands twice (a resume wrote it again) keeps its order in the file. A torn last line is what a
        running run looks like and is left out without a word; other damaged lines are counted.
        """
        try:
            data = (self.path / name).read_bytes()
        except OSError:
            return None
        rows, damaged = [], 0
        for line in data.split(b"\n")[:-1]:
            row = _object(line)
            if row is None:
                damaged += bool(line.strip())
            else:
                rows.append(row)
        if damaged:
            self.note(f"{name}: {damaged} damaged lines, left out")
        return sorted(rows, key=lambda row: int(row["step"]))

    def steps(self, folder: str, ending: str) -> dict[int, Path]:
        """step -> file, for FOLDER/step_NNNNNN.ENDING, in step order."""
        try:
            names = [(path, _STEP.fullmatch(path.name)) for path in (self.path / folder).iterdir()]
        except OSError:
            return {}
        return dict(sorted((int(m[1]), path) for path, m in names if m and m[2] == ending))

    def unpacked(self, path: Path) -> list[bytes]:
        """The lines of a compressed file; none, with a note, where it is damaged."""
        try:
            return [line for line in zstandard.ZstdDecompressor().decompress(path.read_bytes()).split(b"\n") if line]
        except (OSError, zstandard.ZstdError):
            self.note(f"{path.parent.name}/{path.name}: damaged, left out")
            return []

    def note(self, text: str) -> None:
        """Something to be told, once."""
        if text not in self.notes:
            self.notes.append(text)


def unpacked_size(path: Path) -> int:
    """Bytes of a compressed file's content, from its header; 4 times its size where the header does not say."""
    try:
        with path.open("rb") as handle:
            size = zstandard.frame_content_size(handle.read(32))
        return size if size >= 0 else 4 * path.stat().st_size
    except (OSError, zstandard.ZstdError):
        return 0


def rows_of(lines: Sequence[bytes]) -> Iterator[Row]:
    """The lines that are objects with a step."""
    for line in lines:
        row = _object(line)
        if row is not None:
            yield row


def _object(line: bytes) -> Row | None:
    try:
        row = parsed(line)
    except (ValueError, RecursionError):
        return None
    step = row.get("step") if isinstance(row, dict) else None
    return row if isinstance(step, int) and not isinstance(step, bool) else None


def number(value: Any) -> float | None:
    """A finite number, or None: of anything a file may hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < float("inf") else None


def short(value: float | None, digits: int = 6) -> float | None:
    """A number with so many significant digits, so that the page stays small."""
    return None if value is None else float(f"{value:.{digits}g}")


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
