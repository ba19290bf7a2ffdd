"""A plan as tables, lines and plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite, isnan
from typing import Any

from dapo.evals.tables import Table
from dapo.plan.memory import Part
from dapo.plan.planning import Plan
from dapo.plan.steps import Timing


def plan_tables(plan: Plan) -> list[Table]:
    """Memory of each kind of device, draws, step time under each schedule, cost, assumptions."""
    found = [_memory(plan, place) for place in range(len(plan.memory))]
    found.append(_draws(plan))
    if plan.timings:
        found += [_timings(plan), _cost(plan)]
    return [*found, _assumptions(plan)]


def verdict(plan: Plan) -> list[str]:
    """Whether it fits and which knobs would make it fit; notes."""
    machine, lines = plan.given.machine, []
    for one in plan.memory:
        room = machine.gib - one.peak
        fits = f"fits, {room:.1f} GiB to spare" if room >= 0 else f"does NOT fit, {-room:.1f} GiB too much"
        lines.append(f"{one.name}: {one.peak:.1f} of {machine.gib:g} GiB: {fits}")
    lines += [f"would fit, at {mend.peak:.1f} GiB, with: {' '.join(mend.words)}" for mend in plan.mends]
    if not plan.fits and not plan.mends:
        lines.append(f"no knob or sharding over {plan.given.gpus} devices makes it fit; take a smaller model, or more")
    lines.append(f"a checkpoint takes {plan.checkpoint_gib:.1f} GiB of host memory while it is written, in all")
    return [*lines, *(f"note: {note}" for note in plan.notes)]


def plain(plan: Plan) -> Any:
    """As JSON: no NaN and no infinity, which are null."""
    own = plan.own
    steps = plan.config.train.num_steps
    return _clean(
        {
            "recipe": plan.config.name,
            "model": asdict(plan.shape) | {"total": plan.shape.total},
            "layout": asdict(plan.layout) | {"used": plan.layout.used, "idle": plan.layout.idle},
            "memory": [
                {
                    "device": one.name,
                    "peak_gib": one.peak,
                    "phases": one.by_phase,
                    "parts": list(map(asdict, one.parts)),
                }
                for one in plan.memory
            ],
            "device_gib": plan.given.machine.gib,
            "fits": plan.fits,
            "mends": [asdict(mend) for mend in plan.mends],
            "checkpoint_host_gib": plan.checkpoint_gib,
            "draws": asdict(plan.draws),
            "response_tokens": {"mean": plan.lengths.mean, "truncated": plan.lengths.truncated},
            "schedules": [asdict(one) for one in plan.timings],
            "training": None if plan.training is None else asdict(plan.training),
            "step_s": None if own is None else own.step,
            "device_hours_per_step": None if own is None else plan.device_hours(own.step),
            "run_s": None if own is None else own.step * steps,
            "device_hours": None if own is None else plan.device_hours(own.step * steps),
            "money": None if own is None else plan.money(own.step * steps),
            "assumptions": [asdict(one) for one in plan.assumptions],
            "notes": list(plan.notes),
        }
    )


def _memory(plan: Plan, place: int) -> Table:
    memory = plan.memory[place]
    peak = max(memory.by_phase, key=lambda phase: memory.by_phase[phase])
    rows = [[part.name, *_cells(part), part.what] for part in memory.parts]
    sums = memory.by_phase
    rows.append(["sum", f"{sums['sampling']:.2f}", f"{sums['update']:.2f}", f"the peak is in the {peak} phase"])
    heads = ["part", "sampling, GiB", "update, GiB", "how"]
    return Table(f"memory of a device: {memory.name}", heads, rows)


def _cells(part: Part) -> list[str]:
    return [f"{part.gib:.2f}" if phase in part.phases else "-" for phase in ("sampling", "update")]


def _draws(plan: Plan) -> Table:
    draws, sampling = plan.draws, plan.config.sampling
    rows = [
        ["acceptance", f"{draws.acceptance:.2%}", "mean over prompts of 1 - q^G - (1 - q)^G"],
        ["draws to the cut", _count(draws.taken), f"{sampling.prompts_per_step:,} / acceptance"],
        ["draws made", _count(draws.made), f'schedule = "{sampling.schedule}", at most {draws.most:,}'],
        ["responses sampled", _count(draws.made * draws.size), f"{draws.size:.3g} a draw"],
    ]
    if isfinite(draws.rounds):
        chances = ", ".join(f"{number}: {chance:.0%}" for number, chance in _told(draws.by_rounds))
        rows.append(["rounds", f"{draws.rounds:.2f}", f"full after: {chances}" if chances else "never full"])
    rows.append(
        ["runs out", f"{draws.exhausted:.2%}", f"fills over an acceptance of about {draws.least_acceptance:.2%}"]
    )
    return Table("draws of a step", ["", "", "how"], rows)


def _told(chances: tuple[float, ...]) -> Iterator[tuple[int, float]]:
    """Rounds after which the chance changes, up to six."""
    shown = 0
    for number, chance in enumerate(chances, start=1):
        if chance >= 0.005 and shown < 6:
            shown += 1
            yield number, chance
            if chance >= 0.995:
                return


def _timings(plan: Plan) -> Table:
    own = plan.own
    heads = [
        "schedule",
        "step, s",
        "sampling, s",
        "training, s",
        "engine idle",
        "learner idle",
        "slots used",
        "tokens",
        "filtered out",
        "past the cut",
    ]
    rows = []
    for one in plan.timings:
        name = f"{one.name} (the recipe's)" if own is one else one.name
        rows.append([name, *_timing_cells(plan, one)] if not one.reason else [name, *["-"] * (len(heads) - 1)])
    return Table("a step under each schedule", heads, rows)


def _timing_cells(plan: Plan, one: Timing) -> list[str]:
    assert plan.training is not None
    return [
        _seconds(one.step),
        _seconds(one.sampling),
        _seconds(plan.training.learner),
        f"{one.engine_idle:.0%}",
        f"{one.learner_idle:.0%}",
        f"{one.used:.0%}",
        _count(one.generated),
        f"{one.dropped / max(one.generated, 1):.0%}",
        f"{one.wasted / max(one.generated, 1):.0%}",
    ]


def _cost(plan: Plan) -> Table:
    steps = plan.config.train.num_steps
    heads = ["schedule", "a step, device hours", f"{steps:,} steps, device hours", f"{steps:,} steps, time"]
    heads += [] if plan.given.price is None else ["a step, money", f"{steps:,} steps, money"]
    rows = []
    for one in plan.timings:
        if one.reason:
            continue
        run = one.step * steps
        row = [
            one.name,
            f"{plan.device_hours(one.step):,.3g}",
            f"{plan.device_hours(run):,.0f}" if plan.device_hours(run) >= 100 else f"{plan.device_hours(run):,.3g}",
            _duration(run),
        ]
        if plan.given.price is not None:
            row += [f"{plan.money(one.step) or 0:,.2f}", f"{plan.money(run) or 0:,.2f}"]
        rows.append(row)
    return Table(f"cost, of {plan.given.gpus:,} devices", heads, rows)


def _assumptions(plan: Plan) -> Table:
    rows = [[one.what, one.value, one.source] for one in plan.assumptions]
    return Table("what this rests on", ["", "value", "source"], rows)


def _count(value: float) -> str:
    if isnan(value):
        return "-"
    return "no end" if value == float("inf") else f"{value:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    for limit, unit, size in ((7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86400:,.3g} days"


def _clean(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _clean(one) for key, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, (list, tuple)) else value
