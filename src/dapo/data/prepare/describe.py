"""What a prepared set holds: kinds of answers, languages, lengths. The figures of a card."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Edges of the length histogram: a bar counts lengths from its edge up to the next, the last one all above.
EDGES = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

CountTokens = Callable[[Sequence[str]], list[int]]

_NUMBER = r"[-+−]?\d+"
_KINDS = (
    ("integer", re.compile(rf"{_NUMBER}|[-+−]?\d{{1,3}}(?:(?:,|\{{,\}}|,\\!)\d{{3}})+")),
    ("decimal", re.compile(rf"{_NUMBER}?\.\d+")),
    ("percent", re.compile(rf"{_NUMBER}(?:\.\d+)?\\?%")),
    ("fraction", re.compile(rf"{_NUMBER} */ *\d+|[-+−]?\\[dt]?frac *(?:\{{ *-?\d+ *\}}|\d) *(?:\{{ *\d+ *\}}|\d)")),
    ("choice", re.compile(r"\(?[A-H]\)?|\\text(?:bf)? *\{ *\(?[A-H]\)? *\}")),
    ("word", re.compile(r"[A-Za-z]{2,}(?: [A-Za-z]+)*|\\text *\{[A-Za-z ]+\}")),
    ("interval", re.compile(r"(?:\\left)?[(\[].*,.*[)\]]|.*\\cup.*", re.DOTALL)),
    ("matrix", re.compile(r".*\\begin *\{[a-zA-Z]*(?:matrix|array)\}.*", re.DOTALL)),
    ("equation", re.compile(r"[^<>]*=[^<>]*", re.DOTALL)),
    ("list", re.compile(r"[^()\[\]]*,.*", re.DOTALL)),
)


def answer_type(answer: str) -> str:
    r"""The kind of an answer by its spelling: integer, decimal, percent, fraction, choice, word, tuple, interval,
    matrix, equation, list, else expression.

    "(0,5)" is a tuple here, though it may be meant as an interval; a square bracket or a union makes it one.

    >>> [answer_type(a) for a in ("-12", "1,000", "0.5", r"\frac{1}{2}", "(1,2)", "[0,1)", "B", r"2\sqrt{3}")]
    ['integer', 'integer', 'decimal', 'fraction', 'tuple', 'interval', 'choice', 'expression']
    """
    text = answer.strip().strip("$").strip()
    kind = next((name for name, pattern in _KINDS if pattern.fullmatch(text)), "expression")
    if kind == "interval" and not re.search(r"[\[\]]|\\cup|\\infty", text):
        return "tuple"
    return kind


class Lengths:
    """Lengths, added one by one, as a histogram with quantiles."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, lengths: Sequence[int]) -> None:
        """Adds some lengths."""
        self._counts.update(lengths)

    def summary(self) -> dict[str, Any]:
        """{"mean", "p50", "p90", "p99", "max", "histogram": {"0": n, "16": n, ...}}; empty of nothing.

        A quantile p is the smallest length that at least a share p of the lengths does not exceed.
        """
        if not self._counts:
            return {}
        values = np.asarray(sorted(self._counts), dtype=np.int64)
        numbers = np.asarray([self._counts[int(value)] for value in values], dtype=np.int64)
        upto = np.cumsum(numbers)
        total = int(upto[-1])

        def quantile(hundredths: int) -> int:
            return int(values[np.searchsorted(upto * 100, hundredths * total)])

        bars = np.searchsorted(np.asarray(EDGES), values, side="right") - 1
        histogram = {str(edge): int(numbers[bars == bar].sum()) for bar, edge in enumerate(EDGES)}
        mean = round(float((values * numbers).sum() / total), 2)
        quantiles = {f"p{q}": quantile(q) for q in (50, 90, 99)}
        return {"mean": mean, **quantiles, "max": int(values[-1]), "histogram": histogram}
