"""What is to be prepared, with what, and what has been found: shared by the steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dapo.data.integers import Refusal, Rewrite
from dapo.data.prepare.contamination import Tested
from dapo.data.prepare.describe import CountTokens
from dapo.data.prepare.duplicates import SameAnswers
from dapo.data.prepare.reading import Columns
from dapo.data.prepare.validate import CheckAnswers

# (problem, answer, language) -> a rewrite, why there is none, or None for an answer that is an integer already.
Integers = Callable[[str, str, str], Rewrite | Refusal | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is to be prepared, and how. All of it stands in the card.

    sources: `reading.open_source`. columns, max_rows: of each source. licences: source -> licence.
    template: a stored wording around "{{ problem }}", taken off where a problem has it.
    against: evaluation sets to keep out, names or files; data_dir: where named ones are looked for.
    ngram: words; coverage, similarity: least shares, see `Contamination`; similarity is also that of near-duplicates.
    near_duplicates: whether they are dropped. conflicts: drop problems that have several answers, or keep the first.
    integers: off; rewrite what a rule can; only: and drop the rest. rewriter: rule, or rule and then llm.
    keep: more columns of the sources to keep.
    """

    sources: tuple[str, ...]
    columns: Columns = field(default_factory=Columns)
    max_rows: int | None = None
    template: str | None = None
    licences: dict[str, str] = field(default_factory=dict)
    against: tuple[str, ...] = ()
    data_dir: str | None = None
    ngram: int = 10
    coverage: float = 0.5
    similarity: float = 0.8
    near_duplicates: bool = True
    conflicts: Literal["drop", "first"] = "drop"
    integers: Literal["off", "rewrite", "only"] = "off"
    rewriter: Literal["rule", "llm"] = "rule"
    keep: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What other rooms do here.

    check_answers: the grader's check of golds. same_answers: its comparison. rewrite: makes integer answers.
    count_tokens: with a tokenizer; tokenizer: its name. say: gets a line about each step.
    """

    check_answers: CheckAnswers
    same_answers: SameAnswers
    rewrite: Integers
    count_tokens: CountTokens | None = None
    tokenizer: str | None = None
    say: Callable[[str], None] = lambda line: None


@dataclass(slots=True)
class Found:
    """What the steps have found so far. dropped: step -> reason -> rows. gone: number -> (step, reason, detail)."""

    rows_by_source: list[int] = field(default_factory=list)
    dropped: dict[str, Counter[str]] = field(default_factory=dict)
    gone: dict[int, tuple[str, str, Any]] = field(default_factory=dict)
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    exact_conflicts: int = 0
    texts: int = 0
    near_other_answers: list[dict[str, Any]] = field(default_factory=list)
    tested: Sequence[Tested] = ()
    tested_about: list[dict[str, Any]] = field(default_factory=list)
    hits: list[dict[str, Any]] = field(default_factory=list)

    def drop(self, step: str, number: int, reason: str, detail: Any) -> None:
        """Drops a distinct row, for the first reason found."""
        if number not in self.gone:
            self.gone[number] = (step, reason, detail)
            self.dropped[step][reason] += 1
