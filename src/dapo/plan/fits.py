"""Which knobs would make a run fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dapo.config.load import with_words
from dapo.config.schema import Config
from dapo.errors import UserError
from dapo.plan.layout import Layout, lay_out
from dapo.plan.memory import DeviceMemory, Machine, devices
from dapo.plan.shapes import Shape

LEAST_SLOTS, LEAST_MICROBATCH, LEAST_CHUNK = 8, 1024, 128
RANK = 32  # of adapters that are proposed


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """key=value words, and the peak GiB of the fullest device with them."""

    words: tuple[str, ...]
    peak: float


def over(memory: Sequence[DeviceMemory], machine: Machine) -> bool:
    """Whether a device has not enough."""
    return any(one.peak > machine.gib for one in memory)


def mends(config: Config, shape: Shape, layout: Layout, machine: Machine) -> list[Mend]:
    """Changes that make it fit, cheapest first: each alone; else those that keep the update, all together; else more
    devices a model; [] where it fits already, or where nothing was found."""
    if not over(devices(config, shape, layout, machine), machine):
        return []
    found = [
        mend
        for word in _words(config, layout)
        if (mend := _tried(config, shape, layout.gpus, machine, (word,))) is not None
    ]
    if found:
        return found
    same = _smallest(config)
    if same and (mend := _tried(config, shape, layout.gpus, machine, same)) is not None:
        return [mend]
    return [
        mend
        for words in _sharded(config, layout.gpus)
        if (mend := _first(config, shape, layout.gpus, machine, words, same))
    ][:1]


def _first(
    config: Config, shape: Shape, gpus: int, machine: Machine, words: tuple[str, ...], same: tuple[str, ...]
) -> Mend | None:
    return _tried(config, shape, gpus, machine, words) or _tried(config, shape, gpus, machine, (*words, *same))


def _tried(config: Config, shape: Shape, gpus: int, machine: Machine, words: tuple[str, ...]) -> Mend | None:
    """The mend, if it is allowed and fits."""
    try:
        changed = with_words(config, words)
        memory = devices(changed, shape, lay_out(changed, gpus), machine)
    except UserError:
        return None
    if over(memory, machine):
        return None
    return Mend(words=words, peak=max(one.peak for one in memory))


def _words(config: Config, layout: Layout) -> Iterator[str]:
    """Single changes: first those that change no update, each as mild as it can be; then others."""
    train, sampling = config.train, config.sampling
    if not train.gradient_checkpointing:
        yield "train.gradient_checkpointing=true"
    yield from (
        f"train.tokens_per_microbatch={size}" for size in _halves(train.tokens_per_microbatch, LEAST_MICROBATCH)
    )
    yield from (f"engine.slots={size}" for size in _halves(config.engine.slots, LEAST_SLOTS))
    yield from (f"train.logits_chunk_tokens={size}" for size in _halves(train.logits_chunk_tokens, LEAST_CHUNK))
    if config.engine.kind == "vllm" and layout.shared and not config.engine.vllm.sleep:
        yield "engine.vllm.sleep=true"
    if layout.ranks > 1 and not config.learner.fsdp.reshard_after_forward:
        yield "learner.fsdp.reshard_after_forward=true"
    if layout.ranks > 1 and not config.learner.fsdp.cpu_offload:
        yield "learner.fsdp.cpu_offload=true"
    if config.learner.lora_rank is None:
        yield f"learner.lora_rank={RANK}"
    yield from (f"sampling.max_response_tokens={size}" for size in _halves(sampling.max_response_tokens, 256))


def _halves(value: int, least: int) -> Iterator[int]:
    while value // 2 >= least:
        value //= 2
        yield value


def _smallest(config: Config) -> tuple[str, ...]:
    """What changes no update, all at its smallest."""
    longest = config.data.max_prompt_tokens + config.sampling.max_response_tokens
    words = []
    if not config.train.gradient_checkpointing:
        words.append("train.gradient_checkpointing=true")
    if config.train.tokens_per_microbatch > longest:
        words.append(f"train.tokens_per_microbatch={longest}")
    if config.engine.slots > LEAST_SLOTS:
        words.append(f"engine.slots={LEAST_SLOTS}")
    return tuple(words)


def _sharded(config: Config, gpus: int) -> Iterator[tuple[str, ...]]:
    """Learner and engines apart, engines of 1, 2, 4 and 8 devices, with as few ranks as will do."""
    apart = ['cluster.kind="ray"', *(['learner.kind="torch"'] if config.learner.kind == "fsdp" else [])]
    for each in (1, 2, 4, 8):
        split = [] if each == 1 else [f"cluster.gpus_per_engine={each}"]
        split += [] if each == 1 or config.engine.kind == "vllm" else ['engine.kind="vllm"']
        ranks = 1
        while ranks < gpus:
            engines = (gpus - ranks) // each
            if engines:
                yield (*apart, f"cluster.learner_ranks={ranks}", f"cluster.engines={engines}", *split)
            ranks *= 2
