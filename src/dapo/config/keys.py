"""The dotted keys of a configuration, their defaults, and values by key."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from dapo.config.schema import Config

Tree = dict[str, Any]

NOT_SETTINGS = ("name", "description", "schema", "provenance")  # keys that change nothing of a run
MISSING = object()


def all_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the configuration."""
    yield from (key for key, _ in fields(model, prefix))


def fields(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every dotted key with its field."""
    for name, info in model.model_fields.items():
        key = prefix + (info.alias or name)
        sub = section_model(info.annotation)
        if sub is None:
            yield key, info
        else:
            yield from fields(sub, key + ".")


def section_model(annotation: Any) -> type[BaseModel] | None:
    """The model of a field that is a section; None for a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def resolve(config: Config) -> Tree:
    """Plain data with every default filled in; `from_tree` gives the same Config back."""
    return config.model_dump(mode="json", by_alias=True)


def values(config: Config) -> dict[str, Any]:
    """Plain value of every key, provenance included."""
    tree = resolve(config)
    return {key: at(tree, key) for key in all_keys()}


def at(tree: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key in nested tables; MISSING where there is none."""
    found: Any = tree
    for name in key.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return MISSING
        found = found[name]
    return found


@functools.cache
def defaults() -> Mapping[str, Any]:
    """Plain default of every key that has one."""
    least = resolve(Config.model_validate({"model": {"path": "x"}, "data": {"source": "x"}}))
    return {key: at(least, key) for key, info in fields() if not info.is_required()}


def _typed(info: FieldInfo) -> Any:
    return Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation


@functools.cache
def _adapters() -> Mapping[str, TypeAdapter[Any]]:
    return {key: TypeAdapter(_typed(info)) for key, info in fields()}


def same(key: str, one: Any, other: Any) -> bool:
    """Whether two values, as they stand in TOML or in code, mean the same for a key: 1 and 1.0, "off" and None."""
    return _spelled(key, one) == _spelled(key, other)


def _spelled(key: str, value: Any) -> str:
    if value is MISSING:
        return ""
    adapter = _adapters()[key]
    with contextlib.suppress(ValidationError):  # refused later, with a better message
        value = adapter.dump_python(adapter.validate_python(value), mode="json")
    return json.dumps(value, sort_keys=True, default=str)
