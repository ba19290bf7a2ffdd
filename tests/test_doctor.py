"""dapo doctor: passes what is right, and finds what is wrong with its mend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import helpers_run as helpers
import tiny
from dapo import build, doctor
from dapo.config import load_config
from dapo.doctor import Check
from dapo.rollout.torch_engine import TorchEngine
from dapo.rollout.weights import PackedLinear

NAMES = [
    "batch sizes",
    "learning rate at step 1",
    "data and rewards",
    "model and template",
    "template round trip",
    "one BOS",
    "EOS",
    "memory",
    "engine log-prob = learner log-prob",
    "a draw alone = the draw in company",
]


def by_name(checks: Iterator[Check]) -> dict[str, Check]:
    """The checks, each under its name."""
    return {check.name: check for check in checks}


def test_a_good_recipe_passes_every_check(tmp_path: Path) -> None:
    """All checks run, and exit 0. (The tiny template ends turns with a token that is no EOS: told below.)"""
    model = helpers.copy_run(helpers.warm_model(), tmp_path / "model")
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = tiny.CHAT_TEMPLATE.replace(tiny.TURN, tiny.EOS)
    tokenizer.save_pretrained(model)
    recipe = helpers.write_recipe(tmp_path, model=model)
    before = helpers.tree(tmp_path)
    code, out, err = helpers.quiet_dapo("doctor", recipe, "--json")
    checks = helpers.strict_json(out)
    assert [check["name"] for check in checks] == NAMES
    assert [check for check in checks if not check["passed"]] == []
    assert all(check["found"] for check in checks)
    assert code == 0, err
    assert "4 prompts x 4 = 16 responses" in checks[0]["found"]
    assert helpers.tree(tmp_path) == before


def test_a_failed_check_is_told_with_its_mend(tmp_path: Path) -> None:
    """Exit 4, the check on stdout with its mend, its name on stderr."""
    recipe = helpers.write_recipe(tmp_path)  # its turns end with <turn>, which no response ends with
    code, out, err = helpers.quiet_dapo("doctor", recipe)
    assert code == 4
    lines = out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("FAIL  EOS"))
    assert "eos_token_id" in lines[place + 1]
    assert lines[place + 1].strip().startswith("mend: ")
    assert sum(line.startswith("FAIL") for line in lines) == 1
    assert err.splitlines() == [f"error: 1 of {len(NAMES)} checks failed: EOS  [dapo explain E-CHECK]"]


def test_json_stays_json_when_a_check_fails(tmp_path: Path) -> None:
    """stdout parses whatever was found."""
    code, out, _ = helpers.quiet_dapo("doctor", helpers.write_recipe(tmp_path), "--json")
    assert code == 4
    assert [c["name"] for c in helpers.strict_json(out) if not c["passed"]] == ["EOS"]


@pytest.mark.parametrize(
    ("words", "name", "needle"),
    [
        (("data.source=nowhere.jsonl",), "data and rewards", "nowhere.jsonl"),
        (("model.path=/nowhere",), "model and template", "/nowhere"),
        (("data.max_prompt_tokens=2", "data.holdout=0", "eval.data=[]"), "model and template", "max_prompt_tokens"),
        (("sampling.max_response_tokens=250",), "model and template", "256 positions"),
        (("engine.kind=tortch",), "", "engine.kind"),
        (("algorithm.objective=dopa",), "data and rewards", "algorithm.objective"),
    ],
)
def test_a_check_that_cannot_run_fails_with_its_reason(
    words: tuple[str, ...], name: str, needle: str, tmp_path: Path
) -> None:
    """A mistake of the recipe is a finding of the doctor, not its end."""
    code, out, err = helpers.quiet_dapo("doctor", helpers.write_recipe(tmp_path), *words)
    assert code == 4, err
    last = [line for line in out.splitlines() if line.startswith("FAIL")][-1]
    assert last.startswith(f"FAIL  {name}")
    assert needle in last


def test_an_engine_that_samples_from_other_weights_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 9: the engine samples from what the learner thinks it samples from."""
    config = load_config(helpers.write_recipe(tmp_path))
    good = by_name(doctor.checks(config))["engine log-prob = learner log-prob"]
    assert good.passed
    real = build.load_model
    calls: list[str] = []

    def other_for_the_engine(model_config: Any, dtype: torch.dtype, device: torch.device) -> Any:
        calls.append(model_config.path)
        return real(model_config, dtype, device) if len(calls) == 1 else tiny.model(seed=5)

    monkeypatch.setattr(build, "load_model", other_for_the_engine)
    monkeypatch.setattr(TorchEngine, "load_weights", lambda self, version, tensors: list(tensors))
    bad = by_name(doctor.checks(config))["engine log-prob = learner log-prob"]
    assert not bad.passed
    assert bad.mend


@pytest.mark.parametrize(("shift", "told"), [(0.0, "the same bits"), (1e-5, "other log-probs"), (3.0, "other tokens")])
def test_an_engine_that_depends_on_what_is_in_flight_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: float, told: str
) -> None:
    """Law 5, with a head whose logits move with the number of rows. Other tokens fail, if they were promised."""
    config = load_config(helpers.write_recipe(tmp_path))

    plain = PackedLinear.__call__

    def moved(self: PackedLinear, hidden: torch.Tensor) -> torch.Tensor:
        result = plain(self, hidden)
        many = len(result) > 8 and result.shape[-1] == len(tiny.VOCABULARY)
        return result + shift * many * (torch.arange(result.shape[-1]) % 2)

    monkeypatch.setattr(PackedLinear, "__call__", moved)
    check = by_name(doctor.checks(config))["a draw alone = the draw in company"]
    assert told in check.found
    assert check.passed is (told != "other tokens")
    assert check.mend
    monkeypatch.setattr("dapo.rollout.weights.packs", lambda weight: False)
    check = by_name(doctor.checks(config))["a draw alone = the draw in company"]
    assert check.passed
    assert "not promised" in check.found


def test_too_little_memory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the run dies of it, with the knobs that help."""
    monkeypatch.setattr(doctor, "_available_gb", lambda config: 1e-6)
    check = by_name(doctor.checks(load_config(helpers.write_recipe(tmp_path))))["memory"]
    assert not check.passed
    assert "engine.slots" in check.mend


def test_memory_counts_what_the_sizes_say(tmp_path: Path) -> None:
    """A golden: 4 float32 copies for the learner, 1 for the engine, cache and logits."""
    config = load_config(
        helpers.write_recipe(tmp_path),
        "engine.slots=1000000",
        "train.logits_chunk_tokens=1",
        "data.max_prompt_tokens=28",
    )
    check = doctor._memory(config, tiny.model())
    # cache: keys and values, 2 layers, 1e6 slots, 2 heads of 8, 28 + 4 tokens, 4 bytes = 8.192e9 bytes = 7.63 GB
    assert "(cache 7.6)" in check.found
    assert check.found.startswith("about 7.6 GB")


def test_without_a_recipe_it_prints_the_environment() -> None:
    """What a bug report needs, in words and as JSON, with no path of the user's home in it."""
    code, out, _ = helpers.quiet_dapo("doctor")
    assert code == 0
    for name in ("torch", "transformers", "python", "cpus", "compute_dtype_auto", "model_cache"):
        assert f"\n{name}: " in "\n" + out
    code, as_json, _ = helpers.quiet_dapo("doctor", "--json")
    assert code == 0
    assert helpers.strict_json(as_json)["torch"] == torch.__version__
    assert str(Path.home()) + "/" not in as_json
