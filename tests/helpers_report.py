"""A synthetic run directory with every file of a run, of any size: for tests and the benchmark of the report.

Nothing in it is measured. Curves look like those of a run that learns, so that pictures can be judged by eye.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from dapo.config import from_tree, resolve

WORDS = [
    "so",
    "we",
    "have",
    "that",
    "the",
    "sum",
    "of",
    "both",
    "sides",
    "equals",
    "therefore",
    "let",
    "x",
    "be",
    "an",
    "integer",
    "then",
    "since",
    "it",
    "follows",
    "check",
    "again",
]
K = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a run is. rollouts: of a step. every: steps between evaluations, credit tables and token files."""

    steps: int = 12
    rollouts: int = 32
    group: int = 8
    characters: int = 400
    every: int = 4
    token_rows: int = 3


def synthetic_run(path: Path, *, size: Size | None = None, seed: int = 0, wanted_steps: int | None = None) -> Path:
    """A run directory with all files; the path.

    Args:
        path: the folder, which is made.
        size: how large.
        seed: train.seed, and of everything drawn here.
        wanted_steps: train.num_steps; those of `size` by default.
    """
    size = size or Size()
    draw = random.Random(seed)
    path.mkdir(parents=True)
    write_json(path / "config.resolved.json", config_tree(seed, wanted_steps or size.steps))
    write_json(
        path / "manifest.json",
        {
            "recipe": "synthetic",
            "directory": "/secret/place",
            "digests": {"code": "c0de" * 16},
            "versions": {"dapo-rl": "0.1.0"},
            "machine": {"cpus": 2},
        },
    )
    rows = [metrics_row(step, size, draw) for step in range(1, size.steps + 1)]
    write_lines(path / "metrics.jsonl", rows)
    at_steps = [step for step in range(1, size.steps + 1) if step % size.every == 0 or step == size.steps]
    for step in [0, *at_steps]:
        write_json(path / f"eval/step_{step:06d}.json", evaluation(step, size.steps, draw))
    for step in at_steps:
        write_json(path / f"credit/step_{step:06d}.json", credit_table(step, draw))
    for row in rows:
        rollouts = step_rollouts(row["step"], row["sampled/accuracy"], size, draw)
        write_packed(path / f"rollouts/step_{row['step']:06d}.jsonl.zst", rollouts)
        if row["step"] in at_steps or size.every == 1:
            kept = [one for one in rollouts if one["kept"]][: size.token_rows]
            write_packed(path / f"tokens/step_{row['step']:06d}.jsonl.zst", [token_row(one, draw) for one in kept])
    write_lines(
        path / "checks.jsonl",
        [
            {
                "step": 2,
                "check": "gap",
                "message": "the gap between engine and learner is over its bound",
                "value": 0.02,
                "bound": 0.01,
                "action": "warn",
            }
        ],
    )
    write_lines(
        path / "alerts.jsonl",
        [
            {
                "step": size.steps,
                "alert": "entropy-low",
                "metric": "policy/entropy",
                "value": 0.11,
                "message": "entropy is under a third of its start",
                "advice": "raise algorithm.clip_high",
            }
        ],
    )
    write_lines(
        path / "profile.jsonl",
        [
            {
                "step": row["step"],
                "seconds": 30.0,
                "spans": {
                    "decode": {"seconds": 14.0, "calls": 900},
                    "backward": {"seconds": 9.0, "calls": 40},
                    "forward": {"seconds": 4.0, "calls": 40},
                    "grading": {"seconds": 0.5, "calls": 16},
                },
            }
            for row in rows
        ],
    )
    return path


def old_run(path: Path, steps: int = 3) -> Path:
    """A run of an older dapo: few metrics, rollouts without advantage, no evaluation, none of the new files."""
    size, draw = Size(steps=steps, rollouts=8), random.Random(1)
    path.mkdir(parents=True)
    write_json(path / "config.resolved.json", config_tree(0, steps))
    names = ("step", "sampled/accuracy", "kept/accuracy", "policy/entropy", "clip/high_fraction", "time/step_s")
    rows = [metrics_row(step, size, draw) for step in range(1, steps + 1)]
    write_lines(path / "metrics.jsonl", [{name: row[name] for name in names} for row in rows])
    for step in range(1, steps + 1):
        rollouts = step_rollouts(step, 0.5, size, draw)
        write_packed(
            path / f"rollouts/step_{step:06d}.jsonl.zst",
            [{k: v for k, v in r.items() if k != "advantage"} for r in rollouts],
        )
    return path


