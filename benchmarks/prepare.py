"""Time and peak memory of `dapo data prepare` on a big file of repeated problems, in verl's layout.

python benchmarks/prepare.py --distinct 18000 --repeat 100

DAPO-Math-17k as published has each of its rows about a hundred times; this makes a file of that shape from random
problems (or from the rows of --base) and prepares it in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ["triangle", "circle", "integer", "polynomial", "root", "sum", "product", "probability", "distance", "area",
         "volume", "side", "angle", "point", "line", "prime", "divisor", "remainder", "digit", "function", "maximum",
         "pair", "set", "subset", "permutation", "coin", "die", "card", "player", "board", "square"]  # fmt: skip


def problems(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Distinct problems of 30 to 90 words with their integer answers."""
    chance = random.Random(seed)
    for number in range(count):
        words = chance.choices(WORDS, k=chance.randrange(30, 90))
        yield (
            f"Problem {number}: let ${chance.choice('abxyz')}^2 + {chance.randrange(999)} = n$. {' '.join(words)}?",
            str(chance.randrange(1000)),
        )


def base_problems(path: Path) -> Iterator[tuple[str, str]]:
    """The problems of a file in verl's layout."""
    for row in pq.read_table(path).to_pylist():
        yield row["prompt"][-1]["content"], row["reward_model"]["ground_truth"]


def write(path: Path, found: list[tuple[str, str]], repeat: int) -> None:
    """The rows, `repeat` times over."""

    def row(index: int, problem: str, answer: str) -> dict[str, Any]:
        return {
            "data_source": "math_dapo",
            "prompt": [{"content": problem, "role": "user"}],
            "ability": "math",
            "reward_model": {"ground_truth": answer, "style": "rule"},
            "extra_info": {"index": str(index)},
        }

    table = pa.Table.from_pylist([row(i, problem, answer) for i, (problem, answer) in enumerate(found)])
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(repeat):
            writer.write_table(table)


def main() -> None:
    """Writes the file, prepares it, prints rows, seconds and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distinct", type=int, default=18_000)
    parser.add_argument("--repeat", type=int, default=100)
    parser.add_argument("--base", type=Path, help="take the problems from this file instead")
    parser.add_argument("--write", type=Path, help="only write the file, there")
    parser.add_argument("options", nargs="*", help="more options for dapo data prepare, after --")
    given = parser.parse_args()
    if given.write:
        found = list(base_problems(given.base) if given.base else problems(given.distinct, 0))
        write(given.write, found, given.repeat)
        return
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "raw.parquet", Path(folder) / "out"
        # In a process of its own: a child's peak memory begins with what its parent holds.
        base = ["--base", str(given.base)] if given.base else []
        sizes = ["--distinct", str(given.distinct), "--repeat", str(given.repeat)]
        subprocess.run([sys.executable, __file__, "--write", str(file), *sizes, *base], check=True)
        command = [sys.executable, "-c", "from dapo.cli import main; main()"]
        start = time.perf_counter()
        process = subprocess.Popen([*command, "data", "prepare", str(file), "-o", str(out), *given.options])
        _, status, usage = os.wait4(process.pid, 0)
        seconds, peak = time.perf_counter() - start, usage.ru_maxrss / 2**20
        if status:
            sys.exit("dapo data prepare failed")
        card = json.loads((out / "card.json").read_text(encoding="utf-8"))
        rows = card["steps"][0]["rows_out"]
        print(
            f"{rows:,} rows ({file.stat().st_size / 1e6:.0f} MB) -> {card['rows']:,}: {seconds:.0f} s, "
            f"{rows / seconds:,.0f} rows/s, peak memory {peak:.2f} GiB"
        )


if __name__ == "__main__":
    main()
