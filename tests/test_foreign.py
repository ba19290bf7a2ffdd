"""Configurations of verl and TRL as recipes: every value, every bucket, and no script that runs."""

from __future__ import annotations

import ast
import json
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dapo.cli import main
from dapo.config import load_config
from dapo.config.foreign import (
    BUCKETS,
    Refused,
    Translation,
    to_toml,
    translate_trl,
    translate_verl,
    trl_keys,
    verl_keys,
)
from dapo.config.foreign.arithmetic import arithmetic
from dapo.config.foreign.report import Unresolved
from dapo.config.foreign.shell import read_script
from dapo.config.foreign.shell_runs import settings
from dapo.config.load import all_keys
from dapo.errors import ConfigError

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
VERL = [
    f"{MODEL}path=m",
    "data.train_files=d.parquet",
    "data.val_files=v.parquet",
    f"{ROLLOUT}n=8",
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=64",
    f"{ACTOR}ppo_mini_batch_size=16",
]
TRL = ["model_name_or_path=m", "data.source=d.jsonl"]

# In the manner of the DAPO script: sizes by arithmetic, paths with defaults, one long command.
SCRIPT = r"""#!/usr/bin/env bash
set -xeuo pipefail   # stop at the first mistake
group_name='Mine'
run_name="${group_name}-32B"
low=0.2; high=0.28
longest_prompt=$((1024 * 2))
longest=$(( 1024 * (16 + 4) ))
buffer=$((longest / 5))
prompts=512
drawn=$((prompts * 3))
top_k=-1 # -1 with vLLM
export NODES=${NODES:-16}
MODELS=${MODELS:-"/models"}
MODEL=${MODEL:-"${MODELS}/Qwen 32B"}

ray job submit --no-wait --runtime-env="${UNKNOWN_ENV}" -- \
    python3 -m recipe.dapo.main_dapo \
    data.train_files="${MODELS}/train.parquet" \
    data.val_files='["/a/test.parquet","/b/test.parquet"]' \
    data.truncation='left' \
    data.max_prompt_length=${longest_prompt} \
    data.max_response_length=$longest \
    data.gen_batch_size=${drawn} \
    data.train_batch_size=${prompts} \
    +data.seed=7 \
    actor_rollout_ref.rollout.n=16 \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.actor.clip_ratio_low=${low} \
    actor_rollout_ref.actor.clip_ratio_high=${high} \
    actor_rollout_ref.actor.clip_ratio_c=10.0 \
    algorithm.filter_groups.enable=True \
    algorithm.filter_groups.metric=acc \
    algorithm.filter_groups.max_num_gen_batches=10 \
    actor_rollout_ref.model.path="${MODEL}" \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.optim.weight_decay=0.1 \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
    actor_rollout_ref.rollout.val_kwargs.top_p=0.7 \
    actor_rollout_ref.rollout.val_kwargs.n=4 \
    reward_model.reward_manager=dapo \
    reward_model.overlong_buffer.enable=True \
    reward_model.overlong_buffer.len=${buffer} \
    reward_model.overlong_buffer.penalty_factor=1.0 \
    trainer.logger='["console","wandb"]' \
    trainer.experiment_name="${run_name}" \
    trainer.nnodes="${NODES}" \
    trainer.total_training_steps=200 \
    trainer.test_freq=5 \
    trainer.save_freq=5 "$@"
"""


def at(tree: dict[str, Any], key: str, default: Any = None) -> Any:
    """The value of a dotted key of a nested table."""
    value: Any = tree
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return default
        value = value[part]
    return value


def verl(*words: str, base: Sequence[str] = VERL) -> Translation:
    """A translation from the least that loads, and these on top; its account always adds up."""
    return checked(translate_verl([*base, *words]), [*base, *words])


def trl(*words: str, base: Sequence[str] = TRL) -> Translation:
    """The same of TRL."""
    return checked(translate_trl([*base, *words]), [*base, *words])


def checked(translation: Translation, words: Sequence[str]) -> Translation:
    """Every key in one bucket, provenance for what is set, and a TOML that loads as the same."""
    if all("=" in word for word in words):
        keys = {word.partition("=")[0].lstrip("+") for word in words}
        rows = [row["key"] for bucket in BUCKETS for row in translation.buckets[bucket]]
        assert sorted(rows) == sorted(keys)
    assert tomllib.loads(translation.toml()) == json.loads(json.dumps(translation.recipe))
    config = load_config(translation.recipe)
    for key, source in config.provenance.items():
        assert key in set(all_keys())
        assert source.startswith("chosen: ")
    return translation


def bucket(translation: Translation, key: str) -> tuple[str, str]:
    """(bucket, remark) of a source key."""
    found = [(b, row["how"]) for b in BUCKETS for row in translation.buckets[b] if row["key"] == key]
    assert len(found) == 1, found
    return found[0]


def refusal(translate: Any, *words: str) -> str:
    """The one line that these words are refused with."""
    with pytest.raises(ConfigError) as caught:
        translate(list(words))
    assert len(caught.value.message.splitlines()) == 1
    return caught.value.message


