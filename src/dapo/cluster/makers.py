"""What actors run to build their part of a run: from its configuration, on their own machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dapo.cluster.rank import Made, Place
from dapo.config.schema import Config
from dapo.learner.base import Learner
from dapo.learners import learner_device, load_reference, make_learner, sharded_learner
from dapo.model.loading import check_architecture, eos_ids, load_model, load_tokenizer, pick_device, pick_dtype
from dapo.rollout.base import RolloutEngine
from dapo.run.manifest import Starting


@dataclass(frozen=True, slots=True)
class Factories:
    """What the composition root hands in, since it alone knows backends. Functions go to actors by their names.

    policy: (tokenizer, EOS ids) -> what engines are given of them.
    engine: (config, model, policy) -> an engine.
    max_tokens: the longest prompt + response.
    """

    policy: Callable[[Any, tuple[int, ...]], Any]
    engine: Callable[[Config, Any, Any], RolloutEngine]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What the first rank tells of the model that it starts from, and of where it computes.

    note: what a person should read of the learner, or "".
    """

    starting: Starting
    eos_ids: tuple[int, ...]
    device: str
    dtype: str
    note: str = ""


def make_engine(config: Config, factories: Factories) -> RolloutEngine:
    """The engine that `engine.kind` names, with a model of its own."""
    device = pick_device(config.model)
    tokenizer = load_tokenizer(config.model)
    model: Any = load_model(config.model, pick_dtype(config.model, device), device)
    check_architecture(model, factories.max_tokens)
    return factories.engine(config, model, factories.policy(tokenizer, eos_ids(model, tokenizer)))


def make_rank(config: Config, factories: Factories, place: Place) -> Made:
    """A rank's learner; of several ranks one that is sharded, whose models stay on the host until they are."""
    import torch

    several = place.size > 1
    if several:
        config = config.model_copy(update={"learner": config.learner.model_copy(update={"kind": "fsdp"})})
    device = pick_device(config.model)
    dtype = pick_dtype(config.model, device)
    model: Any = load_model(config.model, torch.float32, learner_device(config))
    check_architecture(model, factories.max_tokens)
    if place.rank == 0:  # before the learner takes the model
        starting, ends = Starting.of(model), eos_ids(model, load_tokenizer(config.model))
    make = sharded_learner if several else make_learner
    learner: Learner = make(config, model, load_reference(config), dtype)
    if place.rank:
        return Made(learner, None)
    note = str(getattr(learner, "summary", None) or "")
    return Made(learner, Facts(starting, ends, device.type, str(dtype).removeprefix("torch."), note))
