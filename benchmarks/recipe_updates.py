"""What a recipe makes of the same rollouts: its loss and its gradient, beside another recipe's.

    python benchmarks/recipe_updates.py                 every recipe beside dapo-paper, as a Markdown table
    python benchmarks/recipe_updates.py A B             two of them

The rollouts are made up, from a fixed seed: 12 groups of 6 responses of 1 to 16 tokens to the random model of
`random:tiny`; groups of right and wrong, of all right and of all wrong, some responses cut at 16 tokens. The old
policy is the model moved by noise, so that ratios lie on both sides of every clip; the engine's is moved once more.
Lengths are scaled to 16 tokens (overlong buffer 4, L of reduction "constant" 16), a micro-batch holds 48 tokens and a
step is one update. What is left of a recipe is its objective, advantage, reduction, filter, shaping and KL.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dapo.advantages import reward_moments
from dapo.batch import make_batch, minibatches, with_advantages
from dapo.build import make_learner
from dapo.config import load_config, recipe_names, resolve
from dapo.config.load import from_tree
from dapo.config.schema import Config
from dapo.grading import GroupGrader
from dapo.learner.torch_learner import TorchLearner
from dapo.model.loading import load_model
from dapo.sampling import keep_mask
from dapo.types import Batch, Finish, Group, Prompt, Response, Rollout, Score, Verdict

EOS, TOKENS, LIMIT, SIZE = 2, range(4, 52), 16, 6


@dataclass(frozen=True)
class Update:
    """One update: its loss, its gradient by weight, the loss tokens."""

    loss: float
    gradient: dict[str, Tensor]
    tokens: int

    @property
    def norm(self) -> float:
        return float(torch.stack([value.norm() for value in self.gradient.values()]).norm())

    def distance(self, other: Update) -> float:
        """|g - g'| / |g|, Euclidean over all weights."""
        gaps = [(value - other.gradient[name]).norm() for name, value in self.gradient.items()]
        return float(torch.stack(gaps).norm()) / self.norm

    def cosine(self, other: Update) -> float:
        """Of the angle between the two gradients: the size of the step aside."""
        dots = [(value * other.gradient[name]).sum() for name, value in self.gradient.items()]
        return float(torch.stack(dots).sum()) / (self.norm * other.norm)


def scaled(config: Config, microbatch_tokens: int = 48) -> Config:
    """A recipe with the lengths and sizes of the rollouts."""
    tree = resolve(config)
    tree["model"] |= {"path": "random:tiny", "revision": "off", "dtype": "float32", "device": "cpu"}
    tree["sampling"] |= {"max_response_tokens": LIMIT, "responses_per_prompt": SIZE, "prompts_per_step": 12}
    tree["sampling"] |= {"gen_prompts": None, "min_responses_per_prompt": None, "temperature": 1.0}
    tree["reward"]["overlong_buffer_tokens"] = 4
    tree["train"] |= {"updates_per_step": 1, "tokens_per_microbatch": microbatch_tokens}
    tree["learner"] = {"kind": "torch"}
    if (tree["algorithm"]["constant_tokens"] or 0) > 1:
        tree["algorithm"]["constant_tokens"] = LIMIT
    return from_tree(tree)


def rollouts(seed: int = 0) -> list[Group]:
    """The groups, with rewards +1 and -1 and no shaping yet."""
    g = random.Random(seed)
    groups = []
    for draw in range(12):
        right = {10: SIZE, 11: 0}.get(draw, 1 + draw % (SIZE - 1))
        prompt = Prompt(
            id=f"p{draw}",
            messages=None,
            text="",
            answer="7",
            source="made up",
            token_ids=np.array([g.choice(TOKENS) for _ in range(3 + draw % 4)], dtype=np.int32),
        )
        members = []
        for index in range(SIZE):
            length = g.choice((2, 4, 7, 11, 14, LIMIT))
            cut = length == LIMIT and g.random() < 0.5
            ids = [g.choice(TOKENS) for _ in range(length)]
            if not cut:
                ids[-1] = EOS
            members.append(_rollout(ids, cut, correct=index < right))
        groups.append(Group(draw=draw, prompt=prompt, rollouts=tuple(members)))
    return groups


