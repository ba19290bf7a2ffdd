"""From names, files and key=value words to one validated Config.

Order, the later wins: defaults < recipe < overlays < key=value. A TOML file may start from
another with `extends = "NAME"`. `resolve` gives back the plain data that `config.resolved.json`
holds, and `from_resolved` reads it.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from dapo.config.check import check
from dapo.config.schema import SCHEMA_VERSION, Config
from dapo.errors import ConfigError

Tree = dict[str, Any]


def recipe_names() -> list[str]:
    """Names of the shipped recipes."""
    folder = resources.files("dapo.recipes")
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def load_config(*layers: str | Path | Mapping[str, Any]) -> Config:
    """A validated Config from layers, the later winning.

    Args:
        layers: each the name of a shipped recipe, a path to a TOML file, a `key=value` word, or
            a mapping (nested, or with dotted keys).

    Raises:
        ConfigError: naming the key, the value and the mend.
    """
    tree: Tree = {}
    for layer in layers:
        tree = merge(tree, _layer(layer))
    tree.pop("extends", None)
    return from_tree(tree)


def from_tree(tree: Mapping[str, Any]) -> Config:
    """Validates plain data. Raises ConfigError."""
    version = tree.get("schema", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ConfigError(f"schema = {version!r}: this version of dapo reads schema = {SCHEMA_VERSION}")
    try:
        config = Config.model_validate(dict(tree))
    except ValidationError as error:
        raise ConfigError(_first_line(error)) from None
    check(config)
    return config


def resolve(config: Config) -> Tree:
    """Plain data with every default filled in; `from_tree` gives the same Config back."""
    return config.model_dump(mode="json", by_alias=True)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """Nested merge: tables are merged, everything else is replaced.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        both_tables = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merge(old, value) if both_tables else value  # type: ignore[arg-type]
    return result


def _layer(layer: str | Path | Mapping[str, Any]) -> Tree:
    if isinstance(layer, Mapping):
        tree: Tree = {}
        for key, value in layer.items():
            tree = merge(tree, _nested(str(key).split("."), value))
        return tree
    if isinstance(layer, str) and "=" in layer:
        return parse_override(layer)
    return _read_recipe(str(layer), seen=())


def _nested(path: Sequence[str], value: Any) -> Tree:
    for key in reversed(path):
        value = {key: value}
    return value  # type: ignore[no-any-return]


def parse_override(word: str) -> Tree:
    """`train.learning_rate=1e-6` as a nested table.

    The value is read as TOML (numbers, booleans, lists, inline tables); what TOML can't read is
    a plain string. `key=none` and `key=null` are answered with "off".

    >>> parse_override("train.learning_rate=1e-6")
    {'train': {'learning_rate': 1e-06}}
    """
    key, _, text = word.partition("=")
    key = key.strip()
    if key.startswith("-"):
        raise ConfigError(f"{word}: write {key.lstrip('-')}={text} (no dashes)")
    path = key.split(".")
    _check_path(path, word)
    if text.strip().lower() in ("none", "null"):
        raise ConfigError(f"{word}: to switch a knob off write {key}=off")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    return _nested(path, value)


def _read_recipe(name: str, seen: tuple[str, ...]) -> Tree:
    path, text = _recipe_text(name)
    if path in seen:
        raise ConfigError(f"extends goes in a circle: {' -> '.join((*seen, path))}")
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    tree = _anchor_files(tree, Path(path).parent) if path.endswith(".toml") else tree
    parent = tree.pop("extends", None)
    if parent is None:
        return tree
    if not isinstance(parent, str):
        raise ConfigError(f"{path}: extends takes one name or path, in quotes")
    beside = Path(path).parent / parent
    base = str(beside) if beside.is_file() else parent
    return merge(_read_recipe(base, (*seen, path)), tree)


def _recipe_text(name: str) -> tuple[str, str]:
    """(path or recipe name, text)."""
    if name.endswith(".toml") or Path(name).is_file():
        try:
            return name, Path(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"{name}: no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}: can't be read: {error}") from None
    if name not in recipe_names():
        hint = did_you_mean(name, recipe_names())
        raise ConfigError(
            f"{name}: no recipe of that name{hint}; recipes: {', '.join(recipe_names())}; "
            "a file ends in .toml, an override is key=value"
        )
    return name, (resources.files("dapo.recipes") / f"{name}.toml").read_text(encoding="utf-8")


