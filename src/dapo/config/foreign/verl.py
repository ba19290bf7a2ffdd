"""From a verl configuration (4f80e465 and later) to a recipe of dapo."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dapo.config.foreign.read import read_verl, split_own
from dapo.config.foreign.report import Account, Given, Translation, Unresolved, drop_defaults, finish
from dapo.config.foreign.verl_keys import (
    ACTOR,
    ALIASES,
    DEFAULTS,
    FILTER,
    KNOWN,
    LACKING,
    MACHINE_KEYS,
    MACHINE_TREES,
    MODEL,
    NEWER,
    OVERLONG,
    ROLLOUT,
    ULYSSES,
)
from dapo.config.foreign.verl_loss import loss
from dapo.config.foreign.verl_run import optimiser, schedule
from dapo.errors import ConfigError


def translate_verl(words: Sequence[str]) -> Translation:
    """A recipe from verl's scripts, YAML files and overrides.

    Args:
        words: paths (.sh, .yaml) and key=value words, the later winning; a key of dapo that verl has
            not, such as data.source, is taken into the recipe as it is.

    Raises:
        ConfigError: naming the file, key and value; `Refused`, with the lists, where the recipe can't be used.

    >>> small = translate_verl(["actor_rollout_ref.rollout.n=8", "data.train_batch_size=256",
    ...     "algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.ppo_mini_batch_size=64"])
    >>> small.recipe["sampling"]["responses_per_prompt"], small.recipe["train"]["updates_per_step"]
    (8, 4)
    """
    theirs, own = split_own(words, [*KNOWN])
    account = _account(read_verl(theirs, DEFAULTS), own)
    for translate in (_model, _data, _sizes, _filter, _reward, _rollout, loss, optimiser, schedule, _rest):
        translate(account)
    drop_defaults(account)
    return finish(account, KNOWN, "from-verl")


def _account(given: Given, own: dict[str, Any]) -> Account:
    """Other spellings brought to one; of two that are given, null loses, then the earlier."""
    values: dict[str, Any] = {}
    account = Account("verl", given, DEFAULTS, own)
    for key, value in given.values.items():
        name = ALIASES.get(key, key)
        before = account.spelling.get(name, name)
        if name in values and value is None:
            account.passed_over[key] = (value, f"{before} says the same and is set")
            continue
        if name in values:
            account.passed_over[before] = (_plain(values[name]), f"{key} says the same and comes later")
        values[name] = value
        account.spelling[name] = key
    account.given = Given(values, given.notes)
    return account


def _plain(value: Any) -> Any:
    return value.text if isinstance(value, Unresolved) else value


def _model(account: Account) -> None:
    account.put("model.path", account.text(MODEL + "path"), MODEL + "path")
    account.put("model.trust_remote_code", account.flag(MODEL + "trust_remote_code"), MODEL + "trust_remote_code")
    checkpointing = MODEL + "enable_gradient_checkpointing"
    account.put("train.gradient_checkpointing", account.flag(checkpointing), checkpointing)
    rank = account.whole(MODEL + "lora_rank")
    for ours, theirs in (("learner.lora_rank", "lora_rank"), ("learner.lora_alpha", "lora_alpha")):
        account.same(MODEL + theirs)
        if rank:
            account.put(ours, account.whole(MODEL + theirs), MODEL + theirs)


def _files(account: Account, key: str) -> list[str]:
    value = account.value(key)
    listed = value if isinstance(value, list) else [] if value in (None, "") else [value]
    if not all(isinstance(name, str) for name in listed):
        raise ConfigError(f"{key} = {value!r}: a path or a list of paths is wanted; correct it")
    return [os.path.expanduser(name) for name in listed]


def _data(account: Account) -> None:
    prompt = account.text("data.prompt_key")
    columns = {"prompt_column": prompt, "answer_column": "reward_model.ground_truth"}
    train, test = _files(account, "data.train_files"), _files(account, "data.val_files")
    tables = {name: _rows(account, f"data.{name}_max_samples") for name in ("train", "val")}
    if len(train) == 1 and not tables["train"]:
        account.put("data.source", train[0], "data.train_files")
        account.put("data.prompt_column", prompt, "data.prompt_key")
        account.put("data.answer_column", columns["answer_column"], "data.prompt_key")
        account.provenance["data.answer_column"] = "chosen: where verl's data files hold the answer"
    else:
        sources = [{"source": name, **columns, **tables["train"]} for name in train]
        account.put("data.source", sources, "data.train_files")
        account.same("data.prompt_key")
    if test:
        account.put("eval.data", _sets(test, {**columns, **tables["val"]}), "data.val_files")
    account.same("data.val_files")
    account.put("data.max_prompt_tokens", account.count("data.max_prompt_length"), "data.max_prompt_length")
    account.put("data.shuffle", account.flag("data.shuffle"), "data.shuffle")
    if account.value("data.seed") is not None:
        account.put("train.seed", account.whole("data.seed"), "data.seed")
        account.differs("data.seed", "verl's seed orders the data alone; dapo's is the one seed of data and sampling")
    account.same("data.seed")
    _template(account)
    _overlong_prompts(account)


def _rows(account: Account, key: str) -> dict[str, int]:
    most = account.whole(key)
    account.same(key)
    return {"max_rows": most} if most and most > 0 else {}


def _sets(files: list[str], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tables of eval.data; files of one name are told apart by their folder."""
    stems = [Path(name).stem for name in files]
    names = [f"{Path(f).parent.name}-{s}" if stems.count(s) > 1 else "" for f, s in zip(files, stems, strict=True)]
    named = [{"name": name} if name else {} for name in names]
    return [{"source": file, **name, **options} for file, name in zip(files, named, strict=True)]


