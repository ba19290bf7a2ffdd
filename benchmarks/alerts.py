"""How often the alerts ring in quiet runs, and how soon in runs that go wrong; both kinds are simulated.

    .venv/bin/python benchmarks/alerts.py --runs 100 --steps 1000

A quiet run learns: accuracy and length rise, entropy falls and levels off, prompts turn from all wrong to all right.
Each metric has the noise of its kind: draws and responses are counted at the run's size, figures of the learner have
lognormal noise that carries over from step to step, one step in 200 has a gradient three times too large, one save in
1000 fails. A faulty run is a quiet one in which one thing goes wrong after step ONSET. Evaluations come every ten
steps. Prints a table of alerts per 1000 quiet steps by size of run, and one of the steps from onset to alert.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dapo.alerts import Watch
from dapo.config.schema import Config

Line = dict[str, float]
ONSET = 120  # a run's first steps are over, and the longest window is filled
LIMIT = 4096  # sampling.max_response_tokens


@dataclass(frozen=True)
class Size:
    """Of a run, and of its evaluations."""

    prompts: int
    responses: int
    problems: int
    k: int


SIZES = {
    "small (16 x 8)": Size(16, 8, 128, 4),
    "medium (64 x 8)": Size(64, 8, 500, 4),
    "paper (512 x 16)": Size(512, 16, 30, 32),
}


def config() -> Config:
    """What the simulated runs are trained by."""
    return Config.model_validate(
        {
            "model": {"path": "random:tiny"},
            "data": {"source": "data.jsonl"},
            "sampling": {"max_response_tokens": LIMIT},
        }
    )


class Wander:
    """Noise that carries over from step to step: an AR(1) process in the logarithm."""

    def __init__(self, rng: np.random.Generator, spread: float, memory: float = 0.7) -> None:
        self._rng, self._spread, self._memory, self._at = rng, spread, memory, 0.0

    def __call__(self) -> float:
        """The next factor, around 1."""
        fresh = self._spread * math.sqrt(1 - self._memory**2)
        self._at = self._memory * self._at + fresh * float(self._rng.standard_normal())
        return math.exp(self._at)


def quiet_run(
    size: Size, steps: int, seed: int, accuracy: Callable[[int], float] | None = None, louder: float = 1.0
) -> Iterator[Line]:
    """The lines of a run in which nothing goes wrong.

    Args:
        size: of its batches and evaluations.
        steps: how many.
        seed: of its noise.
        louder: the spread of the learner's figures is so many times that of SPREADS.
        accuracy: of a step; by default it rises from 0.25 to 0.75 over the run.
    """
    rng = np.random.default_rng(seed)
    noise = {name: Wander(rng, louder * spread) for name, spread in SPREADS.items()}
    problems = rng.beta(0.8, 0.8, size.problems)
    for step in range(1, steps + 1):
        done = 1 - math.exp(-3 * step / steps)  # of what there is to learn
        right = 0.25 + 0.5 * step / steps if accuracy is None else accuracy(step)
        line = sampled(rng, size, right)
        line |= {name: level * noise[name]() for name, level in levels(done).items()}
        if rng.random() < 0.005:
            line["grad/norm"] *= 3
        for name, rate in (("timeout", 0.004), ("error", 0.0005), ("unparsed", 0.02 + 0.2 * math.exp(-step / 15))):
            responses = size.prompts * size.responses
            line[f"sampled/{name}_fraction"] = float(rng.binomial(responses, rate)) / responses
        line["checkpoint/failed_saves"] = float(step % 20 == 0 and rng.random() < 0.001)
        line["grad/nonfinite_updates"] = 0.0
        if step % 10 == 0:
            line["eval/accuracy"] = evaluated(rng, size, problems, right)
        yield line


SPREADS = {
    "policy/entropy": 0.1,
    "response/length_mean_tokens": 0.06,
    "response/truncated_fraction": 0.3,
    "clip/high_fraction": 0.5,
    "clip/low_fraction": 0.5,
    "mismatch/logprob_abs_mean": 0.15,
    "grad/norm": 0.35,
}


def levels(done: float) -> Line:
    """Where the learner's figures lie without noise, done (0 to 1) of the way."""
    return {
        "policy/entropy": 0.6 - 0.35 * done,
        "response/length_mean_tokens": LIMIT * (0.15 + 0.25 * done),
        "response/truncated_fraction": 0.02 + 0.08 * done,
        "clip/high_fraction": 0.004,
        "clip/low_fraction": 0.006,
        "mismatch/logprob_abs_mean": 0.008 + 0.004 * done,
        "grad/norm": 0.3 + 0.3 * done,
    }


