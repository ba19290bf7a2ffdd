"""The seam of learners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dapo.types import Batch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Gradients of the buckets b of a mini-batch's rows beside the whole gradient g = sum_b g_b, before clipping.

    norm: |g|. buckets: b -> (<g_b, g>, |g_b|).
    """

    norm: float
    buckets: Mapping[int, tuple[float, float]]


@dataclass(slots=True)
class Trace:
    """What an update saw token by token, filled in by the learner: the mini-batch's rows, on the CPU.

    bucket: i64 [B], or None. Where it is given, `credit` is filled in: rows of one number are a bucket.
    logprobs, collision: f32 [B, T], 0 outside responses that have loss tokens: log pi(y) and sum_v pi_v^2 by the
        weights before the step.
    credit: None where it wasn't asked for, or where the gradient is zero or not finite.
    """

    bucket: Tensor | None = None
    logprobs: Tensor | None = None
    collision: Tensor | None = None
    credit: Credit | None = None


NUMBERS = 64  # of a weight, spread over it


def weight_numbers(weight: Tensor) -> Tensor:
    """A copy of up to NUMBERS numbers of a weight, by which checks see whether it moved."""
    flat = weight.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // NUMBERS)][:NUMBERS].clone()


class Learner(Protocol):
    """Holds the policy's master weights and its optimiser."""

    def logprobs(self, batch: Batch, *, reference: bool = False) -> Tensor:
        """f32 [B, T] on the CPU: log-probabilities of all response tokens, 0 elsewhere.

        `reference`: of the starting policy (only where a KL penalty asked for one).
        """

    def reset_reference(self) -> None:
        """Makes the present policy the reference, and starts the optimiser afresh (ProRL, arXiv 2505.24864).

        Doing it twice is doing it once. `state_dict` holds a reference that is not the starting policy.
        """

    def cut(self, minibatch: Batch) -> list[list[int]]:
        """Rows of each micro-batch that `update` would run; every row exactly once."""

    def update(self, minibatch: Batch, learning_rate: float, trace: Trace | None = None) -> dict[str, float]:
        """One optimiser step on sum(row_weights * loss). Returns metrics by name, and fills in `trace`.

        The batch brings old_logprobs and row_weights. A non-finite gradient skips the step and
        reports grad/nonfinite = 1. An exception leaves weights and optimiser as they were.
        """

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight of the policy by its plain Hugging Face name, one at a time; adapters are merged into them."""

    def parameters(self) -> Iterator[tuple[str, Tensor, bool]]:
        """(name, weight, whether updates move it) of every weight, as it is held: adapters beside their base."""

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of what `save_hf` does not write, in host memory: flat, name -> tensor.

        The optimiser's state. With adapters also A and B themselves, as lora/NAME.
        """

    def restore(self, path: Path, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint: `path` of `save_hf`, `state` of `state_dict`, at the same instant.

        The next updates are the same bits as if the learner that was saved had gone on. Nothing of this learner's
        own training stays, and later updates write into neither argument. Master weights come from `path`, exactly.
        With adapters the base is not restored: it is what this learner was made of, and has to be what the saved
        one was made of (the run's starting weights). A and B come from `state`; `path`, whose weights are merged
        and so rounded, is only compared with the outcome. Raises ModelError when the two do not fit this learner.
        """

    def host_weights(self) -> dict[str, Tensor]:
        """A copy of the policy's weights in host memory: no later update changes it. Tied ones share storage.

        As `export_weights`, but with every name of a tied weight, and with the buffers that a folder holds.
        """

    def save_hf(self, path: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Writes a Hugging Face folder (float32 safetensors) of what `host_weights` gave, or of the present weights.

        With `weights` it may be called from another thread while `update` runs.
        """


@runtime_checkable
class SavesItself(Protocol):
    """Of a learner whose weights or moments are too many for one process: it writes and reads checkpoints in parts.

    Saving then waits for it; other learners are copied to host memory, and written behind the run's back.
    """

    def write_state(self, folder: Path) -> None:
        """Writes all that `read_state` reads: `model/` (a Hugging Face folder, float32) and `optimizer/`.

        What is on the disk has been read back when it returns. Raises OSError.
        """

    def read_state(self, folder: Path) -> None:
        """`Learner.restore` from a checkpoint's folder, whoever wrote it. Raises ModelError."""
