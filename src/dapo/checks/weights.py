"""Weights: what the engine holds against what it was handed, and what an update has moved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dapo.checks.findings import Finding
from dapo.config.schema import Config
from dapo.learner.base import weight_numbers
from dapo.rollout.base import weight_sample

ROUNDING = 2.0**-21  # a step over this share of a float32 weight moves it, with some room
ADAPTER_RATE = 1e-6  # below it, a first product of two adapters may be lost in the weight that it is added to
Named = Iterable[tuple[str, Tensor]]
Samples = Mapping[str, Tensor]


class Handed:
    """Weights on their way to the engine; keeps a sample of each that passes, where `keep` says so.

    Weights that are elsewhere (`source.samples`) bring samples of their own, so that nothing has to be fetched here.

    >>> handed = Handed([("w", torch.ones(3))])
    >>> [name for name, _ in handed], handed.samples()["w"].tolist()
    (['w'], [1.0, 1.0, 1.0])
    """

    def __init__(self, weights: Named, *, keep: bool = True) -> None:
        self.source, self._weights, self._keep = weights, iter(weights), keep
        self._samples: dict[str, Tensor] = {}

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self._weights:
            if self._keep:
                self._samples[name] = weight_sample(weight.detach()).to("cpu", torch.float32, copy=True)
            yield name, weight

    def samples(self) -> Samples:
        """Of all weights, also of those that nobody has taken."""
        if (own := getattr(self.source, "samples", None)) is not None:
            return own()  # type: ignore[no-any-return]
        for _ in self:
            pass
        return self._samples


def held(handed: Samples, in_engine: Named) -> list[Finding]:
    """Weights of the engine that are not, in its own type, what was handed over."""
    wrong = [name for name, sample in in_engine if name not in handed or not _same(handed[name], sample)]
    if not wrong:
        return []
    message = f"weights that the engine decodes with are not those it was given, the first: {wrong[0]}"
    return [Finding(check="engine_weights", message=message, value=float(len(wrong)), bound=0.0)]


def _same(handed: Tensor, sample: Tensor) -> bool:
    sample = sample.detach().cpu()
    return _equal(handed.to(sample.dtype), sample)


def unmoved(before: Samples | None, handed: Samples, *, moved: bool) -> list[Finding]:
    """What is handed over after updates that moved weights is not what was handed over before them."""
    if before is None or not moved or any(not torch.equal(before[name], handed[name]) for name in handed):
        return []
    message = "weights handed to the engine after updates that moved them are those of before"
    return [Finding(check="engine_weights", message=message, value=float(len(handed)), bound=0.0)]


@dataclass(frozen=True, slots=True)
class Standing:
    """Samples of the learner's weights at an instant: of those that updates move, and of the others.

    numbers: how many there are in all trained weights.
    """

    trained: Samples
    others: Samples
    numbers: int

    @classmethod
    def of(cls, parameters: Iterable[tuple[str, Tensor, bool]]) -> Standing:
        """Of (name, weight, whether updates move it)."""
        return cls.of_samples(
            (name, weight_numbers(weight), weight.numel(), moves) for name, weight, moves in parameters
        )

    @classmethod
    def of_samples(cls, samples: Iterable[tuple[str, Tensor, int, bool]]) -> Standing:
        """Of (name, `weight_numbers` of the weight, how many numbers it has, whether updates move it)."""
        trained: dict[str, Tensor] = {}
        others: dict[str, Tensor] = {}
        numbers = 0
        for name, sample, count, moves in samples:
            numbers += count if moves else 0
            (trained if moves else others)[name] = sample
        return cls(trained, others, numbers)

    def moved(self, after: Standing) -> bool:
        """Whether any trained weight is another."""
        return not _same_all(self.trained, after.trained)


def should_move(before: Standing, metrics: Mapping[str, float], rate: float, config: Config) -> bool:
    """Whether an update is large enough to be seen: AdamW's eps, clipping and float32 may swallow it.

    AdamW moves a number by about rate * g / (g + eps), of which float32 sees what is not rounded away beside it.
    """
    norm, train = metrics.get("grad/norm", 0.0), config.train
    if not before.trained or metrics.get("grad/nonfinite") or not 0 < norm < math.inf:
        return False
    typical = min(norm, train.max_grad_norm or math.inf) / math.sqrt(before.numbers)
    size = float(_joined(before.trained).abs().median())
    return rate * min(1.0, typical / train.adam_eps) > ROUNDING * size


def moved(
    before: Standing, after: Standing, metrics: Mapping[str, float], rate: float, config: Config
) -> list[Finding]:
    """After an update: some trained weight moved if it should have, none if it was skipped, and no other ever."""
    skipped, moves = bool(metrics.get("grad/nonfinite")), before.moved(after)
    found = []
    if not moves and should_move(before, metrics, rate, config):
        message = "an update moved none of its weights; numbers of them that were looked at"
        count = sum(sample.numel() for sample in after.trained.values())
        found.append(Finding(check="trained_weights", message=message, value=float(count), bound=0.0))
    if skipped and moves:
        names = _changed(before.trained, after.trained)
        message = f"an update with a gradient that is not finite moved weights, the first: {names[0]}"
        found.append(Finding(check="trained_weights", message=message, value=float(len(names)), bound=0.0))
    if not _same_all(before.others, after.others):
        names = _changed(before.others, after.others)
        message = f"an update moved weights that are not trained, the first: {names[0]}"
        found.append(Finding(check="trained_weights", message=message, value=float(len(names)), bound=0.0))
    return found


def _same_all(before: Samples, after: Samples) -> bool:
    if before.keys() != after.keys():
        return False
    return not before or torch.equal(_joined(before), _joined(after)) or not _changed(before, after)


def _joined(samples: Samples) -> Tensor:
    return torch.cat([sample.float() for sample in samples.values()])


def _changed(before: Samples, after: Samples) -> list[str]:
    """Names of samples that are another, or came, or went; NaN is the same as NaN."""
    names = dict.fromkeys((*before, *after))
    return [name for name in names if name not in before or name not in after or not _equal(before[name], after[name])]


def _equal(one: Tensor, two: Tensor) -> bool:
    if torch.equal(one, two):
        return True
    return one.shape == two.shape and bool(((one == two) | (one.isnan() & two.isnan())).all())
