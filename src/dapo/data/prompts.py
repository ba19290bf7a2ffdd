"""Rows into validated, tokenised, distinct prompts; every drop has a reason and a count."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dapo.config.schema import Config, SourceConfig
from dapo.data.ratings import rating
from dapo.data.sources import AUTO, Row, read_rows
from dapo.data.template import PromptTemplate, Wording
from dapo.errors import DataError, UngradableGold
from dapo.types import Prompt

# Rows' answers as text, with their other columns, and how they are judged (`Prompt.grading`) -> for each
# None, or why it can't be graded.
CheckAnswers = Callable[[Sequence[tuple[str | None, Mapping[str, Any]]], str], list[str | None]]


@dataclass(frozen=True, slots=True)
class Problem:
    """A validated row before tokenisation. `grading`: see Prompt."""

    id: str
    row: Row
    answer: str | None
    grading: str = ""


@dataclass(slots=True)
class LoadedData:
    """What a run trains and is tested on, with the counts of what was left out.

    by_source: training prompts of each configured source, in order.
    """

    by_source: list[list[Prompt]]
    weights: list[float] | None
    tests: dict[str, list[Prompt]]
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def content_id(content: Any) -> str:
    """128-bit hash of what the model is asked: the turns after wording, or the raw text.

    Not of the row: two rows that are worded alike are one problem, and must not be trained on
    and tested with. Answer, system turn and chat template are out.
    """
    text = json.dumps(content, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()[:32]


def source_list(config: Config) -> list[SourceConfig]:
    """`data.source` as a list of tables."""
    data = config.data
    if isinstance(data.source, str):
        return [SourceConfig(source=data.source, prompt_column=data.prompt_column, answer_column=data.answer_column)]
    return list(data.source)


def read_problems(
    sources: Iterable[SourceConfig],
    *,
    wording: Wording,
    check_answers: CheckAnswers | None,
    bad_answers: str,
    counts: Counter[str],
    notes: list[str],
    data_dir: str | None = None,
) -> list[list[Problem]]:
    """Distinct, valid problems of each source, before any model is loaded.

    A problem that stands in several rows with one answer is kept once, and counted.

    Args:
        sources: where to read.
        wording: how problems are put; decides which are the same.
        check_answers: says why rows can't be graded; None when rewards need no answer.
        bad_answers: refuse such rows with an error, or drop and count them.
        counts: gets rows read and dropped by reason.
        notes: gets one line per kind of drop, naming the first row.
        data_dir: where named sets are looked for; None: they are fetched.

    Raises:
        DataError: naming file, row and mend; also for one problem with two answers.
    """
    seen: dict[str, Problem] = {}
    named: dict[str, Problem] = {}  # by the rows' own id column
    result = []
    for source in sources:
        kept = []
        for row, answer in _graded(source, check_answers, bad_answers, counts, notes, data_dir):
            turns = wording.turns(row.problem, row.columns, row.where)
            content = content_id(row.problem if turns is None else turns)
            problem = Problem(content, row, answer, source.reward.key)
            _check_own_id(named, problem)
            first = seen.setdefault(problem.id, problem)
            if first is problem:
                kept.append(problem)
                continue
            if first.answer != problem.answer:
                raise DataError(
                    f"{row.where}: the same problem as {first.row.where} with another answer "
                    f"({problem.answer} against {first.answer}); keep one of them"
                )
            counts["duplicates"] += 1
            if counts["duplicates"] == 1:
                notes.append(f"duplicate problems are kept once; the first: {row.where}, as {first.row.where}")
        if not kept:
            raise DataError(f"{source.source}: no problems in it that are not already in another source")
        result.append(kept)
    return result


def _check_own_id(named: dict[str, Problem], problem: Problem) -> None:
    """Two different problems of a source under one `id` are a mistake in the file."""
    row = problem.row
    if row.columns.get("id") is None:
        return
    other = named.setdefault(f"{row.source}\0{row.columns['id']}", problem)
    if other.id != problem.id:
        raise DataError(
            f"{row.where}: id {row.columns['id']!r} stands for another problem in {other.row.where}; make ids distinct"
        )


def _answer(row: Row) -> str | None:
    """The gold answer as text. Numbers and one-element lists are coerced; anything else is None."""
    value = row.answer
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if isinstance(value, float) and math.isfinite(value) and value == int(value) and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    return value if isinstance(value, str) and value not in ("nan", "inf", "-inf") else None


def _graded(
    source: SourceConfig,
    check_answers: CheckAnswers | None,
    bad_answers: str,
    counts: Counter[str],
    notes: list[str],
    data_dir: str | None,
) -> list[tuple[Row, str | None]]:
    """Rows with their answers; those that can't be graded are refused or dropped, all of them counted.

    Raises:
        DataError: naming how many, the first row, its column and answer, and the mend.
    """
    rows = list(read_rows(source, data_dir))
    counts["rows"] += len(rows)
    answers = [_answer(row) for row in rows]
    if check_answers is None:
        return list(zip(rows, answers, strict=True))
    golds = [(answer, row.columns) for answer, row in zip(answers, rows, strict=True)]
    reasons = check_answers(golds, source.reward.key)
    bad = [(row, reason) for row, reason in zip(rows, reasons, strict=True) if reason]
    if bad:
        row, reason = bad[0]
        column = "" if source.answer_column == AUTO else f" (column {source.answer_column})"
        first = f"{row.where}: the answer {_shown(row.answer)}{column} can't be graded: {reason}"
        if bad_answers == "refuse" or len(bad) == len(rows):
            raise UngradableGold(
                f"{first} ({len(bad)} of {len(rows)} rows are like this; mend them, or leave them out with "
                'data.bad_answers = "drop")'
            )
        counts["bad_answers"] += len(bad)
        notes.append(f"{len(bad)} of {len(rows)} rows left out, their answers can't be graded; the first: {first}")
    return [(row, answer) for row, answer, reason in zip(rows, answers, reasons, strict=True) if not reason]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def problem_text(problem: Any) -> str:
    """A problem as a person reads it: its text, or the last of its messages."""
    return problem if isinstance(problem, str) else str(problem[-1]["content"])


def take_holdout(
    problems: list[list[Problem]], count: int, weights: list[float] | None
) -> tuple[list[list[Problem]], list[Problem]]:
    """Splits off `count` problems: (training, held out).

    Each source gives its share of the mixture (its weight, or its size without weights; largest
    remainders), namely its problems with the smallest content hash. So the held-out set looks
    like training and does not depend on any seed.
    """
    sizes = [len(source) for source in problems]
    if count and count >= sum(sizes):
        raise DataError(f"data.holdout = {count}, but there are only {sum(sizes)} distinct problems")
    shares = _largest_remainders(count, weights or [float(size) for size in sizes])
    training, held_out = [], []
    for index, (source, share) in enumerate(zip(problems, shares, strict=True)):
        if count and share >= len(source):
            raise DataError(
                f"data.holdout = {count} takes all {len(source)} problems of data.source[{index}]; lower it"
            )
        held = sorted(source, key=lambda p: p.id)[:share]
        held_ids = {p.id for p in held}
        held_out += held
        training.append([p for p in source if p.id not in held_ids])
    return training, held_out


def _largest_remainders(count: int, weights: list[float]) -> list[int]:
    exact = [count * weight / sum(weights) for weight in weights]
    shares = [math.floor(value) for value in exact]
    order = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for i in order[: count - sum(shares)]:
        shares[i] += 1
    return shares


def tokenise(
    problems: Iterable[Problem],
    template: PromptTemplate,
    config: Config,
    counts: Counter[str],
    notes: list[str],
) -> list[Prompt]:
    """Prompts within `data.max_prompt_tokens`; longer ones are dropped and counted, or refused."""
    prompts = []
    limit = config.data.max_prompt_tokens
    for problem in problems:
        row = problem.row
        messages = template.messages(row.problem, row.columns, row.where)
        try:
            text, ids = template.encode(messages, row.problem if messages is None else "")
        except (TypeError, UnicodeError) as error:
            raise DataError(f"{row.where}: the tokenizer can't read the prompt: {error}") from None
        if len(ids) > limit:
            message = f"{row.where}: the prompt takes {len(ids)} tokens, over data.max_prompt_tokens = {limit}"
            if config.data.overlong_prompts == "refuse":
                raise DataError(f'{message}; raise it or set data.overlong_prompts = "drop"')
            counts["overlong_prompts"] += 1
            if counts["overlong_prompts"] == 1:
                notes.append(message + "; such prompts are dropped")
            continue
        prompts.append(
            Prompt(
                id=problem.id,
                messages=messages,
                text=text,
                answer=problem.answer,
                source=row.source,
                token_ids=np.asarray(ids, dtype=np.int32),
                columns=row.columns,
                rating=rating(row, config.data.rating_column),
                problem=problem_text(row.problem),
                grading=problem.grading,
            )
        )
    return prompts
