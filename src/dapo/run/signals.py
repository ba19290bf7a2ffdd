"""SIGINT and SIGTERM: the first asks the run to save and stop, a second Ctrl-C leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class StopRequest:
    """A context in which the first signal sets `requested`; the run stops at its next safe point.

    Off the main thread no handler can be set, and nothing is changed.
    """

    def __init__(self, say: Callable[[str], None], what: str = "with a checkpoint") -> None:
        self.requested = False
        self._say, self._what = say, what
        self._old: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            if os.isatty(2):
                os.write(2, b"\x1b[?25h\n")  # the live view hid the cursor
            os._exit(130)
        self.requested = True
        self._say(f"stopping at the next safe point, {self._what}; press Ctrl-C again to leave at once")
