"""Runs that are killed with SIGKILL at random instants and resumed until they end, beside one that never stopped.

Every start is a fork of a process that has imported everything and done nothing with torch: threads and
locks of a parent do not survive a fork. So no test may call `campaign` in pytest's own process: the tests
run benchmarks/crash.py, which does. `differences` may be called anywhere.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import helpers_run as helpers
from dapo.run import checkpoint
from dapo.run.directory import RunDirectory

STEPS = 5
HANG_S = 120.0  # longer than this and a child hangs
PAUSE_S = 0.001  # between two looks at a child
AIMED_S = 0.02  # how long after the beginning of a save an aimed kill falls at most
TRIES = 20  # starts that may end before their kill
WORDS = (f"train.num_steps={STEPS}", "checkpoint.every=1", "checkpoint.keep_last=2", "eval.every=2", "engine.slots=8")
SCHEDULES: dict[str, tuple[str, ...]] = {
    "rounds": ("sampling.gen_prompts=3",),
    "streaming": ("sampling.schedule=streaming", "sampling.gen_prompts=6"),
    "carry": (
        "sampling.schedule=streaming",
        "sampling.gen_prompts=6",
        "sampling.surplus=carry",
        "sampling.max_staleness=1",
        "algorithm.importance_cap=2",
        "sampling.skip_solved_after=1",
        "sampling.skip_solved_steps=2",
    ),
}
IMPORTED_LATE = ("dapo.build", "dapo.loop", "dapo.run.summary", "scipy.stats", "sentencepiece")
FROM = re.compile(r"\(step (\d+)\)|starting again from step (\d+)|nothing to do, step (\d+)")


# --- processes ----------------------------------------------------------------------------------------


class Child:
    """A fork of this process in which a function runs; its output goes to a file.

    Attributes:
        code: the exit code, a negative signal number, or None while it runs.
        hung: it took over HANG_S, and was killed for that.
    """

    def __init__(self, work: Callable[[], int], output: Path) -> None:
        tasks = Path("/proc/self/task")
        if threading.active_count() > 1 or (tasks.is_dir() and len(list(tasks.iterdir())) > 1):
            raise RuntimeError("this process has threads; a fork of it may hang")
        self.output, self.begun = output, time.monotonic()
        self.code: int | None = None
        self.hung = False
        output.write_bytes(b"")  # what an earlier start said must not be taken for its words
        sys.stdout.flush()  # or the child would say it again
        self._pid = os.fork()
        if self._pid == 0:
            _run_and_leave(work, output)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        """Whatever happens here, no child is left."""
        self.kill()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def ended(self) -> bool:
        """Looks whether it has ended; one that hangs is ended."""
        if self.code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif self.seconds > HANG_S:
                self.hung = True
                self.kill()
        return self.code is not None

    def until(self, happened: Callable[[], bool]) -> bool:
        """Waits for something; False when the child ended before."""
        while not happened():
            if self.ended():
                return False
            time.sleep(PAUSE_S)
        return not self.ended()

    def wait(self) -> int:
        """Its exit code."""
        self.until(lambda: False)
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        """SIGKILL, and reaps it."""
        if self.code is None:
            os.kill(self._pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def text(self) -> str:
        """What it said, in one line."""
        return " ".join(self.output.read_text(encoding="utf-8", errors="replace").split())


def _run_and_leave(work: Callable[[], int], output: Path) -> None:
    code = 70
    try:
        for number, path in ((0, Path(os.devnull)), (1, output)):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), number)
        os.dup2(1, 2)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


# --- where a kill falls -------------------------------------------------------------------------------


def saves_under_way(run: Path) -> dict[str, int]:
    """Folders in which a checkpoint is being written, or was when its process was killed, and when they changed."""
    found = {}
    for path in (run / "checkpoints").glob(".step_*.tmp"):
        with contextlib.suppress(OSError):
            found[path.name] = path.stat().st_ctime_ns
    return found


def newest_step(run: Path) -> int:
    """Of the checkpoints that stand; 0 without any."""
    return max((int(path.name[5:11]) for path in checkpoint.folders(run / "checkpoints")), default=0)


def must_stand(run: Path) -> int:
    """A step whose checkpoint, or a later one, has to stand after a kill, whenever it fell.

    A save begins once the one before stands, and after the metrics of its step were written.
    """
    saves = [int(name[6:12]) - 1 for name in saves_under_way(run)]
    return max([row["step"] - 2 for row in RunDirectory(run).metrics()] + saves, default=0)


def classify(run: Path, saves_before: dict[str, int]) -> str:
    """Where a kill fell, from what it left.

    saves_before: what an earlier kill had left when the killed process started.
    """
    metrics = run / "metrics.jsonl"
    if metrics.is_file() and (data := metrics.read_bytes()) and not data.endswith(b"\n"):
        return "in a torn metrics line"
    if any(saves_before.get(name) != changed for name, changed in saves_under_way(run).items()):
        return "during a save"
    folders = checkpoint.folders(run / "checkpoints")
    if len(folders) > 2 or any(map(checkpoint.fault, folders)):
        return "while old checkpoints were removed"
    if [*run.rglob("*.tmp")] != [*run.glob("checkpoints/*.tmp")]:
        return "while another file was written"
    if not folders:
        return "before the first checkpoint"
    return "after the last checkpoint" if newest_step(run) == STEPS else "between saves"


def kill_somewhere(child: Child, run: Path, rng: random.Random, span_s: float, left: dict[str, int]) -> bool:
    """Kills a child at an instant within span_s, or shortly after one of its saves began; False when it ended before.

    left: saves that an earlier kill left half done.
    """
    newest = newest_step(run)
    aimed = rng.random() < 0.5 and newest < STEPS
    wait_s = rng.uniform(0, AIMED_S if aimed else span_s)
    name = f".step_{rng.randint(newest + 1, STEPS):06d}.tmp" if aimed else ""
    if aimed and not child.until(lambda: saves_under_way(run).get(name, 0) != left.get(name, 0)):
        return False
    begun = time.monotonic()
    if not child.until(lambda: time.monotonic() - begun >= wait_s):
        return False
    child.kill()
    return child.code == -signal.SIGKILL and not child.hung


# --- the comparison -----------------------------------------------------------------------------------


def checkpoint_files(run: Path) -> dict[str, Any]:
    """Every file of the last checkpoint but its manifest; the digest of the configuration, which names paths, aside."""
    folder = run / "checkpoints" / f"step_{newest_step(run):06d}"
    files = [file for file in folder.rglob("*") if file.is_file() and file != folder / "manifest.json"]
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    del state["digests"]["config"]
    found: dict[str, Any] = {f"{folder.name}/{file.relative_to(folder)}": file.read_bytes() for file in files}
    return found | {f"{folder.name}/state.json": state}


def row_files(run: Path) -> dict[str, Any]:
    """Every response of every step, the evaluations' figures, and the metrics; times and memory aside."""
    opened = RunDirectory.open(str(run))
    found: dict[str, Any] = {
        f"{folder}/{file.name}": opened.rollouts(int(file.name[5:11]), folder)
        for folder in ("rollouts", "eval")
        for file in (run / folder).glob("*.zst")
    }
    for file in (run / "eval").glob("*.json"):
        figures = json.loads(file.read_text(encoding="utf-8"))
        for one in figures["sets"].values():
            one["spent"]["seconds"] = None
        found[f"eval/{file.name}"] = figures
    for number, row in enumerate(helpers.comparable(helpers.metrics(run))):
        found |= {f"metrics.jsonl line {number + 1}: {key}": value for key, value in row.items()}
    return found


