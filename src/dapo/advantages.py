"""From the shaped rewards of a step's groups to the advantages of its rows.

Order: shaped reward, running normalisation, clip (these two are not the paper's), KL in the reward,
then the estimator that `algorithm.advantage` names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from dapo.algorithm import group_advantages, kl_estimate
from dapo.config.schema import Config
from dapo.neighbours import (
    batch_advantages,
    batch_std_advantages,
    leave_one_out_advantages,
    mean_advantages,
    rewards_to_go,
)
from dapo.types import Batch, Group

# Of TrainState.totals: the running moments of the shaped rewards that were trained on.
COUNT, SUM, SQUARES = "total/rewards", "total/reward_sum", "total/reward_square_sum"


def step_advantages(batch: Batch, groups: Sequence[Group], config: Config, totals: Mapping[str, float]) -> Tensor:
    """Advantages of a step's rows, which stand group by group.

    Args:
        batch: of `make_batch`; brings old_logprobs and ref_logprobs where the KL is in the reward.
        groups: its groups.
        config: of the run.
        totals: of TrainState, this step's rewards included; read for reward.normalisation alone.

    Returns:
        f32 [B]; [B, T] for algorithm.advantage = "batch", where the KL in the reward is that of
        the tokens still to come (elsewhere it is the response's sum).
    """
    algorithm, mask = config.algorithm, batch.loss_mask
    shaped = [rollout.shaped_reward for group in groups for rollout in group.rollouts]
    rewards = torch.tensor(shaped, dtype=torch.float64)  # float32 would turn noise on large rewards into a spread
    costs = None
    if algorithm.kl.place == "reward":
        assert batch.old_logprobs is not None
        assert batch.ref_logprobs is not None
        own = _own_tokens(batch, groups)
        costs = algorithm.kl.coef * kl_estimate(
            batch.old_logprobs.double(), batch.ref_logprobs.double(), own, algorithm.kl.estimator
        )
    correction, eps = algorithm.std_correction, algorithm.advantage_eps
    rewards = scaled(rewards, config, totals)
    if algorithm.advantage == "batch":
        returns = rewards_to_go(rewards, torch.zeros(mask.shape) if costs is None else costs, mask)
        return batch_advantages(returns, mask, std_correction=correction, eps=eps)
    rewards = rewards if costs is None else rewards - costs.sum(dim=1)
    if algorithm.advantage == "batch_std":
        return batch_std_advantages(rewards, batch.draw, std_correction=correction, eps=eps)
    if algorithm.advantage == "mean":
        return _by_group(mean_advantages, rewards, groups)
    if algorithm.advantage == "leave_one_out":
        return _by_group(leave_one_out_advantages, rewards, groups)
    return _by_group(partial(group_advantages, std_correction=correction, eps=eps), rewards, groups)


def _own_tokens(batch: Batch, groups: Sequence[Group]) -> Tensor:
    """bool [B, T]: the loss mask, and under overlong filtering the generated tokens of responses it took out.

    Those stay in their group's statistics, and so they pay their KL like the others.
    """
    own = batch.loss_mask.clone()
    for row, rollout in enumerate(rollout for group in groups for rollout in group.rollouts):
        if not own[row].any():
            begin, end = int(batch.prompt_lengths[row]), int(batch.lengths[row])
            own[row, begin:end] = torch.from_numpy(rollout.response.generated)
    return own


def _by_group(estimator: Callable[[Tensor], Tensor], rewards_B: Tensor, groups: Sequence[Group]) -> Tensor:
    """An estimator over [P, G], applied to the groups of each size (they are of one size but for adaptive ones)."""
    parts = torch.split(rewards_B, [len(group.rollouts) for group in groups])
    advantages: dict[int, Tensor] = {}
    for size in {len(part) for part in parts}:
        places = [place for place, part in enumerate(parts) if len(part) == size]
        rows = estimator(torch.stack([parts[place] for place in places]))
        advantages |= dict(zip(places, rows, strict=True))
    return torch.cat([advantages[place] for place in range(len(parts))])


# --- what one description of DAPO has, and the paper has not ----------------------------------------


def reward_moments(groups: Sequence[Group]) -> dict[str, float]:
    """Number, sum and sum of squares of the groups' shaped rewards."""
    rewards = [rollout.shaped_reward for group in groups for rollout in group.rollouts]
    return {COUNT: float(len(rewards)), SUM: math.fsum(rewards), SQUARES: math.fsum(r * r for r in rewards)}


def scaled(rewards_B: Tensor, config: Config, totals: Mapping[str, float]) -> Tensor:
    """reward.normalisation, then reward.clip: ((R - m) / s) within +- c, m and s over all rewards trained on so far.

    s is the population standard deviation; where all rewards so far are one value, only m is taken off.
    """
    reward = config.reward
    if reward.normalisation == "running":
        mean = totals[SUM] / totals[COUNT]
        std = math.sqrt(max(totals[SQUARES] / totals[COUNT] - mean * mean, 0.0))
        rewards_B = (rewards_B - mean) / (std if std > 1e-6 else 1.0)
    return rewards_B if reward.clip is None else rewards_B.clamp(-reward.clip, reward.clip)
