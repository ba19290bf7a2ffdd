"""The parts of a run as actors, one at a time, on a cluster of this process: deaths, late results, faults on the way.

Slow: each process that Ray starts takes seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dapo.checks.weights import Handed
from dapo.cluster import graders
from dapo.cluster.broadcast import Broadcast
from dapo.cluster.broadcast_group import BroadcastGroup, Sending
from dapo.cluster.placement import Seats, Wanted
from dapo.cluster.replies import Home
from dapo.cluster.weights import Bucket, ObjectStore
from dapo.errors import EngineError, EnginesLost, LearnerLost
from dapo.flight import Flight
from dapo.learner.base import Learner
from dapo.reward import Scorers
from dapo.rollout.torch_engine import TorchEngine
from dapo.types import Batch, Prompt, Verdict
from helpers_cluster import close_open, learner_of, local_ray, remote_engines
from helpers_engine import collect, ids, params
from helpers_fsdp import fsdp_learner
from helpers_learner import SHAPE, batch_of, config, rows_of, same, torch_learner, weights, with_old
from tiny import EOS_ID, model, prompt

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("closing")]


@pytest.fixture
def closing() -> Iterator[None]:
    """What a test opens is closed behind it."""
    yield
    close_open()


PROMPTS = [prompt([4 + (5 * i + j) % 50 for j in range(1 + 4 * i)], name=f"p{i}") for i in range(4)]
DRAWS = range(12)


class Slow(TorchEngine):
    """Works so slowly that a death falls into the middle of its draws."""

    def _step(self) -> None:
        time.sleep(0.02)
        super()._step()


def slow_engine() -> TorchEngine:
    """The embedded engine on the tiny model."""
    return Slow(model(4), eos_ids=[EOS_ID], slots=8, max_tokens=64)


def plain_engine() -> TorchEngine:
    """The same at its own pace."""
    return TorchEngine(model(4), eos_ids=[EOS_ID], slots=8, max_tokens=64)


def kill(actor: Any) -> None:
    """SIGKILL to an actor's process."""
    os.kill(local_ray().get(actor.__ray_call__.remote(_pid), timeout=60), 9)


def _pid(actor: Any) -> int:
    return os.getpid()


def flown(flight: Flight, wanted: Sequence[int]) -> dict[int, list[list[int]]]:
    """Tokens of each draw, once all have come."""
    done: dict[int, list[list[int]]] = {}
    until = time.monotonic() + 120
    while len(done) < len(wanted):
        assert time.monotonic() < until
        done |= {finished.draw: [ids(response) for response in finished.responses] for finished in flight.poll()}
    return done


def expected() -> dict[int, list[list[int]]]:
    """Tokens of the draws from an engine in this process."""
    engine = plain_engine()
    engine.load_weights(3, model(1).named_parameters())
    for draw in DRAWS:
        engine.submit(draw, PROMPTS[draw % 4], params(20, n=3))
    return {draw: [ids(r) for r in responses] for draw, responses in collect(engine, DRAWS).items()}


def test_a_dead_engine_is_replaced_and_its_draws_are_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """Killed with draws half decoded: all come, with the tokens of an undisturbed run, by the newest weights."""
    engines = remote_engines(slow_engine, restarts=1)
    engines.load_weights(3, model(1).named_parameters())
    victim = engines._seats[1]
    pid = local_ray().get(victim.actor.__ray_call__.remote(_pid), timeout=60)  # now: it would wait behind draws
    flight = Flight(engines, params(20, n=3), reruns=3)
    for draw in DRAWS:
        flight.submit(draw, PROMPTS[draw % 4])
    got = {finished.draw: [ids(response) for response in finished.responses] for finished in flight.poll()}
    assert victim.jobs
    os.kill(pid, 9)
    got |= flown(flight, [draw for draw in DRAWS if draw not in got])
    assert got == expected()
    assert flight.failures >= 1
    assert "engine 1 died" in caplog.text


def test_restarts_that_are_used_up_stop_the_run() -> None:
    """EnginesLost, which Flight does not take for a failure that goes by."""
    engines = remote_engines(slow_engine, restarts=0)
    flight = Flight(engines, params(20, n=3), reruns=3)
    for draw in DRAWS:
        flight.submit(draw, PROMPTS[draw % 4])
    kill(engines._seats[0].actor)
    with pytest.raises(EnginesLost, match=r"engine 0 died .*cluster\.engine_restarts = 0 are used up"):
        flown(flight, DRAWS)


def test_weights_that_changed_on_their_way_are_refused() -> None:
    """By every engine, and no token is sampled by them as if they were the version."""
    engines = remote_engines(plain_engine, transport=Damaging(bucket_bytes=4096))
    with pytest.raises(EngineError, match="arrived with the fingerprint"):
        engines.load_weights(1, model(1).named_parameters())


class Damaging(ObjectStore):
    """Changes one byte on the way."""

    def receive(self, parts: Any) -> Any:
        """See WeightTransport."""
        return super().receive(_damaged(number, part) for number, part in enumerate(parts))


