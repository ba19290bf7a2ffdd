"""The sharded learner: PyTorch FSDP2. Every rank holds a part of each weight, and works on a part of the rows.

All ranks call the same methods with the same arguments in the same order. What they need to agree on (who takes
which rows, how many passes there are) is a pure function of the batch, so it is not talked about.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from dapo.errors import ConfigError, ModelError
from dapo.learner.base import Trace
from dapo.learner.collectives import Ranks
from dapo.learner.held import Held
from dapo.learner.lora import Adapters, LoraSettings
from dapo.learner.packing import MicroBatch, Packing, build
from dapo.learner.settings import LearnerSettings
from dapo.learner.shard_saving import SavesShards
from dapo.learner.sharded_model import FsdpSettings, shard, sharded_modules
from dapo.learner.sharded_state import ShardedState, here
from dapo.learner.sharing import cuts
from dapo.learner.torch_learner import Objective, TorchLearner
from dapo.learner.watch import add
from dapo.model.loading import SplitModel
from dapo.spans import span
from dapo.types import Batch


class Shards(Held):
    """Trained weights of which each rank holds consecutive rows of the first axis."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def part(self, tensor: Tensor) -> Tensor:
        """See Held."""
        return here(tensor)

    def whole(self, part: Tensor, weight: Tensor) -> Tensor:
        """See Held."""
        assert isinstance(weight, DTensor)
        return DTensor.from_local(
            part, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
        )

    def sum(self, value: float) -> float:
        """See Held."""
        return self._ranks.sum(value)

    def norm(self, weights: Iterable[Tensor]) -> float:
        """See Held."""
        parts = [self.part(w.grad) for w in weights if w.grad is not None]
        own = sum(float(torch.linalg.vector_norm(part)) ** 2 for part in parts)
        return math.sqrt(self.sum(own))


