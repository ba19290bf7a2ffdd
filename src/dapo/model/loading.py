"""Load a causal LM and its tokenizer with transformers, from safetensors only.

The model stays unmodified. What the rest needs to know beside it: its EOS ids, and how hidden
states become logits (so that logits can be computed for chosen positions, in chunks).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dapo.config.schema import ModelConfig
from dapo.errors import HubUnreachable, ModelError
from dapo.model.paths import resolve_model
from dapo.out_of_memory import ran_out
from dapo.spans import span


def pick_device(config: ModelConfig) -> torch.device:
    """`model.device`. Raises ModelError when the device asked for is missing."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelError('model.device = "cuda", but torch sees no CUDA device; use "cpu" or "auto"')
    if config.device == "mps" and not torch.backends.mps.is_available():
        raise ModelError('model.device = "mps", but torch sees no MPS device; use "cpu" or "auto"')
    return torch.device(config.device)


def pick_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """`model.dtype`; auto is bfloat16 where the device multiplies it natively, else float32."""
    if config.dtype != "auto":
        return torch.float32 if config.dtype == "float32" else torch.bfloat16
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    if device.type == "cpu" and _cpu_multiplies_bf16():
        return torch.bfloat16
    return torch.float32


def _cpu_multiplies_bf16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(bool(capabilities.get(name)) for name in ("avx512_bf16", "amx_bf16", "amx_tile", "bf16"))


_LOADING = threading.Lock()  # transformers makes a model under settings of the whole process


@span("loading")
def load_model(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """A transformers causal LM in `dtype` on `device`, in eval mode, without gradients.

    Raises:
        ModelError: nothing there, an unknown architecture, no safetensors, or no network.
    """
    from transformers import AutoModelForCausalLM

    quiet_transformers()
    source = resolve_model(config.path)
    try:
        with _LOADING:
            model = AutoModelForCausalLM.from_pretrained(
                source,
                revision=config.revision,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=config.trust_remote_code,
                attn_implementation="sdpa",
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        if ran_out(error):
            raise
        raise _refusal(error, source)(f"model.path = {config.path}: {_first_line(error)}") from error
    module: nn.Module = model.to(device).eval().requires_grad_(False)
    return module


def load_tokenizer(config: ModelConfig) -> Any:
    """The model's tokenizer. Raises ModelError."""
    from transformers import AutoTokenizer

    quiet_transformers()
    source = resolve_model(config.path)
    try:
        return AutoTokenizer.from_pretrained(
            source, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise _refusal(error, source)(f"model.path = {config.path}: no tokenizer: {_first_line(error)}") from error


def _refusal(error: Exception, source: str) -> type[ModelError]:
    """Whose fault it is: the hub's, where it was to give the model, or the model's."""
    return HubUnreachable if isinstance(error, OSError) and not Path(source).exists() else ModelError


def quiet_transformers() -> None:
    """No progress bars and no advice from transformers; its errors still raise."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every EOS id of generation_config, model config and tokenizer, sorted.

    Raises ModelError when there is none: a response could then never end by itself.
    """
    found: set[int] = set()
    for owner in (getattr(model, "generation_config", None), getattr(model, "config", None), tokenizer):
        value = getattr(owner, "eos_token_id", None)
        if isinstance(value, int):
            found.add(value)
        elif isinstance(value, (list, tuple)):
            found.update(int(v) for v in value)
    if not found:
        raise ModelError("the model and its tokenizer name no EOS token; set eos_token_id in config.json")
    return tuple(sorted(found))


def check_architecture(model: Any, max_tokens: int) -> None:
    """Refuses what the slot cache and the packed masks can't serve rightly.

    Raises ModelError for attention windows shorter than the longest sequence, for layers without
    a key-value cache, and for more tokens than the model has positions.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = "sliding_attention" in kinds or getattr(config, "use_sliding_window", window is not None)
    if window and windowed and window < max_tokens:
        raise ModelError(
            f"model: {config.model_type} attends through a window of {window} tokens, but prompt + response may "
            f"take {max_tokens}; lower data.max_prompt_tokens or sampling.max_response_tokens (dapo eval: --max-tokens)"
        )
    if other := kinds - {"full_attention", "sliding_attention"}:
        raise ModelError(f"model: {config.model_type} has layers of kind {sorted(other)}; only attention is supported")
    positions = getattr(config, "max_position_embeddings", None)
    if positions and positions < max_tokens:
        raise ModelError(
            f"model: {config.model_type} has {positions} positions, but data.max_prompt_tokens + "
            f"sampling.max_response_tokens = {max_tokens}; lower one of them (dapo eval: --max-tokens)"
        )


class SplitModel:
    """A causal LM as body (tokens to hidden states) and head (hidden states to logits).

    Known transformations after the output embedding (a soft cap, a scale) are applied. The
    constructor compares head(body(x)) with the model's own logits on a few tokens, so an
    architecture that does something else is refused, not trained wrongly.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.body: Callable[..., Any] = model.base_model
        self._embedding: nn.Module = model.get_output_embeddings()
        config = model.config.get_text_config()
        self._soft_cap: float | None = getattr(config, "final_logit_softcapping", None)
        multiplier = getattr(config, "logit_scale", None)
        divisor = getattr(config, "logits_scaling", None)
        self._scale: float = (multiplier or 1.0) / (divisor or 1.0)
        if self.body is model:
            raise ModelError(f"model: {config.model_type} has no separate body; it can't be trained in chunks")
        self._compare()

    @property
    def vocabulary(self) -> int:
        """Logits of a position."""
        weight: Tensor = self._embedding.weight  # type: ignore[assignment]
        return len(weight)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states [..., H] -> [..., V]."""
        logits: Tensor = self._embedding(hidden) * self._scale if self._scale != 1.0 else self._embedding(hidden)
        if self._soft_cap:
            logits = torch.tanh(logits / self._soft_cap) * self._soft_cap
        return logits

    @torch.no_grad()
    def _compare(self) -> None:
        device = next(self.model.parameters()).device
        tokens = torch.arange(1, 6, device=device).unsqueeze(0)
        expected = self.model(input_ids=tokens, use_cache=False).logits.float()
        got = self.head(self.body(input_ids=tokens, use_cache=False).last_hidden_state).float()
        if got.shape != expected.shape or not self._close(got, expected):
            name = self.model.config.model_type
            raise ModelError(f"model: the logits of {name} are not its output embedding of its last hidden state")

    @staticmethod
    def _close(got: Tensor, expected: Tensor) -> bool:
        return float((got - expected).abs().max()) <= 1e-3 * float(expected.abs().max())
