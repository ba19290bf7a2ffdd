"""The quickstart's figures: several seeds, and a placebo whose rewards are permuted.

    .venv/bin/python benchmarks/quickstart_seeds.py --seeds 0 1 2 --placebo 0 --at-once 2 -o OUT

Each run is a process of its own. With --at-once N each gets one thread, because several
multi-threaded processes on the same cores slow each other many times. Runs that are finished
already are only read. Writes OUT/results.json, a table on stdout, and with matplotlib OUT/curve.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def run(folder: Path, seed: int, placebo: bool, words: list[str], one_thread: bool) -> dict[str, Any]:
    """Trains once (or reads a finished run) and returns its figures."""
    name = f"{'placebo' if placebo else 'seed'}{seed}"
    target = folder / name
    if not (target / "checkpoints").is_dir():
        placebo_words = ["reward.placebo=true"] if placebo else []
        command = [sys.executable, "-m", "dapo", "train", "quickstart", f"train.seed={seed}", *placebo_words, *words]
        environment = {**os.environ, **({"OMP_NUM_THREADS": "1"} if one_thread else {})}
        subprocess.run([*command, "--output-dir", str(target)], check=True, env=environment)
    rows = [json.loads(line) for line in (target / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["step"] > 0]
    before, after = rows[0], rows[-1]
    return {
        "run": name,
        "before": before["eval/accuracy"],
        "after": after["eval/accuracy"],
        "after_interval": [after["eval/low"], after["eval/high"]],
        "parsed_before": before["eval/parsed_fraction"],
        "parsed_after": after["eval/parsed_fraction"],
        "training_minutes": sum(row["time/step_s"] for row in steps) / 60,
        "peak_memory_gb": after["memory/peak_gb"],
        "sampled_accuracy": [row["sampled/accuracy"] for row in steps],
        "clip_high_fraction": [row["clip/high_fraction"] for row in steps],
        "acceptance": [row["sampling/acceptance"] for row in steps],
        "truncated_fraction": [row["response/truncated_fraction"] for row in steps],
    }


def table(results: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| run | before | after | change | parsed before / after | training min | peak GB |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        low, high = r["after_interval"]
        lines.append(
            f"| {r['run']} | {r['before']:.1%} | {r['after']:.1%} ({low:.1%} to {high:.1%}) "
            f"| {100 * (r['after'] - r['before']):+.1f} points | {r['parsed_before']:.1%} / {r['parsed_after']:.1%} "
            f"| {r['training_minutes']:.1f} | {r['peak_memory_gb']:.1f} |"
        )
    return "\n".join(lines)


def picture(results: list[dict[str, Any]], file: Path) -> None:
    """Accuracy of the sampled responses over steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6))
    for r in results:
        steps = range(1, len(r["sampled_accuracy"]) + 1)
        style = {"linestyle": "--", "color": "grey"} if r["run"].startswith("placebo") else {}
        axes.plot(steps, r["sampled_accuracy"], label=r["run"], **style)
    axes.set_xlabel("step")
    axes.set_ylabel("accuracy of sampled responses")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    """Runs everything that is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--placebo", type=int, nargs="*", default=[0])
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("words", nargs="*", help="key=value for every run")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    wanted = [(seed, False) for seed in arguments.seeds] + [(seed, True) for seed in arguments.placebo]
    with ThreadPoolExecutor(arguments.at_once) as pool:
        futures = [
            pool.submit(run, arguments.output, seed, placebo, arguments.words, arguments.at_once > 1)
            for seed, placebo in wanted
        ]
        results = [future.result() for future in futures]
    (arguments.output / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(table(results))
    try:
        picture(results, arguments.output / "curve.svg")
    except ImportError:
        print("no picture: matplotlib is not installed (the extra `report`)", file=sys.stderr)


if __name__ == "__main__":
    main()
