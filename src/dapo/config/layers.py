"""One layer of settings on another, and what that does to where values come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dapo.config.keys import MISSING, NOT_SETTINGS, Tree, all_keys, at, defaults, same


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


def layered(below: Mapping[str, Any], above: Mapping[str, Any], said: str, *, inherits: bool = False) -> Tree:
    """`merge`, and provenance that stays true: a value that `above` changes is not from where the old one was.

    Args:
        below: what is known so far.
        above: the layer on top. Its own provenance entries win, for values that are the layer's: it sets them, or
            speaks of a default that no layer below has changed.
        said: the entry of a key that `above` sets to another value than `below`, or the schema, had, without
            saying where it is from.
        inherits: whether `above` names `below` itself (extends), so that its entries may speak of all values there.
    """
    merged = merge(below, above)
    entries, brought = below.get("provenance", {}), above.get("provenance", {})
    if not isinstance(brought, Mapping) or not isinstance(entries, Mapping):
        return merged  # refused later
    known = set(all_keys()) - set(NOT_SETTINGS)
    sources = {**entries, **{key: source for key, source in brought.items() if key not in known}}
    for key in known:
        usual = defaults().get(key, MISSING)
        old = at(below, key) if at(below, key) is not MISSING else usual
        sets = at(above, key) is not MISSING
        if key in brought and (inherits or sets or same(key, old, usual)):
            sources[key] = brought[key]
        elif sets and not same(key, old, at(merged, key)):
            sources[key] = said
    return merged | {"provenance": sources} if sources else merged
