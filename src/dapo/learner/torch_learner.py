"""The single-process learner: float32 master weights, AdamW, any transformers causal LM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dapo.algorithm import ObjectiveInputs, importance_weights, kl_estimate, masked, weighted_loss
from dapo.errors import ModelError
from dapo.learner.base import Trace
from dapo.learner.credit import bucket_gradients
from dapo.learner.held import Held, HoldsModel
from dapo.learner.lane_attention import LaneMask, use
from dapo.learner.logprobs import token_logprobs
from dapo.learner.movement import Movement
from dapo.learner.packing import MicroBatch, cut, microbatches
from dapo.learner.settings import LearnerSettings
from dapo.learner.watch import add, averages, watched, weight_sums
from dapo.model.loading import SplitModel
from dapo.neighbours import sequence_importance_weights
from dapo.spans import span
from dapo.types import Batch

Objective = Callable[[ObjectiveInputs], Tensor]


class TorchLearner(HoldsModel):
    """See Learner.

    Args:
        model: a transformers causal LM in float32, whose weights become the master weights.
        settings: see LearnerSettings.
        objective: per-token loss [B, T] of ObjectiveInputs; masking and dividing stay here.
        dtype: float32, or bfloat16 for autocast.
        reference: the starting policy, where a KL penalty needs one.
    """

    def __init__(
        self,
        model: Any,
        settings: LearnerSettings,
        objective: Objective,
        *,
        dtype: torch.dtype = torch.float32,
        reference: Any | None = None,
    ) -> None:
        for policy in filter(None, (model, reference)):
            use(policy, packed=settings.packing == "shared_prompt")
        self.model = model
        self._trained = self._choose_trained()
        self._split = SplitModel(model)
        self._reference_model = None if reference is None else reference.requires_grad_(False)
        self._reference = None if reference is None else SplitModel(reference)
        self._reference_moved = False
        self._unused_reference: dict[str, Tensor] = {}  # of a checkpoint, where no KL asks for one now; kept for later
        self._settings, self._objective, self._dtype = settings, objective, dtype
        self._held = Held()
        if settings.gradient_checkpointing:
            if getattr(model.config, "attention_dropout", 0) or any(
                isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules()
            ):
                raise ModelError("train.gradient_checkpointing: this model has dropout; set it to 0 in its config.json")
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.train()
        self._device = self._place()
        self._optimizer = torch.optim.AdamW(
            self._trained.values(),
            lr=0.0,  # given with each update
            betas=settings.betas,
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
            fused=self._device.type in ("cpu", "cuda"),
        )

    def _choose_trained(self) -> dict[str, Tensor]:
        """What the optimiser moves, by its name in `state_dict`; nothing else needs gradients."""
        return dict(self.model.requires_grad_(True).named_parameters())

    def _place(self) -> torch.device:
        """Where the forward pass runs. A learner that holds its weights otherwise lays them out here."""
        device: torch.device = next(self.model.parameters()).device
        return device

    # --- the seam -------------------------------------------------------------------------------

    @torch.no_grad()
    def logprobs(self, batch: Batch, *, reference: bool = False) -> Tensor:
        """See Learner."""
        split = self._reference if reference else self._split
        if split is None:
            raise ModelError("no reference policy was loaded; set algorithm.kl.place")
        result = torch.zeros(batch.token_ids.shape, dtype=torch.float32)
        for micro in self._microbatches(batch, range(batch.num_rows)):
            with span("log-probs"):
                logprobs_N, _, _ = self._forward(split, micro)
            result[micro.row_N, micro.column_N] = logprobs_N.cpu()
        return result

    @torch.no_grad()
    def reset_reference(self) -> None:
        """See Learner."""
        if self._reference_model is None:
            raise ModelError("no reference policy was loaded; set algorithm.kl.place")
        self._load_reference(dict(self.export_weights()))
        self._optimizer.state.clear()

    def _load_reference(self, weights: Mapping[str, Tensor]) -> None:
        assert self._reference_model is not None
        for name, parameter in self._reference_model.named_parameters():
            parameter.copy_(weights[name])
        self._reference_moved = True

    def cut(self, minibatch: Batch) -> list[list[int]]:
        """See Learner."""
        settings = self._settings
        rows = range(minibatch.num_rows)
        lanes = cut(minibatch, rows, settings.packing, settings.tokens_per_microbatch)
        return [[row for lane in micro for row in lane] for micro in lanes]

    def update(self, minibatch: Batch, learning_rate: float, trace: Trace | None = None) -> dict[str, float]:
        """See Learner."""
        if minibatch.old_logprobs is None:
            raise ValueError("update needs old_logprobs")
        if trace is not None:
            trace.logprobs, trace.collision = torch.zeros(2, *minibatch.token_ids.shape).unbind()
        rows = torch.nonzero(minibatch.loss_tokens > 0).flatten().tolist()
        totals = {"loss/policy": 0.0, "ratio/max": 0.0}
        self._backward(minibatch, rows, totals, trace)
        totals = self._joined(totals, trace)
        with span("optimiser"):
            norm = self._held.norm(self._trained.values()) if rows else 0.0
        finite = norm == norm and norm != float("inf")
        if trace is not None and trace.bucket is not None and finite and norm:
            with span("credit", whole=True):
                backward = partial(self._backward, minibatch)
                trained = list(self._trained.values())
                trace.credit = bucket_gradients(backward, trained, trace.bucket, rows, self._held)
        moved: dict[str, float] = {}
        with span("optimiser"):
            if finite and rows:
                moved = self._step(norm, learning_rate)
            self._optimizer.zero_grad(set_to_none=True)
        return (
            averages(totals, int(minibatch.loss_tokens.sum()))
            | moved
            | {
                "grad/norm": norm,
                "grad/nonfinite": float(not finite),
                "train/learning_rate": learning_rate,
            }
        )

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See Learner."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()

    def state_dict(self) -> dict[str, Tensor]:
        """See Learner: exp_avg and exp_avg_sq of every trained weight, and its step; a reference that was reset."""
        flat: dict[str, Tensor] = {}
        for name, parameter in self._trained.items():
            for key, value in self._optimizer.state[parameter].items():
                flat[f"{key}/{name}"] = value.detach().to("cpu", copy=True)
        if self._reference_moved and self._reference_model is not None:
            for name, parameter in self._reference_model.named_parameters():
                flat[f"{REFERENCE}{name}"] = parameter.detach().to("cpu", copy=True)
        return flat | self._unused_reference

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the optimiser (and a reset reference) as `state_dict` gave them, and nothing else."""
        for name, parameter in self._trained.items():
            own: dict[str, Tensor] = {}
            for key in ("step", "exp_avg", "exp_avg_sq"):
                value = state.get(f"{key}/{name}")
                if value is not None:  # copied, so that no later update writes into the caller's state
                    dtype = value.dtype if key == "step" else parameter.dtype
                    own[key] = value.to(parameter.device, dtype, copy=True)
            if own:
                self._optimizer.state[parameter] = own
            else:
                self._optimizer.state.pop(parameter, None)
        reference = {key.removeprefix(REFERENCE): value for key, value in state.items() if key.startswith(REFERENCE)}
        if reference and self._reference_model is not None:
            self._load_reference(reference)
        elif reference:
            self._unused_reference = {REFERENCE + name: value.to("cpu", copy=True) for name, value in reference.items()}

    def host_weights(self) -> dict[str, Tensor]:
        """See Learner."""
        copies: dict[tuple[int, torch.Size], Tensor] = {}  # tied weights have one address, and stay tied
        return {
            name: copies.setdefault((tensor.data_ptr(), tensor.shape), tensor.detach().to("cpu", copy=True))
            for name, tensor in self.model.state_dict().items()
        }

    def save_hf(self, path: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """See Learner. Experts are written as the model holds them, in one tensor: `restore` knows no other form."""
        given = None if weights is None else dict(weights)
        self.model.save_pretrained(path, state_dict=given, save_original_format=False)

    @torch.no_grad()
    def restore(self, path: Path, state: Mapping[str, Any]) -> None:
        """See Learner."""
        if any(name.startswith(ADAPTERS) for name in state):
            raise ModelError(
                "the checkpoint holds adapters; set learner.lora_rank, lora_alpha and lora_targets as then"
            )
        found = read_weights(path)
        for name, parameter in self.model.named_parameters():
            if name not in found:
                raise ModelError(f"{path}: no weight {name}")
            parameter.copy_(found[name])
        self.load_state_dict(state)

    # --- how it works ---------------------------------------------------------------------------

    def _microbatches(self, batch: Batch, rows: Any) -> Iterator[MicroBatch]:
        settings = self._settings
        return microbatches(batch, list(rows), settings.packing, settings.tokens_per_microbatch)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def _backward(
        self, minibatch: Batch, rows: list[int], totals: dict[str, float] | None = None, trace: Trace | None = None
    ) -> None:
        """Adds the gradient of these rows' share of the loss; adds sums over their loss tokens to `totals`."""
        for micro in self._microbatches(minibatch, rows):
            with span("forward"):
                loss, sums = self._loss(minibatch, micro, trace)
            if totals is not None:
                add(totals, sums)
            with span("backward"):
                loss.backward()  # type: ignore[no-untyped-call]

    def _forward(self, split: SplitModel, micro: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """(logprobs_N, entropy_N, collision_N) of the micro-batch's response tokens, logits made in chunks."""
        device = self._device
        with self._autocast():
            hidden = split.body(
                input_ids=micro.token_ids_nW.to(device),
                position_ids=micro.position_ids_nW.to(device),
                attention_mask=None if micro.layout is None else LaneMask.of(micro.layout, device),
                use_cache=False,
            ).last_hidden_state
            predictors = hidden[micro.input_N.to(device), micro.source_N.to(device)]
            return self._token_logprobs(split, predictors, micro.target_N.to(device))

    def _token_logprobs(self, split: SplitModel, hidden_NH: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Chunk by chunk; too many logits to keep are made again in the backward pass."""
        if not len(target_N):
            nothing = hidden_NH.sum(-1).float()
            return nothing, nothing, nothing
        temperature, size = self._settings.temperature, self._settings.logits_chunk_tokens

        def chunk(hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return token_logprobs(split.head(hidden), target, temperature)

        again = torch.is_grad_enabled() and len(target_N) * split.vocabulary > KEPT_LOGITS
        parts = [
            checkpoint(chunk, hidden, target, use_reentrant=False) if again else chunk(hidden, target)
            for hidden, target in zip(torch.split(hidden_NH, size), torch.split(target_N, size), strict=True)
        ]
        logprobs, entropies, collisions = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(entropies), torch.cat(collisions)

    def _loss(self, minibatch: Batch, micro: MicroBatch, trace: Trace | None = None) -> tuple[Tensor, dict[str, float]]:
        """The micro-batch's share of the loss, and sums over its loss tokens."""
        settings, device = self._settings, self._device
        logprobs_N, entropy_N, collision_N = self._forward(self._split, micro)
        if trace is not None and trace.logprobs is not None and trace.collision is not None:
            trace.logprobs[micro.row_N, micro.column_N] = logprobs_N.detach().cpu()
            trace.collision[micro.row_N, micro.column_N] = collision_N.cpu()
        rows = list(micro.rows)
        part = minibatch.take(rows)
        assert part.old_logprobs is not None
        place = torch.zeros(minibatch.num_rows, dtype=torch.long)
        place[rows] = torch.arange(len(rows))
        index = (place[micro.row_N].to(device), micro.column_N.to(device))
        zeros_BT = torch.zeros(part.token_ids.shape, dtype=torch.float32, device=device)
        logprobs_BT = zeros_BT.index_put(index, logprobs_N)
        entropy_BT = zeros_BT.index_put(index, entropy_N)
        mask_BT = part.loss_mask.to(device)
        old_BT = part.old_logprobs.to(device)
        inputs = ObjectiveInputs(
            logprobs_BT=logprobs_BT,
            old_logprobs_BT=old_BT,
            advantages_BT=part.token_advantages.to(device),
            mask_BT=mask_BT,
            ref_logprobs_BT=None if part.ref_logprobs is None else part.ref_logprobs.to(device),
            selected_BT=None if part.selected is None else part.selected.to(device),
        )
        loss_BT = self._objective(inputs)
        sums: dict[str, float] = {}
        if settings.importance_cap is not None:
            weigh = sequence_importance_weights if settings.importance_level == "sequence" else importance_weights
            weights_BT = weigh(old_BT, part.engine_logprobs.to(device), mask_BT, settings.importance_cap)
            loss_BT = loss_BT * weights_BT
            sums |= weight_sums(weights_BT[mask_BT], settings.importance_cap)
        if settings.kl_coef and inputs.ref_logprobs_BT is not None:
            kl_BT = kl_estimate(logprobs_BT, inputs.ref_logprobs_BT, mask_BT, settings.kl_estimator)
            loss_BT = loss_BT + settings.kl_coef * kl_BT
            sums["policy/kl_to_reference"] = float(kl_BT.detach().sum())
        if settings.entropy_coef:
            loss_BT = loss_BT - settings.entropy_coef * masked(entropy_BT, mask_BT)
        loss = weighted_loss(loss_BT, mask_BT, part.row_weights.to(device))
        sums |= watched(inputs, entropy_BT.detach(), settings)
        sums["loss/policy"] = float(loss.detach())
        return loss, sums

    def _joined(self, totals: dict[str, float], trace: Trace | None) -> dict[str, float]:
        """Sums and trace of all that worked on the mini-batch; here nobody else did."""
        return totals

    def _step(self, norm: float, learning_rate: float) -> dict[str, float]:
        """Clips, steps, and tells how far that went."""
        limit = self._settings.max_grad_norm
        if limit is not None and norm > limit:
            for parameter in self._trained.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(limit / norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        movement = Movement(self._trained.values(), self._held)
        self._optimizer.step()
        return movement.norms()


KEPT_LOGITS = 2**28  # of a micro-batch, 1 GiB in float32: beyond it they are not kept for the backward pass
REFERENCE = "reference/"  # in front of its weights' names in `state_dict`
ADAPTERS = "lora/"  # likewise, of a learner that trains adapters


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's safetensors files."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found.update(load_file(file))
    return found
