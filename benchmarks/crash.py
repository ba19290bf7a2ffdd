"""A run killed with SIGKILL at any instant resumes, and ends bitwise equal to one that was never stopped.

    .venv/bin/python benchmarks/crash.py --kills 100 --schedule all [--seed 0] [--keep DIR]

So many runs of a tiny model (five steps, each saved in the background) are killed and resumed; half of
the resumes are killed again, until one ends. Half of the kills fall anywhere between the moment that there
is a run and its end, half are aimed: 0 to 20 ms after a save began. Then weights, optimiser state, metrics,
every response and every evaluation are held against a run that was never stopped. Exits 1 when a resume was
refused or hung, began before a checkpoint that stood (lost), or ended differently. What SIGKILL can't show
is a power cut: the page cache outlives the process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

SCHEDULES = ("rounds", "streaming", "carry")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="runs to kill, of each schedule")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--schedule", choices=[*SCHEDULES, "all"], default="streaming")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this empty folder and leave it there")
    arguments = parser.parse_args()
    folder = (arguments.keep or Path(tempfile.mkdtemp(prefix="dapo-crash-"))).resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        parser.error(f"--keep {folder}: is no empty folder")
    schedules = SCHEDULES if arguments.schedule == "all" else (arguments.schedule,)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # before anything loads torch
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from helpers_crash import campaign

    failed = True
    try:
        failed = campaign(folder, schedules, arguments.kills, arguments.seed)
    finally:
        if failed:
            print(f"kept: {folder}", flush=True)
        elif arguments.keep is None:
            shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
