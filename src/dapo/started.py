"""The parts of a run that hold models, started: in this process by `build`, or on a cluster here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dapo.cluster.makers import Factories
from dapo.config.schema import Config
from dapo.grading import GroupGrader
from dapo.learner.base import Learner
from dapo.reward import Scorers
from dapo.reward.pool import lost_workers
from dapo.rollout.base import RolloutEngine
from dapo.run.manifest import Starting
from dapo.run.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The parts of a run that hold models, wherever they run. `close` ends those that run elsewhere.

    starting: digests of the model before its first update. computes: device and type of the learner's forward pass.
    """

    policy: Any
    engine: RolloutEngine
    learner: Learner
    grader: GroupGrader
    starting: Starting
    computes: tuple[torch.device, torch.dtype]
    close: Callable[[], None] = lambda: None


def start_on_cluster(config: Config, factories: Factories, tokenizer: Any, scorers: Scorers, view: View) -> Started:
    """Engines, learner ranks and graders as actors of a Ray cluster. See `cluster.launch.launch`."""
    from dapo.cluster.launch import launch

    cluster = launch(config, factories, judged=scorers.has_correctness, say=view.say)
    facts = cluster.facts
    policy = factories.policy(tokenizer, facts.eos_ids)
    scores = cluster.scores
    score, lost = (scorers.score, lost_workers) if scores is None else (scores, scores.lost_workers)
    grader = GroupGrader(config, score, policy.decode, policy.eos_ids, lost, scorers.equal)
    return Started(
        policy=policy,
        engine=cluster.engine(grader),
        learner=cluster.learner,
        grader=grader,
        starting=facts.starting,
        computes=(torch.device(facts.device), getattr(torch, facts.dtype)),
        close=cluster.close,
    )
