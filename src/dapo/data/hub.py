"""Files of published datasets: Hugging Face by huggingface_hub, ModelScope by its own library.

HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are huggingface_hub's, which reads them itself; offline, its cache
is all there is. Nothing here runs code that comes with a dataset.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.data.tables import FILE_ENDINGS
from dapo.errors import DataError, HubUnreachable

HUGGING_FACE, MODELSCOPE = "hf:", "modelscope:"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SPLIT = re.compile(r"(?:^|[/_.-])train(?:[/_.-]|$)", re.IGNORECASE)
_DESCRIPTIONS = ("dataset_infos.json", "dataset_info.json", "state.json", "configuration.json", "package.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A published dataset: hf:OWNER/NAME[@REVISION][:GLOB], or modelscope: likewise.

    glob: which of its files, by their path there; None: those of the train split.
    """

    hub: str
    repo: str
    revision: str | None
    glob: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """files: (path in the dataset, local path), sorted. revision: the commit, where the hub says it."""

    files: list[tuple[str, Path]]
    revision: str | None
    licence: str | None


def reference(text: str) -> Reference | None:
    """The dataset that a source names; None where it names none. A bare OWNER/NAME is one of Hugging Face.

    >>> reference("hf:org/set@v1.0:data/*.parquet")
    Reference(hub='hf:', repo='org/set', revision='v1.0', glob='data/*.parquet')
    >>> reference("org/set").repo, reference("folder/file.jsonl"), reference("file")
    ('org/set', None, None)
    """
    hub = next((hub for hub in (HUGGING_FACE, MODELSCOPE) if text.startswith(hub)), None)
    rest, _, glob = text.removeprefix(hub or "").partition(":")
    repo, _, revision = rest.partition("@")
    if not _NAME.fullmatch(repo) or (hub is None and repo.endswith(FILE_ENDINGS)):
        if hub is None:
            return None
        raise DataError(f"{text}: write it {hub}OWNER/NAME, {hub}OWNER/NAME@REVISION or {hub}OWNER/NAME:GLOB")
    return Reference(hub=hub or HUGGING_FACE, repo=repo, revision=revision or None, glob=glob or None)


def fetch(wanted: Reference) -> Fetched:
    """Downloads the files, or finds them in the library's cache.

    Raises:
        DataError: no such dataset, file or library, or it can't be reached; one line, with what else to do.
    """
    return _modelscope(wanted) if wanted.hub == MODELSCOPE else _hugging_face(wanted)


def _hugging_face(wanted: Reference) -> Fetched:
    import huggingface_hub

    try:
        if huggingface_hub.is_offline_mode():
            folder = Path(
                huggingface_hub.snapshot_download(
                    wanted.repo, repo_type="dataset", revision=wanted.revision, local_files_only=True
                )
            )
            return Fetched(files=_in_folder(folder, wanted), revision=folder.name, licence=None)
        about = huggingface_hub.HfApi().dataset_info(wanted.repo, revision=wanted.revision)
        names = choose([sibling.rfilename for sibling in about.siblings or ()], wanted)
        files = [
            (name, Path(huggingface_hub.hf_hub_download(wanted.repo, name, repo_type="dataset", revision=about.sha)))
            for name in names
        ]
        return Fetched(files=files, revision=about.sha, licence=_licence(about.card_data))
    except DataError:
        raise
    except Exception as error:  # of the library, the network, the disk: all end the same way
        raise unreachable(f"{HUGGING_FACE}{wanted.repo}", error) from None


def _modelscope(wanted: Reference) -> Fetched:
    try:
        from modelscope.hub.snapshot_download import dataset_snapshot_download
    except ImportError:
        raise DataError(
            f'{MODELSCOPE}{wanted.repo}: needs the modelscope library; pip install "dapo-rl[modelscope]"'
        ) from None
    patterns = [wanted.glob] if wanted.glob else [f"*{ending}" for ending in FILE_ENDINGS]
    try:
        folder = Path(dataset_snapshot_download(wanted.repo, revision=wanted.revision, allow_patterns=patterns))
        return Fetched(files=_in_folder(folder, wanted), revision=wanted.revision, licence=None)
    except DataError:
        raise
    except Exception as error:
        raise unreachable(f"{MODELSCOPE}{wanted.repo}", error) from None


def unreachable(name: str, error: Exception) -> HubUnreachable:
    """The error for a dataset that could not be had, in one line."""
    said = " ".join(str(error).split()).partition(". ")[0][:200]  # the first sentence says what failed
    return HubUnreachable(
        f"{name}: can't be fetched: {type(error).__name__}: {said}; download its file where there is a network, and "
        "give that file"
    )


def _in_folder(folder: Path, wanted: Reference) -> list[tuple[str, Path]]:
    there = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [(name, folder / name) for name in choose(there, wanted)]


def choose(names: Sequence[str], wanted: Reference) -> list[str]:
    """The table files of a dataset that are read: those of the glob, else of the one train split, else the only one.

    Raises:
        DataError: there is no such file, or a choice that only a person can make.
    """
    tables = sorted(n for n in names if n.endswith(FILE_ENDINGS) and n.rpartition("/")[2] not in _DESCRIPTIONS)
    mine = f"{wanted.hub}{wanted.repo}"
    shown = ", ".join(tables[:8]) + (", ..." if len(tables) > 8 else "")
    if wanted.glob is not None:
        found = [name for name in tables if fnmatch.fnmatchcase(name, wanted.glob)]
        if not found:
            raise DataError(f"{mine}: no table file matches {wanted.glob}; it has {shown or 'none'}")
        return found
    train = [name for name in tables if _SPLIT.search(name)]
    found = train or tables
    if not found:
        raise DataError(f"{mine}: no {', '.join(FILE_ENDINGS)} file in it")
    folders = {name.rpartition("/")[0] for name in found}
    if len(folders) > 1 or (not train and len(found) > 1):
        raise DataError(f"{mine} has several parts; name one with {mine}:GLOB, such as {found[0]}; it has {shown}")
    return found


def _licence(card: Any) -> str | None:
    value = card.get("license") if card is not None and hasattr(card, "get") else None
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    return str(value) if value else None
