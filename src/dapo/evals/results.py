"""What an evaluation knows of a problem: its samples, graded, as they stand in the rows on disk.

Figures are computed from rows alone, so those of a fresh evaluation, of one that was interrupted, and of one
read from disk are the same by construction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from dapo.evals.phrases import phrase_kinds
from dapo.evals.votes import classes
from dapo.records import Row, rollout_rows
from dapo.types import Equal, Finish, Group, Score, Verdict

RIGHT = 0  # the vote of every right sample


@dataclass(frozen=True, kw_only=True)
class Result:
    """One problem with its samples.

    rows: of its samples, in order of g.
    """

    rows: Sequence[Row]

    @property
    def id(self) -> str:
        return str(self.rows[0]["prompt_id"])

    @property
    def draw(self) -> int:
        """Its place in the set."""
        return int(self.rows[0]["draw"])

    @property
    def question(self) -> str:
        """The problem before any wording, where it is known."""
        return str(self.rows[0].get("problem") or self.rows[0]["question"])

    @property
    def answer(self) -> str | None:
        answer: str | None = self.rows[0]["answer"]
        return answer

    @property
    def source(self) -> str:
        return str(self.rows[0]["source"])

    @property
    def samples(self) -> int:
        return len(self.rows)

    @cached_property
    def right(self) -> int:
        """Right samples."""
        return sum(row["correct"] is True for row in self.rows)

    @cached_property
    def graded(self) -> bool:
        """Whether every score says right or wrong."""
        return all(row["correct"] is not None for row in self.rows)

    @property
    def mean(self) -> float:
        """Share of right samples; NaN where scores say nothing of right and wrong."""
        return self.right / self.samples if self.graded else math.nan

    @property
    def votes(self) -> list[int | None] | None:
        """The answer class of each sample, `RIGHT` for all that are right, None for no answer; None for the whole
        problem where answers can't be compared (programs)."""
        return [row["vote"] for row in self.rows] if "vote" in self.rows[0] else None

    def majority(self) -> str | None:
        """The answer that most samples give (the first one's spelling); None for none, or a tie at the top."""
        counts = Counter(vote for vote in self.votes or () if vote is not None)
        if not counts:
            return None
        (first, most), *rest = counts.most_common(2)
        if rest and rest[0][1] == most:
            return None
        return next(str(row["extracted"]) for row in self.rows if row["vote"] == first)


def result_rows(group: Group, name: str, step: int, equal: Equal | None) -> list[Row]:
    """The rows of an evaluated group: those of training, with set, source, correctness, phrases and votes."""
    scores = [rollout.score for rollout in group.rollouts]
    rows = list(rollout_rows(group, kept=True, step=step))
    for row, score in zip(rows, scores, strict=True):
        row |= {"set": name, "source": group.prompt.source, "problem": group.prompt.problem, "correct": score.correct}
        row["phrases"] = list(phrase_kinds(row["text"]))
    if equal is not None:
        for row, vote in zip(rows, vote_classes(scores, equal), strict=True):
            row["vote"] = vote
    return rows


def without_texts(rows: Sequence[Row]) -> list[Row]:
    """What figures need of rows. A long evaluation's texts fill the memory, and stand on disk."""
    return [{name: value for name, value in row.items() if name not in ("text", "prompt")} for row in rows]


def vote_classes(scores: Sequence[Score], equal: Equal) -> list[int | None]:
    """The answer class of each sample.

    All right answers are one class, whatever their form, and no wrong one joins it: that is what grading
    against the gold has said. Wrong ones are compared with each other; one that could not be graded in time
    stands alone with its own spelling.
    """
    wrong = [None if s.correct or s.verdict is Verdict.UNPARSED else s.extracted for s in scores]
    slow = {s.extracted for s in scores if s.verdict is Verdict.TIMEOUT}

    def asked(pairs: Sequence[tuple[str, str]]) -> list[bool]:
        open_pairs = [pair for pair in pairs if not slow & set(pair)]
        answers = dict(zip(open_pairs, equal(open_pairs) if open_pairs else (), strict=True))
        return [answers.get(pair, False) for pair in pairs]

    found = classes(wrong, asked)
    return [
        RIGHT if score.correct else None if number is None else number + 1
        for score, number in zip(scores, found, strict=True)
    ]


def results_of(rows: Iterable[Row]) -> dict[str, list[Result]]:
    """Results by set, sets and problems in their order in the rows."""
    found: dict[str, list[Result]] = {}
    for (name, _), own in groupby(rows, key=lambda row: (row["set"], row["draw"])):
        found.setdefault(name, []).append(Result(rows=tuple(own)))
    return found


def is_truncated(row: Row) -> bool:
    """Whether a sample reached the token limit."""
    return bool(row["finish"] == Finish.LENGTH.value)


def has_verdict(row: Row, verdict: Verdict) -> bool:
    """Whether a sample got this verdict."""
    return bool(row["verdict"] == verdict.value)


def plain(value: Any) -> Any:
    """None for NaN and infinities, which JSON does not have; containers are walked."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value
