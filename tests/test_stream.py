"""The stream of prompts: its order is a function of (seed, epoch, index) and of nothing else."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from dapo.data import PromptStream
from dapo.types import Prompt


def sources(*sizes: int) -> list[list[Prompt]]:
    """Sources a, b, c of prompts a0, a1, ..."""
    ids = np.zeros(1, np.int32)
    return [
        [
            Prompt(id=f"{'abc'[s]}{i}", messages=None, text="q", answer="1", source="s", token_ids=ids)
            for i in range(size)
        ]
        for s, size in enumerate(sizes)
    ]


def stream(*sizes: int, seed: int = 0, **options: Any) -> PromptStream:
    """A stream over such sources."""
    return PromptStream(sources(*sizes), seed=seed, **options)


def names(made: PromptStream, indices: Sequence[int]) -> list[str]:
    """Names of the prompts at these places."""
    found = [made.prompt(index) for index in indices]
    return [prompt.id for prompt in found if prompt is not None]


WEIGHTED = {"weights": [1.0, 2.0]}


@pytest.mark.parametrize("options", [{}, WEIGHTED, {"shuffle": False}, {**WEIGHTED, "shuffle": False}])
def test_random_access_is_sequential_access(options: dict[str, Any]) -> None:
    """No state: any order of asking, from any object, gives the same prompt at the same place."""
    sequential = names(stream(7, 5, seed=3, **options), range(60))
    backwards = names(stream(7, 5, seed=3, **options), list(range(60))[::-1])[::-1]
    alone = [names(stream(7, 5, seed=3, **options), [index])[0] for index in range(60)]
    assert sequential == backwards == alone


def test_another_process_sees_the_same_order() -> None:
    """Nothing comes from hash randomisation or a process's own generators."""
    code = f"""
import random
import numpy as np
from dapo.data import PromptStream
from dapo.types import Prompt
random.seed(9), np.random.seed(9)
{inspect.getsource(sources)}
for weights in (None, [1.0, 2.0]):
    made = PromptStream(sources(7, 5), seed=3, weights=weights)
    print(*[made.prompt(index).id for index in range(40)])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    plain, weighted = (line.split() for line in run.stdout.splitlines())
    assert plain == names(stream(7, 5, seed=3), range(40))
    assert weighted == names(stream(7, 5, seed=3, **WEIGHTED), range(40))


def test_every_prompt_once_an_epoch_in_another_order() -> None:
    """Without weights an epoch is a permutation, and no two epochs or seeds share theirs."""
    made = stream(20, 13)
    everything = sorted(prompt.id for source in sources(20, 13) for prompt in source)
    assert made.epoch_size == 33
    epochs = [names(made, range(33 * e, 33 * (e + 1))) for e in range(6)]
    assert all(sorted(epoch) == everything for epoch in epochs)
    other = names(stream(20, 13, seed=1), range(33))
    assert len({tuple(order) for order in [*epochs, other]}) == 7


def test_the_order_is_uniform() -> None:
    """Each of 4 prompts stands first in about a quarter of the epochs (chi-square, fixed seed)."""
    made = stream(4)
    first = Counter(names(made, [4 * epoch for epoch in range(400)]))
    assert chisquare([first[f"a{i}"] for i in range(4)]).pvalue > 1e-3


def test_without_shuffle_the_file_decides() -> None:
    """shuffle = false: the sources one after the other, again and again."""
    order = ["a0", "a1", "a2", "b0", "b1"]
    assert names(stream(3, 2, shuffle=False), range(10)) == order * 2


@pytest.mark.parametrize("options", [{}, WEIGHTED, {"shuffle": False}])
def test_without_repeat_the_stream_ends(options: dict[str, Any]) -> None:
    """repeat = false: the first epoch is that of an endless stream, then None for ever."""
    once, endless = stream(3, 2, repeat=False, **options), stream(3, 2, **options)
    assert names(once, range(5)) == names(endless, range(5))
    assert [once.prompt(index) for index in (5, 6, 10, 1000)] == [None] * 4
    assert len(names(endless, range(1000))) == 1000


def test_weights_are_honoured() -> None:
    """Draws fall on the sources as 1 : 2 : 5, whatever their sizes (chi-square, fixed seed)."""
    made = stream(60, 30, 10, weights=[1.0, 2.0, 5.0])
    count = Counter(name[0] for name in names(made, range(8000)))
    assert chisquare([count["a"], count["b"], count["c"]], [1000, 2000, 5000]).pvalue > 1e-3
    # The scale of the weights means nothing.
    assert names(made, range(200)) == names(stream(60, 30, 10, weights=[0.1, 0.2, 0.5]), range(200))


def test_a_weighted_source_is_gone_through_evenly() -> None:
    """Within an epoch no prompt of a source comes k + 1 times before all came k times, and orders differ."""
    made = stream(6, 4, weights=[1.0, 3.0])
    for epoch in range(5):
        drawn = names(made, range(10 * epoch, 10 * (epoch + 1)))
        for letter, size in (("a", 6), ("b", 4)):
            own = [name for name in drawn if name[0] == letter]
            for start in range(0, len(own), size):
                assert len(set(own[start : start + size])) == len(own[start : start + size])
            counts = Counter(own)
            assert max(counts.values(), default=0) <= len(own) // size + 1
    assert len({tuple(n for n in names(made, range(10 * e, 10 * e + 10)) if n[0] == "b")[:4] for e in range(12)}) > 4
