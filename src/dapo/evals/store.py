"""An evaluation on disk: what was asked, every sample, the figures. An interrupted one goes on from its samples."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dapo.errors import UserError
from dapo.evals.evaluation import Evaluation
from dapo.evals.results import without_texts
from dapo.evals.settings import differences, is_settings
from dapo.files import fresh_folder, write_text
from dapo.records import Row

SETTINGS, FIGURES, TABLE, SAMPLES = "settings.json", "figures.json", "figures.md", "samples"
FOLDER = "evals"


class EvaluationDirectory:
    """evals/<model>-<YYYYMMDD-HHMMSS>/: settings.json, samples/SET.jsonl, figures.json, figures.md.

    A set's file grows by whole problems, k lines at a time; a torn end is cut off. `Store` of `evaluate`.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path, self._fresh = path, fresh
        self._lock = FileLock(str(path / ".lock"))

    @classmethod
    def place(cls, model: str, output_dir: str | None) -> EvaluationDirectory:
        """Where an evaluation of this model goes; nothing is written yet. Raises UserError."""
        if output_dir is None:
            name = re.sub(r"[^\w.+@-]+", "-", model.rstrip("/").split("/")[-1]).strip("-.") or "model"
            return cls(Path(FOLDER) / f"{name}-{datetime.now():%Y%m%d-%H%M%S}", fresh=True)
        path = Path(output_dir)
        if path.exists() and not path.is_dir():
            raise UserError(f"--output-dir {path}: is a file")
        if path.is_dir() and any(path.iterdir()) and not (path / SETTINGS).is_file() and not _only_lock(path):
            raise UserError(f"--output-dir {path}: holds something else; name another folder")
        return cls(path)

    @classmethod
    def open(cls, name: str) -> EvaluationDirectory:
        """An existing evaluation, by path or "latest". Raises UserError."""
        if name == "latest":
            found = [file.parent for file in Path(FOLDER).glob(f"*/{SETTINGS}")]
            if not found:
                raise UserError(f"no evaluation in {FOLDER}/; give the path of its folder")
            return cls(max(found, key=lambda path: (path / SETTINGS).stat().st_mtime))
        if not (Path(name) / SETTINGS).is_file():
            raise UserError(f"{name}: no evaluation (it has no {SETTINGS})")
        return cls(Path(name))

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether a folder holds an evaluation."""
        return (path / SETTINGS).is_file()

    def hold(self) -> None:
        """Makes the folder and takes its lock. Raises UserError when another process has it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self._fresh:
                self.path = fresh_folder(self.path)  # another evaluation may have begun in the same second
                self._lock = FileLock(str(self.path / ".lock"))
            self.path.mkdir(exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UserError(f"{self.path}: another process is evaluating into it") from None
        except OSError as error:
            raise UserError(f"{self.path}: can't be written to: {error.strerror}") from None

    def release(self) -> None:
        """Gives the lock back. Safe to call twice."""
        self._lock.release()

    def settings(self) -> dict[str, Any]:
        """What was asked. Raises UserError."""
        found = self._read(SETTINGS)
        if not is_settings(found):
            raise UserError(f"{self.path / SETTINGS}: damaged; take the folder away and evaluate again")
        return found

    def forget(self) -> None:
        """Takes away a folder in which nothing was sampled."""
        if (self.path / SAMPLES).exists():
            return
        (self.path / SETTINGS).unlink(missing_ok=True)
        self.release()
        with suppress(OSError):
            (self.path / ".lock").unlink(missing_ok=True)
            self.path.rmdir()

    def begin(self, settings: Mapping[str, Any]) -> int:
        """Writes the settings, or holds them against those there. Returns how many problems are sampled already.

        Raises:
            UserError: the folder holds an evaluation of something else; its first differences are named.
        """
        settings = json.loads(json.dumps(settings))
        if not (self.path / SETTINGS).is_file():
            self._write(SETTINGS, json.dumps(settings, indent=2) + "\n")
            return 0
        found = differences(self.settings(), settings)
        if found:
            raise UserError(
                f"{self.path}: holds an evaluation with other settings ({'; '.join(found[:3])}); name another "
                "--output-dir, or ask for the same"
            )
        return sum(len(self.rows(name)) for name in settings["sets"])

    def rows(self, name: str) -> dict[int, list[Row]]:
        """See Store: the whole problems of a set, without texts; what follows them in the file is removed."""
        file, k = self._samples(name), self.settings()["sampling"]["k"]
        if not file.is_file():
            return {}
        data = file.read_bytes()
        problems = self.settings()["sets"][name]["problems"]
        found: dict[int, list[Row]] = {}
        whole, block = 0, []
        for number, line in enumerate(data.split(b"\n")[:-1], start=1):
            row = _parsed(line)
            block.append(row or {})
            if row is None or not _fits(row, name, len(block) - 1, block[0].get("draw"), problems):
                raise UserError(
                    f"{file}, line {number}: damaged; mend the line, or take the file away and sample again"
                )
            if len(block) == k:
                found[row["draw"]] = without_texts(block)
                whole, block = number, []
        end = sum(len(line) + 1 for line in data.split(b"\n")[:whole])
        if end < len(data) and self._lock.is_locked:
            self._cut(file, end)
        return found

    def _cut(self, file: Path, end: int) -> None:
        """In place: a full disk has no room for another copy."""
        try:
            os.truncate(file, end)
        except OSError as error:
            raise UserError(f"{file}: can't be written: {error.strerror or error}") from None

    def add(self, name: str, rows: Sequence[Row]) -> None:
        """See Store."""
        text = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)
        file = self._samples(name)
        try:
            file.parent.mkdir(exist_ok=True)
            with file.open("ab") as handle:
                handle.write(text.encode("ascii"))
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise UserError(
                f"{file}: can't be written: {error.strerror or error}; make room and go on with it"
            ) from None

    def finish(self, evaluation: Evaluation, markdown: str) -> None:
        """Writes the figures."""
        self._write(FIGURES, json.dumps(evaluation.summary(), indent=2) + "\n")
        self._write(TABLE, markdown.encode("utf-8", "backslashreplace").decode())

    def figures(self) -> dict[str, Any]:
        """The figures of a finished evaluation. Raises UserError."""
        if not (self.path / FIGURES).is_file():
            raise UserError(f"{self.path}: not finished yet; go on with: dapo eval --resume {self.path}")
        return self._read(FIGURES)

    def all_rows(self) -> list[Row]:
        """Every sample, set by set, problems in the order of the set. Raises UserError for damaged files."""
        return [row for name in self.settings()["sets"] for _, rows in sorted(self.rows(name).items()) for row in rows]

    def _samples(self, name: str) -> Path:
        return self.path / SAMPLES / f"{name}.jsonl"

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{self.path / name}: can't be read: {error}") from None
        if not isinstance(found, dict):
            raise UserError(f"{self.path / name}: damaged; take the folder away and evaluate again")
        return found

    def _write(self, name: str, text: str) -> None:
        try:
            write_text(self.path / name, text)
        except OSError as error:
            raise UserError(f"{self.path / name}: can't be written: {error.strerror or error}") from None


FIELDS: dict[str, type | tuple[type, ...]] = {
    "draw": int, "g": int, "prompt_id": str, "tokens": int, "finish": str, "verdict": str, "reward": (int, float),
}  # fmt: skip


def _parsed(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _fits(row: Row, name: str, g: int, draw: Any, problems: int) -> bool:
    """Whether a row is the next of its problem, and has what figures are made of."""
    typed = all(isinstance(row.get(field), kind) and not isinstance(row[field], bool) for field, kind in FIELDS.items())
    known = row.get("set") == name and row.get("correct", 0) in (True, False, None) and "correct" in row
    return typed and known and row["g"] == g and row["draw"] == draw and 0 <= row["draw"] < problems


def _only_lock(path: Path) -> bool:
    with suppress(OSError):
        return {file.name for file in path.iterdir()} <= {".lock", SETTINGS + ".tmp"}
    return False
