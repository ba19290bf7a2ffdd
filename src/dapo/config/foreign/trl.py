"""From a TRL configuration (GRPOConfig and `trl grpo`, 1.16) to a recipe of dapo."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dapo.config.foreign.read import read_trl, split_own
from dapo.config.foreign.report import Account, Translation, Unresolved, drop_defaults, finish
from dapo.config.foreign.trl_keys import DEFAULTS, KNOWN, LACKING, MACHINE_KEYS, OF_LOSS
from dapo.config.foreign.trl_loss import loss
from dapo.errors import ConfigError


def translate_trl(words: Sequence[str]) -> Translation:
    """A recipe from TRL's YAML files, Python scripts and key=value words.

    Args:
        words: paths (.yaml, .py) and key=value words, the later winning; a key of dapo that TRL has
            not, such as data.source, is taken into the recipe as it is. num_processes=N, a key of
            accelerate, says on how many devices TRL ran; without it, one.

    Raises:
        ConfigError: naming the file, key and value; `Refused`, with the lists, where the recipe can't be used.

    >>> small = translate_trl(["model_name_or_path=m", "data.source=d.jsonl", "num_generations=4"])
    >>> small.recipe["sampling"]["responses_per_prompt"], small.recipe["algorithm"]["clip_high"]
    (4, 0.2)
    """
    theirs, own = split_own(words, [*KNOWN])
    account = Account("TRL", read_trl(theirs), DEFAULTS, own)
    _model(account)
    _data(account)
    updates = _sizes(account)
    for translate in (_sampling, _reward, loss):
        translate(account)
    _optimiser(account, updates)
    _times(account, updates)
    _rest(account)
    drop_defaults(account)
    return finish(account, KNOWN, "from-trl")


def _model(account: Account) -> None:
    key = "model" if account.has("model") and not account.has("model_name_or_path") else "model_name_or_path"
    account.same("model", "model_name_or_path")
    if "model.path" not in account.own:
        name = account.text(key)
        if not name:
            raise ConfigError("model_name_or_path is not set, and TRL has no default; add model_name_or_path=NAME")
        account.put("model.path", name, key)
    revision = account.text("model_revision")
    if revision != "main":
        account.put("model.revision", revision, "model_revision")
    account.same("model_revision")
    account.put("model.trust_remote_code", account.flag("trust_remote_code"), "trust_remote_code")
    account.put("train.gradient_checkpointing", account.flag("gradient_checkpointing"), "gradient_checkpointing")
    template = account.value("chat_template_kwargs")
    account.same("chat_template_kwargs")
    if template:
        account.put("model.chat_template_kwargs", template, "chat_template_kwargs")
    _precision(account)
    for ours, theirs in (("learner.lora_rank", "lora_r"), ("learner.lora_alpha", "lora_alpha")):
        account.same("use_peft", theirs)
        if account.flag("use_peft"):
            account.put(ours, account.whole(theirs), theirs)


def _precision(account: Account) -> None:
    account.same("bf16", "fp16", "dtype")
    if account.flag("fp16"):
        account.lacks("fp16", "float16; dapo computes in bfloat16 or float32")
    elif account.value("bf16") is not None:
        account.put("model.dtype", "bfloat16" if account.flag("bf16") else "float32", "bf16")
    if account.has("dtype"):
        account.differs("dtype", "the type TRL loads weights in; dapo's master weights are always float32")


def _data(account: Account) -> None:
    names = ("dataset_name", "dataset_config", "dataset_train_split", "train_dataset")
    if "data.source" not in account.own:
        name = account.value("dataset_name")
        if not isinstance(name, str):
            raise ConfigError(
                "dataset_name is not set, so the data can't be told; add data.source=FILE, a file or a prepared folder"
            )
        folder = "data/" + name.replace("/", "-")
        place = ":" + account.text("dataset_config") + "/*" if account.value("dataset_config") else ""
        account.put("data.source", folder, "dataset_name")
        account.differs(
            "dataset_name", f"dapo reads files; make them with: dapo data prepare hf:{name}{place} -o {folder}"
        )
    account.same(*names[:3])
    if account.has("train_dataset"):
        account.lacks("train_dataset", "an object of the script; the recipe's data.source is in its place")
    account.put("data.shuffle", account.flag("shuffle_dataset"), "shuffle_dataset")
    account.put("train.seed", account.whole("seed"), "seed")
    account.same("data_seed")
    if account.value("data_seed") is not None:
        account.lacks("data_seed", "a seed for the order of the data alone; dapo has one seed")
    account.same("max_prompt_length")
    if account.value("max_prompt_length") is not None:
        account.put("data.max_prompt_tokens", account.count("max_prompt_length"), "max_prompt_length")
        account.differs("max_prompt_length", "older TRL cuts longer prompts on the left; dapo leaves them out, counted")
    else:
        account.notes.append("TRL has no limit on prompts; dapo leaves out those over data.max_prompt_tokens (2048)")


def _sizes(account: Account) -> int:
    """Updates of one generation. TRL counts responses: prompts = responses / num_generations.

    TRL generates once for steps_per_generation forward passes of per_device_train_batch_size responses on every
    process, and updates after gradient_accumulation_steps passes.
    """
    group, batch = account.count("num_generations"), account.count("per_device_train_batch_size")
    processes, passes = account.count("num_processes"), account.count("gradient_accumulation_steps")
    given = [account.value(key) is not None for key in ("generation_batch_size", "steps_per_generation")]
    if all(given):
        raise ConfigError(
            "generation_batch_size and steps_per_generation exclude each other in TRL; remove one of them"
        )
    source = "generation_batch_size" if given[0] else "steps_per_generation"
    slices = account.count("steps_per_generation") if given[1] else passes
    if given[0] and account.count(source) % (batch * processes):
        raise ConfigError(
            f"generation_batch_size = {account.count(source)} is no multiple of per_device_train_batch_size * "
            f"num_processes = {batch} * {processes}; correct one of them"
        )
    if given[0]:
        slices = account.count(source) // (batch * processes)
    keys = (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "generation_batch_size",
        "steps_per_generation",
    )
    account.same(*keys, "num_generations", "num_processes", "num_iterations")
    if not account.has("num_processes"):
        account.notes.append("one process is assumed; if TRL ran on N devices, add num_processes=N")
    long, short = max(slices, passes), min(slices, passes)
    responses = batch * processes * long
    if long % short or batch * processes * slices % group:
        raise ConfigError(
            f"{batch * processes * slices} responses of a generation ({batch} a device * {processes} processes * "
            f"{slices} passes) do not fall into groups of num_generations = {group}, or into updates of {passes} "
            "passes; change one of them by a word"
        )
    account.put("sampling.prompts_per_step", responses // group, source if any(given) else keys[0])
    account.put("sampling.responses_per_prompt", group, "num_generations")
    updates = max(1, slices // passes)
    account.put("train.updates_per_step", updates, source if any(given) else keys[1])
    iterations = account.count("num_iterations")
    if iterations > 1:
        account.lacks("num_iterations", f"TRL goes over each batch {iterations} times; dapo once")
    return updates


def _sampling(account: Account) -> None:
    account.recipe["sampling.filter"] = "off"
    account.provenance["sampling.filter"] = "chosen: TRL trains on every group"
    account.put("sampling.temperature", account.number("temperature"), "temperature")
    account.put("sampling.max_response_tokens", account.count("max_completion_length"), "max_completion_length")
    account.same("top_p", "top_k", "repetition_penalty")
    why = "it changes what is sampled but not the loss; dapo samples from the distribution that the loss belongs to"
    for key, neutral in (("top_p", (None, 1.0)), ("top_k", (None, 0, -1)), ("repetition_penalty", (None, 1.0))):
        if account.number(key) not in neutral:
            account.lacks(key, why)


def _reward(account: Account) -> None:
    account.put(
        "reward.overlong",
        "filter" if account.flag("mask_truncated_completions") else "none",
        "mask_truncated_completions",
    )
    held = account.given.values.get("reward_funcs")
    account.same("reward_funcs", "reward_weights")
    if held is None or isinstance(held, Unresolved):
        text = "the reward functions of the script" if held else "no reward function is named"
        account.lacks("reward_funcs", f"{text}; dapo's grader is in their place: give reward.functions to change that")
        if account.has("reward_weights") and account.given.values["reward_weights"] is not None:
            account.lacks("reward_weights", "weights of functions that are not known here")
        return
    names = held if isinstance(held, list) else [held]
    weights = account.value("reward_weights") or [1.0] * len(names)
    if not isinstance(weights, list) or len(weights) != len(names):
        raise ConfigError(
            f"reward_weights = {weights!r}: one weight for each of the {len(names)} reward_funcs is wanted"
        )
    functions = [
        row for name, weight in zip(names, weights, strict=True) if (row := _function(account, str(name), weight))
    ]
    plain = [row["function"] if row["weight"] == 1.0 else row for row in functions]
    if plain and plain != ["grader"]:
        account.put("reward.functions", plain, "reward_funcs")
    if len([row for row in functions if row["function"] == "grader"]) > 1:
        raise ConfigError("reward_funcs names two graders of answers; dapo has one: remove one of them")


def _function(account: Account, name: str, weight: Any) -> dict[str, Any] | None:
    if name in ("accuracy_reward", "reasoning_accuracy_reward"):
        account.differs("reward_funcs", f"{name}: TRL asks math-verify and pays 0 or 1; dapo's grader pays -1 or 1")
        return {"function": "grader", "weight": weight}
    if name == "get_soft_overlong_punishment":
        if account.count("max_completion_length") == 1280 and not account.flag("mask_truncated_completions"):
            for key, value in (
                ("overlong", "soft"),
                ("overlong_buffer_tokens", 256),
                ("overlong_factor", float(weight)),
            ):
                account.put(f"reward.{key}", value, "reward_funcs")
        else:
            account.lacks("reward_funcs", f"{name}: trl grpo's penalty from 1024 to 1280 tokens; see reward.overlong")
        return None
    file, _, named = name.rpartition(":")
    if file.endswith(".py"):
        return {"function": f"{os.path.abspath(os.path.expanduser(file))}:{named}", "weight": weight}
    module, dot, function = name.rpartition(".")
    if not dot or "/" in name:
        account.lacks("reward_funcs", f"{name}: dapo has no such function or reward model")
        return None
    return {"function": f"{module}:{function}", "weight": weight}


def _optimiser(account: Account, updates: int) -> None:
    account.put("train.learning_rate", account.number("learning_rate"), "learning_rate")
    account.put("train.weight_decay", account.number("weight_decay"), "weight_decay")
    beta1, beta2 = account.number("adam_beta1"), account.number("adam_beta2")
    account.put("train.betas", [beta1, beta2], "adam_beta2" if account.has("adam_beta2") else "adam_beta1")
    account.same("adam_beta1")
    account.put("train.adam_eps", account.number("adam_epsilon"), "adam_epsilon")
    norm = account.number("max_grad_norm")
    account.put("train.max_grad_norm", norm if norm else "off", "max_grad_norm")
    optimiser = account.text("optim")
    account.same("optim")
    if not optimiser.startswith("adamw"):
        account.lacks("optim", f"the optimiser {optimiser}; dapo trains with AdamW")
    elif optimiser not in ("adamw_torch", "adamw_torch_fused", "adamw_hf"):
        account.differs("optim", "dapo's AdamW keeps its state in float32")
    schedule = account.text("lr_scheduler_type")
    account.same("lr_scheduler_type")
    if schedule not in ("constant", "constant_with_warmup"):
        how = f"TRL's learning rate follows the schedule {schedule} down; dapo's is constant after warm-up"
        account.lacks("lr_scheduler_type", how)
    _warmup(account, updates, schedule)


def _warmup(account: Account, updates: int, schedule: str) -> None:
    """TRL warms up over updates, dapo over rollout steps; both from zero."""
    given, ratio = account.number("warmup_steps") or 0.0, account.number("warmup_ratio") or 0.0
    source, total = "warmup_steps", account.whole("max_steps") or -1
    account.same("warmup_steps", "warmup_ratio")
    if not given and ratio:
        source, given = "warmup_ratio", ratio
    if schedule == "constant":
        given = 0.0
    if 0 < given < 1:
        if total <= 0:
            account.lacks(
                source, "a share of all steps, whose number TRL takes from the data; set warmup_rollout_steps"
            )
        given = float(-(-given * max(total, 0) // 1))
    steps = -(-int(given) // updates)
    account.put("train.warmup_rollout_steps", steps, source)
    if steps:
        account.put("train.warmup_from_zero", True, source)
    if steps and updates > 1:
        account.differs(source, f"TRL raises the rate at every update; dapo once in a step of {updates} updates")


def _times(account: Account, updates: int) -> None:
    total, epochs = account.whole("max_steps") or -1, account.text("num_train_epochs")
    account.same("max_steps", "num_train_epochs")
    if total > 0:
        _every(account, "train.num_steps", "max_steps", updates)
    else:
        how = f"TRL ends after {epochs} epoch(s) of the data; {account.steps_words()}"
        account.lacks("num_train_epochs", how)
    account.same("save_strategy", "save_steps", "eval_strategy", "eval_steps", "eval_on_start", "num_generations_eval")
    if account.text("save_strategy") == "steps":
        _every(account, "checkpoint.every", "save_steps", updates)
    elif account.text("save_strategy") != "no":
        account.lacks(
            "save_strategy", f"saving every {account.text('save_strategy')}; dapo saves by steps: checkpoint.every"
        )
    account.same("save_total_limit")
    if account.value("save_total_limit") is not None:
        account.put("checkpoint.keep_last", account.count("save_total_limit"), "save_total_limit")
    else:
        account.differs("save_total_limit", "TRL keeps every checkpoint; dapo the last 2 (keep_last)")
    _evaluation(account, updates)
    name = account.given.values.get("run_name")
    account.same("run_name", "dataset_test_split")
    if isinstance(name, str) and name and all(sign.isalnum() or sign in "-_. " for sign in name):
        account.put("name", name, "run_name")


def _evaluation(account: Account, updates: int) -> None:
    if account.text("eval_strategy") == "no":
        return
    account.lacks("eval_strategy", "evaluation on dataset_test_split; give dapo its set: eval.data=FILE")
    key = "num_generations_eval" if account.value("num_generations_eval") is not None else "num_generations"
    account.put("eval.k", account.count(key), key)
    account.put("eval.temperature", account.number("temperature"), "temperature")
    account.put("eval.top_p", account.number("top_p"), "top_p")
    account.put("eval.before", account.flag("eval_on_start"), "eval_on_start")
    if account.text("eval_strategy") == "steps" and account.value("eval_steps") is not None:
        _every(account, "eval.every", "eval_steps", updates)


def _every(account: Account, ours: str, theirs: str, updates: int) -> None:
    """A number of TRL's updates as one of rollout steps, rounded up."""
    number = account.number(theirs) or 0.0
    if 0 < number < 1:
        account.lacks(theirs, f"a share of all steps; set {ours}")
        return
    count = account.count(theirs)
    account.put(ours, -(-count // updates), theirs)
    if count % updates:
        account.differs(
            theirs, f"counts updates, and {count} is no whole number of steps of {updates} updates: rounded up"
        )


def _rest(account: Account) -> None:
    for key, value in account.given.values.items():
        if key in account.placed:
            continue
        if key in LACKING:
            what, harmless = LACKING[key]
            account.lacks(key, what) if isinstance(value, Unresolved) or value not in harmless else account.same(key)
        elif key.startswith("**"):
            account.lacks(key, "keyword arguments that can't be told; give them as words")
        elif key in OF_LOSS:
            account.differs(key, "belongs to a loss or a switch that is off here, or has no counterpart")
        elif key in MACHINE_KEYS:
            account.machine(key)
        elif key in KNOWN:
            account.same(key)
