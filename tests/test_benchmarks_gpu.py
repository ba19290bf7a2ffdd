"""benchmarks/gpu.py: it runs without a GPU on a tiny model, downloads nothing, and its arithmetic is what it says."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import dapo

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PROGRAM = BENCHMARKS / "gpu.py"
MODEL, SLOTS = "tiny", (8, 16)

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="benchmarks/ is not part of this distribution")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """(what it printed, the folder it wrote into and where a download would have gone)."""
    folder = tmp_path_factory.mktemp("gpu")
    environment = {"PYTHONPATH": str(Path(dapo.__file__).parents[1]), "HF_HUB_OFFLINE": "1"}
    environment |= {"HF_HOME": str(folder / "hub"), "OUT": str(folder / "out"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), "--device", "cpu", "--tiny", "--rounds", "2"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout), folder


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The modules gpu and gpu_parts, in this process."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu"), importlib.import_module("gpu_parts")


def numbers(value: Any) -> list[float]:
    """Every number in a document."""
    if isinstance(value, dict):
        return [n for item in value.values() for n in numbers(item)]
    if isinstance(value, list):
        return [n for item in value for n in numbers(item)]
    return [float(value)] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


def test_every_section_is_there_and_its_figures_are_positive(measured: tuple[dict[str, Any], Path]) -> None:
    """Raw samples, medians and ratios of every part; nothing left out, nothing failed."""
    result, _ = measured
    cases = [f"{MODEL}/{slots}" for slots in SLOTS]
    trained = {f"{MODEL}/shared_prompt", f"{MODEL}/padded"}
    decoded = {f"{case}/{contender}" for case in cases for contender in ("engine", "generate")}
    assert result["complete"] is True
    assert (result["left_out"], result["failed"]) == ([], {})
    assert set(result["products"]) == {"square", *(f"{case}/linear_layers" for case in cases)}
    assert set(result["training"]) == trained
    assert set(result["decode"]) == decoded
    assert set(result["sync"]) == {MODEL}
    for section in ("products", "training", "decode", "sync"):
        for figures in result[section].values():
            assert 1 <= len(figures["seconds"]) <= 2
            found = numbers(figures)
            assert all(math.isfinite(n) and n > 0 for n in found), figures
            assert figures["peak_memory_gib"] is None  # a CPU counts none
    ratios = result["ratios"]
    assert set(ratios["utilisation"]) == {f"training/{n}" for n in trained} | {f"decode/{n}" for n in decoded}
    assert set(ratios["engine_to_generate"]) == set(ratios["engine_of_linear_layers"]) == set(cases)
    assert set(ratios["shared_to_padded"]) == set(ratios["sync_share"]) == {MODEL}
    assert all(math.isfinite(n) and n > 0 for n in numbers(ratios))
    assert {"device", "gpu", "driver", "cuda", "torch", "transformers", "dapo"} <= set(result["machine"])


def test_what_it_prints_is_what_it_writes_and_nothing_is_downloaded(measured: tuple[dict[str, Any], Path]) -> None:
    """$OUT/gpu.json; the hub's folder stays empty."""
    result, folder = measured
    assert json.loads((folder / "out" / "gpu.json").read_text()) == result
    assert [path for path in (folder / "hub").rglob("*") if path.is_file()] == []
    assert sorted(path.name for path in folder.iterdir() if path.name != "hub") == ["out"]