def _anchor_files(tree: Tree, folder: Path) -> Tree:
    """FILE.py:NAME is relative to the TOML that names it."""

    def anchor(value: Any) -> Any:
        file, colon, attribute = str(value).rpartition(":")
        if isinstance(value, str) and colon and file.endswith(".py"):
            return f"{(folder / file).resolve()}:{attribute}"
        return value

    algorithm, reward = tree.get("algorithm"), tree.get("reward")
    if isinstance(algorithm, dict) and "objective" in algorithm:
        algorithm["objective"] = anchor(algorithm["objective"])
    if isinstance(reward, dict) and isinstance(reward.get("functions"), list):
        reward["functions"] = [
            {**f, "function": anchor(f.get("function"))} if isinstance(f, dict) else anchor(f)
            for f in reward["functions"]
        ]
    return tree


def did_you_mean(word: str, candidates: Sequence[str]) -> str:
    """' (did you mean X?)' or nothing."""
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def all_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the configuration."""
    for name, info in model.model_fields.items():
        key = prefix + (info.alias or name)
        sub = _section(info.annotation)
        if sub is None:
            yield key
        else:
            yield from all_keys(sub, key + ".")


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def _check_path(path: Sequence[str], word: str) -> None:
    """A key=value word must name a known key; free tables (options, kwargs) take any."""
    model: type[BaseModel] = Config
    for depth, name in enumerate(path):
        fields = {info.alias or key: info for key, info in model.model_fields.items()}
        if name not in fields:
            key = ".".join(path)
            raise ConfigError(f"{word}: unknown key {key}{suggest_key(key)}")
        section = _section(fields[name].annotation)
        if section is None:
            if depth + 1 < len(path) and dict not in (
                fields[name].annotation,
                getattr(fields[name].annotation, "__origin__", None),
            ):
                raise ConfigError(f"{word}: {'.'.join(path[: depth + 1])} has no keys below it")
            return
        model = section
    raise ConfigError(f"{word}: {'.'.join(path)} is a section; set one of its keys, e.g. {_example(path)}")


def _example(path: Sequence[str]) -> str:
    prefix = ".".join(path) + "."
    return next(key for key in all_keys() if key.startswith(prefix)) + "=..."


def suggest_key(key: str) -> str:
    """The known key that was probably meant: same last word elsewhere, a shorthand, or a misspelling."""
    keys = list(all_keys())
    shorthand = {"lr": "train.learning_rate", "group_size": "sampling.responses_per_prompt"}
    last = key.split(".")[-1]
    if last in shorthand:
        return f" (did you mean {shorthand[last]}?)"
    same = [k for k in keys if k.split(".")[-1] == last and k != key]
    return f" (did you mean {same[0]}?)" if same else did_you_mean(key, keys)


def _first_line(error: ValidationError) -> str:
    """One readable line of a validation error."""
    first = max(error.errors(), key=lambda e: (len(e["loc"]), e["type"] == "extra_forbidden"))
    key = ".".join(str(part) for part in first["loc"] if not _is_union_tag(part))
    kind, value = first["type"], first.get("input")
    if kind == "extra_forbidden":
        return f"unknown key {key}{suggest_key(key)}"
    if kind == "missing":
        return f"{key} is not set; give it in the recipe or as {key}=VALUE"
    if kind == "literal_error":
        expected = str(first.get("ctx", {}).get("expected", ""))
        hint = did_you_mean(str(value), [w.strip("'") for w in expected.replace(" or ", ", ").split(", ")])
        return f"{key} = {value!r}: use one of {expected}{hint}"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"{key} = {value!r}: {message.removeprefix('value error, ')}"


def _is_union_tag(part: Any) -> bool:
    names = {"str", "float", "int", "SourceConfig", "RewardFunctionConfig", "none"}
    return isinstance(part, str) and (part in names or "[" in part)


def describe_choices(annotation: Any) -> str:
    """'a | b | c' for a Literal, else an empty string."""
    args = get_args(annotation)
    return " | ".join(map(str, args)) if args and all(isinstance(a, (str, int)) for a in args) else ""
