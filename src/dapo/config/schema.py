"""Every configuration model. Frozen, and an unknown key is an error.

Each field's description is the documentation that `dapo config --explain` prints.
Lengths are in tokens, sizes in prompts, responses or updates: the name says which.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from dapo.config.base import (
    Beta,
    Float,
    Int,
    NullableFloat,
    NullableInt,
    NullableStr,
    Section,
    Seed,
    no_bool,
    off_is_none,
)
from dapo.config.checks import ChecksConfig
from dapo.config.data import DataConfig, EvalConfig, SourceConfig
from dapo.config.reward import Overlong, RewardConfig, RewardFunctionConfig, SourceRewardConfig
from dapo.config.scale import ClusterConfig, FsdpConfig, PipelineConfig, VllmConfig

SCHEMA_VERSION = 1
TRACKERS = ("tensorboard", "wandb", "swanlab", "trackio")

__all__ = [
    "SCHEMA_VERSION",
    "TRACKERS",
    "AlgorithmConfig",
    "CheckpointConfig",
    "ChecksConfig",
    "ClusterConfig",
    "Config",
    "CovarianceConfig",
    "DataConfig",
    "EngineConfig",
    "EvalConfig",
    "FsdpConfig",
    "KLConfig",
    "LearnerConfig",
    "LogConfig",
    "ModelConfig",
    "Overlong",
    "RewardConfig",
    "RewardFunctionConfig",
    "SamplingConfig",
    "Section",
    "SourceConfig",
    "SourceRewardConfig",
    "TrainConfig",
]


class ModelConfig(Section):
    """The policy and how it is computed."""

    path: str
    """Hugging Face id, local directory, .gguf file, pkg:PACKAGE/FILE inside an installed package, or random:tiny."""
    revision: NullableStr = None
    """Branch, tag or commit of a Hugging Face id; "off" for the default branch."""
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """Extra arguments of the tokenizer's chat template, e.g. {enable_thinking = false}."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type of the engine, and of the learner's autocast (master weights are always
    float32). auto: bfloat16 where the device multiplies it natively, else float32."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda where there is one, else cpu (mps only when asked for)."""
    trust_remote_code: bool = False
    """Run Python that comes with the model. Off unless you turn it on."""


class SamplingConfig(Section):
    """Rollouts and dynamic sampling (section 3.2 of the paper)."""

    schedule: Literal["rounds", "streaming"] = "rounds"
    """rounds: draw gen_prompts, grade, keep informative groups, repeat (the paper's code). streaming: a
    moving window of gen_prompts draws; what lies past the cut is cancelled. Both cut in draw order."""
    prompts_per_step: Int = Field(default=512, ge=1)
    """N: groups that one rollout step trains on. Paper: 512."""
    responses_per_prompt: Int = Field(default=16, ge=1)
    """G: responses of one group. Paper: 16."""
    min_responses_per_prompt: NullableInt = None
    """Not the paper's: a reward-adaptive group size. A prompt that earlier draws (or data.rating_column) found
    right at rate p gets round(min + (G - min) (1 - p)) responses, one without a record gets G. "off": always G."""
    gen_prompts: NullableInt = None
    """Prompts drawn in one round, or in flight in the window; "off" means prompts_per_step. Code: 1536."""
    max_rounds: Int = Field(default=10, ge=1)
    """Rounds (streaming: this many times gen_prompts draws) before on_exhausted applies. Code: 10."""
    filter: Literal["correctness", "nonzero_std", "off"] = "correctness"
    """correctness: keep groups with 0 < right < G. nonzero_std: for graded rewards, keep groups
    whose unshaped rewards spread over 1e-6. off: keep all (no dynamic sampling)."""
    on_exhausted: Literal["stop", "train_short", "error"] = "stop"
    """At the bound: stop (save, exit 3), train_short (on what was kept, if anything), or error."""
    surplus: Literal["discard", "carry"] = "discard"
    """What becomes of draws past the cut. discard: they are cancelled or thrown away (the paper).
    carry: the first prompts_per_step * max_staleness of them are finished and open the next step."""
    max_staleness: Int = Field(default=0, ge=0)
    """Policy versions by which a carried group may be behind when it is trained on."""
    skip_solved_after: NullableInt = None
    """Curriculum: skip a prompt whose responses were all right in this many draws in a row; counted."""
    skip_solved_steps: Int = Field(default=10, ge=1)
    """For how many steps such a prompt is skipped."""
    temperature: Annotated[Float, Field(gt=0)] = 1.0
    """Training rollouts have no top-p or top-k: the loss must belong to the policy that sampled."""
    max_response_tokens: Int = Field(default=20480, ge=1)
    """Lmax: longest response, its EOS included. Paper: 20480."""
    stop: tuple[str, ...] = ()
    """Strings that end a response, beside the model's EOS tokens."""


