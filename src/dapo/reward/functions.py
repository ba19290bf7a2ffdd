"""Custom reward functions, in the two signatures people already have.

TRL:  f(completions, **columns) -> list[float | None]     (async too)
verl: compute_score(data_source, solution_str, ground_truth, extra_info) -> float | dict

Both see the responses of one prompt; a verl function is called once for each.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dapo.errors import RewardError
from dapo.plugins import GIVEN, not_given
from dapo.types import Prompt

RewardFunction = Callable[..., Any]
VERL_ARGUMENTS = ("data_source", "solution_str", "ground_truth")


def load_function(name: str, field: str, given: Mapping[str, RewardFunction] = MappingProxyType({})) -> RewardFunction:
    """The callable that FILE.py:NAME or MODULE:NAME names, or that was handed over under this name.

    Raises:
        RewardError: naming `field`, what is missing and the mend.
    """
    if name in given:
        return given[name]
    if name.startswith(GIVEN):
        raise RewardError(not_given(name, field))
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise RewardError(f"{field} = {name}: write FILE.py:NAME or MODULE:NAME")
    try:
        module = _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except FileNotFoundError:
        raise RewardError(f"{field} = {name}: no such file {place}") from None
    except Exception as error:
        raise RewardError(f"{field} = {name}: importing {place} raised {type(error).__name__}: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise RewardError(f"{field} = {name}: {place} has no function {attribute}")
    return function  # type: ignore[no-any-return]


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(path)
    known = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape") + b"\0" + path.read_bytes())
    name = f"_dapo_user_{path.stem}_{known.hexdigest()[:16]}"  # an edited file is another module
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def call_function(
    function: RewardFunction, prompt: Prompt, texts: Sequence[str], token_ids: Sequence[Sequence[int]]
) -> list[float | None]:
    """The function's value for each response; None where it abstains.

    Raises:
        RewardError: a result of the wrong length or type, or not finite.
        Exception: whatever the function raises.
    """
    if all(argument in inspect.signature(function).parameters for argument in VERL_ARGUMENTS):
        return [_number(_verl(function, prompt, text), function) for text in texts]
    columns = {key: [value] * len(texts) for key, value in prompt.columns.items()}
    columns["answer"] = [prompt.answer] * len(texts)
    completions: Sequence[Any] = texts
    prompts: Sequence[Any] = [prompt.text] * len(texts)
    if prompt.messages is not None:
        completions = [[{"role": "assistant", "content": text}] for text in texts]
        prompts = [[dict(turn) for turn in prompt.messages]] * len(texts)
    result = function(
        prompts=prompts,
        completions=completions,
        completion_ids=[list(ids) for ids in token_ids],
        **{key: value for key, value in columns.items() if key not in ("prompts", "completions", "completion_ids")},
    )
    if inspect.isawaitable(result):
        result = _run(result)
    values = list(result)
    if len(values) != len(texts):
        raise RewardError(f"{_name(function)} gave {len(values)} rewards for {len(texts)} completions")
    return [_number(value, function) for value in values]


def _name(function: RewardFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _run(awaitable: Awaitable[Any]) -> Any:
    """What an async function gives; on a thread of its own where this one has a loop already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_await(awaitable))
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, _await(awaitable)).result()


async def _await(result: Any) -> Any:
    return await result


def _verl(function: RewardFunction, prompt: Prompt, text: str) -> Any:
    result = function(
        data_source=prompt.source,
        solution_str=text,
        ground_truth=prompt.answer,
        extra_info=dict(prompt.columns.get("extra_info") or {}),
    )
    return result["score"] if isinstance(result, dict) else result


def _number(value: Any, function: RewardFunction) -> float | None:
    if value is None:
        return None
    number = float(value)
    if not math.isfinite(number):
        raise RewardError(f"{_name(function)} gave a reward that is not finite: {number}")
    return number
