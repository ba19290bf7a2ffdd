"""verl's keys: the defaults that matter, other spellings, and those about the machine.

Defaults are those of verl 4f80e465 (verl/trainer/config/ppo_trainer.yaml, recipe/dapo), the core of the DAPO
paper; NEWER tells where verl b178a3cd decides otherwise.
"""

from __future__ import annotations

from typing import Any

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
FILTER, OVERLONG = "algorithm.filter_groups.", "reward_model.overlong_buffer."
CORRECTION = "algorithm.rollout_correction."
ULYSSES = "ulysses_sequence_parallel_size"

DEFAULTS: dict[str, Any] = {
    "data.train_files": "~/data/rlhf/gsm8k/train.parquet",
    "data.val_files": "~/data/rlhf/gsm8k/test.parquet",
    "data.prompt_key": "prompt",
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.train_batch_size": 1024,
    "data.shuffle": True,
    "data.filter_overlong_prompts": False,
    "data.truncation": "error",
    MODEL + "path": "~/models/deepseek-llm-7b-chat",
    MODEL + "enable_gradient_checkpointing": True,
    MODEL + "trust_remote_code": False,
    MODEL + "lora_rank": 0,
    MODEL + "lora_alpha": 16,
    ACTOR + "ppo_mini_batch_size": 256,
    ACTOR + "ppo_epochs": 1,
    ACTOR + "use_dynamic_bsz": False,
    ACTOR + "ppo_max_token_len_per_gpu": 16384,
    ACTOR + "grad_clip": 1.0,
    ACTOR + "clip_ratio": 0.2,
    ACTOR + "clip_ratio_low": 0.2,
    ACTOR + "clip_ratio_high": 0.2,
    ACTOR + "clip_ratio_c": 3.0,
    ACTOR + "loss_agg_mode": "token-mean",
    ACTOR + "entropy_coeff": 0.001,
    ACTOR + "use_kl_loss": False,
    ACTOR + "kl_loss_coef": 0.001,
    ACTOR + "kl_loss_type": "low_var_kl",
    ACTOR + "policy_loss.loss_mode": "vanilla",
    ACTOR + "policy_loss.clip_cov_ratio": 0.0002,
    ACTOR + "policy_loss.clip_cov_lb": 1.0,
    ACTOR + "policy_loss.clip_cov_ub": 5.0,
    ACTOR + "policy_loss.kl_cov_ratio": 0.0002,
    ACTOR + "policy_loss.ppo_kl_coef": 0.1,
    ACTOR + "optim.lr": 1e-6,
    ACTOR + "optim.lr_warmup_steps": -1,
    ACTOR + "optim.lr_warmup_steps_ratio": 0.0,
    ACTOR + "optim.weight_decay": 0.01,
    ACTOR + "optim.betas": [0.9, 0.999],
    ACTOR + "optim.lr_scheduler_type": "constant",
    ROLLOUT + "n": 1,
    ROLLOUT + "temperature": 1.0,
    ROLLOUT + "top_p": 1.0,
    ROLLOUT + "top_k": -1,
    ROLLOUT + "do_sample": True,
    ROLLOUT + "val_kwargs.n": 1,
    ROLLOUT + "val_kwargs.temperature": 0,
    ROLLOUT + "val_kwargs.top_p": 1.0,
    ROLLOUT + "val_kwargs.top_k": -1,
    ROLLOUT + "val_kwargs.do_sample": False,
    "algorithm.adv_estimator": "gae",
    "algorithm.gamma": 1.0,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.type": "fixed",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    FILTER + "enable": False,
    FILTER + "max_num_gen_batches": 0,
    CORRECTION + "rollout_is_threshold": 2.0,
    OVERLONG + "enable": False,
    OVERLONG + "len": 0,
    OVERLONG + "penalty_factor": 0.0,
    "reward_model.reward_manager": "naive",
    "reward_model.enable": False,
    "custom_reward_function.name": "compute_score",
    "trainer.total_epochs": 30,
    "trainer.balance_batch": True,
    ACTOR + "shuffle": False,
    "trainer.val_before_train": True,
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
}

NEWER = {ACTOR + "entropy_coeff": "0 in verl b178a3cd and later"}

