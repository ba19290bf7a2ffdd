"""Which resources the parts of a run ask for, whether a cluster has them, and where on it they go."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dapo.cluster.session import need_ray, own_cluster
from dapo.config.schema import Config
from dapo.errors import ConfigError, EnginesLost, UserError

RESERVE_S = 40.0  # until what was asked for has to be free


@dataclass(frozen=True, slots=True)
class Wanted:
    """`count` actors of so many CPU cores and GPUs each. key: of the configuration, which says how many."""

    key: str
    count: int
    cpus: int
    gpus: int

    @property
    def bundle(self) -> dict[str, float]:
        """What one of them takes, in Ray's words."""
        return {"CPU": float(self.cpus)} | ({"GPU": float(self.gpus)} if self.gpus else {})

    def words(self) -> str:
        """`cluster.engines = 2 of 1 CPU core and 1 GPU each`."""
        return f"{self.key} = {self.count} of {_words(self.bundle)} each"


def wanted(config: Config, gpus: bool) -> dict[str, Wanted]:
    """What a run asks for, by part. gpus: whether the cluster has any.

    Raises UserError: an actor would have several GPUs, and use one.
    """
    own = config.cluster
    for key, count in (("gpus_per_engine", own.gpus_per_engine), ("gpus_per_rank", own.gpus_per_rank)):
        if count is not None and count > 1:
            raise UserError(
                f"cluster.{key} = {count}: each actor computes on one GPU (tensor parallel engines are not built); "
                f"leave it out, or set it to 1, and raise cluster.{'engines' if 'engine' in key else 'learner_ranks'}"
            )
    default = 1 if gpus else 0

    def choose(asked: int | None) -> int:
        return default if asked is None else asked

    return {
        "learner": Wanted("cluster.learner_ranks", own.learner_ranks, own.cpus_per_rank, choose(own.gpus_per_rank)),
        "engine": Wanted("cluster.engines", own.engines, own.cpus_per_engine, choose(own.gpus_per_engine)),
        "grader": Wanted("cluster.graders", own.graders, 1, 0),
    }


def check_here(config: Config) -> int:
    """CPU cores that a cluster on this machine has to say it has. Raises UserError when it has too few.

    Engines and learner take turns, so they may share cores; each side has to find room by itself.
    """
    cores, own = os.cpu_count() or 1, config.cluster
    sides = (
        ("cluster.engines", own.engines, "cluster.cpus_per_engine", own.cpus_per_engine),
        ("cluster.learner_ranks", own.learner_ranks, "cluster.cpus_per_rank", own.cpus_per_rank),
        ("cluster.graders", own.graders, "", 1),
    )
    for key, count, key_each, each in sides:
        if count * each > cores:
            of = f" with {key_each} = {each}" if key_each else ""
            raise UserError(
                f"{key} = {count}{of} asks for {_words({'CPU': count * each})}, and this machine has {cores}; lower "
                f"{key}, or name a larger cluster in RAY_ADDRESS"
            )
    return max(cores, sum(count * each for _, count, _, each in sides))


def check_room(parts: Sequence[Wanted], nodes: Sequence[Mapping[str, float]]) -> None:
    """Raises UserError when a cluster of these nodes can never hold the parts."""
    parts = [part for part in parts if part.count]
    asked = {kind: sum(part.count * part.bundle.get(kind, 0) for part in parts) for kind in ("CPU", "GPU")}
    there = {kind: sum(node.get(kind, 0) for node in nodes) for kind in asked}
    wish = "; ".join(part.words() for part in parts)
    if any(asked[kind] > there[kind] for kind in asked):
        raise UserError(
            f"{wish}: {_words(asked)} in all, and the cluster has {_words(there)}; lower "
            + " or ".join(part.key for part in parts)
        )
    for part in parts:
        if not any(all(node.get(kind, 0) >= size for kind, size in part.bundle.items()) for node in nodes):
            largest = max(nodes, key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)))
            raise UserError(f"{part.words()}: no node is that large; the largest has {_words(largest)}")


