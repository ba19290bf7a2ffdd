"""How often the 95% intervals of an evaluation hold what they should, by simulation.

Problems have difficulties p ~ Beta(a, b), each is sampled k times. The intervals over the population should
hold a / (a + b), the interval for this set alone the mean of the p drawn. The intervals are those of
dapo.evals.intervals, computed for all repetitions at once (and checked against the functions on the first 20).

Then, for the same difficulties, the difference between two models that such an evaluation can find (median of
dapo.evals.intervals.detectable over 200 simulated evaluations), and how often a paired comparison does find it:
the second model's difficulties are drawn anew ("unlike") or are the first's ("alike"), and its accuracy is moved by
as much, by mixing in problems that are always right.

    .venv/bin/python benchmarks/coverage.py --repetitions 20000 --bootstrapped 1000
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from scipy.stats import norm, t

from dapo.evals.intervals import FEW, bootstrap_interval, detectable, set_interval, t_interval
from dapo.evals.paired import paired

BETAS = ((1.0, 1.0), (0.5, 0.5), (0.3, 0.9), (0.1, 1.9))


def left_open(alike: np.ndarray, n: int, k: int) -> np.ndarray:
    """What so many problems, all of whose k samples are alike, may still add to the mean over n problems."""
    return alike / n * (1 - 0.025 ** (1 / np.maximum(alike * k, 1)))


def simulate(a: float, b: float, n: int, k: int, repetitions: int, bootstrapped: int, seed: int) -> list[float]:
    """Coverage of (t alone, t or the set's where that is wider: the headline, studentised bootstrap, this set)."""
    random = np.random.default_rng(seed)
    p = random.beta(a, b, (repetitions, n))
    counts = random.binomial(k, p)
    means = counts / k
    truth, own = a / (a + b), p.mean(axis=1)
    middle = means.mean(axis=1)
    half_t = t.ppf(0.975, n - 1) * means.std(axis=1, ddof=1) / math.sqrt(n)
    half_set = norm.ppf(0.975) * np.sqrt((means * (1 - means) / (k - 1)).sum(axis=1)) / n
    few = ((counts > 0) & (counts < k)).sum(axis=1) < FEW
    down, up = (np.hypot(half_set, few * left_open((counts == side).sum(axis=1), n, k)) for side in (k, 0))
    for row in range(min(20, repetitions)):
        low, high = t_interval(list(means[row]), bounds=None)
        assert np.allclose([middle[row] - half_t[row], middle[row] + half_t[row]], [low, high], atol=1e-12)
        low, high = set_interval([(k, int(c)) for c in counts[row]], bounds=None)
        assert np.allclose([middle[row] - down[row], middle[row] + up[row]], [low, high], atol=1e-12)
    held = 0
    for row in range(bootstrapped):
        low, high = bootstrap_interval(list(means[row]), seed=row, resamples=999)
        held += low <= truth <= high
    return [
        float((np.abs(middle - truth) <= half_t).mean()),
        float(((truth >= middle - np.maximum(half_t, down)) & (truth <= middle + np.maximum(half_t, up))).mean()),
        held / bootstrapped,
        float(((own >= middle - down - 1e-12) & (own <= middle + up + 1e-12)).mean()),
    ]


def found(a: float, b: float, n: int, k: int, difference: float, alike: bool, seed: int, tries: int = 400) -> float:
    """How often the paired t interval over problems leaves out 0 when accuracies differ by so much."""
    random = np.random.default_rng(seed)
    hits = 0
    for _ in range(tries):
        p = random.beta(a, b, n)
        q = p if alike else random.beta(a, b, n)
        share = difference / (1 - a / (a + b))  # moves the mean by the difference: q + share (1 - q)
        counts = [[(k, int(c)) for c in random.binomial(k, r)] for r in (p, q + share * (1 - q))]
        result = paired(counts[0], counts[1], resamples=99)
        hits += result.low > 0 or result.high < 0
    return hits / tries


def print_detectable(k: int) -> None:
    """One row for each difficulty and number of problems."""
    print(
        "\n| difficulty | problems x samples | this set alone | population, unpaired | found: alike | found: unlike |"
    )
    print("|---|---|---|---|---|---|")
    for a, b in BETAS[:3]:
        for n in (30, 128, 500):
            random = np.random.default_rng(n)
            draws = [random.binomial(k, random.beta(a, b, n)) for _ in range(200)]
            both = np.median([detectable([(k, int(c)) for c in counts]) for counts in draws], axis=0)
            cells = [f"{100 * value:.1f} points" for value in both]
            cells += [f"{found(a, b, n, k, float(both[1]), alike, seed=n):.0%}" for alike in (True, False)]
            print(f"| Beta({a:g}, {b:g}) | {n} x {k} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Prints one row for each difficulty, number of problems and number of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=4000)
    parser.add_argument("--bootstrapped", type=int, default=1000, help="repetitions that the bootstrap is run for")
    parser.add_argument("--k", type=int, nargs="+", default=[4, 32])
    arguments = parser.parse_args()
    print(
        "| difficulty | problems | samples | t alone | population (headline) | studentised bootstrap | this set alone |"
    )
    print("|---|---|---|---|---|---|---|")
    for a, b in BETAS:
        for n in (30, 128, 500):
            for k in arguments.k:
                held = simulate(a, b, n, k, arguments.repetitions, arguments.bootstrapped, seed=n + k)
                cells = " | ".join(f"{value:.1%}" for value in held)
                print(f"| Beta({a:g}, {b:g}) | {n} | {k} | {cells} |", flush=True)
    print_detectable(max(arguments.k))


if __name__ == "__main__":
    main()
