"""The learner that `learner.kind` names, in this process or on the ranks that torchrun started."""

from __future__ import annotations

import importlib.metadata
import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from dapo.config.keys import resolve
from dapo.config.load import from_run
from dapo.config.schema import Config
from dapo.errors import ConfigError
from dapo.learner.base import Learner
from dapo.learner.lora import LoraLearner, LoraSettings
from dapo.learner.settings import LearnerSettings
from dapo.learner.torch_learner import Objective, TorchLearner
from dapo.model.loading import load_model, pick_device, pick_dtype
from dapo.objectives import BUILT_IN, clip_bounds
from dapo.plugins import plugin
from dapo.reward.functions import load_function

if TYPE_CHECKING:
    from dapo.learner.fsdp import FsdpLearner

LEARNERS = ("torch", "fsdp")


def make_objective(config: Config, given: Mapping[str, Objective] = MappingProxyType({})) -> Objective:
    """The per-token loss that `algorithm.objective` names; given: handed over in code, by name."""
    algorithm = config.algorithm
    if algorithm.objective in BUILT_IN:
        if algorithm.objective in {point.name for point in importlib.metadata.entry_points(group="dapo.objectives")}:
            raise ConfigError(
                f'algorithm.objective = "{algorithm.objective}": an installed package registers an objective of this '
                "built-in name (dapo.objectives); which one is meant can't be told: rename it there, or uninstall it"
            )
        return partial(BUILT_IN[algorithm.objective], algorithm)
    if ":" not in algorithm.objective:
        return plugin("dapo.objectives", algorithm.objective, "algorithm.objective", tuple(BUILT_IN))  # type: ignore[no-any-return]
    return load_function(algorithm.objective, "algorithm.objective", given)


@dataclass(frozen=True, slots=True)
class LearnerParts:
    """What a learner is made of beside its models."""

    settings: LearnerSettings
    objective: Objective
    lora: LoraSettings | None


def learner_parts(config: Config, given: Mapping[str, Objective] = MappingProxyType({})) -> LearnerParts:
    """Of a configuration. Raises ConfigError."""
    algorithm, train = config.algorithm, config.train
    bounds = clip_bounds(algorithm)
    settings = LearnerSettings(
        temperature=config.sampling.temperature,
        tokens_per_microbatch=train.tokens_per_microbatch,
        packing=train.packing,
        logits_chunk_tokens=train.logits_chunk_tokens,
        gradient_checkpointing=train.gradient_checkpointing,
        weight_decay=train.weight_decay,
        betas=train.betas,
        adam_eps=train.adam_eps,
        max_grad_norm=train.max_grad_norm,
        ratio_level=bounds.pop("level"),
        **bounds,
        importance_cap=algorithm.importance_cap,
        importance_level=algorithm.importance_level,
        kl_coef=algorithm.kl.coef if algorithm.kl.place == "loss" else 0.0,
        kl_estimator=algorithm.kl.estimator,
        entropy_coef=algorithm.entropy_coef,
    )
    return LearnerParts(settings, make_objective(config, given), LoraSettings.of(config))


def make_learner(
    config: Config,
    model: Any,
    reference: Any | None,
    dtype: Any,
    given: Mapping[str, Objective] = MappingProxyType({}),
) -> Learner:
    """The learner that `learner.kind` names. Raises ConfigError, and LearnerLost where another rank could not begin."""
    if config.learner.kind not in LEARNERS:
        factory = plugin("dapo.learners", config.learner.kind, "learner.kind", LEARNERS)
        return factory(config, model, reference)  # type: ignore[no-any-return]
    if config.learner.kind == "fsdp":
        return _led(config, model, reference, dtype)
    parts = learner_parts(config, given)
    if parts.lora is not None:
        return LoraLearner(model, parts.settings, parts.objective, lora=parts.lora, dtype=dtype, reference=reference)
    return TorchLearner(model, parts.settings, parts.objective, dtype=dtype, reference=reference)


