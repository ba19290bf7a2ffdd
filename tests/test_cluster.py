"""The cluster room without a cluster: packed weights, what is asked for and what there is, the words for it."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dapo.checks.weights import Handed, Standing
from dapo.cluster.graders import RemoteScores
from dapo.cluster.placement import Wanted, check_here, check_room, split, wanted
from dapo.cluster.replies import Died
from dapo.cluster.session import need_ray
from dapo.cluster.weights import ObjectStore, Published
from dapo.errors import ConfigError, EngineError, UserError
from dapo.rollout.base import weight_sample
from helpers_learner import config
from helpers_run import quiet_dapo
from tiny import model, prompt

WEIGHTS = [*model(3).named_parameters(), ("odd", torch.arange(7, dtype=torch.int64)), ("none", torch.zeros(0, 4))]


@pytest.mark.parametrize("bucket_bytes", [1, 5000, 2**28])
def test_packed_weights_come_back_bit_for_bit(bucket_bytes: int) -> None:
    """Whatever the buckets: names in order, shapes, types, bits; integers and empty ones too."""
    transport = ObjectStore(bucket_bytes=bucket_bytes)
    buckets = list(transport.send(WEIGHTS))
    assert (len(buckets) == 1) == (bucket_bytes == 2**28)
    got = list(transport.receive(buckets))
    assert [name for name, _ in got] == [name for name, _ in WEIGHTS]
    for (_, one), (name, other) in zip(got, WEIGHTS, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype), name
        assert torch.equal(one, other), name


def test_weights_are_sent_in_the_type_that_is_computed_in() -> None:
    """Floating-point ones, rounded as the engine would round them; others as they are."""
    transport = ObjectStore("bfloat16")
    got = dict(transport.receive(transport.send(WEIGHTS)))
    assert got["odd"].dtype == torch.int64
    name, weight = WEIGHTS[0]
    assert torch.equal(got[name], weight.to(torch.bfloat16))


@pytest.mark.parametrize("change", ["one bit", "two words swapped", "a name", "a shape", "the tail"])
def test_other_weights_than_were_sent_are_refused(change: str) -> None:
    """An EngineError that names the part, before any of its tensors is handed out."""
    transport = ObjectStore(bucket_bytes=5000)
    buckets = list(transport.send(WEIGHTS))
    last = buckets[-1]
    data, entries = last.data.copy(), list(last.entries)
    if change == "one bit":
        data[8 * 17] ^= 1
    elif change == "two words swapped":
        words = data.view(np.uint64)
        other = int(np.flatnonzero(words != words[0])[0])
        words[[0, other]] = words[[other, 0]]
    elif change == "the tail":
        data[-8] ^= 128
    elif change == "a name":
        entries[0] = replace(entries[0], name="another")
    else:
        entries[0] = replace(entries[0], shape=tuple(reversed((*entries[0].shape, 1))))
    assert list(transport.receive([last]))
    seen = []
    with pytest.raises(EngineError, match=f"part {len(buckets) - 1} arrived"):
        seen += list(transport.receive([*buckets[:-1], replace(last, data=data, entries=tuple(entries))]))
    assert not seen


def test_weights_that_are_elsewhere_bring_their_samples() -> None:
    """A check of them fetches no weight; whoever iterates gets them."""
    fetched: list[str] = []
    transport = ObjectStore(bucket_bytes=5000)
    store = {f"part {i}": bucket for i, bucket in enumerate(transport.send(WEIGHTS))}
    samples = {name: weight_sample(weight).float() for name, weight in WEIGHTS}

    def fetch(name: str) -> Any:
        fetched.append(name)
        return samples if name == "samples" else store[name]

    handed = Handed(Published(list(store), "samples", fetch, transport))
    assert handed.samples() is samples
    assert fetched == ["samples"]
    assert [name for name, _ in handed] == [name for name, _ in WEIGHTS]


def test_samples_of_spread_weights_count_as_the_whole() -> None:
    """What the checks know of a learner in several processes: every rank's numbers, and how many there are in all."""
    whole = Standing.of([("w", torch.arange(100.0), True), ("fixed", torch.ones(3), False)])
    parts = Standing.of_samples([("w", torch.arange(64.0), 100, True), ("fixed", torch.ones(3), 3, False)])
    assert whole.numbers == parts.numbers == 100
    assert set(parts.trained) == {"w"}
    assert not parts.moved(parts)
    moved = Standing.of_samples([("w", torch.arange(64.0) + 1, 100, True), ("fixed", torch.ones(3), 3, False)])
    assert parts.moved(moved)


NODES = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 2.0}]


def test_what_a_run_asks_for() -> None:
    """A GPU each where the cluster has any and nothing else is said; graders have none."""
    own = config(cluster__kind="ray", cluster__engines=2, cluster__graders=3, cluster__gpus_per_rank=1)
    parts = wanted(own, gpus=True)
    assert [(part.count, part.cpus, part.gpus) for part in parts.values()] == [(1, 1, 1), (2, 1, 1), (3, 1, 0)]
    assert wanted(own, gpus=False)["engine"].bundle == {"CPU": 1.0}


