"""What third parties register under entry points."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from dapo.errors import ConfigError


def plugin(group: str, name: str, field: str, built_in: tuple[str, ...]) -> Any:
    """What is registered in an entry point group under a name that a field of the configuration has.

    Raises ConfigError: nothing is; the message names what there is, built_in first.
    """
    found = {point.name: point for point in importlib.metadata.entry_points(group=group)}
    if name not in found:
        known = ", ".join([*built_in, *sorted(found)])
        raise ConfigError(f'{field} = "{name}": not known; there are: {known}')
    return found[name].load()
