"""The evaluation sets that a configuration names, each with figures of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

from dapo.config.schema import Config, RewardConfig, SourceConfig
from dapo.errors import ConfigError

HOLDOUT = "holdout"
_NAME = re.compile(r"[\w.+-]+")


def evaluation_sources(config: Config) -> dict[str, SourceConfig]:
    """The sources of `eval.data` by set name, in order.

    A text may name several with commas between. A set is called by its `name`, or by its source: a named
    set or holdout as they are, reasoning-gym:TASK by the task, a file by its stem, with its folder's name in front
    where two have one stem.

    Raises:
        ConfigError: two sets of one name, or a name that can't be a file's.
    """
    data = config.eval.data
    words = data.split(",") if isinstance(data, str) else data
    sources = [SourceConfig(source=w.strip()) if isinstance(w, str) else w for w in words if w]
    short = Counter(_short(source) for source in sources)
    named: dict[str, SourceConfig] = {}
    for source in sources:
        name = _short(source)
        folder = PurePath(source.source).parent.name
        if source.name is None and short[name] > 1 and folder:
            name = f"{folder}-{name}"
        name = name if source.name else re.sub(r"[^\w.+-]", "_", name)
        if not _NAME.fullmatch(name):
            raise ConfigError(f'eval.data: name = "{name}": use letters, digits and . _ + -')
        if name in named:
            raise ConfigError(f'eval.data: two sets are called {name}; give one of them a name, e.g. name = "{name}-2"')
        named[name] = source
    return named


def source_tables(config: Config) -> Iterator[tuple[str, SourceConfig]]:
    """Every table in data.source and eval.data, with what messages call it."""
    for section, tables in (("data.source", config.data.source), ("eval.data", config.eval.data)):
        for index, table in enumerate(tables):
            if isinstance(table, SourceConfig):
                yield f"{section}[{index}]", table


def all_rewards(config: Config) -> dict[str, RewardConfig]:
    """[reward] under "", and what sources make of it, each under its SourceRewardConfig.key."""
    return {"": config.reward} | {
        table.reward.key: table.reward.over(config.reward) for _, table in source_tables(config)
    }


def _short(source: SourceConfig) -> str:
    if source.name:
        return source.name
    if source.source.startswith("reasoning-gym:"):
        return source.source.partition(":")[2]
    path = PurePath(source.source)
    return path.stem if path.suffix in (".json", ".jsonl", ".parquet", ".csv", ".tsv") else path.name
