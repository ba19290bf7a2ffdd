"""The documentation, read as a program: blocks of a page with their marks, and what runs them.

A block is a fence, or an indented block. What becomes of it follows from its language and from marks, HTML comments
before it:

    <!-- doctest: skip REASON -->     not run; commands are still checked against the options that exist
    <!-- doctest: gpu -->             the same: needs a GPU
    <!-- doctest: network -->         the same: needs the network
    <!-- doctest: slow -->            may take its time: 25 minutes, not two
    <!-- doctest: exit N -->          the commands end with this code, not with 0
    <!-- doctest: file NAME -->       not run: written to this file, which later blocks may use
    <!-- doctest: toml -->            an indented block that is a part of a recipe
    <!-- doctest: output -->          what the block before it prints, but for times and paths
    <!-- doctest: output part -->     lines of that, in order
    <!-- doctest: without TEXT: REASON -->  lines that hold TEXT are not run
    <!-- doctest: setup COMMAND -->   stands alone: run here, shown to nobody

Several marks stand in one comment with semicolons between (a skip's reason and a setup's command take the rest of it).
Without a mark: bash, sh, console and indented commands are run, python is executed (a page has one namespace), toml is
validated as a part of a recipe. Anything else without a mark is a fault: nothing is passed over in silence.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHELLS = ("bash", "sh", "console", "shell")
COMMANDS = re.compile(  # what an indented block of commands begins with, after variables that are set
    r"(?:[A-Z_]+=\S* )*(?:\.venv/bin/)?(?:dapo|python|python3|torchrun|make|git|sh|bash|pip|cd|taskset)\b"
)
MARK = re.compile(r"^<!-- doctest: (.*?) ?-->\s*$")
FENCE = re.compile(r"^(`{3,}|~{3,})\s*([\w+-]*)\s*$")
MARKS = {  # what their arguments look like, where they need one
    "skip": r"\S.*",
    "setup": r"\S.*",
    "file": r"[\w./-]+",
    "exit": r"\d+",
    "output": r"|part",
    **dict.fromkeys(("slow", "gpu", "network", "toml"), ""),
}
NOT_RUN = ("skip", "gpu", "network")
REACHABLE = ("benchmarks", "deploy", "docs", "tests")  # of the repository, from where a page's commands run
SECONDS, SLOW_SECONDS = 120, 1500


@dataclass(frozen=True, kw_only=True)
class Block:
    """line: of its first line of text, from 1. marks: name -> argument; `without` has several."""

    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)
    without: tuple[tuple[str, str], ...] = ()

    @property
    def kind(self) -> str:
        """setup, file, output, commands, python or toml; "" of what nobody can tell."""
        for mark in ("setup", "file", "output", "toml"):
            if mark in self.marks:
                return mark
        if self.language in SHELLS or (self.language == "indented" and self._are_commands()):
            return "commands"
        return self.language if self.language in ("python", "toml") else ""

    @property
    def executes(self) -> bool:
        """Whether running it starts anything."""
        return self.runs and self.kind in ("commands", "python", "setup")

    @property
    def runs(self) -> bool:
        """Whether it is run at all."""
        return not any(mark in self.marks for mark in NOT_RUN)

    def commands(self, *, all_of_them: bool = False) -> list[str]:
        """Its commands, continued lines joined; without those that a mark leaves out, unless all are asked for."""
        text = self.text
        if self.language == "console":
            text = "\n".join(line[2:] for line in text.splitlines() if line.startswith(("$ ", "> ")))
        lines = text.replace("\\\n", " ").splitlines()
        left_out = [] if all_of_them else [text for text, _ in self.without]
        return [line for line in lines if line.strip() and not any(text in line for text in left_out)]

    def _are_commands(self) -> bool:
        lines = [line for line in self.commands(all_of_them=True) if not line.startswith("#")]
        return bool(lines) and all(COMMANDS.match(line) for line in lines)


def read(text: str) -> tuple[list[Block], list[str]]:
    """(blocks in order, faults of marks and of blocks that nobody can tell)."""
    blocks, faults = list[Block](), list[str]()
    waiting: tuple[int, str] | None = None  # a mark that no block has followed yet
    for line, language, body in _parts(text):
        if language == "mark":
            if waiting:
                faults.append(f"line {waiting[0]}: a mark that no block follows")
            waiting = (line, body)
            if not re.match(r"(?:.*; )?setup\b", body):
                continue
            language, body = "setup", ""
        if language == "prose":
            if waiting:
                faults.append(f"line {waiting[0]}: a mark that no block follows")
                waiting = None
            continue
        marks, without, wrong = parse_marks(waiting[1] if waiting else "")
        faults += [f"line {line}: {fault}" for fault in wrong]
        waiting = None
        block = Block(line=line, language=language, text=body, marks=marks, without=without)
        blocks.append(block)
        if not block.kind and "skip" not in marks and not wrong:
            faults.append(
                f"line {line}: {language or 'a fence without a language'}: nobody can tell what it is; mark it"
            )
    if waiting:
        faults.append(f"line {waiting[0]}: a mark that no block follows")
    return blocks, faults


def parse_marks(text: str) -> tuple[dict[str, str], tuple[tuple[str, str], ...], list[str]]:
    """(marks, lines left out with the reasons, faults) of a comment."""
    marks, without, faults = dict[str, str](), list[tuple[str, str]](), list[str]()
    rest = text.strip()
    while rest:
        whole = rest.startswith(("skip", "setup"))
        part, _, rest = (rest, "", "") if whole else rest.partition(";")
        rest = rest.strip()
        name, _, argument = part.strip().partition(" ")
        if name == "without":
            what, _, reason = argument.partition(": ")
            without.append((what, reason))
            if not what or not reason:
                faults.append("without needs TEXT: REASON")
        elif name in MARKS:
            marks[name] = argument.strip()
            if MARKS[name] and not re.fullmatch(MARKS[name], marks[name]):
                faults.append(
                    f"{name} needs {'a number' if name == 'exit' else 'a reason' if name == 'skip' else 'more'}"
                )
        else:
            faults.append(f"unknown mark {name}")
    return marks, tuple(without), faults


def _parts(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, what, text) of marks, fences, indented blocks and prose; blank lines are nothing."""
    lines = text.splitlines()
    place, before = 0, ""  # before: the last line that was not blank
    while place < len(lines):
        line, start = lines[place], place
        if fence := FENCE.match(line.strip()):
            margin = len(line) - len(line.lstrip())
            place += 1
            while place < len(lines) and lines[place].strip() != fence[1]:
                place += 1
            body = [inner[margin:] if inner[:margin].isspace() else inner for inner in lines[start + 1 : place]]
            yield start + 2, fence[2], "\n".join(body)
        elif mark := MARK.match(line.strip()):
            yield start + 1, "mark", mark[1]
        elif line.startswith("    ") and line.strip() and not _in_list(before) and _stands_apart(lines, place):
            while place < len(lines) and (lines[place].startswith("    ") or not lines[place].strip()):
                place += 1
            body = [inner[4:] for inner in lines[start:place]]
            yield start + 1, "indented", "\n".join(body).rstrip()
            place -= 1
        elif line.strip():
            yield start + 1, "prose", line
        before = line if line.strip() else before
        place += 1


