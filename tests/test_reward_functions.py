"""Custom reward functions: TRL's and verl's signatures, their weights, and every way they can fail."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dapo.config import load_config
from dapo.config.check import problems
from dapo.errors import ConfigError, RewardError
from dapo.reward import Scorer
from dapo.reward.functions import call_function, load_function
from dapo.types import Prompt, Score, Verdict

TEXTS = ["Answer: 7", "Answer: 8", "hm"]
IDS = [[1, 2], [3], []]
MESSAGES = ({"role": "system", "content": "s"}, {"role": "user", "content": "q"})


def prompt(messages: Any = None, **columns: Any) -> Prompt:
    """A prompt whose answer is 7."""
    return Prompt(
        id="p",
        messages=messages,
        text="q",
        answer="7",
        source="math",
        token_ids=np.zeros(1, np.int32),
        columns=columns,
    )


def scorer(folder: Path, body: str, *functions: Any) -> Scorer:
    """A Scorer of the functions named, which `body` defines; {} in a name stands for the file."""
    file = folder / "rewards.py"
    file.write_text(body, encoding="utf-8")
    named = [f.format(file) if isinstance(f, str) else {**f, "function": f["function"].format(file)} for f in functions]
    config = load_config(
        {"model.path": "m", "data.source": "d.jsonl", "reward.functions": named, "sampling.filter": "nonzero_std"}
    )
    return Scorer(config.reward)


def rewards(scores: Sequence[Score]) -> list[float]:
    """The unshaped rewards."""
    return [score.reward for score in scores]


# --- TRL's signature ------------------------------------------------------------------------------


def test_trl_gets_texts_ids_and_columns_as_lists() -> None:
    """TRL: prompts, completions, completion_ids and every column, each with one entry for a completion."""
    seen: dict[str, Any] = {}

    def function(**kwargs: Any) -> list[float]:
        seen.update(kwargs)
        return [1.0, 2.0, 3.0]

    assert call_function(function, prompt(level=3), TEXTS, IDS) == [1.0, 2.0, 3.0]
    assert seen == {
        "prompts": ["q"] * 3,
        "completions": TEXTS,
        "completion_ids": IDS,
        "level": [3] * 3,
        "answer": ["7"] * 3,
    }


def test_trl_gets_messages_for_a_chat_prompt() -> None:
    """TRL: with a conversation as prompt a completion is a list of one assistant turn."""
    seen: dict[str, Any] = {}

    def function(prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
        seen.update(prompts=prompts, completions=completions)
        return [float(len(c[0]["content"])) for c in completions]

    assert call_function(function, prompt(MESSAGES), TEXTS, IDS) == [9.0, 9.0, 2.0]
    assert seen["prompts"] == [list(MESSAGES)] * 3
    assert seen["completions"] == [[{"role": "assistant", "content": text}] for text in TEXTS]


def test_columns_cannot_replace_what_was_sampled() -> None:
    """A column named completions, or an old answer, must not be graded in place of the response."""
    seen: dict[str, Any] = {}

    def function(completions: Any, **kwargs: Any) -> list[float]:
        seen.update(kwargs, completions=completions)
        return [0.0] * 3

    call_function(function, prompt(completions="x", prompts="y", completion_ids="z", answer="old"), TEXTS, IDS)
    assert (seen["completions"], seen["prompts"], seen["answer"]) == (TEXTS, ["q"] * 3, ["7"] * 3)
    assert seen["completion_ids"] == IDS


def test_async_function(tmp_path: Path) -> None:
    """TRL also takes coroutines."""
    body = (
        "import asyncio\nasync def f(completions, **kw):\n"
        "    await asyncio.sleep(0)\n    return [float(len(c)) for c in completions]"
    )
    assert rewards(scorer(tmp_path, body, "{}:f").score(prompt(), TEXTS, IDS)) == [9.0, 9.0, 2.0]


def test_none_abstains(tmp_path: Path) -> None:
    """TRL: None leaves a response's reward to the other functions, and stands in no part."""
    body = (
        "def f(completions, **kw):\n    return [None, 0.5, None]\n"
        "def g(completions, **kw):\n    return [0.25, 0.25, 0.25]"
    )
    scores = scorer(tmp_path, body, "{}:f", "{}:g").score(prompt(), TEXTS, IDS)
    assert rewards(scores) == [0.25, 0.75, 0.25]
    assert [score.parts for score in scores] == [{"g": 0.25}, {"f": 0.5, "g": 0.25}, {"g": 0.25}]
    assert [score.verdict for score in scores] == [Verdict.GRADED] * 3