def _rollout(ids: list[int], cut: bool, correct: bool) -> Rollout:
    response = Response(
        token_ids=np.array(ids, dtype=np.int32),
        generated=np.ones(len(ids), dtype=bool),
        engine_logprobs=np.zeros(len(ids), dtype=np.float32),
        finish=Finish.LENGTH if cut else Finish.STOP,
        token_versions=((0, len(ids)),),
    )
    verdict = Verdict.CORRECT if correct else Verdict.WRONG
    return Rollout(
        response=response, text="", score=Score(verdict=verdict, correct=correct, reward=1.0 if correct else -1.0)
    )


def shaped(groups: Sequence[Group], config: Config) -> list[Group]:
    """The groups that a recipe keeps, with its overlong penalties."""
    grader = GroupGrader(config, lambda *_: [], lambda _: "", [EOS])
    kept = [group for group, keep in zip(groups, keep_mask(groups, config.sampling.filter), strict=True) if keep]
    return [
        replace(g, rollouts=tuple(replace(r, overlong=grader.penalty(r.response)) for r in g.rollouts)) for g in kept
    ]


def noisy(batch: Batch, of: Sequence[Group], logprobs: Tensor) -> Batch:
    """Old and engine log-probs: the policy's, moved by a noise that is a function of draw, response and token."""
    old, engine = torch.zeros_like(logprobs), torch.zeros_like(logprobs)
    rows = [(group, index) for group in of for index in range(len(group.rollouts))]
    for row, (group, index) in enumerate(rows):
        begin, end = int(batch.prompt_lengths[row]), int(batch.lengths[row])
        noise = np.random.default_rng([group.draw, index]).uniform(-1, 1, size=(2, LIMIT))[:, : end - begin]
        old[row, begin:end] = logprobs[row, begin:end] + 0.35 * torch.from_numpy(noise[0]).float()
        old[row, end - 1] -= 2.6 * (index == 3)  # a ratio over 10, for the dual clip
        engine[row, begin:end] = old[row, begin:end] + 0.2 * torch.from_numpy(noise[1]).float()
    return replace(batch, old_logprobs=old, engine_logprobs=engine)


def prepared(config: Config, groups: Sequence[Group]) -> tuple[TorchLearner, Batch]:
    """A learner, and the one mini-batch that a (scaled) recipe makes of these groups."""
    model = load_model(config.model, torch.float32, torch.device("cpu"))
    needs = config.algorithm.kl.place != "off"
    reference = load_model(config.model, torch.float32, torch.device("cpu")) if needs else None
    learner = make_learner(config, model, reference, torch.float32)
    assert isinstance(learner, TorchLearner)
    kept = shaped(groups, config)
    batch = make_batch(kept, [EOS], config)
    batch = noisy(batch, kept, learner.logprobs(batch))
    if needs:  # the starting policy is where the noise came from, moved the other way
        assert batch.old_logprobs is not None
        policy = learner.logprobs(batch)
        batch = replace(batch, ref_logprobs=2 * policy - batch.old_logprobs)
    (minibatch,) = minibatches(with_advantages(batch, kept, config, reward_moments(kept)), config, learner.cut)
    return learner, minibatch


def update(config: Config, groups: Sequence[Group]) -> Update:
    """The update that a (scaled) recipe makes of these groups, at a learning rate of 0."""
    learner, minibatch = prepared(config, groups)
    found: dict[str, Tensor] = {}
    for name, parameter in learner.model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: found.__setitem__(name, p.grad.detach().double().clone())
        )
    loss = learner.update(minibatch, 0.0)["loss/policy"]
    return Update(loss, dict(found), int(minibatch.loss_mask.sum()))


def table(names: Sequence[str], beside: str = "dapo-paper") -> str:
    """Markdown: loss and gradient of each recipe beside those of one."""
    groups = rollouts()
    base = update(scaled(load_config(beside)), groups)
    lines = [
        f"| recipe | loss | loss less that of {beside} | gradient: size | gradient: difference | gradient: cosine |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in names:
        one = update(scaled(load_config(name)), groups)
        numbers = (one.loss, one.loss - base.loss, one.norm / base.norm, base.distance(one), base.cosine(one))
        lines.append(f"| {name} | " + " | ".join(f"{number:.4f}" for number in numbers) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    given = sys.argv[1:]
    print(
        table(given[1:] if len(given) == 2 else given or recipe_names(), given[0] if len(given) == 2 else "dapo-paper")
    )
