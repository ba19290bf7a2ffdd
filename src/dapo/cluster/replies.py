"""What comes back from an actor: its answer and what it logged, or why there is none."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dapo.cluster.session import need_ray

KEPT = 1000  # lines of an actor that wait for a reply to take them along


@dataclass(frozen=True, slots=True)
class Reply:
    """An actor's answer. lines: (level, text) of what it logged since its last one."""

    value: Any
    lines: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Home:
    """Where a process is at home: the folder that relative paths are relative to, and where modules are found."""

    folder: str
    path: tuple[str, ...]

    @classmethod
    def here(cls) -> Home:
        """Of this process."""
        return cls(os.getcwd(), tuple(map(os.path.abspath, sys.path)))


class Died(Exception):
    """The actor is gone, or its answer is."""


class Lines(logging.Handler):
    """Keeps what is logged in an actor until a reply takes it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: list[tuple[int, str]] = []
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one record; of very many the first."""
        if len(self._lines) < KEPT:
            self._lines.append((record.levelno, f"{record.name}: {self.format(record)}"))
        else:
            self._lost += 1

    def take(self) -> tuple[tuple[int, str], ...]:
        """What was logged since the last call."""
        lines, lost = self._lines, self._lost
        self._lines, self._lost = [], 0
        if lost:
            lines.append((logging.WARNING, f"{lost} more lines were left out"))
        return tuple(lines)


class Actor:
    """Base of our actors: the run's working directory, and logs that go with the replies.

    Args:
        home: of the process that drives the run.
    """

    def __init__(self, home: Home) -> None:
        sys.path += [place for place in home.path if place not in sys.path and os.path.isdir(place)]
        folder = home.folder
        self._lines = Lines()
        for name in ("dapo", "py.warnings"):
            logging.getLogger(name).addHandler(self._lines)
        logging.captureWarnings(True)
        warnings.simplefilter("once")
        if os.path.isdir(folder):
            os.chdir(folder)
        else:
            logging.getLogger("dapo").warning("%s is not on this machine; relative paths will not be found", folder)

    def _reply(self, value: Any = None) -> Reply:
        return Reply(value, self._lines.take())


def receive(ref: Any, name: str) -> Any:
    """The answer of an actor of this name; waits for it. What it logged goes to this process's log.

    Raises:
        Died: the actor is gone.
        Exception: what was raised there, of its own type.
    """
    ray = need_ray()
    try:
        reply = ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        raise cause_of(error) from None
    except ray.exceptions.RayError as error:
        raise Died(reason_of(error)) from None
    if isinstance(reply, Reply):
        tell(reply.lines, name)
        return reply.value
    return reply


def tell(lines: Sequence[tuple[int, str]], name: str) -> None:
    """Logs an actor's lines here, with its name."""
    for level, text in lines:
        logging.getLogger("dapo.cluster").log(level, "%s: %s", name, text)


def cause_of(error: Any) -> BaseException:
    """What was raised in the actor; what can't be carried over, as a RuntimeError with its text."""
    ray = need_ray()
    cause = error.cause
    if isinstance(cause, ray.exceptions.RayTaskError):
        return cause_of(cause)
    if isinstance(cause, ray.exceptions.RayError):
        return Died(reason_of(cause))
    if isinstance(cause, Exception):
        return cause
    return RuntimeError(f"{type(cause).__name__}: {cause}")


def reason_of(error: BaseException) -> str:
    """Ray's account of a death, in one line."""
    text = str(error)
    ends = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in ends if line.startswith(("The actor is dead", "The actor died", "The node", "Worker "))]
    line = told[-1] if told else ends[0] if ends else type(error).__name__
    return line.partition(" Some common causes")[0][:300].rstrip(" .")
