"""Configuration in words: the start-up line and `dapo config --explain`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from dapo.config.schema import Config, SamplingConfig

# Well-known names elsewhere for what a key of ours does (verl | TRL).
ELSEWHERE = {
    "algorithm.advantage": "verl algorithm.adv_estimator, norm_adv_by_std_in_grpo | TRL scale_rewards",
    "algorithm.entropy_coef": "verl actor.entropy_coeff | TRL: none",
    "algorithm.importance_cap": "verl algorithm.rollout_correction | TRL vllm_importance_sampling_cap",
    "algorithm.kl.estimator": "verl actor.kl_loss_type (kl, mse, low_var_kl) | TRL: fixed at k3",
    "algorithm.objective": "verl actor.policy_loss.loss_mode | TRL loss_type, importance_sampling_level",
    "algorithm.clip_low": "verl actor.clip_ratio_low | TRL epsilon",
    "algorithm.clip_high": "verl actor.clip_ratio_high | TRL epsilon_high",
    "algorithm.clip_dual": "verl actor.clip_ratio_c | TRL delta",
    "algorithm.reduction": "verl actor.loss_agg_mode | TRL loss_type",
    "algorithm.kl.coef": "verl actor.kl_loss_coef / algorithm.kl_ctrl.kl_coef | TRL beta",
    "algorithm.std_correction": "verl: fixed at 1 | TRL: fixed at 1",
    "data.max_prompt_tokens": "verl data.max_prompt_length | TRL max_prompt_length (older releases)",
    "data.answer_column": "verl: reward_model.ground_truth | TRL: any column of the reward function",
    "eval.every": "verl trainer.test_freq | TRL eval_steps",
    "checkpoint.best_metric": "TRL metric_for_best_model",
    "eval.data": "verl data.val_files",
    "eval.k": "verl rollout.val_kwargs.n",
    "eval.top_p": "verl rollout.val_kwargs.top_p",
    "reward.overlong_buffer_tokens": "verl reward_model.overlong_buffer.len",
    "reward.overlong_factor": "verl reward_model.overlong_buffer.penalty_factor",
    "sampling.filter": "verl algorithm.filter_groups.{enable,metric}",
    "sampling.gen_prompts": "verl data.gen_batch_size",
    "sampling.max_response_tokens": "verl data.max_response_length | TRL max_completion_length",
    "sampling.max_rounds": "verl algorithm.filter_groups.max_num_gen_batches",
    "sampling.prompts_per_step": "verl data.train_batch_size (in prompts)",
    "sampling.responses_per_prompt": "verl rollout.n | TRL num_generations",
    "sampling.temperature": "verl rollout.temperature | TRL temperature",
    "train.learning_rate": "verl actor.optim.lr | TRL learning_rate",
    "train.max_grad_norm": "verl actor.grad_clip | TRL max_grad_norm",
    "train.tokens_per_microbatch": "verl actor.ppo_max_token_len_per_gpu",
    "train.updates_per_step": "verl: train_batch_size / ppo_mini_batch_size | TRL steps_per_generation",
    "train.warmup_rollout_steps": "verl actor.optim.lr_warmup_steps (whose first step has lr 0)",
}


def batch_line(config: Config) -> str:
    """The batch sizes spelled out, printed at every start."""
    sampling, train = config.sampling, config.train
    prompts, group, updates = (
        sampling.prompts_per_step,
        sampling.responses_per_prompt,
        train.updates_per_step,
    )
    most = "" if sampling.min_responses_per_prompt is None else "at most "
    return (
        f"{prompts} prompts x {group_words(sampling)} = {most}{prompts * group} responses a step, each at most "
        f"{sampling.max_response_tokens} tokens; {updates} updates of {prompts // updates} prompts = "
        f"{most}{prompts * group // updates} responses; {_sampling_words(config)}; {train.num_steps} steps = "
        f"{train.num_steps * updates} updates"
    )


def group_words(sampling: SamplingConfig) -> str:
    """The size of a group, or its range."""
    least, most = sampling.min_responses_per_prompt, sampling.responses_per_prompt
    return f"{most}" if least is None else f"{least} to {most}"


def epoch_words(config: Config, size: int) -> str:
    """How long an epoch is, and how many the run takes at the least."""
    steps = config.train.num_steps
    least = steps * config.sampling.prompts_per_step
    epochs = least / size
    return (
        f"an epoch is {size} prompts drawn, and {steps} full steps draw {least} or more "
        f"({epochs:{'.3g' if epochs < 10 else '.1f'}} epochs)"
    )


def _sampling_words(config: Config) -> str:
    sampling = config.sampling
    drawn = sampling.gen_prompts or sampling.prompts_per_step
    if sampling.filter == "off":
        words = "no dynamic sampling"
    elif sampling.schedule == "streaming":
        words = (
            f"dynamic sampling on {sampling.filter}: a window of {drawn} prompts, "
            f"at most {drawn * sampling.max_rounds} a step"
        )
    else:
        words = f"dynamic sampling on {sampling.filter}: rounds of {drawn} prompts, at most {sampling.max_rounds}"
    if sampling.surplus == "carry":
        words += f", at most {sampling.prompts_per_step * sampling.max_staleness} carried to the next step"
    return words


def explain(config: Config | None = None) -> Iterator[tuple[str, Any, str, str]]:
    """(key, value or default, meaning, name elsewhere) for every knob."""
    yield from _walk(Config, config, "")


def _walk(model: type[BaseModel], values: BaseModel | None, prefix: str) -> Iterator[tuple[str, Any, str, str]]:
    for name, info in model.model_fields.items():
        key = prefix + (info.alias or name)
        value = getattr(values, name) if values is not None else info.default
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, value if isinstance(value, BaseModel) else None, key + ".")
        else:
            meaning = " ".join((info.description or "").split())
            yield key, value, meaning, ELSEWHERE.get(key, "")
