"""Faults that a review found in recipes, neighbours and translations, and that must not come back."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import helpers_run as helpers
import tiny
from dapo import algorithm as alg
from dapo import build
from dapo.advantages import step_advantages
from dapo.batch import make_batch
from dapo.config import keys, load_config
from dapo.config import release as releasing
from dapo.errors import UserError
from dapo.model import paths
from dapo.parts import learning_rate
from dapo.types import Group
from helpers_learner import group, response, same

# --- what recipe verify does not see ---------------------------------------------------------------


def _verify(one: Path, other: Path) -> int:
    return helpers.quiet_dapo("recipe", "verify", one, other)[0]


def test_verify_sees_another_objective_in_the_same_file(tmp_path: Path) -> None:
    """The manifests hold `functions` digests that differ; no part of run/verify.py compares them."""
    loss = tmp_path / "mine.py"
    runs = []
    for sign in "-+":
        loss.write_text(f"def mine(inputs):\n    return {sign}inputs.advantages_BT * inputs.logprobs_BT\n")
        words = ("train.num_steps=1", "eval.before=false", f"algorithm.objective={loss}:mine")
        runs.append(helpers.train(tmp_path, *words, run=f"run{sign}"))
    digests = [json.loads((run / "manifest.json").read_text())["digests"]["functions"] for run in runs]
    assert digests[0] != digests[1]
    assert _verify(*runs) == 4


def test_verify_sees_other_eos_ids(tmp_path: Path) -> None:
    """generation_config.json ends responses and cuts the loss mask; no digest covers it."""
    model = shutil.copytree(helpers.warm_model(), tmp_path / "model")
    words = ("train.num_steps=1", "eval.before=false", "sampling.filter=off")
    one = helpers.train(tmp_path, *words, model=model, run="one")
    file = model / "generation_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"eos_token_id": [2, tiny.VOCABULARY.index("7")]}))
    other = helpers.train(tmp_path, *words, model=model, run="other")
    figures = [helpers.comparable(helpers.metrics(run)) for run in (one, other)]
    assert figures[0] != figures[1]
    assert _verify(one, other) == 4


# --- provenance ------------------------------------------------------------------------------------


def test_an_overlays_provenance_of_what_it_does_not_set() -> None:
    """quickstart speaks of sampling.filter and leaves it at its default; gspo's "off" is not from Eq. 11."""
    config = load_config("gspo", "quickstart")
    assert config.sampling.filter == "off"
    assert not config.provenance["sampling.filter"].startswith("paper")


def test_a_first_layer_that_is_a_word_is_named() -> None:
    """`chosen: set by key=value` is promised of every word; of the first layer it is lost."""
    config = load_config("algorithm.clip_high=0.9", "tiny")
    assert config.algorithm.clip_high == 0.9
    assert config.provenance.get("algorithm.clip_high") == "chosen: set by key=value"


def test_a_resume_does_not_claim_changes_that_are_only_new_keys(tmp_path: Path) -> None:
    """A run of an older dapo, whose config.resolved.json has fewer keys, resumes as it was."""
    run = helpers.copy_run(helpers.finished_run(), tmp_path / "run")
    file = run / "config.resolved.json"
    tree = json.loads(file.read_text())
    for key in ("advantage", "covariance", "entropy_coef", "importance_level"):
        del tree["algorithm"][key]
    file.write_text(json.dumps(tree))
    assert helpers.quiet_dapo("train", "--resume", run, "train.num_steps=3")[0] == 0
    (entry,) = json.loads((run / "manifest.json").read_text())["resumed"]
    assert [line for line in entry["changed"] if not line.startswith("train.num_steps")] == []


def test_a_new_key_of_a_source_disturbs_no_released_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """release.py: "a new key with a default disturbs no digest"; one inside data.source does."""
    config, record = load_config("quickstart"), releasing.released()
    real = keys.values

    def with_one_key_more(config: Any) -> dict[str, Any]:
        known = real(config)
        return known | {"data.source": [{**source, "new_key": None} for source in known["data.source"]]}

    monkeypatch.setattr("dapo.config.release.values", with_one_key_more)
    assert releasing.digest_at_release(config, record, "quickstart") == record["digests"]["quickstart"]


# --- warm-up from zero -----------------------------------------------------------------------------


def test_no_learning_rate_is_negative() -> None:
    """A run stopped in its first step writes learning_rate(0), here -1e-4, into the checkpoint."""
    words = {"model.path": "x", "data.source": "x", "train.warmup_from_zero": True, "train.learning_rate": 1e-3}
    assert learning_rate(0, load_config(words)) >= 0


def test_doctor_passes_the_recipes_that_warm_up_from_zero() -> None:
    """`learning rate at step 1: 0; mend: set train.learning_rate over 0` of dapo-verl-4f80e46, where it is 1e-6."""
    from dapo.doctor import checks

    words = ("train.warmup_from_zero=true", "train.warmup_rollout_steps=10")
    found = {check.name: check for check in checks(load_config("tiny", *words))}
    assert found["learning rate at step 1"].passed


