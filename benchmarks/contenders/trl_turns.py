"""How a TRL trainer takes its optimiser steps one at a time, when told to; shared by trl_train and trl_step.

The trainer runs in the main thread. A callback stops it at the beginning of each step until a round is asked
for; a second thread serves stdin and does nothing while the trainer works. The first step of a trainer, which
allocates AdamW's state, is a warm-up and is never reported.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from serve import serve
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

ROUNDS = 100_000  # more than anyone plays


class Over(Exception):
    """Nobody asks for another round."""


class Turns(TrainerCallback):
    """Times the steps of a trainer. With `ready`, it serves them; without, they follow one another."""

    def __init__(self, ready: dict[str, Any] | None = None) -> None:
        self.ready = ready
        self.seconds: list[float] = []
        self.start = 0.0
        self.report: Callable[[], dict[str, Any]] = dict
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Before the rollouts are generated."""
        if self.ready is not None and state.global_step > 0:
            if state.global_step == 1:
                threading.Thread(target=self._serve, daemon=True).start()
            if not self._asked.get():
                raise Over
        self.start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After the optimiser, the learning rate's schedule and zero_grad."""
        seconds = time.perf_counter() - self.start
        if state.global_step == 1:
            return
        self.seconds.append(seconds)
        if self.ready is not None:
            self._answers.put({"seconds": seconds, **self.report()})

    def _serve(self) -> None:
        serve(self.ready or {}, self._play)
        self._asked.put(False)

    def _play(self) -> dict[str, Any]:
        self._asked.put(True)
        return self._answers.get()


class Trainer(GRPOTrainer):
    """GRPOTrainer as it is; it only notes the losses of a step's micro-batches."""

    losses: list[Any]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """One micro-batch."""
        loss = super().training_step(*args, **kwargs)
        if (self._step - 1) % self.args.gradient_accumulation_steps == 0:
            self.losses = []
        self.losses.append(loss)
        return loss

    def step_loss(self) -> float:
        """The loss of the step just taken: TRL divides each micro-batch by the tokens of them all."""
        return float(sum(self.losses))


def settings(spec: dict[str, Any], microbatch: int, rows: int, steps: int, **more: Any) -> GRPOConfig:
    """DAPO's loss on `rows` rollouts a step, in micro-batches of this many rows.

    float32 is plain float32; bfloat16 is what TRL does by itself: float32 weights, and autocast. As many
    micro-batches a step as a generation holds, and one iteration: TRL then skips the pass for old log-probs.
    """
    folder = tempfile.mkdtemp(prefix="contender-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return GRPOConfig(
        output_dir=folder,
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        bf16=spec["dtype"] == "bfloat16",
        use_cpu=True,
        seed=spec["seed"],
        loss_type="dapo",
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        num_iterations=1,
        temperature=1.0,
        num_generations=spec["responses_per_prompt"],
        per_device_train_batch_size=microbatch,
        gradient_accumulation_steps=rows // microbatch,
        steps_per_generation=rows // microbatch,
        gradient_checkpointing=spec.get("gradient_checkpointing", False),
        learning_rate=spec["learning_rate"],
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        max_steps=steps,
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **more,
    )


def run(spec: dict[str, Any], rows: int, ready: dict[str, Any], build: Callable[[int, int, Turns], Trainer]) -> None:
    """Finds the fastest of the spec's micro-batches by one step each, then serves with it until stdin ends.

    `build` makes a trainer from the rows of a micro-batch, the most steps, and the turns it is to take.
    """
    wanted = spec["microbatch"] if isinstance(spec["microbatch"], list) else [spec["microbatch"]]
    sizes = [size for size in wanted if rows % size == 0]
    found: dict[int, float] = {}
    if len(sizes) > 1:
        for size in sizes:
            turns = Turns()
            build(size, 1 + spec.get("probes", 1), turns).train()
            found[size] = min(turns.seconds)
            gc.collect()
    best = min(found, key=lambda size: found[size]) if found else sizes[0]
    turns = Turns({**ready, "microbatch": best, "microbatch_seconds": {str(k): round(v, 3) for k, v in found.items()}})
    with contextlib.suppress(Over):
        build(best, 1 + ROUNDS, turns).train()
