"""The page docs/checks.md is made of the table of checks.

python -m dapo.checks.table docs/checks.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from dapo.checks.findings import CHECKS, default_of, what
from dapo.errors import ConfigError
from dapo.files import write_text

BEGIN = "<!-- made by `make checks-docs` from dapo.checks.findings.CHECKS: begin -->"
END = "<!-- made by `make checks-docs`: end -->"


def check_table() -> str:
    """A Markdown table with a row for each check."""
    lines = ["| `checks.` | holds the run to | bound | means | looks at | default |", "|---|---|---|---|---|---|"]
    for name, check in CHECKS.items():
        cells = [f"`{name}`", what(name), check.bound, check.meaning, check.cost, f"`{default_of(name)}`"]
        lines.append("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def page_with_table(page: str) -> str:
    """The page with the table between the two markers. Raises ConfigError without them."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the page needs the lines {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{check_table()}\n{END}{tail}"


def write_page(path: Path) -> None:
    """Makes the table in a page again. Raises ConfigError."""
    try:
        page = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    write_text(path, page_with_table(page))


if __name__ == "__main__":
    try:
        write_page(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/checks.md"))
    except ConfigError as error:
        sys.exit(f"error: {error.message}")
