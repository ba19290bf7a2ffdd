"""An update of the learner on rollouts that are given; the spec is trl_train's ("microbatch" is TRL's alone).

    PYTHON contenders/dapo_train.py SPEC.json

In the measured time: laying out, forward, backward, clipping, AdamW. Out of it: loading, the log-probs that
stand for the engine's, one warm-up update.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from serve import claim_stdout, read_spec, serve, use_threads


def make_batch(rows: list[dict[str, Any]]) -> Any:
    """The rows as a batch whose loss is the mean over its response tokens."""
    import torch

    from dapo.types import Batch

    width = max(len(row["prompt"]) + len(row["response"]) for row in rows)
    token_ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, row in enumerate(rows):
        sequence = row["prompt"] + row["response"]
        token_ids[index, : len(sequence)] = torch.tensor(sequence)
        mask[index, len(row["prompt"]) : len(sequence)] = True
    return Batch(
        draw=torch.tensor([row["draw"] for row in rows]),
        prompt_lengths=torch.tensor([len(row["prompt"]) for row in rows]),
        lengths=torch.tensor([len(row["prompt"]) + len(row["response"]) for row in rows]),
        token_ids=token_ids,
        loss_mask=mask,
        engine_logprobs=torch.zeros(mask.shape),
        advantages=torch.tensor([row["advantage"] for row in rows]),
        row_weights=torch.full((len(rows),), 1.0 / int(mask.sum()), dtype=torch.float64),
    )


def main() -> None:
    """Loads, warms up and serves."""
    spec = read_spec()
    use_threads(spec["threads"])
    claim_stdout()
    import torch

    from dapo.algorithm import dapo_objective
    from dapo.config.schema import ModelConfig
    from dapo.learner.settings import LearnerSettings
    from dapo.learner.torch_learner import TorchLearner
    from dapo.model.loading import load_model

    torch.set_num_threads(spec["threads"])
    model = load_model(ModelConfig(path=spec["model"], device="cpu"), torch.float32, torch.device("cpu"))
    objective = partial(dapo_objective, clip_low=0.2, clip_high=0.28)
    learner = TorchLearner(model, LearnerSettings(), objective, dtype=getattr(torch, spec["dtype"]))
    batch = make_batch(spec["rows"])
    batch = replace(batch, old_logprobs=learner.logprobs(batch))

    def play() -> dict[str, Any]:
        start = time.perf_counter()
        metrics = learner.update(batch, spec["learning_rate"])
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "tokens": int(batch.loss_mask.sum()), "loss": metrics["loss/policy"]}

    first_loss = play()["loss"]  # later ones are of a policy that has moved away from old_logprobs
    serve({"torch": torch.__version__, "threads": torch.get_num_threads(), "first_loss": first_loss}, play)


if __name__ == "__main__":
    main()
