"""Time to .85 on one-digit sums: this project beside the shortest loop that does the same.

    .venv/bin/python benchmarks/sums.py

SmolLM2-135M-Instruct, "What is a + b?" with a and b of one digit, 16 prompts x 8 responses of at most 12
tokens a step, two updates, dynamic sampling, the same learning rate and the same reading of answers. The
plain loop (contenders/plain_sums.py) samples with transformers' `generate`, pads, keeps all logits. A
round trains from the start, with a seed of its own, until .85 of a step's sampled responses are right;
the time is from the loaded model to the end of that step.
"""

from __future__ import annotations

import sys

from side_by_side import Contender, compete, compute_type, conclude, median, model_folder, options, seconds


def main() -> int:
    """Plays and compares."""
    arguments = options(__doc__ or "", rounds=1).parse_args()
    spec = {
        "model": model_folder(),
        "dtype": compute_type(),
        "threads": arguments.threads,
        "learning_rate": 4e-5,
        "target": 0.85,
        "most_steps": 15,
    }
    contenders = [Contender("dapo", "dapo_sums.py", spec), Contender("plain", "plain_sums.py", spec)]
    compete(contenders, arguments.rounds)
    samples = {c.name: {"seconds": seconds(c), "rounds": c.rounds} for c in contenders}
    reached = all(r["accuracy"][-1] >= spec["target"] for c in contenders for r in c.rounds)
    if not reached:
        raise SystemExit(f"not every run reached {spec['target']}: {samples}")
    return conclude(
        "sums", arguments, samples, {"plain_to_dapo": median(seconds(contenders[1])) / median(seconds(contenders[0]))}
    )


if __name__ == "__main__":
    sys.exit(main())
