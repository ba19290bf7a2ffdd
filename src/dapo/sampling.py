"""Dynamic sampling (section 3.2): fill a batch with informative groups, and account for the rest.

Schedule `rounds`: draw gen_prompts, generate all, grade, keep informative groups, repeat until
prompts_per_step stand, at most max_rounds; whole rounds are consumed. The batch is cut in DRAW
order, never in finishing order: short answers finish first, and taking the first to finish
would train on them more. Groups past the cut are surplus; they are counted and discarded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dapo.algorithm import informative, spread
from dapo.config.schema import Config
from dapo.errors import ConfigError, EngineError, RewardError, SamplingExhausted
from dapo.grading import GroupGrader, mean_or_nan, permute_scores, rerun
from dapo.rollout.base import RolloutEngine
from dapo.types import Finish, Group, Prompt, SamplingParams, Verdict

PromptSource = Callable[[int], Prompt | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The outcome of one filling.

    kept: the groups to train on, in draw order. groups: every graded group, in draw order.
    next_draw: where the next step starts. cut: M, draws up to the last kept one. short: why
    fewer than prompts_per_step were kept, or an empty string.
    """

    kept: tuple[Group, ...]
    groups: tuple[Group, ...]
    next_draw: int
    cut: int
    rounds: int
    rollout_seconds: float
    grade_seconds: float
    short: str = ""


def keep_mask(groups: Sequence[Group], rule: str) -> list[bool]:
    """Which groups carry a signal, by `sampling.filter`. Looks at raw correctness or unshaped rewards."""
    if rule == "off" or not groups:
        return [True] * len(groups)
    if rule == "nonzero_std":
        rewards = torch.tensor([[r.score.reward for r in group.rollouts] for group in groups], dtype=torch.float64)
        return spread(rewards).tolist()
    correct = torch.tensor([[r.score.correct is True for r in group.rollouts] for group in groups])
    return informative(correct).tolist()


class Collector:
    """Fills batches from an engine.

    Args:
        config: of the run.
        engine: samples draws.
        grader: grades them.
        prompt: the prompt of a draw index; None past the end of the data.
    """

    def __init__(self, config: Config, engine: RolloutEngine, grader: GroupGrader, prompt: PromptSource) -> None:
        self._config, self._engine, self._grader, self._prompt = config, engine, grader, prompt
        sampling = config.sampling
        self._params = SamplingParams(
            temperature=sampling.temperature,
            max_new_tokens=sampling.max_response_tokens,
            n=sampling.responses_per_prompt,
            seed=config.train.seed,
            stop=sampling.stop,
        )

    def collect(self, first_draw: int) -> Collected:
        """Groups for one step, from draw `first_draw` on.

        Raises:
            SamplingExhausted, ConfigError: the batch could not be filled, as `sampling.on_exhausted` says.
            RewardError: more scores of a round failed than `reward.max_error_fraction`.
        """
        sampling = self._config.sampling
        wanted, size = sampling.prompts_per_step, sampling.gen_prompts or sampling.prompts_per_step
        limit = sampling.max_rounds
        groups: list[Group] = []
        rollout_seconds = grade_seconds = 0.0
        rounds, ended = 0, False
        while sum(keep_mask(groups, sampling.filter)) < wanted and rounds < limit and not ended:
            prompts = [self._prompt(first_draw + len(groups) + i) for i in range(size)]
            present = [prompt for prompt in prompts if prompt is not None]
            ended = len(present) < size
            new, rollout_s, grade_s = self._round(first_draw + len(groups), present)
            groups += new
            rollout_seconds, grade_seconds = rollout_seconds + rollout_s, grade_seconds + grade_s
            rounds += 1
        mask = keep_mask(groups, sampling.filter)
        places = [place for place, keep in enumerate(mask) if keep][:wanted]
        short = "" if len(places) == wanted else self._exhausted(groups, len(places), rounds, ended)
        return Collected(
            kept=tuple(groups[place] for place in places),
            groups=tuple(groups),
            next_draw=first_draw + len(groups),
            cut=places[-1] + 1 if places else len(groups),
            rounds=rounds,
            rollout_seconds=rollout_seconds,
            grade_seconds=grade_seconds,
            short=short,
        )

    def _round(self, first: int, prompts: Sequence[Prompt]) -> tuple[list[Group], float, float]:
        """Generates and grades the draws first, first + 1, ...; in draw order."""
        start = time.perf_counter()
        for offset, prompt in enumerate(prompts):
            self._engine.submit(first + offset, prompt, self._params)
        waiting = set(range(first, first + len(prompts)))
        reruns: Counter[int] = Counter()
        graded: dict[int, Group] = {}
        grade_seconds = 0.0
        while waiting:
            for finished in self._engine.poll():
                if finished.draw not in waiting:
                    raise EngineError(f"the engine finished draw {finished.draw}, which was not asked for")
                prompt = prompts[finished.draw - first]
                if any(response.finish is Finish.ABORT for response in finished.responses):
                    # Failure goes with length: an aborted draw is run again whole, never skipped.
                    rerun(self._engine, finished.draw, prompt, self._params, reruns)
                    continue
                waiting.discard(finished.draw)
                grading = time.perf_counter()
                graded[finished.draw] = self._grader.group(finished, prompt)
                grade_seconds += time.perf_counter() - grading
        groups = [graded[first + offset] for offset in range(len(prompts))]
        self._check_errors(groups)
        if self._config.reward.placebo:
            groups = permute_scores(groups, self._config.train.seed, first)
        return groups, time.perf_counter() - start - grade_seconds, grade_seconds

    def _check_errors(self, groups: Sequence[Group]) -> None:
        verdicts = [r.score.verdict for group in groups for r in group.rollouts]
        errors = sum(verdict is Verdict.ERROR for verdict in verdicts)
        limit = self._config.reward.max_error_fraction
        if errors > limit * len(verdicts):
            raise RewardError(
                f"{errors} of {len(verdicts)} scores of a round failed, over reward.max_error_fraction = {limit:g}; "
                "mend the reward function (log.txt holds its messages)"
            )

    def _exhausted(self, groups: Sequence[Group], kept: int, rounds: int, ended: bool) -> str:
        """Applies `on_exhausted`: the reason to train short, or an error."""
        sampling = self._config.sampling
        size = sampling.responses_per_prompt
        right = sum(group.num_correct == size for group in groups)
        wrong = sum(group.num_correct == 0 for group in groups)
        why = "the data ended" if ended else f"{rounds} rounds are the limit (sampling.max_rounds)"
        reason = (
            f"dynamic sampling kept {kept} of {sampling.prompts_per_step} groups out of {len(groups)} draws "
            f"({right} all right, {wrong} all wrong): {why}"
        )
        if sampling.on_exhausted == "train_short" and kept:
            return reason
        if sampling.on_exhausted == "error":
            raise ConfigError(reason + '; raise max_rounds, change the data, or set on_exhausted = "stop"')
        raise SamplingExhausted(reason)


