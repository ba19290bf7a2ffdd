"""SIGINT and SIGTERM: the first asks the run to save and stop, a second Ctrl-C leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def leave_process() -> None:
    """What a second Ctrl-C does to a command: it ends at once, with exit code 130."""
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")  # the live view hid the cursor
    os._exit(130)


def interrupt() -> None:
    """What it does to a program that uses the library, such as a notebook, which goes on."""
    raise KeyboardInterrupt


class StopRequest:
    """A context in which the first signal sets `requested`; the run stops at its next safe point.

    Off the main thread no handler can be set, and nothing is changed.

    Args:
        say: tells a person.
        what: is done at the safe point.
        leave: what a second Ctrl-C does.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        what: str = "with a checkpoint",
        leave: Callable[[], None] = leave_process,
    ) -> None:
        self.requested = False
        self._say, self._what, self._leave = say, what, leave
        self._old: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._old.items():
                signal.signal(number, handler)
        self._old.clear()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Inside, signals do what they did before: somebody else's code runs."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            self._leave()
            return
        self.requested = True
        self._say(f"stopping at the next safe point, {self._what}; press Ctrl-C again to leave at once")
