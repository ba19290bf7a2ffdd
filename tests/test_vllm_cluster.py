"""vLLM as the engine of Ray's actors: the run that one process makes."""

from __future__ import annotations

from pathlib import Path

import pytest

import helpers_run as helpers
from helpers_cluster import local_ray

pytest.importorskip("vllm")
pytest.importorskip("ray")

VLLM = ("engine.kind=vllm", "engine.vllm.eager=true", "engine.vllm.kv_cache_gib=0.05")


@pytest.mark.timeout(600)
def test_vllm_in_actors_makes_the_run_of_one_process(tmp_path: Path) -> None:
    """One actor and two: the same tokens, figures and weights, bit for bit."""
    local_ray()
    model = helpers.warm_model(head_dim=32)
    here = helpers.train(tmp_path / "here", *VLLM, model=model)
    for engines in (1, 2):
        where = ("cluster.kind=ray", f"cluster.engines={engines}")
        there = helpers.train(tmp_path / str(engines), *VLLM, *where, model=model)
        assert helpers.comparable(helpers.metrics(there)) == helpers.comparable(helpers.metrics(here))
        assert helpers.largest_difference(helpers.weights_at(there, 2), helpers.weights_at(here, 2)) == 0.0