def write(folder: Path, name: str, text: str | bytes) -> str:
    """The path of a file with this text."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


# --- a whole verl script --------------------------------------------------------------------------

WANTED = {
    "name": "Mine-32B",
    "model.path": "/models/Qwen 32B",
    "data.source": "/models/train.parquet",
    "data.prompt_column": "prompt",
    "data.answer_column": "reward_model.ground_truth",
    "data.max_prompt_tokens": 2048,
    "data.overlong_prompts": "drop",
    "sampling.prompts_per_step": 512,
    "sampling.responses_per_prompt": 16,
    "sampling.gen_prompts": 1536,
    "sampling.max_rounds": 10,
    "sampling.filter": "correctness",
    "sampling.max_response_tokens": 20480,
    "reward.overlong": "soft",
    "reward.overlong_buffer_tokens": 4096,
    "reward.overlong_factor": 1.0,
    "algorithm.clip_low": 0.2,
    "algorithm.clip_high": 0.28,
    "algorithm.clip_dual": 10.0,
    "train.num_steps": 200,
    "train.updates_per_step": 16,
    "train.learning_rate": 1e-6,
    "train.warmup_rollout_steps": 10,
    "train.warmup_from_zero": True,
    "train.weight_decay": 0.1,
    "train.gradient_checkpointing": True,
    "train.seed": 7,
    "eval.k": 4,
    "eval.every": 5,
    "eval.temperature": 1.0,
    "eval.top_p": 0.7,
    "checkpoint.every": 5,
}


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_script_in_the_manner_of_dapo(tmp_path: Path, line_end: str) -> None:
    """Every value of the recipe, whatever the line ends."""
    translation = verl(write(tmp_path, "run.sh", SCRIPT.replace("\n", line_end)), base=[])
    assert {key: at(translation.recipe, key) for key in WANTED} == WANTED
    assert [row["source"] for row in translation.recipe["eval"]["data"]] == ["/a/test.parquet", "/b/test.parquet"]
    assert [row["name"] for row in translation.recipe["eval"]["data"]] == ["a-test", "b-test"]
    config = load_config(translation.recipe)
    assert (config.algorithm.reduction, config.algorithm.kl.place, config.algorithm.entropy_coef) == (
        "minibatch",
        "off",
        0,
    )
    assert translation.keys_read == SCRIPT.count("=", SCRIPT.index("data.train_files"))
    assert not translation.buckets["unknown"]
    assert bucket(translation, "trainer.nnodes")[0] == bucket(translation, "trainer.logger")[0] == "machine"
    assert bucket(translation, "data.truncation")[0] == "different"


def test_later_words_and_keys_of_dapo_win(tmp_path: Path) -> None:
    """Files in order, then words; a key that only dapo has is taken as it is."""
    script = write(tmp_path, "run.sh", SCRIPT)
    translation = translate_verl([script, f"{ROLLOUT}n=8", "train.num_steps=3", "data.source=other.jsonl"])
    assert at(translation.recipe, "sampling.responses_per_prompt") == 8
    assert at(translation.recipe, "train.num_steps") == 3
    assert at(translation.recipe, "data.source") == "other.jsonl"
    assert bucket(translation, "train.num_steps")[0] == "translated"


# --- verl, key by key -----------------------------------------------------------------------------

VERL_CASES = [
    (["data.shuffle=False"], {"data.shuffle": False}),
    (["data.filter_overlong_prompts=True"], {"data.overlong_prompts": "drop"}),
    ([], {"data.overlong_prompts": "refuse", "train.weight_decay": 0.01, "algorithm.entropy_coef": 0.001}),
    ([], {"algorithm.clip_dual": 3.0, "algorithm.clip_high": 0.2, "reward.overlong": "none", "sampling.filter": "off"}),
    ([], {"train.warmup_rollout_steps": 0, "eval.temperature": 0.0, "eval.top_p": 1.0, "eval.k": 1}),
    ([], {"sampling.max_response_tokens": 512, "data.max_prompt_tokens": 512, "train.updates_per_step": 4}),
    (["data.train_files=[a.parquet,b.parquet]"], {"data.prompt_column": None}),
    (["data.prompt_key=question"], {"data.prompt_column": "question"}),
    (["data.gen_batch_size=128"], {"sampling.prompts_per_step": 128, "train.updates_per_step": 8}),
    (["algorithm.norm_adv_by_std_in_grpo=False"], {"algorithm.advantage": "mean"}),
    (["algorithm.adv_estimator=rloo"], {"algorithm.advantage": "leave_one_out"}),
    (["algorithm.adv_estimator=reinforce_plus_plus"], {"algorithm.advantage": "batch"}),
    ([f"{ACTOR}loss_agg_mode=seq-mean-token-mean"], {"algorithm.reduction": "sequence"}),
    (
        [f"{ACTOR}loss_agg_mode=seq-mean-token-sum"],
        {"algorithm.reduction": "constant", "algorithm.constant_tokens": 1},
    ),
    ([f"{ACTOR}loss_agg_mode=seq-mean-token-sum-norm"], {"algorithm.constant_tokens": 512}),
    (
        [f"{ACTOR}loss_agg_mode=seq-mean-token-sum-norm", f"{ACTOR}loss_scale_factor=100"],
        {"algorithm.constant_tokens": 100},
    ),
    ([f"{ACTOR}clip_ratio=0.3"], {"algorithm.clip_low": None, "algorithm.clip_high": 0.2}),
    (
        [f"{ACTOR}clip_ratio=0.3", f"{ACTOR}clip_ratio_low=null"],
        {"algorithm.clip_low": 0.3, "algorithm.clip_high": 0.2},
    ),
    ([f"{ACTOR}clip_ratio_low=10"], {"algorithm.clip_low": "off"}),
    (
        [f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_coef=0.01"],
        {"algorithm.kl": {"place": "loss", "coef": 0.01}},
    ),
    ([f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_type=mse"], {"algorithm.kl.estimator": "k2"}),
    ([f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_type=k3+"], {"algorithm.kl.estimator": "k2"}),
    ([f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_coef=0"], {"algorithm.kl": None}),
    (
        ["algorithm.use_kl_in_reward=True"],
        {"algorithm.kl": {"place": "reward", "coef": 0.001, "estimator": "k1"}},
    ),
    (
        [f"{ACTOR}policy_loss.loss_mode=gspo"],
        {"algorithm.objective": "gspo", "algorithm.clip_dual": None, "algorithm.reduction": "sequence"},
    ),
    (
        [f"{ACTOR}policy_loss.loss_mode=cispo", f"{ACTOR}clip_ratio_low=10"],
        {"algorithm.objective": "cispo", "algorithm.clip_low": "off", "algorithm.clip_dual": None},
    ),
    (
        [f"{ACTOR}policy_loss.loss_mode=kl_cov"],
        {"algorithm.objective": "kl_cov", "algorithm.covariance": {"kl_coef": 0.1}},
    ),
    (
        [f"{ACTOR}policy_loss.loss_mode=clip_cov", f"{ACTOR}policy_loss.clip_cov_lb=0.5"],
        {"algorithm.objective": "clip_cov", "algorithm.covariance": {"low": 0.5}, "algorithm.clip_dual": None},
    ),
    ([f"{ACTOR}tis_imp_ratio_cap=2"], {"algorithm.importance_cap": 2.0}),
    (
        ["algorithm.rollout_correction.rollout_is=sequence"],
        {"algorithm.importance_cap": 2.0, "algorithm.importance_level": "sequence"},
    ),
    (["algorithm.rollout_correction.bypass_mode=True"], {"algorithm.old_logprobs": "engine"}),
    (
        ["trainer.total_training_steps=50", f"{ACTOR}optim.lr_warmup_steps_ratio=0.1"],
        {"train.num_steps": 50, "train.warmup_rollout_steps": 5, "train.warmup_from_zero": True},
    ),
    (
        [f"{ACTOR}use_dynamic_bsz=True", f"{ACTOR}ppo_max_token_len_per_gpu=22528"],
        {"train.tokens_per_microbatch": 22528},
    ),
    ([f"{ACTOR}ppo_max_token_len_per_gpu=22528"], {"train.tokens_per_microbatch": None}),
    ([f"{ACTOR}grad_clip=null"], {"train.max_grad_norm": "off"}),
    (["trainer.val_before_train=False"], {"eval.before": False}),
    (["trainer.max_actor_ckpt_to_keep=5"], {"checkpoint.keep_last": 5}),
    (
        ["data.apply_chat_template_kwargs.enable_thinking=False"],
        {"model.chat_template_kwargs": {"enable_thinking": False}},
    ),
    (["custom_reward_function.path=my.py"], {"reward.functions": [f"{Path.cwd()}/my.py:compute_score"]}),
    (
        [
            "reward.reward_manager.name=dapo",
            "reward.reward_kwargs.overlong_buffer_cfg.enable=True",
            "reward.reward_kwargs.overlong_buffer_cfg.len=64",
            "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5",
        ],
        {"reward.overlong": "soft", "reward.overlong_buffer_tokens": 64, "reward.overlong_factor": 0.5},
    ),
    (
        [f"reward_model.overlong_buffer.{word}" for word in ("enable=True", "len=64", "penalty_factor=1.0")],
        {"reward.overlong": "none", "reward.overlong_buffer_tokens": None},  # the manager naive does not read it
    ),
    (["algorithm.filter_groups.enable=True"], {"sampling.filter": "correctness", "sampling.max_rounds": None}),
    (
        ["algorithm.filter_groups.enable=True", "custom_reward_function.path=my.py"],
        {"sampling.filter": "nonzero_std"},
    ),
]


@pytest.mark.parametrize(("words", "wanted"), VERL_CASES)
def test_verl_values(words: list[str], wanted: dict[str, Any]) -> None:
    """What single keys become; None stands for dapo's own default, left out."""
    recipe = verl(*words).recipe
    assert {key: at(recipe, key) for key in wanted} == wanted


