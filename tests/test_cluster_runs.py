"""Whole runs on Ray, held against runs in one process: the same tokens, deaths that are outlived, nothing left running.

Slow: each run starts several processes.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import helpers_run as helpers
from dapo.run.directory import RunDirectory
from helpers_cluster import local_ray, own_environment

pytestmark = pytest.mark.slow

STEPS = 3
OBJECTIVE = """
import os
from pathlib import Path

import torch.distributed as dist

from dapo.algorithm import dapo_objective

def dies(inputs):
    last = not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1
    if last and Path({checkpoint!r}).is_dir() and not Path({marker!r}).exists():
        Path({marker!r}).touch()
        os._exit(9)
    return dapo_objective(inputs, clip_low=0.2, clip_high=0.28)
"""
RAY = ("cluster.kind=ray", "cluster.engines=2")


def words(folder: Path, *more: str, run: str = "run") -> tuple[str, ...]:
    """Settings of a run whose learner dies in an update once its first checkpoint stands; a marker says: not again."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, marker = folder / run / "checkpoints" / "step_000001", folder / "died"
    (folder / "objective.py").write_text(OBJECTIVE.format(checkpoint=str(checkpoint), marker=str(marker)))
    own = (f"train.num_steps={STEPS}", "checkpoint.every=1", "cluster.learner_restarts=1")
    return (*own, f"algorithm.objective={folder / 'objective.py'}:dies", *more)


def undisturbed(folder: Path, *more: str) -> Path:
    """A run in which nothing dies."""
    own = words(folder, *more)
    (folder / "died").touch()
    return helpers.train(folder, *own)


@functools.cache
def local_run() -> Path:
    """In this process."""
    return undisturbed(helpers.folder_of_this_process())


@functools.cache
def sharded_run() -> Path:
    """With two learner ranks."""
    local_ray()
    return undisturbed(helpers.folder_of_this_process(), *RAY, "cluster.learner_ranks=2")


def rollouts(run: Path) -> list[Any]:
    """Every row of every step."""
    opened = RunDirectory.open(str(run))
    return [opened.rollouts(step) for step in range(1, STEPS + 1)]


def farthest(one: Path, other: Path, left_out: tuple[str, ...] = ()) -> tuple[str, float]:
    """The metric that differs most, relative to 1 or to its size."""
    worst = ("", 0.0)
    for a, b in zip(helpers.comparable(helpers.metrics(one)), helpers.comparable(helpers.metrics(other)), strict=True):
        assert a.keys() == b.keys()
        for name in a:
            if name in left_out or a[name] == b[name]:
                continue
            worst = max(worst, (name, abs(a[name] - b[name]) / max(1.0, abs(a[name]))), key=lambda pair: pair[1])
    return worst


def test_engines_and_graders_elsewhere_change_nothing(tmp_path: Path) -> None:
    """Two engines, a rank and a grader: every token, score, metric and weight is that of one process."""
    local_ray()
    run = undisturbed(tmp_path, *RAY, "cluster.graders=1")
    assert rollouts(run) == rollouts(local_run())
    assert helpers.comparable(helpers.metrics(run)) == helpers.comparable(helpers.metrics(local_run()))
    assert helpers.largest_difference(helpers.weights_at(run, STEPS), helpers.weights_at(local_run(), STEPS)) == 0
    assert not (run / "checks.jsonl").exists()


def test_two_ranks_differ_by_rounding() -> None:
    """The first step samples the same tokens; metrics and weights stay together."""
    assert rollouts(sharded_run())[0] == rollouts(local_run())[0]
    name, distance = farthest(sharded_run(), local_run())
    assert distance < 1e-3, name
    found, wanted = helpers.weights_at(sharded_run(), STEPS), helpers.weights_at(local_run(), STEPS)
    assert helpers.largest_difference(found, wanted) < 1e-3


