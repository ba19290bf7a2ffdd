"""The sharded learner: on 2 and 3 ranks the same as one process, saved on some ranks and read on others.

The ranks run fsdp_scenarios.py once for each world and write what they found; the tests here hold the figures to
bounds. Rounding is of float32: sums over ranks are added in another order.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import helpers_run
import tiny
from dapo.errors import ConfigError, LearnerLost
from dapo.learner import line
from dapo.learner.hf_folder import plan
from dapo.learner.packing import lane_width, plan_lanes
from dapo.learner.sharing import deal, share
from dapo.learner.stored import state_files
from fsdp_scenarios import BUDGET, trained
from helpers_fsdp import alone, ended, free_port, start, world_of_one
from helpers_learner import SHAPE, batch_of, rows_of, same, torch_learner, weights, with_old

TESTS = Path(__file__).parent
BOUNDS = {"logprobs": 2e-5, "metrics": 3e-5, "gradient": 5e-5, "trace": 3e-5, "weights": 5e-5, "reference": 2e-5}

# Unmarked on 2 ranks; the others, and 3 ranks, take a minute more each.
FIRST = (
    "shared_prompt",
    "padded, kept",
    "checkpointed",
    "offloaded",
    "one row",
    "unequal",
    "unequal, kept",
    "untied",
    "qwen2",
    "chunked logits",
)
OTHERS = (
    "shared_prompt, kept",
    "padded",
    "checkpointed, kept",
    "one row, kept",
    "one group",
    "not clipped",
    "weighted",
    "adapters",
    "kl to a reference that is reset",
    *(f"reduction {name}" for name in ("minibatch", "group", "sequence", "constant", "microbatch")),
)
OF_THREE = ("shared_prompt", "one row", "one row, kept", "one group", "unequal", "unequal, kept")
STATES = (
    "credit",
    "not finite",
    "an objective that fails on one rank",
    "nothing to train on",
    "bfloat16",
    "saved and read by as many",
    "can't be written",
    "a disk of its own",
)


@functools.cache
def folder() -> Path:
    """Where this process's worlds write."""
    return helpers_run.folder_of_this_process() / "fsdp"


@functools.cache
def found(ranks: int, *names: str) -> dict[str, Any]:
    """What a world of so many ranks found in these scenarios."""
    folder().mkdir(parents=True, exist_ok=True)
    for code, _, err in ended(start([str(TESTS / "fsdp_scenarios.py"), str(folder()), *names], ranks), 600):
        assert code == 0, err
    return json.loads((folder() / f"results{ranks}.json").read_text())  # type: ignore[no-any-return]


def check(result: dict[str, Any]) -> None:
    """All figures of a comparison are within their bounds."""
    assert "error" not in result, result["error"]
    assert set(result) >= {"logprobs", "metrics", "gradient", "trace", "weights"}
    assert {name: value for name, value in result.items() if value > BOUNDS[name]} == {}


# --- who takes which rows -----------------------------------------------------------------------------


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 9))
def test_every_item_is_dealt_once_and_evenly(lengths: list[int], ranks: int) -> None:
    """No rank has more than the mean and the longest item; the outcome is a function of the arguments."""
    dealt = share(lengths, ranks)
    assert len(dealt) == ranks
    assert sorted(index for own in dealt for index in own) == list(range(len(lengths)))
    assert all(own == sorted(own) for own in dealt)
    most = max(sum(lengths[i] for i in own) for own in dealt)
    assert most <= sum(lengths) / ranks + max(lengths, default=0)
    assert share(lengths, ranks) == dealt


def test_a_rank_gets_the_longest_first() -> None:
    """By hand: 9 alone; 5, behind which 3 and then 2 find room; 4 and 4."""
    assert share([4, 9, 2, 5, 3, 4], 3) == [[1], [2, 3, 4], [0, 5]]