FILTERED = "algorithm.filter_groups.enable=True"
VERL_BUCKETS = [
    (["algorithm.adv_estimator=gae"], "algorithm.adv_estimator", "no_counterpart", "value function"),
    (["algorithm.adv_estimator=nonsense"], "algorithm.adv_estimator", "no_counterpart", "nonsense"),
    ([f"{ACTOR}ppo_epochs=2"], f"{ACTOR}ppo_epochs", "no_counterpart", "2 times"),
    ([f"{ACTOR}ppo_epochs=1"], f"{ACTOR}ppo_epochs", "translated", ""),
    ([f"{ROLLOUT}top_p=0.9"], f"{ROLLOUT}top_p", "no_counterpart", "whole distribution"),
    ([f"{ROLLOUT}top_k=50"], f"{ROLLOUT}top_k", "no_counterpart", "whole distribution"),
    ([f"{ROLLOUT}top_k=-1"], f"{ROLLOUT}top_k", "translated", ""),
    ([f"{ACTOR}loss_agg_mode=token-mean"], f"{ACTOR}loss_agg_mode", "different", "micro-batch"),
    ([f"{ACTOR}clip_ratio=0.3"], f"{ACTOR}clip_ratio", "different", "no effect"),
    ([f"{ACTOR}policy_loss.loss_mode=sapo"], f"{ACTOR}policy_loss.loss_mode", "no_counterpart", "sapo"),
    ([f"{ACTOR}optim.warmup_style=cosine"], f"{ACTOR}optim.warmup_style", "no_counterpart", "cosine"),
    ([f"{ACTOR}optim.lr_scheduler_type=constant"], f"{ACTOR}optim.lr_scheduler_type", "translated", ""),
    ([f"{ACTOR}optim.lr_warmup_steps_ratio=0.1"], f"{ACTOR}optim.lr_warmup_steps_ratio", "no_counterpart", "share"),
    ([f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_type=abs"], f"{ACTOR}kl_loss_type", "no_counterpart", "abs"),
    (
        ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive"],
        "algorithm.kl_ctrl.type",
        "no_counterpart",
        "fixed",
    ),
    ([f"{MODEL}lora_rank=8"], f"{MODEL}lora_rank", "translated", ""),
    ([f"{ROLLOUT}tensor_model_parallel_size=4"], f"{ROLLOUT}tensor_model_parallel_size", "machine", ""),
    (["critic.optim.lr=1e-5"], "critic.optim.lr", "machine", ""),
    (["reward_model.enable=True"], "reward_model.enable", "no_counterpart", "reward model"),
    (["trainer.total_epochs=2"], "trainer.total_epochs", "no_counterpart", "2 epoch"),
    (["trainer.val_only=True"], "trainer.val_only", "no_counterpart", "dapo eval"),
    (["reward_model.overlong_buffer.enable=True"], "reward_model.overlong_buffer.enable", "different", "naive"),
    (
        [FILTERED, "algorithm.filter_groups.metric=seq_final_reward"],
        "algorithm.filter_groups.metric",
        "different",
        "overlong penalty",
    ),
    (
        [FILTERED, "algorithm.filter_groups.max_num_gen_batches=0"],
        "algorithm.filter_groups.max_num_gen_batches",
        "different",
        "without a bound",
    ),
    (["data.gen_batch_size=128"], "data.gen_batch_size", "different", "without filter_groups"),
    (["algorithm.filter_groups.enabel=True"], "algorithm.filter_groups.enabel", "unknown", "filter_groups.enable?"),
    ([f"{ACTOR}clip_ratio_hi=1"], f"{ACTOR}clip_ratio_hi", "unknown", "did you mean"),
]


@pytest.mark.parametrize(("words", "key", "wanted", "remark"), VERL_BUCKETS)
def test_verl_buckets(words: list[str], key: str, wanted: str, remark: str) -> None:
    """Where a key ends, and what is said of it."""
    found, how = bucket(verl(*words), key)
    assert found == wanted
    assert remark in how
    assert bool(how) == (wanted != "translated" and wanted != "machine")


def test_every_key_that_has_a_rule_is_known() -> None:
    """Each key of the tables, at null, at its default and at a word, ends in a bucket that is not "not known"."""
    for keys, translate, base in ((verl_keys.KNOWN, translate_verl, VERL), (trl_keys.KNOWN, translate_trl, TRL)):
        table = verl_keys.DEFAULTS if translate is translate_verl else trl_keys.DEFAULTS
        for key in sorted(keys - {word.partition("=")[0] for word in base} - {"args"}):
            for value in {table.get(key) if isinstance(table.get(key), (str, int, float)) else None, None}:
                try:
                    translation = translate([*base, f"{key}={'null' if value is None else value}"])
                except ConfigError:
                    continue
                assert bucket(translation, key)[0] != "unknown", key


def test_two_spellings_of_one_key() -> None:
    """null loses, then the earlier; both are accounted for."""
    translation = verl(f"{ACTOR}optim.lr_scheduler_type=constant", f"{ACTOR}optim.warmup_style=null")
    assert bucket(translation, f"{ACTOR}optim.warmup_style")[0] == "machine"
    translation = verl(f"{ACTOR}optim.lr_scheduler_type=constant", f"{ACTOR}optim.warmup_style=cosine")
    assert bucket(translation, f"{ACTOR}optim.warmup_style")[0] == "no_counterpart"
    assert bucket(translation, f"{ACTOR}optim.lr_scheduler_type") == (
        "machine",
        f"{ACTOR}optim.warmup_style says the same and comes later",
    )


def test_defaults_that_differ_are_told() -> None:
    """verl's default of a key that is not set: a note, and for entropy the newer core's."""
    notes = "\n".join(verl().notes)
    assert "trainer.balance_batch (not set, verl's default True): verl mixes responses" in notes
    assert "balance" not in "\n".join(verl("trainer.balance_batch=False").notes)
    assert "entropy_coeff (not set): 0.001 as in verl 4f80e465; 0 in verl b178a3cd" in notes
    assert "trainer.total_epochs (not set, verl's default 30)" in notes
    assert verl().recipe["provenance"]["algorithm.clip_dual"] == f"chosen: verl's default of {ACTOR}clip_ratio_c"
    assert "entropy" not in "\n".join(verl(f"{ACTOR}entropy_coeff=0").notes)


VERL_REFUSED = [
    ([f"{ACTOR}optim.lr=abc"], f"{ACTOR}optim.lr = abc: a number is wanted"),
    ([f"{ACTOR}optim.lr=true"], "a number is wanted"),
    ([f"{ACTOR}optim.lr=nan"], "a number is wanted"),
    ([f"{ROLLOUT}n=" + "9" * 6000], "a number is wanted"),
    ([f"{ROLLOUT}n=" + "9" * 300], "a whole number below 2^63"),
    ([f"{ROLLOUT}n=2.5"], "a whole number"),
    ([f"{ROLLOUT}n=0"], "1 or more"),
    ([f"{ROLLOUT}n=1"], "dapo refuses the translated recipe: sampling.responses_per_prompt = 1"),
    ([f"{ACTOR}ppo_mini_batch_size=24"], "does not divide the 64 prompts"),
    ([f"{ACTOR}use_kl_loss=maybe"], "true or false is wanted"),
    ([f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_type=kl"], "gradient of zero"),
    ([f"{MODEL}path=[a,b]"], "one word is wanted"),
    (["data.train_files={a: 1}"], "a path or a list of paths"),
    ([f"{MODEL}path=${{nowhere.x}}"], "nowhere.x can't be told"),
    ([f"{ACTOR}clip_ratio_c=0.5"], "clip_dual"),
    (["nothing"], "give a .yaml file"),
    (["none.yaml"], "no such file"),
]


@pytest.mark.parametrize(("words", "wanted"), VERL_REFUSED)
def test_verl_refusals(words: list[str], wanted: str) -> None:
    """One line with the key, the value and the mend, however wild the value."""
    message = refusal(translate_verl, *VERL, *words)
    assert wanted in message
    assert len(message) < 400


def test_a_refused_recipe_still_has_its_lists() -> None:
    """What dapo's own checks refuse."""
    with pytest.raises(Refused) as caught:
        translate_verl([*VERL, f"{ROLLOUT}n=1", f"{ACTOR}ppo_epochs=3"])
    assert caught.value.translation is not None
    assert bucket(caught.value.translation, f"{ACTOR}ppo_epochs")[0] == "no_counterpart"


# --- the shell reader -----------------------------------------------------------------------------


def shell(text: str) -> dict[str, str | Unresolved]:
    """The settings of a script."""
    return dict(settings(read_script(text)))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a=2\nb=$((a ** 3 - 1))\nrun x.y=$b", "7"),
        ("run x.y=$(( (1 + 2) * -3 ))", "-9"),
        ("run x.y=$((7 / 2))", "3"),
        ("run x.y=$((-7 / 2))", "-3"),
        ("run x.y=$((-7 % 2))", "-1"),
        ("a=5\nrun x.y=$((${a} + $a))", "10"),
        ('a=${B:-"c d"}\nrun x.y="$a"', "c d"),
        ("B=\na=${B:-1}${B-2}\nrun x.y=$a", "1"),
        ('a=${B:-${C:-deep}}\nrun x.y="${a}r"', "deepr"),
        ("a=1\nrun x.y='$a'", "$a"),
        ('run x.y="\\${q.r}"', "${q.r}"),
        ('run x.y=\'["a","b"]\'', '["a","b"]'),
        ("run x.y=1 # x.y=2", "1"),
        ("run x.y=a#b", "a#b"),
        ("run \\\n  x.y=3", "3"),
        ("run +x.y=4 ++x.z=5", "4"),
        ("A=9 run x.y=${A:-0}", "0"),
        ("c=(x.y=1 'x.z=2')\nc+=(x.y=6)\nrun \"${c[@]}\"", "6"),
        ("cat <<EOF\nx.y=1\nEOF\nrun x.y=8 > log 2>&1", "8"),
        ("a=b\na+=c\nrun x.y=$a", "bc"),
        ("run x.y=größe", "größe"),
        ("unset a\nrun x.y=${a:-9}", "9"),
        ("export a=3 b=4\nrun x.y=$a$b", "34"),
        ("declare -i a=3\nrun x.y=$a", "3"),
        ("readonly a=3\nrun x.y=$a", "3"),
        ("a=\n: ${a:=5}\nrun x.y=$a", "5"),
        ("a=1\necho 5 | cat\nrun x.y=$a", "1"),
        ("a=1 # not: \\\na=2\nrun x.y=$a", "2"),
        ("k='x.y=1 x.z=2'\nrun $k", "1"),
        ("run x.y=1 | tee x.y=2", "1"),
        ("run x.y=1; echo x.y=2", "1"),
        ("run x.y=1 && echo x.y=2", "1"),
        ("run x.y=1 > x.y=2", "1"),
        ("run x.z=1 &> log x.y=3", "3"),
        ("run x.z=1 > >(tee log) x.y=3", "3"),
        ("python3 -m verl.trainer.main_ppo x.y=1\npython3 report.py x.y=2", "1"),
        ("echo python3 -m verl.trainer.main_ppo x.y=2\npython3 -m verl.trainer.main_ppo x.y=1", "1"),
        ("eval python3 -m verl.trainer.main_ppo x.y=1", "1"),
    ],
)
def test_what_the_shell_reader_tells(text: str, wanted: str) -> None:
    """Assignments, arithmetic, defaults, quotes, comments, arrays."""
    assert shell(text)["x.y"] == wanted


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("run x.y=$FOO", "FOO"),
        ("run x.y=${FOO}", "FOO"),
        ("run x.y=$1", "$1"),
        ("run x.y=${FOO%.*}", "FOO"),
        ("run x.y=$((FOO + 1))", "FOO"),
        ("run x.y=$((1 / 0))", "division by zero"),
        ("run x.y=$((9 ** 9 ** 9))", "expression"),
        ("run x.y=$((2 ** 63))", "64 bits"),
        ("run x.y=$((1 << 3))", "LShift"),
        ("run x.y=$((__import__('os')))", "Call"),
        ("run x.y=$(date)", "$(date)"),
        ("run x.y=`date`", "`date`"),
        ("if true; then a=1; fi\nrun x.y=$a", "condition"),
        ("[ -z $Q ] && a=1\nrun x.y=$a", "condition"),
        ("(a=1)\nrun x.y=$a", "condition"),
        ("for a in 1 2; do run x.y=$a; done", "a"),
        ("run x.y=" + "${a:-" * 200 + "}" * 200, "deep"),
        ("a=8\nread -r a b <<< '16 2'\nrun x.y=$a", "a (changed by read on line 2)"),
        ("a=8\nIFS=, command read a <<< 16\nrun x.y=$a", "a (changed by read"),
        ("a=8\nmapfile -t a < f\nrun x.y=$a", "a (changed by mapfile"),
        ("a=8\nreadarray a < f\nrun x.y=$a", "a (changed by readarray"),
        ("a=8\ngetopts q a\nrun x.y=$a", "a (changed by getopts"),
        ("a=8\nunset a\nrun x.y=$a", "a"),
        ("a=8\ntrue && unset a\nrun x.y=${a:-9}", "a (changed by unset"),
        ("a=8\nlet a=16\nrun x.y=$a", "a (changed by let"),
        ("a=8\n((a*=2))\nrun x.y=$a", "a (changed by ((...)) on line 2)"),
        ("a=8\nb=$((a++))\nrun x.y=$a", "a (changed by $((...))"),
        ("a=8\nrun x.y=$((++a))", "changes a variable"),
        ("run x.y=$((2#101))", "2#101"),
        ("run x.y=$[1+2]", "$[1+2]"),
        ("a=8\nprintf -v a 16\nrun x.y=$a", "a (changed by printf -v"),
        ("a=8\na[0]=16\nrun x.y=$a", "a (changed by a[...]="),
        ("a=8\neval a=16\nrun x.y=$a", "a (changed by eval"),
        ("eval a=16\nrun x.y=${a:-8}", "a (changed by eval"),
        ("a=8\n\nrun \\\n q\nsource env.sh\nrun x.y=$a", "a (changed by source on line 5)"),
        ("a=8\n. env.sh\nrun x.y=$a", "a (changed by ."),
        ("source env.sh\nrun x.y=$HOME", "HOME (changed by source"),
        ("cd /tmp\nrun x.y=$PWD", "PWD (changed by cd"),
        ("a=8\nread $q\nrun x.y=$a", "a (changed by read"),
        ("a=8\nfor a in 1 2; do :; done\nrun x.y=$a", "a (changed by for"),
        ("a=8\nfor ((a=0;a<3;a++)); do :; done\nrun x.y=$a", "a (changed by ((...))"),
        ("a=8\nfor i in 1 2; do run x.y=$a; a=9; done", "in a loop"),
        ("a=8\ngo() { run x.y=$a; }\na=9\ngo", "around a function"),
        ("go() { a=9; }\na=8\ngo\nrun x.y=$a", "the function go"),
        ("function go { a=9; }\na=8\ngo\nrun x.y=$a", "the function go"),
        ("a=8\na=9 | cat\nrun x.y=$a", "condition"),
        ("a=8\na=9 &\nrun x.y=$a", "condition"),
        ("a=8\n[ -z $q ] &&\n a=9\nrun x.y=$a", "condition"),
        ("a=8\nlocal a=9\nrun x.y=$a", "local outside a function"),
        ("declare -i a\na=2*4\nrun x.y=$a", "declared with -i"),
        ("declare -n a=b\nb=3\na=4\nrun x.y=$b", "declared with -n"),
        ("readonly a=3\na=4\nrun x.y=$a", "readonly"),
        ("a=1\na=2 b=$a\nrun x.y=$b", "a (set on the same line)"),
        ("a='1 2'\nrun x.y=$a", "no quotes"),
        ("a=8\neval run x.y='$a'", "what eval makes of it"),
    ],
)
def test_what_the_shell_reader_does_not_guess(text: str, name: str) -> None:
    """A value that only a shell could tell is named, not guessed."""
    value = shell(text)["x.y"]
    assert isinstance(value, Unresolved)
    assert name in " ".join(value.names)


