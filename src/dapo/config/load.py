"""From names, files and key=value words to one validated Config.

Order, the later wins: defaults < recipe < overlays < key=value. A TOML file may start from
another with `extends = "NAME"`. `resolve` gives back the plain data that `config.resolved.json`
holds, and `from_tree` reads it.
"""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from dapo.config.check import check
from dapo.config.keys import Tree, all_keys, resolve, section_model
from dapo.config.layers import layered, merge
from dapo.config.origins import parse_origin
from dapo.config.schema import SCHEMA_VERSION, Config, RewardFunctionConfig, SourceConfig, SourceRewardConfig
from dapo.errors import ConfigError, VersionConflict

__all__ = [
    "all_keys",
    "from_run",
    "from_tree",
    "layered",
    "load_config",
    "meant_key",
    "merge",
    "parse_override",
    "recipe_names",
    "resolve",
    "suggest_key",
    "with_settings",
    "with_words",
]
_BY_WORD = "chosen: set by key=value"


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
        above, said = _layer(layer)
        tree = layered(tree, above, said) if tree or said == _BY_WORD else above
    return from_tree(tree)


def with_words(config: Config, words: Sequence[str]) -> Config:
    """The config with key=value words on top. Raises ConfigError."""
    tree = resolve(config)
    for word in words:
        tree = layered(tree, parse_override(word), _BY_WORD)
    return from_tree(tree)


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """The config with dotted keys set in code on top. Raises ConfigError."""
    above, said = _layer(settings)
    return from_tree(layered(resolve(config), above, said))


def from_tree(tree: Mapping[str, Any]) -> Config:
    """Validates plain data. Raises ConfigError."""
    version = tree.get("schema", SCHEMA_VERSION)
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise VersionConflict(f"schema = {version!r}: this version of dapo reads schema = {SCHEMA_VERSION}")
    try:
        config = Config.model_validate(dict(tree))
    except ValidationError as error:
        raise ConfigError(_first_line(error)) from None
    keys = set(all_keys())
    for key, text in config.provenance.items():
        if key not in keys:
            raise ConfigError(f"provenance: unknown key {key!r}{suggest_key(key)}")
        parse_origin(text, key)
    check(config)
    return config


def from_run(tree: Mapping[str, Any]) -> Config:
    """The configuration that a run wrote down; provenance of an older spelling must not keep it from going on."""
    entries = tree.get("provenance")
    if not isinstance(entries, Mapping):
        return from_tree(tree)
    keys, readable = set(all_keys()), {}
    for key, text in entries.items():
        if key not in keys:
            continue
        try:
            parse_origin(str(text), key)
            readable[key] = text
        except ConfigError:
            readable[key] = f"chosen: not said in a way that can be read ({text})"
    return from_tree({**tree, "provenance": readable})


def _layer(layer: str | Path | Mapping[str, Any]) -> tuple[Tree, str]:
    """What a layer sets, and the provenance of what it changes without saying why."""
    if isinstance(layer, Mapping):
        if "extends" in layer:
            raise ConfigError(
                f"extends = {layer['extends']!r}: only a TOML file extends another; "
                "in code give that recipe as a layer before this one"
            )
        tree: Tree = {}
        for key, value in layer.items():
            tree = merge(tree, _nested(str(key).split("."), value))
        return tree, "chosen: set in code"
    if isinstance(layer, str) and "=" in layer and not _is_file(layer):
        return parse_override(layer), _BY_WORD
    return _read_recipe(str(layer), seen=()), _set_in(str(layer))


def _set_in(name: str) -> str:
    return f"chosen: set in {' '.join(Path(name).name.split())}"


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except (OSError, ValueError):
        return False  # too long for a file name, or not one


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
    shown = " ".join(word.split())
    if key.startswith("-"):
        bare = key.lstrip("-").replace("-", "_")
        raise ConfigError(f"{shown}: write {meant_key(bare) or bare}={text.strip()} (no dashes)")
    path = key.split(".")
    field = _field(path, shown)
    if text.strip().lower() in ("none", "null") and "None" in str(field.annotation):
        raise ConfigError(f"{shown}: to switch a knob off write {key}=off")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    tree = _nested(path, parsed["value"] if parsed.keys() == {"value"} else text)
    return _anchor_files(tree, Path.cwd())


def _read_recipe(name: str, seen: tuple[str, ...]) -> Tree:
    path, text = _recipe_text(name)
    identity = str(Path(path).resolve()) if path.endswith(".toml") else path
    if identity in seen:
        raise ConfigError(f"extends goes in a circle: {' -> '.join(Path(p).name for p in (*seen, identity))}")
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
    base = str(Path(path).parent / parent) if parent.endswith(".toml") else parent
    return layered(_read_recipe(base, (*seen, identity)), tree, _set_in(path), inherits=True)


def recipe_comments(name: str) -> Iterator[tuple[str, list[str]]]:
    """(name, first comment lines) of a recipe and of those it extends, where they have any. Raises ConfigError."""
    path, text = _recipe_text(name)
    comments = [line for line in itertools.takewhile(_is_comment, text.splitlines()) if not line.startswith("#:")]
    lines = [line.removeprefix("#").removeprefix(" ") for line in comments]  # "#:schema FILE" is for editors
    if lines:
        yield name, lines
    parent = tomllib.loads(text).get("extends")
    if isinstance(parent, str):
        yield from recipe_comments(str(Path(path).parent / parent) if parent.endswith(".toml") else parent)