class KLConfig(Section):
    """KL to a reference policy, the starting one unless it is reset. DAPO: none."""

    place: Literal["off", "loss", "reward"] = "off"
    """loss: coef * kl is added to each token's loss. reward: coef * its sum over the response's
    tokens is taken off the reward (advantage = "batch": over the tokens from each one on)."""
    coef: Annotated[Float, Field(ge=0)] = 0.0
    """Its weight."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Of x = log ref - log pi at the sampled token. k1: -x. k2: x^2 / 2. k3: exp(x) - x - 1. k1 is for the
    reward alone: as a loss its gradient is zero in the mean."""
    reset_every: NullableInt = None
    """ProRL: after every so many steps the reference becomes the present policy, and AdamW starts afresh."""


class CovarianceConfig(Section):
    """Which tokens objective = "clip_cov" and "kl_cov" pick (arXiv 2505.22617), by
    (log pi - its mean) (A - its mean) over the loss tokens of a mini-batch, at the step's start."""

    fraction: Annotated[Float, Field(gt=0, le=1)] = 2e-4
    """Share of the loss tokens that is picked; at least one token."""
    low: Annotated[Float, Field(gt=0)] = 1.0
    """clip_cov picks at random among tokens whose covariance lies over this ..."""
    high: Annotated[Float, Field(gt=0)] = 5.0
    """... and under this; kl_cov takes the largest, whatever they are."""
    kl_coef: Annotated[Float, Field(gt=0)] = 1.0
    """kl_cov: weight of the KL from the old policy on picked tokens."""


class AlgorithmConfig(Section):
    """The objective (Eq. 8 to 12)."""

    advantage: Literal["group", "mean", "leave_one_out", "batch_std", "batch"] = "group"
    """group: Eq. 9, (R - mean) / (std + eps) in each group. mean: R - mean (Dr.GRPO). leave_one_out: R - mean
    of the others (RLOO). batch_std: R - mean of the group, over the std of the step's rewards (Lite PPO).
    batch: R less its mean over its std, over all loss tokens of the step (REINFORCE++)."""
    std_correction: Annotated[Literal[0, 1], BeforeValidator(no_bool)] = 1
    """Divisor G - correction under the root of a group's standard deviation. The paper does not
    say; the code uses 1."""
    advantage_eps: Annotated[Float, Field(ge=0)] = 1e-6
    """Added to the standard deviation. Code: 1e-6."""
    clip_low: Annotated[Annotated[Float, Field(gt=0, lt=1)] | None, BeforeValidator(off_is_none)] = 0.2
    """The ratio is clipped below at 1 - clip_low; "off": no lower bound. Paper: 0.2."""
    clip_high: NullableFloat = 0.28
    """The ratio is clipped above at 1 + clip_high; "off": no upper bound. Paper: 0.28."""
    clip_dual: NullableFloat = None
    """Bound c > 1 of the loss at c * |A| where A < 0; "off" in the paper, 10 in its code."""
    reduction: Literal["minibatch", "group", "sequence", "microbatch", "constant"] = "minibatch"
    """The denominator. minibatch: all loss tokens of the mini-batch. group: Eq. 12, token mean in
    each group, then over groups. sequence: GRPO. microbatch: the paper's code. constant: rows
    times constant_tokens (Dr.GRPO)."""
    constant_tokens: NullableInt = None
    """L of reduction = "constant"."""
    old_logprobs: Literal["learner", "engine"] = "learner"
    """What the ratio divides by: the learner's own pass over the batch at the step's start, or
    the engine's log-probs from sampling (saves that pass; right where the measured gap is small)."""
    log_ratio_clamp: NullableFloat = None
    """Clamp log-ratios of valid tokens to +- this; clamped ones are counted."""
    kl: KLConfig = KLConfig()
    """KL penalty."""
    entropy_coef: Annotated[Float, Field(ge=0)] = 0.0
    """Weight of an entropy bonus: coef * entropy is taken off each token's loss. Paper and code: none."""
    importance_cap: NullableFloat = None
    """C of the truncated weight min(exp(old - engine), C) on each token's term; "off": no weight."""
    importance_level: Literal["token", "sequence"] = "token"
    """token: each token's own weight. sequence: min(exp(sum over the response of old - engine), C)."""
    objective: str = "dapo"
    """dapo (Eq. 10; GRPO and PPO with their clips); gspo: the ratio of whole responses; cispo: clipped ratios as
    weights of log pi; clip_cov, kl_cov: see covariance (kl_cov has no clip); or FILE.py:NAME / MODULE:NAME of a
    per-token loss over ObjectiveInputs."""
    covariance: CovarianceConfig = CovarianceConfig()
    """Of objective = "clip_cov" and "kl_cov"."""