def test_the_figures_belong_together(measured: tuple[dict[str, Any], Path]) -> None:
    """Tokens, positions and operations by hand: 16 responses of 16 tokens in two groups, prompts of 12 tokens."""
    result, _ = measured
    n, head = result["models"][MODEL]["multiplied"], 64 * 512
    shared, padded = (result["training"][f"{MODEL}/{packing}"] for packing in ("shared_prompt", "padded"))
    assert (shared["tokens"], shared["positions"]) == (16 * 16, 2 * 12 + 16 * 16)
    assert (padded["tokens"], padded["positions"]) == (16 * 16, 16 * (12 + 16))
    assert shared["flops_of_tokens"] == padded["flops_of_tokens"] == 6 * n * 256
    assert padded["flops_of_positions"] == 6 * ((n - head) * 448 + head * 256)
    engine, generate = (result["decode"][f"{MODEL}/16/{name}"] for name in ("engine", "generate"))
    assert engine["tokens"] == generate["tokens"] == 16 * 8
    assert engine["positions"] == 2 * 12 + 16 * 7
    assert generate["positions"] == 16 * (12 + 7)
    assert engine["flops_of_tokens"] == 2 * n * 128
    rate = 1e12 * result["products"]["square"]["tflops_per_s"]
    expected = 6 * n * 256 / shared["median_seconds"] / rate
    assert result["ratios"]["utilisation"][f"training/{MODEL}/shared_prompt"]["of_tokens"] == pytest.approx(
        expected, rel=1e-4
    )
    step = 256 / engine["tokens_per_s"] + shared["median_seconds"]
    share = result["sync"][MODEL]["median_seconds"] / step
    assert result["ratios"]["sync_share"][MODEL] == pytest.approx(share, rel=1e-4)


def test_the_models_are_as_large_as_they_are_called(program: tuple[Any, Any]) -> None:
    """With the vocabulary of 151,936; the tied embedding counts once, as what gives the logits."""
    gpu, parts = program
    for name, size in (("0.5b", 0.494e9), ("1.5b", 1.544e9)):
        facts = gpu.facts(parts.GPU, name)
        assert facts["parameters"] == pytest.approx(size, rel=2e-3)
        assert facts["multiplied"] == facts["parameters"]
        assert facts["config"]["vocab_size"] == 151936
    untied = parts.TINY.models["tiny"] | {"tie_word_embeddings": False}
    sizes = parts.Sizes(**{**vars(parts.TINY), "models": {"untied": untied}})
    facts = gpu.facts(sizes, "untied")
    assert facts["parameters"] - facts["multiplied"] == 64 * 512


def test_the_loads_of_a_gpu_fit_together(program: tuple[Any, Any]) -> None:
    """Slots are whole groups, micro-batches of both forms are as large, and the guesses fit the default minutes."""
    gpu, parts = program
    sizes = parts.GPU
    assert all(slots % sizes.responses_per_prompt == 0 for slots in sizes.slots)
    assert sizes.microbatch % (sizes.prompt + sizes.response) == 0
    planned = list(gpu.parts(parts.Bench(device=torch.device("cpu"), sizes=sizes, rounds=3)))
    minutes = gpu.options().parse_args([]).minutes
    assert sum(part.needs for part in planned) <= 60 * minutes < 480
    assert len({(part.section, part.name) for part in planned}) == len(planned) == 1 + 2 * (2 + 2 * 3 + 1)


def test_a_part_without_time_is_left_out_and_one_that_fails_is_named(
    program: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on."""
    gpu, parts = program

    def fails() -> dict[str, Any]:
        raise RuntimeError("no memory\nat all")

    planned = [
        gpu.Part("sync", "long", 600.0, lambda: {"seconds": [1.0]}),
        gpu.Part("sync", "broken", 1.0, fails),
        gpu.Part("sync", "short", 1.0, lambda: {"seconds": [1.0]}),
    ]
    monkeypatch.setattr(gpu, "parts", lambda bench: iter(planned))
    monkeypatch.setattr(gpu, "STARTED", time.perf_counter())
    bench = parts.Bench(device=torch.device("cpu"), sizes=parts.TINY, rounds=1)
    result: dict[str, Any] = {section: {} for section in gpu.SECTIONS} | {"left_out": [], "failed": {}, "ratios": {}}
    saved: list[int] = []
    gpu.measure_all(bench, result, minutes=5, tiny=False, save=lambda: saved.append(1))
    assert result["left_out"] == ["sync/long"]
    assert result["failed"] == {"sync/broken": "RuntimeError: no memory"}
    assert list(result["sync"]) == ["short"]
    assert len(saved) == 2


@pytest.mark.parametrize(("options", "said"), [([], "no CUDA device"), (["--device", "cpu"], "only with --tiny")])
def test_without_a_gpu_it_says_so_in_one_line(
    program: tuple[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    options: list[str],
    said: str,
) -> None:
    """Exit code 2, and nothing is written."""
    gpu, _ = program
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", *options])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    assert gpu.main() == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert said in printed.err
    assert list(tmp_path.iterdir()) == []
