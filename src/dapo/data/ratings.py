"""Pass rates that come with the data: which problems they leave, and what they foretell of dynamic sampling."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dapo.config.explain import group_words
from dapo.config.schema import Config
from dapo.data.sources import Row
from dapo.difficulty import BANDS, Forecast, PromptRecord, Rating, forecast
from dapo.errors import DataError

if TYPE_CHECKING:
    from dapo.data.prompts import Problem

RATED = "pass_rate"  # the column that `dapo data rate` writes, with its counts in the two below
RIGHT, RESPONSES = "pass_right", "pass_responses"


def rating(row: Row, column: str | None) -> float | None:
    """The row's pass rate, by `data.rating_column`; None where it is not rated. Raises DataError."""
    if column is None:
        return None
    if column not in row.columns:
        raise DataError(f'{row.where}: no column {column}; set data.rating_column to another, or "off"')
    value = row.columns[column]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise DataError(f"{row.where}: {column} = {value!r}, but data.rating_column wants a pass rate from 0 to 1")
    return float(value)


def rating_record(row: Row, column: str | None) -> PromptRecord | None:
    """The counts behind a rating in the column pass_rate, where the row has them.

    They speak of the policy that rated, so they are for the forecast alone: a run's own history and its
    difficulty bands never see them.

    Raises:
        DataError: they are no counts.
    """
    if column != RATED or row.columns.get(RIGHT) is None or row.columns.get(RESPONSES) is None:
        return None
    right, responses = row.columns[RIGHT], row.columns[RESPONSES]
    whole = all(isinstance(count, int) and not isinstance(count, bool) for count in (right, responses))
    if not whole or not 0 <= right <= responses:
        raise DataError(
            f"{row.where}: {RIGHT} = {right!r} of {RESPONSES} = {responses!r} are no counts; mend them, "
            "or take both columns out"
        )
    return PromptRecord(draws=1, responses=responses, right=right)


def within_rates(
    problems: Sequence[list[Problem]], config: Config, counts: Counter[str], notes: list[str]
) -> list[list[Problem]]:
    """The problems rated from `data.min_pass_rate` to `data.max_pass_rate`, both included, and the unrated ones.

    Raises:
        DataError: a rating can't be read, or nothing is left of a source.
    """
    low, high, column = config.data.min_pass_rate, config.data.max_pass_rate, config.data.rating_column
    rates = [[rating(problem.row, column) for problem in source] for source in problems]
    if low is None and high is None:
        return list(problems)
    lowest, highest = 0.0 if low is None else low, 1.0 if high is None else high
    result = []
    for index, (source, own) in enumerate(zip(problems, rates, strict=True)):
        kept = [p for p, rate in zip(source, own, strict=True) if rate is None or lowest <= rate <= highest]
        hard = sum(rate is not None and rate < lowest for rate in own)
        easy = sum(rate is not None and rate > highest for rate in own)
        counts["rated_too_hard"] += hard
        counts["rated_too_easy"] += easy
        counts["unrated"] += own.count(None)
        if not kept:
            raise DataError(
                f"data.source[{index}] ({source[0].row.source}): none of its {len(source)} problems has a {column} "
                f"from {lowest:g} to {highest:g} ({hard} below, {easy} above); lower data.min_pass_rate or raise "
                "data.max_pass_rate"
            )
        result.append(kept)
    notes.append(
        f"{column} from {lowest:g} to {highest:g} (data.min_pass_rate, data.max_pass_rate): {counts['rated_too_hard']} "
        f"problems below and {counts['rated_too_easy']} above it are left out; {counts['unrated']} unrated ones stay"
    )
    return result


def forecast_notes(config: Config, problems: Sequence[Sequence[Problem]], weights: Sequence[float] | None) -> list[str]:
    """What the ratings of the training problems foretell, in lines; none without `data.rating_column`.

    Args:
        config: of the run.
        problems: of each source.
        weights: of the mixture.
    """
    column, sampling = config.data.rating_column, config.sampling
    if column is None:
        return []
    ratings = [[Rating(rating(p.row, column), rating_record(p.row, column)) for p in own] for own in problems]
    size, least = sampling.responses_per_prompt, sampling.min_responses_per_prompt or 0
    found = forecast(ratings, weights, size=size, wanted=sampling.prompts_per_step, least=least)
    shares = ", ".join(f"{name} {share:.1%}" for name, share in zip(BANDS, found.shares, strict=True) if share)
    rated = f"ratings: {found.rated} of {found.problems} problems have a {column}; of the draws: {shares}"
    if sampling.filter != "correctness" or math.isnan(found.acceptance):
        return [rated.replace("unseen", "unrated")]
    return [rated.replace("unseen", "unrated"), *_draws(config, found)]


def _draws(config: Config, found: Forecast) -> list[str]:
    sampling = config.sampling
    most = (sampling.gen_prompts or sampling.prompts_per_step) * sampling.max_rounds
    fill = f"so {sampling.prompts_per_step} of them take about {found.draws:.0f}"
    line = (
        f"forecast by these ratings: {found.acceptance:.1%} of draws are informative at "
        f"{group_words(sampling)} responses, {fill if math.isfinite(found.draws) else 'so no step will fill'}"
    )
    if found.draws <= most:
        return [f"{line} (at most {most} a step)"]
    return [
        f"{line}, but a step draws {most} at most (sampling.max_rounds * gen_prompts): raise it, or "
        "leave problems out with data.min_pass_rate and data.max_pass_rate"
    ]