class FsdpLearner(SavesShards, TorchLearner):
    """See Learner; every method but `cut`, `parameters` and `save_hf` with weights is collective.

    Metrics, log-probs and traces are equal on all ranks. `export_weights` gives whole weights on every rank, one at
    a time; `host_weights` and `state_dict` are complete on rank 0 and empty elsewhere; `save_hf` and `write_state`
    write from rank 0 (and each rank its part of the optimiser's state), to a disk that all ranks see. `parameters`
    gives this rank's part of each weight.

    What an objective raises on one rank is raised as a ValueError on all. Any other exception on one rank leaves the
    others waiting for it, until its process ends or the process group's timeout does; from a forward or backward pass
    it is never a ValueError or an OSError, which `Leader` takes for a refusal.

    Args:
        model: a transformers causal LM in float32, the same on every rank. It is sharded in place.
        settings, objective, reference: see TorchLearner. The reference is sharded likewise.
        dtype: float32, or bfloat16, in which weights are then gathered and multiplied; gradients are reduced in
            float32.
        sharding: see FsdpSettings.
        lora: see LoraSettings; None where all weights are trained.
        device: where to compute; the model's own where None, which may stay on the CPU until it is sharded.

    Raises ConfigError without a process group.
    """

    def __init__(
        self,
        model: Any,
        settings: LearnerSettings,
        objective: Objective,
        *,
        dtype: torch.dtype = torch.float32,
        reference: Any | None = None,
        sharding: FsdpSettings = FsdpSettings(),
        lora: LoraSettings | None = None,
        device: torch.device | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise ConfigError("a sharded learner needs a process group; see torch.distributed.init_process_group")
        self.ranks = Ranks()
        self._sharding, self._wanted_device = sharding, device
        self._adapters = None if lora is None else Adapters(model, lora)
        self._roots: dict[int, Any] = {}
        self._in_a_pass = False
        self._result: tuple[Tensor, Tensor, Tensor] | None = None
        super().__init__(model, settings, objective, dtype=dtype, reference=reference)
        self._held = Shards(self.ranks)

    @property
    def summary(self) -> str | None:
        """How much is trained, in one line, where it is not all."""
        return None if self._adapters is None else self._adapters.summary(self.model, self._trained)

    def _choose_trained(self) -> dict[str, Tensor]:
        return super()._choose_trained() if self._adapters is None else self._adapters.chosen(self.model)

    # --- sharding -------------------------------------------------------------------------------

    def _place(self) -> torch.device:
        device = self._wanted_device or next(self.model.parameters()).device
        self._mesh = init_device_mesh(device.type, (self.ranks.count,))
        self._roots[id(self._split)] = shard(self.model, self._mesh, self._sharding, self._dtype)
        if self._reference is not None:
            self._roots[id(self._reference)] = shard(self._reference_model, self._mesh, self._sharding, self._dtype)
        self._trained = self._choose_trained()
        self._state = ShardedState(self.ranks, self._mesh, device)
        return device

    def _reshard(self) -> None:
        self._in_a_pass, self._result = False, None
        for root in self._roots.values():
            for module in sharded_modules(root):
                module.reshard()

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # weights are gathered in the compute type

    def _forward(self, split: SplitModel, micro: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        run = partial(super()._forward, split, micro)
        self._in_a_pass = True
        with self._in_step():
            self._result = result = self._roots[id(split)](run)
        return result  # type: ignore[no-any-return]

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """What fails here fails where the other ranks gather or reduce, and wait for this one.

        A ValueError or an OSError would be taken for a refusal, which all ranks make alike and go on from.
        """
        try:
            yield
        except (ValueError, OSError) as error:
            if self.ranks.count == 1:
                raise
            raise RuntimeError(f"rank {self.ranks.rank} of {self.ranks.count} failed: {_told(error)}") from error

    # --- the seam -------------------------------------------------------------------------------

    @torch.no_grad()
    def logprobs(self, batch: Batch, *, reference: bool = False) -> Tensor:
        """See Learner."""
        split = self._reference if reference else self._split
        if split is None:
            raise ModelError("no reference policy was loaded; set algorithm.kl.place")
        result = torch.zeros(batch.token_ids.shape, dtype=torch.float32)
        for micro, _ in self._passes(batch, list(range(batch.num_rows))):
            with span("log-probs"):
                logprobs_N, _, _ = self._forward(split, micro or nothing(self._settings.packing))
            if micro is not None:
                result[micro.row_N, micro.column_N] = logprobs_N.cpu()
        self._reshard()
        return self.ranks.add(result)

    def cut(self, minibatch: Batch) -> list[list[int]]:
        """See Learner: the micro-batches of all ranks, one rank after the other. They depend on how many there are."""
        ranks = self._cuts(minibatch, list(range(minibatch.num_rows)))
        return [[row for lane in micro for row in lane] for own in ranks for micro in own]

    def update(self, minibatch: Batch, learning_rate: float, trace: Trace | None = None) -> dict[str, float]:
        """See Learner."""
        try:
            return super().update(minibatch, learning_rate, trace)
        except BaseException:
            self._optimizer.zero_grad(set_to_none=True)
            root = self._roots[id(self._split)]
            if self._in_a_pass and hasattr(root, "reset_iter_state"):
                root.reset_iter_state()
            raise
        finally:
            self._reshard()

    # --- how it works ---------------------------------------------------------------------------

    def _cuts(self, batch: Batch, rows: list[int]) -> list[list[list[tuple[int, ...]]]]:
        settings = self._settings
        return cuts(batch, rows, settings.packing, settings.tokens_per_microbatch, self.ranks.count)

    def _passes(self, batch: Batch, rows: list[int]) -> Iterator[tuple[MicroBatch | None, bool]]:
        """(this rank's micro-batch, or None, whether it is the last), as often as the ranks have to gather together.

        Where blocks are freed after their forward pass every pass gathers and reduces, so all ranks make the same
        number; else weights are gathered in the first and gradients reduced in the last, and each rank needs one.
        """
        ranks = self._cuts(batch, rows)
        own = ranks[self.ranks.rank]
        count = max(1, max(map(len, ranks)) if self._sharding.reshard_after_forward else len(own))
        for number in range(count):
            micro = build(batch, own[number], self._settings.packing) if number < len(own) else None
            yield micro, number == count - 1

    def _backward(
        self, minibatch: Batch, rows: list[int], totals: dict[str, float] | None = None, trace: Trace | None = None
    ) -> None:
        if not rows:
            return
        root, failure = self._roots[id(self._split)], ""
        for micro, last in self._passes(minibatch, rows):
            if not self._sharding.reshard_after_forward:
                root.set_requires_gradient_sync(last)
                root.set_reshard_after_backward(last)
                root.set_is_last_backward(last)
            with span("forward"):
                loss, sums, failed = self._part(minibatch, micro, trace)
            failure = failure or failed
            if totals is not None:
                add(totals, sums)
            with span("backward"), self._in_step():
                loss.backward()  # type: ignore[no-untyped-call]
        if failure := next(filter(None, self.ranks.gather(failure)), ""):
            raise ValueError(failure)

    def _part(
        self, minibatch: Batch, micro: MicroBatch | None, trace: Trace | None
    ) -> tuple[Tensor, dict[str, float], str]:
        """(loss, sums, what went wrong) of one pass.

        An objective that fails does so behind the forward pass. The loss is of nothing then, so that this rank can go
        on in step with the others until all are told.
        """
        self._result = None
        failure = ""
        try:
            if micro is not None:
                return *self._loss(minibatch, micro, trace), ""
            self._forward(self._split, nothing(self._settings.packing))
        except Exception as error:
            if self.ranks.count == 1 or self._result is None:
                raise
            failure = f"rank {self.ranks.rank} of {self.ranks.count}: {_told(error)}"
        assert self._result is not None
        logprobs_N, entropy_N, _ = self._result
        return (logprobs_N.sum() + entropy_N.sum()) * 0.0, {}, failure

    def _joined(self, totals: dict[str, float], trace: Trace | None) -> dict[str, float]:
        if trace is not None and trace.logprobs is not None and trace.collision is not None:
            self.ranks.add(trace.logprobs)
            self.ranks.add(trace.collision)
        everybody: dict[str, float] = {}
        for own in self.ranks.gather(totals):
            add(everybody, own)
        return everybody

    # --- whole weights --------------------------------------------------------------------------

    @torch.no_grad()
    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See Learner. Each rank has to take all of them."""
        for name, parameter in self.model.named_parameters():
            plain = self._plain_name(name)
            if plain is not None:
                yield plain, self._whole(plain, parameter)

    def _plain_name(self, name: str) -> str | None:
        return name if self._adapters is None else self._adapters.plain_name(name)

    def _whole(self, plain: str, parameter: Tensor) -> Tensor:
        """A weight as a plain model has it."""
        whole = self._state.whole(parameter)
        return whole if self._adapters is None else self._adapters.merged(plain, whole, self._state.whole)

    def parameters(self) -> Iterator[tuple[str, Tensor, bool]]:
        """See Learner: this rank's rows of each weight."""
        for name, parameter in self.model.named_parameters():
            yield name, here(parameter), parameter.requires_grad

    @torch.no_grad()
    def host_weights(self) -> dict[str, Tensor]:
        """See Learner. Complete on rank 0, empty elsewhere."""
        tied = {name: id(p) for name, p in self.model.named_parameters(remove_duplicate=False)}
        copies: dict[int, Tensor] = {}
        result: dict[str, Tensor] = {}
        for name, tensor in self.model.state_dict().items():
            plain = self._plain_name(name)
            if plain is None:
                continue
            key = tied.get(name, id(tensor))
            if key not in copies:
                whole = self._whole(plain, tensor)
                copies[key] = whole.to("cpu", copy=True) if self.ranks.first else whole.new_empty(0)
            result[plain] = copies[key]
        return result if self.ranks.first else {}

    @torch.no_grad()
    def reset_reference(self) -> None:
        """See Learner."""
        if self._reference_model is None:
            raise ModelError("no reference policy was loaded; set algorithm.kl.place")
        reference = dict(self._reference_model.named_parameters())
        for name, weight in self.export_weights():
            self._state.fill(reference[name], weight)
        self._reference_moved = True
        self._optimizer.state.clear()


def _told(error: Exception) -> str:
    """An error and where it was raised, in one line: its traceback stays on the rank it is of."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def nothing(packing: Packing) -> MicroBatch:
    """Two tokens that count for nothing: a pass of a rank that has none left, in step with those that have."""
    tokens = torch.zeros(1, 2)
    row = Batch(
        draw=torch.tensor([0]),
        prompt_lengths=torch.tensor([1]),
        lengths=torch.tensor([2]),
        token_ids=tokens.long(),
        loss_mask=tokens.bool(),
        engine_logprobs=tokens,
        advantages=tokens[:, 0],
        row_weights=tokens[:, 0].double(),
    )
    return build(row, [(0,)], packing)