def _template(account: Account) -> None:
    prefix, table = "data.apply_chat_template_kwargs", {}
    for key, value in account.given.values.items():
        if key.startswith(prefix + "."):
            table[key.removeprefix(prefix + ".")] = account.value(key)
            account.same(key)
        elif key == prefix:
            table.update(value if isinstance(value, dict) else {})
            account.same(key)
    if table:
        account.recipe["model.chat_template_kwargs"] = table
        account.provenance["model.chat_template_kwargs"] = f"chosen: translated from verl's {prefix}"


def _overlong_prompts(account: Account) -> None:
    filtered, cut = account.flag("data.filter_overlong_prompts"), account.text("data.truncation")
    source = "data.filter_overlong_prompts" if filtered else "data.truncation"
    account.put("data.overlong_prompts", "refuse" if cut == "error" and not filtered else "drop", source)
    account.same("data.filter_overlong_prompts", "data.truncation")
    if not filtered and cut != "error":
        account.differs(
            "data.truncation", f"verl cuts prompts that are too long ({cut}); dapo leaves them out, counted"
        )


def _sizes(account: Account) -> None:
    """Prompts of a step and its cut into updates: both of verl's sizes are prompts, since it multiplies by n."""
    batch, mini = account.count("data.train_batch_size"), account.count(ACTOR + "ppo_mini_batch_size")
    drawn = batch if account.value("data.gen_batch_size") is None else account.count("data.gen_batch_size")
    filtered, source = account.flag(FILTER + "enable"), "data.train_batch_size"
    account.same("data.gen_batch_size", "data.train_batch_size")
    if not filtered and drawn != batch:
        account.differs("data.gen_batch_size", "without filter_groups verl trains on all of them, so this is the step")
        batch, source = drawn, "data.gen_batch_size"
    account.put("sampling.prompts_per_step", batch, source)
    if filtered:
        account.put("sampling.gen_prompts", drawn, "data.gen_batch_size")
    if batch % mini:
        raise ConfigError(
            f"{ACTOR}ppo_mini_batch_size = {mini} does not divide the {batch} prompts of a step ({source}), and dapo's "
            "updates are of one size; change one of them by a word after the file"
        )
    account.put("train.updates_per_step", batch // mini, ACTOR + "ppo_mini_batch_size")
    epochs = account.whole(ACTOR + "ppo_epochs")
    account.same(ACTOR + "ppo_epochs")
    if epochs != 1:
        account.lacks(ACTOR + "ppo_epochs", f"verl goes over each batch {epochs} times; dapo once")
    if account.flag(ACTOR + "use_dynamic_bsz"):
        key = ACTOR + "ppo_max_token_len_per_gpu"
        account.put("train.tokens_per_microbatch", account.count(key), key)
        _ulysses(account, key)
    else:
        account.machine(ACTOR + "ppo_max_token_len_per_gpu")
    account.machine(ACTOR + "use_dynamic_bsz")
    for key in ("trainer.balance_batch", ACTOR + "shuffle"):
        account.same(key)
        if account.flag(key):
            account.differs(
                key, "verl mixes responses of all prompts into each update; dapo's updates hold whole groups"
            )


def _ulysses(account: Account, key: str) -> None:
    """verl's budget is of all devices that share a sequence."""
    values = [account.given.values.get(ACTOR + place + ULYSSES) for place in ("", "fsdp_config.")]
    untold = [value for value in values if isinstance(value, Unresolved)]
    sizes = [value for value in values if isinstance(value, (int, float)) and value > 1]
    if sizes or untold:
        size = f"{max(sizes):g}" if sizes else untold[0].text
        account.differs(
            key,
            f"verl multiplies the budget by {ULYSSES} = {size} and cuts each sequence over as many devices; dapo's "
            "tokens_per_microbatch is the budget of one GPU, and none shares a sequence",
        )


def _filter(account: Account) -> None:
    metric, custom = account.text(FILTER + "metric"), account.text("custom_reward_function.path")
    account.same(FILTER + "enable", FILTER + "metric", FILTER + "max_num_gen_batches")
    if not account.flag(FILTER + "enable"):
        account.put("sampling.filter", "off", FILTER + "enable")
        return
    account.put("sampling.filter", "nonzero_std" if custom else "correctness", FILTER + "enable")
    if custom:
        account.differs(FILTER + "enable", "with a reward function of its own dapo keeps groups whose rewards differ")
    elif metric in ("seq_reward", "seq_final_reward"):
        account.differs(
            FILTER + "metric",
            f"{metric} is the reward after the overlong penalty, so verl keeps groups that are all right, or all "
            "wrong, but of different lengths; dapo filters by correctness",
        )
    elif metric != "acc":
        account.differs(FILTER + "metric", "dapo filters by correctness, whatever value of the scorer is named")
    most = account.whole(FILTER + "max_num_gen_batches") or 0
    key = FILTER + "max_num_gen_batches"
    if most > 0:
        account.put("sampling.max_rounds", most, key)
        account.differs(key, "at the bound verl ends with an error; dapo saves its state and stops, see on_exhausted")
    else:
        account.differs(key, "verl draws without a bound; dapo stops after sampling.max_rounds = 10 rounds")


def _reward(account: Account) -> None:
    path, manager = account.text("custom_reward_function.path"), account.text("reward_model.reward_manager")
    account.same("custom_reward_function.path", "custom_reward_function.name", "reward_model.reward_manager")
    if path:
        function = f"{_code(path)}:{account.text('custom_reward_function.name')}"
        account.put("reward.functions", [function], "custom_reward_function.path")
        if not path.startswith(("/", "pkg://", "file:///")):
            account.notes.append(
                f"reward.functions: {path} is {_code(path)}, read from the working directory as by verl"
            )
    else:
        account.differs(
            "reward_model.reward_manager",
            "verl picks a scorer by data_source; dapo has one grader, whose verdicts differ in places "
            '(docs/grading.md); reward.compat = "verl-math-dapo" has those of the published one',
        )
    buffer, factor = account.whole(OVERLONG + "len") or 0, account.number(OVERLONG + "penalty_factor") or 0.0
    wanted = account.flag(OVERLONG + "enable")
    works = wanted and manager == "dapo" and buffer > 0 and factor > 0
    account.put("reward.overlong", "soft" if works else "none", OVERLONG + "enable")
    account.same(OVERLONG + "len", OVERLONG + "penalty_factor")
    if works:
        account.put("reward.overlong_buffer_tokens", buffer, OVERLONG + "len")
        account.put("reward.overlong_factor", factor, OVERLONG + "penalty_factor")
    elif wanted and manager != "dapo":
        account.differs(
            OVERLONG + "enable", f"verl's reward manager {manager} does not read it, so there is no penalty"
        )
    elif wanted:
        account.differs(OVERLONG + "enable", "with len or penalty_factor 0 there is no penalty")
    longest, limit = "reward_model.reward_kwargs.max_resp_len", account.count("data.max_response_length")
    account.same(longest)
    if account.value(longest) not in (None, limit):
        account.differs(longest, f"dapo counts the penalty from the longest response, {limit} tokens")
    account.same("reward_model.enable")
    if account.flag("reward_model.enable"):
        account.lacks("reward_model.enable", "a reward model; dapo grades answers, or calls reward.functions")


def _code(path: str) -> str:
    """Where verl finds a reward function: a file from the working directory, or pkg://MODULE as a module's name."""
    if path.startswith("pkg://"):
        return path.removeprefix("pkg://").replace("/", ".")
    return os.path.abspath(os.path.expanduser(path.removeprefix("file://")))


def _rollout(account: Account) -> None:
    for ours, theirs in (
        ("sampling.responses_per_prompt", ROLLOUT + "n"),
        ("sampling.max_response_tokens", "data.max_response_length"),
        ("eval.k", ROLLOUT + "val_kwargs.n"),
    ):
        account.put(ours, account.count(theirs), theirs)
    account.put("sampling.temperature", account.number(ROLLOUT + "temperature"), ROLLOUT + "temperature")
    _unrestricted(account)
    greedy = not account.flag(ROLLOUT + "val_kwargs.do_sample")
    source = ROLLOUT + ("val_kwargs.do_sample" if greedy else "val_kwargs.temperature")
    account.put("eval.temperature", 0.0 if greedy else account.number(source), source)
    source = ROLLOUT + ("val_kwargs.do_sample" if greedy else "val_kwargs.top_p")
    account.put("eval.top_p", 1.0 if greedy else account.number(source), source)
    for leaf in ("do_sample", "temperature", "top_p", "top_k"):
        key = ROLLOUT + "val_kwargs." + leaf
        account.same(key)
        if greedy and leaf != "do_sample" and account.has(key) and account.value(key) != DEFAULTS[key]:
            account.differs(key, "val_kwargs.do_sample is false, so verl evaluates greedily and does not read it")
    if not greedy and (account.whole(ROLLOUT + "val_kwargs.top_k") or -1) > 0:
        account.lacks(ROLLOUT + "val_kwargs.top_k", "top-k in evaluation; dapo has top-p alone")


def _unrestricted(account: Account) -> None:
    top_p, top_k = account.number(ROLLOUT + "top_p"), account.whole(ROLLOUT + "top_k")
    account.same(ROLLOUT + "top_p", ROLLOUT + "top_k", ROLLOUT + "do_sample")
    why = "training responses cut off at it; dapo samples from the whole distribution, which the loss belongs to"
    if top_p not in (None, 1.0):
        account.lacks(ROLLOUT + "top_p", why)
    if top_k not in (None, -1, 0):
        account.lacks(ROLLOUT + "top_k", why)
    if not account.flag(ROLLOUT + "do_sample"):
        account.lacks(ROLLOUT + "do_sample", "greedy training responses, all of a group alike; dapo samples")


def _rest(account: Account) -> None:
    """Keys without a rule of their own, and the defaults in which verl's cores differ."""
    for key, value in account.given.values.items():
        if key in account.placed:
            continue
        if key in LACKING:
            what, harmless = LACKING[key]
            account.same(key) if value in harmless else account.lacks(key, what)
        elif key in MACHINE_KEYS or key.startswith(MACHINE_TREES):
            account.machine(key)
        elif key in DEFAULTS:
            account.same(key)
        elif key.startswith((ROLLOUT + "multi_turn.", "algorithm.pf_ppo.", MODEL + "override_config.", MODEL + "mtp.")):
            account.machine(key)
    for key, newer in NEWER.items():
        if not account.has(key):
            account.notes.append(f"{key} (not set): {DEFAULTS[key]} as in verl 4f80e465; {newer}")
