"""Evaluation: avg@k with an interval over the population of problems."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dapo.config.schema import Config
from dapo.errors import Interrupted
from dapo.flight import Flight
from dapo.grading import GroupGrader, mean_or_nan
from dapo.rng import derive_seed
from dapo.rollout.base import RolloutEngine
from dapo.types import Finish, Group, Prompt, SamplingParams, Verdict

FIGURES = ("accuracy", "reward_mean", "parsed_fraction", "truncated_fraction", "length_mean_tokens")
EVALUATION = 1  # salt of the evaluation's own draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Figures of one evaluation.

    accuracy: avg@k. low, high: 95% t interval over problem means (n - 1), that is, over the
    population that the problems were drawn from. All three are NaN where rewards say nothing of
    right and wrong (graded floats); reward_mean is there always. Fractions are over responses.
    """

    accuracy: float
    low: float
    high: float
    reward_mean: float
    problems: int
    k: int
    parsed_fraction: float
    truncated_fraction: float
    length_mean_tokens: float
    seconds: float
    groups: tuple[Group, ...]
    engine_failures: int = 0

    def by_source(self) -> dict[str, float]:
        """avg@k of each source's problems."""
        sources = sorted({group.prompt.source for group in self.groups})
        return {
            name: mean_or_nan([problem_mean(g) for g in self.groups if g.prompt.source == name]) for name in sources
        }

    def metrics(self) -> dict[str, float]:
        """As metric name -> value."""
        names = (
            "accuracy",
            "low",
            "high",
            "reward_mean",
            "parsed_fraction",
            "truncated_fraction",
            "length_mean_tokens",
            "engine_failures",
        )
        return {f"eval/{name}": float(getattr(self, name)) for name in names} | {"time/eval_s": self.seconds}

    def summary(self) -> dict[str, Any]:
        """Plain data for eval/*.json."""
        figures = {name: plain(getattr(self, name)) for name in FIGURES}
        return figures | {
            "interval_95": [plain(self.low), plain(self.high)],
            "interval": "t over problem means",
            "by_source": {name: plain(value) for name, value in self.by_source().items()},
            "problems": self.problems,
            "k": self.k,
            "engine_failures": self.engine_failures,
            "seconds": self.seconds,
        }

    def line(self) -> str:
        """One line for a person."""
        figure = f"{self.accuracy:.1%} (95% interval {self.low:.1%} to {self.high:.1%})"
        if math.isnan(self.accuracy):
            figure = f"mean reward {self.reward_mean:.3f}"
        return (
            f"avg@{self.k} over {self.problems} problems: {figure}; parsed {self.parsed_fraction:.1%}, "
            f"truncated {self.truncated_fraction:.1%}, mean length {self.length_mean_tokens:.1f} tokens"
        )


def evaluate(
    engine: RolloutEngine,
    grader: GroupGrader,
    prompts: Sequence[Prompt],
    config: Config,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Samples eval.k responses for each prompt and grades them.

    Draw i is about prompt i, under the evaluation's own seed: the same draws at every evaluation.
    Raises Interrupted when `stopped` says so between two polls.
    """
    settings = config.eval
    params = SamplingParams(
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_new_tokens=settings.max_response_tokens or config.sampling.max_response_tokens,
        n=settings.k,
        seed=derive_seed(settings.seed, EVALUATION),
        stop=config.sampling.stop,
    )
    start = time.perf_counter()
    flight = Flight(engine, params, config.engine.reruns)
    groups: dict[int, Group] = {}
    try:
        for draw, prompt in enumerate(prompts):
            flight.submit(draw, prompt)
        while flight:
            if stopped():
                raise Interrupted("the evaluation was given up")
            for finished in flight.poll():
                groups[finished.draw] = grader.group(finished, prompts[finished.draw])
    finally:
        flight.cancel()
    ordered = tuple(groups[draw] for draw in range(len(prompts)))
    result = summarise(ordered, settings.k, time.perf_counter() - start)
    return replace(result, engine_failures=flight.failures)


def plain(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return None if math.isnan(value) else value


def problem_mean(group: Group) -> float:
    """Share of right responses; NaN where scores say nothing of right and wrong."""
    if any(rollout.score.correct is None for rollout in group.rollouts):
        return float("nan")
    return group.num_correct / len(group.rollouts)


def summarise(groups: Sequence[Group], k: int, seconds: float) -> Evaluation:
    """Figures of graded groups, one for each problem."""
    means = [problem_mean(group) for group in groups]
    low, high = t_interval(means)
    rollouts = [r for group in groups for r in group.rollouts]
    return Evaluation(
        accuracy=mean_or_nan(means),
        low=low,
        high=high,
        reward_mean=mean_or_nan([r.score.reward for r in rollouts]),
        problems=len(groups),
        k=k,
        parsed_fraction=mean_or_nan([r.score.verdict is not Verdict.UNPARSED for r in rollouts]),
        truncated_fraction=mean_or_nan([r.response.finish is Finish.LENGTH for r in rollouts]),
        length_mean_tokens=mean_or_nan([r.response.num_tokens for r in rollouts]),
        seconds=seconds,
        groups=tuple(groups),
    )


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """95% interval of the mean: mean +- t(0.975, n-1) s / sqrt(n); NaN for fewer than two values.

    >>> low, high = t_interval([0.0, 1.0])
    >>> round(low, 2), round(high, 2)
    (-5.85, 6.85)
    """
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return float("nan"), float("nan")
    mean = sum(values) / n
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    half = float(t.ppf(0.975, n - 1)) * deviation / math.sqrt(n)
    return mean - half, mean + half