def strays(run: Path) -> list[str]:
    """Files and folders that something left half done."""
    return sorted(n for n in helpers.tree(run) if n.endswith(".tmp") or (Path(n).name[0] == "." and n != ".lock"))


def differences(run: Path, other: Path) -> list[str]:
    """What is not bitwise the same in two finished runs, and what the first left lying about; a line each."""
    if reason := checkpoint.fault(run / "checkpoints" / f"step_{newest_step(run):06d}"):
        return [f"the last checkpoint is broken: {reason}"]
    try:
        one, two = (checkpoint_files(path) | row_files(path) for path in (run, other))
    except Exception as error:  # a torn line, half a zstd frame, no such file: all are differences
        return [f"can't be read: {error!r}"]
    lines = [f"{name}: only in one of them" for name in sorted(one.keys() ^ two.keys())]
    lines += [f"{name}: differs" for name in sorted(one.keys() & two.keys()) if one[name] != two[name]]
    return lines + [f"{name}: left lying about" for name in strays(run)]


# --- a campaign ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """What came of many killed runs."""

    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    resumes: int = 0
    refused: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    left_over: int = 0  # runs that ended with more checkpoints than checkpoint.keep_last
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return bool(self.refused or self.lost or self.different)

    def line(self, name: str) -> str:
        """The summary."""
        places = ", ".join(f"{count} {place}" for place, count in self.kills.most_common())
        more = f", {self.left_over} with an old checkpoint left over" if self.left_over else ""
        return (
            f"{name}: {self.runs} runs, {self.kills.total()} kills ({places}), {self.resumes} resumes: "
            f"{len(self.refused)} refused, {len(self.lost)} lost, {len(self.different)} different{more}; "
            f"{self.seconds:.0f} s"
        )