def test_two_trainings_in_a_script(tmp_path: Path) -> None:
    """The last is taken, and what was not read is said with its line; so is what may have held more keys."""
    one, two = " ".join(VERL), " ".join([*VERL, f"{ROLLOUT}n=4"])
    run = "python3 -m verl.trainer.main_ppo"
    text = f"# first\n{run} {one} trainer.test_freq=5\nread x\nsource env.sh\n{run} \\\n {two} $MORE 2>&1 | tee a.b=1\n"
    translation = verl(write(tmp_path, "run.sh", text), base=[])
    assert translation.recipe["sampling"]["responses_per_prompt"] == 4
    assert not [row for rows in translation.buckets.values() for row in rows if row["key"] == "trainer.test_freq"]
    notes = [note.partition("run.sh: ")[2] for note in translation.notes]
    assert "2 training commands: the last, of line 5, is taken; not read: line 2" in notes
    assert "line 7: words of another command (tee) were not read" not in notes
    assert "line 6: words of another command (tee) were not read" in notes
    assert any(note.startswith("line 4: source may set any variable; those set before it") for note in notes)
    assert any(note.startswith("line 5: the word $MORE can't be told (MORE)") for note in notes)
    only = write(tmp_path, "echo.sh", f"echo {one}")
    assert "no key=value word of a command" in refusal(translate_verl, only)


