"""Every error raised on purpose, by its code. docs/errors.md is made of the classes of `dapo.errors`.

`python -m dapo.error_table docs/errors.md` writes the page again.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from dapo import errors
from dapo.errors import DapoError
from dapo.files import write_text

TROUBLE = "troubleshooting.md"

# The section of docs/troubleshooting.md to read, by code; of any other code, the page.
SECTIONS = {
    "E-CONFIG": "configuration-refused",
    "E-DATA": "data-refused",
    "E-GOLD": "misgraded",
    "E-MODEL": "model-refused",
    "E-HUB": "hub-timeout",
    "E-REWARD": "reward-function-fails",
    "E-RESUME": "resume-refused",
    "E-VERSION": "versions",
    "E-MEMORY": "out-of-memory",
    "E-MEMORY-LOADING": "memory-while-loading",
    "E-MEMORY-RUN": "out-of-memory",
    "E-MEMORY-SAMPLING": "memory-while-sampling",
    "E-MEMORY-LOGPROBS": "memory-in-log-probs",
    "E-MEMORY-UPDATE": "memory-in-an-update",
    "E-MEMORY-EVAL": "memory-in-evaluation",
    "E-STOPPED": "run-stopped",
    "E-INTERRUPTED": "interrupted",
    "E-EXHAUSTED": "sampling-exhausted",
    "E-NONFINITE": "non-finite-gradients",
    "E-ENGINES": "engines-lost",
    "E-LEARNER": "learner-lost",
    "E-SAVE": "save-failed",
    "E-SELFCHECK": "self-check-failed",
    "E-CHECK": "a-check-failed",
    "E-ENGINE": "the-engine-fails",
}


@cache
def kinds() -> dict[str, type[DapoError]]:
    """code -> class, in the order of the source. Two classes of one code are a fault of ours.

    >>> kinds()["E-RESUME"].__name__
    'ResumeRefused'
    """
    found = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, DapoError)]
    table = {kind.code: kind for kind in found}
    if len(table) != len(found):
        raise AssertionError("two error classes have one code")
    return table


def meaning(kind: type[DapoError]) -> str:
    """What the kind says, in one line."""
    return " ".join((kind.__doc__ or "").split())


def section(code: str) -> str:
    """Where docs/ says more about it: PAGE#ANCHOR, relative to docs/."""
    return f"{TROUBLE}#{SECTIONS[code]}" if code in SECTIONS else TROUBLE


def page() -> str:
    """docs/errors.md."""
    lines = [
        "# Errors",
        "",
        "The line in which a command tells an error ends with the error's code: `[dapo explain E-RESUME]`. That",
        "command prints the row of this table. A code never changes. In Python every error of `dapo.errors` has it",
        "as `.code`.",
        "This page is made by `make error-docs`.",
        "",
        "| code | class | exit code | meaning | read |",
        "|---|---|---|---|---|",
    ]
    for code, kind in kinds().items():
        cells = [f"`{code}`", f"`{kind.__name__}`", str(kind.exit_code), meaning(kind), f"[more]({section(code)})"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), page())
