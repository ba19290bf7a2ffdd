"""The problems of evaluation sets that a training set must not hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dapo.config.schema import SourceConfig
from dapo.data import named
from dapo.data.prepare.contamination import Tested
from dapo.data.prepare.reading import Columns, open_source, rows
from dapo.errors import DataError
from dapo.files import sha256


def read_tested(names: Sequence[str], data_dir: str | None) -> tuple[list[Tested], list[dict[str, Any]]]:
    """(problems, what the card says of each set).

    Args:
        names: named sets (dapo.data.named), files, prepared folders or datasets of a hub.
        data_dir: folder in which named sets are looked for; None: they are fetched.

    Raises:
        DataError: a set that can't be had, or without a readable problem.
    """
    found: list[Tested] = []
    about = []
    for name in names:
        own, digests = _named(name, data_dir) if named.is_named(name) else _file(name)
        if not own:
            raise DataError(f"--against {name}: no problems in it")
        found += own
        about.append({"set": name, "problems": len(own), "files": digests})
    return found, about


def _named(name: str, data_dir: str | None) -> tuple[list[Tested], list[dict[str, Any]]]:
    files = [(str(path), path) for path in [named.find(name, data_dir)]] if data_dir is not None else named.fetch(name)
    own = [
        Tested(set=name, where=row.where, problem=row.problem)
        for row in named.read_named(SourceConfig(source=name), data_dir)
    ]
    return own, [{"file": label, "sha256": sha256(Path(path))} for label, path in files]


def _file(name: str) -> tuple[list[Tested], list[dict[str, Any]]]:
    source = open_source(name)
    own = []
    for raw in rows(source, Columns(), None, answers=False):
        if not isinstance(raw.problem, str):
            raise DataError(f"--against {raw.where}: its problem is no text")
        original = raw.columns.get("original_problem") if source.about["kind"] == "prepared" else None
        own.append(Tested(set=name, where=raw.where, problem=original or raw.problem))
    return own, [{"file": file["file"], "sha256": file["sha256"]} for file in source.about.get("files", [])]
