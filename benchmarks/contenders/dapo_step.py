"""Whole steps of a training run; the spec is trl_step's ("microbatch" is TRL's alone).

    PYTHON contenders/dapo_step.py SPEC.json

The run is what `dapo train` runs: sampling, grading, the update, the weights' way to the engine, the
metrics and rollouts that are written. In the measured time: from one finished step to the next. A play is
the run's next step, so the policy does change. Out of it: loading, the first step.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from serve import claim_stdout, peak_gb, read_spec, use_threads

REWARD = '''
def reward(completions, **others):
    """How many different characters a response has, against its length."""
    return [len(set(text)) / (len(text) + 1) for text in completions]
'''


def settings(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The configuration of the run."""
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": prompt, "answer": ""}) + "\n" for prompt in spec["prompts"]))
    (folder / "reward.py").write_text(REWARD)
    return {
        "name": "step",
        "model.path": spec["model"],
        "model.device": "cpu",
        "model.dtype": spec["dtype"],
        "data.source": str(data),
        "data.template": "raw",
        "data.max_prompt_tokens": 64,
        "sampling.prompts_per_step": len(spec["prompts"]),
        "sampling.responses_per_prompt": spec["responses_per_prompt"],
        "sampling.filter": "off",
        "sampling.max_response_tokens": spec["max_new_tokens"],
        "reward.functions": [f"{folder / 'reward.py'}:reward"],
        "reward.overlong": "none",
        "algorithm.old_logprobs": "engine",
        "train.num_steps": 100_000,
        "train.updates_per_step": 1,
        "train.learning_rate": spec["learning_rate"],
        "train.warmup_rollout_steps": 0,
        "train.seed": spec["seed"],
        "checkpoint.every": None,
        "eval.data": [],
        "engine.slots": 64,
    }


def main() -> None:
    """Trains; before each step but the first it waits for a round."""
    spec = read_spec()
    use_threads(spec["threads"])
    claim_stdout()
    import serve
    import torch

    from dapo import build, loop
    from dapo.config.load import load_config
    from dapo.run.directory import RunDirectory
    from dapo.run.view import View
    from dapo.types import StepReport, TrainState

    torch.set_num_threads(spec["threads"])
    begun = 0.0

    def on_step(report: StepReport) -> None:
        nonlocal begun
        if report.step == 1:
            serve.say({"ready": {"torch": torch.__version__, "threads": torch.get_num_threads()}})
        else:
            spent = time.perf_counter() - begun
            serve.say({"seconds": spent, "tokens": report.metrics["tokens/generated"], "peak_gb": peak_gb()})
        if sys.stdin.readline().strip() != "go":
            raise KeyboardInterrupt
        begun = time.perf_counter()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = load_config(settings(spec, folder))
        run = RunDirectory.create(config.name, str(folder / "run"))
        parts = build.build(config, run, View(config.train.num_steps, quiet=True))
        try:
            loop.train(parts, TrainState(), on_step)
        except KeyboardInterrupt:
            run.release()


if __name__ == "__main__":
    main()
