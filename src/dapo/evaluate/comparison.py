"""Two evaluations of the same problems, or two groups of them over training seeds, held against each other."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dapo.errors import UserError
from dapo.evaluate.estimators import maj_at_k, pass_at_k, powers_of_two
from dapo.evaluate.intervals import NONE, t_interval
from dapo.evaluate.paired import RANGE, Paired, paired, seeds, welch
from dapo.evaluate.phrases import PhraseShare, phrase_shares
from dapo.evaluate.results import RIGHT, Result, plain
from dapo.evaluate.settings import changed_names

DATA = "data"  # the name by which another set of problems is allowed
Pairs = list[tuple[Result, Result]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """An evaluation to be compared: what it is called, its settings, its results by set."""

    label: str
    settings: Mapping[str, Any]
    results: Mapping[str, Sequence[Result]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtKDifference:
    """pass@k or maj@k before and after, over the same problems; t interval of the paired difference."""

    k: int
    before: float
    after: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover:
    """A problem whose share of right samples changed; p_value: Fisher's exact test on its two counts alone."""

    id: str
    question: str
    before: tuple[int, int]
    after: tuple[int, int]
    p_value: float

    @property
    def change(self) -> float:
        """Difference of the shares of right samples."""
        return self.after[1] / self.after[0] - self.before[1] / self.before[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetComparison:
    """One set: accuracies, the paired difference, pass@k and maj@k, problems that moved, phrases.

    left_out: problems that stand in only one of the two. beyond_chance: movers up and down whose own counts
    differ at 5% after Holm's correction over all problems of the set.
    """

    name: str
    before: float
    after: float
    paired: Paired
    pass_at: tuple[AtKDifference, ...]
    maj_at: tuple[AtKDifference, ...]
    movers: tuple[Mover, ...]
    beyond_chance: tuple[int, int]
    phrases: tuple[dict[str, PhraseShare], dict[str, PhraseShare]]
    lengths: tuple[float, float]
    left_out: int

    def summary(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found = {name: getattr(self, name) for name in ("name", "before", "after", "beyond_chance", "left_out")}
        found |= {"paired": asdict(self.paired), "length_mean_tokens": self.lengths}
        found |= {name: [asdict(f) for f in getattr(self, name)] for name in ("pass_at", "maj_at")}
        found["movers"] = [asdict(mover) | {"change": mover.change} for mover in self.movers]
        found["phrases"] = [{kind: asdict(share) for kind, share in side.items()} for side in self.phrases]
        return plain(found)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedFigures:
    """One set over training seeds: avg@k of each evaluation, their mean and t interval (the seed is the unit)."""

    name: str
    values: tuple[float, ...]
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedComparison:
    """Two groups of seeds on one set; difference of means with Welch's t interval."""

    name: str
    before: SeedFigures
    after: SeedFigures
    difference: float
    low: float
    high: float


def check_comparable(measured: Sequence[Measured], allowed: Collection[str]) -> list[str]:
    """Notes on what differs and was allowed.

    Raises:
        UserError: sampling settings, wording or graders differ, or the problems do, and were not allowed by name.
    """
    first, notes = measured[0], []
    for other in measured[1:]:
        found = changed_names(first.settings, other.settings)
        for name in common_sets(first, other):
            digests = [one.settings.get("sets", {}).get(name, {}).get("digest") for one in (first, other)]
            if digests[0] != digests[1] or digests[0] is None:
                found.setdefault(DATA, f"data: the problems of {name} are not the same")
        refused = [name for name in found if name not in allowed]
        if refused:
            raise UserError(
                f"{first.label} and {other.label} can't be compared: {'; '.join(found[name] for name in refused)}; "
                f"evaluate both alike, or allow it by name: {' '.join(f'--allow {name}' for name in refused)}"
            )
        notes += [f"allowed: {line}" for line in found.values()]
    return list(dict.fromkeys(notes))


def common_sets(first: Measured, other: Measured) -> list[str]:
    """The sets that both have. Raises UserError when there is none."""
    names = [name for name in first.results if name in other.results]
    if not names:
        raise UserError(
            f"{first.label} and {other.label} have no set in common: "
            f"{', '.join(first.results) or 'none'} against {', '.join(other.results) or 'none'}"
        )
    return names


def compare_set(name: str, before: Measured, after: Measured, *, seed: int = 0) -> SetComparison:
    """The comparison of one set, paired over problems.

    Raises:
        UserError: no problem in common, or rewards that say nothing of right and wrong.
    """
    pairs, left_out = pair_up(name, before, after)
    if not all(result.graded for pair in pairs for result in pair):
        raise UserError(f"{name}: its rewards say nothing of right and wrong; there is no accuracy to compare")
    counts = [[(pair[side].samples, pair[side].right) for pair in pairs] for side in (0, 1)]
    movers = sorted(_movers(pairs), key=lambda mover: (-abs(mover.change), mover.id))
    return SetComparison(
        name=name,
        before=_mean([pair[0].mean for pair in pairs]),
        after=_mean([pair[1].mean for pair in pairs]),
        paired=paired(counts[0], counts[1], seed=seed),
        pass_at=_pass_at(pairs),
        maj_at=_maj_at(pairs),
        movers=tuple(movers),
        beyond_chance=_beyond_chance(movers, len(pairs)),
        phrases=(_phrases([pair[0] for pair in pairs]), _phrases([pair[1] for pair in pairs])),
        lengths=(_length([pair[0] for pair in pairs]), _length([pair[1] for pair in pairs])),
        left_out=left_out,
    )


def pair_up(name: str, before: Measured, after: Measured) -> tuple[Pairs, int]:
    """(pairs of results of the same problem, how many problems have no partner).

    Problems of the same data are paired by their place, whatever words were put around them; of other data by
    what the model was asked.
    """
    first, second = before.results[name], after.results[name]
    digests = [one.settings.get("sets", {}).get(name, {}).get("digest") for one in (before, after)]
    if digests[0] == digests[1] and len(first) == len(second):
        return list(zip(first, second, strict=True)), 0
    by_id = {result.id: result for result in second}
    pairs = [(result, by_id[result.id]) for result in first if result.id in by_id]
    if not pairs:
        raise UserError(f"{name}: {before.label} and {after.label} have no problem in common, as the models were asked")
    return pairs, len(first) + len(second) - 2 * len(pairs)


def over_seeds(name: str, group: Sequence[Measured]) -> SeedFigures:
    """avg@k of a group of evaluations on one set."""
    values = tuple(_mean([result.mean for result in one.results[name]]) for one in group)
    mean, low, high = seeds(values)
    return SeedFigures(name=name, values=values, mean=mean, low=low, high=high)


def compare_seeds(name: str, before: Sequence[Measured], after: Sequence[Measured]) -> SeedComparison:
    """Two groups of evaluations, one for each training seed, on one set."""
    first, second = over_seeds(name, before), over_seeds(name, after)
    difference, low, high = welch(first.values, second.values)
    return SeedComparison(name=name, before=first, after=second, difference=difference, low=low, high=high)


def _pass_at(pairs: Pairs) -> tuple[AtKDifference, ...]:
    most = min(result.samples for pair in pairs for result in pair)
    return tuple(
        _difference(k, [[pass_at_k(pair[side].samples, pair[side].right, k) for pair in pairs] for side in (0, 1)])
        for k in powers_of_two(most)
    )


def _maj_at(pairs: Pairs) -> tuple[AtKDifference, ...]:
    if any(result.votes is None for pair in pairs for result in pair):
        return ()
    most = min(result.samples for pair in pairs for result in pair)
    return tuple(
        _difference(k, [[maj_at_k(pair[side].votes or (), RIGHT, k)[0] for pair in pairs] for side in (0, 1)])
        for k in powers_of_two(most)
    )


def _difference(k: int, values: Sequence[Sequence[float]]) -> AtKDifference:
    differences = [after - before for before, after in zip(*values, strict=True)]
    low, high = t_interval(differences, RANGE) if len(set(differences)) > 1 else NONE
    before, after = map(_mean, values)
    return AtKDifference(k=k, before=before, after=after, difference=_mean(differences), low=low, high=high)


def _movers(pairs: Pairs) -> list[Mover]:
    from scipy.stats import fisher_exact

    found = []
    for first, second in pairs:
        if first.mean == second.mean:
            continue
        table = [[first.right, first.samples - first.right], [second.right, second.samples - second.right]]
        found.append(
            Mover(
                id=first.id,
                question=first.question,
                before=(first.samples, first.right),
                after=(second.samples, second.right),
                p_value=float(fisher_exact(table).pvalue),
            )
        )
    return found


def _beyond_chance(movers: Sequence[Mover], problems: int) -> tuple[int, int]:
    """Holm's procedure over all problems of the set (those that did not move have p = 1)."""
    up = down = 0
    for rank, mover in enumerate(sorted(movers, key=lambda one: one.p_value)):
        if mover.p_value > 0.05 / (problems - rank):
            break
        up, down = up + (mover.change > 0), down + (mover.change < 0)
    return up, down


def _phrases(results: Sequence[Result]) -> dict[str, PhraseShare]:
    return phrase_shares((row["phrases"], row["correct"]) for result in results for row in result.rows)


def _length(results: Sequence[Result]) -> float:
    return _mean([row["tokens"] for result in results for row in result.rows])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