# --- verl's signature -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reward"),
    [("1.5", 1.5), ("{'score': -0.5, 'acc': True}", -0.5), ("True", 1.0), ("1", 1.0)],
)
def test_verl_float_or_dict(tmp_path: Path, value: str, reward: float) -> None:
    """verl: compute_score gives a number, or a dict with a score."""
    body = f"def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return {value}"
    assert rewards(scorer(tmp_path, body, "{}:compute_score").score(prompt(), TEXTS, IDS)) == [reward] * 3


def test_verl_arguments() -> None:
    """verl: called once for each response, with its text, the gold, the source and extra_info."""
    calls: list[tuple[Any, ...]] = []

    def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
        calls.append((data_source, solution_str, ground_truth, extra_info))
        return float(len(calls))

    assert call_function(compute_score, prompt(extra_info={"index": 4}), TEXTS, IDS) == [1.0, 2.0, 3.0]
    assert calls == [("math", text, "7", {"index": 4}) for text in TEXTS]
    call_function(compute_score, prompt(), ["x"], [[1]])
    assert calls[-1] == ("math", "x", "7", {})


# --- weights, parts, correctness ------------------------------------------------------------------


def test_weights_and_parts(tmp_path: Path) -> None:
    """Reward = sum of weight * value, while the parts keep the values as they were given."""
    body = "def length(completions, **kw):\n    return [float(len(c)) for c in completions]"
    scores = scorer(tmp_path, body, "grader", {"function": "{}:length", "weight": 0.1}).score(prompt(), TEXTS, IDS)
    # grader +1, -1, -1; lengths 9, 9, 2.
    assert rewards(scores) == pytest.approx([1 + 0.9, -1 + 0.9, -1 + 0.2])
    assert [score.parts for score in scores] == [
        {"grader": 1.0, "length": 9.0},
        {"grader": -1.0, "length": 9.0},
        {"grader": -1.0, "length": 2.0},
    ]
    assert [score.verdict for score in scores] == [Verdict.CORRECT, Verdict.WRONG, Verdict.UNPARSED]
    assert [score.correct for score in scores] == [True, False, False]
    assert [score.extracted for score in scores] == ["7", "8", None]


def test_two_functions_of_one_name_keep_two_parts(tmp_path: Path) -> None:
    """Nothing silent: a second function of the same name must not overwrite the first one's part."""
    (tmp_path / "other.py").write_text("def f(completions, **kw):\n    return [2.0] * len(completions)")
    body = "def f(completions, **kw):\n    return [1.0] * len(completions)"
    scores = scorer(tmp_path, body, "{}:f", f"{tmp_path / 'other.py'}:f").score(prompt(), TEXTS, IDS)
    assert rewards(scores) == [3.0] * 3
    assert sorted(scores[0].parts.values()) == [1.0, 2.0]


@pytest.mark.parametrize(("functions", "has"), [(("{}:f",), False), (("{}:f", "grader"), True), (("grader",), True)])
def test_correctness_needs_the_grader(tmp_path: Path, functions: tuple[str, ...], has: bool) -> None:
    """Graded floats have correct = None, never False: no filter may mistake them for wrong."""
    made = scorer(tmp_path, "def f(completions, **kw):\n    return [0.5] * len(completions)", *functions)
    scores = made.score(prompt(), TEXTS, IDS)
    assert made.has_correctness is has
    assert all((score.correct is None) is (not has) for score in scores)
    assert all((score.verdict is Verdict.GRADED) is (not has) for score in scores)


def test_the_correctness_filter_is_refused_without_correctness() -> None:
    """Such a recipe has to choose nonzero_std by name."""
    layers = {"model.path": "m", "data.source": "d.jsonl", "reward.functions": ["a.py:f"]}
    with pytest.raises(ConfigError, match="nonzero_std"):
        load_config(layers)
    assert not list(problems(load_config(layers, {"sampling.filter": "nonzero_std"})))


# --- failures -------------------------------------------------------------------------------------


