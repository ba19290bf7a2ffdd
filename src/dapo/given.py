"""Parts of a run that are handed over in code, in place of what the configuration would make of its names.

In the configuration such a part is named `given:NAME`, so that what a run wrote down says what it does not hold.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dapo.config.reward import JUDGES
from dapo.config.schema import Config
from dapo.errors import ConfigError
from dapo.plugins import GIVEN

Factory = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What was handed over.

    functions: rewards and the objective, by their names in the configuration.
    engine: (config, model, policy) -> RolloutEngine. learner: (config, model, reference) -> Learner.
    settings: keys of the configuration that name these parts.
    """

    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    engine: Factory | None = None
    learner: Factory | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def check(self, config: Config) -> None:
        """Whether these parts are where they are needed. Raises ConfigError."""
        objective = config.algorithm.objective
        elsewhere = [
            *(name for name in self.functions if config.cluster.kind == "ray" or name == objective),
            *(f"{GIVEN}engine" for _ in [0] if self.engine is not None and config.cluster.kind == "ray"),
            *(f"{GIVEN}learner" for _ in [0] if self.learner is not None),
        ]
        if elsewhere and (config.cluster.kind == "ray" or config.learner.kind == "fsdp"):
            where = 'cluster.kind = "ray"' if config.cluster.kind == "ray" else 'learner.kind = "fsdp"'
            raise ConfigError(
                f"{where}: {elsewhere[0].removeprefix(GIVEN)} was handed over in code, and other processes need it; "
                "name a function FILE.py:NAME, and an engine or learner by an entry point"
            )

    def without_parts(self, config: Config) -> Config:
        """What a factory is given: the built-in parts in place of its own, so that it can make and wrap them."""
        engine = config.engine if self.engine is None else config.engine.model_copy(update={"kind": "torch"})
        learner = config.learner if self.learner is None else config.learner.model_copy(update={"kind": "torch"})
        return config.model_copy(update={"engine": engine, "learner": learner})

    def code(self, name: str) -> bytes | None:
        """The source text of a function of this name, as far as Python knows it; None where none was handed over.

        Of a partial that of its function, of an object that of its class; neither says what values they hold.
        """
        if name not in self.functions:
            return None
        part: Any = self.functions[name]
        while isinstance(part, functools.partial):
            part = part.func
        for known in (part, type(part)):
            with suppress(OSError, TypeError):
                return inspect.getsource(known).encode("utf-8", "surrogatepass")
        return b""


NOTHING = Given()


def given_parts(*, reward: Any = None, engine: Any = None, learner: Any = None, objective: Any = None) -> Given:
    """The parts of a call, by name.

    Args:
        reward: a function, a name as in reward.functions, a table {"function": ..., "weight": ...}, or a list of these.
        engine: a RolloutEngine, or a factory of one.
        learner: a Learner, or a factory of one.
        objective: a function of ObjectiveInputs, or a name as in algorithm.objective.

    Raises:
        ConfigError: naming the part, where it can't be one.
    """
    functions: dict[str, Callable[..., Any]] = {}
    settings: dict[str, Any] = {}
    if reward is not None:
        entries = [reward] if callable(reward) or isinstance(reward, (str, Mapping)) else _listed(reward)
        settings["reward.functions"] = [_entry(entry, functions) for entry in entries]
    if objective is not None:
        settings["algorithm.objective"] = _named(objective, functions, "objective")
    if engine is not None:
        settings["engine.kind"] = GIVEN + _name_of(engine)
    if learner is not None:
        settings["learner.kind"] = GIVEN + _name_of(learner)
    return Given(
        functions=functions,
        engine=None if engine is None else _factory(engine, "submit", "engine"),
        learner=None if learner is None else _factory(learner, "update", "learner"),
        settings=settings,
    )


def _listed(reward: Any) -> Sequence[Any]:
    if isinstance(reward, Iterable) and (entries := list(reward)):
        return entries
    raise ConfigError(f"reward = {reward!r}: give a function, a name such as grader, or a list of these")


def _entry(entry: Any, functions: dict[str, Callable[..., Any]]) -> Any:
    if isinstance(entry, Mapping):
        return {**entry, "function": _named(entry.get("function"), functions, "reward")}
    return _named(entry, functions, "reward")


def _named(part: Any, functions: dict[str, Callable[..., Any]], what: str) -> str:
    """The name that the configuration has for a function; a text is such a name already."""
    if isinstance(part, str):
        return part
    if not callable(part):
        raise ConfigError(f"{what} = {part!r}: is no function")
    name = stem = GIVEN + _name_of(part)
    number = 1
    while name in (*functions, *JUDGES):
        number += 1
        name = f"{stem}_{number}"
    functions[name] = part
    return name


def _name_of(part: Any) -> str:
    name = getattr(part, "__name__", type(part).__name__)
    return re.sub(r"\W+", "_", name).strip("_") or "function"


def _factory(part: Any, method: str, what: str) -> Factory:
    """The factory itself, or one that gives this object."""
    if isinstance(part, type) or (callable(part) and not hasattr(part, method)):
        return part  # type: ignore[no-any-return]
    if not hasattr(part, method):
        raise ConfigError(f"{what} = {part!r}: give a factory, or an object with the method {method}")
    return lambda config, model, other: part
