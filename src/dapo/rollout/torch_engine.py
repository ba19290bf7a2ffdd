"""The embedded engine: continuous batching on an unmodified transformers model.

A draw's prompt is prefilled once, attending to nothing else (so its keys do not depend on what
else is in flight), and copied into the slots of its responses. Every step decodes one token in each occupied slot;
a finished response leaves at once, the last occupied slot moves into its place, and waiting
responses enter. Rows per step are a multiple of 8, at least 8, so a row's result does not depend
on how many others there are (to rounding).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dapo.errors import EngineError
from dapo.rng import Purpose, uniform
from dapo.rollout.base import check_request
from dapo.rollout.prefill import Prefill, Prefilled
from dapo.rollout.sampler import sample
from dapo.rollout.slot_cache import ATTENTION, READ_BLOCK, SlotCache, register
from dapo.rollout.steady import steady
from dapo.rollout.stop_strings import ends
from dapo.rollout.weights import EngineWeights
from dapo.spans import span
from dapo.types import Finish, FinishedDraw, Prompt, Response, SamplingParams

ROW_BLOCK = 8  # rows per step are a multiple of this
POLL_SECONDS = 1.0  # after which poll comes back even with nothing finished


@dataclass(slots=True)
class _Draw:
    """A draw in flight."""

    draw: int
    prompt: Prompt
    params: SamplingParams
    remaining: int
    done: dict[int, Response] = field(default_factory=dict)
    prefilled: Prefilled | None = None  # until the last of its responses has entered


@dataclass(slots=True)
class _Row:
    """A response being decoded in a slot."""

    owner: _Draw
    g: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Where the latest token's key goes: prompt tokens + tokens sampled - 1."""
        return len(self.owner.prompt.token_ids) + len(self.tokens) - 1


def _prefilled(row: _Row) -> Prefilled:
    assert row.owner.prefilled is not None
    return row.owner.prefilled


