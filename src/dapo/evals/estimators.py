"""pass@k and maj@k of one problem, from n samples: the exact expectation over its k-subsets.

Both are U-statistics: averaged over all subsets of k of the n samples, drawn without replacement, so each
is unbiased for what k fresh samples would give, and needs no resampling.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def powers_of_two(k: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to k, and k itself.

    >>> powers_of_two(12)
    (1, 2, 4, 8, 12)
    """
    powers = [1 << i for i in range(k.bit_length()) if 1 << i <= k]
    return tuple(powers) if powers[-1] == k else (*powers, k)


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k): the share of k-subsets that hold a right sample (Chen et al. 2021, Eq. 1).

    Args:
        n: samples of the problem.
        c: how many of them are right, 0..n.
        k: 1..n.

    Raises:
        ValueError: outside these ranges.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n = {n}, c = {c}, k = {k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def maj_at_k(votes: Sequence[int | None], right: int | None, k: int) -> tuple[float, float]:
    """(maj@k, share of subsets with a tie at the top), over all k-subsets of the samples.

    The plurality class of a subset answers for it. Classes that tie at the top are drawn among with equal
    chance. A sample without an answer does not vote, and a subset without a vote is wrong.

    The votes of the classes in a random k-subset are independent Binomial(m_j, k/n) numbers, given that all of
    them (and the silent ones) sum to k. So the chance that the right class leads with c votes while t others
    tie with it is the coefficient of x^(k-c) y^t in a product of one polynomial for each other class, times
    its own chance of c votes, over the chance that n tosses give k.

    Args:
        votes: answer class of each of the n samples; None: no answer.
        right: the class that is right; None when none is.
        k: 1..n.

    Raises:
        ValueError: k outside 1..n.

    >>> maj_at_k([0, 0, 1], 0, 1)
    (0.666666666667, 0.0)
    """
    n = len(votes)
    if not 1 <= k <= n:
        raise ValueError(f"maj@k needs 1 <= k <= n, got n = {n}, k = {k}")
    sizes = Counter(vote for vote in votes if vote is not None)
    silent = n - sum(sizes.values())
    own = sizes.pop(right, 0) if right is not None else 0
    return _maj(own, tuple(sorted(sizes.values())), silent, k)


@lru_cache(maxsize=65536)
def _maj(own: int, others: tuple[int, ...], silent: int, k: int) -> tuple[float, float]:
    """maj_at_k by the sizes of the right class, of the others, and of the silent."""
    n = own + sum(others) + silent
    heads = _tosses(own, k, n)
    won = tied = 0.0
    for top in range(1, min(k, max((own, *others))) + 1):
        free = silent + sum(size for size in others if size < top)  # can't reach the top: of no further interest
        rivals = [_tosses(size, k, n) for size in others if size >= top]
        ways = _ways(rivals, _tosses(free, k, n), top, k)
        if top < len(heads):
            won += float(heads[top] * (ways[k - top] / (1.0 + np.arange(ways.shape[1]))).sum())
            tied += float(heads[top] * ways[k - top, 1:].sum())
        below = min(top, len(heads))
        tied += float(heads[:below] @ ways[k - np.arange(below), 2:].sum(axis=1))
    whole = float(_tosses(n, k, n)[k])
    return round(min(won / whole, 1.0), 12), round(min(tied / whole, 1.0), 12)


@lru_cache(maxsize=4096)
def _tosses(m: int, k: int, n: int) -> Floats:
    """Chances of 0, 1, ..., min(m, k) heads among m tosses with chance k/n. Not to be written to."""
    from scipy.stats import binom

    chances: Floats = binom.pmf(np.arange(min(m, k) + 1), m, k / n)
    return chances


def _ways(rivals: Sequence[Floats], free: Floats, top: int, k: int) -> Floats:
    """[x, y]: chance of x heads in all, none of the rivals over `top`, y of them at it.

    rivals: chances of the classes that can reach the top. free: of all samples that can't.
    """
    table = np.zeros((k + 1, k // top + 1))
    table[: len(free), 0] = free
    for chances in rivals:
        grown = np.zeros_like(table)
        for taken, chance in enumerate(chances[:top]):
            grown[taken:] += chance * table[: k + 1 - taken]
        if len(chances) > top:
            grown[top:, 1:] += chances[top] * table[: k + 1 - top, :-1]
        table = grown
    return table