class Callable3:
    """A callable without a __name__, as functools.partial is."""

    def __call__(self, completions: Any, **kwargs: Any) -> list[float]:
        return [1.0]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('boom')", "KeyError"),
        ("return [1.0]", "1 rewards for 3 completions"),
        ("return [1.0] * 4", "4 rewards for 3 completions"),
        ("return [1.0, float('nan'), 1.0]", "not finite"),
        ("return [1.0, float('inf'), 1.0]", "not finite"),
        ("return [1.0, 'x', 1.0]", "ValueError"),
        ("return None", "TypeError"),
        ("return 1.0", "TypeError"),
    ],
)
@pytest.mark.parametrize("with_grader", [False, True])
def test_a_failing_function_gives_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str, said: str, with_grader: bool
) -> None:
    """Whatever goes wrong: ERROR for each response, counted as wrong, with the reason in the log."""
    functions = ("grader", "{}:f") if with_grader else ("{}:f",)
    made = scorer(tmp_path, f"def f(completions, **kw):\n    {body}", *functions)
    with caplog.at_level(logging.WARNING):
        scores = made.score(prompt(), TEXTS, IDS)
    assert [score.verdict for score in scores] == [Verdict.ERROR] * 3
    assert rewards(scores) == [-1.0] * 3
    assert [score.correct for score in scores] == [False if with_grader else None] * 3
    assert said in caplog.text


def test_a_callable_without_a_name_gets_the_same_message() -> None:
    """functools.partial and instances have no __name__: the message still says what is wrong."""
    with pytest.raises(RewardError, match="1 rewards for 3 completions"):
        call_function(Callable3(), prompt(), TEXTS, IDS)


def test_verl_dict_without_score(tmp_path: Path) -> None:
    """A dict without a score is a failure, not a reward of 0."""
    body = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return {'acc': 1}"
    scores = scorer(tmp_path, body, "{}:compute_score").score(prompt(), TEXTS, IDS)
    assert [score.verdict for score in scores] == [Verdict.ERROR] * 3


# --- loading --------------------------------------------------------------------------------------


def test_file_and_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FILE.py:NAME and MODULE:NAME; a file is imported once, so that its state is one."""
    (tmp_path / "my_rewards.py").write_text("calls = []\ndef f(completions, **kw):\n    return []\ng = f")
    by_file = load_function(f"{tmp_path}/my_rewards.py:f", "reward.functions[0]")
    assert load_function(f"{tmp_path}/my_rewards.py:g", "reward.functions[1]") is by_file
    monkeypatch.syspath_prepend(str(tmp_path))
    by_module = load_function("my_rewards:f", "reward.functions[0]")
    assert by_module.__module__ == "my_rewards"
    assert by_module(completions=[]) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("f", "write FILE.py:NAME or MODULE:NAME"),
        (":f", "write FILE.py:NAME or MODULE:NAME"),
        ("a.py:", "write FILE.py:NAME or MODULE:NAME"),
        ("{}/none.py:f", "no such file"),
        ("{}/broken.py:f", "raised SyntaxError"),
        ("{}/raises.py:f", "raised ZeroDivisionError"),
        ("{}/fine.py:g", "has no function g"),
        ("{}/fine.py:number", "has no function number"),
        ("no_such_module_here:f", "raised ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, name: str, said: str) -> None:
    """A user's mistake: one line that names the field, the value and what is missing."""
    (tmp_path / "broken.py").write_text("def f(:")
    (tmp_path / "raises.py").write_text("1 / 0")
    (tmp_path / "fine.py").write_text("number = 1\ndef f(completions, **kw):\n    return []")
    name = name.format(tmp_path)
    with pytest.raises(RewardError) as caught:
        load_function(name, "reward.functions[2]")
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith(f"reward.functions[2] = {name}: ")
    assert said in caught.value.message
    assert len(caught.value.message.splitlines()) == 1


def test_a_file_that_failed_is_read_again(tmp_path: Path) -> None:
    """A mended file must load in the same process."""
    file = tmp_path / "mended.py"
    file.write_text("1 / 0")
    with pytest.raises(RewardError):
        load_function(f"{file}:f", "reward.functions[0]")
    file.write_text("def f(completions, **kw):\n    return [4.0]  # now it is longer")
    assert load_function(f"{file}:f", "reward.functions[0]")(completions=["x"]) == [4.0]
