"""One whole step of TRL's GRPOTrainer: generation by transformers, reward, update.

    PYTHON contenders/trl_step.py SPEC.json

The spec: {"model": folder, "dtype": "float32" or "bfloat16", "threads": 2, "seed": 0, "learning_rate": 1e-6,
"prompts": [text, ...], "responses_per_prompt": G, "max_new_tokens": 16, "microbatch": rows of a micro-batch of
the update, or a list to take the fastest of} and, if wanted, "gradient_checkpointing" (false) and "probes" (1).
A step takes all prompts, G responses each, generated as one batch, sampled at temperature 1 from the whole
vocabulary; nothing is sampled again when the rewards of a group are equal.

In the measured time: from the trainer's on_step_begin to its on_step_end, which is before tokenising the
prompts and after the optimiser and zero_grad. Out of it: loading, the data loader, the first step.
"tokens" are the response tokens of the step. A play is the trainer's next step, so the policy does change.
"""

from __future__ import annotations

from typing import Any

from serve import claim_stdout, read_spec, use_threads


def reward(completions: list[str], **others: Any) -> list[float]:
    """How many different characters a response has, against its length: cheap, and it spreads."""
    return [len(set(text)) / (len(text) + 1) for text in completions]


def make_trainer(spec: dict[str, Any], microbatch: int, steps: int, turns: Any) -> Any:
    """A GRPOTrainer that takes every prompt in every step."""
    from datasets import Dataset
    from trl_turns import Trainer, settings

    rows = len(spec["prompts"]) * spec["responses_per_prompt"]
    trainer = Trainer(
        model=spec["model"],
        reward_funcs=reward,
        args=settings(
            spec, microbatch, rows, steps, scale_rewards="group", max_completion_length=spec["max_new_tokens"]
        ),
        train_dataset=Dataset.from_dict({"prompt": spec["prompts"] * 1000}),
        callbacks=[turns],
    )

    def report() -> dict[str, Any]:
        tokens = sum(int(batch["completion_mask"].sum()) for batch in trainer._buffered_inputs)
        return {"tokens": tokens, "loss": trainer.step_loss()}

    turns.report = report
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
    rows = len(spec["prompts"]) * spec["responses_per_prompt"]
    ready = {"trl": trl.__version__, "torch": torch.__version__, "threads": torch.get_num_threads()}
    run(spec, rows, ready, lambda microbatch, steps, turns: make_trainer(spec, microbatch, steps, turns))


if __name__ == "__main__":
    main()
