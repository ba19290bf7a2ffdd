"""The page as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dapo.errors import UserError
from dapo.files import write_text
from dapo.report.data import report_data
from dapo.report.live import rollout_samples
from dapo.report.page import packed, render


@dataclass(frozen=True, slots=True)
class Written:
    """size: characters. shown, total: rollouts. notes: what a run did not write."""

    size: int
    shown: int
    total: int
    notes: tuple[str, ...]


def write_report(target: Path, runs: Sequence[Path], budget: int) -> Written:
    """Writes one self-contained HTML page about runs.

    Args:
        target: an .html file.
        runs: run directories.
        budget: bytes of responses to show.

    Raises:
        UserError: the file can't be written there.
    """
    if target.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--output {target}: name an .html file")
    if not target.parent.is_dir():
        raise UserError(f"--output {target}: no such folder {target.parent}")
    if target.is_dir():
        raise UserError(f"--output {target}: is a folder")
    samples = rollout_samples(list(runs), budget)
    data = report_data(list(runs))
    page = render(data, packed(samples))
    try:
        write_text(target, page)
    except OSError as error:
        raise UserError(f"--output {target}: can't be written: {error.strerror or error}") from None
    notes = tuple(f"{run['label']}: {note}" for run in data["runs"] for note in run["notes"])
    shown, total = (sum(int(one[name]) for one in samples) for name in ("shown", "total"))
    return Written(len(page), shown, total, notes)
