"""Whoever else wants the metrics: one that fails, hangs or is missing costs a warning, and no time of the run.

Each tracker has a thread of its own, which opens it, hands it the steps one by one, and closes it. The run only puts
a step into its queue.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from typing import Protocol

from dapo.errors import UserError
from dapo.printable import one_line, printable

logger = logging.getLogger(__name__)

QUEUED = 64  # steps that wait for a tracker; a server that is away for an hour costs none, and they are a few MB
CLOSE_S = 5.0  # seconds that the end of a run waits for all of its trackers together
KEY = re.compile(
    r"((?:token|key|secret|password|passwd|authorization)[\"']?\s*(?:=|:|%3D)\s*(?:bearer\s+)?[\"']?|://[^\s/@:]*:)"
    r"[^\s&@,;\"'<>)]+|\b[0-9a-f]{32,}\b|\b(?:hf|wandb_v1|sk)_[A-Za-z0-9_-]{8,}",
    re.IGNORECASE,
)
WIDTH = 300  # of an error in a warning
GOES_ON = "training goes on, metrics.jsonl holds everything"

Function = Callable[[int, Mapping[str, float]], object]


class Tracker(Protocol):
    """What a tracker is. All calls come from one thread, and any of them may raise or take its time."""

    name: str
    prints: bool
    """Whether it prints on stdout, which is for results."""

    def open(self, first_step: int) -> None:
        """Called once, before anything else. Steps from first_step on will follow; later ones of before are void."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """A finished step (step 0: the evaluation before the first). NaN where there is no value."""

    def close(self) -> None:
        """Called once, after the last step."""


class NotInstalled(UserError):
    """A tracker's package is missing, which has been told when the configuration was checked."""


class FunctionTracker:
    """A function f(step, metrics), called after each step."""

    prints = False

    def __init__(self, name: str, function: Function) -> None:
        self.name, self._function = name, function

    def open(self, first_step: int) -> None:
        """Nothing to do."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See Tracker. Step 0 is no step."""
        if step > 0:
            self._function(step, metrics)

    def close(self) -> None:
        """Nothing to do."""


class Trackers:
    """Hands each step's metrics to all trackers. A context: leaving it closes them, within CLOSE_S.

    What goes wrong is a warning of the log, one line for each tracker; the tracebacks are there with `dapo -v`.
    """

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._workers = [_Worker(tracker) for tracker in trackers]
        self._prints = any(tracker.prints for tracker in trackers)
        self._stack = ExitStack()

    def __enter__(self) -> Trackers:
        if self._prints:
            self._stack.enter_context(redirect_stdout(sys.stderr))
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        self._stack.close()

    def start(self, first_step: int) -> None:
        """Opens the trackers, each in its own time. first_step: the next step that will be logged."""
        for worker in self._workers:
            worker.start(first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Gives each tracker its own copy, at once; one that is QUEUED steps behind does not get it."""
        for worker in self._workers:
            worker.put(step, metrics)

    def failures(self) -> int:
        """Steps that a tracker failed on or did not get, since this was last asked."""
        return sum(worker.failures() for worker in self._workers)

    def close(self) -> None:
        """Lets the trackers take what is queued, and closes them; waits CLOSE_S at most. Safe to call twice."""
        deadline = time.monotonic() + CLOSE_S
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.wait(max(0.0, deadline - time.monotonic()))


class _Worker:
    """One tracker, its thread and its queue."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._changed = threading.Condition()  # guards all that follows
        self._steps: deque[tuple[int, dict[str, float]]] = deque()
        self._ended = self._given_up = self._dead = self._told = False
        self._failures = self._lost = 0
        self._thread: threading.Thread | None = None

    def start(self, first_step: int) -> None:
        name = f"dapo-tracker-{self._tracker.name}"
        thread = threading.Thread(target=self._run, args=(first_step,), name=name, daemon=True)
        if self._tried("open", None, thread.start):
            self._thread = thread
        else:  # no thread to be had
            self._dead = True

    def put(self, step: int, metrics: Mapping[str, float]) -> None:
        with self._changed:
            room = len(self._steps) < QUEUED
            if room and not self._dead:
                self._steps.append((step, dict(metrics)))
                self._changed.notify()
                return
            dead = self._dead
        self._count()
        if not dead:
            self._tell(f"is {QUEUED} steps behind, and gets no more until it catches up")

    def failures(self) -> int:
        with self._changed:
            failures, self._failures = self._failures, 0
            return failures

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        """Until the thread has ended; then, or after so many seconds, what was lost is told."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(seconds)
        with self._changed:
            self._lost += len(self._steps)
            self._steps.clear()
            late, self._given_up = thread is not None and thread.is_alive(), True
            lost, self._lost = self._lost, 0
        if late:
            self._say(f"did not end within {CLOSE_S:g} seconds; its last steps may be missing there")
        if lost:
            self._say(f"did not get {lost} steps; metrics.jsonl has them")

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self, first_step: int) -> None:
        if not self._tried("open", None, lambda: self._tracker.open(first_step)):
            with self._changed:
                self._dead = True
                waiting = len(self._steps)
                self._steps.clear()
            self._count(waiting)
            return
        while (item := self._next()) is not None:
            step, metrics = item
            if not self._tried("log", step, lambda step=step, metrics=metrics: self._tracker.log(step, metrics)):  # type: ignore[misc]
                self._count()
        self._tried("close", None, self._tracker.close)

    def _next(self) -> tuple[int, dict[str, float]] | None:
        """The next step; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._steps or self._ended)
            return self._steps.popleft() if self._steps else None

    def _tried(self, what: str, step: int | None, call: Callable[[], object]) -> bool:
        """Whether a call returned. Whatever it raises ends here: SystemExit and KeyboardInterrupt, too."""
        try:
            call()
        except BaseException as error:
            where = what if step is None else f"step {step}"
            with suppress(Exception):
                trace = _masked("".join(traceback.format_exception(error)))
                logger.info("tracker %s failed (%s)\n%s", self._tracker.name, where, printable(trace))
            if not isinstance(error, NotInstalled):
                self._tell(f"failed ({where}): {_words(error)}")
            return False
        return True

    def _count(self, steps: int = 1) -> None:
        with self._changed:
            self._failures += steps
            self._lost += steps

    def _tell(self, text: str) -> None:
        """The first thing that goes wrong; more of it is counted."""
        with self._changed:
            told, self._told = self._told or self._given_up, True
        if not told:
            self._say(f"{text}; {GOES_ON}")

    def _say(self, text: str) -> None:
        with suppress(Exception):
            logger.warning("tracker %s %s", self._tracker.name, text)


def _words(error: BaseException) -> str:
    """An error on one line, whatever it says of itself."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return one_line(_masked(f"{type(error).__name__}: {text}") if text else type(error).__name__, WIDTH)


def _masked(text: str) -> str:
    """Without what looks like a key: errors of tools can hold addresses with one in them."""
    return KEY.sub(r"\1***", text)
