"""What decides an evaluation's figures beside the model, as plain data, and how two of them differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Sections of the settings that have to agree before figures are compared, and before samples are added to others.
COMPARED = ("sampling", "prompt", "grader")
IDENTITY = ("model", *COMPARED, "reward", "sets")


def is_settings(found: Any) -> bool:
    """Whether this has the shape that figures and comparisons rely on."""
    if not isinstance(found, Mapping) or not all(isinstance(found.get(name), Mapping) for name in (*COMPARED, "sets")):
        return False
    k, sets = found["sampling"].get("k"), found["sets"].values()
    return isinstance(k, int) and all(isinstance(s, Mapping) and isinstance(s.get("problems"), int) for s in sets)


def differences(before: Mapping[str, Any], now: Mapping[str, Any], sections: tuple[str, ...] = IDENTITY) -> list[str]:
    """Every field of these sections that differs, as "section.field: old against new"."""
    found: list[str] = []
    for section in sections:
        _walk(section, before.get(section), now.get(section), found)
    return found


def changed_names(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """What differs between two evaluations to be compared: name to allow it by -> how it differs.

    The name is the field's own: temperature, top_p, k, template, extract, ... The seed changes no
    expectation and may differ.
    """
    found: dict[str, str] = {}
    for line in differences(before, now, COMPARED):
        name = line.partition(":")[0].split(".")[-1 if "." not in line.partition(":")[0] else 1]
        if name != "seed":
            found.setdefault(name, line)
    return found


def _walk(path: str, old: Any, new: Any, found: list[str]) -> None:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            _walk(f"{path}.{key}", old.get(key), new.get(key), found)
    elif old != new:
        found.append(f"{path}: {_shown(old)} against {_shown(new)}")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
