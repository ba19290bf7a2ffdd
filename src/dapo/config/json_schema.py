"""The JSON Schema of a recipe file, for editors, made of the configuration's own models.

It is about files as they are written: "off" where a knob can be switched off (TOML has no null), `extends`, and no key
required at the top, since what a file leaves out may come from what it extends or lies on, or from a key=value word.
What concerns several keys (`config.check`) is not in it. It is stricter than dapo in one thing: it marks numbers and
switches that are written as texts ("1e-6"), and switches that are 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from dapo.config.base import off_is_none
from dapo.config.keys import all_keys, section_model
from dapo.config.load import recipe_names
from dapo.config.origins import KINDS
from dapo.config.schema import Config

SCHEMA_FILE = "dapo.schema.json"  # as the first line of a copied recipe names it
TITLE = "A recipe of dapo"
_OFF = {"const": "off", "type": "string"}
# pydantic notes a bound on a validated number by its own names.
_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}


def recipe_schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12, of a recipe, an overlay or any other TOML file that dapo reads as configuration."""
    tree = Config.model_json_schema(by_alias=True, schema_generator=_AsWritten)
    sections = {model.__name__ for model in _sections(Config)}
    for name, table in tree["$defs"].items():
        _tidy(table)
        if name in sections:
            table.pop("required", None)
    _tidy(tree)
    tree.pop("required", None)
    tree["properties"]["provenance"] |= _provenance()
    extends = {
        "description": "The recipe that this file starts from: a shipped one's name, or a .toml file by its path.",
        "anyOf": [{"enum": recipe_names()}, {"type": "string", "pattern": r"\.toml$"}],
    }
    properties = {"extends": extends, **tree.pop("properties")}
    head = {"$schema": GenerateJsonSchema.schema_dialect, "title": TITLE, "description": tree.pop("description")}
    return head | {"properties": properties} | tree


class _AsWritten(GenerateJsonSchema):
    """Values as they stand in TOML."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        inner = super().function_before_schema(schema)
        if schema["function"]["function"] is off_is_none:
            return {"anyOf": [*inner.get("anyOf", [inner]), dict(_OFF)]}
        return inner

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def _sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for info in model.model_fields.values():
        if section := section_model(info.annotation):
            yield section
            yield from _sections(section)


def _tidy(node: dict[str, Any]) -> None:
    """Drops titles, which repeat the keys, and defaults of sections and of what is simply not set; unfolds texts."""
    node.pop("title", None)
    for ours, name in _BOUNDS.items():
        if ours in node:
            node[name] = node.pop(ours)
    if isinstance(text := node.get("description"), str):
        node["description"] = " ".join(text.split())
    if "default" in node and node["default"] is None and _OFF in node.get("anyOf", ()):
        node["default"] = "off"
    elif "$ref" in node or node.get("default", "") is None:
        node.pop("default", None)
    nested = [node.get("items"), node.get("additionalProperties"), *node.get("properties", {}).values()]
    for part in [*nested, *node.get("anyOf", ()), *node.get("prefixItems", ())]:
        if isinstance(part, dict):
            _tidy(part)


def _provenance() -> dict[str, Any]:
    entry = {"type": "string", "pattern": rf"^\s*({'|'.join(KINDS)})\s*:\s*\S"}
    keys = [key for key in all_keys() if key != "provenance"]
    return {"properties": {key: dict(entry) for key in keys}, "additionalProperties": False}