def learner_device(config: Config) -> torch.device:
    """Where the learner's models are loaded to: what will be sharded stays on the host until it is."""
    return torch.device("cpu") if config.learner.kind == "fsdp" else pick_device(config.model)


def load_reference(config: Config) -> Any | None:
    """The starting policy, where a KL penalty needs one. Raises ModelError."""
    if config.algorithm.kl.place == "off":
        return None
    return load_model(config.model, torch.float32, learner_device(config))


def alone(config: Config) -> Config:
    """The configuration with a learner in one process, which computes the same to rounding."""
    if config.learner.kind != "fsdp":
        return config
    return config.model_copy(update={"learner": config.learner.model_copy(update={"kind": "torch"})})


# --- several ranks --------------------------------------------------------------------------------


def sharded_learner(config: Config, model: Any, reference: Any | None, dtype: Any) -> FsdpLearner:
    """This rank's learner; made by all ranks together, once there is a process group.

    model, reference: in float32, as loaded to `learner_device`; the same on every rank.
    """
    from dapo.learner.fsdp import FsdpLearner
    from dapo.learner.sharded_model import FsdpSettings

    parts = learner_parts(config)
    return FsdpLearner(
        model,
        parts.settings,
        parts.objective,
        dtype=dtype,
        reference=reference,
        sharding=FsdpSettings.of(config.learner.fsdp),
        lora=parts.lora,
        device=pick_device(config.model),
    )


def call_ranks(config: Config) -> None:
    """With learner.kind = "fsdp": meets the other ranks and tells them the configuration, so that they load too.

    Raises ConfigError where torchrun started none, or started some that nothing is there to do for.
    """
    from dapo.learner import line

    if config.learner.kind == "fsdp":
        try:
            line.join().send({"config": resolve(config)})
        except RuntimeError as error:
            raise line.lost(error) from error
    elif (line.started_as() or 0) == 0 and line.ranks_started() > 1 and config.cluster.kind == "local":
        raise ConfigError(
            f'torchrun started {line.ranks_started()} processes, but learner.kind = "{config.learner.kind}" is one; '
            'set learner.kind = "fsdp", or start it without torchrun'
        )


def _led(config: Config, model: Any, reference: Any | None, dtype: Any) -> Learner:
    from dapo.learner import line
    from dapo.learner.leader import Leader

    joined = line.join()
    try:
        return Leader(sharded_learner(config, model, reference, dtype), joined)
    except RuntimeError as error:
        if not line.is_of_the_line(error):
            raise
        raise line.lost(error) from error


def follows() -> bool:
    """Whether torchrun started this process as another rank than the first."""
    from dapo.learner import line

    return bool(line.started_as())


def follow() -> None:
    """The whole life of a rank that is not the first: it is told the configuration, loads, and does as rank 0 does.

    It prints nothing and writes only its part of checkpoints. Once rank 0 is there, Ctrl-C is rank 0's to understand:
    it ends this one too, after a last checkpoint that needs all ranks. Raises LearnerLost when rank 0 has gone.
    """
    from dapo.learner import leader, line

    logging.getLogger("dapo").setLevel(logging.ERROR)
    _on_signals(signal.SIG_DFL)  # rank 0 may never come
    joined = line.join()
    try:
        header, _ = joined.receive()
        _on_signals(signal.SIG_IGN)
        if header.get("call") == "stop":
            joined.hang_up()
            return
        config = from_run(header["config"])
        dtype = pick_dtype(config.model, pick_device(config.model))
        model = load_model(config.model, torch.float32, learner_device(config))
        learner = sharded_learner(config, model, load_reference(config), dtype)
    except RuntimeError as error:
        if not line.is_of_the_line(error):
            raise
        raise line.lost(error) from error
    leader.follow(learner, joined)


def _on_signals(action: signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, action)
