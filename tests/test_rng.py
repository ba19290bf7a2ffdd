"""Philox against the published answers and a word-at-a-time oracle; then what a user of it relies on."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dapo.rng import Purpose, derive_seed, permutation, philox4x32, split_seed, uniform

WORD = 0xFFFFFFFF
words = st.integers(0, WORD)
seeds = st.integers(0, 2**64 - 1)

# Random123, kat_vectors: "philox4x32 10", counter, key, answer.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def parse(text: str) -> list[int]:
    """Hexadecimal words."""
    return [int(word, 16) for word in text.split()]


def philox_oracle(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds of Philox4x32 in Python's own integers (Salmon et al. 2011, section 3.3)."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * x0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * x2, 2**32)
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [x0, x1, x2, x3]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers_of_random123(counter: str, key: str, answer: str) -> None:
    """The generator is Philox4x32-10 and no relative of it."""
    k0, k1 = parse(key)
    result = philox4x32(np.array(parse(counter), np.uint32), (k0, k1))
    assert result.dtype == np.uint32
    assert [int(word) for word in result] == parse(answer)
    assert philox_oracle(parse(counter), parse(key)) == parse(answer)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.lists(words, min_size=4, max_size=4), min_size=1, max_size=5), words, words)
def test_every_counter_of_an_array_by_itself(counters: list[list[int]], k0: int, k1: int) -> None:
    """Vectorising mixes no counters up, for any words and key."""
    result = philox4x32(np.array(counters, np.uint32).reshape(-1, 1, 4), (k0, k1))
    assert result.shape == (len(counters), 1, 4)
    assert result.reshape(-1, 4).tolist() == [philox_oracle(counter, [k0, k1]) for counter in counters]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seeds, st.sampled_from(Purpose), words, words, words)
def test_uniform_is_53_bits_of_its_own_counter(seed: int, purpose: Purpose, a: int, b: int, c: int) -> None:
    """Counter (purpose, a, b, c), key (low half, high half): what a run of last year drew stays drawn.

    53 bits: the upper 27 of word 0, then the upper 26 of word 1, over 2**53.
    """
    word0, word1, _, _ = philox_oracle([int(purpose), a, b, c], [seed % 2**32, seed // 2**32])
    expected = ((word0 >> 5) * 2**26 + (word1 >> 6)) / 2**53
    value = uniform(seed, purpose, a, b, c)
    assert float(value) == expected
    assert 0.0 <= expected < 1.0


def test_uniform_broadcasts_as_scalars_would_give() -> None:
    """Asking for many numbers at once, in any dtype, gives what asking one by one gives."""
    draws, tokens = np.arange(3, dtype=np.int32)[:, None], np.arange(5, dtype=np.uint64)[None, :]
    block = uniform(11, Purpose.TOKEN, draws, 2, tokens)
    assert block.shape == (3, 5)
    assert block.dtype == np.float64
    for d, t in itertools.product(range(3), range(5)):
        assert block[d, t] == uniform(11, Purpose.TOKEN, d, 2, t)
    assert uniform(11, Purpose.TOKEN, np.arange(0)).shape == (0,)


def test_uniform_takes_a_seed_for_each_number() -> None:
    """Draws with seeds of their own, in one call: each as by itself, both halves of the seed in use."""
    many = np.array([0, 7, 2**32, 2**64 - 1], dtype=np.uint64)
    got = uniform(many, Purpose.TOKEN, [1, 2, 3, 4], 5, 6)
    assert got.tolist() == [float(uniform(int(s), Purpose.TOKEN, i + 1, 5, 6)) for i, s in enumerate(many)]


@pytest.mark.parametrize("argument", ["a", "b", "c"])
@pytest.mark.parametrize("seed", [0, 2**40 + 17])
def test_uniform_along_each_counter(seed: int, argument: str) -> None:
    """Neighbouring counters give uniform, uncorrelated numbers whichever word moves.

    Fixed seeds, so no chance of a flake; 1e-3 is the level at which a true uniform would fail once
    in a thousand choices of seed.
    """
    n = 20_000
    counters: dict[str, object] = {"a": 5, "b": 6, "c": 7, argument: np.arange(n)}
    values = uniform(seed, Purpose.TOKEN, counters["a"], counters["b"], counters["c"])
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert stats.chisquare(np.bincount((values * 100).astype(int), minlength=100)).pvalue > 1e-3
    pairs = np.bincount((values[:-1] * 10).astype(int) * 10 + (values[1:] * 10).astype(int), minlength=100)
    assert stats.chisquare(pairs).pvalue > 1e-3
    assert len(np.unique(values)) == n


def test_the_last_bits_are_random_too() -> None:
    """All 53 bits are set half of the time: |mean - 1/2| < 5 sigma, sigma = 1 / (2 sqrt(n))."""
    n = 20_000
    integers = (uniform(3, Purpose.TOKEN, np.arange(n)) * 2**53).astype(np.uint64)
    for bit in range(53):
        share = float(((integers >> np.uint64(bit)) & np.uint64(1)).mean())
        assert abs(share - 0.5) < 5 / (2 * n**0.5), bit


def test_independent_across_purposes_and_seeds() -> None:
    """No two uses of the generator share a number or move together."""
    n = 4_000
    streams = [uniform(seed, p, np.arange(n)) for p in Purpose for seed in (0, 1, 2**32, 2**63)]
    assert len(np.unique(np.concatenate(streams))) == n * len(streams)
    correlations = np.corrcoef(streams)[~np.eye(len(streams), dtype=bool)]
    assert np.abs(correlations).max() < 5 / n**0.5  # sigma = 1 / sqrt(n)


def test_purposes_are_distinct_and_fixed() -> None:
    """A renumbered purpose would change every run's samples."""
    values = {purpose.name: int(purpose) for purpose in Purpose}
    assert len(set(values.values())) == len(values)
    known = {"TOKEN": 1, "DATA_ORDER": 2, "DATA_MIXTURE": 3, "SEED": 4, "PERMUTATION": 5}
    assert {name: values.get(name) for name in known} == known


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seeds, st.integers(0, 300), words, words)
def test_permutation_is_one_and_a_function_of_its_arguments(seed: int, size: int, a: int, b: int) -> None:
    """Every element once, the same again when asked again."""
    first = permutation(seed, Purpose.PERMUTATION, size, a, b)
    assert first.dtype == np.int64
    assert sorted(first.tolist()) == list(range(size))
    assert np.array_equal(first, permutation(seed, Purpose.PERMUTATION, size, a, b))


