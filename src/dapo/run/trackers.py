"""Whoever else wants the metrics: a tracker that fails costs a warning, never the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

logger = logging.getLogger(__name__)

Tracker = Callable[[int, Mapping[str, float]], object]


class Trackers:
    """Hands each step's metrics to functions f(step, metrics)."""

    def __init__(self, functions: Sequence[Tracker] = (), say: Callable[[str], None] = lambda text: None) -> None:
        self._functions, self._say = tuple(functions), say
        self._told = False

    def log(self, step: int, metrics: Mapping[str, float]) -> int:
        """Calls each tracker with its own copy; one that raises is logged. Returns how many raised."""
        failures = 0
        for function in self._functions:
            try:
                function(step, dict(metrics))
            except (Exception, SystemExit) as error:
                failures += 1
                logger.warning("tracker %s failed at step %d", function, step, exc_info=error)
                if not self._told:
                    self._told = True
                    self._say(f"tracker {function} failed: {error}; training goes on, metrics.jsonl holds everything")
        return failures
