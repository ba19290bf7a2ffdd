"""dapo browse: kept rollouts in the terminal. Loads no torch, and of a file's texts holds only those it shows."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import click

from dapo.errors import DataError, UserError
from dapo.printable import one_line, printable
from dapo.records import Row
from dapo.types import Finish, Verdict

Key = tuple[int, int, int]  # step, number of the set, draw: orders problems as they were asked
FIELDS = {
    "draw": int, "g": int, "prompt_id": str, "question": str, "text": str, "tokens": int, "finish": str, "verdict": str,
}  # fmt: skip
STEP_NAME = re.compile(r"step_(\d{6,})\.jsonl\.zst")
LENGTH, STOP = Finish.LENGTH.value, Finish.STOP.value
DEFAULT_COUNT, ID_LENGTH, SHORTEST_PREFIX, AROUND_HIT, SMALLEST_GAP = 10, 8, 4, 200, 80
END_LINES, END_CHARACTERS = 10, 750  # of a long text: this much of its beginning, and of its end
COLOURS = {Verdict.CORRECT.value: "green", Verdict.WRONG.value: "red", Verdict.GRADED.value: "cyan"}
EXCLUSIVE = ("truncated complete", "longest shortest", "list longest", "list shortest", "list full", "list json")
_parsed = partial(json.loads, parse_constant=lambda name: None)  # NaN, which JSON lacks, is null


@dataclass(frozen=True, slots=True)
class Source:
    """A file of rows. name: the set that all its rows belong to, where the file itself doesn't say so."""

    path: Path
    handle: BinaryIO
    name: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a response that matches lies in its file, and what orders it."""

    problem: Key
    g: int
    tokens: int
    source: Source
    offset: int


@dataclass(slots=True)
class Problem:
    """What the list says of a problem: `of` counts all its responses. set: "" for training's."""

    id: str
    set: str
    gold: str
    question: str
    place: int = 0
    of: Counter[str] = field(default_factory=Counter)
    reward: float = 0.0

    def add(self, row: Row) -> None:
        """Counts one more response. undecided: the score says nothing of right and wrong."""
        verdict = row["verdict"]
        correct = row.get("correct", None if verdict == Verdict.GRADED.value else verdict == Verdict.CORRECT.value)
        found = {"right": correct is True, "undecided": correct is None, "truncated": row["finish"] == LENGTH}
        self.of.update({name: int(value) for name, value in found.items()}, k=1, tokens=row["tokens"])
        self.reward += row["reward"] if isinstance(row.get("reward"), int | float) else 0.0


@dataclass(frozen=True, slots=True)
class Filters:
    """Which responses are wanted. A problem's place is known only when the whole file is: see `_selected`."""

    problem: str | None
    verdicts: tuple[str, ...]
    finish: str | None
    find: str

    def match(self, row: Row) -> bool:
        """Whether a response is wanted, whatever the problem."""
        verdict = not self.verdicts or row["verdict"] in self.verdicts
        finish = self.finish is None or row["finish"] == self.finish
        return verdict and finish and (not self.find or self.find in row["text"].casefold())

    def names(self, row: Row) -> bool:
        """Whether --problem, read as the start of an id or as a part of a question, means the problem of a row."""
        word = (self.problem or "").casefold()
        prefix = len(word) >= SHORTEST_PREFIX and row["prompt_id"].casefold().startswith(word)
        return prefix or (not word.isdecimal() and word in row["question"].casefold())


@dataclass(slots=True)
class Index:
    """Every problem, and every response that matches; texts stay in the files."""

    total: int = 0
    sets: list[str] = field(default_factory=list)
    problems: dict[Key, Problem] = field(default_factory=dict)
    named: set[Key] = field(default_factory=set)  # the problems that --problem means as a text
    entries: list[Entry] = field(default_factory=list)

    def label(self, key: Key) -> str:
        """A problem's name for a person."""
        one = self.problems[key]
        own = f"{one_line(one.set, 40)} " if len(self.sets) > 1 else ""
        return f"{own}problem {one.place} ({one_line(one.id[:ID_LENGTH], 40)})"


