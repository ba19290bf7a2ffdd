"""Decoding: the embedded engine beside vLLM, transformers' `generate` and the matrix products alone.

    sh benchmarks/peers.sh PEERS
    .venv/bin/python benchmarks/decode.py --peers PEERS

SmolLM2-135M, 4 prompts of 40 tokens, 16 responses of 128 tokens each, 64 slots; then 48 prompts of 16
responses, 90% of 32 tokens and 10% of 256, that refill the slots. All rates are tokens per second of a
whole round, prefill included. The limit is the rate of the model's linear layers on 64 rows and nothing
else, in the fastest form known here. Without --peers it runs without vLLM.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from side_by_side import Contender, compete, compute_type, conclude, median, model_folder, options, peers_python, rates

PROMPT, SLOTS = 40, 64
FASTEST = {"seeded": False}  # one generator for all requests: vLLM's quickest, though a response can't be repeated


def spec(prompts: int, lengths: list[int], threads: int) -> dict[str, Any]:
    """What every contender of a task is given."""
    generator = random.Random(0)
    return {
        "model": model_folder(),
        "dtype": compute_type(),
        "threads": threads,
        "prompts": [[generator.randrange(10, 40000) for _ in range(PROMPT)] for _ in range(prompts)],
        "lengths": [lengths] * prompts,
        "slots": SLOTS,
        "seed": 0,
        "compiled": False,
    }


def main() -> int:
    """Two tasks, one table."""
    parser = options(__doc__ or "", rounds=3)
    parser.add_argument("--steady-only", action="store_true", help="without the ragged task")
    parser.add_argument("--ragged-prompts", type=int, default=48, help="of the ragged task, 16 responses each")
    arguments = parser.parse_args()
    steady = spec(4, [128] * 16, arguments.threads)
    ragged = spec(arguments.ragged_prompts, [], arguments.threads)
    long = [2 if index % 5 < 3 else 1 for index in range(arguments.ragged_prompts)]  # of the 16 responses: a tenth
    ragged["lengths"] = [[32] * (16 - count) + [256] * count for count in long]
    contenders = {
        "dapo": Contender("dapo", "dapo_decode.py", steady),
        "limit": Contender("limit", "matrix_limit.py", steady),
        "generate": Contender("generate", "generate_decode.py", steady),
    }
    if arguments.peers:
        python = peers_python(arguments.peers)
        contenders["vllm"] = Contender("vllm", "vllm_decode.py", steady | FASTEST, python)
    if not arguments.steady_only:
        contenders["dapo_ragged"] = Contender("dapo_ragged", "dapo_decode.py", ragged)
        if arguments.peers:
            contenders["vllm_ragged"] = Contender("vllm_ragged", "vllm_decode.py", ragged | FASTEST, python)
    compete(list(contenders.values()), arguments.rounds)
    found = {name: median(rates(contender)) for name, contender in contenders.items()}
    ratios = {
        "of_the_matrix_limit": found["dapo"] / found["limit"],
        "to_generate": found["dapo"] / found["generate"],
    }
    if "vllm" in found:
        ratios["to_vllm"] = found["dapo"] / found["vllm"]
    if "dapo_ragged" in found:
        ratios["ragged_to_steady"] = found["dapo_ragged"] / found["dapo"]
    if "vllm_ragged" in found:
        ratios["ragged_to_vllm_ragged"] = found["dapo_ragged"] / found["vllm_ragged"]
    samples = {name: {"tokens_per_s": rates(c), "median": found[name]} for name, c in contenders.items()}
    return conclude("decode", arguments, samples, ratios)


if __name__ == "__main__":
    sys.exit(main())
