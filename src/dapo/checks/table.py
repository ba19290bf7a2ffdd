"""The page docs/checks.md is made of the table of checks.

python -m dapo.checks.table docs/checks.md
"""

from __future__ import annotations

from dapo.checks.findings import CHECKS, default_of, what
from dapo.generated import main, with_part

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
    return with_part(page, BEGIN, END, check_table())


if __name__ == "__main__":
    main(page_with_table, "docs/checks.md")
