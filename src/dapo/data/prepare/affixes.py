"""Words that many problems of a source begin or end with: a stored template that nobody has taken off?"""

from __future__ import annotations

from collections import Counter
from typing import Any

LENGTH = 40  # characters
LOOKED_AT = 5000  # problems
FEW, SHARE = 20, 0.3  # fewer problems than this, or a smaller share of them, mean nothing


class Affixes:
    """The beginnings and ends of a source's distinct problems."""

    def __init__(self) -> None:
        self._count = 0
        self._counts: dict[str, Counter[str]] = {"begin": Counter(), "end": Counter()}

    def add(self, problem: str) -> None:
        """Looks at a problem."""
        if self._count < LOOKED_AT and len(problem) > 2 * LENGTH:
            self._count += 1
            self._counts["begin"][problem[:LENGTH]] += 1
            self._counts["end"][problem[-LENGTH:]] += 1

    def shared(self) -> list[dict[str, Any]]:
        """{"place": "begin" or "end", "text", "share"} of what at least `SHARE` of the problems have in common."""
        found = []
        for place, counts in self._counts.items():
            for text, count in counts.most_common(1):
                if count >= FEW and count >= SHARE * self._count:
                    found.append({"place": place, "text": text, "share": round(count / self._count, 4)})
        return found