def sampled(rng: np.random.Generator, size: Size, right: float) -> Line:
    """What a filling shows: prompts of all difficulties (beta around `right`), drawn until enough groups are kept."""
    correct, kept = list[int](), 0
    while kept < size.prompts:
        chances = rng.beta(1.2 * right, 1.2 * (1 - right), 2 * size.prompts)
        for count in rng.binomial(size.responses, chances):
            correct.append(int(count))
            kept += 0 < count < size.responses
            if kept == size.prompts:
                break
    taken = np.array(correct)
    accuracy = float(taken.mean()) / size.responses
    return {
        "sampling/acceptance": (size.prompts - 1) / (len(taken) - 1),
        "sampling/all_wrong_fraction": float((taken == 0).mean()),
        "sampling/all_right_fraction": float((taken == size.responses).mean()),
        "sampled/accuracy": accuracy,
        "sampled/reward_mean": 2 * accuracy - 1,
    }


def evaluated(rng: np.random.Generator, size: Size, problems: np.ndarray, right: float) -> float:
    """avg@k on a fixed set whose problems get easier with the policy."""
    shift = math.log(right / (1 - right))
    logits = np.log(problems / (1 - problems)) + shift
    return float(rng.binomial(size.k, 1 / (1 + np.exp(-logits))).mean()) / size.k


# --- faults ---------------------------------------------------------------------------------------

Fault = Callable[[Line, int], None]


def after(step: int) -> int:
    """Steps since the onset."""
    return max(0, step - ONSET)


def scaled(name: str, factor: Callable[[int], float], most: float = math.inf) -> Fault:
    """A metric that is multiplied, by a factor of the steps since the onset."""

    def fault(line: Line, step: int) -> None:
        if name in line:
            line[name] = min(most, line[name] * factor(after(step)))

    return fault


def added(name: str, amount: Callable[[int], float]) -> Fault:
    """A metric that something is added to, within 0 and 1."""

    def fault(line: Line, step: int) -> None:
        if name in line:
            line[name] = min(1.0, max(0.0, line[name] + amount(after(step))))

    return fault


def never_clipped(line: Line, step: int) -> None:
    """From the onset on nothing is clipped."""
    if after(step):
        line["clip/high_fraction"] = line["clip/low_fraction"] = 0.0


def single(name: str, value: Callable[[float], float], at: tuple[int, ...] = (1,)) -> Fault:
    """Single steps after the onset with another value."""

    def fault(line: Line, step: int) -> None:
        if after(step) in at:
            line[name] = value(line[name])

    return fault