# Keys of later cores and of the newer verl-recipe that mean what an older key means.
ALIASES = {
    ACTOR + "optim.warmup_style": ACTOR + "optim.lr_scheduler_type",
    ACTOR + "optim.clip_grad": ACTOR + "grad_clip",
    MODEL + "lora.rank": MODEL + "lora_rank",
    MODEL + "lora.alpha": MODEL + "lora_alpha",
    "reward_manager.name": "reward_model.reward_manager",
    "reward.reward_manager.name": "reward_model.reward_manager",
    "reward.custom_reward_function.path": "custom_reward_function.path",
    "reward.custom_reward_function.name": "custom_reward_function.name",
    "reward.reward_kwargs.max_resp_len": "reward_model.reward_kwargs.max_resp_len",
    **{
        f"{place}.reward_kwargs.overlong_buffer_cfg.{leaf}": OVERLONG + leaf
        for place in ("reward", "reward_model")
        for leaf in ("enable", "len", "penalty_factor", "log")
    },
}

# What only this part of verl reads, whatever lies below it.
MACHINE_TREES = (
    ACTOR + "fsdp_config.",
    ACTOR + "megatron.",
    ACTOR + "profiler.",
    ACTOR + "checkpoint.",
    ACTOR + "router_replay.",
    ACTOR + "veomni.",
    "actor_rollout_ref.ref.",
    MODEL + "fused_kernel_options.",
    MODEL + "tiled_mlp.",
    ROLLOUT + "engine_kwargs.",
    ROLLOUT + "checkpoint_engine.",
    ROLLOUT + "prometheus.",
    ROLLOUT + "trace.",
    ROLLOUT + "profiler.",
    ROLLOUT + "agent.",
    "global_profiler.",
    "ray_kwargs.",
    "ray_init.",
    "transfer_queue.",
    "reward_model.sandbox_fusion.",
    "reward_model.model.",
    "reward_model.rollout.",
    "reward_model.profiler.",
    "reward_manager.module.",
    ACTOR + "optim.override_optimizer_config.",
    "hydra.",
    "critic.",  # algorithm.adv_estimator says that there is none
)

_MACHINE = {
    "actor_rollout_ref": "hybrid_engine nccl_timeout",
    "actor_rollout_ref.actor": "strategy ppo_micro_batch_size ppo_micro_batch_size_per_gpu use_torch_compile rollout_n "
    "ulysses_sequence_parallel_size use_remove_padding use_fused_kernels use_prefix_grouper calculate_entropy "
    "entropy_checkpointing entropy_from_logits_with_chunking calculate_sum_pi_squared sum_pi_squared_checkpointing "
    "data_loader_seed",
    "actor_rollout_ref.actor.optim": "total_training_steps optimizer_impl",
    "actor_rollout_ref.model": "use_remove_padding use_shm use_liger use_fused_kernels enable_activation_offload "
    "tokenizer_path hf_config_path",
    "actor_rollout_ref.rollout": "name mode dtype gpu_memory_utilization enforce_eager cudagraph_capture_sizes "
    "free_cache_engine tensor_model_parallel_size data_parallel_size expert_parallel_size pipeline_model_parallel_size "
    "max_num_batched_tokens max_model_len max_num_seqs enable_chunked_prefill enable_prefix_caching scheduling_policy "
    "load_format log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz "
    "log_prob_max_token_len_per_gpu disable_log_stats multi_stage_wake_up prompt_length response_length skip_rollout "
    "skip_dump_dir skip_tokenizer_init layered_summon engine_seed seed calculate_log_probs logprobs_mode "
    "over_sample_rate enable_rollout_routing_replay quantization_config_file mtp",
    "data": "tokenizer use_shm reward_fn_key val_batch_size return_raw_input_ids return_raw_chat return_full_prompt "
    "dataloader_num_workers filter_overlong_prompts_workers image_key image_patch_size video_key "
    "return_multi_modal_inputs validation_shuffle trust_remote_code",
    "reward_model": "strategy num_workers use_reward_loop launch_reward_fn_async enable_resource_pool nnodes "
    "n_gpus_per_node micro_batch_size micro_batch_size_per_gpu max_length ulysses_sequence_parallel_size "
    "use_dynamic_bsz forward_max_token_len_per_gpu reward_loop_source reward_loop_module_path reward_loop_class_name",
    "reward_manager": "source",
    "reward_model.overlong_buffer": "log",
    "trainer": "project_name logger log_val_generations rollout_data_dir validation_data_dir nnodes n_gpus_per_node "
    "esi_redundant_time resume_mode resume_from_path default_hdfs_dir default_local_dir del_local_ckpt_after_load "
    "remove_previous_ckpt_in_save max_critic_ckpt_to_keep ray_wait_register_center_timeout device "
    "use_legacy_worker_impl",
}
MACHINE_KEYS = frozenset(f"{place}.{leaf}" for place, leaves in _MACHINE.items() for leaf in leaves.split())