def _damaged(number: int, bucket: Bucket) -> Bucket:
    data = bucket.data.copy()
    data[0] ^= number == 1
    return replace(bucket, data=data)


def test_engines_take_weights_that_never_pass_here() -> None:
    """A remote learner's export goes to them by reference; they hold exactly it."""
    engines, learner = remote_engines(plain_engine), learner_of(one_rank, model(2), count=1)
    exported: Any = learner.export_weights()
    exported._fetch = None  # nothing may be fetched here
    engines.load_weights(4, exported)
    wanted = list(plain_engine_samples(2)) * 2  # of one engine behind the other's
    found = list(engines.weight_samples() or ())
    assert [name for name, _ in found] == [name for name, _ in wanted]
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(found, wanted, strict=True))


def broadcasting(kind: type[BroadcastGroup] = BroadcastGroup, seconds: float = 20, **more: Any) -> tuple[Any, Any]:
    """Two engines, and a learner of one rank that broadcasts to them."""
    engines, learner = remote_engines(plain_engine, **more), learner_of(one_rank, model(2), count=1)
    learner.group = kind("127.0.0.1", engines.members, seconds=seconds)
    return engines, learner


def assert_held(engines: Any, learner: Any, version: int) -> list[Any]:
    """After a sync all engines hold the learner's weights, of which none was fetched here. Returns what they hold."""
    exported: Any = learner.export_weights()
    engines.load_weights(version, Handed(exported))
    held, samples = list(engines.weight_samples()), exported.samples()
    assert [name for name, _ in held] == [name for name, _ in plain_engine_samples(2)] * 2
    assert all(torch.equal(sample, samples[name]) for name, sample in held)
    return held


def test_engines_take_weights_by_broadcast(caplog: pytest.LogCaptureFixture) -> None:
    """Two versions, with nothing from the store; the second has an update more."""
    engines, learner = broadcasting()
    engines._load = None  # what loads from the store
    first = assert_held(engines, learner, 1)
    learner.update(ready(torch_learner(model(2))), 1e-2)
    second = assert_held(engines, learner, 2)
    assert any(not torch.equal(one, other) for (_, one), (_, other) in zip(first, second, strict=True))
    assert "broadcast" not in caplog.text
    assert learner.group._generation == 1


class Fatal(Broadcast):
    """Ends the engine's process once it has a weight."""

    def receive(self, parts: Any) -> Any:
        """See WeightTransport."""
        yield next(super().receive(parts))
        os._exit(9)


class Dying(BroadcastGroup):
    """Engine 1 dies in the first broadcast."""

    def begin(self, plain: ObjectStore) -> Sending:
        """See BroadcastGroup."""
        sending = super().begin(plain)
        if self._generation > 1:
            return sending
        actor, own = sending.receivers[1]
        return replace(sending, receivers={**sending.receivers, 1: (actor, Fatal(own._meeting, own._number))})


def test_an_engine_that_dies_in_a_broadcast_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """Both hold the version all the same, and the next one goes by a group of both."""
    engines, learner = broadcasting(Dying, restarts=1)
    start = time.monotonic()
    assert_held(engines, learner, 1)
    assert "engine 1 died" in caplog.text
    while engines._seats[1].begun:
        engines._take_begun(engines._seats[1])
    caplog.clear()
    assert_held(engines, learner, 2)
    assert (learner.group._generation, learner.group._sound) == (2, True)
    assert "broadcast" not in caplog.text
    assert time.monotonic() - start < 240


def test_a_broadcast_that_no_engine_hears_can_be_read_here() -> None:
    """Whoever iterates gets the weights of then, once the learner has waited; the next version is broadcast again."""
    engines, learner = broadcasting(seconds=5)
    exported = learner.export_weights()
    learner.update(ready(torch_learner(model(2))), 1e-2)
    assert same({name: weight.clone() for name, weight in exported}, weights(torch_learner(model(2))))
    learner.group._seconds = 20.0
    assert_held(engines, learner, 1)
    assert (learner.group._generation, learner.group._sound) == (2, True)


def plain_engine_samples(seed: int) -> Any:
    """Samples of an engine in this process that was given these weights."""
    engine = plain_engine()
    engine.load_weights(1, model(seed).named_parameters())
    return engine.weight_samples()


def test_an_engine_gets_little_more_than_it_has_slots_for() -> None:
    """The rest waits in the driver, and goes to whoever is free."""
    engines = remote_engines(slow_engine)
    for draw in range(40):
        engines.submit(draw, PROMPTS[0], params(20, n=2))
    engines.poll()
    assert all(seat.load <= 10 for seat in engines._seats)
    assert len(engines._waiting) >= 40 - 10 - 8
    lost = engines.cancel(range(40))
    assert lost > 0
    assert not any(seat.jobs for seat in engines._seats)


# --- the learner --------------------------------------------------------------------------------------


def one_rank(own: Any) -> Learner:
    """What a rank alone builds."""
    return torch_learner(own)


def one_of_several(own: Any) -> Learner:
    """What each of several ranks builds."""
    return fsdp_learner(own)