class Campaign:
    """Kills runs of one schedule and holds them against one that never stopped."""

    def __init__(self, folder: Path, recipe: Path, schedule: str) -> None:
        self.folder, self.schedule, self.tally = folder, schedule, Tally()
        self._new: tuple[str | Path, ...] = ("train", recipe, *WORDS, *SCHEDULES[schedule], "--output-dir")
        self.straight = folder / f"{schedule}-straight"
        with self.start(*self._new, self.straight) as child:
            child.until((self.straight / "config.resolved.json").exists)
            self.before_s = child.seconds  # from the start until there is a run
            code = child.wait()
            self.run_s = child.seconds - self.before_s
        if code != 0:
            raise RuntimeError(f"the uninterrupted run ended with {code}: {child.text()}")
        if found := differences(self.straight, self.straight):
            raise RuntimeError(f"the uninterrupted run: {found[0]}")

    def start(self, *words: str | Path) -> Child:
        """The command in a fork; its output goes beside the run, named in its last word."""
        return Child(lambda: helpers.dapo(*words), Path(f"{words[-1]}.txt"))

    def kill_one(self, number: int, rng: random.Random) -> None:
        """One run: killed, then resumed (each resume killed again by the toss of a coin) until it ends."""
        run = self.folder / f"{self.schedule}-{number:04d}"
        bad = self._begin_and_kill(run, rng)
        while not bad:
            ended, bad = self._resume(run, rng)
            if ended and not bad:
                bad = self._compare(run)
                break
        self.tally.runs += 1
        if not bad:
            shutil.rmtree(run)
            Path(f"{run}.txt").unlink()

    def _begin_and_kill(self, run: Path, rng: random.Random) -> bool:
        span_s = self.run_s if rng.random() < 0.8 else AIMED_S  # or right at the beginning
        for _ in range(TRIES):
            with self.start(*self._new, run) as child:
                begun = child.until((run / "config.resolved.json").exists)
                if begun and kill_somewhere(child, run, rng, span_s, {}):
                    self.tally.kills[classify(run, {})] += 1
                    return False
            if child.hung or child.code != 0:
                return self._refused(run, child)
            shutil.rmtree(run)
        raise RuntimeError(f"{TRIES} runs ended before they could be killed")

    def _resume(self, run: Path, rng: random.Random) -> tuple[bool, bool]:
        """(whether it ended by itself, whether something is wrong)."""
        stood, left = max(newest_step(run), must_stand(run)), saves_under_way(run)
        span_s = self.before_s + self.run_s * (STEPS - stood) / STEPS
        self.tally.resumes += 1
        with self.start("train", "--resume", run) as child:
            if rng.random() < 0.5 and kill_somewhere(child, run, rng, span_s, left):
                self.tally.kills[classify(run, left)] += 1
            elif child.wait() != 0:
                return True, self._refused(run, child)
        said = FROM.search(child.text())
        at = next(int(number) for number in said.groups() if number is not None) if said else stood
        if at < stood or newest_step(run) < stood:
            self.tally.lost.append(f"{run}: {stood} steps were saved; {at} were gone on from, {newest_step(run)} stand")
            return True, True
        return child.code == 0, False

    def _refused(self, run: Path, child: Child) -> bool:
        reason = f"hung for {HANG_S:.0f} s" if child.hung else f"exit code {child.code}"
        self.tally.refused.append(f"{run}: {reason}: {child.text()[-400:]}")
        return True

    def _compare(self, run: Path) -> bool:
        self.tally.left_over += len(checkpoint.folders(run / "checkpoints")) > 2
        found = differences(run, self.straight)
        if found:
            self.tally.different.append(f"{run}: {'; '.join(found[:5])}" + "; ..." * (len(found) > 5))
        return bool(found)


def prepare(folder: Path) -> Path:
    """A taught tiny model, data and a recipe in a folder; what needs torch happens in a fork. Returns the recipe."""
    tempfile.tempdir = str(folder / "temporary")  # what killed processes leave there is no litter elsewhere
    (folder / "temporary").mkdir(parents=True)

    def taught() -> int:
        source = helpers.warm_model()
        shutil.move(source, folder / "model")
        source.parent.rmdir()
        return 0

    for name in IMPORTED_LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError, AttributeError, TypeError):  # half of what loading a model takes
        importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("llama")
    gc.freeze()
    with Child(taught, folder / "model.txt") as child:
        if child.wait() != 0:
            raise RuntimeError(f"no model: {child.text()}")
    return helpers.write_recipe(folder, model=folder / "model")


def campaign(folder: Path, schedules: Sequence[str], kills: int, seed: int) -> bool:
    """Kills so many runs of each schedule, prints a line for each; returns whether anything was wrong."""
    recipe, failed = prepare(folder), False
    for schedule in schedules:
        begun = time.monotonic()
        one = Campaign(folder, recipe, schedule)
        for number in range(kills):
            one.kill_one(number, random.Random(f"{seed}/{schedule}/{number}"))
        one.tally.seconds = time.monotonic() - begun
        print(one.tally.line(schedule), flush=True)
        for kind in ("refused", "lost", "different"):
            for line in getattr(one.tally, kind):
                print(f"  {kind}: {line}", flush=True)
        failed |= one.tally.failed
    return failed
