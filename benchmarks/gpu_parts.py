"""What benchmarks/gpu.py measures: matrix products, decoding, training and the weight sync, each on its own.

A part builds its models, warms up, repeats what it measures and returns its figures. Models have random
weights, so nothing is downloaded, and no token ends a response, so every response has the same length.
"""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from dapo.algorithm import dapo_objective
from dapo.learner.packing import Packing, microbatches
from dapo.learner.settings import LearnerSettings
from dapo.learner.torch_learner import TorchLearner
from dapo.rollout.torch_engine import TorchEngine
from dapo.types import Batch, Prompt, SamplingParams

DTYPE = torch.bfloat16
FIRST_TOKEN = 10  # of the random tokens
WARM_UP_TOKENS = 4
SQUARE_PRODUCTS = 10  # between two readings of the clock
LINEAR_PASSES = 20  # likewise


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Shapes of the models and of the work. Lengths are in tokens; `models` are Qwen2 configurations."""

    models: dict[str, dict[str, Any]]
    slots: tuple[int, ...]
    responses_per_prompt: int
    prompt: int
    new: int
    groups: int  # of an update
    response: int  # of an update
    square: int  # rows and columns of the square product

    @property
    def update_rows(self) -> int:
        """Responses of an update."""
        return self.groups * self.responses_per_prompt

    @property
    def microbatch(self) -> int:
        """Tokens of a micro-batch: one group with its prompt once."""
        return self.prompt + self.responses_per_prompt * self.response


def _qwen2(hidden: int, intermediate: int, layers: int, heads: int, vocabulary: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "eos_token_id": None,
    }


GPU = Sizes(
    models={"0.5b": _qwen2(896, 4864, 24, 14, 151936), "1.5b": _qwen2(1536, 8960, 28, 12, 151936)},
    slots=(64, 256),
    responses_per_prompt=16,
    prompt=256,
    new=256,
    groups=8,
    response=512,
    square=8192,
)
TINY = Sizes(
    models={"tiny": _qwen2(64, 128, 2, 4, 512)},
    slots=(8, 16),
    responses_per_prompt=8,
    prompt=12,
    new=8,
    groups=2,
    response=16,
    square=64,
)


@dataclass(kw_only=True)
class Bench:
    """Where and how often to measure. `until` is when the present part has used up its time."""

    device: torch.device
    sizes: Sizes
    rounds: int
    until: float = math.inf
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def synchronize(self) -> None:
        """Returns when everything that was launched has ended."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, call: Callable[[], Any]) -> float:
        """Of one call and of all that it launched."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start

    def repeat(self, call: Callable[[], Any]) -> list[float]:
        """Seconds of each round; at least one, and no further one after `until`."""
        found = [self.seconds(call)]
        while len(found) < self.rounds and time.perf_counter() < self.until:
            found.append(self.seconds(call))
        return found

    def forget(self) -> None:
        """Gives up the memory of the last part; the peak counts from here."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_gib(self) -> float | None:
        """Most memory that tensors held since `forget`; None where the device does not count it."""
        return torch.cuda.max_memory_allocated(self.device) / 2**30 if self.device.type == "cuda" else None


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters that multiply. The input embedding is looked up, and counts only where it is the head as well."""

    total: int
    body: int  # all but the embeddings
    head: int  # of the output embedding

    @property
    def multiplied(self) -> int:
        """N of 6 N and 2 N."""
        return self.body + self.head


def count_weights(model: Any) -> Weights:
    """Of a transformers causal LM."""
    total = sum(parameter.numel() for parameter in model.parameters())
    read, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return Weights(total, total - read.numel() - (0 if head is read else head.numel()), head.numel())


def flops(weights: Weights, per_weight: int, tokens: int, positions: int) -> dict[str, int]:
    """By both conventions: every token through N weights; every position through the body, and tokens through the head.

    per_weight is 6 in training (forward and backward) and 2 in decoding. Attention over keys and values is not
    counted, and neither is what is computed twice to save memory.
    """
    return {
        "flops_of_tokens": per_weight * weights.multiplied * tokens,
        "flops_of_positions": per_weight * (weights.body * positions + weights.head * tokens),
    }


def make_model(bench: Bench, name: str, dtype: torch.dtype) -> Any:
    """A causal LM with random weights, made on the device."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    with torch.device(bench.device):
        model = AutoModelForCausalLM.from_config(
            Qwen2Config(**bench.sizes.models[name]), dtype=dtype, attn_implementation="sdpa"
        )
    return model.to(bench.device).eval().requires_grad_(False)


