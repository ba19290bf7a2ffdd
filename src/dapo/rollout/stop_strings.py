"""Stop strings: they end a response whose tokens stay as they were sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MARGIN = 8  # characters beyond the longest stop string that are looked at


def ends(tokens: Sequence[int], stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> bool:
    """Whether the latest token has completed one of the stop strings.

    Looks at decoded text long enough to hold any of them. A token may be less than a character (bytes) or nothing
    at all (a special token), so the window grows until its text is long enough.
    """
    wanted = max(map(len, stop)) + MARGIN
    window = wanted
    text = decode(tokens[-window:])
    while len(text) < wanted and window < len(tokens):
        window *= 2
        text = decode(tokens[-window:])
    return any(string in text for string in stop)
