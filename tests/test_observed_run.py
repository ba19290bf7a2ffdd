"""What a run leaves for whoever looks at it: rollouts with advantages, token traces, credit tables."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dapo import loop
from dapo.errors import EngineError
from dapo.run.directory import RunDirectory
from helpers_run import (
    comparable,
    copy_run,
    folder_of_this_process,
    largest_difference,
    metrics,
    quiet_dapo,
    train,
    weights_at,
    write_recipe,
)

WORDS = ("log.credit_every=1", "train.num_steps=3", "log.token_rows=3")


@cache
def observed() -> Path:
    """Three steps of two updates each, everything written."""
    return train(folder_of_this_process(), *WORDS)


def test_advantages_are_those_of_the_kept_groups() -> None:
    """(R - mean) / (std + eps) of each kept group's own shaped rewards; nothing for the others."""
    run = RunDirectory(observed())
    for step in (1, 2, 3):
        rows = run.rollouts(step)
        assert any(row["kept"] for row in rows)
        assert all((row["advantage"] is not None) == row["kept"] for row in rows)
        for draw in {row["draw"] for row in rows if row["kept"]}:
            own = [row for row in rows if row["draw"] == draw]
            rewards = np.array([row["reward"] + row["overlong"] for row in own])
            expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
            assert [row["advantage"] for row in own] == pytest.approx(expected.tolist(), abs=1e-5)


def test_token_traces_fit_their_rollouts() -> None:
    """Each is of a kept response; a value for every token of it; their texts are its text."""
    run = RunDirectory(observed())
    for step in (1, 2, 3):
        rollouts = {(row["draw"], row["g"]): row for row in run.rollouts(step)}
        traces = run.rollouts(step, "tokens")
        assert 1 <= len(traces) <= 3
        for trace in traces:
            row = rollouts[trace["draw"], trace["g"]]
            assert row["kept"]
            lengths = {len(trace[name]) for name in ("tokens", "logprobs", "ratios", "clipped")}
            assert lengths == {row["tokens"]}
            assert "".join(trace["tokens"]).startswith(row["text"])
            assert all(p <= 0 for p in trace["logprobs"])
            assert all(r > 0 for r in trace["ratios"])
            assert set(trace["clipped"]) <= {-1, 0, 1}


def test_credit_tables_add_up() -> None:
    """Shares sum to 1; counts are those of the last mini-batch's responses with loss tokens."""
    run = observed()
    for step in (1, 2, 3):
        found = json.loads((run / "credit" / f"step_{step:06d}.json").read_text())
        assert found["step"] == step
        assert sum(row["share"] for row in found["buckets"]) == pytest.approx(1.0, abs=1e-4)
        assert sum(row["proxy"] for row in found["buckets"]) == pytest.approx(1.0)
        assert 1 <= sum(row["responses"] for row in found["buckets"]) <= 8
        assert all(-1.0001 <= row["cosine"] <= 1.0001 for row in found["buckets"] if row["cosine"] is not None)


def test_looking_does_not_change_the_run(tmp_path: Path) -> None:
    """The same metrics, bit for bit, with nothing written."""
    plain = train(tmp_path, "log.credit_every=off", "log.token_rows=0", "train.num_steps=3")
    assert comparable(metrics(plain)) == comparable(metrics(observed()))
    assert not (plain / "credit").exists()
    assert not (plain / "tokens").exists()


def test_a_resume_writes_them_again(tmp_path: Path) -> None:
    """Files past the checkpoint are cut; those of the steps done again are the same."""
    run = train(tmp_path, *WORDS, "checkpoint.every=1")
    copied = copy_run(run, tmp_path / "copy", up_to=2)
    before = {name: (run / name).read_bytes() for name in ("credit/step_000003.json", "tokens/step_000003.jsonl.zst")}
    for name in before:
        (copied / name).write_bytes(b"torn")
    code, _, err = quiet_dapo("train", "--resume", copied)
    assert code == 0, err
    assert {name: (copied / name).read_bytes() for name in before} == before


def test_an_evaluation_that_fails_does_not_cost_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's updates are done and saved: nothing would write their files again."""

    def failing(*given: Any) -> Any:
        raise EngineError("the machine is on fire")

    words = (*WORDS, "train.num_steps=1", "eval.before=false")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "run_evaluation", failing)
        code, _, err = quiet_dapo("train", write_recipe(tmp_path), *words, "--output-dir", tmp_path / "run")
    assert code != 0
    assert "on fire" in err
    files = [tmp_path / "run" / name for name in ("credit/step_000001.json", "tokens/step_000001.jsonl.zst")]
    before = [file.read_bytes() for file in files]
    code, _, err = quiet_dapo("train", "--resume", tmp_path / "run")
    assert code == 0, err
    assert [file.read_bytes() for file in files] == before


def test_device_hours_go_on_over_a_resume(tmp_path: Path) -> None:
    """They are the sum over all steps, whoever made them."""
    run = train(tmp_path, *WORDS, "checkpoint.every=1")
    copied = copy_run(run, tmp_path / "copy", up_to=2)
    quiet_dapo("train", "--resume", copied)
    rows = [row for row in metrics(copied) if "time/step_s" in row]
    assert len(rows) == 3
    hours = np.cumsum([row["time/step_s"] for row in rows]) / 3600
    assert [row["total/device_hours"] for row in rows] == pytest.approx(hours.tolist())
    gains = [(row["sampled/accuracy"] - rows[0]["sampled/accuracy"]) / h for row, h in zip(rows, hours, strict=True)]
    assert [row["progress/accuracy_gain_per_device_hour"] for row in rows] == pytest.approx(gains)


def test_a_disk_that_refuses_is_one_line(tmp_path: Path) -> None:
    """A file where the folder should be: the run stops with a line, and can be gone on with."""
    run = train(tmp_path, "train.num_steps=1", "log.token_rows=0", "log.credit_every=off")
    (run / "tokens").write_text("in the way")
    code, _, err = quiet_dapo("train", "--resume", run, "train.num_steps=2", "log.token_rows=2")
    assert code != 0
    assert "Traceback" not in err
    assert "tokens" in err
    (run / "tokens").unlink()
    code, _, err = quiet_dapo("train", "--resume", run, "train.num_steps=2")
    assert code == 0, err


def test_what_fails_behind_an_update_does_not_run_it_twice(tmp_path: Path) -> None:
    """The weights have moved when tokens/ can't be written; the state that is saved has moved with them."""
    words = ("eval.data=[]", "log.credit_every=off", "checkpoint.every=1", "checkpoint.keep_last=9")
    straight = train(tmp_path / "straight", *words, "train.num_steps=3")
    run = train(tmp_path / "stopped", *words, "train.num_steps=1", "log.token_rows=0")
    (run / "tokens").write_text("in the way")
    code, _, err = quiet_dapo("train", "--resume", run, "train.num_steps=3", "log.token_rows=2")
    assert code != 0, err
    assert (run / "checkpoints" / "step_000001-u000002").is_dir()
    (run / "tokens").unlink()
    code, _, err = quiet_dapo("train", "--resume", run)
    assert code == 0, err
    assert comparable(metrics(run)) == comparable(metrics(straight))
    assert largest_difference(weights_at(run, 3), weights_at(straight, 3)) == 0.0
