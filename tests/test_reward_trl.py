"""Our rewards where other trainers call them: TRL's real GRPO trainer, and the way verl loads a file."""

from __future__ import annotations

import importlib.util
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest
import trl
from tests import tiny

import dapo.reward.verl
from dapo.reward import math_reward, overlong_reward

# --- TRL ------------------------------------------------------------------------------------------


def test_math_reward_takes_texts_and_messages() -> None:
    """TRL passes strings, or conversations where the data set is conversational."""
    texts = ["Answer: 5", r"so \boxed{7}", "nothing"]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    parts = [[{"role": "assistant", "content": [{"type": "text", "text": text}]}] for text in texts]
    for completions in (texts, messages, parts):
        assert math_reward(completions, answer=["5", "7", "7"]) == [1.0, 1.0, -1.0]
    assert math_reward([[]], answer=["5"]) == [-1.0]


@pytest.mark.parametrize("column", ["answer", "solution", "ground_truth", "gold"])
def test_math_reward_finds_the_gold(column: str) -> None:
    """Under the names that data sets give it, coerced, a worked solution by its box; a bad gold pays nothing."""
    golds: list[Any] = [
        34,
        34.0,
        ["34"],
        r"We add. Thus $\boxed{34}$.",
        "34",
        None,
        "",
        "N/A",
        r"\boxed{}",
        float("nan"),
    ]
    rewards = math_reward(["Answer: 34"] * len(golds), **{column: golds})
    assert rewards == [1.0] * 5 + [None] * 5


def test_math_reward_without_a_gold_column_says_which_are_known() -> None:
    """The first call fails, not a run of zeros."""
    with pytest.raises(ValueError, match="answer, solution, ground_truth, gold"):
        math_reward(["Answer: 5"], target=["5"])


def test_math_reward_in_many_threads() -> None:
    """TRL may call from its own threads: the symbolic stage too."""
    with ThreadPoolExecutor(4) as threads:
        results = list(
            threads.map(lambda _: math_reward([r"\boxed{\frac{2}{\sqrt{2}}}"], answer=[r"\sqrt{2}"]), range(16))
        )
    assert results == [[1.0]] * 16


@pytest.mark.parametrize(
    ("length", "reward"), [(1, 0.0), (16384, 0.0), (18432, -0.5), (20480, -1.0), (20481, -1.0), (10**6, -1.0)]
)
def test_overlong_reward_is_equation_13(length: int, reward: float) -> None:
    """Golden numbers of Eq. 13 with 20480 and 4096; (16384 - 18432) / 4096 = -0.5. Prompts don't count (O1)."""
    function = overlong_reward(20480, 4096)
    for prompt in ("", "x" * 5000):
        assert function(prompts=[prompt], completions=["t"], completion_ids=[[1] * length], answer=["5"]) == [reward]


@pytest.mark.parametrize("numbers", [(10, 11), (10, 0), (0, 0), (10, 5, 2.0), (10, 5, 0.0)])
def test_overlong_reward_refuses(numbers: tuple[Any, ...]) -> None:
    """O2: a buffer longer than the limit penalises everyone."""
    with pytest.raises(ValueError, match="buffer <= max_tokens"):
        overlong_reward(*numbers)


def test_inside_the_real_trl_trainer(tmp_path: Path) -> None:
    """GRPOTrainer calls both with its own arguments; its logged means are the ones of our values."""
    model, tokenizer = tiny.model(), tiny.tokenizer()
    calls: list[dict[str, Any]] = []
    length = overlong_reward(max_tokens=8, buffer=4)

    def watched(completions: list[Any], **columns: Any) -> list[float | None]:
        calls.append({"completions": completions, **columns})
        return math_reward(completions, **columns)

    watched.__name__ = "math_reward"
    config = trl.GRPOConfig(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=4, num_generations=4,
        max_completion_length=8, logging_steps=1, use_cpu=True, report_to=[], save_strategy="no", bf16=False,
        loss_type="dapo", beta=0.0, learning_rate=1e-4, disable_tqdm=True,
    )  # fmt: skip
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1), "level": i} for i in range(4)]
    trainer = trl.GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=[watched, length], args=config,
        train_dataset=datasets.Dataset.from_list(rows),
    )  # fmt: skip
    trainer.train()
    assert len(calls) == 2
    logs = [log for log in trainer.state.log_history if "rewards/math_reward/mean" in log]
    assert len(logs) == 2
    for call, log in zip(calls, logs, strict=True):
        assert len(call["completions"]) == len(call["answer"]) == len(call["completion_ids"]) == 4
        assert all(isinstance(level, int) for level in call["level"])
        expected = math_reward(call["completions"], answer=call["answer"])
        assert log["rewards/math_reward/mean"] == pytest.approx(sum(v for v in expected if v is not None) / 4)
        penalties = length(completions=call["completions"], completion_ids=call["completion_ids"])
        assert log["rewards/overlong_reward/mean"] == pytest.approx(sum(penalties) / 4)


# --- verl -----------------------------------------------------------------------------------------


def _loaded_by_path(name: str) -> ModuleType:
    """As verl loads `custom_reward_function.path`: a file, as a module of another name."""
    path = inspect.getfile(dapo.reward.verl)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_verl_can_load_and_call_the_file() -> None:
    """By path, by keyword, with arguments that a later verl may add; golds of any type."""
    score = _loaded_by_path("custom_module").compute_score
    right = score(data_source="math_dapo", solution_str="so\nAnswer: 34", ground_truth="34", extra_info={"index": 1})
    assert right == {"score": 1.0, "acc": True}
    assert score("aime", r"\boxed{33}", 34, None, reward_router_address=None) == {"score": -1.0, "acc": False}
    assert score("aime", r"\boxed{\frac{2}{\sqrt{2}}}", r"\sqrt{2}")["acc"] is True


def test_verl_is_told_of_a_bad_gold() -> None:
    """It must not pass for a wrong answer of the model."""
    with pytest.raises(ValueError, match="can't be graded"):
        _loaded_by_path("custom_module").compute_score("d", "Answer: 1", None)


def test_verl_off_the_main_thread() -> None:
    """R20: its reward managers grade in thread pools."""
    found: list[Any] = []
    score = _loaded_by_path("custom_module").compute_score
    thread = threading.Thread(target=lambda: found.append(score("d", r"\boxed{\frac{2}{\sqrt{2}}}", r"\sqrt{2}")))
    thread.start()
    thread.join(60)
    assert found == [{"score": 1.0, "acc": True}]
