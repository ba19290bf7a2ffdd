"""Reads sources row by row for preparing: where they are, what they are, the problem and answer in any layout.

A source is a table file, a prepared folder, a dataset of Hugging Face or ModelScope (dapo.data.hub), or
reasoning-gym:TASK[:SIZE[:SEED]].
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dapo.config.schema import SourceConfig
from dapo.data import hub, named
from dapo.data.sources import ANSWER_COLUMNS, AUTO, PROMPT_COLUMNS, REASONING_GYM, Row, read_rows
from dapo.data.tables import CARD, FILE_ENDINGS, TABLE, is_prepared, no_file, read_file
from dapo.data.wrappers import bare, gsm8k_answer, last_boxed
from dapo.errors import DataError
from dapo.files import sha256

SOLUTION = "solution"  # its last \boxed{} is the answer, where there is no column for it
PROBLEM_COLUMNS = (*PROMPT_COLUMNS, "Problem", "extra_info.raw_problem")
GOLD_COLUMNS = (*ANSWER_COLUMNS, "Answer", SOLUTION)

_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns to read; "auto": the first known name that a file's first row has."""

    prompt: str = AUTO
    answer: str = AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A row before validation. problem and answer may be anything, None where the row has none.

    number: the row in its file, from 1. where: 'FILE, row 7', for messages. source: the data_source of the row.
    """

    problem: Any
    answer: Any
    columns: dict[str, Any]
    source: str
    file: str
    number: int

    @property
    def where(self) -> str:
        return f"{self.file}, row {self.number}"


@dataclass(slots=True)
class Source:
    """An opened source.

    name: as given. files: (label, path); none for generated problems. about: what the card says of it.
    """

    name: str
    files: list[tuple[str, Path]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)


def open_source(name: str, licence: str | None = None) -> Source:
    """Finds (or fetches) a source and takes the digests of its files.

    Args:
        name: as on the command line.
        licence: as the user says; None: what the hub or a prepared folder's card says.

    Raises:
        DataError: there is no such source.
    """
    path = Path(name)
    if any("\ud800" <= c <= "\udfff" for c in name):
        raise DataError(f"{name}: its name is not UTF-8; rename it")
    if name.startswith(REASONING_GYM):
        _generated(name)
        return Source(name, about={"source": name, "kind": "reasoning-gym", "licence": licence})
    if path.is_dir():
        if not is_prepared(path):
            raise DataError(f"{name}: a folder without {TABLE} and {CARD}; give a file, or one of dapo data prepare")
        known, more = _of_card(path / CARD)
        about: dict[str, Any] = {"kind": "prepared", "card_sha256": sha256(path / CARD), **more}
        return _opened(name, [(f"{name}/{TABLE}", path / TABLE)], about, licence or known)
    if path.is_file() or name.endswith(FILE_ENDINGS):
        if not name.endswith(FILE_ENDINGS):
            raise DataError(f"{name}: not a table file; use {', '.join(FILE_ENDINGS)}")
        if not path.is_file():
            raise no_file(path)
        return _opened(name, [(name, path)], {"kind": "file"}, licence)
    if named.is_named(name):
        raise DataError(f"{name}: a test set, not a source to train on; keep it out of the data with --against {name}")
    wanted = hub.reference(name)
    if wanted is None:
        raise DataError(
            f"{name}: no such file; use a {', '.join(FILE_ENDINGS)} file, a prepared folder, hf:OWNER/NAME, "
            "modelscope:OWNER/NAME or reasoning-gym:TASK"
        )
    try:
        got = hub.fetch(wanted)
    except DataError as error:
        here = "" if name.startswith(wanted.hub) else f"{name}: no such file here; "
        raise DataError(here + error.message) from None
    about = {"kind": wanted.hub.rstrip(":"), "repo": wanted.repo, "revision": got.revision}
    return _opened(name, [(f"{wanted.repo}/{file}", at) for file, at in got.files], about, licence or got.licence)


def _of_card(card: Path) -> tuple[str | None, dict[str, Any]]:
    """The licences of a prepared set's sources, each once (None unless all of them are known), and what else its card
    says that a card of the card has to say: what it was held against, and its rating."""
    try:
        found = json.loads(card.read_text(encoding="utf-8"))
        known = [source["licence"] for source in found["sources"]]
        held = found["decontamination"] and found["decontamination"]["sets"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{card}: not a card of dapo data prepare: {type(error).__name__}: {error}") from None
    licence = ", ".join(dict.fromkeys(map(str, known))) if known and all(known) else None
    return licence, {"held_against": held, "rating": found.get("rating")}


def _opened(name: str, files: list[tuple[str, Path]], about: dict[str, Any], licence: str | None) -> Source:
    try:
        digests = [{"file": label, "sha256": sha256(at), "bytes": at.stat().st_size} for label, at in files]
    except OSError as error:
        raise DataError(f"{name}: can't be read: {error}") from None
    return Source(name, files, {"source": name, **about, "licence": licence, "files": digests})


def _generated(name: str) -> SourceConfig:
    task, *numbers = name.removeprefix(REASONING_GYM).split(":")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers) or "0" in numbers[:1]:
        raise DataError(f"{name}: write it {REASONING_GYM}TASK[:SIZE[:SEED]]")
    given = dict(zip(("size", "seed"), map(int, numbers), strict=False))
    try:
        return SourceConfig(source=REASONING_GYM + task, **given)
    except ValidationError:
        raise DataError(f"{name}: the size or seed is too large") from None


def rows(
    source: Source,
    columns: Columns,
    max_rows: int | None = None,
    answers: bool = True,
    template: str | None = None,
) -> Iterator[Raw]:
    """The rows of a source, in its order.

    Args:
        source: opened.
        columns: which to read.
        max_rows: only the first of each source.
        answers: whether a file without a column of answers is refused (one named in `columns` always is); else they
            are None there.
        template: a wording around "{{ problem }}" that is taken off where it stands; the source's `about` counts.

    Raises:
        DataError: a file that can't be read, or without the columns.
    """
    found = islice(_all_rows(source, columns, answers), max_rows)
    if template is None:
        yield from found
        return
    before, after = template_ends(template)
    source.about["template_rows"] = 0
    for raw in found:
        text = raw.problem
        worded = isinstance(text, str) and len(text) > len(before + after)
        if worded and text.startswith(before) and text.endswith(after):
            source.about["template_rows"] += 1
            raw = replace(raw, problem=text[len(before) : len(text) - len(after)].strip())
        yield raw
    if not source.about["template_rows"]:
        raise DataError(f"{source.name}: no problem stands in the --template; look at it with dapo data inspect")


def template_ends(template: str) -> tuple[str, str]:
    """What a template has before and after its problem. Raises DataError without one {{ problem }}."""
    parts = re.split(r"\{\{\s*problem\s*\}\}", template)
    if len(parts) != 2 or not template.strip():
        raise DataError('--template: write it with one {{ problem }}, such as "Solve this: {{ problem }}"')
    return parts[0].lstrip(), parts[1].rstrip()


def _all_rows(source: Source, columns: Columns, answers: bool) -> Iterator[Raw]:
    if not source.files:
        for number, row in enumerate(read_rows(_generated(source.name)), start=1):
            yield _raw_of(row, source.name, number)
    prepared = source.about["kind"] == "prepared"
    if prepared:
        columns = Columns(prompt="problem", answer="answer")
    for label, path in source.files:
        prompt = answer = ""
        for number, found in read_file(path):
            where = f"{label}, row {number}"
            if not prompt:
                prompt = _resolved(found, columns.prompt, PROBLEM_COLUMNS, where, "--prompt-column")
                try:
                    answer = _resolved(found, columns.answer, GOLD_COLUMNS, where, "--answer-column")
                except DataError:
                    if answers or columns.answer != AUTO:
                        raise
            yield Raw(
                problem=found[prompt] if prepared else _problem(found, prompt),
                answer=_gold(_lookup(found, answer), answer) if answer else None,
                columns=found,
                source=str(found.get("data_source") or Path(label).stem),
                file=label,
                number=number,
            )


def _raw_of(row: Row, name: str, number: int) -> Raw:
    return Raw(problem=row.problem, answer=row.answer, columns=row.columns, source=row.source, file=name, number=number)


def _resolved(found: dict[str, Any], name: str, known: tuple[str, ...], where: str, option: str) -> str:
    for candidate in known if name == AUTO else (name,):
        if _lookup(found, candidate, _MISSING) is not _MISSING:
            return candidate
    wanted = " or ".join((", ".join(known[:-1]), known[-1])) if name == AUTO else name
    has = ", ".join(map(str, found)) or "none"
    raise DataError(f"{where}: no column {wanted}; this row has {has}; name it with {option}")


def _lookup(found: dict[str, Any], name: str, default: Any = None) -> Any:
    if name in found:
        return found[name]
    value: Any = found
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return default
        value = value[part]
    return value


def _problem(found: dict[str, Any], name: str) -> Any:
    """The bare problem; with its context where the row keeps that apart (OlympiadBench)."""
    value = _lookup(found, name)
    try:
        text = bare(value, "")
    except DataError:
        return value
    context = found.get("context")
    return f"{context.strip()}\n\n{text}" if isinstance(context, str) and context.strip() else text


def _gold(value: Any, name: str) -> Any:
    if isinstance(value, (list, tuple)):
        parts = [part for part in value if isinstance(part, (str, int, float)) and not isinstance(part, bool)]
        if len(parts) != len(value) or not parts:
            return None
        value = parts[0] if len(parts) == 1 else ", ".join(map(str, parts))
    if not isinstance(value, str):
        return value
    return last_boxed(value) if name == SOLUTION and "####" not in value else gsm8k_answer(value)
