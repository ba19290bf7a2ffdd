"""Past one process: vLLM, sharded training, Ray, and an engine that goes on while the learner updates."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.base import Float, Int, NullableFloat, NullableInt, Section


class VllmConfig(Section):
    """Of engine.kind = "vllm"."""

    gpu_memory_fraction: Annotated[Float, Field(gt=0, le=1)] = 0.85
    """Share of a GPU's memory for weights and KV cache."""
    kv_cache_gib: NullableFloat = None
    """Size of the KV cache in GiB; "off": what gpu_memory_fraction leaves, on a CPU 2."""
    eager: bool = False
    """Compile nothing and capture no CUDA graphs: starts in seconds, decodes slower."""
    sleep: bool = False
    """Give a GPU's memory back while the learner updates; for an engine that shares its GPU with the learner."""


class FsdpConfig(Section):
    """Of a sharded learner (PyTorch FSDP2): learner.kind = "fsdp", or cluster.learner_ranks over 1."""

    reshard_after_forward: bool = True
    """Free a block's gathered weights after its forward pass: less memory, one more gather for the backward pass, and
    gradients are reduced in each micro-batch. Off: weights and gradients stay whole on each rank for an update."""
    cpu_offload: bool = False
    """Keep shards and optimiser in host memory."""


class ClusterConfig(Section):
    """Where the parts of a run live."""

    kind: Literal["local", "ray"] = "local"
    """local: engine and learner in this process (or one learner rank in each process of torchrun). ray: each
    in actors of a Ray cluster, which is started here unless the environment names one (RAY_ADDRESS)."""
    learner_ranks: Int = Field(default=1, ge=1)
    """ray: processes that the learner is sharded over."""
    engines: Int = Field(default=1, ge=1)
    """ray: rollout engines. Draws are dealt out among them."""
    graders: Int = Field(default=0, ge=0)
    """ray: processes that grade; 0: the run's own process grades."""
    cpus_per_engine: Int = Field(default=1, ge=1)
    """ray: CPU cores that each engine asks for, and threads it runs."""
    cpus_per_rank: Int = Field(default=1, ge=1)
    """ray: CPU cores that each learner rank asks for, and threads it runs."""
    gpus_per_engine: NullableInt = None
    """ray: GPUs of each engine; "off": 1 where the cluster has any, else 0. More than 1 can be planned for
    (`dapo plan`), not run: tensor parallel engines are not built."""
    gpus_per_rank: NullableInt = None
    """ray: GPUs of each learner rank; "off": 1 where the cluster has any, else 0."""
    weights: Literal["object_store", "broadcast"] = "object_store"
    """ray: how new weights reach the engines. object_store: Ray's, which carries them to each node once. broadcast:
    torch.distributed sends them to all engines (gloo, between GPUs NCCL), and the object store keeps them for engines
    that are replaced."""
    engine_restarts: Int = Field(default=3, ge=0)
    """How often dead engines are replaced, in all, before the run stops. Their draws are run again."""
    learner_restarts: Int = Field(default=1, ge=0)
    """How often a run whose learner died goes on from its last checkpoint by itself."""


class PipelineConfig(Section):
    """An engine that samples the next step while the learner updates."""

    max_staleness: Int = Field(default=0, ge=0)
    """Policy versions by which a token may be behind the step that trains on it. 0: sampling and updates take turns."""
    swap: Literal["between_draws", "in_flight"] = "between_draws"
    """When the engine takes new weights. between_draws: each step's draws are sampled whole by the policy one
    version older (max_staleness = 1), so runs can be repeated. in_flight: between two tokens, as soon as there are
    any; what is sampled then depends on the clock."""
    kv_cache: Literal["keep", "recompute"] = "keep"
    """in_flight: keep the keys and values that older weights made, or compute them anew under the new ones."""