def _is_comment(line: str) -> bool:
    return line.startswith("#")


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
    """FILE.py:NAME is relative to the TOML that names it, or to the working directory of a key=value word."""

    def anchor(value: Any) -> Any:
        file, colon, attribute = str(value).rpartition(":")
        if isinstance(value, str) and colon and file.endswith(".py"):
            return f"{(folder / file).resolve()}:{attribute}"
        return value

    algorithm = tree.get("algorithm")
    if isinstance(algorithm, dict) and "objective" in algorithm:
        algorithm["objective"] = anchor(algorithm["objective"])
    for reward in _rewards(tree):
        if isinstance(reward, dict) and isinstance(reward.get("functions"), list):
            reward["functions"] = [
                {**f, "function": anchor(f.get("function"))} if isinstance(f, dict) else anchor(f)
                for f in reward["functions"]
            ]
    return tree


def _rewards(tree: Tree) -> Iterator[Any]:
    """The section `reward` and those of single sources, whatever they hold."""
    yield tree.get("reward")
    for section, key in (("data", "source"), ("eval", "data")):
        tables = tree.get(section)
        sources = tables.get(key) if isinstance(tables, dict) else None
        if isinstance(sources, list):
            yield from (source.get("reward") for source in sources if isinstance(source, dict))


def did_you_mean(word: str, candidates: Sequence[str]) -> str:
    """' (did you mean X?)' or nothing."""
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def _field(path: Sequence[str], word: str) -> FieldInfo:
    """The field that a key=value word sets; free tables (options, kwargs) take any key below them."""
    model: type[BaseModel] = Config
    for depth, name in enumerate(path):
        fields = {info.alias or key: info for key, info in model.model_fields.items()}
        if name not in fields:
            key = " ".join(".".join(path).split())
            raise ConfigError(f"{word}: unknown key {key}{suggest_key(key)}")
        section = section_model(fields[name].annotation)
        if section is None:
            is_table = getattr(fields[name].annotation, "__origin__", None) is dict
            if depth + 1 < len(path) and not is_table:
                raise ConfigError(f"{word}: {'.'.join(path[: depth + 1])} has no keys below it")
            return fields[name]
        model = section
    raise ConfigError(f"{word}: {'.'.join(path)} is a section; set one of its keys, e.g. {_example(path)}")


def _example(path: Sequence[str]) -> str:
    prefix = ".".join(path) + "."
    return next(key for key in all_keys() if key.startswith(prefix)) + "=..."


SHORTHAND = {
    "lr": "train.learning_rate",
    "steps": "train.num_steps",
    "group_size": "sampling.responses_per_prompt",
    "batch_size": "sampling.prompts_per_step",
}


def meant_key(key: str) -> str | None:
    """The known key that was probably meant: a shorthand, the same last word elsewhere, a misspelling."""
    keys = list(all_keys())
    *section, last = key.split(".")
    if key in keys:
        return key
    if last in SHORTHAND:
        return SHORTHAND[last]
    same = [k for k in keys if k.split(".")[-1] == last]
    if same:
        return difflib.get_close_matches(key, same, n=1, cutoff=0.0)[0]
    inside = [k for k in keys if k.startswith(".".join(section) + ".")] if section else []
    names = {k.split(".")[-1]: k for k in inside or keys}
    if close := difflib.get_close_matches(last, names, n=1, cutoff=0.6):
        return names[close[0]]
    found = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    return found[0] if found else None


def suggest_key(key: str) -> str:
    """' (did you mean X?)' or nothing."""
    if "." not in key and (close := difflib.get_close_matches(key, Config.model_fields, n=1, cutoff=0.6)):
        return f" (did you mean {close[0]}?)"
    found = meant_key(key)
    return f" (did you mean {found}?)" if found and found != key else ""


def _first_line(error: ValidationError) -> str:
    """One readable line of a validation error."""
    first = max(error.errors(), key=lambda e: (len(e["loc"]), e["type"] == "extra_forbidden"))
    place = [str(part) for part in first["loc"] if not _is_union_tag(part)]
    key = " ".join(".".join(place).split())
    kind, value = first["type"], " ".join(repr(first.get("input")).split())
    if kind == "extra_forbidden":
        return f"unknown key {key}{_suggest_inside(place)}{_only_inside(place)}"
    if kind == "missing":
        key = _example(place).removesuffix("=...") if key in Config.model_fields and "." not in key else key
        return f"{key} is not set; give it in the recipe or as {key}=VALUE"
    if kind == "literal_error":
        expected = str(first.get("ctx", {}).get("expected", ""))
        choices = [w.strip("'") for w in expected.replace(" or ", ", ").split(", ")]
        return f"{key} = {value}: use one of {expected}{did_you_mean(str(first.get('input')), choices)}"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"{key} = {value}: {message.removeprefix('value error, ')}"


def _suggest_inside(place: Sequence[str]) -> str:
    """A suggestion for a key; inside a list of tables, out of that table's keys."""
    tables: dict[str, type[BaseModel]] = {
        "source": SourceConfig,
        "data": SourceConfig,
        "functions": RewardFunctionConfig,
    }
    if len(place) > 2 and place[-2].isdigit() and place[-3] in tables:
        return did_you_mean(place[-1], list(tables[place[-3]].model_fields))
    if _is_source_reward(place):
        return did_you_mean(place[-1], list(SourceRewardConfig.model_fields))
    return suggest_key(".".join(place))


def _only_inside(place: Sequence[str]) -> str:
    """What a source's own reward takes, where one holds something else."""
    if not _is_source_reward(place):
        return ""
    return f"; a source's own reward takes {', '.join(SourceRewardConfig.model_fields)}; the rest belongs to [reward]"


def _is_source_reward(place: Sequence[str]) -> bool:
    return len(place) > 2 and place[-2] == "reward" and place[-3].isdigit()


def _is_union_tag(part: Any) -> bool:
    names = {"str", "float", "int", "SourceConfig", "RewardFunctionConfig", "none"}
    return isinstance(part, str) and (part in names or "[" in part)
