"""Symbolic grading in processes that are killed at the limit and replaced.

Why not a pool from multiprocessing or pebble: both import the caller's main module in every child
(a training script without a main guard would start itself again), both are refused inside daemonic
workers, and both pickle. Here a child is a fork of one process that has imported math-verify alone.
It works from any thread and inside any process: the parent uses no signals and no fork of itself.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.errors import RewardError

GRACE_S = 1.0  # after the limit, when the kernel's timer should long have struck
START_S = 60.0  # for the first import, on a busy machine
_PROGRAM = "import sys; sys.path.append({root!r}); from dapo.reward.worker import main; main({descriptor})"


@dataclass(frozen=True, slots=True)
class Question:
    """A pair of cleaned answers, and the rules that apply."""

    gold: str
    pred: str
    unevaluated: str = "wrong"
    convert_units: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """equal is None when there was no answer; failure is then "timeout" or what went wrong."""

    equal: bool | None
    stage: str
    failure: str = ""


class _Worker:
    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection, self.pid = connection, pid
        self.stream = connection.makefile("rb")

    def ask(self, question: Question, limit_s: float) -> dict[str, Any] | None:
        """The worker's answer, or None when it died or did not answer in time."""
        task = {"gold": question.gold, "pred": question.pred, "limit_s": limit_s,
                "unevaluated": question.unevaluated, "convert_units": question.convert_units}  # fmt: skip
        self.connection.settimeout(limit_s + GRACE_S)
        try:
            self.connection.sendall(json.dumps(task).encode() + b"\n")
            line = self.stream.readline()
        except OSError:
            line = b""
        return json.loads(line) if line.endswith(b"\n") else None

    def end(self, kill: bool = False) -> None:
        if kill:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, 9)
        self.stream.close()
        self.connection.close()


class Pool:
    """At most `size` workers, started when they are needed.

    Args:
        size: workers at once.
        limit_s: seconds for one question, then its worker is killed.
        memory_mb: what a worker may take on top of its imports.
    """

    def __init__(self, size: int, limit_s: float, memory_mb: int) -> None:
        self.size, self.limit_s, self.memory_mb = size, limit_s, memory_mb
        self._slots = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._forker: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._threads: ThreadPoolExecutor | None = None
        self.lost = 0  # workers that died of something else than their limit

    def ask(self, question: Question) -> Reply:
        """Blocks until there is an answer, at most the limit and a second once a worker is free."""
        with self._slots:
            return self._ask(question)

    def ask_all(self, questions: Sequence[Question]) -> list[Reply]:
        """The replies in order, `size` at a time."""
        if len(questions) < 2 or self.size < 2:
            return [self.ask(question) for question in questions]
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="dapo-grade")
        return list(self._threads.map(self.ask, questions))

    def _ask(self, question: Question) -> Reply:
        for attempt in range(2):
            worker, fresh = self._take(idle=attempt == 0)
            start = time.monotonic()
            answer = worker.ask(question, self.limit_s)
            seconds = time.monotonic() - start
            if answer is None:
                worker.end(kill=True)
                if seconds >= self.limit_s * 0.9:
                    return Reply(None, "symbolic", "timeout")
                with self._lock:
                    self.lost += 1
                if attempt == 0 and not fresh:
                    continue  # it died while idle: killed from outside, not by this question
                return Reply(None, "symbolic", "the worker died")
            self._give_back(worker, bool(answer.get("last")))
            if "error" in answer:
                return Reply(None, "symbolic", answer["error"])
            return Reply(bool(answer["equal"]), answer["stage"])
        return Reply(None, "symbolic", "the worker died")

    def _take(self, idle: bool) -> tuple[_Worker, bool]:
        """(a worker, whether it is a new one)."""
        with self._lock:
            if idle and self._idle:
                return self._idle.pop(), False
            for attempt in range(2):
                try:
                    return self._fork(), True
                except (OSError, ValueError):
                    self._stop_forker()
                    if attempt:
                        raise
        raise AssertionError

    def _give_back(self, worker: _Worker, last: bool) -> None:
        if last:
            worker.end()
            return
        with self._lock:
            self._idle.append(worker)

    def _fork(self) -> _Worker:
        control = self._control if self._control is not None else self._start_forker()
        ours, theirs = socket.socketpair()
        with theirs:
            message = b"F" + json.dumps({"memory_mb": self.memory_mb}).encode()
            socket.send_fds(control, [message], [theirs.fileno()])
        try:
            return _Worker(ours, int(_line(control)["pid"]))
        except (OSError, ValueError):
            ours.close()
            raise

    def _start_forker(self) -> socket.socket:
        if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
            raise RewardError("symbolic grading needs Linux or macOS (on Windows: WSL2)")
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])
        program = _PROGRAM.format(root=root, descriptor=theirs.fileno())
        with theirs:
            self._forker = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        ours.settimeout(START_S)
        try:
            hello = _line(ours)
        except (OSError, ValueError):
            hello = {"error": "it did not start"}
        if "error" in hello:
            ours.close()
            raise RewardError(f"the symbolic grader can't start: {hello['error']} (is math-verify installed?)")
        self._control = ours
        return ours

    def _stop_forker(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._forker is not None:
            self._forker.kill()
            self._forker.wait()
        self._control = self._forker = None

    def close(self) -> None:
        """Ends every process. The pool starts again when it is used again."""
        with self._lock:
            for worker in self._idle:
                worker.end(kill=True)
            self._idle.clear()
            self._stop_forker()
            if self._threads is not None:
                self._threads.shutdown(wait=False)
                self._threads = None

    def _forget(self) -> None:
        """In a forked child: close the parent's sockets, touch nothing else."""
        for worker in self._idle:
            worker.connection.close()
        if self._control is not None:
            self._control.close()


def _line(control: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        piece = control.recv(4096)
        if not piece:
            raise ValueError("closed")
        data += piece
    return json.loads(data)  # type: ignore[no-any-return]


_pools: dict[tuple[int, float, int], Pool] = {}
_pools_lock = threading.Lock()


def shared_pool(size: int, limit_s: float, memory_mb: int) -> Pool:
    """The process's own pool for these limits; a forked child gets one of its own."""
    with _pools_lock:
        key = (size, limit_s, memory_mb)
        if key not in _pools:
            _pools[key] = Pool(*key)
        return _pools[key]


def lost_workers() -> int:
    """Workers of this process's pools that died of something else than their limit, since the last call."""
    lost = 0
    for pool in list(_pools.values()):
        with pool._lock:
            lost, pool.lost = lost + pool.lost, 0
    return lost


def default_size() -> int:
    """One worker for each core that this process may use, at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 16)


def _close_all() -> None:
    for pool in list(_pools.values()):
        pool.close()


def _after_fork() -> None:
    global _pools_lock
    for pool in _pools.values():
        pool._forget()
    _pools.clear()
    _pools_lock = threading.Lock()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