def random_tokens(bench: Bench, name: str, *shape: int) -> Any:
    """i64, the same every time."""
    vocabulary = bench.sizes.models[name]["vocab_size"]
    return torch.randint(FIRST_TOKEN, vocabulary, shape, generator=torch.Generator().manual_seed(0))


# --- matrix products ----------------------------------------------------------------------------------


def square_product(bench: Bench) -> dict[str, Any]:
    """The rate of a large product, which utilisation is a share of. Random numbers: zeros would be faster."""
    size = bench.sizes.square
    left, right = (torch.randn(size, size, device=bench.device, dtype=DTYPE) for _ in range(2))

    def products() -> None:
        for _ in range(SQUARE_PRODUCTS):
            torch.mm(left, right)

    products()
    seconds = [value / SQUARE_PRODUCTS for value in bench.repeat(products)]
    return {"shape": [size] * 3, "seconds": seconds, "tflops_per_s": 2e-12 * size**3 / statistics.median(seconds)}


@torch.no_grad()
def linear_layers(bench: Bench, name: str, rows: int) -> dict[str, Any]:
    """Every linear layer of the model on as many rows as a decode step has, and nothing else: a limit of decoding."""
    model = make_model(bench, name, DTYPE)
    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    inputs = [torch.randn(rows, weight.shape[1], device=bench.device, dtype=DTYPE) for weight in weights]

    def one_pass() -> None:
        for x, weight in zip(inputs, weights, strict=True):
            torch.nn.functional.linear(x, weight)

    play = captured(bench, one_pass)

    def passes() -> None:
        for _ in range(LINEAR_PASSES):
            play()

    passes()
    seconds = [value / LINEAR_PASSES for value in bench.repeat(passes)]
    numbers, middle = sum(weight.numel() for weight in weights), statistics.median(seconds)
    return {
        "rows": rows,
        "seconds": seconds,
        "tokens_per_s": rows / middle,
        "tflops_per_s": 2e-12 * rows * numbers / middle,
        "weight_gb_per_s": 1e-9 * DTYPE.itemsize * numbers / middle,
    }