def reserve(parts: Mapping[str, Wanted]) -> dict[str, Any]:
    """Placement groups of the parts that ask for anything. Raises UserError when they don't come free in time.

    Ranks are packed, since they exchange weights and gradients at every layer, and one node's links are the
    fastest. Engines never talk to each other, so they are spread: each has a node's memory bandwidth to itself
    where it can, and a node that is lost takes few of them.
    """
    groups: dict[str, Any] = {}
    from ray.util.placement_group import placement_group

    for name, strategy in (("learner", "PACK"), ("engine", "SPREAD")):
        part = parts[name]
        groups[name] = placement_group([part.bundle] * part.count, strategy=strategy)
    for name, group in groups.items():
        if not group.wait(RESERVE_S / len(groups)):
            release(groups)
            free = need_ray().available_resources()
            raise UserError(
                f"{parts[name].words()}: not free on the cluster within {RESERVE_S:.0f} seconds; free now: "
                f"{_words(free)}; wait for what runs there (ray status), or lower {parts[name].key}"
            )
    return groups


def release(groups: Mapping[str, Any]) -> None:
    """Gives placement groups back."""
    from ray.util.placement_group import remove_placement_group

    for group in groups.values():
        remove_placement_group(group)


class Seats:
    """Starts actors of one part in the places that are reserved for them. See engines.Launcher.

    Args:
        kind: the actor's class.
        part: what one of them takes.
        group: its placement group; None for none.
        arguments: of the actor.
        options: of Ray, more of them.
    """

    def __init__(self, kind: type, part: Wanted, group: Any | None, *arguments: Any, **options: Any) -> None:
        self._kind, self._part, self._group = kind, part, group
        self._arguments, self._options = arguments, options

    def start(self, number: int) -> Any:
        """A fresh actor in place `number`. Raises EnginesLost when the cluster has no place for it any more."""
        ray = need_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options: dict[str, Any] = {"num_cpus": self._part.cpus, "num_gpus": self._part.gpus, **self._options}
        if self._group is not None:
            if not self._group.wait(RESERVE_S):
                raise EnginesLost(f"{self._part.words()}: the cluster has no place for all of them any more")
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=number
            )
        environment = {"OMP_NUM_THREADS": str(self._part.cpus)}  # before torch is imported there
        if not self._part.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        options["runtime_env"] = {"env_vars": environment}
        return ray.remote(**options)(self._kind).remote(*self._arguments)

    @staticmethod
    def stop(actor: Any) -> None:
        """See engines.Launcher."""
        need_ray().kill(actor)


def split(gpus: int) -> dict[str, int]:
    """How `--gpus N` deals out GPUs: half of them to learner ranks, the rest, which is not less, to engines.

    >>> split(8), split(3)
    ({'cluster.learner_ranks': 4, 'cluster.engines': 4}, {'cluster.learner_ranks': 1, 'cluster.engines': 2})
    """
    if gpus < 2:
        raise ConfigError("--gpus: with one GPU engine and learner share it in one process; leave --gpus out")
    return {"cluster.learner_ranks": gpus // 2, "cluster.engines": gpus - gpus // 2}


def check_gpus(count: int) -> None:
    """Raises UserError when a cluster on this machine would have fewer; what another one has is seen on joining it."""
    if not own_cluster():
        return
    import torch

    there = torch.cuda.device_count()
    if count > there:
        has = f"{there} that torch sees" if there else "none that torch sees"
        mend = f"ask for {there}" if there > 1 else "leave --gpus out, which trains in one process"
        raise UserError(f"--gpus {count}: of GPUs this machine has {has}; {mend}, or name a cluster in RAY_ADDRESS")


def _words(resources: Mapping[str, float]) -> str:
    """`4 CPU cores and 1 GPU`."""
    cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    cores = f"{cpus} CPU core{'s' * (cpus != 1)}"
    return f"{cores} and {gpus} GPU{'s' * (gpus != 1)}" if "GPU" in resources else cores
