"""Released recipes never change: their digests, and the command that adds one.

    python -m dapo.config.release NAME...

`recipes/released.json` holds the keys in the order in which they came to be (`keys`, which only grows), the default
each came with (`defaults`), how many of the keys each recipe knew when it was released (`counted`), and sha256 over
its values at those (`digests`). A key that came later counts as soon as its value is not the default it came with. So
a new key disturbs no digest; a changed default does, and a recipe that begins to use the new key does.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from dapo.config.keys import all_keys, defaults, values
from dapo.config.load import load_config, recipe_names
from dapo.config.schema import Config
from dapo.errors import ConfigError
from dapo.files import write_text

FILE = "released.json"


def recipe_digest(config: Config, keys: Iterable[str] | None = None) -> str:
    """sha256 over the values at these keys, the name included, description and provenance left out.

    Args:
        keys: dotted keys; None for all there are. Their order does not matter.

    Raises:
        ConfigError: a key that there is no more.
    """
    known = values(config)
    wanted = sorted(set(known if keys is None else keys) - {"description", "provenance"})
    if lost := [key for key in wanted if key not in known]:
        raise ConfigError(
            f"there is no key {lost[0]} any more, and released recipes have it: their values would change"
        )
    text = json.dumps({key: _plain(known[key]) for key in wanted}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A list of tables without what is not set in them, so that a key which comes later to a source changes nothing."""
    if isinstance(value, list):
        return [{k: v for k, v in x.items() if v not in (None, {}, [])} if isinstance(x, dict) else x for x in value]
    return value


def released() -> dict[str, Any]:
    """What released.json holds: keys, defaults, counted, digests."""
    return json.loads((resources.files("dapo.recipes") / FILE).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def digest_at_release(config: Config, record: Mapping[str, Any], name: str) -> str:
    """The digest of a configuration over the keys that a recipe had when it was released, and later ones it uses."""
    had, now = record["keys"][: record["counted"][name]], values(config)
    came_with = {**defaults(), **record["defaults"]}
    later = [key for key in now if key not in had and key in came_with and now[key] != came_with[key]]
    return recipe_digest(config, [*had, *later])


def release(record: Mapping[str, Any], name: str, config: Config) -> dict[str, Any]:
    """The record with one recipe more; as it was, where the recipe is in it already.

    Raises ConfigError when it is in it with another digest.
    """
    if name in record["digests"]:
        if digest_at_release(config, record, name) != record["digests"][name]:
            raise ConfigError(
                f"{name}: is released, and has other values now; put them back, or give the file a new name"
            )
        return dict(record)
    keys = [*record["keys"], *(key for key in all_keys() if key not in set(record["keys"]))]
    return {
        "keys": keys,
        "defaults": {key: value for key, value in {**defaults(), **record["defaults"]}.items() if key in keys},
        "counted": dict(sorted({**record["counted"], name: len(keys)}.items())),
        "digests": dict(sorted({**record["digests"], name: recipe_digest(config, keys)}.items())),
    }


def main(names: list[str]) -> None:
    """Releases these recipes, in the source tree that is imported."""
    record = released()
    for name in names:
        if name not in recipe_names():
            raise ConfigError(f"{name}: no shipped recipe; there are: {', '.join(recipe_names())}")
        record = release(record, name, load_config(name))
    if not names:
        raise ConfigError("name the recipe to release, e.g. make release-recipe NAME=quickstart")
    folder = Path(str(resources.files("dapo.recipes")))
    write_text(folder / FILE, json.dumps(record, indent=1) + "\n")
    print(f"released: {', '.join(names)}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConfigError as error:
        sys.exit(f"error: {error.message}")