def test_a_changed_variable_is_refused_by_name(tmp_path: Path) -> None:
    """The key, the variable and the line; a word after the file mends it."""
    words = " ".join(word for word in VERL if "train_batch" not in word)
    file = write(tmp_path, "run.sh", f"x=8\nlet x=64\nrun {words} data.train_batch_size=$x")
    message = refusal(translate_verl, file)
    assert "data.train_batch_size = $x: x (changed by let on line 2) can't be told" in message
    assert verl(file, "data.train_batch_size=64", base=[]).recipe["sampling"]["prompts_per_step"] == 64


def test_no_script_runs(tmp_path: Path) -> None:
    """Command substitutions are reported by their text."""
    victim = tmp_path / "x"
    victim.write_text("here")
    text = (
        f"a=$(rm -rf {victim})\nb=`rm {victim}`\nrm {victim}\nrun data.train_files=$a {MODEL}path=$b trainer.logger=$b"
    )
    message = refusal(translate_verl, write(tmp_path, "run.sh", text))
    assert "rm" in message
    assert victim.read_text() == "here"
    translation = verl(write(tmp_path, "run.sh", f"run trainer.logger=$(rm {victim}) {' '.join(VERL)}"), base=[])
    assert bucket(translation, "trainer.logger")[0] == "machine"
    assert victim.exists()


@pytest.mark.parametrize(
    "text", ["'", '"', "${", "$((", "$(", "a=(", "<<EOF", "`", "\\", "x.y='", "if", "}", "))", "\x00"]
)
def test_half_a_script_is_no_fault_of_ours(text: str) -> None:
    """Unclosed quotes and brackets end with the text."""
    for whole in (text, f"run x.y={text}", f"{text}\nrun x.y=1"):
        read_script(whole)


