"""Killed with SIGKILL anywhere, a run resumes and ends the same; and the comparison that says so can fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

import helpers_crash as crash
from dapo.files import sha256
from dapo.run import checkpoint

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "crash.py"
KILLS = 12
LAST = f"checkpoints/step_{crash.STEPS:06d}"

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are forks"),
    pytest.mark.skipif(not PROGRAM.is_file(), reason="benchmarks/ is not part of this distribution"),
]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """(its folder, what it printed) of a few killed runs; in a process of its own, whose forks are clean."""
    folder = tmp_path_factory.mktemp("crash")
    command = [sys.executable, str(PROGRAM), "--kills", str(KILLS), "--schedule", "streaming", "--keep", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_a_killed_run_ends_as_if_it_had_not_been(campaign: tuple[Path, str]) -> None:
    """None is refused, none goes back behind a checkpoint that stood, none ends differently."""
    folder, said = campaign
    found = re.match(
        rf"streaming: {KILLS} runs, (\d+) kills \(.*\), (\d+) resumes: 0 refused, 0 lost, 0 different", said
    )
    assert found, said
    assert int(found[1]) == int(found[2]) >= KILLS
    assert "during a save" in said
    assert [path.name for path in folder.glob("streaming-*[0-9]")] == []


# --- the comparison can fail --------------------------------------------------------------------------


def rewrite_json(path: Path, change: Callable[[Any], None]) -> None:
    """Changes what a JSON file holds."""
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def seal(folder: Path) -> None:
    """A new manifest, so that only the comparison can tell."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "manifest.json"]
    entries = {str(f.relative_to(folder)): {"size": f.stat().st_size, "sha256": sha256(f)} for f in sorted(files)}
    (folder / "manifest.json").write_text(checkpoint.manifest_text(entries), encoding="utf-8")
    assert checkpoint.fault(folder) is None


def one_weight_bit(run: Path) -> None:
    """The lowest bit of the last weight."""
    path = run / LAST / "model" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-4] ^= 1
    path.write_bytes(data)


def one_sealed_weight_bit(run: Path) -> None:
    """The same, under a manifest that agrees."""
    one_weight_bit(run)
    seal(run / LAST)


def one_cursor(run: Path) -> None:
    """The next draw of the state."""
    rewrite_json(run / LAST / "state.json", lambda state: state.update(next_draw=state["next_draw"] + 1))
    seal(run / LAST)


def one_file_less(run: Path) -> None:
    """A checkpoint without its history."""
    (run / LAST / "history.json").unlink()
    seal(run / LAST)


def one_metric(run: Path) -> None:
    """The last digit of a value of the third line."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    row = json.loads(lines[2])
    row["grad/norm"] += 1e-12
    (run / "metrics.jsonl").write_text("\n".join([*lines[:2], json.dumps(row), *lines[3:]]) + "\n", encoding="utf-8")


def a_doubled_line(run: Path) -> None:
    """A step told twice."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*lines, lines[-1]]), encoding="utf-8")


def a_torn_line(run: Path) -> None:
    """Half a line at the end."""
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as handle:
        handle.write('{"step": 6, "grad')


def one_response(run: Path) -> None:
    """A letter more in one response of a step."""
    path = run / "rollouts" / "step_000002.jsonl.zst"
    rows = [json.loads(line) for line in zstandard.ZstdDecompressor().decompress(path.read_bytes()).splitlines()]
    rows[3]["text"] += "x"
    path.write_bytes(zstandard.ZstdCompressor().compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def half_an_evaluation(run: Path) -> None:
    """Its responses are cut off."""
    path = run / "eval" / "step_000004.jsonl.zst"
    path.write_bytes(path.read_bytes()[:100])


def an_evaluation_less(run: Path) -> None:
    """Its responses are gone."""
    (run / "eval" / "step_000004.jsonl.zst").unlink()


def one_accuracy(run: Path) -> None:
    """Of an evaluation's figures."""
    rewrite_json(run / "eval" / "step_000002.json", lambda figures: figures.update(accuracy=0.123))


def a_stray_save(run: Path) -> None:
    """An unfinished checkpoint."""
    (run / "checkpoints" / ".step_000003.tmp" / "model").mkdir(parents=True)


def a_stray_file(run: Path) -> None:
    """Half of a rollout file."""
    (run / "rollouts" / "step_000003.jsonl.tmp").write_bytes(b"")


FAULTS: dict[Callable[[Path], None], str] = {
    one_weight_bit: "the last checkpoint is broken: model/model.safetensors",
    one_sealed_weight_bit: "step_000005/model/model.safetensors: differs",
    one_cursor: "step_000005/state.json: differs",
    one_file_less: "step_000005/history.json: only in one",
    one_metric: "metrics.jsonl line 3: grad/norm: differs",
    a_doubled_line: "metrics.jsonl line 7: ",
    a_torn_line: "can't be read: JSONDecodeError",
    one_response: "rollouts/step_000002.jsonl.zst: differs",
    half_an_evaluation: "can't be read: UserError",
    an_evaluation_less: "eval/step_000004.jsonl.zst: only in one",
    one_accuracy: "eval/step_000002.json: differs",
    a_stray_save: "checkpoints/.step_000003.tmp: left lying about",
    a_stray_file: "rollouts/step_000003.jsonl.tmp: left lying about",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_comparison_sees(fault: Callable[[Path], None], campaign: tuple[Path, str], tmp_path: Path) -> None:
    """Each kind of difference, alone and by name; and none in a plain copy."""
    straight = campaign[0] / "streaming-straight"
    run = tmp_path / "run"
    shutil.copytree(straight, run)
    assert crash.differences(run, straight) == []
    fault(run)
    found = crash.differences(run, straight)
    assert found
    assert found[0].startswith(FAULTS[fault])
