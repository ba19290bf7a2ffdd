"""Finished draws into graded groups: text up to the first EOS, score, overlong penalty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from dapo.algorithm import overlong_penalty
from dapo.config.schema import Config
from dapo.rng import Purpose, permutation
from dapo.types import Equal, Finish, FinishedDraw, Group, Prompt, Response, Rollout, Score

ScoreFunction = Callable[[Prompt, Sequence[str], Sequence[Sequence[int]]], list[Score]]
DecodeFunction = Callable[[Sequence[int]], str]


class GroupGrader:
    """Grades draws.

    Args:
        config: of the run.
        score: prompt, texts, token ids -> scores (`reward.Scorer.score`).
        decode: token ids -> text, special tokens left out.
        eos_ids: a response's text ends before the first of these.
        lost_workers: how many grading processes died unasked since it was last called.
        equal: a prompt -> how answers to it are compared; None where they can't be.
    """

    def __init__(
        self,
        config: Config,
        score: ScoreFunction,
        decode: DecodeFunction,
        eos_ids: Sequence[int],
        lost_workers: Callable[[], int] = lambda: 0,
        equal: Callable[[Prompt], Equal | None] = lambda prompt: None,
    ) -> None:
        self._config, self._score, self.decode = config, score, decode
        self.lost_workers, self.equal = lost_workers, equal
        self._eos = frozenset(eos_ids)

    def text(self, response: Response) -> str:
        """The response's text before its first EOS."""
        if response.text is not None:
            return response.text
        tokens = response.token_ids.tolist()
        end = next((i for i, token in enumerate(tokens) if token in self._eos), len(tokens))
        return self.decode(tokens[:end])

    def group(self, finished: FinishedDraw, prompt: Prompt) -> Group:
        """The graded group of a draw."""
        texts = [self.text(response) for response in finished.responses]
        scores = self._score(prompt, texts, [response.token_ids.tolist() for response in finished.responses])
        rollouts = tuple(
            Rollout(response=response, text=text, score=score, overlong=self.penalty(response))
            for response, text, score in zip(finished.responses, texts, scores, strict=True)
        )
        return Group(draw=finished.draw, prompt=prompt, rollouts=rollouts)

    def penalty(self, response: Response) -> float:
        """The overlong penalty of a response, by `reward.overlong`."""
        reward = self._config.reward
        if reward.overlong == "hard":
            return -reward.overlong_factor if response.finish is Finish.LENGTH else 0.0
        if reward.overlong in ("soft", "soft+filter"):
            penalty = overlong_penalty(
                torch.tensor(response.num_tokens),
                max_tokens=self._config.sampling.max_response_tokens,
                buffer_tokens=reward.overlong_buffer_tokens,
                factor=reward.overlong_factor,
            )
            return float(penalty)
        return 0.0


def permute_scores(groups: Sequence[Group], seed: int, first_draw: int) -> list[Group]:
    """A placebo: the same scores, dealt again among all responses of these groups.

    A function of the seed and the first draw index alone.
    """
    scores = [rollout.score for group in groups for rollout in group.rollouts]
    dealt = iter(permutation(seed, Purpose.PERMUTATION, len(scores), first_draw))
    return [
        replace(group, rollouts=tuple(replace(r, score=scores[int(next(dealt))]) for r in group.rollouts))
        for group in groups
    ]


def mean_or_nan(values: Sequence[float]) -> float:
    """The mean, NaN of nothing."""
    return float(np.mean(values)) if len(values) else float("nan")