@pytest.mark.parametrize(
    "text",
    ["a=1 ", "run a.b=1\n", "run \\\na.b=1\n", "for i in 1; do run a.b=$i; done\n", "f() { a=1; }\n", "((a++))\n"],
)
def test_a_long_script_takes_no_long_time(text: str) -> None:
    """Time grows with the length alone."""
    begun = time.perf_counter()
    read_script(text * (60_000 // len(text)))
    assert time.perf_counter() - begun < 10


def test_arithmetic_is_bounded() -> None:
    """Nothing large, deep or circular is computed."""
    assert arithmetic("a", {"a": "b", "b": "a"}) == "a = 'b'"
    assert isinstance(arithmetic("1+" * 300 + "1", {}), str)
    assert arithmetic("(" * 200 + "1" + ")" * 200, {}) in (1, "the expression " + repr("(" * 40))
    assert isinstance(arithmetic("2**62 * 2**62", {}), str)
    assert arithmetic("-2**2", {}) == "a sign before **"  # 4 in the shell, -4 in Python
    assert arithmetic("(-2)**3", {}) == -8


# --- YAML -----------------------------------------------------------------------------------------

YAML = """
defaults: [ppo_trainer, _self_]
hydra: {searchpath: [file://x]}
base: {n: 4}
data: {train_files: [a.parquet, b.parquet], train_batch_size: 64, gen_batch_size: "${data.train_batch_size}"}
actor_rollout_ref:
  model: {path: "${oc.env:MODEL,local}/m"}
  actor: {_target_: x.Y, ppo_mini_batch_size: 16, optim: {lr: 1e-5}, checkpoint: {a: [1], b: "${.a}"}}
  rollout:
    n: ${base.n}
    temperature: ${oc.select:no.such,0.5}
    val_kwargs: {n: "${..n}"}
algorithm: {adv_estimator: grpo}
trainer: {experiment_name: 2024-01-01}
"""


def test_yaml_with_interpolations(tmp_path: Path) -> None:
    """References, defaults, relative names; lists and dates as they are meant."""
    translation = translate_verl([write(tmp_path, "a.yaml", YAML)])
    recipe = translation.recipe
    assert at(recipe, "model.path") == "local/m"
    assert (at(recipe, "sampling.responses_per_prompt"), at(recipe, "eval.k")) == (4, 4)
    assert at(recipe, "sampling.temperature") == 0.5
    assert at(recipe, "train.learning_rate") == 1e-5
    assert [row["source"] for row in at(recipe, "data.source")] == ["a.parquet", "b.parquet"]
    assert recipe["name"] == "2024-01-01"
    assert "`defaults` was not followed" in translation.notes[0]
    assert bucket(translation, "base.n")[0] == "unknown"
    assert translation.keys_read == 14


LAYERS = ["a0: &a0 [1,1,1,1,1,1,1,1]", *(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 9))]
BOMB = "\n".join(LAYERS)  # 8^9 values by reference


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: {x: '${a.y}', y: '${a.x}'}", "interpolation goes in a circle: a.x -> a.y -> a.x"),
        ("a: '${a}'", "circle"),
        ("a: [1", "not valid YAML"),
        ("- 1", "holds a list"),
        ("a: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("a: &a [*a]", "nested over"),
        (BOMB, "no configuration"),
        ("a: " + "9" * 6000, "too large"),
        ("[" * 3000, "YAML"),
        ("", "empty"),
        ("  \n", "empty"),
        ("learning_rate: 0x" + "f" * 9000 + "\nactor_rollout_ref: {rollout: {n: 0x" + "f" * 9000 + "}}", "number"),
        ("learning_rate: .nan\nactor_rollout_ref: {rollout: {n: .inf}}", "a number is wanted"),
    ],
)
@pytest.mark.parametrize("translate", [translate_verl, translate_trl])
def test_hostile_yaml(tmp_path: Path, translate: Any, text: str, wanted: str) -> None:
    """One line each, and nothing runs or blows up."""
    file = write(tmp_path, "a.yaml", text)
    if "${" in text and translate is translate_trl:
        return  # TRL's files have no interpolation
    assert wanted in refusal(translate, file, *(TRL if translate is translate_trl else []))


def test_files_that_are_none(tmp_path: Path) -> None:
    """Binary files, folders, endings nobody reads."""
    assert "binary" in refusal(translate_verl, write(tmp_path, "a.sh", b"run x.y=1\0"))
    assert "UTF-8" in refusal(translate_verl, write(tmp_path, "b.yaml", b"\xff\xfe\x80"))
    (tmp_path / "d.yaml").mkdir()
    assert "can't be read" in refusal(translate_trl, str(tmp_path / "d.yaml"))
    assert "no key=value word" in refusal(translate_verl, write(tmp_path, "c.sh", "echo hello"))
    assert "give a .yaml file" in refusal(translate_trl, write(tmp_path, "c.txt", "hello"))


# --- TRL ------------------------------------------------------------------------------------------

TRL_CASES = [
    ([], {"algorithm.clip_high": 0.2, "train.weight_decay": 0.0, "train.seed": 42, "sampling.filter": "off"}),
    ([], {"sampling.prompts_per_step": 1, "sampling.responses_per_prompt": 8, "train.updates_per_step": 1}),
    ([], {"sampling.max_response_tokens": 512, "reward.overlong": "none", "algorithm.advantage_eps": 1e-4}),
    ([], {"train.gradient_checkpointing": True, "train.warmup_rollout_steps": 0, "checkpoint.every": 500}),
    (["epsilon=0.1"], {"algorithm.clip_low": 0.1, "algorithm.clip_high": 0.1}),
    (["epsilon_high=0.28"], {"algorithm.clip_low": None, "algorithm.clip_high": 0.28}),
    (["delta=4"], {"algorithm.clip_dual": 4.0}),
    (["delta=1.1"], {"algorithm.clip_dual": None}),
    (["loss_type=grpo"], {"algorithm.reduction": "sequence"}),
    (["loss_type=dr_grpo"], {"algorithm.reduction": "constant", "algorithm.constant_tokens": 512}),
    (["loss_type=dr_grpo", "scale_rewards=false"], {"algorithm.advantage": "mean"}),
    (["scale_rewards=batch"], {"algorithm.advantage": "batch_std"}),
    (["scale_rewards=true"], {"algorithm.advantage": "group"}),
    (["loss_type=cispo", "epsilon_high=5"], {"algorithm.objective": "cispo", "algorithm.clip_high": 4.0}),
    (["loss_type=cispo", "epsilon_high=5"], {"algorithm.clip_low": "off"}),
    (["loss_type=grpo", "importance_sampling_level=sequence"], {"algorithm.objective": "gspo"}),
    (["beta=0.04"], {"algorithm.kl": {"place": "loss", "coef": 0.04, "estimator": "k3"}}),
    (["mask_truncated_completions=true"], {"reward.overlong": "filter"}),
    (["use_vllm=true"], {"algorithm.importance_cap": 3.0, "algorithm.importance_level": "sequence"}),
    (["use_vllm=true", "vllm_importance_sampling_mode=token_truncate"], {"algorithm.importance_level": "token"}),
    (["use_vllm=true", "vllm_importance_sampling_cap=2"], {"algorithm.importance_cap": 2.0}),
    (["use_vllm=true", "vllm_importance_sampling_correction=false"], {"algorithm.importance_cap": None}),
    (
        ["per_device_train_batch_size=16", "gradient_accumulation_steps=4", "num_processes=8"],
        {"sampling.prompts_per_step": 64, "train.updates_per_step": 1},
    ),
    (
        ["gradient_accumulation_steps=2", "steps_per_generation=8", "num_generations=4"],
        {"sampling.prompts_per_step": 16, "train.updates_per_step": 4},
    ),
    (["generation_batch_size=64"], {"sampling.prompts_per_step": 8, "train.updates_per_step": 8}),
    (["gradient_accumulation_steps=8", "steps_per_generation=2"], {"sampling.prompts_per_step": 8}),
    (["generation_batch_size=64", "max_steps=80", "save_steps=16"], {"train.num_steps": 10, "checkpoint.every": 2}),
    (["warmup_steps=10"], {"train.warmup_rollout_steps": 10, "train.warmup_from_zero": True}),
    (["warmup_ratio=0.1", "max_steps=50"], {"train.warmup_rollout_steps": 5}),
    (["warmup_steps=10", "lr_scheduler_type=constant"], {"train.warmup_rollout_steps": 0}),
    (["adam_beta2=0.95"], {"train.betas": [0.9, 0.95]}),
    (["max_grad_norm=0"], {"train.max_grad_norm": "off"}),
    (["bf16=false"], {"model.dtype": "float32"}),
    (["save_total_limit=3", "run_name=mine"], {"checkpoint.keep_last": 3, "name": "mine"}),
    (["reward_funcs=[accuracy_reward]"], {"reward.functions": None}),
    (["reward_funcs=[accuracy_reward,my.mod.fun]"], {"reward.functions": ["grader", "my.mod:fun"]}),
    (
        ["reward_funcs=[my.fun]", "reward_weights=[0.5]"],
        {"reward.functions": [{"function": "my:fun", "weight": 0.5}]},
    ),
    (
        ["reward_funcs=[accuracy_reward,get_soft_overlong_punishment]", "max_completion_length=1280"],
        {"reward.overlong": "soft", "reward.overlong_buffer_tokens": 256},
    ),
    (["eval_strategy=steps", "eval_steps=20"], {"eval.every": 20, "eval.k": 8, "eval.top_p": 1.0}),
]


