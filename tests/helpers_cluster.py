"""A local Ray cluster for tests, and parked actors that several tests share, since a process takes seconds to start."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from dapo.cluster.engine_actor import EngineActor
from dapo.cluster.engines import RemoteEngines
from dapo.cluster.learner import RemoteLearner
from dapo.cluster.placement import Seats, Wanted
from dapo.cluster.rank import Made, Place, RankActor
from dapo.cluster.replies import Home
from dapo.cluster.session import need_ray
from dapo.cluster.weights import ObjectStore
from dapo.learner.base import Learner
from dapo.rollout.base import RolloutEngine


@functools.cache
def local_ray() -> Any:
    """Ray with a cluster of this process, on 127.0.0.1; it ends with the process."""
    ray = need_ray()
    ray.init(address="local", include_dashboard=False, num_cpus=16, log_to_driver=False, logging_level="ERROR")
    atexit.register(ray.shutdown)
    return ray


def own_environment() -> dict[str, str]:
    """The environment of a command that starts a cluster of its own, with a temporary folder of its own."""
    return {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}


class Parked:
    """A Launcher whose actors wait, when they are stopped, for somebody who starts one again."""

    def __init__(self, kind: type, **options: Any) -> None:
        self._seats = Seats(kind, Wanted("tests", 1, 1, 0), None, Home.here(), **options)
        self._idle: list[Any] = []

    def start(self, number: int) -> Any:
        """An actor that was stopped, or a fresh one."""
        local_ray()
        return self._idle.pop() if self._idle else self._seats.start(number)

    def stop(self, actor: Any) -> None:
        """Kept, unless it is dead."""
        ray = need_ray()
        try:
            ray.get(actor.__ray_ready__.remote(), timeout=20)
        except ray.exceptions.RayError:
            ray.kill(actor)
        else:
            self._idle.append(actor)


ENGINES, RANKS = Parked(EngineActor), Parked(RankActor, concurrency_groups={"save": 1})
OPEN: list[Any] = []  # what a test has made and not closed


def remote_engines(make: Callable[[], RolloutEngine], count: int = 2, **more: Any) -> RemoteEngines:
    """Engines in actors. `make` is a function of a test module, which actors import."""
    own = {"launcher": ENGINES, "slots": 8, "transport": ObjectStore(bucket_bytes=4096)} | more
    engines = RemoteEngines(make=make, count=count, **own)
    OPEN.append(engines)
    engines.ready()
    return engines


def remote_learner(make: Callable[[Place], Made], count: int, **more: Any) -> RemoteLearner:
    """A learner of so many rank actors."""
    ray = local_ray()

    def stop(actor: Any) -> None:
        """A rank of a broken process group can't begin anew."""
        closed = learner._lost == "it was closed"
        (RANKS.stop if closed else ray.kill)(actor)

    own = {"transport": ObjectStore(bucket_bytes=4096), "stop": stop} | more
    learner = RemoteLearner([RANKS.start(number) for number in range(count)], make, **own)
    OPEN.append(learner)
    learner.ready()
    return learner


def close_open() -> None:
    """Parks what is open."""
    while OPEN:
        OPEN.pop().close()


def rank_of(make: Callable[..., Learner], place: Place, *arguments: Any) -> Made:
    """What a rank builds: whatever `make` gives of these arguments."""
    return Made(make(*arguments), f"rank {place.rank} of {place.size}")


def learner_of(make: Callable[..., Learner], *arguments: Any, count: int) -> RemoteLearner:
    """A remote learner whose ranks each call make(*arguments)."""
    return remote_learner(partial(_made, make, arguments), count)


def _made(make: Callable[..., Learner], arguments: tuple[Any, ...], place: Place) -> Made:
    return rank_of(make, place, *arguments)