def ready(learner: Learner) -> Batch:
    """Rows with old log-probs."""
    return with_old(batch_of(rows_of(SHAPE)), learner)


def test_several_ranks_are_one_learner() -> None:
    """Log-probs, updates and weights are those of one process, to float32's rounding."""
    remote, local = learner_of(one_of_several, model(), count=2), torch_learner(model())
    batch = ready(local)
    assert torch.allclose(remote.logprobs(batch), local.logprobs(batch), atol=2e-5, rtol=0)
    for _ in range(3):
        one, other = remote.update(batch, 1e-3), local.update(batch, 1e-3)
        assert one["grad/norm"] == pytest.approx(other["grad/norm"], rel=1e-5)
    ours, theirs = weights(remote), weights(local)
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-5
    assert sum(count for _, _, count, _ in remote.parameter_samples()) == sum(w.numel() for w in theirs.values())


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_rank_ends_the_learner_soon(victim: int) -> None:
    """Killed while both are in an update: LearnerLost within seconds, from every call, and no rank is left."""
    learner = learner_of(one_of_several, model(), count=2)
    ranks, batch = list(learner._ranks), ready(torch_learner(model()))
    pids = [local_ray().get(rank.__ray_call__.remote(_pid)) for rank in ranks]
    start = time.monotonic()
    learner.update(batch, 1e-3)
    threading.Timer(0.3, os.kill, (pids[victim], 9)).start()
    with pytest.raises(LearnerLost, match="of the learner is lost"):
        updates(learner, batch, 2000)
    assert time.monotonic() - start < 60
    with pytest.raises(LearnerLost, match="of the learner is lost"):
        learner.cut(batch)


def updates(learner: Learner, batch: Batch, count: int) -> None:
    """So many of them."""
    for _ in range(count):
        learner.update(batch, 1e-3)


class Faulty:
    """A learner whose cut fails on one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def cut(self, minibatch: Any) -> list[list[int]]:
        """Fails on rank 1."""
        if self.rank == 1:
            raise MemoryError("out of memory")
        return [[0]]

    def update(self, minibatch: Any, learning_rate: float, trace: Any) -> dict[str, float]:
        """Fails on all ranks, in the same way."""
        raise ValueError("update needs old_logprobs")


def faulty() -> Any:
    """One of two ranks."""
    import torch.distributed as dist

    return Faulty(dist.get_rank())


def test_what_all_ranks_raise_is_raised_and_what_one_raises_ends_them() -> None:
    """The ranks of a learner that differ can't be gone on with."""
    learner = learner_of(faulty, count=2)
    with pytest.raises(ValueError, match="needs old_logprobs"):
        learner.update(None, 0.1)  # type: ignore[arg-type]
    with pytest.raises(LearnerLost, match=r"rank 1 .*MemoryError: out of memory"):
        learner.cut(None)  # type: ignore[arg-type]


def test_an_export_is_a_copy() -> None:
    """Of the instant at which it was asked for: an update behind it does not reach it."""
    learner = learner_of(one_rank, model(), count=1)
    exported = learner.export_weights()
    learner.update(ready(torch_learner(model())), 1e-2)
    assert same({n: t.clone() for n, t in exported}, weights(torch_learner(model())))
    assert not same(weights(learner), weights(torch_learner(model())))


# --- graders ------------------------------------------------------------------------------------------

REWARD = """
import os

def pid(completions, **columns):
    if "die" in columns["text"][0]:
        os._exit(1)
    return [float(os.getpid()) for _ in completions]
"""


def asked(text: str) -> Prompt:
    """A prompt whose column says what the reward function does."""
    return replace(prompt([5, 6], name=text), columns={"text": text})


def test_scores_come_from_other_processes_and_survive_their_death(tmp_path: Path) -> None:
    """The same call takes what was begun; a function that ends its process is an error, and the next call works."""
    local_ray()
    (tmp_path / "reward.py").write_text(REWARD)
    own = config(reward__functions=[f"{tmp_path / 'reward.py'}:pid"], sampling__filter="nonzero_std")
    seats = Seats(graders.GraderActor, Wanted("cluster.graders", 2, 1, 0), None, Home.here())
    scores = graders.RemoteScores(seats, own, 2, judged=False)
    try:
        scores.begin(asked("live"), ["a", "b"], [[1], [2]])
        begun = scores(asked("live"), ["a", "b"], [[1], [2]])
        assert len({score.reward for score in begun}) == 1
        assert begun[0].reward != os.getpid()
        other = scores(asked("live"), ["a", "c"], [[1], [2]])
        assert other[0].reward != begun[0].reward  # they take turns
        dead = scores(asked("die"), ["a", "b"], [[1], [2]])
        assert [score.verdict for score in dead] == [Verdict.ERROR] * 2
        again = scores(asked("live"), ["a"], [[1]])
        assert again[0].verdict is Verdict.GRADED
        assert Scorers.of(own).score(asked("live"), ["a"], [[1]])[0].reward == os.getpid()
    finally:
        scores.close()