def ledger(collected: Collected, config: Config) -> dict[str, float]:
    """The account of one filling, before (`sampled/`) and after (`kept/`) the filter, never mixed.

    Draws, verdicts and acceptance are over draws up to the cut M; acceptance is (N-1)/(M-1),
    because N/M is biased by stopping at a success. Tokens and seconds are over everything
    generated.
    """
    size = config.sampling.responses_per_prompt
    groups, kept = collected.groups[: collected.cut], collected.kept
    kept_draws = {group.draw for group in kept}
    dropped = [group for group in groups if group.draw not in kept_draws]
    rollouts = [r for group in groups for r in group.rollouts]
    tokens = sum(r.response.num_tokens for group in collected.groups for r in group.rollouts)
    kept_tokens = sum(r.response.num_tokens for group in kept for r in group.rollouts)
    draws, accepted = len(groups), len(kept)
    verdicts = [r.score.verdict for r in rollouts]
    metrics = {
        "sampling/draws": float(draws),
        "sampling/kept": float(accepted),
        "sampling/surplus_draws": float(len(collected.groups) - draws),
        "sampling/rounds": float(collected.rounds),
        "sampling/acceptance": (accepted - 1) / (draws - 1) if draws > 1 else float("nan"),
        "sampling/all_right_fraction": mean_or_nan([group.num_correct == size for group in groups]),
        "sampling/all_wrong_fraction": mean_or_nan([group.num_correct == 0 for group in groups]),
        "sampling/short": float(bool(collected.short)),
        "tokens/generated": float(tokens),
        "tokens/kept": float(kept_tokens),
        "tokens/wasted": float(tokens - kept_tokens),
        "tokens/per_s": tokens / max(collected.rollout_seconds, 1e-9),
        "response/kept_length_mean_tokens": _mean_length(kept),
        "response/dropped_length_mean_tokens": _mean_length(dropped),
        "time/rollout_s": collected.rollout_seconds,
        "time/grade_s": collected.grade_seconds,
    }
    for verdict in (Verdict.UNPARSED, Verdict.TIMEOUT, Verdict.ERROR):
        metrics[f"sampled/{verdict.value}_fraction"] = mean_or_nan([v is verdict for v in verdicts])
    metrics |= _described("sampled", groups) | _described("kept", kept)
    return metrics | _lengths(groups, config)


def _described(area: str, groups: Sequence[Group]) -> dict[str, float]:
    rollouts = [r for group in groups for r in group.rollouts]
    metrics = {
        f"{area}/reward_mean": mean_or_nan([r.score.reward for r in rollouts]),
        f"{area}/shaped_reward_mean": mean_or_nan([r.shaped_reward for r in rollouts]),
    }
    if any(r.score.correct is not None for r in rollouts):
        metrics[f"{area}/accuracy"] = mean_or_nan([r.score.correct is True for r in rollouts])
    for part in sorted({name for r in rollouts for name in r.score.parts}):
        metrics[f"{area}/reward_{part}_mean"] = mean_or_nan([r.score.parts.get(part, 0.0) for r in rollouts])
    return metrics


def _lengths(groups: Sequence[Group], config: Config) -> dict[str, float]:
    rollouts = [r for group in groups for r in group.rollouts]
    limit = config.sampling.max_response_tokens - config.reward.overlong_buffer_tokens
    lengths = [r.response.num_tokens for r in rollouts]
    return {
        "response/length_mean_tokens": mean_or_nan(lengths),
        "response/length_max_tokens": float(max(lengths, default=0)),
        "response/truncated_fraction": mean_or_nan([r.response.finish is Finish.LENGTH for r in rollouts]),
        "response/in_buffer_fraction": mean_or_nan([length > limit for length in lengths]),
        "response/overlong_penalty_mean": mean_or_nan([r.overlong for r in rollouts]),
    }


def _mean_length(groups: Sequence[Group]) -> float:
    return mean_or_nan([r.response.num_tokens for group in groups for r in group.rollouts])
