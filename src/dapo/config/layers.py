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


def layered(below: Mapping[str, Any], above: Mapping[str, Any], said: str) -> Tree:
    """`merge`, and provenance that stays true: a value that `above` changes is not from where the old one was.

    Args:
        below: what is known so far.
        above: the layer on top. Its own provenance entries win.
        said: the entry of a key that `above` sets to another value than `below`, or the schema, had, without
            saying where it is from.
    """
    merged = merge(below, above)
    brought, entries = above.get("provenance", {}), merged.get("provenance", {})
    if not isinstance(brought, Mapping) or not isinstance(entries, Mapping):
        return merged  # refused later
    changed = {}
    for key in all_keys():
        if key in NOT_SETTINGS or key in brought or at(above, key) is MISSING:
            continue
        old = at(below, key)
        old = defaults().get(key, MISSING) if old is MISSING else old
        if not same(key, old, at(merged, key)):
            changed[key] = said
    if changed:
        merged["provenance"] = {**entries, **changed}
    return merged