@pytest.mark.parametrize(("words", "wanted"), TRL_CASES)
def test_trl_values(words: list[str], wanted: dict[str, Any]) -> None:
    """What single keys become, TRL's own defaults among them; None stands for dapo's own default."""
    recipe = trl(*words).recipe
    assert {key: at(recipe, key) for key in wanted} == wanted


IS_MODE = "vllm_importance_sampling_mode"


@pytest.mark.parametrize(
    ("words", "key", "wanted", "remark"),
    [
        (["lr_scheduler_type=cosine"], "lr_scheduler_type", "no_counterpart", "cosine"),
        (["lr_scheduler_type=constant"], "lr_scheduler_type", "translated", ""),
        (["num_iterations=2"], "num_iterations", "no_counterpart", "2 times"),
        (["top_p=0.9"], "top_p", "no_counterpart", "the loss"),
        (["loss_type=sapo"], "loss_type", "no_counterpart", "sapo"),
        (["loss_type=bnpo"], "loss_type", "different", "forward pass"),
        (["loss_type=dapo"], "loss_type", "translated", ""),
        (["loss_type=dapo", "generation_batch_size=64"], "loss_type", "different", "mini-batch"),
        (["delta=1.1"], "delta", "no_counterpart", "1 + epsilon_high"),
        (["beta=0.1", "use_bias_correction_kl=true"], "use_bias_correction_kl", "different", "gradient"),
        (["use_vllm=true", f"{IS_MODE}=token_mask"], IS_MODE, "different", "drops"),
        (["reward_funcs=[think_format_reward]"], "reward_funcs", "no_counterpart", "think_format_reward"),
        (["top_entropy_quantile=0.2"], "top_entropy_quantile", "no_counterpart", "entropy"),
        (["top_entropy_quantile=1.0"], "top_entropy_quantile", "translated", ""),
        (["use_peft=true"], "use_peft", "translated", ""),
        (["use_peft=true", "lora_dropout=0.1"], "lora_dropout", "no_counterpart", "dropout"),
        (["optim=adafactor"], "optim", "no_counterpart", "AdamW"),
        (["report_to=wandb"], "report_to", "machine", ""),
        (["max_prompt_length=256"], "max_prompt_length", "different", "left"),
        (["generation_batch_size=64", "save_steps=9"], "save_steps", "different", "rounded up"),
        (["learning_rat=1"], "learning_rat", "unknown", "did you mean learning_rate?"),
        (["data_seed=3"], "data_seed", "no_counterpart", "one seed"),
    ],
)
def test_trl_buckets(words: list[str], key: str, wanted: str, remark: str) -> None:
    """Where a key ends, and what is said of it."""
    found, how = bucket(trl(*words), key)
    assert found == wanted
    assert remark in how


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["learning_rate=abc"], "learning_rate = abc: a number is wanted"),
        (["generation_batch_size=64", "steps_per_generation=2"], "exclude each other"),
        (["generation_batch_size=60"], "no multiple"),
        (["num_generations=3"], "do not fall into groups"),
        (["gradient_accumulation_steps=4", "steps_per_generation=6"], "do not fall into"),
        (["num_generations=1"], "dapo refuses"),
        (["scale_rewards=odd"], "scale_rewards = odd"),
        (["loss_type=cispo"], "over 1"),
        (["reward_funcs=[a.b]", "reward_weights=[1,2]"], "one weight for each"),
        (["model_name_or_path=null"], "model_name_or_path is not set"),
    ],
)
def test_trl_refusals(words: list[str], wanted: str) -> None:
    """One line with the key, the value and the mend."""
    assert wanted in refusal(translate_trl, *TRL, *words)


def test_trl_defaults_are_those_of_trl() -> None:
    """The table of defaults against the installed release, where there is one."""
    source = Path(pytest.importorskip("trl").__file__).parent / "trainer" / "grpo_config.py"
    body = next(node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)).body
    names = {
        node.target.id: node for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert not {name for name in names if not name.startswith("_")} - trl_keys.KNOWN
    for name, node in names.items():
        call = node.value
        default = next((k.value for k in getattr(call, "keywords", []) if k.arg == "default"), None)
        if name in trl_keys.DEFAULTS and isinstance(default, ast.Constant):
            assert trl_keys.DEFAULTS[name] == default.value, name


def test_trl_yaml(tmp_path: Path) -> None:
    """Flat keys, and a data set of the Hub by name."""
    file = write(
        tmp_path, "a.yaml", "model_name_or_path: org/m\ndataset_name: org/set\nlearning_rate: 1e-5\nbeta: 0.0\n"
    )
    translation = translate_trl([file, "num_generations=4"])
    assert at(translation.recipe, "data.source") == "data/org-set"
    assert "dapo data prepare hf:org/set" in bucket(translation, "dataset_name")[1]
    assert at(translation.recipe, "train.learning_rate") == 1e-5
    assert translation.keys_read == 5
    assert any("one process is assumed" in note for note in translation.notes)


PYTHON = """
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward
GROUP = 16
SIZE = 4
SIZE = 8
def reward(completions, **kwargs):
    raise SystemExit("ran")
args = GRPOConfig(
    "out", num_generations=GROUP, learning_rate=2e-6, beta=-0.0, per_device_train_batch_size=16, report_to=who()
)
trainer = GRPOTrainer(model="org/m", reward_funcs=REWARDS, args=args, train_dataset=data)
raise SystemExit("ran")
"""


def test_trl_python(tmp_path: Path) -> None:
    """Literals and constants of the module; the rest is reported, and nothing runs."""
    file = write(tmp_path, "a.py", PYTHON.replace("REWARDS", "[accuracy_reward]"))
    translation = translate_trl([file, "data.source=d.jsonl"])
    assert at(translation.recipe, "model.path") == "org/m"
    assert at(translation.recipe, "sampling.responses_per_prompt") == 16
    assert at(translation.recipe, "train.learning_rate") == 2e-6
    assert bucket(translation, "train_dataset")[0] == "no_counterpart"
    assert bucket(translation, "report_to")[0] == "machine"
    assert bucket(translation, "reward_funcs")[0] == "different"
    assert translation.keys_read == 10
    own = translate_trl([write(tmp_path, "b.py", PYTHON.replace("REWARDS", "reward")), "data.source=d.jsonl"])
    assert "functions of the script" in bucket(own, "reward_funcs")[1]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("GRPOConfig()\nGRPOConfig()", "2 calls of GRPOConfig"),
        ("import trl", "0 calls of GRPOConfig"),
        ("GRPOConfig(learning_rate=2 * LR)\nGRPOTrainer(model='m')", "learning_rate = 2 * LR"),
        ("S = 4\nS = 5\nGRPOConfig(num_generations=S)\nGRPOTrainer(model='m')", "num_generations = S"),
        ("GRPOConfig(", "line 1"),
        ("x = " + "(" * 3000, "can't be read as Python"),
    ],
)
def test_python_that_is_refused(tmp_path: Path, text: str, wanted: str) -> None:
    """Not one GRPOConfig, or a value that has to be told."""
    assert wanted in refusal(translate_trl, write(tmp_path, "a.py", text), "data.source=d.jsonl")