def captured(bench: Bench, call: Callable[[], None]) -> Callable[[], Any]:
    """The call as a CUDA graph, so that the time to launch it does not count; elsewhere the call itself."""
    if bench.device.type != "cuda":
        return call
    stream = torch.cuda.Stream(bench.device)
    stream.wait_stream(torch.cuda.current_stream(bench.device))
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream(bench.device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


# --- decoding -----------------------------------------------------------------------------------------


def decode_engine(bench: Bench, name: str, rows: int) -> dict[str, Any]:
    """The embedded engine: submitting, prefill, and every token with its log-probability, until the last draw ends."""
    sizes, model = bench.sizes, make_model(bench, name, DTYPE)
    weights = count_weights(model)
    engine = TorchEngine(model, eos_ids=(), slots=rows, max_tokens=sizes.prompt + sizes.new)
    prompts = random_tokens(bench, name, rows // sizes.responses_per_prompt, sizes.prompt).numpy()

    def decode(length: int) -> None:
        params = SamplingParams(max_new_tokens=length, n=sizes.responses_per_prompt, seed=0)
        left = set()
        for ids in prompts:
            left.add(draw := next(bench.numbers))
            engine.submit(draw, _prompt(ids), params)
        tokens = 0
        while left:
            for finished in engine.poll():
                left.discard(finished.draw)
                tokens += sum(response.num_tokens for response in finished.responses)
        _expect(tokens, rows * length)

    decode(WARM_UP_TOKENS)
    seconds = bench.repeat(partial(decode, sizes.new))
    return _decoded(bench, weights, seconds, rows, prompts.size + rows * (sizes.new - 1))


def decode_generate(bench: Bench, name: str, rows: int) -> dict[str, Any]:
    """`generate` of transformers on the same rows; no log-probabilities, and a prompt is prefilled for each row."""
    from transformers import GenerationConfig

    sizes, model = bench.sizes, make_model(bench, name, DTYPE)
    weights = count_weights(model)
    prompts = random_tokens(bench, name, rows // sizes.responses_per_prompt, sizes.prompt)
    ids = prompts.repeat_interleave(sizes.responses_per_prompt, dim=0)
    plain = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}

    def decode(length: int) -> None:
        config = GenerationConfig(max_new_tokens=length, eos_token_id=None, pad_token_id=0, **plain)
        here = ids.to(bench.device)
        output = model.generate(input_ids=here, attention_mask=torch.ones_like(here), generation_config=config)
        _expect(output.cpu()[:, sizes.prompt :].numel(), rows * length)

    decode(WARM_UP_TOKENS)
    seconds = bench.repeat(partial(decode, sizes.new))
    return _decoded(bench, weights, seconds, rows, rows * (sizes.prompt + sizes.new - 1))


def _prompt(ids: Any) -> Prompt:
    return Prompt(id="", messages=None, text="", answer=None, source="", token_ids=np.asarray(ids, dtype=np.int32))


def _expect(tokens: int, wanted: int) -> None:
    if tokens != wanted:
        raise RuntimeError(f"{tokens} tokens came back, not {wanted}")


def _decoded(bench: Bench, weights: Weights, seconds: list[float], rows: int, positions: int) -> dict[str, Any]:
    tokens = rows * bench.sizes.new
    figures = {"rows": rows, "seconds": seconds, "tokens": tokens, "positions": positions}
    return _rated(figures) | flops(weights, 2, tokens, positions)


def _rated(figures: dict[str, Any]) -> dict[str, Any]:
    middle = statistics.median(figures["seconds"])
    return figures | {
        "median_seconds": middle,
        "tokens_per_s": figures["tokens"] / middle,
        "positions_per_s": figures["positions"] / middle,
    }


# --- training and the weight sync ---------------------------------------------------------------------


def make_learner(bench: Bench, name: str, packing: Packing) -> TorchLearner:
    """bfloat16 autocast over float32 master weights."""
    return TorchLearner(
        make_model(bench, name, torch.float32),
        LearnerSettings(packing=packing, tokens_per_microbatch=bench.sizes.microbatch),
        partial(dapo_objective, clip_low=0.2, clip_high=0.28),
        dtype=DTYPE,
    )


def make_batch(bench: Bench, name: str) -> Batch:
    """Groups of random responses, every second one right; old log-probabilities as of a uniform policy."""
    sizes, rows = bench.sizes, bench.sizes.update_rows
    width = sizes.prompt + sizes.response
    token_ids = random_tokens(bench, name, rows, width)
    draw = torch.arange(sizes.groups).repeat_interleave(sizes.responses_per_prompt)
    token_ids[:, : sizes.prompt] = token_ids[draw * sizes.responses_per_prompt, : sizes.prompt]
    mask = (torch.arange(width) >= sizes.prompt).expand(rows, width).contiguous()
    logprobs = mask * -math.log(bench.sizes.models[name]["vocab_size"])
    return Batch(
        draw=draw,
        prompt_lengths=torch.full((rows,), sizes.prompt),
        lengths=torch.full((rows,), width),
        token_ids=token_ids,
        loss_mask=mask,
        engine_logprobs=logprobs,
        old_logprobs=logprobs,
        advantages=1.0 - 2.0 * (torch.arange(rows) % 2),
        row_weights=torch.full((rows,), 1.0 / (rows * sizes.response), dtype=torch.float64),
    )


def _update(learner: TorchLearner, batch: Batch) -> None:
    metrics = learner.update(batch, 1e-6)
    if metrics["grad/nonfinite"] or not metrics["grad/norm"] > 0:
        raise RuntimeError(f"an update with a gradient of norm {metrics['grad/norm']}")


def train(bench: Bench, name: str, packing: Packing) -> dict[str, Any]:
    """One optimiser step on all rows: `TorchLearner.update`, the building of its micro-batches included."""
    learner, batch = make_learner(bench, name, packing), make_batch(bench, name)
    weights = count_weights(learner.model)
    parts = list(microbatches(batch, range(batch.num_rows), packing, bench.sizes.microbatch))
    tokens, positions = int(batch.loss_tokens.sum()), sum(part.token_ids_nW.numel() for part in parts)
    _update(learner, batch)
    seconds = bench.repeat(partial(_update, learner, batch))
    figures = {"rows": batch.num_rows, "microbatches": len(parts), "seconds": seconds}
    return _rated(figures | {"tokens": tokens, "positions": positions}) | flops(weights, 6, tokens, positions)


def sync_weights(bench: Bench, name: str) -> dict[str, Any]:
    """The learner's weights into the engine. Both stand beside each other, after an update and ready to decode."""
    sizes = bench.sizes
    learner = make_learner(bench, name, "shared_prompt")
    model = make_model(bench, name, DTYPE)
    longest = sizes.prompt + max(sizes.new, sizes.response)
    engine = TorchEngine(model, eos_ids=(), slots=max(sizes.slots), max_tokens=longest)
    _update(learner, make_batch(bench, name))

    def load() -> None:
        engine.load_weights(engine.version + 1, learner.export_weights())

    load()
    seconds = bench.repeat(load)
    moved = sum(weight.numel() for _, weight in learner.export_weights()) * DTYPE.itemsize
    middle = statistics.median(seconds)
    return {"seconds": seconds, "median_seconds": middle, "gb_per_s": 1e-9 * moved / middle}