# What they do in verl, where dapo has nothing. Values that switch the thing off are passed over.
LACKING: dict[str, tuple[str, tuple[Any, ...]]] = {
    ACTOR + "optim.min_lr_ratio": ("the floor of verl's cosine schedule", (None, 0, 0.0)),
    ACTOR + "optim.num_cycles": ("the half-waves of verl's cosine schedule", (None, 0.5)),
    ACTOR + "optim.optimizer": ("dapo trains with AdamW", (None, "AdamW", "adam")),
    ACTOR + "optim.override_optimizer_config": ("further settings of the optimiser", (None, {})),
    ACTOR + "tau_pos": ("belongs to loss_mode = sapo", (1.0,)),
    ACTOR + "tau_neg": ("belongs to loss_mode = sapo", (1.05,)),
    ACTOR + "freeze_vision_tower": ("dapo trains text models", (False, None)),
    MODEL + "external_lib": ("a Python module imported before the model", (None,)),
    MODEL + "override_config": ("changes of the model's own configuration", (None, {})),
    MODEL + "custom_chat_template": ("a chat template in place of the tokenizer's; see data.template", (None,)),
    MODEL + "lora_adapter_path": ("a LoRA adapter to start from", (None,)),
    MODEL + "target_modules": ("which layers get LoRA weights", (None, "all-linear")),
    MODEL + "exclude_modules": ("which layers get none", (None,)),
    ROLLOUT + "ignore_eos": ("responses that go on past their end", (False,)),
    ROLLOUT + "use_fire_sampling": ("a hot first token", (False,)),
    ROLLOUT + "multi_turn.enable": ("responses of several turns with tools", (False,)),
    ROLLOUT + "quantization": ("rollouts from quantised weights", (None,)),
    "algorithm.lam": ("GAE's lambda; dapo has no value function", (1.0, 1)),
    "algorithm.use_pf_ppo": ("PF-PPO: resampling by reward", (False,)),
    CORRECTION + "rollout_rs": ("rejecting responses or tokens whose weight is out of bounds", (None,)),
    CORRECTION + "rollout_rs_threshold": ("the bounds of rollout_rs", (None,)),
    CORRECTION + "rollout_is_batch_normalize": ("weights divided by their mean", (False, None)),
    CORRECTION + "loss_type": ("the loss of bypass_mode", (None, "ppo_clip")),
    "data.sampler.class_path": ("a sampler of one's own over the data", (None,)),
    "data.sampler.class_name": ("a sampler of one's own over the data", (None,)),
    "data.custom_cls.path": ("a data set class of one's own", (None,)),
    "data.custom_cls.name": ("a data set class of one's own", (None,)),
    "data.datagen.path": ("problems made while training", (None,)),
    "data.datagen.name": ("problems made while training", (None,)),
    "data.tool_config_path": ("tools", (None,)),
    "trainer.critic_warmup": ("steps that train the critic alone; dapo has none", (0, None)),
    "trainer.val_only": ("evaluation without training; here dapo eval", (False,)),
    "algorithm.kl_ctrl.horizon": ("of the adaptive KL controller", (10000,)),
    "algorithm.kl_ctrl.target_kl": ("of the adaptive KL controller", (0.1,)),
}

# Translated where they are set; without a default that matters.
OPTIONAL = (
    "data.gen_batch_size",
    "data.seed",
    "data.train_max_samples",
    "data.val_max_samples",
    "data.apply_chat_template_kwargs",
    ACTOR + "loss_scale_factor",
    ACTOR + "tis_imp_ratio_cap",
    FILTER + "metric",
    CORRECTION + "rollout_is",
    CORRECTION + "bypass_mode",
    "reward_model.reward_kwargs.max_resp_len",
    "custom_reward_function.path",
    "trainer.experiment_name",
    "trainer.total_training_steps",
    "trainer.max_actor_ckpt_to_keep",
)

KNOWN = frozenset({*DEFAULTS, *ALIASES, *MACHINE_KEYS, *LACKING, *OPTIONAL})
