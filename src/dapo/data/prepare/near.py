"""Near-duplicates by MinHash: candidates from bands of a signature, each then measured exactly.

Similarity is the Jaccard index of the texts' shingles (`text.shingles`). datasketch makes the signatures; the
bands are kept as one array of 64-bit keys and matched by sorting, at 8 * BANDS bytes a text.

A pair of similarity s shares a band with probability 1 - (1 - s^ROWS)^BANDS: 0.998 at s = 0.8, 0.28 at s = 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dapo.data.prepare.text import figures, key, shingles

BANDS, ROWS = 21, 6
CROWD = 32  # in a crowd that shares a band, a text is measured against the first and the last so many before it
MOST = 128  # and against at most so many in all: then the first ones, of which later ones are mostly repeats
SEED = 1  # of the signatures' hash functions

Keys = NDArray[np.uint64]  # [texts, BANDS]


def similarity(a: str, b: str) -> float:
    """Jaccard index of two texts' shingles, in [0, 1].

    >>> similarity("Find x plus one now", "find $x$ plus one now"), similarity("a b c", "d e f")
    (1.0, 0.0)
    """
    one, other = shingles(a), shingles(b)
    return len(one & other) / len(one | other)


def band_keys(texts: Iterable[str]) -> Keys:
    """One 64-bit key for each text and band; texts that share one are candidates.

    Returns:
        uint64 [texts, BANDS].
    """
    from datasketch import MinHash

    encoded = ([" ".join(run).encode("utf-8", errors="surrogatepass") for run in shingles(text)] for text in texts)
    made = MinHash.generator(encoded, num_perm=BANDS * ROWS, seed=SEED, scheme="affine32", hashfunc=crc32)
    signatures = [minhash.hashvalues for minhash in made]
    if not signatures:
        return np.zeros((0, BANDS), np.uint64)
    rows = np.stack(signatures).astype(np.uint64).reshape(len(signatures), BANDS, ROWS)
    keys = np.zeros((len(signatures), BANDS), np.uint64)
    for row in range(ROWS):
        keys = _mixed(keys, rows[:, :, row])
    return keys


def with_figures(keys: Keys, texts: Iterable[str]) -> Keys:
    """The keys, such that only texts with the same numbers and signs, in order, share one."""
    own = np.fromiter((key(repr(figures(text))) & (2**64 - 1) for text in texts), np.uint64, len(keys))
    return _mixed(keys, own[:, None])


def _mixed(keys: Keys, more: NDArray[np.uint64]) -> Keys:
    keys = (keys ^ more) * np.uint64(0x9E3779B97F4A7C15)  # wraps around, as hashes do
    return keys ^ (keys >> np.uint64(29))


def groups_within(keys: Keys) -> Iterator[NDArray[np.int64]]:
    """Ascending indices of texts that share a band's key, for each such key; a pair may come up in several."""
    for band in range(keys.shape[1]):
        order = np.argsort(keys[:, band], kind="stable")
        ordered = keys[order, band]
        same = np.concatenate(([False], ordered[1:] == ordered[:-1], [False]))
        starts = np.flatnonzero(~same[:-1] & same[1:])
        ends = np.flatnonzero(same[:-1] & ~same[1:]) + 1
        for start, end in zip(starts, ends, strict=True):
            yield order[start:end]


def pairs_between(keys: Keys, known: Keys) -> list[tuple[int, int]]:
    """Distinct (index in keys, index in known) that share a band's key, ascending."""
    found: set[tuple[int, int]] = set()
    for band in range(keys.shape[1]):
        order = np.argsort(known[:, band], kind="stable")
        ordered = known[order, band]
        low = np.searchsorted(ordered, keys[:, band], side="left")
        high = np.searchsorted(ordered, keys[:, band], side="right")
        for index in np.flatnonzero(high > low):
            found.update((int(index), int(other)) for other in order[low[index] : high[index]])
    return sorted(found)


def matches(
    keys: Keys, texts: Callable[[set[int]], Mapping[int, str]], threshold: float
) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """For each text that has some, in order: the earlier texts that it is like, the likest first.

    Args:
        keys: of all texts.
        texts: gives the texts of some indices.
        threshold: least similarity, in (0, 1].

    Yields:
        (index, [(earlier index, similarity), ...]).
    """
    earlier: dict[int, set[int]] = {}
    for group in groups_within(keys):
        members = group.tolist()
        for place, index in enumerate(members[1:], start=1):
            near = members[:place] if place <= 2 * CROWD else members[:CROWD] + members[place - CROWD : place]
            found = earlier.setdefault(index, set())
            if len(found) < MOST:
                found.update(near)
    wanted = set(earlier).union(*earlier.values()) if earlier else set()
    runs = {index: shingles(text) for index, text in texts(wanted).items()}
    for index in sorted(earlier):
        own = runs[index]
        likeness = [(other, len(own & runs[other]) / len(own | runs[other])) for other in sorted(earlier[index])]
        alike = [(other, share) for other, share in likeness if share >= threshold]
        if alike:
            yield index, sorted(alike, key=lambda pair: -pair[1])