def config_tree(seed: int, steps: int) -> dict[str, Any]:
    """A resolved configuration with two sources said."""
    tree = {
        "name": "synthetic",
        "model": {"path": "some/model"},
        "data": {"source": "problems.jsonl"},
        "train": {"seed": seed, "num_steps": steps, "learning_rate": 1e-5},
        "provenance": {
            "train.learning_rate": "chosen: ten times the paper's, for a small model",
            "algorithm.clip_high": "paper: section 4.1",
        },
    }
    return resolve(from_tree(tree))


def metrics_row(step: int, size: Size, draw: random.Random) -> dict[str, Any]:
    """A line of metrics.jsonl with every name that the report draws."""
    t = step / max(size.steps, 1)

    def near(value: float, spread: float = 0.04) -> float:
        return value * (1 + draw.gauss(0, spread))

    accuracy = min(0.97, max(0.02, 0.1 + 0.6 * (1 - math.exp(-3 * t)) + draw.gauss(0, 0.03)))
    entropy, length = near(0.15 + 1.5 * math.exp(-3 * t)), near(300 + 400 * t)
    draws = float(round(size.rollouts / size.group / near(0.55)))
    kept, tokens = float(size.rollouts // size.group), length * size.rollouts
    right = round((draws - kept) * t)
    surplus = float(draw.randrange(3))
    return (
        {"step": step}
        | _sampling(draws, kept, right, surplus, tokens, draw)
        | _learning(accuracy, length, near)
        | {
            "policy/entropy": entropy,
            "policy/kl_to_old": near(0.002, 0.2),
            "policy/mean_token_probability": near(0.85),
            "ratio/mean": near(1.0, 0.002),
            "ratio/max": 1 + near(3.0, 0.2),
            "clip/high_fraction": near(0.008 * entropy, 0.2),
            "clip/low_fraction": near(0.006, 0.2),
            "clip/dual_fraction": 0.0,
            "clip/high_old_probability_mean": near(0.22, 0.1),
            "grad/norm": near(1.4, 0.3),
            "grad/nonfinite_updates": 0.0,
            "loss/policy": draw.gauss(0, 0.004),
            "train/update_norm": near(0.02, 0.1),
            "train/parameter_norm": 120 + 0.3 * t,
            "train/learning_rate": 1e-5 * min(1, step / 3),
            "mismatch/logprob_abs_mean": near(2e-4, 0.2),
            "mismatch/logprob_abs_max": near(0.03, 0.4),
            "mismatch/probability_correlation": 0.9995,
            "advantage/abs_mean": 0.8,
            "advantage/length_weighted_mean": draw.gauss(-0.02, 0.01),
            "advantage/length_matched_mean": draw.gauss(0, 0.005),
            "credit/proxy_positive_share": near(0.5),
            "credit/proxy_longest_share": near(0.4),
            "diversity/distinct_answers_mean": 1 + 4 * entropy / 1.65,
            "diversity/duplicate_responses_fraction": near(0.02 + 0.1 * t, 0.1),
            "time/rollout_s": near(18),
            "time/grade_s": near(0.4),
            "time/train_s": near(12),
            "time/write_s": 0.05,
            "time/step_s": near(31, 0.01),
            **{f"time/rollout_length_q{q}_s": near(2.0 * q) for q in range(1, 5)},
            "total/device_hours": step * 31 / 3600,
            "progress/accuracy_gain_per_device_hour": near(20 * (1 - t) + 1),
            "memory/peak_gb": 5 + min(1.0, t * 4) * 0.4,
            "staleness/mean_versions": 0.0,
            "staleness/max_versions": 0.0,
            "checks/findings": 0.0,
            "alerts/raised": 0.0,
            "total/tokens_generated": tokens / 0.55 * step,
            "total/tokens_kept": tokens * step,
        }
    )


def _sampling(
    draws: float, kept: float, right: float, surplus: float, tokens: float, draw: random.Random
) -> dict[str, float]:
    draws = max(draws, kept)
    right = min(right, draws - kept)
    return {
        "sampling/draws": draws,
        "sampling/kept": kept,
        "sampling/acceptance": kept / draws,
        "sampling/predicted_acceptance": kept / draws + draw.gauss(0, 0.05),
        "sampling/all_right_draws": right,
        "sampling/all_wrong_draws": draws - kept - right,
        "sampling/all_right_fraction": right / draws,
        "sampling/all_wrong_fraction": (draws - kept - right) / draws,
        "sampling/surplus_draws": surplus,
        "sampling/cancelled_draws": 1.0,
        "sampling/carried_draws": 0.0,
        "sampling/carried_in_draws": 0.0,
        "sampling/rounds": float(1 + draw.randrange(3)),
        "sampling/short": 0.0,
        "difficulty/easy_acceptance": 0.2 + 0.1 * draw.random(),
        "difficulty/medium_acceptance": 0.8,
        "difficulty/hard_acceptance": 0.3,
        "difficulty/unseen_acceptance": 0.5,
        "shift/total_variation": 0.2,
        "shift/null_mean": 0.1,
        "sampled/unparsed_fraction": 0.02,
        "sampled/timeout_fraction": 0.0,
        "sampled/error_fraction": 0.0,
        "tokens/kept": tokens,
        "tokens/generated": tokens / 0.55,
        "tokens/wasted": tokens / 0.55 - tokens,
        "tokens/lost": 0.02 * tokens,
        "tokens/carried_in": 0.0,
        "tokens/carried": 0.0,
        "tokens/per_s": 1800.0,
    }


def _learning(accuracy: float, length: float, near: Any) -> dict[str, float]:
    kept = 0.5 + 0.3 * (accuracy - 0.5)
    return {
        "sampled/accuracy": accuracy,
        "kept/accuracy": kept,
        "sampled/reward_mean": 2 * accuracy - 1,
        "kept/reward_mean": 2 * kept - 1,
        "sampled/shaped_reward_mean": 2 * accuracy - 1.1,
        "kept/shaped_reward_mean": 2 * kept - 1.1,
        "sampled/reward_spread": near(0.4),
        "kept/reward_spread": near(0.8),
        "response/length_mean_tokens": length,
        "response/length_max_tokens": 1024.0,
        "response/length_p10_tokens": 0.5 * length,
        "response/length_p50_tokens": 0.95 * length,
        "response/length_p90_tokens": 1.6 * length,
        "response/right_length_mean_tokens": near(0.9 * length),
        "response/wrong_length_mean_tokens": near(1.2 * length),
        "response/kept_length_mean_tokens": near(1.05 * length),
        "response/dropped_length_mean_tokens": near(0.9 * length),
        "response/truncated_fraction": near(0.05, 0.2),
        "response/in_buffer_fraction": near(0.1, 0.2),
        "response/overlong_penalty_mean": -near(0.04, 0.2),
        "response/overlong_penalty_sum": -near(4.0),
        "weight/token_to_sample_max": near(2.4),
        "weight/token_to_sample_right_mean": near(0.9),
        "weight/token_to_sample_wrong_mean": near(1.15),
    }


def evaluation(step: int, last: int, draw: random.Random, problems: int = 64) -> dict[str, Any]:
    """The content of eval/step_*.json for a set "holdout", its figures those of its problems."""
    level = 0.1 + 0.6 * (1 - math.exp(-3 * step / last))
    rights = [sum(draw.random() < level for _ in range(K)) for _ in range(problems)]
    accuracy = sum(rights) / K / problems

    def at(k: int) -> dict[str, float]:
        value = sum(1 - math.comb(K - c, k) / math.comb(K, k) for c in rights) / problems
        return {"value": value, "low": max(0.0, value - 0.1), "high": min(1.0, value + 0.1)}

    figures = {
        "problems": problems,
        "k": K,
        "accuracy": accuracy,
        "reward_mean": 2 * accuracy - 1,
        "parsed_fraction": 0.98,
        "truncated_fraction": 0.05,
        "length_mean_tokens": 300.0,
        "phrases": {},
        "intervals_95": {"population, over problem means": [max(0.0, accuracy - 0.08), min(1.0, accuracy + 0.08)]},
        "pass_at": {str(k): at(k) for k in (1, 2, 4)},
        "maj_at": {str(k): at(1) for k in (1, 2, 4)},
        "per_problem": [{"id": f"p{i}", "samples": K, "right": c} for i, c in enumerate(rights)],
    }
    return {"step": step, "sets": {"holdout": figures}, "settings": {"sampling": {"k": K}}}


def credit_table(step: int, draw: random.Random) -> dict[str, Any]:
    """The content of credit/step_*.json; its shares add up to 1."""
    kinds = [(True, False, "+"), (True, True, "+"), (False, False, "-"), (False, True, "-"), (False, False, "0")]
    buckets = [
        {
            "length": q,
            "right": right,
            "truncated": truncated,
            "advantage": sign,
            "responses": draw.randrange(1, 40),
            "tokens": draw.randrange(100, 9000),
            "share": (1.0 if right else 0.6) * draw.uniform(-0.2, 1),
            "norm": draw.uniform(0.1, 1),
            "cosine": draw.uniform(-0.3, 0.8),
            "proxy": draw.random(),
        }
        for right, truncated, sign in kinds
        for q in range(4)
        if not truncated or q == 3
    ]
    for name in ("share", "proxy"):
        whole = sum(bucket[name] for bucket in buckets)
        for bucket in buckets:
            bucket[name] /= whole
    matched = {"right_per_token": 0.012, "wrong_per_token": 0.009, "right_matched": 0.0115, "wrong_matched": 0.0101}
    return {
        "step": step,
        "length_quartiles": [180, 320, 540],
        "gradient_norm": 1.3,
        "buckets": buckets,
        "matched": matched,
    }


def step_rollouts(step: int, accuracy: float, size: Size, draw: random.Random) -> list[dict[str, Any]]:
    """The rows of a step, in groups, of which those with right and wrong are kept."""
    rows: list[dict[str, Any]] = []
    for number in range(size.rollouts // size.group):
        a, b = draw.randrange(100), draw.randrange(100)
        chance = min(1.0, max(0.0, accuracy + draw.gauss(0, 0.35)))
        rights = [draw.random() < chance for _ in range(size.group)]
        kept = 0 < sum(rights) < size.group
        spread = math.sqrt(sum(rights) / size.group * (1 - sum(rights) / size.group))
        for g, right in enumerate(rights):
            rows.append(
                _rollout(step, number, g, (a, b), right, size, draw)
                | {"kept": kept, "advantage": (right - sum(rights) / size.group) / spread if kept else None}
            )
    return rows


def _rollout(
    step: int, number: int, g: int, terms: tuple[int, int], right: bool, size: Size, draw: random.Random
) -> dict[str, Any]:
    a, b = terms
    answer = str(a + b) if right else str(a + b + draw.randrange(1, 9))
    words = draw.choices(WORDS, k=max(1, draw.randrange(size.characters // 3, size.characters) // 5))
    truncated = not right and draw.random() < 0.15
    verdict = "correct" if right else "unparsed" if truncated else "wrong"
    return {
        "step": step,
        "draw": step * 1000 + number,
        "g": g,
        "prompt_id": f"{a}+{b}",
        "question": f"What is {a} + {b}?",
        "prompt": f"<|user|>\nWhat is {a} + {b}?\n<|assistant|>\n",
        "answer": str(a + b),
        "text": " ".join(words) + ("" if truncated else f". The answer is {answer}"),
        "finish": "length" if truncated else "stop",
        "tokens": len(words) + 5,
        "verdict": verdict,
        "extracted": None if truncated else answer,
        "stage": "last_number: number",
        "reward": 1.0 if right else -1.0,
        "parts": {"grader": 1.0 if right else -1.0},
        "overlong": -0.5 if truncated else 0.0,
        "versions": [[step, len(words) + 5]],
    }


def token_row(row: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    """A line of tokens/: the words of a response as its tokens."""
    pieces = [piece + " " for piece in row["text"].split(" ")]
    count = len(pieces)
    return {
        "step": row["step"],
        "draw": row["draw"],
        "g": row["g"],
        "tokens": pieces,
        "logprobs": [-abs(draw.gauss(0, 0.9)) for _ in range(count)],
        "ratios": [math.exp(draw.gauss(0, 0.1)) for _ in range(count)],
        "clipped": [draw.choice([0] * 18 + [1, -1]) for _ in range(count)],
    }


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """A JSON file and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A JSONL file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_packed(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A compressed JSONL file, as dapo writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "surrogatepass")
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(data))
