"""What third parties register under entry points."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from dapo.errors import ConfigError

GIVEN = "given:"  # before the name of a part that was handed over in code, see `dapo.given`


def not_given(name: str, field: str) -> str:
    """What to say where a part was handed over in code and is not in this process."""
    return (
        f"{field} = {name}: was handed over in code and is not in this process; hand it over again "
        f"(dapo.Trainer.resume), or set {field}"
    )


def plugin(group: str, name: str, field: str, built_in: tuple[str, ...]) -> Any:
    """What is registered in an entry point group under a name that a field of the configuration has.

    Raises ConfigError: nothing is; the message names what there is, built_in first.
    """
    if name.startswith(GIVEN):
        raise ConfigError(not_given(name, field))
    found = {point.name: point for point in importlib.metadata.entry_points(group=group)}
    if name not in found:
        known = ", ".join([*built_in, *sorted(found)])
        raise ConfigError(f'{field} = "{name}": not known; there are: {known}')
    return found[name].load()
