"""Combinations of the sections `cluster` and `pipeline` that can't be used."""

from __future__ import annotations

from collections.abc import Iterator

from dapo.config.schema import Config


def scale_problems(config: Config) -> Iterator[str]:
    """One line each: the field, what is wrong with it, the mend."""
    yield from _cluster(config)
    yield from _pipeline(config)


def _cluster(config: Config) -> Iterator[str]:
    cluster = config.cluster
    if cluster.kind == "local":
        for field, value, least in (
            ("learner_ranks", cluster.learner_ranks, 1),
            ("engines", cluster.engines, 1),
            ("graders", cluster.graders, 0),
        ):
            if value > least:
                yield f'cluster.{field} = {value} needs cluster.kind = "ray"'
    elif config.learner.kind == "fsdp":
        yield (
            'learner.kind = "fsdp" is one rank of a learner that torchrun started; with cluster.kind = "ray" leave it '
            "out and set cluster.learner_ranks"
        )
    elif cluster.learner_ranks > 1 and config.learner.kind != "torch":
        yield (
            f'learner.kind = "{config.learner.kind}" runs in one process, and cluster.learner_ranks = '
            f"{cluster.learner_ranks}; leave one of them out"
        )
    if cluster.weights == "broadcast" and cluster.kind != "ray":
        yield 'cluster.weights = "broadcast" needs cluster.kind = "ray"'
    elif cluster.weights == "broadcast" and config.engine.kind != "torch":
        yield (
            f'cluster.weights = "broadcast" reaches engines of engine.kind = "torch" alone, and it is '
            f'"{config.engine.kind}"; leave it out'
        )
    if config.engine.kind == "vllm" and config.learner.kind == "fsdp":
        yield (
            'engine.kind = "vllm" and learner.kind = "fsdp" would share a process, and each needs the process group to '
            'itself; set cluster.kind = "ray" and cluster.learner_ranks in place of learner.kind'
        )
    if cluster.kind == "ray" and config.engine.vllm.sleep:
        yield 'engine.vllm.sleep with cluster.kind = "ray": engines have GPUs of their own there; leave it out'
    if config.engine.vllm.sleep and config.engine.kind != "vllm":
        yield f'engine.vllm.sleep needs engine.kind = "vllm", and it is "{config.engine.kind}"'


def _pipeline(config: Config) -> Iterator[str]:
    pipeline, sampling, algorithm = config.pipeline, config.sampling, config.algorithm
    if pipeline.kv_cache == "recompute" and pipeline.swap == "between_draws":
        yield (
            'pipeline.kv_cache = "recompute", but with pipeline.swap = "between_draws" no response outlives a policy; '
            'leave it out, or set swap = "in_flight"'
        )
    if not pipeline.max_staleness:
        return
    wants = f"pipeline.max_staleness = {pipeline.max_staleness}"
    if config.engine.vllm.sleep:
        yield f"{wants} samples while the learner updates, and engine.vllm.sleep stops it then; leave one of them out"
    if pipeline.swap == "between_draws" and pipeline.max_staleness > 1:
        yield (
            f'{wants}, but with pipeline.swap = "between_draws" every token is one version old: set max_staleness = 1, '
            'or swap = "in_flight"'
        )
    if pipeline.swap == "in_flight" and sampling.schedule != "streaming":
        yield f'{wants} with pipeline.swap = "in_flight" needs sampling.schedule = "streaming"'
    if sampling.surplus != "discard":
        yield f'{wants} queues draws by itself; set sampling.surplus = "discard" and sampling.max_staleness = 0'
    if algorithm.old_logprobs != "learner":
        yield (
            f"{wants} trains on tokens of older policies and needs algorithm.old_logprobs = "
            '"learner" beside the engine\'s'
        )
    if algorithm.importance_cap is None:
        yield (
            f"{wants} trains on tokens of older policies; set algorithm.importance_cap (e.g. 2), the bound C of "
            "the weight min(exp(old - engine), C)"
        )