def test_doctor_passes_the_shipped_recipe_tiny() -> None:
    """Its own chat template has no EOS to end a turn with; doctor wants one and ends with 4."""
    from dapo.doctor import checks

    assert [check.name for check in checks(load_config("tiny")) if not check.passed] == []


# --- the arithmetic --------------------------------------------------------------------------------


def _advantages(config: Any, one: Group, ref_gap: float, totals: Any = None) -> torch.Tensor:
    """Of one group whose every token has log pi - log pi_ref = ref_gap."""
    batch = make_batch([one], (tiny.EOS_ID,), config)
    old = torch.full(batch.token_ids.shape, -1.0)
    return step_advantages(replace(batch, old_logprobs=old, ref_logprobs=old - ref_gap), [one], config, totals or {})


def _config(**changes: Any) -> Any:
    words = {"model.path": "x", "data.source": "x", "algorithm.kl.place": "reward", "algorithm.kl.coef": 1.0}
    words |= {"algorithm.kl.estimator": "k1", "algorithm.advantage": "mean"}
    return load_config(words | {key.replace("__", "."): value for key, value in changes.items()})


def _group() -> Group:
    """An answer of 3 tokens that ended, and one of 4 that was cut off; rewards 1 and -1."""
    return group(0, [4, 5], [response([6, 7, tiny.EOS_ID]), response([6, 7, 8, 9])], [1.0, -1.0])


def test_a_filtered_response_pays_its_kl_in_the_groups_statistics() -> None:
    """R - sum k1 = 1 - .3 and -1 - .4, mean -.35, so A = 1.05 whether or not the cut-off one is in the loss.

    make_batch empties its loss mask, and step_advantages sums the KL over that: its reward stays -1, so the longest
    responses of a group, which only stay in its mean, are the ones that pay nothing. Got .85.
    """
    kept, filtered = (_advantages(_config(reward__overlong=rule), _group(), 0.1)[0] for rule in ("none", "filter"))
    assert float(kept) == pytest.approx(1.05)
    assert float(filtered) == pytest.approx(1.05)


def test_the_kl_comes_off_after_normalisation_and_clip_for_every_estimator() -> None:
    """advantages.py: shaped reward, normalisation, clip, KL, estimator. clip = .5: R - KL = .5 - 6 and -.5 - 8."""
    flat = _advantages(_config(algorithm__advantage="mean", reward__clip=0.5), _group(), 2.0)
    assert flat.tolist() == pytest.approx([1.5, -1.5])
    batch = _config(algorithm__advantage="batch", reward__clip=0.5, reward__overlong="none")
    got = _advantages(batch, _group(), 2.0)
    returns = torch.tensor([-5.5, -3.5, -1.5, -8.5, -6.5, -4.5, -2.5])
    assert got[got != 0].tolist() == pytest.approx(((returns - returns.mean()) / returns.std()).tolist(), rel=1e-4)


@pytest.mark.parametrize("objective", ["gspo", "cispo", "dapo"])
def test_a_token_without_advantage_gives_no_nan(objective: str) -> None:
    """A = 0, no upper clip and a ratio over exp(88): 0 * inf. kl_cov guards against it, the others do not."""
    from dapo.config.schema import AlgorithmConfig
    from dapo.objectives import BUILT_IN

    settings = AlgorithmConfig(objective=objective, clip_low=None, clip_high=None)
    inputs = alg.ObjectiveInputs(
        logprobs_BT=torch.tensor([[0.0]], requires_grad=True),
        old_logprobs_BT=torch.tensor([[-100.0]]),
        advantages_BT=torch.tensor([[0.0]]),
        mask_BT=torch.tensor([[True]]),
    )
    assert torch.isfinite(BUILT_IN[objective](settings, inputs)).all()


def test_the_forecast_knows_of_adaptive_groups(tmp_path: Path) -> None:
    """Rated 0.9, groups of 3 (2 + 14 * 0.1): 27% are informative, as the ledger says; the note says 81.5%."""
    data = helpers.write_rows(tmp_path / "rated.jsonl", [row | {"p": 0.9} for row in helpers.problems(40)])
    recipe = helpers.write_recipe(tmp_path)
    words: tuple[str, ...] = (f"data.source={data}", "data.rating_column=p", "train.num_steps=1", "eval.before=false")
    words += ("sampling.responses_per_prompt=16", "sampling.min_responses_per_prompt=2")
    code, _, err = helpers.quiet_dapo("train", recipe, *words, "--output-dir", tmp_path / "run")
    assert code == 0, err
    line = next(line for line in err.splitlines() if "of draws are informative" in line)
    predicted = helpers.metrics(tmp_path / "run")[-1]["sampling/predicted_acceptance"]
    assert predicted == pytest.approx(1 - 0.9**3 - 0.1**3)
    assert "27.0%" in line


def test_the_kl_that_is_taken_off_the_reward_is_in_the_metrics(tmp_path: Path) -> None:
    """Law 7: with place = "loss" policy/kl_to_reference is logged; with "reward" nothing says how large it was."""
    words = ("algorithm.kl.place=reward", "algorithm.kl.coef=1", "train.num_steps=1", "eval.before=false")
    run = helpers.train(tmp_path, *words)
    assert [name for name in helpers.metrics(run)[-1] if "kl_to_reference" in name]


