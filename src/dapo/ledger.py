"""The account of one filling: what was drawn, kept, wasted and carried, in draws, tokens and seconds.

Before the filter (`sampled/`) and after it (`kept/`) are never mixed. Draws, verdicts and lengths are
over the draws up to the cut M. Tokens balance: generated + carried_in = kept + wasted + carried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dapo.config.schema import Config
from dapo.difficulty import History, band, difficulty_metrics, predicted_acceptance, updated
from dapo.grading import mean_or_nan
from dapo.rng import derive_seed
from dapo.types import Collected, Finish, Group, TrainState, Verdict

SHIFT = 2  # salt of the resampling behind shift/*
TOTALS = (
    "sampling/draws",
    "sampling/kept",
    "sampling/all_right_draws",
    "sampling/all_wrong_draws",
    "sampling/engine_failures",
    "sampled/unparsed_responses",
    "sampled/timeout_responses",
    "sampled/error_responses",
    "tokens/generated",
    "tokens/kept",
    "tokens/wasted",
    "tokens/lost",
)


def ledger(collected: Collected, state: TrainState, config: Config) -> dict[str, float]:
    """All metrics of one filling.

    Args:
        collected: the filling.
        state: before it: the history behind the difficulty bands, the version behind staleness.
        config: of the run.
    """
    taken, kept = collected.taken, collected.kept
    metrics = _draws(collected) | _tokens(collected) | _staleness(kept, state.version)
    metrics |= _described("sampled", taken) | _described("kept", kept) | _lengths(taken, config)
    metrics |= _diversity(taken) | _seconds_by_length(collected)
    if _has_correctness(taken):
        metrics["sampling/all_right_draws"] = float(sum(g.num_correct == len(g.rollouts) for g in taken))
        metrics["sampling/all_wrong_draws"] = float(sum(g.num_correct == 0 for g in taken))
        metrics["sampling/all_right_fraction"] = mean_or_nan([g.num_correct == len(g.rollouts) for g in taken])
        metrics["sampling/all_wrong_fraction"] = mean_or_nan([g.num_correct == 0 for g in taken])
    verdicts = [r.score.verdict for group in taken for r in group.rollouts]
    for verdict in (Verdict.UNPARSED, Verdict.TIMEOUT, Verdict.ERROR):
        metrics[f"sampled/{verdict.value}_responses"] = float(verdicts.count(verdict))
        metrics[f"sampled/{verdict.value}_fraction"] = mean_or_nan([v is verdict for v in verdicts])
    if config.sampling.schedule == "rounds":
        metrics["sampling/rounds"] = float(collected.rounds)
    if _has_correctness(collected.groups):
        metrics |= _difficulty(collected, state, config)
    return metrics


def totals(before: Mapping[str, float], metrics: Mapping[str, float], drawn: int = 0) -> dict[str, float]:
    """The ledger since step 0, one step later: `total/draws`, `total/tokens_generated`, `data/prompts_drawn`, ...

    Args:
        before: the totals so far.
        metrics: of the filling.
        drawn: prompts whose draws it graded, see `prompts_drawn`.
    """
    after = dict(before)
    after["data/prompts_drawn"] = before.get("data/prompts_drawn", 0.0) + drawn
    for name in TOTALS:
        if name in metrics:
            key = "total/" + name.removeprefix("sampling/").removeprefix("sampled/").replace("/", "_")
            after[key] = before.get(key, 0.0) + metrics[name]
    return after


class Progress:
    """Device hours and the gain in accuracy since step 0.

    Seconds differ between two equal runs, so that they are no part of the training state: they come from the lines
    that metrics.jsonl holds when they are first asked for.

    Args:
        lines: gives those lines.
    """

    def __init__(self, lines: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        self._lines = lines
        self._steps: dict[int, Mapping[str, Any]] | None = None

    def at(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """total/device_hours and progress/accuracy_gain_per_device_hour of a step. Evaluations' time is left out."""
        if self._steps is None:
            self._steps = {line["step"]: line for line in self._lines()}
        self._steps[step] = {name: metrics[name] for name in ("time/step_s", "sampled/accuracy") if name in metrics}
        hours = sum(line.get("time/step_s") or 0.0 for line in self._steps.values()) / 3600
        known = (self._steps[number].get("sampled/accuracy") for number in sorted(self._steps))
        first = next((accuracy for accuracy in known if accuracy is not None), None)
        if first is None or "sampled/accuracy" not in metrics:
            return {"total/device_hours": hours}
        gain = (metrics["sampled/accuracy"] - first) / max(hours, 1e-9)
        return {"total/device_hours": hours, "progress/accuracy_gain_per_device_hour": gain}