# --- TOML and the command -------------------------------------------------------------------------


def test_toml_says_what_the_tree_says() -> None:
    """Strings of all kinds, floats, lists of tables."""
    tree = {
        "a": 'q"\\\n\x7f\u00e9',
        "b": 1e-6,
        "c": 2.0,
        "d": [{"x y": True, "z": []}],
        "t": {"u": {"v": [1, 2]}, "w.x": "y"},
    }
    assert tomllib.loads(to_toml(tree)) == tree


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    code = 0
    try:
        main(["config", *words])
    except SystemExit as error:
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TOML to stdout, the lists to stderr; --json one object; -o writes and keeps stdout clean."""
    code, out, err = run(capsys, "--from-verl", *VERL, f"{ACTOR}ppo_epochs=2")
    assert code == 0
    assert tomllib.loads(out)["sampling"]["responses_per_prompt"] == 8
    assert "no counterpart in dapo (1):" in err
    assert "8 keys read: " in err
    code, out, err = run(capsys, "--from-trl", *TRL, "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert {"recipe", "no_counterpart", "different", "notes"} <= set(answer)
    assert answer["counts"]["read"] == 2
    target = tmp_path / "mine.toml"
    code, out, err = run(capsys, "--from-trl", *TRL, "-o", str(target))
    assert (code, out) == (0, "")
    assert load_config(str(target)).sampling.responses_per_prompt == 8
    assert [p.name for p in tmp_path.iterdir()] == ["mine.toml"]


def test_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, the lists before the one line, nothing on stdout, and an old file stays."""
    target = tmp_path / "mine.toml"
    target.write_text("old")
    code, out, err = run(capsys, "--from-verl", *VERL, f"{ROLLOUT}n=1", f"{ACTOR}ppo_epochs=2", "-o", str(target))
    assert (code, out, target.read_text()) == (2, "", "old")
    assert "no counterpart in dapo (1):" in err
    assert err.splitlines()[-1].startswith(
        "error: dapo refuses the translated recipe: sampling.responses_per_prompt = 1"
    )
    for words, wanted in (
        (("--from-verl",), "name a configuration of verl"),
        (("--from-verl", "--from-trl", "a=1"), "exclude each other"),
        (("quickstart", "-o", "x.toml"), "--output goes with"),
        (("--from-trl", *TRL, "-o", "x.yaml"), "ends in .toml"),
        (("--from-trl", *TRL, "-o", str(tmp_path / "no" / "x.toml")), "can't be written"),
    ):
        code, out, err = run(capsys, *words)
        assert (code, out) == (2, "")
        assert wanted in err


@pytest.mark.parametrize("old", ["file", "link"])
def test_command_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str) -> None:
    """A file that is there, or a link to nowhere: one line, exit code 2, nothing written."""
    target = tmp_path / "mine.toml"
    target.write_text("# a day's work") if old == "file" else target.symlink_to(tmp_path / "nowhere")
    for words in (("--from-verl", *VERL), ("--from-trl", *TRL, "--json")):
        code, out, err = run(capsys, *words, "-o", str(target))
        said = f"error: --output {target}: is there already; name another file  [dapo explain E-CONFIG]\n"
        assert (code, out, err) == (2, "", said)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.toml"]
    assert old == "link" or target.read_text() == "# a day's work"


def test_reward_files_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl and TRL read them from the working directory, a recipe from its own folder; data files stay as they are."""
    monkeypatch.chdir(tmp_path)
    for word, wanted in (
        ("custom_reward_function.path=a/r.py", f"{tmp_path}/a/r.py:compute_score"),
        ("custom_reward_function.path=/a/r.py", "/a/r.py:compute_score"),
        ("custom_reward_function.path=file:///a/r.py", "/a/r.py:compute_score"),
        ("custom_reward_function.path=pkg://a/b", "a.b:compute_score"),
        ('reward.functions=["r.py:f"]', f"{tmp_path}/r.py:f"),
    ):
        translation = verl(word)
        assert translation.recipe["reward"]["functions"] == [wanted]
        assert translation.recipe["data"]["source"] == "d.parquet"
        noted = any("read from the working directory as by verl" in note for note in translation.notes)
        assert noted == (word == "custom_reward_function.path=a/r.py")
    assert trl("reward_funcs=['a/r.py:f']").recipe["reward"]["functions"] == [f"{tmp_path}/a/r.py:f"]
    assert trl('reward.functions=["r.py:f"]').recipe["reward"]["functions"] == [f"{tmp_path}/r.py:f"]


def test_the_budget_of_devices_that_share_a_sequence(tmp_path: Path) -> None:
    """verl multiplies it; with one device, or without a budget, there is nothing to say."""
    budget, size = f"{ACTOR}ppo_max_token_len_per_gpu", "ulysses_sequence_parallel_size"
    words = [f"{ACTOR}use_dynamic_bsz=True", f"{budget}=9000"]
    for place in ("", "fsdp_config."):
        translation = verl(*words, f"{ACTOR}{place}{size}=4")
        where, how = bucket(translation, budget)
        assert where == "different"
        assert f"multiplies the budget by {size} = 4" in how
        assert translation.recipe["train"]["tokens_per_microbatch"] == 9000
        assert bucket(translation, f"{ACTOR}{place}{size}")[0] == "machine"
    assert bucket(verl(*words, f"{ACTOR}{size}=1"), budget)[0] == "translated"
    assert bucket(verl(*words[1:], f"{ACTOR}{size}=4"), budget)[0] == "machine"
    assert "multiplies" in "\n".join(verl(words[0], f"{ACTOR}{size}=2").notes)
    text = f"run {' '.join([*VERL, *words])} {ACTOR}{size}=$SP"
    assert bucket(verl(write(tmp_path, "run.sh", text), base=[]), budget)[0] == "different"


def test_keys_can_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What is shown of values is printable."""
    _, _, err = run(capsys, "--from-trl", *TRL, "nonsense=\x1b[31mred")
    assert "\x1b" not in err
    assert "nonsense" in err


def test_adapters_come_along() -> None:
    """Rank and alpha, as set or by the source's default; none where the source trains every weight."""
    assert verl(f"{MODEL}lora_rank=8").recipe["learner"] == {"lora_rank": 8, "lora_alpha": 16}
    assert trl("use_peft=true", "lora_alpha=8").recipe["learner"] == {"lora_rank": 16, "lora_alpha": 8}
    assert "learner" not in trl("lora_r=8").recipe
    assert "learner" not in verl(f"{MODEL}lora_rank=0").recipe
