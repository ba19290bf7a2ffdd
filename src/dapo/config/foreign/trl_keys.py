"""TRL's keys: the defaults that matter and those about the machine. Of TRL 1.16 (GRPOConfig, ModelConfig, trl grpo)."""

from __future__ import annotations

from typing import Any

DEFAULTS: dict[str, Any] = {
    "learning_rate": 1e-6,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "warmup_ratio": 0.0,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0,
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": True,
    "gradient_accumulation_steps": 1,
    "per_device_train_batch_size": 8,
    "num_generations": 8,
    "num_iterations": 1,
    "num_processes": 1,
    "num_train_epochs": 3.0,
    "max_steps": -1,
    "max_completion_length": 512,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "repetition_penalty": 1.0,
    "beta": 0.0,
    "use_bias_correction_kl": True,
    "epsilon": 0.2,
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "scale_rewards": "group",
    "multi_objective_aggregation": "sum_then_normalize",
    "mask_truncated_completions": False,
    "entropy_coef": 0.0,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "shuffle_dataset": True,
    "seed": 42,
    "eval_strategy": "no",
    "save_strategy": "steps",
    "save_steps": 500,
    "trust_remote_code": False,
    "model_revision": "main",
    "dataset_train_split": "train",
    "use_peft": False,
    "lora_r": 16,
    "lora_alpha": 32,
    "eval_on_start": False,
    "fp16": False,
}

_NULLABLE = (
    "epsilon_high delta generation_batch_size steps_per_generation max_prompt_length num_generations_eval eval_steps "
    "save_total_limit reward_funcs reward_weights model_name_or_path model dataset_name dataset_config bf16 dtype "
    "chat_template_kwargs vllm_importance_sampling_cap args run_name dataset_test_split data_seed"
)
NULLABLE = _NULLABLE.split()

# What they do in TRL, where dapo has nothing. Values that switch the thing off are passed over.
LACKING: dict[str, tuple[str, tuple[Any, ...]]] = {
    "min_p": ("tokens under a share of the likeliest are never sampled; dapo samples from all", (None, 0, 0.0)),
    "generation_kwargs": ("further settings of sampling", (None, {})),
    "top_entropy_quantile": ("a loss over the tokens of high entropy alone", (1, 1.0)),
    "off_policy_mask_threshold": ("leaving out responses that are far off-policy", (None,)),
    "sync_ref_model": ("a reference model that follows the policy; see algorithm.kl.reset_every", (False,)),
    "use_adaptive_entropy": ("an entropy weight that is steered towards a target", (False,)),
    "lr_scheduler_kwargs": ("settings of the schedule", (None, {})),
    "optim_args": ("settings of the optimiser", (None,)),
    "optim_target_modules": ("an optimiser for some layers", (None,)),
    "vllm_importance_sampling_clip_min": ("a lower bound of importance weights", (None,)),
    "vllm_structured_outputs_regex": ("responses held to a pattern", (None,)),
    "disable_dropout": ("dapo never has dropout in training", (True, False)),
    "neftune_noise_alpha": ("noise on embeddings", (None,)),
    "label_smoothing_factor": ("not used by GRPO", (0, 0.0)),
    "router_aux_loss_coef": ("the balancing loss of mixture-of-experts models", (None, 0, 0.0)),
    "max_tool_calling_iterations": ("responses with tool calls", (None,)),
    "environment_factory": ("an environment of tools", (None,)),
    "tools": ("responses with tool calls", (None, [])),
    "rollout_func": ("a rollout function of one's own", (None,)),
    "reward_model_name_or_path": ("a reward model; dapo grades answers, or calls reward.functions", (None,)),
    "reward_processing_classes": ("tokenizers of reward models", (None,)),
    "load_best_model_at_end": ("taking the best checkpoint at the end; see checkpoint.keep_best", (False,)),
    "metric_for_best_model": ("the figure that picks it; see checkpoint.best_metric", (None,)),
    "greater_is_better": ("of metric_for_best_model", (None,)),
    "model_init_kwargs": ("arguments of from_pretrained", (None, {})),
    "peft_config": ("an adapter of peft other than LoRA; for LoRA see learner.lora_rank", (None,)),
    "optimizers": ("an optimiser of one's own", (None,)),
    "callbacks": ("callbacks of the trainer; see trackers", (None, [])),
    "lora_dropout": ("dropout of the adapters: dapo has none", (0.05, 0, 0.0)),
    "lora_target_modules": ("which layers get adapters; see learner.lora_targets", (None, "all-linear")),
    "load_in_8bit": ("a quantised model", (False,)),
    "load_in_4bit": ("a quantised model", (False,)),
    "datasets": ("a mixture of data sets; see data.source with weights", (None, [])),
    "dataset_streaming": ("reading data while training", (False,)),
    "test_split_size": ("a test set cut off the data; see data.holdout", (None,)),
    "auto_find_batch_size": ("halving the batch when memory runs out", (False,)),
    "eval_delay": ("no evaluation before this step", (0, 0.0)),
    "cast_lm_head_to_fp32": ("the last layer in float32", (False,)),
    "eval_dataset": ("the evaluation set; give eval.data=FILE", (None,)),
    "train_dataset": ("the training set; give data.source=FILE", (None,)),
}

# Belong to one loss_type, which is named where it has no counterpart.
_OF_LOSS = (
    "sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg "
    "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target ref_model_mixup_alpha ref_model_sync_steps"
)
OF_LOSS = _OF_LOSS.split()

_MACHINE = (
    "output_dir overwrite_output_dir tf32 bf16_full_eval fp16_full_eval gradient_checkpointing_kwargs "
    "torch_compile torch_compile_backend torch_compile_mode use_liger_kernel use_liger_loss liger_kernel_config "
    "use_cache torch_empty_cache_steps logging_strategy logging_steps logging_first_step logging_dir "
    "log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica "
    "disable_tqdm report_to project trackio_space_id trackio_bucket_id trackio_static_space_id "
    "per_device_eval_batch_size prediction_loss_only eval_do_concat_batches eval_use_gather_object "
    "eval_accumulation_steps include_for_metrics batch_eval_metrics save_only_model save_on_each_node "
    "enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push "
    "hub_revision ignore_data_skip restore_callback_states_from_checkpoint full_determinism use_cpu "
    "accelerator_config parallelism_config dataloader_drop_last dataloader_num_workers dataloader_pin_memory "
    "dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context "
    "dataloader_in_order remove_unused_columns label_names train_sampling_strategy length_column_name "
    "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout "
    "fsdp fsdp_config deepspeed debug skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint "
    "local_rank average_tokens_across_devices ds3_gather_for_generation pad_to_multiple_of cache_implementation "
    "vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host vllm_server_port "
    "vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length "
    "vllm_tensor_parallel_size log_completions log_multimodal num_completions_to_print log_unique_prompts "
    "log_completions_hub_repo use_transformers_continuous_batching transformers_continuous_batching_config "
    "use_transformers_paged wandb_log_unique_prompts attn_implementation ignore_bias_buffers lora_task_type "
    "lora_modules_to_save lora_target_parameters use_rslora use_dora bnb_4bit_quant_type use_bnb_nested_quant "
    "bnb_4bit_quant_storage processing_class quantization_config streaming num_machines env"
)
MACHINE_KEYS = frozenset(_MACHINE.split())

KNOWN = frozenset({*DEFAULTS, *NULLABLE, *LACKING, *OF_LOSS, *MACHINE_KEYS})
