"""Memory of a device, by part, from what learner and engine really hold.

The learner: float32 master weights, float32 gradients, two float32 moments; under autocast a copy of each matrix
in the compute type while a micro-batch is computed; activations of one micro-batch; logits of its response tokens.
The engine: its own copy in the compute type, and a cache of slots x positions that is there from the start.
Weights, gradients and moments are divided over learner ranks; a block is gathered to be computed.

Legend: P weights, T tokens of a micro-batch, N its response tokens, H hidden, I intermediate, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from dapo.config.schema import Config
from dapo.plan.layout import Layout
from dapo.plan.shapes import Shape

GIB = 2.0**30
KEPT_LOGITS = 2**28  # learner.torch_learner has the same; the tests hold one to the other
ROW_BLOCK, READ_BLOCK = 8, 64  # those of rollout.torch_engine and rollout.slot_cache
FLOAT32 = 4
VLLM_CPU_CACHE_GIB = 2.0  # engine.vllm.kv_cache_gib = "off" on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """gib: of one device. what: how it comes about. phases: when it is there."""

    name: str
    gib: float
    what: str
    owner: str
    phases: tuple[str, ...] = ("sampling", "update")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Of one kind of device. name: what it holds. parts: what it is made of; peak: the largest sum of a phase."""

    name: str
    parts: tuple[Part, ...]

    @property
    def by_phase(self) -> dict[str, float]:
        """GiB in each phase of a step."""
        return {phase: sum(part.gib for part in self.parts if phase in part.phases) for phase in ("sampling", "update")}

    @property
    def peak(self) -> float:
        """GiB at the most."""
        return max(self.by_phase.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a device is. gib: its memory. compute_bytes: of a number in the compute type. overhead: GiB that are taken
    before anything is loaded. cpu: it is the process's own memory, and linear layers are packed."""

    gib: float
    compute_bytes: int
    overhead: float
    cpu: bool = False


def devices(config: Config, shape: Shape, layout: Layout, machine: Machine) -> list[DeviceMemory]:
    """The memory of each kind of device: one that learner and engine share, or one of each."""
    learner, engine = learner_parts(config, shape, layout, machine), engine_parts(config, shape, layout, machine)
    base = Part(
        name="overhead",
        gib=machine.overhead,
        what="the process and its libraries, or the device's context",
        owner="both",
    )
    if layout.shared:
        return [DeviceMemory(name="learner and engine", parts=(*learner, *engine, base))]
    return [
        DeviceMemory(name="learner", parts=(*learner, base)),
        DeviceMemory(name="engine", parts=(*engine, base)),
    ]


# --- the learner ------------------------------------------------------------------------------------


def learner_parts(config: Config, shape: Shape, layout: Layout, machine: Machine) -> list[Part]:
    """What one rank holds."""
    ranks, offload = layout.ranks, config.learner.fsdp.cpu_offload and layout.ranks > 1
    trained = trained_weights(config, shape)
    held = 0 if offload else 1
    shards = f", over {ranks} ranks" if ranks > 1 else ""
    parts = [
        _part("weights", FLOAT32 * shape.total / ranks * held, f"4 bytes x {shape.total:,}{shards}"),
        _part("gradients", FLOAT32 * trained / ranks, f"4 bytes x {trained:,}{shards}", update_only=True),
        _part("optimiser", 2 * FLOAT32 * trained / ranks * held, f"2 moments x 4 bytes x {trained:,}{shards}"),
    ]
    if config.learner.lora_rank is not None:
        parts.append(
            _part("adapters", FLOAT32 * trained / ranks, f"A and B of rank {config.learner.lora_rank}{shards}")
        )
    if config.algorithm.kl.place != "off":
        text = f"algorithm.kl: 4 bytes x {shape.total:,}{shards}"
        parts.append(_part("reference model", FLOAT32 * shape.total / ranks * held, text))
    return [*parts, *_computing(config, shape, layout, machine)]


def _computing(config: Config, shape: Shape, layout: Layout, machine: Machine) -> list[Part]:
    """What is there while a micro-batch is computed."""
    size, tokens = machine.compute_bytes, microbatch_tokens(config)
    responses = min(tokens, response_tokens(config))
    parts = []
    if layout.ranks > 1:
        gathered, text = _gathered(config, shape, size)
        parts.append(_part("gathered weights", gathered, text, update_only=True))
    elif size < FLOAT32:
        matrices = shape.multiplied_all + shape.head
        parts.append(_part("autocast copies", size * matrices, f"{size} bytes x {matrices:,}", update_only=True))
    largest = FLOAT32 * max(shape.head, shape.hidden * shape.intermediate)
    parts.append(_part("gradient in flight", largest, "the largest matrix, before it is added", update_only=True))
    each = activation_bytes(config, shape, size)
    if config.train.gradient_checkpointing:
        kept = FLOAT32 * shape.hidden
        total = tokens * (shape.layers * kept + each)
        text = f"{tokens:,} tokens x ({shape.layers} layers' inputs of {kept:,} bytes + one layer's {each:,.0f})"
    else:
        total = tokens * shape.layers * each
        text = f"{tokens:,} tokens x {shape.layers} layers x {each:,.0f} bytes"
    parts.append(_part("activations", total, text, update_only=True))
    kept_logits, text = _logits(config, shape, responses, size)
    parts.append(_part("logits", kept_logits, text, update_only=True))
    return parts


def trained_weights(config: Config, shape: Shape) -> int:
    """Numbers that the optimiser moves."""
    rank = config.learner.lora_rank
    if rank is None:
        return shape.total
    sizes = shape.linear_sizes(config.learner.lora_targets == "attention")
    return shape.layers * sum(rank * (inputs + outputs) for inputs, outputs in sizes)


def microbatch_tokens(config: Config) -> int:
    """Tokens of the largest forward pass: the budget, a single row over it, or all of a mini-batch if that is less."""
    longest = config.data.max_prompt_tokens + config.sampling.max_response_tokens
    prompts = config.sampling.prompts_per_step // config.train.updates_per_step
    group = config.sampling.responses_per_prompt
    copies = 1 if config.train.packing == "shared_prompt" else group
    whole = prompts * (copies * config.data.max_prompt_tokens + group * config.sampling.max_response_tokens)
    return min(max(config.train.tokens_per_microbatch, longest), whole)


def response_tokens(config: Config) -> int:
    """Response tokens of the largest micro-batch."""
    tokens = microbatch_tokens(config)
    group = config.sampling.responses_per_prompt if config.train.packing == "shared_prompt" else 1
    most = group * config.sampling.max_response_tokens
    return max(1, round(tokens * most / (most + config.data.max_prompt_tokens)))


def activation_bytes(config: Config, shape: Shape, size: int) -> float:
    """Bytes that one layer keeps of a token for the backward pass.

    Each of two norms keeps its input and the normalised input in float32, and what linear layers read in the compute
    type. Attention keeps queries, its result twice, keys and values (with the prompt's, once for each response behind
    it); the feed-forward layers keep gate, its activation, up, and their product, of each active expert.
    """
    norms = 2 * (2 * FLOAT32 + size) * shape.hidden
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    prompt, response = config.data.max_prompt_tokens, config.sampling.max_response_tokens
    shared = config.train.packing == "shared_prompt"
    group = config.sampling.responses_per_prompt
    behind = group * (prompt + response) / (prompt + group * response) if shared else 1.0
    attention = size * (3 * queries + 2 * keys * (1 + behind))
    return norms + attention + 4 * size * shape.intermediate * shape.active


def _logits(config: Config, shape: Shape, responses: int, size: int) -> tuple[float, str]:
    """Bytes of logits: kept for the backward pass up to KEPT_LOGITS of them, else of a chunk."""
    chunk = min(config.train.logits_chunk_tokens, responses)
    each = shape.vocabulary * (FLOAT32 + (size if size < FLOAT32 else 0))
    if responses * shape.vocabulary <= KEPT_LOGITS:
        working = chunk * each
        text = f"{responses:,} tokens x {shape.vocabulary:,} kept in float32, and the gradient of a chunk of {chunk:,}"
        return responses * shape.vocabulary * FLOAT32 + working, text
    return 3 * chunk * each, f"3 x a chunk of {chunk:,} tokens x {shape.vocabulary:,}; made again in the backward pass"


def _gathered(config: Config, shape: Shape, size: int) -> tuple[float, str]:
    root = shape.total - shape.layers * shape.block
    if config.learner.fsdp.reshard_after_forward:
        gradients = shape.block * size
        total = size * (root + 2 * shape.block) + gradients
        return total, f"{size} bytes x (embedding and head {root:,} + 2 blocks of {shape.block:,}), a block's gradients"
    return size * (shape.total + shape.block), f"{size} bytes x {shape.total:,} (reshard_after_forward = false)"


# --- the engine -------------------------------------------------------------------------------------


def engine_parts(config: Config, shape: Shape, layout: Layout, machine: Machine) -> list[Part]:
    """What one device of an engine holds."""
    size, over = machine.compute_bytes, layout.devices_per_engine
    copies = shape.total + (shape.head if machine.cpu and shape.tied and config.engine.kind == "torch" else 0)
    twice = ", the tied matrix in both forms" if copies > shape.total else ""
    split = f", over {over} devices" if over > 1 else ""
    asleep = config.engine.kind == "vllm" and config.engine.vllm.sleep and layout.shared
    phases = ("sampling",) if asleep else ("sampling", "update")
    weights = size * copies / over
    parts = [
        Part(
            name="engine weights",
            gib=weights / GIB,
            what=f"{size} bytes x {copies:,}{twice}{split}",
            owner="engine",
            phases=phases,
        )
    ]
    gib, text = cache_gib(config, shape, layout, machine)
    parts.append(Part(name="KV cache", gib=gib, what=text, owner="engine", phases=phases))
    rows = -(-config.engine.slots // ROW_BLOCK) * ROW_BLOCK
    logits = rows * shape.vocabulary * (size + 2 * FLOAT32) / over
    what = f"logits and probabilities of {rows} rows x {shape.vocabulary:,}"
    parts.append(Part(name="decode step", gib=logits / GIB, what=what, owner="engine", phases=("sampling",)))
    return parts


def cache_gib(config: Config, shape: Shape, layout: Layout, machine: Machine) -> tuple[float, str]:
    """GiB of one device's share of the engine's cache."""
    size, over = machine.compute_bytes, layout.devices_per_engine
    each = shape.kv_numbers * size
    if config.engine.kind == "vllm":
        own = config.engine.vllm
        weights = size * shape.total / over / GIB
        if own.kv_cache_gib is not None:
            gib = own.kv_cache_gib
        elif machine.cpu:
            gib = VLLM_CPU_CACHE_GIB
        else:
            gib = max(0.0, own.gpu_memory_fraction * machine.gib - weights)
        tokens = int(gib * GIB * over / each)
        return gib, f"engine.vllm: room for {tokens:,} tokens of {each:,} bytes"
    positions, rows = cache_positions(config), -(-config.engine.slots // ROW_BLOCK) * ROW_BLOCK
    text = f"{rows} slots x {positions:,} positions x {each:,} bytes (2 x layers x kv heads x head size)"
    return rows * positions * each / over / GIB, text


def cache_positions(config: Config) -> int:
    """Of a slot: the longest prompt and response of training or evaluation."""
    response = max(config.sampling.max_response_tokens, config.eval.max_response_tokens or 0)
    return -(-(config.data.max_prompt_tokens + response) // READ_BLOCK) * READ_BLOCK


def slots_that_fit(config: Config, shape: Shape, layout: Layout, machine: Machine, tokens: float) -> int:
    """Rows that an engine decodes at one time: its slots, or as many sequences of so many tokens as its cache holds."""
    if config.engine.kind != "vllm":
        return config.engine.slots
    gib, _ = cache_gib(config, shape, layout, machine)
    room = gib * GIB * layout.devices_per_engine / (shape.kv_numbers * machine.compute_bytes)
    return max(1, min(config.engine.slots, int(room / max(tokens, 1.0))))


# --- the host, where checkpoints are copied to ------------------------------------------------------


def checkpoint_gib(config: Config, shape: Shape) -> float:
    """Host memory that a checkpoint takes while it is written: a copy of weights and moments in float32."""
    return FLOAT32 * (shape.total + 2 * trained_weights(config, shape)) / GIB


def _part(name: str, size: float, what: str, *, update_only: bool = False) -> Part:
    phases = ("update",) if update_only else ("sampling", "update")
    return Part(name=name, gib=size / GIB, what=what, owner="learner", phases=phases)
