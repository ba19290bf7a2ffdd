"""Two evaluations of the same problems, or two groups of them over training seeds, held against each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dapo.errors import UserError
from dapo.evals.estimators import maj_at_k, pass_at_k, powers_of_two
from dapo.evals.figures import sparse
from dapo.evals.intervals import NONE, Interval, envelope
from dapo.evals.paired import RANGE, Paired, paired, seeds, welch
from dapo.evals.phrases import PhraseShare, phrase_shares
from dapo.evals.results import RIGHT, Result, plain
from dapo.evals.settings import changed_names

DATA = "data"  # the name by which another set of problems is allowed
Pairs = list[tuple[Result, Result]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """An evaluation to be compared: what it is called, its settings, its results by set."""

    label: str
    place: str = ""  # its own, however it was called; the label where it has none
    settings: Mapping[str, Any]
    results: Mapping[str, Sequence[Result]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtKDifference:
    """pass@k or maj@k before and after, over the same problems; t interval of the paired difference.

    NaN bounds where all problems differ alike; `direction` then goes by the sign test over them.
    """

    k: int
    before: float
    after: float
    difference: float
    low: float
    high: float
    problems: int

    @property
    def direction(self) -> str:
        """rose, fell, or open where 0 may be the truth (95%)."""
        alike = math.isnan(self.low) and 2.0 ** (1 - self.problems) < 0.05
        if self.low > 0 or (alike and self.difference > 0):
            return "rose"
        return "fell" if self.high < 0 or (alike and self.difference < 0) else "open"


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
    differ at 5% after Holm's correction over all problems of the set. gained, lost: problems without a right
    sample before that have one after, and the other way round. warnings: see `figures.sparse`.
    """

    name: str
    before: float
    after: float
    paired: Paired
    pass_at: tuple[AtKDifference, ...]
    maj_at: tuple[AtKDifference, ...]
    movers: tuple[Mover, ...]
    beyond_chance: tuple[int, int]
    gained: int
    lost: int
    warnings: tuple[str, ...]
    phrases: tuple[dict[str, PhraseShare], dict[str, PhraseShare]]
    lengths: tuple[float, float]
    left_out: int

    def summary(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found = {
            name: getattr(self, name)
            for name in ("name", "before", "after", "beyond_chance", "gained", "lost", "warnings", "left_out")
        }
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


def check_comparable(measured: Sequence[Measured], allowed: Collection[str], *, seeds: bool = False) -> list[str]:
    """Notes on what differs and was allowed.

    Args:
        measured: to be compared.
        allowed: names of what may differ.
        seeds: whether they are groups over training seeds, which need the very same problems.

    Raises:
        UserError: sampling settings, wording or graders differ, or the problems do, and were not allowed by
            name; nothing of an allowed name differs; or one evaluation stands twice in a group over seeds.
    """
    if seeds and len({one.place or one.label for one in measured}) < len(measured):
        raise UserError("an evaluation is named twice; over training seeds each has to be another run")
    first, notes, differing = measured[0], [], set[str]()
    for other in measured[1:]:
        found = changed_names(first.settings, other.settings)
        for name in common_sets(first, other):
            if not same_problems(name, first, other):
                found.setdefault(DATA, f"data: the problems of {name} are not the same")
        refused = [name for name in found if name not in allowed or (seeds and name == DATA)]
        if refused:
            mend = f"evaluate both alike, or allow it by name: {' '.join(f'--allow {name}' for name in refused)}"
            if seeds and DATA in refused:
                mend = "over training seeds the problems have to be the same"
            what = "; ".join(found[name] for name in refused)
            raise UserError(f"{first.label} and {other.label} can't be compared: {what}; {mend}")
        notes += [f"allowed: {line}" for line in found.values()]
        differing |= set(found)
    if idle := [name for name in allowed if name not in differing]:
        raise UserError(f"--allow {idle[0]}: nothing of that name differs; leave it out")
    return list(dict.fromkeys(notes))


def same_problems(name: str, first: Measured, other: Measured) -> bool:
    """Whether a set holds the same problems in both: the same rows, asked alike where the wording is the same."""
    a, b = (one.settings.get("sets", {}).get(name, {}) for one in (first, other))
    worded_alike = first.settings.get("prompt") == other.settings.get("prompt")
    fields = ("digest", "asked") if worded_alike else ("digest",)
    return all(a.get(field) is not None and a.get(field) == b.get(field) for field in fields)


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
    check_graded(name, [result for pair in pairs for result in pair])
    counts = [[(pair[side].samples, pair[side].right) for pair in pairs] for side in (0, 1)]
    sparseness = [sparse([pair[side].mean for pair in pairs]) for side in (0, 1)]
    difference = paired(counts[0], counts[1], seed=seed)
    alone = difference.set_low, difference.set_high
    voted = all(result.votes is not None for pair in pairs for result in pair)
    movers = sorted(_movers(pairs), key=lambda mover: (-abs(mover.change), mover.id))
    return SetComparison(
        name=name,
        before=_mean([pair[0].mean for pair in pairs]),
        after=_mean([pair[1].mean for pair in pairs]),
        paired=difference,
        pass_at=_at_every_k(pairs, alone, _pass),
        maj_at=_at_every_k(pairs, alone, _maj) if voted else (),
        movers=tuple(movers),
        beyond_chance=_beyond_chance(movers, len(pairs)),
        gained=sum(not first.right and second.right > 0 for first, second in pairs),
        lost=sum(first.right > 0 and not second.right for first, second in pairs),
        warnings=tuple(f"{side}: {reason}" for side, reason in zip("AB", sparseness, strict=True) if reason),
        phrases=(_phrases([pair[0] for pair in pairs]), _phrases([pair[1] for pair in pairs])),
        lengths=(_length([pair[0] for pair in pairs]), _length([pair[1] for pair in pairs])),
        left_out=left_out,
    )


def check_graded(name: str, results: Sequence[Result]) -> None:
    """Raises UserError where rewards say nothing of right and wrong."""
    if not all(result.graded for result in results):
        raise UserError(f"{name}: its rewards say nothing of right and wrong; there is no accuracy to compare")


def pair_up(name: str, before: Measured, after: Measured) -> tuple[Pairs, int]:
    """(pairs of results of the same problem, how many problems have no partner).

    Problems of the same data are paired by their place, whatever words were put around them; of other data by
    what the model was asked.
    """
    first, second = before.results[name], after.results[name]
    if same_problems(name, before, after):
        by_place = {result.draw: result for result in second}
        pairs = [(result, by_place[result.draw]) for result in first if result.draw in by_place]
    else:
        by_id = {result.id: result for result in reversed(second)}
        once = {result.id: result for result in reversed(first)}
        pairs = [(result, by_id[result.id]) for result in first if once[result.id] is result and result.id in by_id]
    if not pairs:
        raise UserError(f"{name}: {before.label} and {after.label} have no problem in common, as the models were asked")
    return pairs, len(first) + len(second) - 2 * len(pairs)


def over_seeds(name: str, group: Sequence[Measured]) -> SeedFigures:
    """avg@k of a group of evaluations on one set. Raises UserError where rewards say nothing of right and wrong."""
    for one in group:
        check_graded(name, one.results[name])
    values = tuple(_mean([result.mean for result in one.results[name]]) for one in group)
    mean, low, high = seeds(values)
    return SeedFigures(name=name, values=values, mean=mean, low=low, high=high)


def compare_seeds(name: str, before: Sequence[Measured], after: Sequence[Measured]) -> SeedComparison:
    """Two groups of evaluations, one for each training seed, on one set."""
    first, second = over_seeds(name, before), over_seeds(name, after)
    difference, low, high = welch(first.values, second.values)
    return SeedComparison(name=name, before=first, after=second, difference=difference, low=low, high=high)


def _at_every_k(pairs: Pairs, alone: Interval, figure: Callable[[Result, int], float]) -> tuple[AtKDifference, ...]:
    """A figure of k samples, for every k that both sides have."""
    most = min(result.samples for pair in pairs for result in pair)
    found = []
    for k in powers_of_two(most):
        before, after = ([figure(pair[side], k) for pair in pairs] for side in (0, 1))
        found.append(_difference(k, before, after, alone))
    return tuple(found)


def _pass(result: Result, k: int) -> float:
    return pass_at_k(result.samples, result.right, k)


def _maj(result: Result, k: int) -> float:
    return maj_at_k(result.votes or (), RIGHT, k)[0]


def _difference(k: int, before: Sequence[float], after: Sequence[float], alone: Interval) -> AtKDifference:
    differences = [b - a for a, b in zip(before, after, strict=True)]
    low, high = envelope(differences, alone if k == 1 else NONE, RANGE)
    return AtKDifference(
        k=k,
        before=_mean(before),
        after=_mean(after),
        difference=_mean(differences),
        low=low,
        high=high,
        problems=len(differences),
    )


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
