"""The documentation against the code: keys, functions, errors and alerts that pages name are there, and all of them."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import dapo.errors
from dapo.alerts.rules import RULES
from dapo.config.elsewhere import ELSEWHERE
from dapo.config.foreign import trl_keys, verl_keys
from dapo.config.keys import all_keys
from dapo.config.page import BEGIN, END, page_with_keys
from dapo.errors import DapoError
from dapo.metric_table import definition, metrics

DOCS = Path(__file__).parents[1] / "docs"
ERRORS = [name for name, value in vars(dapo.errors).items() if inspect.isclass(value) and issubclass(value, DapoError)]


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_page_of_keys_is_what_the_schema_makes() -> None:
    """`make config-docs` was run."""
    text = page("configuration.md")
    assert page_with_keys(text) == text
    part = text[text.index(BEGIN) : text.index(END)]
    assert [key for key in all_keys() if f"\n### `{key}`\n" not in part] == []


def test_names_elsewhere_are_of_keys_that_there_are() -> None:
    assert set(ELSEWHERE) - set(all_keys()) == set()


def words_of(system: str, text: str) -> list[str]:
    """The names of one system in an entry of ELSEWHERE; words in brackets and what follows a colon are prose."""
    part = next((p for p in text.split(" | ") if p.startswith(system)), "")
    plain = re.sub(r"\(.*?\)", "", part.removeprefix(system).partition(":")[0])
    return re.findall(r"[a-z]\w*(?:[._]\w+)+", plain)


@pytest.mark.parametrize("key", sorted(ELSEWHERE))
def test_names_elsewhere_are_names_that_a_translation_knows(key: str) -> None:
    verl = {name.rpartition(".")[2] for name in verl_keys.KNOWN} | {
        "rollout_correction",
        "filter_groups",
        "custom_reward_function",
    }
    assert [name for name in words_of("verl ", ELSEWHERE[key]) if name.rpartition(".")[2] not in verl] == []
    assert [name for name in words_of("TRL ", ELSEWHERE[key]) if name not in trl_keys.KNOWN] == []


NAMED = set(re.findall(r"`((?:algorithm|neighbours)\.[a-z_]+)`", page("algorithms.md")))
NAMED -= {"algorithm.py", "neighbours.py"}


@pytest.mark.parametrize("name", sorted(NAMED))
def test_functions_of_the_page_of_algorithms_are_there(name: str) -> None:
    module, _, attribute = name.partition(".")
    there = callable(getattr(importlib.import_module(f"dapo.{module}"), attribute, None))
    assert there or any(key == name or key.startswith(f"{name}.") for key in all_keys())


@pytest.mark.parametrize("name", ["sampling.keep_mask", "sampling.draws_allowed", "advantages.step_advantages",
                                  "parts.learning_rate", "difficulty.predicted_acceptance"])  # fmt: skip
def test_functions_of_other_modules_are_there(name: str) -> None:
    module, _, attribute = name.partition(".")
    assert f"`{name}`" in page("algorithms.md")
    assert callable(getattr(importlib.import_module(f"dapo.{module}"), attribute))


@pytest.mark.parametrize("module", ["algorithm", "neighbours"])
def test_every_equation_is_on_the_page(module: str) -> None:
    """But for helpers of other functions."""
    helpers = {"algorithm.masked", "algorithm.row_mean", "algorithm.collision"}
    own = importlib.import_module(f"dapo.{module}")
    names = {
        f"{module}.{name}"
        for name, value in vars(own).items()
        if inspect.isfunction(value) and value.__module__ == own.__name__ and not name.startswith("_")
    }
    assert sorted(name for name in names - helpers if f"`{name}`" not in page("algorithms.md")) == []


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_reached_from_the_page_of_symptoms(name: str) -> None:
    assert f"`{name}`" in page("troubleshooting.md")


@pytest.mark.parametrize("alert", [rule.alert for rule in RULES])
def test_every_alert_is_reached_from_the_page_of_symptoms(alert: str) -> None:
    assert f"(alerts.md#{alert})" in page("troubleshooting.md")


def named(text: str) -> set[str]:
    """Words in code that look like a key or a metric."""
    return set(re.findall(r"`([a-z_]+(?:[./][a-z_0-9]+)+)(?: = [^`]*)?`", text))


SECTIONS = {key.split(".")[0] for key in all_keys() if "." in key}
PREFIXES = {metric.name.split("/")[0] for metric in metrics()}


GUIDES = (
    "troubleshooting glossary own-data own-reward own-model one-gpu eight-gpus offline quickstart export library "
    "migrating zh-CN/troubleshooting zh-CN/glossary zh-CN/quickstart"
)


@pytest.mark.parametrize("name", GUIDES.split())
def test_keys_and_metrics_that_a_page_names_are_there(name: str) -> None:
    """A key may be a whole section, and a word of another system may begin as a section of ours does."""
    keys = {*all_keys(), *(key.rpartition(".")[0] for key in all_keys()), *verl_keys.KNOWN}
    keys |= {key.removeprefix("actor_rollout_ref.") for key in verl_keys.KNOWN}
    keys |= {key.rpartition(".")[0] for key in keys}
    found = {word for word in named(page(f"{name}.md")) if not word.endswith((".py", ".txt", ".jsonl"))}
    unknown = [w for w in found if "/" not in w and w.split(".")[0] in SECTIONS and w not in keys]
    figures = [w for w in found if "/" in w and w.split("/")[0] in PREFIXES]
    unknown += [w for w in figures if definition(w) is None]
    assert sorted(unknown) == []