BROADCAST = (*RAY, "cluster.weights=broadcast")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_broadcast_carries_the_same_weights(tmp_path: Path, ranks: int) -> None:
    """To two engines, from the only rank or the first of two: every token, metric and weight is the same."""
    local_ray()
    other = local_run() if ranks == 1 else sharded_run()
    run = undisturbed(tmp_path, *BROADCAST, f"cluster.learner_ranks={ranks}")
    assert rollouts(run) == rollouts(other)
    assert helpers.comparable(helpers.metrics(run)) == helpers.comparable(helpers.metrics(other))
    assert helpers.largest_difference(helpers.weights_at(run, STEPS), helpers.weights_at(other, STEPS)) == 0
    assert not (run / "checks.jsonl").exists()
    assert "object store" not in (run / "log.txt").read_text()


AHEAD = ("pipeline.max_staleness=1", "algorithm.importance_cap=2")


def test_a_step_ahead_on_the_cluster_is_a_step_ahead_here(tmp_path: Path) -> None:
    """The engines sample while the rank updates; which process does so changes no token, metric or weight."""
    local_ray()
    here = helpers.train(tmp_path / "here", f"train.num_steps={STEPS}", *AHEAD)
    there = helpers.train(tmp_path / "there", f"train.num_steps={STEPS}", *AHEAD, *RAY)
    assert rollouts(there) == rollouts(here)
    assert helpers.comparable(helpers.metrics(there)) == helpers.comparable(helpers.metrics(here))
    assert helpers.largest_difference(helpers.weights_at(there, STEPS), helpers.weights_at(here, STEPS)) == 0


KILLS = """
import os
from pathlib import Path

from dapo.algorithm import dapo_objective

def kills(inputs):
    if Path({checkpoint!r}).is_dir() and not Path({marker!r}).exists():
        Path({marker!r}).touch()
        engines = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            words = stat.read_text().rpartition(")")[2].split()
            if int(words[1]) == os.getppid() and b"EngineActor" in stat.with_name("cmdline").read_bytes():
                engines.append((int(words[19]), int(stat.parent.name)))
        os.kill(max(engines)[1], 9)
    return dapo_objective(inputs, clip_low=0.2, clip_high=0.28)
"""  # the engine of our own cluster that started last


@pytest.mark.parametrize("more", [(), AHEAD], ids=["taking turns", "a step ahead"])
def test_an_engine_killed_in_an_update_under_broadcast(tmp_path: Path, more: tuple[str, ...]) -> None:
    """It is replaced, with the version of then, and the run goes on to the figures of one in which nothing died."""
    local_ray()
    runs = []
    for name, where in (("here", ()), ("there", BROADCAST)):
        folder = tmp_path / name
        folder.mkdir()
        marker, checkpoint = folder / "killed", folder / "run" / "checkpoints" / "step_000001"
        (folder / "objective.py").write_text(KILLS.format(marker=str(marker), checkpoint=str(checkpoint)))
        if not where:
            marker.touch()
        own = (f"train.num_steps={STEPS}", "checkpoint.every=1", f"algorithm.objective={folder / 'objective.py'}:kills")
        runs.append(helpers.train(folder, *own, *more, *where))
        assert marker.exists()
    here, there = runs
    assert (there / "log.txt").read_text().count("it is replaced") == 1
    assert rollouts(there) == rollouts(here)
    assert farthest(there, here, left_out=("sampling/engine_failures", "total/engine_failures")) == ("", 0.0)
    assert helpers.largest_difference(helpers.weights_at(there, STEPS), helpers.weights_at(here, STEPS)) == 0


def test_in_flight_on_the_cluster(tmp_path: Path) -> None:
    """Weights reach engines that have draws in flight; no token is too old, and every self-check passes."""
    local_ray()
    more = ("pipeline.swap=in_flight", "sampling.schedule=streaming", "sampling.gen_prompts=8")
    run = helpers.train(tmp_path, "train.num_steps=6", *AHEAD, *more, *RAY)
    rows = helpers.metrics(run)[1:]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert 0 < max(row["staleness/max_versions"] for row in rows) <= 1
    assert not (run / "checks.jsonl").exists()