class TorchEngine:
    """See RolloutEngine. Reproducible in float32 on a CPU where all matrices are packed (see EngineWeights): the same
    draw gives the same tokens and log-probs, bit for bit, alone and in company. Elsewhere nothing is promised.

    Args:
        model: a transformers causal LM of the engine's own; its weights are overwritten by
            `load_weights` and its attention function is replaced.
        eos_ids: tokens that end a response.
        slots: responses decoded at one time, at least 8.
        max_tokens: longest prompt + response.
        decode: token ids to text, for stop strings.
    """

    def __init__(
        self,
        model: Any,
        *,
        eos_ids: Collection[int],
        slots: int,
        max_tokens: int,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        if slots < ROW_BLOCK:
            raise EngineError(f"engine.slots = {slots}: at least {ROW_BLOCK}")
        register()
        model.set_attn_implementation(ATTENTION)
        self._model = model.eval()
        self._eos = frozenset(eos_ids)
        self._decode = decode
        self._capacity = -(-slots // ROW_BLOCK) * ROW_BLOCK
        self._slots = slots
        self._max_tokens = max_tokens
        parameter = next(model.parameters())
        self._device, self._dtype = parameter.device, parameter.dtype
        steady(model)
        self._weights = EngineWeights(model)
        plain = self._device.type == "cpu" and self._dtype == torch.float32
        self.reproducible = plain and self._weights.all_packed
        self._prefill = Prefill(model)
        positions = -(-max_tokens // READ_BLOCK) * READ_BLOCK
        self._cache = SlotCache(model.config, self._capacity, positions, parameter.dtype, self._device)
        self._draws: dict[int, _Draw] = {}
        self._waiting: deque[tuple[_Draw, int]] = deque()
        self._active: list[_Row] = []
        self._finished: list[FinishedDraw] = []
        self.version = 0

    # --- the seam -------------------------------------------------------------------------------

    def submit(self, draw: int, prompt: Prompt, params: SamplingParams) -> None:
        """See RolloutEngine."""
        if draw in self._draws:
            raise EngineError(f"draw {draw} is already in flight")
        check_request(draw, prompt, params, max_tokens=self._max_tokens, decodes=self._decode is not None)
        request = _Draw(draw, prompt, params, remaining=params.n)
        self._draws[draw] = request
        self._waiting.extend((request, g) for g in range(params.n))

    @torch.inference_mode()
    def poll(self) -> list[FinishedDraw]:
        """See RolloutEngine."""
        if not self._draws and not self._finished:
            raise EngineError("poll with nothing in flight would wait for ever")
        with span("schedule"):
            return self._poll()

    def _poll(self) -> list[FinishedDraw]:
        until = time.monotonic() + POLL_SECONDS
        while not self._finished and time.monotonic() < until:
            while self._waiting and len(self._active) < self._slots:
                self._admit()  # again while first tokens end responses and free their slots
            if self._active:
                self._step()
        finished, self._finished = self._finished, []
        return finished

    def cancel(self, draws: Collection[int]) -> int:
        """See RolloutEngine."""
        gone = set(draws)
        lost = sum(len(row.tokens) for row in self._active if row.owner.draw in gone)
        done = [response for number in gone & self._draws.keys() for response in self._draws[number].done.values()]
        done += [response for draw in self._finished if draw.draw in gone for response in draw.responses]
        lost += sum(response.num_tokens for response in done)
        self._waiting = deque(entry for entry in self._waiting if entry[0].draw not in gone)
        for slot in reversed(range(len(self._active))):
            if self._active[slot].owner.draw in gone:
                self._leave(slot)
        self._finished = [done for done in self._finished if done.draw not in gone]
        for number in gone:
            self._draws.pop(number, None)
        return lost

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]], *, recompute: bool = False) -> None:
        """Copies every weight in place. Responses in flight keep their cache and go on, unless `recompute`.

        Prompts that wait for slots are prefilled again: the first token of a response comes from
        its prefill, and must belong to the version it carries.
        """
        self._weights.load(tensors)
        for owner, _ in self._waiting:
            owner.prefilled = None
        if recompute:
            for slot, row in enumerate(self._active):
                seen = [*row.owner.prompt.token_ids.tolist(), *row.tokens[:-1]]  # the latest has no key yet
                self._cache.copy_prompt(slot, self._prefill([seen])[0].cache)
        self.version = version

    def weight_samples(self) -> Iterable[tuple[str, Tensor]]:
        """See RolloutEngine."""
        return self._weights.samples()

    def close(self) -> None:
        """See RolloutEngine."""
        self.cancel(list(self._draws))

    # --- how it works ---------------------------------------------------------------------------

    def _admit(self) -> None:
        """Waiting responses enter free slots; their first token comes from the prefill's logits."""
        entered: list[_Row] = []
        while self._waiting and len(self._active) + len(entered) < self._slots:
            owner, g = self._waiting.popleft()
            if owner.prefilled is None:
                self._prefill_from(owner)
            entered.append(_Row(owner, g))
        if not entered:
            return
        first = len(self._active)
        self._active.extend(entered)
        self._take_tokens(first, torch.stack([_prefilled(row).logits for row in entered]))
        new = {id(row) for row in entered}
        for slot, row in enumerate(self._active):
            if id(row) in new:
                self._cache.copy_prompt(slot, _prefilled(row).cache)
        still_waiting = {id(owner) for owner, _ in self._waiting}
        for row in entered:
            if id(row.owner) not in still_waiting:
                row.owner.prefilled = None

    def _prefill_from(self, owner: _Draw) -> None:
        """Prefills a draw's prompt, and with it those that wait behind it and go into the same pass."""
        batch = [owner]
        for draw, _ in self._waiting:
            if draw is batch[-1] or draw.prefilled is not None:  # the responses of a draw wait side by side
                continue
            if not self._prefill.fits([len(d.prompt.token_ids) for d in (*batch, draw)]):
                break
            batch.append(draw)
        for draw, prefilled in zip(batch, self._prefill([d.prompt.token_ids for d in batch]), strict=True):
            draw.prefilled = prefilled

    def _step(self) -> None:
        """One token for every occupied slot."""
        occupied = len(self._active)
        rows = -(-occupied // ROW_BLOCK) * ROW_BLOCK
        positions = torch.zeros(rows, dtype=torch.long)
        latest = torch.zeros(rows, dtype=torch.long)
        for slot, row in enumerate(self._active):
            positions[slot], latest[slot] = row.position, row.tokens[-1]
        filled = -(-(int(positions.max()) + 1) // READ_BLOCK) * READ_BLOCK
        positions = positions.to(self._device)
        beyond = torch.arange(filled, device=self._device).unsqueeze(0) > positions.unsqueeze(1)
        mask = torch.zeros(beyond.shape, dtype=self._dtype, device=self._device).masked_fill_(beyond, float("-inf"))
        self._cache.begin_step(positions, filled)
        with span("decode"):
            output = self._model(
                input_ids=latest.to(self._device).unsqueeze(1),
                position_ids=positions.unsqueeze(1),
                attention_mask=mask[:, None, None, :],
                past_key_values=self._cache,
                use_cache=True,
            )
        self._take_tokens(0, output.logits[:occupied, -1])

    def _take_tokens(self, first: int, logits_RV: Tensor) -> None:
        """Samples a token for each slot from `first` on, then lets finished responses leave."""
        rows = self._active[first:]
        params = [row.owner.params for row in rows]
        u = uniform(
            np.array([p.seed for p in params], dtype=np.uint64),
            Purpose.TOKEN,
            [row.owner.draw for row in rows],
            [row.g for row in rows],
            [len(row.tokens) for row in rows],
        )
        # The CDF is summed in float64, which MPS does not have.
        device = torch.device("cpu") if self._device.type == "mps" else self._device
        with span("choose"):
            tokens_R, logprobs_R = sample(
                logits_RV.to(device),
                torch.as_tensor(u, device=device),
                torch.tensor([p.temperature for p in params], device=device),
                torch.tensor([p.top_p for p in params], device=device),
            )
        for row, token, logprob in zip(rows, tokens_R.tolist(), logprobs_R.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.versions.append(self.version)
        for slot in reversed(range(first, len(self._active))):
            row = self._active[slot]
            finish = self._finish(row)
            if finish is not None:
                self._complete(row, finish)
                self._leave(slot)

    def _finish(self, row: _Row) -> Finish | None:
        if row.tokens[-1] in self._eos:
            return Finish.STOP
        stop = row.owner.params.stop
        if stop and self._decode is not None and ends(row.tokens, stop, self._decode):
            return Finish.STOP
        return Finish.LENGTH if len(row.tokens) >= row.owner.params.max_new_tokens else None

    def _complete(self, row: _Row, finish: Finish) -> None:
        runs: list[tuple[int, int]] = []
        for version in row.versions:
            if runs and runs[-1][0] == version:
                runs[-1] = (version, runs[-1][1] + 1)
            else:
                runs.append((version, 1))
        owner = row.owner
        owner.done[row.g] = Response(
            token_ids=np.asarray(row.tokens, dtype=np.int32),
            generated=np.ones(len(row.tokens), dtype=bool),
            engine_logprobs=np.asarray(row.logprobs, dtype=np.float32),
            finish=finish,
            token_versions=tuple(runs),
        )
        owner.remaining -= 1
        if owner.remaining == 0:
            responses = tuple(owner.done[g] for g in range(owner.params.n))
            self._finished.append(FinishedDraw(draw=owner.draw, responses=responses))
            del self._draws[owner.draw]

    def _leave(self, slot: int) -> None:
        """Frees a slot: the last occupied one moves into its place."""
        last = len(self._active) - 1
        if slot != last:
            row = self._active[last]
            self._cache.move(last, slot, row.position)
            self._active[slot] = row
        self._active.pop()