def _in_list(before: str) -> bool:
    """Whether what follows is the continuation of a list's item."""
    return re.match(r"\s*(?:[-*+]|\d+\.)\s", before) is not None or re.match(r" {1,3}\S", before) is not None


def _stands_apart(lines: Sequence[str], place: int) -> bool:
    return place == 0 or not lines[place - 1].strip() or MARK.match(lines[place - 1].strip()) is not None


# --- running a page --------------------------------------------------------------------------------------

# Executes snippets in one namespace; each answer is one line of JSON behind a marker.
SNIPPETS = """
import contextlib, io, json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    where, code = json.loads(line)
    printed, fault = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(code, where, "exec"), names)
        except BaseException:
            fault = traceback.format_exc()
    print("doctest:" + json.dumps([printed.getvalue(), fault]), flush=True)
"""


class Page:
    """A page's blocks, run in order in one folder. A fault is a text; an empty list is what it should be."""

    def __init__(self, name: str, text: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        self.blocks, self.faults = read(text)
        self._printed: str | None = None  # by the last block; None where that was not run
        self._snippets: subprocess.Popen[str] | None = None

    def run(self) -> list[str]:
        """Runs what is to be run; the first block that fails ends it, since the rest may build on it."""
        if self.faults:
            return [f"{self._name}: {fault}" for fault in self.faults]
        prepare(self._folder)
        try:
            for block in self.blocks:
                if fault := self._run_block(block):
                    return [f"{self._name}:{block.line}: {fault}"]
        finally:
            if self._snippets is not None:
                self._snippets.kill()
                self._snippets.communicate()
        return []

    def _run_block(self, block: Block) -> str:
        kind = block.kind
        if kind == "output":
            if self._printed is None or not block.runs:
                return ""
            return difference(block.text, self._printed, self._folder, part=block.marks["output"] == "part")
        self._printed = None
        if not block.runs:
            return ""
        limit = SLOW_SECONDS if "slow" in block.marks else SECONDS
        if kind == "file":
            path = self._folder / block.marks["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text + "\n", encoding="utf-8")
        elif kind == "setup":
            return self._shell(block.marks["setup"], 0, limit)
        elif kind == "commands":
            return self._shell("\n".join(block.commands()), int(block.marks.get("exit", 0)), limit)
        elif kind == "python":
            return self._snippet(block, limit)
        return ""

    def _shell(self, script: str, wanted: int, limit: int) -> str:
        """Every command has to succeed; with another code wanted, the last one ends with that."""
        try:
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", script],
                cwd=self._folder,
                env=environment(self._folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"not done after {limit} s; mark it slow, or skip it with a reason"
        self._printed = done.stdout
        if done.returncode != wanted:
            return f"ended with {done.returncode}, not {wanted}:\n{script}\n{done.stdout[-3000:]}"
        return ""

    def _snippet(self, block: Block, limit: int) -> str:
        if self._snippets is None:
            self._snippets = subprocess.Popen(
                [sys.executable, "-c", SNIPPETS],
                cwd=self._folder,
                env=environment(self._folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        process = self._snippets
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(limit, process.kill)
        late.start()
        try:
            process.stdin.write(json.dumps([f"{self._name}:{block.line}", block.text]) + "\n")
            process.stdin.flush()
            answer = next((line for line in process.stdout if line.startswith("doctest:")), None)
        except BrokenPipeError:
            answer = None
        finally:
            late.cancel()
        if answer is None:
            return f"the snippet ended the interpreter, or took more than {limit} s"
        printed, fault = json.loads(answer.removeprefix("doctest:"))
        self._printed = printed
        return str(fault)


def prepare(folder: Path) -> None:
    """What a page's commands may refer to: this checkout as .venv/bin/dapo and dapo, and the repository's files."""
    for name in REACHABLE:
        (folder / name).symlink_to(ROOT / name)
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    for name, words in {"dapo": "-m dapo", "python": "", "python3": "", "torchrun": "-m torch.distributed.run"}.items():
        script = bin_folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n', encoding="utf-8")
        script.chmod(0o755)


def environment(folder: Path) -> dict[str, str]:
    """Commands resolve to this checkout; no network, one thread; a home of their own, but for the caches."""
    home = folder / ".home"
    home.mkdir(exist_ok=True)
    return os.environ | {
        "HOME": str(home),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        "PATH": f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }


VARYING = (  # what two runs of one command may differ in
    (re.compile(r"\d+:\d\d(?::\d\d)?"), "TIME"),
    (re.compile(r"\d+(?:\.\d+)? ?(?:s|ms|min|seconds|minutes)\b"), "TIME"),
    (re.compile(r"(?<=tok/s )\d+|(?<= s )\d+\.\d+"), "TIME"),
    (re.compile(r"\d{8}-\d{6}(?:-\w+)?|\d{4}-\d\d-\d\d[T ]TIME\S*"), "DATE"),
)


def normalised(text: str, folder: Path) -> str:
    """Without times, this folder's name and blanks at the ends of lines."""
    text = text.replace(f"{folder}/", "").replace(str(folder), ".")
    for pattern, name in VARYING:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def difference(shown: str, printed: str, folder: Path, *, part: bool = False) -> str:
    """What is not as the page shows it, if anything. part: its lines are some of what was printed, in order."""
    wanted, got = (normalised(text, folder) for text in (shown, printed))
    if part:
        left = iter(got.splitlines())
        lines = [line.strip() for line in wanted.splitlines() if line.strip()]
        missing = [line for line in lines if not any(line == other.strip() for other in left)]
        return f"the page shows {missing[0]!r}, which is not printed (there):\n{got}" if missing else ""
    return "" if wanted == got else f"the page shows\n{wanted}\nand the command prints\n{got}"