class TrainConfig(Section):
    """The optimiser and the cut into mini-batches and micro-batches."""

    num_steps: Int = Field(default=100, ge=1)
    """Rollout steps."""
    updates_per_step: Int = Field(default=16, ge=1)
    """mu: optimiser updates on each rollout step's batch; divides prompts_per_step. Paper: 16."""
    learning_rate: Annotated[Float, Field(gt=0)] = 1e-6
    """AdamW's. Paper: 1e-6."""
    warmup_rollout_steps: Int = Field(default=20, ge=0)
    """Rollout step s of the first w trains at learning_rate * s / (w + 1), so never at 0. Paper: 20."""
    warmup_from_zero: bool = False
    """Step s of the first w trains at learning_rate * (s - 1) / w instead, the first at 0. Code: so."""
    weight_decay: Annotated[Float, Field(ge=0)] = 0.1
    """AdamW's. Code: 0.1."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's. Code: 0.9, 0.999."""
    adam_eps: Annotated[Float, Field(gt=0)] = 1e-8
    """AdamW's."""
    max_grad_norm: NullableFloat = 1.0
    """Clip the global gradient norm to this. Code: 1.0."""
    tokens_per_microbatch: Int = Field(default=16384, ge=1)
    """Budget of one forward and backward pass, padding included. Changes memory and speed, never
    the gradient (reduction = "microbatch" excepted)."""
    packing: Literal["shared_prompt", "padded"] = "shared_prompt"
    """shared_prompt: one row [prompt, response 1..G] per group, prompts computed once. padded: one
    row per response. Same gradient."""
    logits_chunk_tokens: Int = Field(default=512, ge=1)
    """Tokens whose vocabulary-wide logits exist at one time."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    max_nonfinite_updates: Int = Field(default=3, ge=1)
    """Updates with non-finite gradients are skipped and counted; this many in a row stop the run."""
    seed: Seed = 0
    """The one seed behind data order and sampling."""


class CheckpointConfig(Section):
    """What is kept of a run."""

    every: NullableInt = None
    """Save after every so many steps; "off": only at the end."""
    keep_last: Int = Field(default=2, ge=1)
    """Checkpoints kept; older ones go only after a newer one is complete."""
    keep_every: NullableInt = None
    """Also keep those of every so many steps."""
    keep_best: Int = Field(default=0, ge=0)
    """Also keep so many of the best, by best_metric on the set best_on."""
    best_on: NullableStr = None
    """The validation set that picks them: a name in eval.data. "off": the only set there. The figure of a
    picked checkpoint on it is too high; measure on the others."""
    best_metric: Literal["avg", "pass", "maj", "reward"] = "avg"
    """avg@k, pass@k, maj@k (k = eval.k) or the mean reward; avg means reward where nothing is right or wrong."""
    on_signal: Literal["step_start", "cut"] = "step_start"
    """SIGINT or SIGTERM while sampling: save the state of the step's start at once, or sample to the
    cut and save the batch. Among updates the rest of them is saved."""
    on_failure: Literal["stop", "go_on"] = "stop"
    """When a checkpoint can't be written (full disk): stop, or say so, count it and go on. The
    older checkpoints stay. The last one of a run always has to be written."""


class EngineConfig(Section):
    """The rollout engine."""

    kind: str = "torch"
    """torch (built in), vllm (needs pip install "dapo-rl[vllm]"), or a name registered under the entry point group
    dapo.engines."""
    slots: Int = Field(default=64, ge=8)
    """Responses decoded at one time, by each engine."""
    reruns: Int = Field(default=3, ge=0)
    """How often a draw that the engine aborts, or failed on, is run again before the run stops."""
    vllm: VllmConfig = VllmConfig()
    """Of kind = "vllm"."""


class LearnerConfig(Section):
    """The learner."""

    kind: str = "torch"
    """torch (built in), fsdp (one rank of a learner that torchrun started), or a name registered under the entry
    point group dapo.learners."""
    lora_rank: NullableInt = None
    """r of low-rank adapters (LoRA, arXiv 2106.09685): W + (lora_alpha / r) B A is trained in A and B alone.
    "off": all weights are trained. Needs pip install "dapo-rl[lora]"."""
    lora_alpha: Annotated[Float, Field(gt=0)] = 32.0
    """alpha: adapters count lora_alpha / lora_rank times."""
    lora_targets: Literal["all-linear", "attention"] = "all-linear"
    """all-linear: every linear layer of the body, but not the head (nor experts that are stored as one tensor).
    attention: those inside attention blocks."""
    fsdp: FsdpConfig = FsdpConfig()
    """Of a sharded learner."""


class LogConfig(Section):
    """What is written while training."""

    rollouts_every: NullableInt = 1
    """Write every response of every so many steps to rollouts/; "off": none."""
    token_rows: Int = Field(default=8, ge=0)
    """Of so many responses of each of those steps, write the log-prob, ratio and clip of every token to tokens/."""
    credit_every: NullableInt = 20
    """Every so many steps write to credit/ which responses the gradient of the step's last update comes from. A prompt
    is then run again for each kind of its responses, which takes as long as one to three updates. "off": never."""


class Config(Section):
    """A whole run."""

    name: str = "run"
    """The recipe's name; part of the run directory's name."""
    description: str = ""
    """One line about it."""
    schema_version: Annotated[Literal[1], BeforeValidator(no_bool)] = Field(default=1, alias="schema")
    """Version of this layout."""
    model: ModelConfig
    data: DataConfig
    sampling: SamplingConfig = SamplingConfig()
    reward: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    engine: EngineConfig = EngineConfig()
    learner: LearnerConfig = LearnerConfig()
    cluster: ClusterConfig = ClusterConfig()
    pipeline: PipelineConfig = PipelineConfig()
    log: LogConfig = LogConfig()
    checks: ChecksConfig = ChecksConfig()
    trackers: tuple[str, ...] = ()
    """Who gets each step's metrics beside metrics.jsonl: tensorboard (files in the run directory), wandb, swanlab,
    trackio (pip install "dapo-rl[NAME]"), or FILE.py:NAME or MODULE:NAME of a function f(step, metrics). One that
    fails, hangs or is missing is warned of and counted; training neither stops nor waits for it."""
    provenance: dict[str, str] = Field(default={})
    """Where values come from: key -> "paper: PLACE", "code: OWNER/REPO@COMMIT PLACE", "rebuttal: PLACE" or
    "chosen: WHY"."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)
