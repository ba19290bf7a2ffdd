"""The tables of an evaluation as rows of text, for a terminal and for markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dapo.evals.evaluation import Evaluation
from dapo.evals.figures import AtK, SetFigures
from dapo.evals.intervals import Interval
from dapo.evals.results import Result, has_verdict, is_truncated
from dapo.printable import one_line, printable
from dapo.types import Verdict

QUESTION = 60  # characters of a question in a table


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column heads, rows of text. The first column stands left, others right."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """As a markdown table under its title."""
        lines = ["| " + " | ".join(map(_escaped, row)) + " |" for row in (self.heads, *self.rows)]
        rule = "|" + "|".join(["---", *["---:"] * (len(self.heads) - 1)]) + "|"
        return "\n".join([f"### {self.title}", "", lines[0], rule, *lines[1:], ""])


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """Headline figures, figures by k, and what responses were like."""
    return [_headline(evaluation), *_by_k(evaluation), _responses(evaluation)]


def _headline(evaluation: Evaluation) -> Table:
    heads = ["set", "problems x k", "avg@k", "95%, population", "95%, this set alone", "pass@k", "maj@k"]
    rows = []
    for figures in evaluation.sets:
        head = [figures.name, f"{figures.problems} x {figures.k}"]
        if math.isnan(figures.accuracy):
            low, high = figures.reward_interval
            reward = [f"reward {figures.reward_mean:.3f}", f"{low:.3f} to {high:.3f}" if low == low else "-"]
            rows.append([*head, *reward, "-", "-", "-"])
            continue
        rows.append(
            [
                *head,
                percent(figures.accuracy),
                between(figures.interval),
                between(figures.set_interval),
                percent(figures.at("pass")),
                percent(figures.at("maj")),
            ]
        )
    return Table("accuracy", heads, rows)


def _by_k(evaluation: Evaluation) -> list[Table]:
    found = []
    for figures in evaluation.sets:
        if not figures.pass_at:
            continue
        maj = {f.k: f for f in figures.maj_at}
        heads = ["k", "pass@k [95%]", "maj@k [95%]", "ties at the top"]
        rows = [[str(f.k), _at_k(f), _at_k(maj.get(f.k)), _ties(maj.get(f.k))] for f in figures.pass_at]
        found.append(Table(f"{figures.name}: pass@k and maj@k, 95% over the population", heads, rows))
    return found


def _at_k(figure: AtK | None) -> str:
    return "-" if figure is None else with_bounds(figure.value, figure.low, figure.high)


def _ties(figure: AtK | None) -> str:
    return "-" if figure is None or figure.tied is None else percent(figure.tied)


def _responses(evaluation: Evaluation) -> Table:
    heads = ["set", "parsed", "truncated", "timed out", "errors", "tokens: mean", "right", "wrong", "median", "p90",
             "sampled", "seconds"]  # fmt: skip
    rows = []
    for figures in evaluation.sets:
        shares = (figures.parsed_fraction, figures.truncated_fraction, figures.timeout_fraction, figures.error_fraction)
        quantiles = figures.length_quantiles_tokens
        lengths = (figures.length_mean_tokens, figures.length_right_tokens, figures.length_wrong_tokens,
                   quantiles.get("p50", math.nan), quantiles.get("p90", math.nan))  # fmt: skip
        spent = (f"{figures.spent.tokens:,}", f"{figures.spent.seconds:.1f}")
        rows.append([figures.name, *map(percent, shares), *map(_tokens, lengths), *spent])
    return Table("responses", heads, rows)


def notes(evaluation: Evaluation) -> list[str]:
    """What has to be said beside the tables: other intervals, what can be detected, warnings, phrases."""
    found = []
    for figures in evaluation.sets:
        found += [f"{figures.name}: {line}" for line in set_notes(figures)]
    if any(figures.maj_at for figures in evaluation.sets):
        found.append(
            "maj@k: answers that the grader takes for equal are one vote, unparsed responses do not vote, "
            "and a tie at the top is broken at random (the expected value is shown)"
        )
    return found


def set_notes(figures: SetFigures) -> list[str]:
    """The lines of one set."""
    found = []
    if figures.bootstrap[0] == figures.bootstrap[0]:
        found.append(f"studentised bootstrap over problems {between(figures.bootstrap)}")
    detectable = [
        f"{points(value)} {where}"
        for value, where in (
            (figures.detectable_set, "for this set alone"),
            (figures.detectable, "over the population, unpaired"),
        )
        if value == value
    ]
    if detectable:
        found.append(
            f"smallest difference between two models that {figures.problems} problems x {figures.k} samples would "
            f"find (5%, power 80%): {', '.join(detectable)}"
        )
    found += [f"WARNING: {warning}" for warning in figures.warnings]
    if figures.error_fraction:
        found.append(f"WARNING: {percent(figures.error_fraction)} of samples could not be graded; they count as wrong")
    if figures.spent.engine_failures:
        found.append(f"{figures.spent.engine_failures} failures of the engine; its draws were run again")
    for kind, share in figures.phrases.items():
        found.append(f"{kind} phrases in {percent(share.right)} of right and {percent(share.wrong)} of wrong responses")
    return found


def problem_table(figures: SetFigures) -> Table:
    """One row for each problem of a set."""
    heads = ["problem", "id", "gold", "right", "majority answer", "unparsed", "truncated", "mean tokens"]
    return Table(f"{figures.name}: problems", heads, [_problem(result) for result in figures.results])


def _problem(result: Result) -> list[str]:
    tokens = [row["tokens"] for row in result.rows]
    return [
        one_line(result.question, QUESTION),
        result.id[:8],
        one_line(result.answer, 24),
        f"{result.right}/{result.samples}" if result.graded else "-",
        one_line(result.majority(), 24),
        str(sum(has_verdict(row, Verdict.UNPARSED) for row in result.rows)),
        str(sum(is_truncated(row) for row in result.rows)),
        f"{sum(tokens) / len(tokens):.1f}",
    ]


def markdown(evaluation: Evaluation, title: str) -> str:
    """The whole evaluation as a markdown page."""
    parts = [f"## {printable(title)}", ""]
    parts += [table.markdown() for table in evaluation_tables(evaluation)]
    parts += [f"- {_escaped(note)}" for note in notes(evaluation)] + [""]
    parts += [problem_table(figures).markdown() for figures in evaluation.sets]
    return "\n".join(parts)


def percent(value: float) -> str:
    """A share as a percentage; - for NaN."""
    return "-" if math.isnan(value) else f"{round(value, 12):.1%}"  # 0.4375 is 43.8% however it was summed


def points(value: float) -> str:
    """A difference of shares in percentage points."""
    return f"{100 * value:.1f} points"


def with_bounds(value: float, low: float, high: float) -> str:
    """A share with its interval, in percent: 12.5% [3.1, 21.9]."""
    return percent(value) if math.isnan(low) else f"{percent(value)} [{100 * low:.1f}, {100 * high:.1f}]"


def between(interval: Interval) -> str:
    """Bounds as percentages; - for NaN."""
    low, high = interval
    return "-" if math.isnan(low) or math.isnan(high) else f"{low:.1%} to {high:.1%}"


def _tokens(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