def prompts_drawn(collected: Collected) -> int:
    """Prompts that a filling took from the stream: its own graded draws, whether they were kept or not.

    Not those that the curriculum skipped, and not cancelled ones, whose prompts come back.
    """
    return len(collected.groups) - collected.carried_in


def history_after(history: History, collected: Collected, step: int) -> History:
    """The records of prompts once a step has looked at its groups, in draw order.

    Carried groups count when they are taken, and so nothing that was drawn after them counts before.
    """
    groups = collected.taken if collected.carried else (*collected.taken, *collected.surplus)
    if not _has_correctness(groups):
        return history
    return updated(history, ((g.prompt.id, g.num_correct, len(g.rollouts)) for g in groups), step)


def _draws(collected: Collected) -> dict[str, float]:
    """Counts of draws. Acceptance is (N-1)/(M-1): N/M is biased by stopping at a success.

    A filling that ended for another reason (short) did not stop at a success: N/M. N = 1 says nothing.
    """
    taken, kept = collected.taken, len(collected.kept)
    trials, successes = (len(taken), kept) if collected.short else (len(taken) - 1, kept - 1)
    trials = 0 if kept == 1 and not collected.short else trials
    return {
        "sampling/draws": float(len(taken)),
        "sampling/kept": float(kept),
        "sampling/acceptance": successes / trials if trials > 0 else float("nan"),
        "sampling/surplus_draws": float(len(collected.surplus)),
        "sampling/cancelled_draws": float(collected.cancelled),
        "sampling/carried_in_draws": float(collected.carried_in),
        "sampling/carried_draws": float(collected.carried),
        "sampling/skipped_prompts": float(collected.skipped),
        "sampling/engine_failures": float(collected.failures),
        "sampling/short": float(bool(collected.short)),
    }


def _tokens(collected: Collected) -> dict[str, float]:
    """Tokens, and the seconds of generation shared out by the tokens of this filling (carried ones cost none)."""
    new = num_tokens(collected.groups[collected.carried_in :])
    generated = new + collected.lost_tokens
    carried_in = num_tokens(collected.groups[: collected.carried_in])
    kept, carried = num_tokens(collected.kept), num_tokens(collected.left)
    wasted = generated + carried_in - kept - carried
    per_token = collected.rollout_seconds / max(generated, 1)
    kept_draws = {group.draw for group in collected.kept}
    older = {group.draw for group in collected.groups[: collected.carried_in]}
    new_kept = num_tokens([group for group in collected.kept if group.draw not in older])
    new_carried = num_tokens([group for group in collected.left if group.draw not in older])
    return {
        "tokens/generated": float(generated),
        "tokens/kept": float(kept),
        "tokens/wasted": float(wasted),
        "tokens/lost": float(collected.lost_tokens),
        "tokens/carried_in": float(carried_in),
        "tokens/carried": float(carried),
        "tokens/per_s": generated / max(collected.rollout_seconds, 1e-9),
        "response/kept_length_mean_tokens": _mean_length(collected.kept),
        "response/dropped_length_mean_tokens": _mean_length([g for g in collected.taken if g.draw not in kept_draws]),
        "time/rollout_s": collected.rollout_seconds,
        "time/rollout_kept_s": new_kept * per_token,
        "time/rollout_wasted_s": (generated - new_kept - new_carried) * per_token,
        "time/grade_s": collected.grade_seconds,
    }


def _difficulty(collected: Collected, state: TrainState, config: Config) -> dict[str, float]:
    """By bands of what earlier steps showed of each prompt. The draw at the cut is kept by definition: left out."""
    judged = collected.taken if collected.short else collected.taken[:-1]
    kept = {group.draw for group in collected.kept}
    known = [(state.history.get(g.prompt.id), g.prompt.rating, len(g.rollouts)) for g in judged]
    return difficulty_metrics(
        [band(record, rating) for record, rating, _ in known],
        [group.draw in kept for group in judged],
        [predicted_acceptance(record, rating, size) for record, rating, size in known],
        seed=derive_seed(config.train.seed, SHIFT, state.step + 1),
    )