def test_permutation_changes_with_each_argument() -> None:
    """Another epoch, seed or use is another order (50! orders: none agree by chance)."""
    base = permutation(1, Purpose.DATA_ORDER, 50, 2, 3).tolist()
    others = [
        permutation(2, Purpose.DATA_ORDER, 50, 2, 3),
        permutation(1, Purpose.PERMUTATION, 50, 2, 3),
        permutation(1, Purpose.DATA_ORDER, 50, 3, 3),
        permutation(1, Purpose.DATA_ORDER, 50, 2, 4),
    ]
    assert all(base != other.tolist() for other in others)
    assert base != list(range(50))


def test_permutations_are_equally_likely() -> None:
    """All 24 orders of four elements occur equally often over epochs (chi-square)."""
    orders = list(itertools.permutations(range(4)))
    counts = dict.fromkeys(orders, 0)
    for epoch in range(4_800):
        counts[tuple(permutation(9, Purpose.DATA_ORDER, 4, epoch).tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_are_refused(seed: int) -> None:
    """Wrapping round would make two seeds the same run."""
    for call in (
        lambda: split_seed(seed),
        lambda: uniform(seed, Purpose.TOKEN, 0),
        lambda: permutation(seed, Purpose.TOKEN, 3),
        lambda: derive_seed(seed, 1),
    ):
        with pytest.raises(ValueError, match="seed"):
            call()


@pytest.mark.parametrize("bad", [-1, 2**32, 2**64, [0, -5], [0, 2**32]])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_counters_out_of_range_are_refused(bad: int | list[int], position: int) -> None:
    """Wrapping round would reuse another token's number."""
    arguments: list[object] = [0, 0, 0]
    arguments[position] = bad
    with pytest.raises(ValueError, match=r"2\*\*32"):
        uniform(0, Purpose.TOKEN, *arguments)


def test_split_seed_puts_the_halves_together_again() -> None:
    """Both halves of a seed count."""
    assert split_seed(0x0123456789ABCDEF) == (0x89ABCDEF, 0x01234567)
    assert uniform(1, Purpose.TOKEN, 0) != uniform(1 + 2**32, Purpose.TOKEN, 0)


def test_derived_seeds_are_seeds_of_their_own() -> None:
    """64-bit, all different, a function of seed and salt in order."""
    salts = [(), (1,), (2,), (1, 2), (2, 1), (1, 2, 3), (3, 2, 1)]
    derived = [derive_seed(seed, *salt) for seed in (0, 1, 2**32) for salt in salts]
    assert len(set(derived)) == len(derived)
    assert all(0 <= value < 2**64 for value in derived)
    assert max(derived) > 2**60  # the upper word is in use
    assert derived[:7] == [derive_seed(0, *salt) for salt in salts]


@pytest.mark.parametrize("salt", [(-1,), (2**32,), (1, 2, 3, 4)])
def test_salts_out_of_range_are_refused(salt: tuple[int, ...]) -> None:
    """A salt that was cut to fit would give two sub-tasks one seed."""
    with pytest.raises((ValueError, OverflowError)):
        derive_seed(0, *salt)