@click.command()
@click.argument("path", metavar="EVALUATION|RUN|FILE.jsonl")
@click.option("--set", metavar="NAME", help="Only this evaluation set.")
@click.option("--step", type=click.IntRange(0), help="Of a run: this step's; the newest otherwise.")
@click.option("--eval", is_flag=True, help="Of a run: its evaluation's samples, not its training's.")
@click.option("--problem", metavar="N|TEXT", help="Place in the list, or start of the id, or part of the question.")
@click.option("--verdict", multiple=True, type=click.Choice([v.value for v in Verdict]), help="Can be repeated.")
@click.option("--truncated", is_flag=True, help="Only those that reached the token limit.")
@click.option("--complete", is_flag=True, help="Only those that ended by themselves.")
@click.option("--find", metavar="TEXT", help="Only responses that hold this text, in upper or lower case.")
@click.option("--longest", is_flag=True, help="Longest first (in tokens), instead of by problem.")
@click.option("--shortest", is_flag=True, help="Shortest first.")
@click.option("-n", type=click.IntRange(0), metavar="COUNT", help="How many; 0 is all.  [default: 10; with --list 0]")
@click.option("--full", is_flag=True, help="Whole texts, not their beginning and end.")
@click.option("--list", is_flag=True, help="One line for each problem that has a response that matches.")
@click.option("--json", is_flag=True, help="The rows as JSON lines.")
def browse(path: str, **given: Any) -> None:
    """Read responses: of an evaluation, of a training run (or latest), or of a file of rows.

    Control characters in them are shown as escapes.
    """
    for one, other in map(str.split, EXCLUSIVE):
        if given[one] and given[other]:
            raise UserError(f"--{one} and --{other} exclude each other; give one of them")
    finish = LENGTH if given["truncated"] else STOP if given["complete"] else None
    find = given["find"] or ""
    filters = Filters(given["problem"], given["verdict"], finish, find.casefold())
    count = given["n"] if given["n"] is not None else 0 if given["list"] else DEFAULT_COUNT
    with _until_the_reader_leaves(), ExitStack() as stack:
        files = _files(path, given["set"], given["step"], given["eval"])
        index = _index([stack.enter_context(_opened(*file)) for file in files], filters, given["set"])
        entries = _selected(index, filters)
        if not entries:
            click.echo(f"no response matches, of {index.total:,}", err=True)
        elif given["list"]:
            _list(index, sorted({entry.problem for entry in entries}), count)
        else:
            sign = -1 if given["longest"] else 1 if given["shortest"] else 0
            entries.sort(key=lambda entry: (sign * entry.tokens, entry.problem, entry.g))
            _print(index, entries[: count or None], given["full"], find, given["json"])
            shown = min(count or len(entries), len(entries))
            click.echo(f"shown {shown:,} of {len(entries):,} responses that match, of {index.total:,}", err=True)


@contextmanager
def _until_the_reader_leaves() -> Iterator[None]:
    """`| head` has read enough: that ends the command, and Python's last flush must not complain either."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _files(name: str, set_name: str | None, step: int | None, evaluation: bool) -> list[tuple[Path, str | None]]:
    """The files of rows that PATH means, each with the set its rows belong to. Raises UserError."""
    path = Path(name)
    if name == "latest" or (path / "config.resolved.json").is_file():
        if set_name is not None and not evaluation:
            raise UserError("--set: training rollouts have no sets; add --eval for the run's evaluation")
        return [(_step_file(name, step, "eval" if evaluation else "rollouts"), None)]
    if path.is_dir() and not (path / "settings.json").is_file():
        raise UserError(f"{name}: no evaluation (it has no settings.json) and no run (no config.resolved.json)")
    if not path.exists():
        raise UserError(f"{name}: there is nothing of this name; name an evaluation, a run or a file of rows")
    if step is not None or evaluation:
        raise UserError(f"{'--eval' if evaluation else '--step'}: {name} is no training run; leave it out")
    if not path.is_dir():
        return [(path, None)]
    try:
        names = list(json.loads((path / "settings.json").read_text(encoding="utf-8"))["sets"])
        files = {str(one): path / "samples" / f"{one}.jsonl" for one in names}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path / 'settings.json'}: can't be read; name a file in {path / 'samples'}") from None
    if set_name is not None and set_name not in files:
        raise UserError(f"--set {set_name}: no such set; there is {_names(files)}")
    return [(file, one) for one, file in files.items() if file.is_file() and set_name in (None, one)]


def _names(sets: Iterable[str]) -> str:
    return ", ".join(one_line(name, 40) for name in sets if name) or "none"


def _step_file(name: str, step: int | None, folder_name: str) -> Path:
    """A run's file of a step, the newest by default. Raises UserError."""
    from dapo.run.directory import RunDirectory

    folder = RunDirectory.open(name).path / folder_name
    found = {int(hit[1]): file for file in folder.glob("step_*") if (hit := STEP_NAME.fullmatch(file.name))}
    if not found:
        raise UserError(f"{folder}: holds no {'evaluation' if folder_name == 'eval' else 'training step'} yet")
    if step is not None and step not in found:
        raise UserError(f"--step {step}: {folder} has no such step; there is {_ranges(found)}")
    return found[max(found) if step is None else step]


