"""Training rows that hold a problem of an evaluation set.

An evaluation problem stands in a row when at least half of its distinct word n-grams (10 words, by default) do, or
when the two are near-duplicates (`near.similarity`). One shared n-gram means nothing on contest text, where
"relatively prime positive integers" and its kin stand in many problems. A problem of fewer than n words is found when
its normalised text is the row's, or by similarity.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dapo.data.prepare import near
from dapo.data.prepare.text import grams, normalise, words


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """A problem of an evaluation set. where: 'FILE, row 7'."""

    set: str
    where: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A row that holds a tested problem.

    row: index of the training row. tested: index of the problem. coverage: share of the problem's n-grams that
    stand in the row, in [0, 1]. similarity: Jaccard index, where it was measured.
    """

    row: int
    tested: int
    coverage: float
    similarity: float | None


class Contamination:
    """Finds tested problems in training rows.

    Args:
        tested: the evaluation problems.
        n: words of an n-gram.
        coverage: least share of n-grams, in (0, 1].
        similarity: least Jaccard index of near-duplicates, in (0, 1].
    """

    def __init__(self, tested: Sequence[Tested], *, n: int = 10, coverage: float = 0.5, similarity: float = 0.8):
        self.tested, self._n, self._coverage, self._similarity = tested, n, coverage, similarity
        self._sizes: list[int] = []
        self._at: dict[tuple[str, ...], list[int]] = defaultdict(list)
        self._whole: dict[str, list[int]] = defaultdict(list)
        for index, item in enumerate(tested):
            runs = grams(words(item.problem), n)
            self._sizes.append(len(runs))
            self._whole[normalise(item.problem)].append(index)
            for run in runs:
                self._at[run].append(index)
        self._keys = near.band_keys(item.problem for item in tested)

    def hits(self, problems: Sequence[str], keys: near.Keys) -> Iterable[Hit]:
        """The hits in some rows, in order.

        Args:
            problems: the rows' problems.
            keys: their `near.band_keys`.
        """
        candidates: dict[int, list[int]] = defaultdict(list)
        for row, tested in near.pairs_between(keys, self._keys):
            candidates[row].append(tested)
        for row, problem in enumerate(problems):
            yield from self._of_row(problem, row, candidates[row])

    def _of_row(self, problem: str, row: int, candidates: Sequence[int]) -> Iterable[Hit]:
        shared = Counter(index for run in grams(words(problem), self._n) if run in self._at for index in self._at[run])
        similar = {index: near.similarity(problem, self.tested[index].problem) for index in candidates}
        similar |= dict.fromkeys(self._whole.get(normalise(problem), ()), 1.0)
        for index in sorted(shared.keys() | similar.keys()):
            coverage = shared[index] / self._sizes[index] if self._sizes[index] else 0.0
            if coverage >= self._coverage or similar.get(index, 0.0) >= self._similarity:
                yield Hit(row=row, tested=index, coverage=coverage, similarity=similar.get(index))