def test_a_rank_that_dies_in_an_update_is_outlived(tmp_path: Path) -> None:
    """The run goes on by itself from its last checkpoint, and ends as one in which nothing died, bit for bit."""
    local_ray()
    own = words(tmp_path, *RAY, "cluster.learner_ranks=2")
    code, _, err = helpers.quiet_dapo("train", helpers.write_recipe(tmp_path), *own, "--output-dir", tmp_path / "run")
    assert code == 0, err
    assert (tmp_path / "died").exists()
    assert "rank 1 of the learner is lost" in err
    assert "going on from the last checkpoint (restarts left: 0)" in err
    assert rollouts(tmp_path / "run") == rollouts(sharded_run())
    assert farthest(tmp_path / "run", sharded_run()) == ("", 0.0)


def test_without_restarts_it_stops_and_can_be_resumed(tmp_path: Path) -> None:
    """Exit code 3 with the command; a resume ends as if nothing had been."""
    local_ray()
    own = words(tmp_path, *RAY, "cluster.learner_ranks=2", "cluster.learner_restarts=0")
    code, _, err = helpers.quiet_dapo("train", helpers.write_recipe(tmp_path), *own, "--output-dir", tmp_path / "run")
    assert code == 3, err
    assert f"go on with: dapo train --resume {tmp_path / 'run'}" in " ".join(err.split())
    code, _, err = helpers.quiet_dapo("train", "--resume", tmp_path / "run")
    assert code == 0, err
    assert rollouts(tmp_path / "run") == rollouts(sharded_run())


def test_more_than_the_cluster_has(tmp_path: Path) -> None:
    """One line within the first minute, exit code 2, and no run."""
    local_ray()
    start = time.monotonic()
    recipe = helpers.write_recipe(tmp_path)
    own = (*RAY, "cluster.cpus_per_engine=50", "-q")
    code, _, err = helpers.quiet_dapo("train", recipe, *own, "--output-dir", tmp_path / "run")
    assert code == 2
    assert "error: cluster.learner_ranks = 1 of 1 CPU core each; cluster.engines = 2 of 50 CPU cores each" in err
    assert "lower cluster.learner_ranks or cluster.engines" in err
    assert time.monotonic() - start < 60
    assert not (tmp_path / "run" / "config.resolved.json").exists()


# --- the driver's own cluster, and its end ------------------------------------------------------------


def started(folder: Path, *more: str) -> subprocess.Popen[str]:
    """A long run on a cluster of its own, in a process of its own; its first step is done."""
    recipe = helpers.write_recipe(folder)
    command = [sys.executable, "-m", "dapo", "train", str(recipe), *RAY, "train.num_steps=100000", "eval.data=[]"]
    command += ["data.holdout=0", "checkpoint.every=1", *more, "--output-dir", str(folder / "run")]
    with (folder / "err.txt").open("w") as err:
        process = subprocess.Popen(command, env=own_environment(), stderr=err, stdout=err, text=True)
    until = time.monotonic() + 240
    while not list((folder / "run" / "checkpoints").glob("step_*")):
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            pytest.fail((folder / "err.txt").read_text())
        time.sleep(0.2)
    return process


