"""What every contender of the side-by-side benchmark has in common; imports the standard library only.

A contender is a script, `PYTHON contenders/NAME.py SPEC.json`. It loads everything, plays once to warm up,
prints one JSON line {"ready": {...}} and then waits: for each line "go" on stdin it plays one round and
prints its figures as one JSON line. It ends when stdin does. So a parent process can keep several
contenders alive, idle and warm, and let them play in turn.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

_lines = sys.stdout


def read_spec() -> dict[str, Any]:
    """The JSON file that the command line names."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} SPEC.json")
    with open(sys.argv[1], encoding="utf-8") as file:
        spec: dict[str, Any] = json.load(file)
    return spec


def claim_stdout() -> None:
    """Keeps stdout for `serve` alone: whatever else is printed, from C too, goes to stderr.

    Call it before importing any library.
    """
    global _lines
    _lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def use_threads(threads: int, preload: list[str] | None = None) -> None:
    """Sets the number of threads of every math library; call it before importing one, and before `claim_stdout`.

    With `preload`, starts this script again under these shared libraries, unless it runs under them already.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    wanted = ":".join(preload or [])
    if wanted and os.environ.get("LD_PRELOAD") != wanted:
        os.environ["LD_PRELOAD"] = wanted
        os.execv(sys.executable, [sys.executable, *sys.argv])


def peak_gb() -> float:
    """The most memory that this process has held so far, in GiB."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024**2
    return float("nan")


def serve(ready: dict[str, Any], play: Callable[[], dict[str, Any]]) -> None:
    """Says that it is ready, then plays one round for each line "go", until stdin ends."""
    say({"ready": ready})
    for line in sys.stdin:
        if line.strip() == "go":
            say({**play(), "peak_gb": peak_gb()})


def say(values: dict[str, Any]) -> None:
    """One line for the parent process."""
    _lines.write(json.dumps(values) + "\n")
    _lines.flush()
