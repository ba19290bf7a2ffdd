"""Training: one update of the learner beside TRL's, on the same rollouts.

    sh benchmarks/peers.sh PEERS
    .venv/bin/python benchmarks/training.py --peers PEERS

SmolLM2-135M. Two tasks: prompts of 40 tokens with 16 responses of 16 to 128 tokens, and one prompt of 256
tokens with 16 responses of 64, both DAPO's loss (clip 0.2 and 0.28, token mean over the update), AdamW,
gradients clipped to norm 1. TRL trains on exactly these rows through its own `train()` (see
contenders/trl_train.py). The first losses of the two have to agree, or nothing is compared.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from side_by_side import (
    Contender,
    compete,
    compute_type,
    conclude,
    median,
    model_folder,
    options,
    peak,
    peers_python,
    seconds,
)

GROUP = 16
TASKS = {"short_prompt": (40, 16, 128), "long_prompt": (256, 64, 64)}


def spec(prompt: int, shortest: int, longest: int, threads: int) -> dict[str, Any]:
    """A group: its rows, and advantages of mean 0."""
    generator = random.Random(0)

    def words(count: int) -> list[int]:
        return [generator.randrange(10, 40000) for _ in range(count)]

    ids = words(prompt)
    lengths = [round(shortest + (longest - shortest) * index / (GROUP - 1)) for index in range(GROUP)]
    generator.shuffle(lengths)
    rows = [
        {"prompt": ids, "response": words(length), "advantage": 1.0 if index % 2 else -1.0, "draw": 0}
        for index, length in enumerate(lengths)
    ]
    return {
        "model": model_folder(),
        "dtype": compute_type(),
        "threads": threads,
        "seed": 0,
        "learning_rate": 1e-6,
        "responses_per_prompt": GROUP,
        "rows": rows,
        "microbatch": 16,  # rows; TRL is slower with 4
    }


def main() -> int:
    """Both tasks, one after the other."""
    parser = options(__doc__ or "", rounds=3)
    parser.add_argument("--task", choices=TASKS, action="append", help="only this one")
    arguments = parser.parse_args()
    samples: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for task in arguments.task or TASKS:
        given = spec(*TASKS[task], arguments.threads)
        contenders = [Contender("dapo", "dapo_train.py", given)]
        if arguments.peers:
            contenders.append(Contender("trl", "trl_train.py", given, peers_python(arguments.peers)))
        compete(contenders, arguments.rounds)
        for contender in contenders:
            samples[f"{task}/{contender.name}"] = {
                "seconds": seconds(contender),
                "median": median(seconds(contender)),
                "tokens": contender.rounds[0]["tokens"],
                "peak_gb": peak(contender),
                "first_loss": contender.rounds[0]["loss"],
                **contender.ready,
            }
        if arguments.peers:
            ours, theirs = contenders
            first = [samples[f"{task}/{contender.name}"]["first_loss"] for contender in contenders]
            if abs(first[0] - first[1]) > 1e-3 * max(1.0, abs(first[1])):
                raise SystemExit(f"{task}: the losses differ: {first}; not the same computation")
            ratios[f"{task}/to_trl"] = median(seconds(theirs)) / median(seconds(ours))
            ratios[f"{task}/memory_of_trl_to_ours"] = peak(theirs) / peak(ours)
    return conclude("training", arguments, samples, ratios)


if __name__ == "__main__":
    sys.exit(main())
