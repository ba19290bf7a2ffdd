"""The tables of a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dapo.evals.comparison import AtKDifference, Mover, SeedComparison, SeedFigures, SetComparison
from dapo.evals.tables import QUESTION, Table, percent
from dapo.printable import one_line

SEED_NOTE = (
    "intervals over training seeds: the seed is the unit (t, n - 1; Welch's for a difference), so they also hold "
    "what another seed would change; problems are the same throughout"
)


def comparison_tables(before: str, after: str, sets: Sequence[SetComparison], movers: int) -> list[Table]:
    """Differences of every set, then pass@k and maj@k and the movers of each."""
    tables = [_differences(before, after, sets)]
    for one in sets:
        tables.append(_by_k(one))
        shown = [*_top(one.movers, movers, up=True), *_top(one.movers, movers, up=False)]
        if shown:
            tables.append(_movers(one.name, shown))
    return tables


def _differences(before: str, after: str, sets: Sequence[SetComparison]) -> Table:
    heads = ["set", "problems", "A", "B", "B - A, points", "95%, population", "95%, bootstrap",
             "95%, this set alone", "p"]  # fmt: skip
    rows = []
    for one in sets:
        p = one.paired
        rows.append(
            [
                one.name,
                str(p.problems),
                percent(one.before),
                percent(one.after),
                signed(p.difference),
                signed_between(p.low, p.high),
                signed_between(p.bootstrap_low, p.bootstrap_high),
                signed_between(p.set_low, p.set_high),
                probability(p.p_value),
            ]
        )
    return Table(f"avg@k, paired over problems; A = {before}, B = {after}", heads, rows)


def _by_k(one: SetComparison) -> Table:
    maj = {f.k: f for f in one.maj_at}
    heads = ["k", "pass@k A", "B", "B - A", "95%", "maj@k A", "B", "B - A", "95%"]
    rows = [[str(f.k), *_difference(f), *_difference(maj.get(f.k))] for f in one.pass_at]
    return Table(f"{one.name}: pass@k and maj@k", heads, rows)


def _difference(f: AtKDifference | None) -> list[str]:
    if f is None:
        return ["-"] * 4
    return [percent(f.before), percent(f.after), signed(f.difference), signed_between(f.low, f.high)]


def _top(movers: Sequence[Mover], count: int, *, up: bool) -> list[Mover]:
    return [mover for mover in movers if (mover.change > 0) is up][:count]


def _movers(name: str, movers: Sequence[Mover]) -> Table:
    heads = ["problem", "id", "A right", "B right", "change", "p of this problem alone"]
    rows = [
        [
            one_line(mover.question, QUESTION),
            mover.id[:8],
            f"{mover.before[1]}/{mover.before[0]}",
            f"{mover.after[1]}/{mover.after[0]}",
            signed(mover.change),
            probability(mover.p_value),
        ]
        for mover in movers
    ]
    return Table(f"{name}: problems that moved most", heads, rows)


def comparison_notes(sets: Sequence[SetComparison]) -> list[str]:
    """What has to be said beside the tables."""
    found = []
    for one in sets:
        p, (up, down) = one.paired, one.beyond_chance
        found += [f"{one.name}: WARNING: intervals over the population may hold less often than 95%: {warning}"
                  for warning in one.warnings]  # fmt: skip
        found.append(
            f"{one.name}: {p.up} problems up, {p.down} down, {p.same} the same; by their own samples alone {up} up and "
            f"{down} down are beyond chance (Fisher, Holm over {p.problems}, 5%{_too_few(one)})"
        )
        found.append(f"{one.name}: {reading(one)}")
        found.append(f"{one.name}: mean length {one.lengths[0]:.1f} -> {one.lengths[1]:.1f} tokens")
        for kind in one.phrases[0]:
            a, b = one.phrases[0][kind], one.phrases[1][kind]
            found.append(
                f"{one.name}: {kind} phrases in {percent(a.right)} -> {percent(b.right)} of right, "
                f"{percent(a.wrong)} -> {percent(b.wrong)} of wrong responses"
            )
        if one.left_out:
            found.append(f"{one.name}: {one.left_out} problems stand in only one of the two and are left out")
    found.append(
        "p: two-sided sign-flip permutation test over problems; none where A and B have different numbers of samples"
    )
    if len(sets) > 1:
        found.append(f"the p values and intervals of {len(sets)} sets are not corrected for there being {len(sets)}")
    return found


def _too_few(one: SetComparison) -> str:
    """Said where no problem could be, with so few samples."""
    from scipy.stats import fisher_exact

    n = one.pass_at[-1].k
    least = float(fisher_exact([[0, n], [n, 0]]).pvalue)
    return f"; {n} samples are too few for any to be" if least > 0.05 / one.paired.problems else ""


def reading(one: SetComparison, a: str = "A", b: str = "B") -> str:
    """pass@1 against pass@k: what rose, and which problems are solved in b that were not in a, or the other way."""
    first, last = one.pass_at[0], one.pass_at[-1]
    solved = f"{one.gained} problems without a right sample in {a} have one in {b}, {one.lost} the other way round"
    said = {"rose": "rose", "fell": "fell", "open": "may not have changed"}
    if last.k == 1:
        return f"pass@1 {said[first.direction]}; one sample each can't tell sharper from wider"
    return f"pass@1 {said[first.direction]}, pass@{last.k} {said[last.direction]}; {solved}"


def seed_tables(groups: Sequence[Sequence[SeedFigures]], differences: Sequence[SeedComparison]) -> list[Table]:
    """Means over seeds of each group, and their differences."""
    heads = ["set", "group", "seeds", "avg@k of each", "mean", "95%"]
    rows = [
        [
            figures.name,
            "AB"[place],
            str(len(figures.values)),
            ", ".join(map(percent, figures.values)),
            percent(figures.mean),
            "-" if math.isnan(figures.low) else f"{figures.low:.1%} to {figures.high:.1%}",
        ]
        for place, group in enumerate(groups)
        for figures in group
    ]
    tables = [Table("over training seeds", heads, rows)]
    if differences:
        body = [[one.name, signed(one.difference), signed_between(one.low, one.high)] for one in differences]
        tables.append(Table("difference of means", ["set", "B - A, points", "95%"], body))
    return tables


def signed(value: float) -> str:
    """A difference of shares in points, with its sign."""
    return "-" if math.isnan(value) else f"{100 * value:+.1f}"


def signed_between(low: float, high: float) -> str:
    """Bounds of a difference in points."""
    return "-" if math.isnan(low) else f"{100 * low:+.1f} to {100 * high:+.1f}"


def probability(p: float) -> str:
    """A p value; - for none."""
    if math.isnan(p):
        return "-"
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"