@pytest.mark.parametrize("key", ["gpus_per_engine", "gpus_per_rank"])
def test_an_actor_has_one_gpu(key: str) -> None:
    """More would be reserved and left idle."""
    with pytest.raises(UserError, match=f"cluster.{key} = 4: each actor computes on one GPU"):
        wanted(config(cluster__kind="ray", **{f"cluster__{key}": 4}), gpus=True)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([Wanted("cluster.engines", 7, 1, 0)], "cluster.engines = 7 of 1 CPU core each: .* has 6 CPU cores and 2 GPUs"),
        (
            [Wanted("cluster.engines", 2, 1, 1), Wanted("cluster.learner_ranks", 1, 1, 1)],
            "3 CPU cores and 3 GPUs in all.*lower cluster.engines or cluster.learner_ranks",
        ),
        ([Wanted("cluster.engines", 1, 5, 0)], "no node is that large; the largest has 4 CPU cores and 2 GPUs"),
        ([Wanted("cluster.engines", 2, 4, 1), Wanted("cluster.graders", 0, 1, 0)], "8 CPU cores and 2 GPUs in all"),
    ],
    ids=["too many", "too many GPUs in all", "too large a one", "none of a kind"],
)
def test_more_than_there_is(parts: list[Wanted], words: str) -> None:
    """One line: what was asked, what there is, the mend."""
    with pytest.raises(UserError, match=words) as caught:
        check_room(parts, NODES)
    assert "\n" not in caught.value.message
    assert "cluster.graders" not in caught.value.message


def test_what_there_is_room_for() -> None:
    """All of a cluster may be asked for."""
    check_room([Wanted("cluster.engines", 2, 2, 1), Wanted("cluster.learner_ranks", 2, 1, 0)], NODES)


def test_sides_share_the_cores_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines and learner take turns: each side has to fit alone."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert check_here(config(cluster__kind="ray", cluster__engines=2, cluster__learner_ranks=2)) == 4
    assert check_here(config(cluster__kind="ray")) == 2
    with pytest.raises(UserError, match=r"cluster\.engines = 3 .*3 CPU cores, and this machine has 2.*RAY_ADDRESS"):
        check_here(config(cluster__kind="ray", cluster__engines=3))
    with pytest.raises(UserError, match=r"learner_ranks = 1 with cluster\.cpus_per_rank = 4"):
        check_here(config(cluster__kind="ray", cluster__cpus_per_rank=4))


@pytest.mark.parametrize("gpus", range(2, 9))
def test_gpus_are_split(gpus: int) -> None:
    """All of them are used, both sides get some, and engines not fewer."""
    dealt = split(gpus)
    assert sum(dealt.values()) == gpus
    assert dealt["cluster.engines"] >= dealt["cluster.learner_ranks"] >= 1


def test_one_gpu_is_not_split() -> None:
    """It is shared in one process."""
    with pytest.raises(ConfigError, match="leave --gpus out"):
        split(1)


class Graders:
    """Actors in this process. The first of each number is dead: whoever asks it waits for all that ask, then learns it.

    Attributes: started, numbers in their order; stopped, how many.
    """

    def __init__(self, asking: int) -> None:
        self.started: list[int] = []
        self.stopped = 0
        self.asked = threading.Barrier(asking)

    def start(self, number: int) -> Any:
        """See Launcher."""
        dead = number not in self.started
        self.started.append(number)
        reply = lambda prompt, texts, token_ids: (dead, texts)  # noqa: E731
        return SimpleNamespace(start=Remote(lambda config: None), score=Remote(reply))

    def stop(self, actor: Any) -> None:
        """See Launcher."""
        self.stopped += 1

    def receive(self, reply: Any, who: str) -> Any:
        """See replies.receive."""
        dead, texts = reply
        if dead:
            self.asked.wait(20)
            raise Died(f"{who} died")
        return [f"score of {text}" for text in texts], 1


class Remote:
    """A method of an actor."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_grader_that_dies_under_several_threads_is_replaced_once(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """An evaluation scores beside the thread that samples ahead; each gets its scores, none are counted twice."""
    graders = Graders(threads)
    monkeypatch.setattr("dapo.cluster.graders.receive", graders.receive)
    scores = RemoteScores(graders, config(), 1, judged=True)
    names = [f"response {number}" for number in range(threads)]
    for name in names:
        scores.begin(prompt([5]), [name], [[4]])
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda name: scores(prompt([5]), [name], [[4]]), names))
    assert found == [[f"score of {name}"] for name in names]
    assert (graders.started, graders.stopped) == ([0, 0], 1)
    assert (scores.lost_workers(), scores.lost_workers()) == (threads, 0)
    scores.close()
    scores.close()
    assert graders.stopped == 2


def test_ray_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the command."""
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r'pip install "dapo-rl\[ray\]"'):
        need_ray()


@pytest.mark.parametrize(
    ("there", "words", "told"),
    [
        (0, ["--gpus", "4"], "--gpus 4: of GPUs this machine has none that torch sees; leave --gpus out"),
        (2, ["--gpus", "4"], "--gpus 4: of GPUs this machine has 2 that torch sees; ask for 2"),
        (8, ["--gpus", "4", "cluster.engines=1"], "chooses cluster.engines itself; leave out cluster.engines=1"),
        (8, ["--gpus", "1"], "one GPU"),
    ],
    ids=["no GPU", "fewer", "said twice", "one"],
)
def test_gpus_that_are_not_there(monkeypatch: pytest.MonkeyPatch, there: int, words: list[str], told: str) -> None:
    """Exit code 2 and one line, before anything is loaded."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code, _, err = quiet_dapo("train", "tiny", *words)
    assert code == 2
    assert told in err
    assert err.count("\n") == 1


def test_gpus_that_are_there_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was chosen, as words that could have been typed."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code, _, err = quiet_dapo("train", "tiny", "--gpus", "8", "--dry-run")
    assert code == 0, err
    assert "--gpus 8: cluster.kind=ray cluster.learner_ranks=4 cluster.engines=4" in err
