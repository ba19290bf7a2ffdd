"""How long a report of a large run takes, and how large it is.

    python benchmarks/report_size.py [--steps 1000] [--rollouts 500] [--characters 2000] [--keep DIR]

The run is synthetic (tests/helpers_report.py), and making it takes longer than reporting on it. The report is made in
a process of its own; prints its seconds, its peak memory, the size of the file and how many rollouts it holds. Exits
with 1 where it takes 20 s of one processor or more (a machine that does other things takes longer by the clock), or
30 MB or more.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import helpers_report as synthetic  # noqa: E402

MOST_SECONDS, MOST_MB = 20.0, 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rollouts", type=int, default=500)
    parser.add_argument("--characters", type=int, default=2000)
    parser.add_argument("--keep", type=Path, help="make the run here, or take the one that is there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = given.keep or Path(folder) / "run"
        if not (run / "config.resolved.json").is_file():
            size = synthetic.Size(
                steps=given.steps, rollouts=given.rollouts, group=10, characters=given.characters, every=10
            )
            began = time.perf_counter()
            synthetic.synthetic_run(run, size=size)
            print(f"run made in {time.perf_counter() - began:.1f} s: {on_disk(run) / 1e6:.0f} MB on disk")
        return measure(run, Path(folder) / "report.html")


def on_disk(folder: Path) -> int:
    """Bytes of all files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measure(run: Path, target: Path) -> int:
    """Makes the report, prints what it took; 1 where a limit is passed."""
    began, spent = time.perf_counter(), children_seconds()
    words = [sys.executable, "-m", "dapo", "report", str(run), "-o", str(target)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    seconds, spent = time.perf_counter() - began, children_seconds() - spent
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return 1
    size = target.stat().st_size / 1e6
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"report in {seconds:.1f} s ({spent:.1f} s of processor), {size:.1f} MB, peak memory {peak:.2f} GiB")
    print(done.stderr.strip())
    return int(spent >= MOST_SECONDS or size >= MOST_MB)


def children_seconds() -> float:
    """Processor seconds of finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
