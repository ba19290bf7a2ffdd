"""RECIPE [OVERLAY.toml ...] [key=value ...] as every verb that takes a configuration reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from dapo.config.load import load_config, meant_key, parse_override
from dapo.config.schema import Config
from dapo.errors import ConfigError

SETTINGS = {"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}
WORDS = click.argument("words", nargs=-1, metavar="RECIPE [OVERLAY.toml]... [KEY=VALUE]...")


def config_of(words: Sequence[str]) -> Config:
    """The configuration these words mean. Raises ConfigError, with the right spelling where it can be told."""
    refuse_dashes(words)
    if not words:
        raise ConfigError("name a recipe, e.g. quickstart (dapo recipe list shows all), or a .toml file")
    files = [word for word in words if "=" not in word or Path(word).is_file()]
    return load_config(*files, *(word for word in words if word not in files))  # whatever their order, words come last


def overrides_only(words: Sequence[str]) -> tuple[str, ...]:
    """key=value words and nothing else, checked. Raises ConfigError."""
    refuse_dashes(words)
    for word in words:
        if "=" not in word:
            raise ConfigError(f"{word}: only key=value words can stand here")
        parse_override(word)
    return tuple(words)


def refuse_dashes(words: Sequence[str]) -> None:
    """--train.lr 1e-6 is answered with train.learning_rate=1e-6."""
    for place, word in enumerate(words):
        if not word.startswith("-"):
            continue
        key, equals, value = word.lstrip("-").partition("=")
        key = key.replace("-", "_")
        if not equals and place + 1 < len(words):
            value = words[place + 1]
        right = meant_key(key)
        if right is None:
            raise ConfigError(f"{word}: no such option; settings are key=value words, e.g. train.num_steps=10")
        raise ConfigError(f"{word}: write {right}={value or 'VALUE'} (no dashes)")