def _staleness(kept: Sequence[Group], version: int) -> dict[str, float]:
    """Policy versions between sampling and training, over the kept groups' tokens."""
    runs = [run for group in kept for r in group.rollouts for run in r.response.token_versions]
    tokens = sum(count for _, count in runs)
    behind = sum((version - v) * count for v, count in runs)
    return {
        "staleness/mean_versions": behind / tokens if tokens else 0.0,
        "staleness/max_versions": float(max((version - v for v, count in runs if count), default=0)),
    }


def _has_correctness(groups: Sequence[Group]) -> bool:
    return any(r.score.correct is not None for group in groups for r in group.rollouts)


def _described(area: str, groups: Sequence[Group]) -> dict[str, float]:
    rollouts = [r for group in groups for r in group.rollouts]
    metrics = {
        f"{area}/reward_mean": mean_or_nan([r.score.reward for r in rollouts]),
        f"{area}/shaped_reward_mean": mean_or_nan([r.shaped_reward for r in rollouts]),
        f"{area}/reward_spread": mean_or_nan([float(np.std([r.shaped_reward for r in g.rollouts])) for g in groups]),
    }
    if _has_correctness(groups):
        metrics[f"{area}/accuracy"] = mean_or_nan([r.score.correct is True for r in rollouts])
    for part in sorted({name for r in rollouts for name in r.score.parts}):
        metrics[f"{area}/reward_{part}_mean"] = mean_or_nan([r.score.parts.get(part, 0.0) for r in rollouts])
    return metrics


def _lengths(groups: Sequence[Group], config: Config) -> dict[str, float]:
    rollouts = [r for group in groups for r in group.rollouts]
    limit = config.sampling.max_response_tokens - config.reward.overlong_buffer_tokens
    lengths = [r.response.num_tokens for r in rollouts]
    by_answer = {
        name: [r.response.num_tokens for r in rollouts if r.score.correct is answer]
        for name, answer in (("right", True), ("wrong", False))
    }
    metrics = {
        f"response/length_p{rank}_tokens": float(np.quantile(lengths, rank / 100)) if lengths else float("nan")
        for rank in (10, 50, 90)
    }
    metrics |= {f"response/{name}_length_mean_tokens": mean_or_nan(found) for name, found in by_answer.items()}
    metrics |= {
        "response/length_mean_tokens": mean_or_nan(lengths),
        "response/length_max_tokens": float(max(lengths, default=0)),
        "response/truncated_fraction": mean_or_nan([r.response.finish is Finish.LENGTH for r in rollouts]),
        "response/overlong_penalty_mean": mean_or_nan([r.overlong for r in rollouts]),
        "response/overlong_penalty_sum": float(sum(r.overlong for r in rollouts)),
    }
    if "soft" in config.reward.overlong:
        metrics["response/in_buffer_fraction"] = mean_or_nan([length > limit for length in lengths])
    return metrics


def _diversity(groups: Sequence[Group]) -> dict[str, float]:
    """Distinct extracted answers of a group (none extracted counts as one), and responses that repeat an earlier
    one of their group token for token."""
    answers = [len({r.score.extracted for r in group.rollouts}) for group in groups]
    repeated = [len(group.rollouts) - len({r.response.token_ids.tobytes() for r in group.rollouts}) for group in groups]
    return {
        "diversity/distinct_answers_mean": mean_or_nan(answers),
        "diversity/duplicate_responses_fraction": sum(repeated) / max(1, sum(len(g.rollouts) for g in groups)),
    }


def _seconds_by_length(collected: Collected) -> dict[str, float]:
    """The seconds of generation, shared out by tokens over the quarters of response length of this filling's draws.

    As in `credit.length_quartile`, one at an edge is in the upper quarter.
    """
    lengths = np.array(
        [r.response.num_tokens for group in collected.groups[collected.carried_in :] for r in group.rollouts]
    )
    names = [f"time/rollout_length_q{quarter}_s" for quarter in (1, 2, 3, 4)]
    if not lengths.sum():
        return dict.fromkeys(names, 0.0)
    quarter = np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths, side="right")
    tokens = np.bincount(quarter, weights=lengths, minlength=4)
    seconds = collected.rollout_seconds * tokens / (lengths.sum() + collected.lost_tokens)
    return dict(zip(names, seconds.tolist(), strict=True))


def num_tokens(groups: Sequence[Group]) -> int:
    """Response tokens of all groups."""
    return int(np.sum([r.response.num_tokens for group in groups for r in group.rollouts], dtype=np.int64))


def _mean_length(groups: Sequence[Group]) -> float:
    return mean_or_nan([r.response.num_tokens for group in groups for r in group.rollouts])
