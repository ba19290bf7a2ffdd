"""A run of `dapo train` on one-digit sums until a step's sampled responses are right often enough.

PYTHON contenders/dapo_sums.py SPEC.json
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from serve import claim_stdout, read_spec, serve, use_threads


def settings(spec: dict[str, Any], folder: Path, seed: int) -> dict[str, Any]:
    """The configuration of the run."""
    rows = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(10) for b in range(10)]
    data = folder / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "name": "sums",
        "model.path": spec["model"],
        "model.device": "cpu",
        "model.dtype": spec["dtype"],
        "data.source": str(data),
        "data.system": "Answer with a number.",
        "data.max_prompt_tokens": 64,
        "sampling.prompts_per_step": 16,
        "sampling.responses_per_prompt": 8,
        "sampling.gen_prompts": 8,
        "sampling.max_rounds": 12,
        "sampling.on_exhausted": "train_short",
        "sampling.max_response_tokens": 12,
        "reward.extract": ["last_number"],
        "reward.overlong": "none",
        "algorithm.old_logprobs": "engine",
        "train.num_steps": spec["most_steps"],
        "train.updates_per_step": 2,
        "train.learning_rate": spec["learning_rate"],
        "train.warmup_rollout_steps": 0,
        "train.weight_decay": 0.0,
        "train.tokens_per_microbatch": 2048,
        "train.seed": seed,
        "checkpoint.every": None,
        "eval.data": [],
        "engine.slots": 64,
    }


class Reached(Exception):
    """Often enough."""


def main() -> None:
    """Loads what is shared, and serves."""
    spec = read_spec()
    use_threads(spec["threads"])
    claim_stdout()
    import torch

    from dapo import build, loop
    from dapo.config.load import load_config
    from dapo.run.directory import RunDirectory
    from dapo.run.view import View
    from dapo.types import StepReport, TrainState

    torch.set_num_threads(spec["threads"])
    seeds = itertools.count()

    def play() -> dict[str, Any]:
        accuracy: list[float] = []

        def on_step(report: StepReport) -> None:
            accuracy.append(report.metrics["sampled/accuracy"])
            if accuracy[-1] >= spec["target"]:
                raise Reached

        with tempfile.TemporaryDirectory() as name:
            config = load_config(settings(spec, Path(name), next(seeds)))
            run = RunDirectory.create(config.name, str(Path(name) / "run"))
            parts = build.build(config, run, View(config.train.num_steps, quiet=True))
            start = time.perf_counter()
            try:
                loop.train(parts, TrainState(), on_step)
            except Reached:
                pass
            finally:
                run.release()
            seconds = time.perf_counter() - start
        return {"seconds": seconds, "accuracy": accuracy}

    serve({"torch": torch.__version__, "threads": torch.get_num_threads()}, play)


if __name__ == "__main__":
    main()
