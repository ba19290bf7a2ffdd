"""A table of what `dapo data prepare` makes of real files, with seconds and peak memory; each in its own process.

python benchmarks/real_data.py --data DIR [FILE ...]

DIR holds the public files by the names in TRAINING and TESTS (see the table it prints). Training files are held
against five evaluation sets; answers are made integers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRAINING = (
    "dapo17k/dapo_math_17k.parquet", "gsm8k/train.jsonl", "deepscaler_parts/rllm_train_math.json",
    "deepscaler_parts/rllm_train_aime.json", "deepmath/math_deepmath_deal.jsonl",
)  # fmt: skip
TESTS = (
    "aime24/aime24.parquet", "aime24/nemo_skills_test.jsonl", "aime24/ttrl_test.json", "aime25/aime25.parquet",
    "aime25/nemo_skills_test.jsonl", "amc/amc23_test.jsonl", "amc/ttrl_amc_test.json", "math500/test.jsonl",
    "olympiadbench/test.jsonl", "gsm8k/test.jsonl", "deepscaler_parts/rllm_test_aime.json",
    "deepscaler_parts/rllm_test_amc.json", "deepscaler_parts/rllm_test_math.json",
)  # fmt: skip
AGAINST = ("aime24", "aime25", "math500", "amc/ttrl_amc_test.json", "olympiad")


def prepared(folder: Path, file: str, out: Path) -> tuple[dict[str, Any], float, float]:
    """(card, seconds, peak memory in GiB) of one file."""
    command = [sys.executable, "-c", "from dapo.cli import main; main()", "data", "prepare", str(folder / file)]
    command += ["-o", str(out), "--integers", "rewrite"]
    if file in TRAINING:
        against = ",".join(str(folder / name) if "/" in name else name for name in AGAINST)
        command += ["--against", against, "--data-dir", str(folder)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        sys.exit(f"{file}: {said.decode()}")
    return json.loads((out / "card.json").read_text(encoding="utf-8")), seconds, usage.ru_maxrss / 2**20


def line(file: str, card: dict[str, Any], seconds: float, peak: float) -> str:
    """A row of the table."""
    dropped = [f"{n} {reason}" for step in card["steps"] for reason, n in step["dropped"].items()]
    against = card["decontamination"]
    found = ", ".join(f"{Path(s['set']).stem} {s['problems_found']}" for s in against["sets"]) if against else "-"
    integers, duplicates = card["integer_answers"], card["duplicates"]
    share = f"{integers['share_before']:.1%} -> {integers['share_after']:.1%}"
    return (
        f"| {file} | {card['steps'][0]['rows_in']:,} | {card['rows']:,} | {', '.join(dropped) or '-'} | "
        f"{duplicates['near_duplicates_with_other_answers']} | {found} | {share} | {seconds:.0f} | {peak:.2f} |"
    )


def main() -> None:
    """Prints the table as markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("files", nargs="*", default=[*TRAINING, *TESTS])
    given = parser.parse_args()
    print("| file | rows | kept | dropped | near, other answer | evaluation problems found | integers | s | GiB |")
    print("|---|---:|---:|---|---:|---|---|---:|---:|")
    for file in given.files:
        with tempfile.TemporaryDirectory() as place:
            print(line(file, *prepared(given.data, file, Path(place) / "out")), flush=True)


if __name__ == "__main__":
    main()