FAULTS: dict[str, tuple[Fault, int]] = {
    "entropy-collapse": (scaled("policy/entropy", lambda n: math.exp(-n / 8)), 35),
    "length-explosion": (scaled("response/length_mean_tokens", lambda n: math.exp(n / 10), LIMIT), 25),
    "truncated": (added("response/truncated_fraction", lambda n: min(0.5, n / 30)), 25),
    "acceptance-low": (scaled("sampling/acceptance", lambda n: math.exp(-n / 10)), 30),
    "all-wrong": (added("sampling/all_wrong_fraction", lambda n: n / 20), 45),
    "all-right": (added("sampling/all_right_fraction", lambda n: n / 20), 45),
    "clip-high": (scaled("clip/high_fraction", lambda n: math.exp(min(n, 40) / 8), 0.5), 45),
    "clip-low": (scaled("clip/low_fraction", lambda n: math.exp(min(n, 40) / 8), 0.5), 45),
    "clip-never": (never_clipped, 55),
    "engine-gap": (scaled("mismatch/logprob_abs_mean", lambda n: 1 + n / 10), 40),
    "evaluation-falls": (added("eval/accuracy", lambda n: -n / 400), 100),
    "gradient-spike": (single("grad/norm", lambda x: 30 * x), 1),
    "gradient-clipped": (scaled("grad/norm", lambda n: math.exp(min(n, 40) / 8)), 45),
    "gradient-nonfinite": (single("grad/nonfinite_updates", lambda x: 1.0), 1),
    "grading-timeouts": (added("sampled/timeout_fraction", lambda n: 0.1 * (n > 0)), 10),
    "grading-errors": (added("sampled/error_fraction", lambda n: 0.1 * (n > 0)), 10),
    "unparsed": (added("sampled/unparsed_fraction", lambda n: 0.5 * (n > 0)), 15),
    "saves-failed": (single("checkpoint/failed_saves", lambda x: 1.0, (1, 21)), 21),
}
"""Alert -> what goes wrong, and within how many steps of the onset it has to be told."""
FLAT_WITHIN = 450  # steps in which accuracy that stands still has to be told


def faulty_run(alert: str, size: Size, seed: int, steps: int = ONSET + 450) -> Iterator[Line]:
    """A run in which an alert's fault sets in after step ONSET."""
    if alert == "accuracy-flat":
        yield from quiet_run(size, steps, seed, lambda step: 0.25 + 0.3 * min(step, ONSET) / ONSET)
        return
    fault, _ = FAULTS[alert]
    for step, line in enumerate(quiet_run(size, steps, seed), start=1):
        fault(line, step)
        yield line


def delay(alert: str, size: Size, seed: int) -> int | None:
    """Steps from the onset of an alert's fault until it is told; None if that never happens."""
    watch = Watch(config())
    for step, line in enumerate(faulty_run(alert, size, seed), start=1):
        if any(found.alert == alert for found in watch.feed(line)) and step > ONSET:
            return step - ONSET
    return None


def quiet_rings(size: Size, steps: int, seed: int, louder: float = 1.0) -> Counter[str]:
    """Alerts that were told in a quiet run."""
    watch = Watch(config())
    return Counter(found.alert for line in quiet_run(size, steps, seed, louder=louder) for found in watch.feed(line))


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--louder", type=float, default=1.0, help="times the spread of the learner's figures")
    parser.add_argument("--quiet-only", action="store_true", help="the first table alone")
    arguments = parser.parse_args()
    runs, steps = arguments.runs, arguments.steps
    print(f"| {runs} quiet runs of {steps} steps | rings per 1000 steps | which |\n|---|---|---|")
    for name, size in SIZES.items():
        rings = sum((quiet_rings(size, steps, seed, arguments.louder) for seed in range(runs)), Counter[str]())
        which = ", ".join(f"{alert} {count}" for alert, count in rings.most_common()) or "none"
        print(f"| {name} | {1000 * rings.total() / (runs * steps):.3f} | {which} |", flush=True)
    if arguments.quiet_only:
        return
    print("\n| fault | told | steps to the alert, median | most |\n|---|---|---|---|")
    for alert in [*FAULTS, "accuracy-flat"]:
        delays = [delay(alert, SIZES["medium (64 x 8)"], seed) for seed in range(runs)]
        told = [steps for steps in delays if steps is not None]
        figures = f"{statistics.median(told):.0f} | {max(told)}" if told else "- | -"
        print(f"| {alert} | {len(told)} of {runs} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
