"""The configuration of a run with the source of each value, its manifest, and which runs differ in their seed alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dapo.config.explain import explain
from dapo.config.groups import group_of
from dapo.config.keys import NOT_SETTINGS, defaults, values
from dapo.config.load import from_run
from dapo.config.origins import origins
from dapo.config.write import toml_value
from dapo.errors import ConfigError
from dapo.report.read import mapping

SEED = "train.seed"
LONG = 2000  # characters of a value


def settings(tree: Mapping[str, Any], notes: list[str]) -> list[dict[str, Any]]:
    """Every key with value, source, what it changes, meaning, and whether it differs from the default.

    A configuration that this version can't read is shown as it stands, without sources; notes gains a line.
    """
    try:
        config = from_run(tree)
    except (ConfigError, TypeError, AttributeError) as error:
        notes.append(f"config.resolved.json: written by another version of dapo, shown without sources ({error})")
        return [_bare(key, value) for key, value in _flat(tree)]
    known, sources, found = defaults(), origins(config), values(config)
    meanings = {key: meaning for key, _, meaning, _ in explain(config)}
    return [
        {
            "key": key,
            "value": toml_value(value)[:LONG],
            "source": str(sources[key]),
            "group": group_of(key),
            "meaning": meanings.get(key, ""),
            "changed": key not in known or known[key] != value,
        }
        for key, value in found.items()
        if key not in ("provenance", "schema")
    ]


def _bare(key: str, value: Any) -> dict[str, Any]:
    written = json.dumps(value, ensure_ascii=False, default=str)[:LONG]
    return {"key": key, "value": written, "source": "", "group": "", "meaning": "", "changed": True}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping) and value and not prefix.count("."):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found


def manifest_lines(manifest: Mapping[str, Any]) -> list[list[str]]:
    """The manifest as [name, value] lines. The directory it ran in stays out: a report is passed around."""
    return [[key, written(value)[:LONG]] for key, value in _flat(manifest) if key != "directory"]


def written(value: Any) -> str:
    """A value as a person writes it: text bare, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def seed_of(tree: Mapping[str, Any]) -> Any:
    """train.seed of a resolved configuration."""
    return mapping(tree.get("train")).get("seed")


def seed_groups(trees: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Which runs are one setting under several seeds: indices by group, in order of the first.

    A run whose seed its group has already tells nothing new of the spread over seeds, and stands alone; so does a run
    without a readable configuration.
    """
    groups: dict[str, list[int]] = {}
    alone: list[list[int]] = []
    for place, tree in enumerate(trees):
        own = groups.setdefault(_but_seed(tree), [])
        seeds = [seed_of(trees[i]) for i in own]
        if not tree or seed_of(tree) is None or seed_of(tree) in seeds:
            alone.append([place])
        else:
            own.append(place)
    return sorted([g for g in groups.values() if g] + alone)


def _but_seed(tree: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in tree.items() if key not in NOT_SETTINGS}
    if isinstance(kept.get("train"), Mapping):
        kept["train"] = {key: value for key, value in kept["train"].items() if key != "seed"}
    return json.dumps(kept, sort_keys=True, default=str)
