"""The run directory: its layout, its lock, its append-safe logs."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import zstandard
from filelock import FileLock, Timeout

from dapo.errors import SaveFailed, UserError
from dapo.files import fresh_folder, write_bytes, write_text
from dapo.records import Row, rollout_rows
from dapo.types import Group

logger = logging.getLogger(__name__)

LOGS = ("alerts.jsonl",)  # lines of JSON with their step, cut on a resume as metrics.jsonl is
CHECKS_FILE = "checks.jsonl"
STEP_FILE = re.compile(r"step_(\d{6,})\.(?:jsonl\.zst|json)")


class RunDirectory:
    """runs/<recipe>-<YYYYMMDD-HHMMSS>/, held by one process at a time.

    config.resolved.json, manifest.json, metrics.jsonl, alerts.jsonl, checks.jsonl, rollouts/step_*.jsonl.zst,
    tokens/step_*.jsonl.zst, credit/step_*.json, checkpoints/step_*/, eval/step_*.json, log.txt.
    """

    def __init__(self, path: Path, *, named: bool = True) -> None:
        self._handler: logging.Handler | None = None
        self._named = named
        self._place(path)

    def _place(self, path: Path) -> None:
        self.path = path
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self._lock = FileLock(str(path / ".lock"))

    @classmethod
    def create(cls, name: str, output_dir: str | None) -> RunDirectory:
        """The place of a new run; nothing is written before `claim`. Raises UserError when it holds a run."""
        if not output_dir:
            return cls(Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}", named=False)
        path = Path(output_dir)
        try:
            path.lstat()
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:  # a name that is too long, or that no file can have
            raise UserError(f"--output-dir {path}: {getattr(error, 'strerror', None) or error}") from None
        if path.exists() and not path.is_dir():
            raise UserError(f"--output-dir {path}: is a file")
        if (path / "config.resolved.json").exists():
            raise UserError(
                f"--output-dir {path}: holds a run already; continue it with --resume {path}, or name another"
            )
        folders = ("checkpoints", "rollouts", "tokens", "credit", "eval", "tensorboard")
        for name in ("metrics.jsonl", *LOGS, *folders, "trackers.json"):
            if (path / name).exists():
                raise UserError(f"--output-dir {path}: holds {name} of something else; name another folder")
        return cls(path)

    @classmethod
    def open(cls, name: str) -> RunDirectory:
        """An existing run, by path or "latest". Raises UserError."""
        if name == "latest":
            runs = [p.parent for p in Path("runs").glob("*/config.resolved.json")]
            if not runs:
                raise UserError("no run in runs/; give the path of a run directory")
            return cls(max(runs, key=lambda p: p.stat().st_mtime))
        path = Path(name)
        if not (path / "config.resolved.json").is_file():
            raise UserError(f"{name}: no run directory (it has no config.resolved.json)")
        return cls(path)

    def claim(self) -> bool:
        """Makes the folder of a new run that nobody named; under the next free name where it was taken meanwhile, as
        by a run that began in the same second. Returns whether the folder is of this run alone. Raises UserError.
        """
        if self._named:
            return not self.path.exists()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._place(fresh_folder(self.path))
        except OSError as error:
            raise UserError(f"{self.path}: can't be made: {error.strerror}") from None
        self._named = True
        return True

    def hold(self, *, new: bool) -> None:
        """Makes the folder, takes the lock, starts log.txt. Raises UserError when another process has it.

        new: the folder must not hold a run yet.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.path}: can't be made: {error.strerror}") from None
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UserError(f"{self.path}: another process is writing to this run") from None
        except OSError as error:
            raise UserError(f"{self.path}: can't be written to: {error.strerror}") from None
        if new and (self.path / "config.resolved.json").exists():
            self._lock.release()
            raise UserError(f"{self.path}: another process has just begun a run here; name another --output-dir")
        with _writing(self.path / "log.txt"):
            self._handler = logging.FileHandler(self.path / "log.txt", encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger("dapo").addHandler(self._handler)

    @property
    def held(self) -> bool:
        """Whether this process holds the run."""
        return self._lock.is_locked

    def release(self) -> None:
        """Gives the lock back. Safe to call twice."""
        if self._handler is not None:
            logging.getLogger("dapo").removeHandler(self._handler)
            with suppress(OSError):  # a full disk has been told already
                self._handler.close()
            self._handler = None
        self._lock.release()

    # --- what is written --------------------------------------------------------------------------

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """A JSON file, written aside and renamed."""
        target = self.path / name
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(data, indent=2, ensure_ascii=False, sort_keys=False) + "\n"
            write_bytes(target, text.encode("utf-8", "backslashreplace"))  # a lone surrogate as its JSON escape

    def read_json(self, name: str) -> Any:
        """A JSON file of this run. Raises UserError."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path / name}: can't be read: {error}") from None

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line of metrics.jsonl. NaN is written as null."""
        row = {"step": step} | {key: _json_number(value) for key, value in sorted(metrics.items())}
        self.append_line(self.metrics_file.name, row)

    def append_line(self, name: str, line: Mapping[str, Any]) -> None:
        """One line of JSON at the end of a file of the run. Raises SaveFailed."""
        path = self.path / name
        with _writing(path), path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(line) + "\n")

    def sync(self) -> None:
        """Metrics and log reach the disk: no checkpoint may be ahead of them after a power cut."""
        logs = (self.path / name for name in (*LOGS, CHECKS_FILE, "log.txt"))
        for file in (self.metrics_file, *logs):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl; a torn last line is left out. Raises UserError for any other that is damaged."""
        if not self.metrics_file.is_file():
            return []
        rows = []
        lines = self.metrics_file.read_bytes().split(b"\n")  # what follows the last newline is torn, or nothing
        for number, line in enumerate(lines[:-1], start=1):
            try:
                row = json.loads(line)
                step = row["step"]
            except (ValueError, TypeError, KeyError, RecursionError):
                step = None
            if not isinstance(step, int):
                raise UserError(f"{self.metrics_file}, line {number}: damaged; mend the line or take it out")
            rows.append(row)
        return rows

    def write_rollouts(
        self, step: int, groups: Iterable[Group], kept: Sequence[Group], advantages: Sequence[float]
    ) -> None:
        """rollouts/step_*.jsonl.zst: every response of a step, with whether its group was kept.

        advantages: of the kept groups' responses, in their order.
        """
        given, values = {}, iter(advantages)
        for group in kept:
            given[group.draw] = [next(values) for _ in group.rollouts]
        rows = [
            row
            for group in groups
            for row in rollout_rows(group, kept=group.draw in given, step=step, advantages=given.get(group.draw))
        ]
        self.write_rows(step, rows, "rollouts")

    def write_rows(self, step: int, rows: Iterable[Row], folder_name: str) -> None:
        """FOLDER/step_*.jsonl.zst: rows of a step, written aside and renamed."""
        folder = self.path / folder_name
        data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "replace")
        target = folder / f"step_{step:06d}.jsonl.zst"
        with _writing(target):
            folder.mkdir(exist_ok=True)
            write_bytes(target, zstandard.ZstdCompressor(write_checksum=True).compress(data))

    def rollouts(self, step: int, folder_name: str = "rollouts") -> list[Row]:
        """The rows of a step, in rollouts/ or in eval/. Raises UserError."""
        file = self.path / folder_name / f"step_{step:06d}.jsonl.zst"
        if not file.is_file():
            raise UserError(f"{file}: no rollouts of this step")
        try:  # whole, because a stream that was cut off would only seem to end
            text = zstandard.ZstdDecompressor().decompress(file.read_bytes()).decode("utf-8")
            return [json.loads(line) for line in text.split("\n")[:-1]]
        except (zstandard.ZstdError, ValueError) as error:
            raise UserError(f"{file}: damaged: {error}") from None

    def cut_after(self, step: int, *, sampled: int | None = None, updates: int = 0, updated: bool = False) -> None:
        """Removes metrics, LOGS, findings and evaluations past a step, before a resume writes them again.

        sampled: rollouts are kept up to this step (that of pending updates is sampled already), and what the
        self-checks found in it up to this many of its updates. updated: these are all of them, so that what the
        last one wrote to tokens/ and credit/ stays too.
        """
        last = step if sampled is None else sampled
        rows = [row for row in self.metrics() if row["step"] <= step]
        with _writing(self.metrics_file):
            write_text(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows))
        for name in LOGS:
            self._cut_log(self.path / name, lambda row: bool(row["step"] <= step))
        self._cut_log(self.path / CHECKS_FILE, lambda row: _found_by(row, step, last, updates))
        ends = {"rollouts": last, "eval": step} | dict.fromkeys(("tokens", "credit"), last if updated else step)
        for folder, until in ends.items():
            for file in (self.path / folder).glob("step_*"):
                number = STEP_FILE.fullmatch(file.name)
                if number is not None and int(number[1]) > until:
                    file.unlink()

    def _cut_log(self, path: Path, stays: Callable[[Any], bool]) -> None:
        """Keeps the lines that stay. A damaged one, which nothing depends on, is left out with a warning."""
        if not path.is_file():
            return
        with _writing(path):
            kept, damaged = [], 0
            for line in path.read_bytes().split(b"\n")[:-1]:  # what follows the last newline is torn, or nothing
                try:
                    if stays(json.loads(line)):
                        kept.append(line + b"\n")
                except (ValueError, TypeError, KeyError, RecursionError):
                    damaged += 1
            if damaged:
                logger.warning("%s: %d damaged lines left out", path, damaged)
            write_bytes(path, b"".join(kept))


def _found_by(row: Any, step: int, sampled: int, updates: int) -> bool:
    """Whether a finding is of what was done up to a step, or within the next up to so many of its updates."""
    begun = row["phase"] == "sampling" or (row["phase"] == "update" and row["update"] <= updates)
    return bool(row["step"] <= step or (row["step"] <= sampled and begun))


def resume_command(path: Path) -> str:
    """What to type to go on with a run."""
    return f"dapo train --resume {shlex.quote(str(path))}"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A disk that refuses stops the run with one line, not a traceback."""
    try:
        yield
    except OSError as error:
        raise SaveFailed(
            f"{path}: can't be written: {error.strerror or error}; make room and resume the run"
        ) from error


def _json_number(value: float) -> float | None:
    return None if math.isnan(value) or math.isinf(value) else value