def _ranges(numbers: Iterable[int]) -> str:
    """1 to 3, 7, of 7, 1, 2, 3."""
    runs = [[n for _, n in own] for _, own in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


@contextmanager
def _opened(path: Path, name: str | None) -> Iterator[Source]:
    import zstandard

    try:
        handle: BinaryIO = path.open("rb")
        if path.suffix == ".zst":  # whole, because a stream that was cut off would only seem to end
            with handle:
                handle = BytesIO(zstandard.ZstdDecompressor().decompress(handle.read()))
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from None
    except zstandard.ZstdError as error:
        raise DataError(f"{path}: damaged: {error}") from None
    with handle:
        yield Source(path, handle, name)


def _rows(source: Source) -> Iterator[tuple[int, Row]]:
    """(offset, row) of every line. A torn end is left out with a note. Raises DataError."""
    offset = 0
    for number, line in enumerate(source.handle, start=1):
        if line.strip():
            try:
                row = _parsed(line)
            except (ValueError, RecursionError):
                if not line.endswith(b"\n"):
                    click.echo(f"{source.path}: its last line is cut off and left out", err=True)
                    return
                raise DataError(f"{source.path}, line {number}: damaged; mend the line or take it out") from None
            for name, kind in FIELDS.items():
                if not isinstance(row, dict) or not isinstance(row.get(name), kind):
                    what = f"no row of a rollout ({name} is missing or no {kind.__name__}); mend it or take it out"
                    raise DataError(f"{source.path}, line {number}: {what}")
            yield offset, row
        offset += len(line)


def _index(sources: Sequence[Source], filters: Filters, set_name: str | None) -> Index:
    """One pass over the files. Raises UserError when they don't hold the set."""
    index = Index()
    sets: dict[str, int] = {}
    for source in sources:
        for offset, row in _rows(source):
            name = str(source.name or row.get("set") or "")
            number = sets.setdefault(name, len(sets))
            if set_name not in (None, name):
                continue
            key = (row["step"] if isinstance(row.get("step"), int) else 0, number, row["draw"])
            if key not in index.problems:
                shown = one_line(row.get("answer"), 30), one_line(row["question"], 60)
                index.problems[key] = Problem(row["prompt_id"], name, *shown)
                if filters.names(row):
                    index.named.add(key)
            index.problems[key].add(row)
            index.total += 1
            if filters.match(row):
                index.entries.append(Entry(key, row["g"], row["tokens"], source, offset))
    if set_name is not None and sets and set_name not in sets:
        raise UserError(f"--set {set_name}: no such set; there is {_names(sets)}")
    index.sets = list(dict.fromkeys(problem.set for problem in index.problems.values()))
    for rank, (key, problem) in enumerate(sorted(index.problems.items(), key=lambda item: item[0]), start=1):
        problem.place = key[2] + 1 if problem.set else rank  # the draws of an evaluation are places in its set
    return index


def _selected(index: Index, filters: Filters) -> list[Entry]:
    """The responses that match and are of the problem that --problem means. Raises UserError."""
    word, wanted = filters.problem or "", index.named
    if word.isdecimal() and index.problems:
        found = {key for key, problem in index.problems.items() if problem.place == int(word)}
        if found and len(index.sets) > 1:
            raise UserError(f"--problem {word}: in which set? add --set with one of {_names(index.sets)}")
        wanted = found or wanted
        if not wanted:
            places = _ranges({problem.place for problem in index.problems.values()})
            raise UserError(f"--problem {word}: no such problem; there is {places} (--list shows them)")
    return [entry for entry in index.entries if entry.problem in wanted]


def _list(index: Index, keys: Sequence[Key], count: int) -> None:
    lines = []
    for key in keys[: count or None]:
        one, of = index.problems[key], index.problems[key].of
        right = f"mean reward {one.reward / of['k']:.3f}" if of["undecided"] else f"{of['right']}/{of['k']}"
        cells = [str(one.place), one_line(one.id[:ID_LENGTH], 40), right, f"{of['tokens'] / of['k']:,.1f} tokens"]
        cells += [f"{of['truncated']} truncated", f"gold {one.gold}", one.question]
        lines.append([one_line(one.set, 40), *cells] if len(index.sets) > 1 else cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = [cell.rjust(width) for cell, width in zip(line[:-2], widths, strict=False)]
        click.echo(_encodable("  ".join([*padded, line[-2].ljust(widths[-2]), line[-1]]).rstrip()))
    shown = f"shown {len(lines):,} of {len(keys):,} problems with a response that matches"
    click.echo(f"{shown}, of {len(index.problems):,}", err=True)


def _print(index: Index, entries: Sequence[Entry], full: bool, find: str, as_json: bool) -> None:
    asked: set[Key] = set()
    for entry in entries:
        entry.source.handle.seek(entry.offset)
        row = _parsed(entry.source.handle.readline())
        if as_json:
            click.echo(json.dumps(row, ensure_ascii=True).replace("\x7f", "\\u007f"))
            continue
        label = index.label(entry.problem)
        if entry.problem not in asked:
            asked.add(entry.problem)
            click.echo(_styled([(f"{label} asks", "bold")]) + f"\n{_indented(row['question'], full)}\n")
        click.echo(_styled(_headline(row, label)) + f"\n{_indented(row['text'], full, find)}\n")


def _headline(row: Row, label: str) -> Iterator[tuple[str, str]]:
    """What is said of a response, in parts with a style each."""
    verdict = one_line(row["verdict"], 20)
    yield f"{label}  g {row['g']}  ", "bold"
    yield verdict, f"bold {COLOURS.get(verdict, 'yellow')}"
    answer = "no answer" if row.get("extracted") is None else f"answer {one_line(row['extracted'], 60)}"
    yield f"  {answer}, gold {one_line(row.get('answer'), 60)}", ""
    stage = f"  by {one_line(row['stage'], 40)}" if row.get("stage") else ""
    yield (
        f"{stage}  {row['tokens']:,} tokens  {one_line(row['finish'], 20)}  reward {one_line(row.get('reward'), 20)}",
        "dim",
    )
    yield f"  overlong {one_line(row['overlong'], 20)}" if row.get("overlong") else "", "dim"
    yield "  not kept" if row.get("kept") is False else "", "dim"


def _styled(parts: Iterable[tuple[str, str]]) -> str:
    """With colours on a terminal; nothing in a text is read as markup."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(Text.assemble(*((_encodable(text), style) for text, style in parts)), soft_wrap=True, end="")
    return captured.get()


def _indented(text: str, full: bool, find: str = "") -> str:
    """A text under its headline: stepped in, so that none of its lines can pass for a headline."""
    lines = printable(text if full else _cut(text, find)).split("\n")
    return _encodable("\n".join(f"  {line}" for line in lines))


def _cut(text: str, find: str = "") -> str:
    """The beginning and the end of a text, and what is around the first hit; what is left out is counted."""
    breaks = [hit.start() for hit in re.finditer("\n", text)]
    many = len(breaks) >= END_LINES
    first = min(END_CHARACTERS, breaks[END_LINES - 1] if many else len(text))
    last = max(len(text) - END_CHARACTERS, breaks[-END_LINES] + 1 if many else 0)
    spans = [(0, first), (last, len(text))]
    hit = re.search(re.escape(find), text, re.IGNORECASE) if find else None
    if hit and hit.end() > first and hit.start() < last:
        spans.insert(1, (max(first, hit.start() - AROUND_HIT), min(last, hit.start() + AROUND_HIT)))
    out, end = "", 0
    for start, stop in spans:
        if start - end >= SMALLEST_GAP:
            out, end = f"{out}\n... {start - end:,} characters left out ...\n", start
        out, end = out + text[end : max(end, stop)], max(end, stop)
    return out


def _encodable(text: str) -> str:
    """What stdout's encoding lacks, as escapes."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
