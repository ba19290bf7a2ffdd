"""The processes behind symbolic grading: one that imports once and forks, its children that judge.

The parent (dapo.reward.pool) talks JSON lines over Unix sockets; nothing is pickled, and the user's
main module is never imported. A child arms a kernel timer before each task, with the default action
of SIGALRM: whatever the algebra is doing, the kernel ends the process at the limit. When the parent
goes, the sockets close and every process here ends with it.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
from typing import Any

TASKS_PER_WORKER = 2_000  # then a fresh one: sympy's caches grow
IDLE_S = 0.05  # without a request the process that forks goes on warming itself
WARM = (
    r"\frac{1-p^{2}}{3}",
    r"-\frac{a x^2 (2 - \sqrt{3})}{18} + C",
    r"2 \arcsin \sqrt{a} - \ln(x+1)",
    r"\frac{d !}{2 k(d-k) !} \cdot \binom{n}{k}",
    r"y = -2x + \frac{3}{4}",
    r"e^{-\frac{x}{2}} \sin(2\theta) \cdot \tan^2(y)",
    r"\sqrt[3]{x^2-2}^2 + x_1 y_{0}",
    r"x + y \le 3",
    r"\log_{2} (3) + \pi",
    r"(a+b)(c-d)/2",
    r"\lfloor m / 2\rfloor + |x|",
    r"\sum_{k=1}^{n} k^2",
    r"f(x) = 2x - 1",
    r"\cos \frac{2\pi}{5} - \cot t",
)


def main(descriptor: int) -> None:
    """Imports, says that it is ready, then forks a child for every socket it is handed."""
    control = socket.socket(fileno=descriptor)
    try:
        judge = _prepare()
    except BaseException as error:
        control.sendall(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    control.sendall(json.dumps({"ready": os.getpid()}).encode() + b"\n")
    warming = list(reversed(WARM))
    while True:
        while warming and not select.select([control], [], [], IDLE_S)[0]:
            _warm(warming.pop())
        message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not message or not descriptors:
            return
        limits = json.loads(message[1:])
        pid = os.fork()
        if pid == 0:
            control.close()
            _serve(socket.socket(fileno=descriptors[0]), judge, limits["memory_mb"])
            os._exit(0)
        os.close(descriptors[0])
        control.sendall(json.dumps({"pid": pid}).encode() + b"\n")


def _warm(expression: str) -> None:
    """The parser learns its grammar as it reads, 0.1 to 0.3 s for each new construct: children inherit that."""
    from dapo.reward import symbolic

    symbolic.readable(expression)


def _prepare() -> Any:
    """The judge, with one expression read."""
    import logging

    from dapo.reward import symbolic
    from dapo.reward.compare import compare
    from dapo.reward.read import read
    from dapo.reward.values import Rules

    logging.disable(logging.CRITICAL)
    symbolic.leaf(r"\frac{\sqrt{2}}{x}", r"\frac{2}{\sqrt{2} x}")

    def judge(task: dict[str, Any]) -> tuple[bool, str]:
        gold = read(task["gold"])
        if not task["pred"]:  # can this gold be read at all?
            return compare(gold, gold, Rules(lambda text, _: symbolic.readable(text)))[0] is True, "symbolic"
        rules = Rules(_guarded(symbolic.leaf), task["unevaluated"], task["convert_units"])
        truth, stage = compare(gold, read(task["pred"]), rules)
        return truth is True, stage

    return judge


def _guarded(leaf: Any) -> Any:
    from dapo.reward.guard import screen
    from dapo.reward.values import undecided

    def guarded(gold: str, pred: str) -> bool:
        if undecided(gold, pred):
            return True
        return screen(gold, pred) is None and leaf(gold, pred)

    return guarded


def _serve(connection: socket.socket, judge: Any, memory_mb: int) -> None:
    _bound(memory_mb)
    stream = connection.makefile("rb")
    for count, line in enumerate(stream, start=1):
        task = json.loads(line)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, task["limit_s"])
        last = count >= TASKS_PER_WORKER
        try:
            equal, stage = judge(task)
            answer = {"equal": equal, "stage": stage}
        except MemoryError:
            answer, last = {"error": "out of memory"}, True
        except RecursionError:
            answer = {"error": "nested too deep"}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}"}
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.sendall(json.dumps(answer | {"last": last}).encode() + b"\n")
        if last:
            return


def _bound(memory_mb: int) -> None:
    """No core file, no written file, and so many more megabytes of address space than now."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        bound = now + memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
