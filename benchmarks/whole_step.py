"""A whole step, from prompts to new weights: `dapo train` beside TRL's GRPOTrainer.

    sh benchmarks/peers.sh PEERS
    .venv/bin/python benchmarks/whole_step.py --peers PEERS

SmolLM2-135M, 4 prompts of about 38 tokens, 16 completions each of at most 16 tokens: sampling, a reward,
one update, the new weights in the engine. No dynamic sampling on either side, and the same reward function.
"""

from __future__ import annotations

import sys

from side_by_side import (
    Contender,
    compete,
    compute_type,
    conclude,
    median,
    model_folder,
    options,
    peers_python,
    seconds,
)

PROMPT = (
    "<|im_start|>system\nAnswer with a number.<|im_end|>\n<|im_start|>user\n"
    "What is {} + {}? Think well, then give the answer.<|im_end|>\n<|im_start|>assistant\n"
)
PAIRS = ((12, 35), (47, 28), (90, 14), (63, 59))


def main() -> int:
    """Plays and compares."""
    arguments = options(__doc__ or "", rounds=5).parse_args()
    spec = {
        "model": model_folder(),
        "dtype": compute_type(),
        "threads": arguments.threads,
        "seed": 0,
        "learning_rate": 1e-6,
        "prompts": [PROMPT.format(*pair) for pair in PAIRS],
        "responses_per_prompt": 16,
        "max_new_tokens": 16,
        "microbatch": 64,
    }
    contenders = [Contender("dapo", "dapo_step.py", spec)]
    if arguments.peers:
        contenders.append(Contender("trl", "trl_step.py", spec, peers_python(arguments.peers)))
    compete(contenders, arguments.rounds)
    samples = {
        c.name: {
            "seconds": seconds(c),
            "median": median(seconds(c)),
            "tokens": [r["tokens"] for r in c.rounds],
            "peak_gb": max(r["peak_gb"] for r in c.rounds),
            "ready": c.ready,
        }
        for c in contenders
    }
    ratios = {"to_trl": median(seconds(contenders[1])) / median(seconds(contenders[0]))} if arguments.peers else {}
    return conclude("whole_step", arguments, samples, ratios)


if __name__ == "__main__":
    sys.exit(main())