def test_nothing_is_said_to_be_clipped_where_nothing_is(tmp_path: Path) -> None:
    """kl_cov has no clipping (its docstring); clip/high_fraction and clip/low_fraction say otherwise."""
    words = ("algorithm.objective=kl_cov", "algorithm.clip_high=1e-9", "train.learning_rate=1e-2", "eval.before=false")
    run = helpers.train(tmp_path, *words)
    assert helpers.metrics(run)[-1].get("clip/high_fraction", 0.0) == 0.0


def test_a_reference_that_was_reset_outlives_steps_without_a_kl(tmp_path: Path) -> None:
    """Off for one step and on again, the reference is still the one it was reset to."""
    on = ("algorithm.kl.place=loss", "algorithm.kl.coef=0.5")
    words = ("algorithm.kl.reset_every=2", "train.learning_rate=1e-2", "checkpoint.every=1", "checkpoint.keep_last=9")
    run = helpers.train(tmp_path, *on, *words)
    off = ("algorithm.kl.place=off", "algorithm.kl.coef=0", "algorithm.kl.reset_every=off")
    assert helpers.quiet_dapo("train", "--resume", run, "train.num_steps=3", *off)[0] == 0
    assert helpers.quiet_dapo("train", "--resume", run, "train.num_steps=4", *on)[0] == 0
    held = [_reference(run / "checkpoints" / f"step_{step:06d}") for step in (2, 3, 4)]
    assert held[0]
    assert same(held[0], held[1])
    assert same(held[0], held[2])


def _reference(checkpoint: Path) -> dict[str, torch.Tensor]:
    found = {}
    for file in checkpoint.glob("*.safetensors"):
        found |= {name: value for name, value in load_file(file).items() if name.startswith("reference/")}
    return found


# --- silent acceptance, tracebacks ----------------------------------------------------------------


def test_a_plugin_of_a_built_in_name_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before this version `gspo` could only be a plugin; a run that used it goes on with another loss, unsaid."""
    point = importlib.metadata.EntryPoint("gspo", "math:sqrt", "dapo.objectives")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [point])
    words = {"model.path": "x", "data.source": "x", "algorithm.objective": "gspo"}
    with pytest.raises(UserError, match="gspo"):
        build.make_objective(load_config(words))


def test_translation_does_not_overwrite_a_file(tmp_path: Path) -> None:
    """`recipe copy` refuses; `config --from-verl -o` replaces an edited recipe without a word."""
    target = tmp_path / "mine.toml"
    target.write_text("# a day's work\n")
    words = ["actor_rollout_ref.model.path=x", "data.train_files=a.parquet", "data.val_files=b.parquet"]
    words += ["data.train_batch_size=8", "trainer.total_training_steps=5", "actor_rollout_ref.rollout.n=4"]
    words += ["actor_rollout_ref.actor.ppo_mini_batch_size=4"]
    code, _, _ = helpers.quiet_dapo("config", "--from-verl", *words, "-o", target)
    assert (code, target.read_text()) == (2, "# a day's work\n")


@pytest.mark.parametrize("line", ["read x <<< 16", "unset x", "let x=16", "((x*=2))", "printf -v x 16", "eval x=16"])
def test_what_a_shell_does_to_a_variable_is_named(line: str, tmp_path: Path) -> None:
    """docs/migrating.md: "named, never guessed". bash gives another value than 8; the translation 8, without a note."""
    from dapo.config.foreign import Refused, translate_verl

    words = "actor_rollout_ref.model.path=x data.train_files=a.parquet data.val_files=b.parquet"
    words += " trainer.total_training_steps=5 actor_rollout_ref.actor.ppo_mini_batch_size=4"
    words += " actor_rollout_ref.rollout.n=4 data.train_batch_size=$x"
    script = tmp_path / "s.sh"
    script.write_text(f"x=8\n{line}\npython3 -m verl.trainer.main_ppo {words}\n")
    try:
        found = translate_verl([str(script)])
    except Refused:
        return
    assert any("s.sh" in note for note in found.notes)


def test_no_place_for_the_random_model_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder that can't be made is the user's to mend: ModelError, not NotADirectoryError and exit 1."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError):
        paths.resolve_model("random:tiny")


def test_a_translated_reward_file_is_found_from_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl reads r.py from the working directory, a recipe from its own folder: -o sub/x.toml names sub/r.py."""
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    Path("r.py").write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None): return 1.0\n")
    words = ["actor_rollout_ref.model.path=x", "data.train_files=a.parquet", "data.val_files=b.parquet"]
    words += ["data.train_batch_size=8", "trainer.total_training_steps=5", "actor_rollout_ref.rollout.n=4"]
    words += ["actor_rollout_ref.actor.ppo_mini_batch_size=4", "custom_reward_function.path=r.py"]
    assert helpers.quiet_dapo("config", "--from-verl", *words, "-o", "sub/x.toml")[0] == 0
    (function,) = load_config("sub/x.toml").reward.functions
    name = function if isinstance(function, str) else function.function
    assert Path(name.rpartition(":")[0]).is_file()
