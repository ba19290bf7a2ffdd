"""The table of metrics is the metrics: no name without a line, no line without a name, and docs made of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from dapo.metric_table import definition, metrics, page
from helpers_run import metrics as lines
from helpers_run import train

ROOT = Path(__file__).parents[1]

# Runs that between them have every part of the system that has metrics of its own.
RUNS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "engine's log-probs": ("algorithm.old_logprobs=engine", "sampling.filter=off", "algorithm.log_ratio_clamp=3"),
    "streaming, carried": (
        "sampling.schedule=streaming",
        "algorithm.importance_cap=2",
        "sampling.surplus=carry",
        "sampling.max_staleness=1",
        "reward.overlong=soft",
        "reward.overlong_buffer_tokens=2",
    ),
    "KL and caps": (
        "algorithm.kl.place=loss",
        "algorithm.kl.coef=0.1",
        "algorithm.importance_cap=2.0",
        "reward.normalisation=running",
        "algorithm.clip_high=0.00001",
    ),
    "entropy control": ("algorithm.objective=clip_cov", "algorithm.covariance.fraction=0.5"),
    "one step ahead": ("pipeline.max_staleness=1", "algorithm.importance_cap=2"),
    "one update": ("train.updates_per_step=1", "log.credit_every=1"),
}


@cache
def names(kind: str) -> frozenset[str]:
    """Every name in the metrics.jsonl of a run of this kind."""
    with TemporaryDirectory() as folder:
        return frozenset(name for row in lines(train(Path(folder), *RUNS[kind])) for name in row) - {"step"}


@pytest.mark.parametrize("kind", RUNS)
def test_every_metric_has_a_line(kind: str) -> None:
    """A name that nobody defined would be a figure that nobody can check."""
    assert [name for name in sorted(names(kind)) if definition(name) is None] == []


# What none of these runs has: several evaluation sets, a CUDA device.
RARE = {"eval/SET/FIGURE"} | (set() if torch.cuda.is_available() else {"memory/device_peak_gb"})


def test_every_line_has_a_metric() -> None:
    """A line that no run bears out is of a metric that is gone."""
    known = {metric.name for name in set().union(*map(names, RUNS)) if (metric := definition(name)) is not None}
    assert {metric.name for metric in metrics()} - known == RARE


def test_names_are_there_once() -> None:
    """Two lines of one name would be two definitions."""
    found = [metric.name for metric in metrics()]
    assert len(found) == len(set(found))
    assert all(metric.unit and metric.formula for metric in metrics())


def test_a_name_that_is_not_in_the_table() -> None:
    """The search does not take everything."""
    assert definition("sampled/acuracy") is None
    assert definition("sampled/reward_format_mean") is not None
    assert definition("sampled/reward_a/b_mean") is None


def test_the_page_is_made_of_the_table() -> None:
    """docs/metrics.md: `make metric-docs`."""
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == page()
