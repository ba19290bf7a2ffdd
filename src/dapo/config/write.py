"""Values and whole configurations as TOML text."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from dapo.config.keys import NOT_SETTINGS, Tree, fields, values
from dapo.config.load import from_tree
from dapo.config.origins import origins
from dapo.config.schema import Config
from dapo.errors import ConfigError


def toml_value(value: Any) -> str:
    """A value as it is written in TOML and in key=value words; None is "off"."""
    if value is None:
        return '"off"'
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    return _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML takes no raw DEL


def toml_lines(value: Any) -> str:
    """A list of tables with a line for each; any other value on one line."""
    if isinstance(value, tuple) and any(hasattr(part, "model_dump") for part in value):
        return "[\n" + "".join(f"  {toml_value(part)},\n" for part in value) + "]"
    return toml_value(value)


def as_toml(config: Config, title: str) -> str:
    """A recipe by itself: every key, and where its value is from as a comment, which no program reads.

    Args:
        config: what the text gives when it is loaded, but for the provenance.
        title: the first line, a comment.

    Raises:
        ConfigError: a value that TOML can't hold (a None in a free table, half of a surrogate pair).
    """
    lines, sources = [f"# {' '.join(title.split())}"], origins(config)
    tables: dict[str, list[str]] = {"": []}  # keys without a table come first, and a table's keys together
    for key, _ in fields():
        if key != "provenance":
            tables.setdefault(key.rpartition(".")[0], []).append(key)
    for head, keys in tables.items():
        lines += ["", f"[{head}]"] if head else []
        for key in keys:
            value: Any = config
            for part in key.split("."):
                value = getattr(value, "schema_version" if part == "schema" else part)
            source = "" if key in NOT_SETTINGS else f"  # {' '.join(str(sources[key]).split())}"
            lines.append(f"{key.rpartition('.')[2]} = {toml_lines(value)}{source}")
    text = "\n".join(lines) + "\n"
    _check(config, text)
    return text


def _check(config: Config, text: str) -> None:
    """Raises ConfigError where the text does not give the config's values."""
    try:
        text.encode("utf-8")
        read: Tree = tomllib.loads(text)
        again = values(from_tree(read))
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{config.name}: holds a value that can't be written as TOML: {error}") from None
    for key, value in values(config).items():
        if key != "provenance" and again[key] != value:
            raise ConfigError(f"{config.name}: {key} holds a value that can't be written as TOML")