@pytest.mark.parametrize("packing", ["shared_prompt", "padded"])
def test_lanes_of_no_more_than_a_fair_share_stay_whole(packing: Any) -> None:
    """Of a prompt with its four responses and six small ones, no lane is cut that is within a rank's share."""
    batch = batch_of(rows_of(SHAPE))
    rows = list(range(batch.num_rows))
    for ranks in (1, 2, 3, 20):
        dealt = deal(batch, rows, packing, 1000, ranks)
        assert sorted(row for own in dealt for row in own) == rows
        lanes = plan_lanes(batch, rows, packing, 1000)
        fair = -(-sum(lane_width(batch, lane) for lane in lanes) // ranks)
        for lane in lanes:
            if lane_width(batch, lane) <= fair:
                assert any(set(lane) <= set(own) for own in dealt)


def test_one_group_is_cut_for_two_ranks() -> None:
    """Else one of them would have nothing to do."""
    batch = batch_of(rows_of(((4, (5, 5, 5, 5)),)))
    assert all(len(own) == 2 for own in deal(batch, [0, 1, 2, 3], "shared_prompt", 1000, 2))


def test_files_of_a_folder_are_bounded() -> None:
    """A tensor over the bound gets a file of its own."""
    assert plan({"a": 4, "b": 4, "c": 4, "d": 9, "e": 1}, 8) == [["a", "b"], ["c"], ["d"], ["e"]]


# --- the same as one process --------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIRST)
def test_two_ranks_are_one_process(name: str) -> None:
    """Log-probs, gradients, weights after three updates, metrics and traces."""
    check(found(2, *FIRST, *STATES)[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_two_ranks_are_one_process_with_other_settings(name: str) -> None:
    """Every reduction, adapters, a reference that is reset."""
    check(found(2, *OTHERS, "adapters saved and read")[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_THREE)
def test_three_ranks_are_one_process(name: str) -> None:
    """Weights whose first axis three does not divide; ranks without a row."""
    check(found(3, *OF_THREE)[name])


def state_of(name: str) -> dict[str, Any]:
    """One of STATES, from the world that FIRST ran in."""
    result = found(2, *FIRST, *STATES)[name]
    assert "error" not in result, result["error"]
    return result  # type: ignore[no-any-return]


def test_credit_is_of_all_ranks() -> None:
    """Products and norms of buckets are those of whole gradients, and the step after them is the same."""
    result = state_of("credit")
    assert result["credit"] < 1e-5
    assert result["weights"] < BOUNDS["weights"]


def test_a_gradient_that_is_not_finite_is_skipped_by_all() -> None:
    """Though one rank alone has the row: weights and moments stay on both, and the next update is made."""
    result = state_of("not finite")
    assert result["flags"] == [[1.0, 0.0, True]] * 2
    assert result["moved"]


def test_an_objective_that_fails_on_one_rank_is_told_to_all() -> None:
    """At once, with the rank and the error; nothing has moved, and the next update is made."""
    result = state_of("an objective that fails on one rank")
    assert "error" not in result, result
    for told in (result["told"][:4], result["told"][4:]):
        refused, bug, kept, after = told
        assert refused[0].startswith("rank 1 of 2: ValueError: no such token (fsdp_scenarios.py")
        assert bug[0].startswith("rank 1 of 2: KeyError: 'typo' (fsdp_scenarios.py")
        assert refused[0] == refused[1]
        assert bug[0] == bug[1]
        assert kept == [True, True]
        assert after == [0.0, 0.0]


def test_nothing_to_train_on_changes_nothing() -> None:
    """No rank waits for another."""
    assert state_of("nothing to train on") == {"norm": 0.0, "same": True}


def test_bfloat16_is_as_near_to_float32_as_autocast_is() -> None:
    """Twice its error at most: the residual stream is bfloat16 too. What is exported stays float32."""
    result = state_of("bfloat16")
    assert 0 < result["gradient"] < 2 * result["alone"]
    assert result["types"] == ["torch.float32"]


# --- checkpoints --------------------------------------------------------------------------------------


def test_a_checkpoint_goes_on_bitwise() -> None:
    """Weights, moments and a reset reference; the next update's metrics; each rank has written its part."""
    result = state_of("saved and read by as many")
    assert result["exact"] == [[True, True]] * 2
    assert result["files"] == ["index.json", *(f"part-0000{rank}-of-00002.safetensors" for rank in range(2))]


def test_one_process_reads_what_two_ranks_wrote() -> None:
    """TorchLearner and a sharded one alone, bit for bit; and its model is a plain folder."""
    state_of("saved and read by as many")
    wanted = load_file(folder() / "of2.state.safetensors")
    own = torch_learner(tiny.model(5), reference=tiny.model(2), **BUDGET)
    with state_files(folder() / "of2") as files:
        own.restore(folder() / "of2" / "model", {name: files.whole(name) for name in files.names()})
    sharded = alone(tiny.model(5), reference=tiny.model(2), **BUDGET)
    sharded.read_state(folder() / "of2")
    for learner in (own, sharded):
        assert same(weights(learner), load_file(folder() / "of2.weights.safetensors"))
        assert same(learner.state_dict(), wanted)


def test_sharded_ones_read_what_one_process_wrote(tmp_path: Path) -> None:
    """optimizer.safetensors as before: the next updates are the same to rounding."""
    from safetensors.torch import save_file

    own = torch_learner(**BUDGET)
    batch = with_old(batch_of(rows_of(SHAPE)), own)
    own.update(batch, 1e-3)
    own.save_hf(tmp_path / "model")
    save_file({k: v.contiguous() for k, v in own.state_dict().items()}, tmp_path / "optimizer.safetensors")
    sharded = alone(tiny.model(5), **BUDGET)
    sharded.read_state(tmp_path)
    assert same(weights(sharded), weights(own))
    assert same(sharded.state_dict(), own.state_dict())


@pytest.mark.slow
def test_three_ranks_read_what_two_wrote_and_two_what_three_wrote() -> None:
    """Bit for bit, by rows that are cut elsewhere."""
    state_of("saved and read by as many")
    three = found(3, "saved and read by as many", "read from another number")
    assert three["saved and read by as many"]["exact"] == [[True, True]] * 3
    assert three["read from another number"] == {"of2": [True] * 3}
    assert found(2, "read from another number")["read from another number"] == {"of3": [True] * 2}


@pytest.mark.slow
def test_adapters_are_saved_and_held_against_their_base() -> None:
    """All ranks refuse another base alike, also where one rank's rows alone differ."""
    result = found(2, *OTHERS, "adapters saved and read")["adapters saved and read"]
    assert result["exact"] is True
    assert len(result["refused"]) == 2
    assert all("put model.path back" in line for line in result["refused"])


def test_a_disk_that_refuses_is_told_to_all() -> None:
    """Rank 0 alone writes the model; both raise, and neither waits."""
    assert state_of("can't be written") == {"errors": ["OSError", "OSError"]}


def test_a_disk_that_one_rank_has_for_itself_is_told() -> None:
    """A checkpoint without a part would be complete by its manifest, and not to be read."""
    errors = state_of("a disk of its own")["errors"]
    assert len(errors) == 2
    assert errors[0] == errors[1]
    assert "part-00001-of-00002.safetensors" in errors[0]
    assert "a disk that all ranks see" in errors[0]


def test_several_files_are_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers reads it by its index; the weights are the learner's."""
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr("dapo.learner.hf_folder.FolderWriter.__init__.__defaults__", (20_000,))
    many, _ = (world_of_one(), trained())[1]
    many.save_hf(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert same(weights(many), {name: p.detach() for name, p in model.named_parameters()})


# --- several processes as one learner -----------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_behind_a_leader_keep_the_contract() -> None:
    """tests/test_learner_contract.py whole, with a follower that does as rank 0 does."""
    first, second = ended(start([str(TESTS / "leader_contract.py"), "leader"], 2, DAPO_TEST_RANKS="2"), 600)
    assert first[0] == 0, first[1] + first[2]
    assert "passed" in first[1]
    assert "failed" not in first[1]
    assert second[0] == 0, second[2]


@pytest.mark.parametrize(
    ("failing", "call", "where"),
    [
        (1, "update", "forward"),
        pytest.param(0, "update", "forward", marks=pytest.mark.slow),
        pytest.param(1, "update", "backward", marks=pytest.mark.slow),
        pytest.param(0, "update", "backward", marks=pytest.mark.slow),
        pytest.param(1, "logprobs", "forward", marks=pytest.mark.slow),
        pytest.param(0, "logprobs", "forward", marks=pytest.mark.slow),
    ],
)
def test_what_fails_on_one_rank_alone_does_not_wait_for_the_timeout(failing: int, call: str, where: str) -> None:
    """A ValueError or an OSError in a pass is no refusal: the other rank stands in a collective then."""
    words = [str(TESTS / "rank_that_fails.py"), str(failing), call, where]
    first, second = ended(start(words, 2), 60)
    told, again = first[1].splitlines()
    if failing == 0:
        assert told.startswith("ended: rank 0 of 2 failed: "), told
        assert "no such" in told
    else:
        assert told.startswith("lost: the sharded learner lost one of its 2 ranks"), told
        assert "rank 1 of 2 failed: " in second[2]
    assert again.startswith("lost: ")
    assert second[0] != 0


def test_without_torchrun_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with what is missing and what to type."""
    for name in line.NEEDED:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"RANK, WORLD_SIZE.*torchrun --nproc-per-node N -m dapo train"):
        line.join.__wrapped__()


@pytest.mark.parametrize(
    ("environment", "needle"),
    [
        ({"RANK": "abc"}, "RANK = abc"),
        ({"RANK": "2"}, "RANK = 2"),
        ({"RANK": "-1"}, "RANK = -1"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE = two"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE = 0"),
        ({"MASTER_PORT": "here"}, "MASTER_PORT = here"),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_an_environment_that_is_not_torchruns_is_told(
    environment: dict[str, str], needle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the variable, before anything waits for other ranks."""
    whole = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"} | environment
    for name, value in whole.items():
        monkeypatch.setenv(name, value)
    for asked in (line.need_torchrun, line.started_as, line.ranks_started):
        with pytest.raises(ConfigError, match=needle):
            asked()


@pytest.mark.parametrize(
    ("error", "of_the_line"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("Timed out waiting 1800000ms for recv operation to complete"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("connection"), False),
    ],
)
def test_a_lost_rank_is_known_by_its_error(error: Exception, of_the_line: bool) -> None:
    """A bug is not told as a lost rank."""
    assert line.is_of_the_line(error) is of_the_line
    assert isinstance(line.lost(error), LearnerLost)
    assert "pair.cc" not in line.lost(error).message


def torchrun(ranks: int, *words: str) -> subprocess.Popen[str]:
    """`dapo train` as torchrun starts it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks)]
    command += ["--master-port", str(free_port()), "-m", "dapo", "train", *words]
    source = str(TESTS.parent / "src")
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


RUN = ("tiny", "eval.k=1", "data.holdout=8", "sampling.prompts_per_step=4", "sampling.gen_prompts=16")
COMPARED = ("loss/policy", "grad/norm", "policy/entropy", "reward/mean", "tokens/response_mean", "ratio/max")


def figures(run: Path) -> list[dict[str, float]]:
    """The metrics of each step that rounding does not decide."""
    rows = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in COMPARED if name in row} for row in rows if row["step"]]


@pytest.mark.slow
def test_a_run_on_two_ranks_is_the_run_of_one_process(tmp_path: Path) -> None:
    """Interrupted, resumed, and then the metrics of a run that was neither sharded nor stopped, within 1e-4."""
    whole, sharded = tmp_path / "whole", tmp_path / "sharded"
    code, _, err = helpers_run.quiet_dapo("train", *RUN, "train.num_steps=4", "--output-dir", str(whole))
    assert code == 0, err
    words = (*RUN, "learner.kind=fsdp", "train.num_steps=4", "checkpoint.every=1")
    begun = torchrun(2, *words, "--output-dir", str(sharded))
    try:
        deadline = time.monotonic() + 240
        while not list(sharded.glob("checkpoints/step_*")) and time.monotonic() < deadline:
            time.sleep(0.2)
        begun.send_signal(signal.SIGINT)
    finally:
        ((_, _, err),) = ended([begun], 120)
    assert "go on with" in err
    done = len(figures(sharded))
    assert 1 <= done < 4
    ((code, _, err),) = ended([torchrun(2, "--resume", str(sharded))], 240)
    assert code == 0, err
    one, many = figures(whole), figures(sharded)
    assert len(one) == len(many) == 4
    for step, other in zip(one, many, strict=True):
        assert len(step) > 3
        assert other == pytest.approx(step, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_follower_that_waits_for_a_leader_can_be_stopped(number: signal.Signals) -> None:
    """There is nothing yet that it could spoil; it says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(120)
        port = str(silent.getsockname()[1])
        environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        source = {"PYTHONPATH": str(TESTS.parent / "src"), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "dapo", "train", "tiny"],
            env={**os.environ, **source, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            with silent.accept()[0]:
                process.send_signal(number)
                process.wait(timeout=30)
        finally:
            ((code, out, _),) = ended([process], 10)
    assert code == -number
    assert out == ""


@pytest.mark.slow
def test_a_follower_that_dies_ends_the_run_with_one_line(tmp_path: Path) -> None:
    """The leader exits with 3 within a minute, and says what was lost."""
    run = tmp_path / "run"
    words = ["-m", "dapo", "train", *RUN, "learner.kind=fsdp", "train.num_steps=400", "checkpoint.every=1"]
    processes = start([*words, "--output-dir", str(run)], 2)
    try:
        deadline = time.monotonic() + 240
        while not list(run.glob("checkpoints/step_*")) and time.monotonic() < deadline:
            time.sleep(0.2)
        processes[1].kill()
        code = processes[0].wait(timeout=60)
    finally:
        (_, _, err), _ = ended(processes, 60)
    assert code == 3, err
    last = [text for text in err.splitlines() if text.strip()][-1]
    assert last.startswith("stopped: ")
    assert "lost one of its 2 ranks" in last
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_leader_that_dies_ends_the_followers(tmp_path: Path) -> None:
    """With one line each, and not with 0."""
    run = tmp_path / "run"
    words = ["-m", "dapo", "train", *RUN, "learner.kind=fsdp", "train.num_steps=400", "--output-dir", str(run)]
    processes = start(words, 2)
    try:
        deadline = time.monotonic() + 240
        while not list(run.glob("rollouts/*")) and time.monotonic() < deadline:
            time.sleep(0.2)
        processes[0].kill()
    finally:
        _, (code, out, err) = ended(processes, 60)
    assert code == 3, err
    assert [text.partition(":")[0] for text in err.strip().splitlines()] == ["stopped"]
    assert out == ""
