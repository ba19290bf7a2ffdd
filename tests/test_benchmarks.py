"""The machinery of the side-by-side benchmarks; what they measure is not tested here."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

CONTENDER = """
import sys
sys.path.insert(0, {folder!r})
from serve import claim_stdout, read_spec, serve, use_threads
spec = read_spec()
use_threads(spec["threads"])
claim_stdout()
print("chatter that must not spoil the answers")
def play():
    with open(spec["log"], "a") as log:
        log.write(spec["me"])
    if spec["me"] == "dies":
        raise RuntimeError("out of luck")
    return {{"seconds": 2.0, "tokens": 10}}
serve({{"me": spec["me"]}}, play)
"""


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/side_by_side.py as a module."""
    spec = importlib.util.spec_from_file_location("side_by_side", BENCHMARKS / "side_by_side.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "side_by_side", module)
    spec.loader.exec_module(module)
    return module


def contender(module: ModuleType, folder: Path, me: str) -> object:
    """One that writes its name down when it plays."""
    script = folder / "contender.py"
    script.write_text(CONTENDER.format(folder=str(BENCHMARKS / "contenders")))
    return module.Contender(me, str(script), {"threads": 1, "me": me, "log": str(folder / "log")})


def test_rounds_are_played_in_turn(side_by_side: ModuleType, tmp_path: Path) -> None:
    """A B A B, and each answer belongs to its own."""
    both = [contender(side_by_side, tmp_path, me) for me in "ab"]
    side_by_side.compete(both, 3)
    assert (tmp_path / "log").read_text() == "ababab"
    for one in both:
        assert side_by_side.rates(one) == [5.0] * 3
        assert side_by_side.peak(one) > 0
        assert one.ready == {"me": one.name}


def test_a_contender_that_dies_says_why(side_by_side: ModuleType, tmp_path: Path) -> None:
    """Its last words, not a broken pipe."""
    with pytest.raises(SystemExit, match="out of luck"):
        side_by_side.compete([contender(side_by_side, tmp_path, "dies")], 1)


def test_the_check_compares_ratios(
    side_by_side: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """15% under the baseline's ratio fails; slower or faster seconds do not matter."""
    path = tmp_path / "decode.json"
    path.write_text(json.dumps({"ratios": {"to_generate": 2.0, "to_vllm": 1.0}}))
    assert side_by_side.check(path, {"to_generate": 1.71}) == 0
    assert side_by_side.check(path, {"to_generate": 1.69, "to_vllm": 1.0}) == 1
    assert "to_generate is 1.69, the baseline's 2.00" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((BENCHMARKS / "baselines").glob("*.json")), ids=lambda path: path.stem)
def test_baselines_say_what_they_are_of(path: Path) -> None:
    """Machine, versions, raw samples and ratios; each ratio is that of its medians."""
    found = json.loads(path.read_text())
    assert found["benchmark"] == path.stem
    assert {"processor", "cores", "torch", "transformers", "dapo", "date"} <= set(found["machine"])
    assert found["samples"]
    assert found["ratios"]
    assert all(value > 0 for value in found["ratios"].values())
