"""Where the time of a step goes: named spans, each with its own time, without that of spans inside it.

An error that leaves a span notes its name (`passed`), so that running out of memory can be told by what was going on.

Nothing is measured until `start` is called; a span then costs about a microsecond, before that less.
Spans of other threads than the one that started are not counted.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

Totals = Mapping[str, tuple[float, int]]  # name -> (seconds of its own, how often)


class Recorder:
    """Adds up spans by name.

    >>> recorder = Recorder()
    >>> with recorder.span("outer"), recorder.span("inner"):
    ...     pass
    >>> sorted(recorder.take())
    ['inner', 'outer']
    """

    def __init__(self, synchronise: Callable[[], None] = lambda: None) -> None:
        """`synchronise` waits for a device's queue, so that a span holds what it started."""
        self._synchronise = synchronise
        self._thread = threading.get_ident()
        self._inside: list[float] = []  # seconds of spans within each open one
        self._whole = False  # whether the innermost one keeps what is inside it
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._calls: defaultdict[str, int] = defaultdict(int)

    @contextmanager
    def span(self, name: str, whole: bool = False) -> Iterator[None]:
        """Times its body, also when it fails. whole: spans inside are counted as its own time."""
        if threading.get_ident() != self._thread or self._whole:
            yield
            return
        self._synchronise()
        start = time.perf_counter()
        self._inside.append(0.0)
        self._whole = whole
        try:
            yield
        finally:
            self._whole = False
            self._synchronise()
            spent = time.perf_counter() - start
            self._seconds[name] += spent - self._inside.pop()
            self._calls[name] += 1
            if self._inside:
                self._inside[-1] += spent

    def take(self) -> Totals:
        """What has ended since the last call."""
        result = {name: (seconds, self._calls[name]) for name, seconds in self._seconds.items()}
        self._seconds.clear()
        self._calls.clear()
        return result


_recorder: Recorder | None = None


def start(synchronise: Callable[[], None] = lambda: None) -> Recorder:
    """Measures from now on."""
    global _recorder
    _recorder = Recorder(synchronise)
    return _recorder


def stop() -> None:
    """Measures no longer."""
    global _recorder
    _recorder = None


@contextmanager
def span(name: str, whole: bool = False) -> Iterator[None]:
    """A part of a step, by the name it has in profile.jsonl; see `Recorder.span`."""
    try:
        if _recorder is None:
            yield
            return
        with _recorder.span(name, whole):
            yield
    except Exception as error:
        error.spans = (*passed(error), name)  # type: ignore[attr-defined]
        raise


def passed(error: BaseException) -> tuple[str, ...]:
    """The spans that an error has left, the innermost first.

    >>> try:
    ...     with span("outer"), span("inner"):
    ...         raise ValueError
    ... except ValueError as error:
    ...     passed(error)
    ('inner', 'outer')
    """
    return getattr(error, "spans", ())
