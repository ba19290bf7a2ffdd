"""The endless stream of prompts: which prompt draw i is about is a function of (seed, i) alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dapo.rng import Purpose, permutation, uniform
from dapo.types import Prompt


class PromptStream:
    """Prompts in the order of (seed, epoch, index).

    Without weights an epoch holds every prompt once. With weights an epoch has as many draws as
    there are prompts; each draw picks a source with its weight and takes the next of its own
    permuted order, from the start again where its share is larger than itself.
    """

    def __init__(
        self,
        by_source: Sequence[Sequence[Prompt]],
        *,
        weights: Sequence[float] | None = None,
        seed: int,
        shuffle: bool = True,
        repeat: bool = True,
    ) -> None:
        self._prompts = [prompt for source in by_source for prompt in source]
        self._sizes = [len(source) for source in by_source]
        self._weights = None if weights is None else np.asarray(weights, dtype=np.float64)
        self._seed, self._shuffle, self._repeat = seed, shuffle, repeat
        self._epoch_order = lru_cache(maxsize=2)(self._order)

    @property
    def epoch_size(self) -> int:
        """Draws in one epoch."""
        return len(self._prompts)

    def prompt(self, index: int) -> Prompt | None:
        """The prompt at a place of the stream; None past the end when the data are not repeated."""
        epoch, place = divmod(index, self.epoch_size)
        if epoch and not self._repeat:
            return None
        return self._prompts[int(self._epoch_order(epoch)[place])]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if self._weights is None:
            if not self._shuffle:
                return np.arange(self.epoch_size, dtype=np.int64)
            return permutation(self._seed, Purpose.DATA_ORDER, self.epoch_size, epoch)
        # One uniform per draw picks the source; its next prompt (of its own order) is taken.
        bounds = np.cumsum(self._weights) / self._weights.sum()
        choice = np.searchsorted(
            bounds, uniform(self._seed, Purpose.DATA_MIXTURE, np.arange(self.epoch_size), epoch), side="right"
        )
        order = np.empty(self.epoch_size, dtype=np.int64)
        start = 0
        for source, size in enumerate(self._sizes):
            places = np.flatnonzero(choice == source)
            rank = np.arange(len(places))
            if self._shuffle:
                own = permutation(self._seed, Purpose.DATA_ORDER, size, epoch, source + 1)
            else:
                own = np.arange(size, dtype=np.int64)
            order[places] = start + own[rank % size]
            start += size
        return order
