"""Pages of the documentation of which a part is made from the source."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from dapo.errors import ConfigError
from dapo.files import write_text


def with_part(page: str, begin: str, end: str, part: str) -> str:
    """The page with this part between the two marker lines. Raises ConfigError without them."""
    head, found, rest = page.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found or not found_end:
        raise ConfigError(f"the page needs the lines {begin} and {end}")
    return f"{head}{begin}\n\n{part}\n{end}{tail}"


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Makes the part of a page again. Raises ConfigError."""
    try:
        page = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    write_text(path, change(page))


def main(change: Callable[[str], str], default: str) -> None:
    """`python -m MODULE [PAGE]`."""
    try:
        rewrite(Path(sys.argv[1] if len(sys.argv) > 1 else default), change)
    except ConfigError as error:
        sys.exit(f"error: {error.message}")
