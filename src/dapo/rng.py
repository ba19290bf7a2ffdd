"""Counter-based random numbers: Philox4x32-10, so that no generator has a state to save.

A number is a pure function of a key (the seed) and a 128-bit counter (what the number is
for). Two runs that ask for the same (seed, purpose, a, b, c) get the same number, whatever
else happened before: scheduling, batch sizes and resumes cannot change what is sampled.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


class Purpose(IntEnum):
    """What a number is for: the first counter word, so that uses never share a number."""

    TOKEN = 1
    DATA_ORDER = 2
    DATA_MIXTURE = 3
    SEED = 4
    PERMUTATION = 5
    TOKEN_CHOICE = 6


Word = int | NDArray[np.uint64]


def philox4x32(counter: NDArray[np.uint32], key: tuple[Word, Word]) -> NDArray[np.uint32]:
    """Ten rounds of Philox4x32.

    Args:
        counter: uint32 [..., 4].
        key: two 32-bit words, or two uint64 arrays of such words, one for each counter.

    Returns:
        uint32 [..., 4], the random words of each counter.

    >>> [hex(w) for w in philox4x32(np.zeros((1, 4), np.uint32), (0, 0))[0]]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = (np.asarray(word, dtype=np.uint64) for word in key)
    for _ in range(10):
        product_0, product_1 = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> _SHIFT) ^ c1 ^ k0,
            product_1 & _LOW,
            (product_0 >> _SHIFT) ^ c3 ^ k1,
            product_0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def uniform(
    seed: int | NDArray[np.uint64], purpose: Purpose, a: ArrayLike, b: ArrayLike = 0, c: ArrayLike = 0
) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) with 53 random bits, one for each (a, b, c), broadcast.

    Args:
        seed: any integer in [0, 2**64), its two halves the key; or an array of them, one for each number.
        purpose: which use the numbers are for.
        a, b, c: integers in [0, 2**32).

    >>> float(uniform(7, Purpose.TOKEN, 3, 1, 4)) == float(uniform(7, Purpose.TOKEN, [3], 1, 4)[0])
    True
    """
    a, b, c = np.broadcast_arrays(np.asarray(a), np.asarray(b), np.asarray(c))
    counter = np.stack([np.full(a.shape, int(purpose)), a, b, c], axis=-1)
    if counter.size and (counter.min() < 0 or counter.max() > 0xFFFFFFFF):
        raise ValueError("counters must lie in [0, 2**32)")
    key: tuple[Word, Word]
    if isinstance(seed, np.ndarray):
        key = (seed & _LOW, seed >> _SHIFT)
    else:
        key = split_seed(seed)
    words = philox4x32(counter.astype(np.uint32), key).astype(np.uint64)
    high, low = words[..., 0] >> np.uint64(5), words[..., 1] >> np.uint64(6)
    return (high * np.float64(2**26) + low) / np.float64(2**53)


def split_seed(seed: int) -> tuple[int, int]:
    """The two key words of a seed. Raises ValueError outside [0, 2**64)."""
    if not 0 <= seed < 2**64:
        raise ValueError(f"a seed must lie in [0, 2**64), got {seed}")
    return seed & 0xFFFFFFFF, seed >> 32


def derive_seed(seed: int, *salt: int) -> int:
    """A 64-bit seed for a sub-task, a function of the seed and up to three integers.

    >>> derive_seed(1, 2) != derive_seed(1, 3)
    True
    """
    counter = np.zeros((1, 4), np.uint32)
    counter[0, 0] = Purpose.SEED
    counter[0, 1 : 1 + len(salt)] = salt
    words = philox4x32(counter, split_seed(seed))[0]
    return int(words[0]) | int(words[1]) << 32


def permutation(seed: int, purpose: Purpose, size: int, a: int = 0, b: int = 0) -> NDArray[np.int64]:
    """A permutation of range(size), a function of (seed, purpose, a, b) alone.

    Sorts one uniform number per element; ties (probability about size**2 / 2**54) keep
    their order.
    """
    return np.argsort(uniform(seed, purpose, np.arange(size), a, b), kind="stable").astype(np.int64)
