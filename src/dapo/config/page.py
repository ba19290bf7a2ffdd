"""The page docs/configuration.md, made of the schema: every key with its values, default, meaning and names elsewhere.

python -m dapo.config.page docs/configuration.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from dapo.config.elsewhere import ELSEWHERE
from dapo.config.keys import section_model
from dapo.config.reward import RewardFunctionConfig, SourceRewardConfig
from dapo.config.schema import Config, SourceConfig
from dapo.config.write import toml_value
from dapo.generated import main, with_part

BEGIN = "<!-- made by `make config-docs` from the schema: begin -->"
END = "<!-- made by `make config-docs`: end -->"

# Tables that stand inside lists, with what a key of theirs is called here.
TABLES: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("Tables of data.source and eval.data", "source.", SourceConfig),
    ("Reward of a source", "source.reward.", SourceRewardConfig),
    ("Tables of reward.functions", "function.", RewardFunctionConfig),
)
_NAMED = {"SourceConfig": "a table of a source", "RewardFunctionConfig": "a table of a function"}
_LIMITS = (("minimum", "at least"), ("exclusiveMinimum", "over"), ("maximum", "at most"), ("exclusiveMaximum", "under"))
_PLAIN = {"string": "text", "boolean": "true or false", "object": "a table", "null": '`"off"`'}


def keys_page() -> str:
    """A heading for each section and one for each key."""
    return "\n".join([*_section(Config, "", ""), *(line for table in TABLES for line in _table(*table))])


def page_with_keys(page: str) -> str:
    """The page with the keys between the two markers. Raises ConfigError without them."""
    return with_part(page, BEGIN, END, keys_page())


def values_in_words(schema: Mapping[str, Any]) -> str:
    """Which values a field takes, of its JSON schema.

    >>> values_in_words({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
    'whole number, at least 1, or `"off"`'
    >>> values_in_words({"type": "string", "enum": ["a", "b"]})
    '`"a"` or `"b"`'
    """
    if "anyOf" in schema:
        return ", or ".join(dict.fromkeys(values_in_words(part) for part in schema["anyOf"]))
    if "$ref" in schema:
        return _NAMED.get(schema["$ref"].rpartition("/")[2], "a table")
    if "enum" in schema:
        *most, last = (f"`{toml_value(value)}`" for value in schema["enum"])
        return f"{', '.join(most)} or {last}"
    if "const" in schema:
        return f"`{toml_value(schema['const'])}`"
    if schema.get("type") == "array":
        parts = schema.get("prefixItems")
        inner = " and ".join(map(values_in_words, parts)) if parts else values_in_words(schema.get("items", {}))
        return f"list of {inner}"
    name = {"integer": "whole number", "number": "number"}.get(schema.get("type", ""))
    if name is None:
        return _PLAIN.get(schema.get("type", ""), "any value")
    bounds = [f"{words} {schema[limit]:,}" for limit, words in _LIMITS if limit in schema]
    return ", ".join([name, *bounds])


def _section(model: type[BaseModel], prefix: str, title: str) -> Iterator[str]:
    """The section's own keys, then the sections in it."""
    title = f"## {title}" if prefix else "## Top level"
    yield from (title, "", *((_one_line(model.__doc__), "") if prefix else ()))
    properties = model.model_json_schema()["properties"]
    parts = [(name, info.alias or name, section_model(info.annotation)) for name, info in model.model_fields.items()]
    for name, key, section in parts:
        if section is None:
            yield from _key(prefix, key, properties[key], model, name)
    for _, key, section in parts:
        if section is not None:
            yield from _section(section, f"{prefix}{key}.", prefix + key)


def _table(title: str, prefix: str, model: type[BaseModel]) -> Iterator[str]:
    yield from (f"## {title}", "", _one_line(model.__doc__), "")
    properties = model.model_json_schema()["properties"]
    for name, info in model.model_fields.items():
        if section_model(info.annotation) is None:
            yield from _key(prefix, name, properties[name], model, name)


def _key(prefix: str, name: str, schema: Mapping[str, Any], model: type[BaseModel], field: str) -> Iterator[str]:
    info, key = model.model_fields[field], prefix + name
    if info.is_required():
        default = "must be set"
    elif info.default is None and model is SourceRewardConfig:
        default = "as in `[reward]`"
    else:
        default = f"default `{toml_value(info.default)}`"
    yield from (f"### `{key}`", "", f"{values_in_words(schema)}; {default}.", "", _one_line(info.description), "")
    if key in ELSEWHERE:
        yield from (f"Elsewhere: {ELSEWHERE[key].replace(' | ', '; ')}.", "")


def _one_line(text: str | None) -> str:
    """A docstring as Markdown that shows it as it is written: no braces, stars or angles are read as marks."""
    words = " ".join((text or "").split())
    for mark in ("\\", "*", "<", ">", "[", "]", "_", "|"):
        words = words.replace(mark, f"\\{mark}")
    return words


if __name__ == "__main__":
    main(page_with_keys, "docs/configuration.md")