def below(pid: int) -> dict[int, str]:
    """Processes that descend from one, Ray's two agents aside: those outlive a killed raylet by a minute or two."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,stat,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 3) for line in listed.splitlines()[1:]]
    found: dict[int, str] = {}
    parents = {pid}
    while parents:
        children = {int(row[0]): row[3] for row in rows if int(row[1]) in parents and int(row[0]) not in found}
        found |= children
        parents = set(children)
    return {child: args for child, args in found.items() if "Agent" not in args and "agent" not in args}


def all_end(pids: dict[int, str], seconds: float = 40) -> bool:
    """Whether all of these are gone, or are zombies, after a while."""

    def left() -> list[int]:
        return [pid for pid in pids if (stat := Path(f"/proc/{pid}/stat")).exists() and ") Z" not in _text(stat)]

    until = time.monotonic() + seconds
    while left() and time.monotonic() < until:
        time.sleep(0.2)
    return not left()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ") Z"


ENDS = {"killed": (signal.SIGKILL,), "Ctrl-C": (signal.SIGINT,), "Ctrl-C twice": (signal.SIGINT, signal.SIGINT)}


@pytest.mark.parametrize(("end", "codes"), [("killed", {-9}), ("Ctrl-C", {3}), ("Ctrl-C twice", {130, 3})])
def test_no_process_outlives_the_driver(tmp_path: Path, end: str, codes: set[int]) -> None:
    """However it ends; and what it had saved is gone on from. A second Ctrl-C may find the run stopped by the first."""
    process = started(tmp_path)
    processes = below(process.pid)
    try:
        assert sum("EngineActor" in args for args in processes.values()) == 2
        assert sum("RankActor" in args for args in processes.values()) == 1
        for number in ENDS[end]:
            process.send_signal(number)
            time.sleep(0.05)
        assert process.wait(timeout=100) in codes, (tmp_path / "err.txt").read_text()
        assert all_end(processes)
    finally:
        for pid in [process.pid, *processes]:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
    stood = len(helpers.metrics(tmp_path / "run"))
    here = ("cluster.kind=local", "cluster.engines=1", f"train.num_steps={stood + 2}")
    found, _, err = helpers.quiet_dapo("train", "--resume", tmp_path / "run", *here)
    assert found == 0, err
    assert [row["step"] for row in helpers.metrics(tmp_path / "run")] == list(range(1, stood + 3))


def test_an_engine_that_is_killed_in_a_run(tmp_path: Path) -> None:
    """The run goes on: the engine is replaced, which its log says with the engine's name."""
    process = started(tmp_path)
    processes = below(process.pid)
    try:
        os.kill(next(pid for pid, args in processes.items() if "EngineActor" in args), signal.SIGKILL)
        before, until = len(helpers.metrics(tmp_path / "run")), time.monotonic() + 150
        log = tmp_path / "run" / "log.txt"
        while len(helpers.metrics(tmp_path / "run")) < before + 3 or "died" not in log.read_text():
            assert process.poll() is None, (tmp_path / "err.txt").read_text()
            assert time.monotonic() < until
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=100) == 3
        assert "its" in log.read_text()
        assert "it is replaced" in log.read_text()
    finally:
        process.kill()
        process.wait()
    assert helpers.metrics(tmp_path / "run")[-1]["checks/findings"] == 0


TWO_NODES = """
import os, sys
from dapo.cluster.session import need_ray

need_ray()
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
cluster.add_node(num_cpus=2)
os.environ["RAY_ADDRESS"] = cluster.address
from dapo.cli import main

try:
    main(sys.argv[1:])
finally:
    cluster.shutdown()
"""


def test_two_nodes(tmp_path: Path) -> None:
    """Engines and ranks over two nodes of a cluster that was there: the same tokens in the first step."""
    own = words(tmp_path, *RAY, "cluster.learner_ranks=2", "train.num_steps=1")
    (tmp_path / "died").touch()
    (tmp_path / "two.py").write_text(TWO_NODES)
    recipe = helpers.write_recipe(tmp_path)
    command = [
        sys.executable,
        str(tmp_path / "two.py"),
        "train",
        str(recipe),
        *own,
        "--output-dir",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, env=own_environment(), capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "on a cluster of 2 nodes, which was there" in done.stderr
    assert RunDirectory.open(str(tmp_path / "run")).rollouts(1) == rollouts(local_run())[0]
