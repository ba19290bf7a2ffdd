"""The update of TRL's GRPOTrainer on rollouts that are given.

    PYTHON contenders/trl_train.py SPEC.json

The spec: {"model": folder, "dtype": "float32" or "bfloat16", "threads": 2, "seed": 0, "learning_rate": 1e-6,
"responses_per_prompt": G, "rows": [{"prompt": [ids], "response": [ids], "advantage": 0.5, "draw": 0}, ...],
"microbatch": rows of a micro-batch, or a list to take the fastest of} and, if wanted,
"gradient_checkpointing" (false) and "probes" (1: steps to try each micro-batch with). Rows of one "draw" are
the G responses of one prompt, and their advantages have mean 0.

The trainer runs as it is, through `train()`; its `rollout_func` hands over the rows, and its reward function
returns their advantages, which come out unchanged with scale_rewards="none". In the measured time: from when
`rollout_func` returns until the optimiser has stepped and gradients are zeroed, that is TRL's padding, its
rewards and metrics, forward and backward of all micro-batches, clipping to norm 1, AdamW. Out of it:
generation, loading, the data loader, one warm-up step.
"""

from __future__ import annotations

import time
from typing import Any

from serve import claim_stdout, read_spec, use_threads


def ordered(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows, those of one draw together, as the trainer wants them."""
    rows = sorted(spec["rows"], key=lambda row: row["draw"])
    size = spec["responses_per_prompt"]
    for start in range(0, len(rows), size):
        group = rows[start : start + size]
        if len(group) < size or len({row["draw"] for row in group}) != 1:
            raise SystemExit(f"trl_train: each draw must have {size} rows")
        if abs(sum(row["advantage"] for row in group)) > 1e-3 * size:
            raise SystemExit("trl_train: the advantages of each draw must have mean 0")
    return rows


def make_trainer(spec: dict[str, Any], rows: list[dict[str, Any]], microbatch: int, steps: int, turns: Any) -> Any:
    """A GRPOTrainer whose every step trains on exactly these rows."""
    from datasets import Dataset
    from trl_turns import Trainer, settings

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        result = {
            "prompt_ids": [row["prompt"] for row in rows],
            "completion_ids": [row["response"] for row in rows],
            "logprobs": None,
        }
        turns.start = time.perf_counter()
        return result

    def rewards(completion_ids: list[list[int]], **others: Any) -> list[float]:
        if completion_ids != [row["response"] for row in rows]:
            raise RuntimeError("the trainer holds other rollouts than it was given")
        return [row["advantage"] for row in rows]

    prompts = len(rows) // spec["responses_per_prompt"]
    longest = max(len(row["response"]) for row in rows)
    trainer = Trainer(
        model=spec["model"],
        reward_funcs=rewards,
        args=settings(spec, microbatch, len(rows), steps, scale_rewards="none", max_completion_length=longest),
        train_dataset=Dataset.from_dict({"prompt": [str(index) for index in range(prompts)] * 1000}),
        rollout_func=rollouts,
        callbacks=[turns],
    )
    tokens = sum(len(row["response"]) for row in rows)
    turns.report = lambda: {"tokens": tokens, "loss": trainer.step_loss()}
    return trainer


def main() -> None:
    """Loads, finds the fastest micro-batch, warms up and serves."""
    spec = read_spec()
    use_threads(spec["threads"])
    claim_stdout()
    import torch
    import trl
    from trl_turns import run

    torch.set_num_threads(spec["threads"])
    rows = ordered(spec)
    ready = {"trl": trl.__version__, "torch": torch.__version__, "threads": torch.get_num_threads()}
    run(spec, len(rows), ready, lambda microbatch, steps, turns: make_trainer(spec, rows, microbatch, steps, turns))


if __name__ == "__main__":
    main()
