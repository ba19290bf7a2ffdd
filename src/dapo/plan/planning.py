"""A configuration, a machine and what is known of rates, put together into a plan."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from dapo.config.schema import Config
from dapo.errors import UserError
from dapo.plan.draws import Draws, PassRates, mean_acceptance, plan_draws, uniform_rates
from dapo.plan.fits import Mend, mends
from dapo.plan.given import DEFAULT_SHARE, DEFAULT_SPREAD, Assumption, Given
from dapo.plan.layout import Layout, lay_out
from dapo.plan.lengths import Lengths, measured_lengths, stated_lengths
from dapo.plan.measured import passes_of
from dapo.plan.memory import DeviceMemory, checkpoint_gib, devices
from dapo.plan.pace import Pace, pace
from dapo.plan.shapes import Shape
from dapo.plan.speed import Work, backward_multiple, work
from dapo.plan.steps import DrawSource, Timing, Training, timings


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """See the module. pace, training, timings: None and () where no rates are known."""

    config: Config
    given: Given
    shape: Shape
    layout: Layout
    memory: tuple[DeviceMemory, ...]
    checkpoint_gib: float
    mends: tuple[Mend, ...]
    draws: Draws
    lengths: Lengths
    work: Work
    pace: Pace | None
    training: Training | None
    timings: tuple[Timing, ...]
    assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether every device has room."""
        return all(one.peak <= self.given.machine.gib for one in self.memory)

    @property
    def own(self) -> Timing | None:
        """The timing of the schedule that the recipe asks for; None where there is none."""
        pipeline = self.config.pipeline
        name = self.config.sampling.schedule
        if pipeline.max_staleness:
            name = "one step off" if pipeline.swap == "between_draws" else "in flight"  # type: ignore[assignment]
        found = next((one for one in self.timings if one.name == name), None)
        return None if found is None or found.reason else found

    def device_hours(self, seconds: float) -> float:
        """Of all devices that are paid for."""
        return seconds * self.given.gpus / 3600

    def money(self, seconds: float) -> float | None:
        """What so long costs; None without a price."""
        return None if self.given.price is None else self.device_hours(seconds) * self.given.price


def make_plan(config: Config, shape: Shape, given: Given) -> Plan:
    """The plan. Raises UserError for devices that are not there, or lengths that can't be."""
    layout = lay_out(config, given.gpus)
    told = [
        Assumption("model", f"{shape.total:,} weights", source=shape.source),
        Assumption("devices", f"{layout.used} of {given.gpus} used", f"derived: {layout.note}"),
    ]
    notes: list[str] = []
    prompt = _prompt(config, given, told)
    lengths = _lengths(config, given, told, notes)
    rates, draws = _draws(config, given, told, notes)
    size = draws.kept_size if isfinite(draws.kept_size) else float(config.sampling.responses_per_prompt)
    done = work(
        shape,
        config.sampling.prompts_per_step,
        size,
        prompt,
        lengths.mean,
        lengths.mean_square,
        shared=config.train.packing == "shared_prompt",
        backward=backward_multiple(
            checkpointing=config.train.gradient_checkpointing, adapters=config.learner.lora_rank is not None
        ),
        passes=passes_of(config),
    )
    known, of_pace, about_pace = pace(config, shape, layout, given, lengths, prompt)
    training, found = None, []
    if known is not None and draws.acceptance <= 0:
        about_pace.append("no times: no draw is informative, so no step fills")
    elif known is not None:
        training = _training(config, done, known)
        found = _timings(config, layout, given, known, rates, draws, lengths, prompt, training)
        told.append(Assumption("not in the times", "start, evaluation, checkpoints", "left out"))
    return Plan(
        config=config,
        given=given,
        shape=shape,
        layout=layout,
        pace=known,
        training=training,
        timings=tuple(found),
        memory=tuple(devices(config, shape, layout, given.machine)),
        checkpoint_gib=checkpoint_gib(config, shape),
        mends=tuple(mends(config, shape, layout, given.machine)),
        draws=draws,
        lengths=lengths,
        work=done,
        assumptions=(*told, *of_pace),
        notes=(*notes, *about_pace, *_caveats(config, given), *_idle(layout)),
    )


def _prompt(config: Config, given: Given, told: list[Assumption]) -> float:
    """Mean prompt tokens."""
    most = config.data.max_prompt_tokens
    if given.prompt is not None:
        if not 1 <= given.prompt <= most:
            raise UserError(f"--prompt-tokens {given.prompt:g}: from 1 to data.max_prompt_tokens = {most}")
        told.append(Assumption("prompts", f"{given.prompt:g} tokens", "stated: --prompt-tokens"))
        return given.prompt
    mean = max(1.0, most * DEFAULT_SHARE)
    told.append(Assumption("prompts", f"{mean:g} tokens", "default: half of data.max_prompt_tokens (--prompt-tokens)"))
    return mean


def _lengths(config: Config, given: Given, told: list[Assumption], notes: list[str]) -> Lengths:
    """Response lengths: stated, else a run's, else a default."""
    limit = config.sampling.max_response_tokens
    tokens = [length for run in given.runs for length in run.tokens]
    spread = DEFAULT_SPREAD if given.spread is None else given.spread
    if given.response is not None:
        if not 1 <= given.response <= limit:
            raise UserError(f"--response-tokens {given.response:g}: from 1 to sampling.max_response_tokens = {limit}")
        lengths = stated_lengths(given.response, spread, limit, "stated: --response-tokens, --response-spread")
    elif tokens:
        old = max(run.config.sampling.max_response_tokens for run in given.runs)
        lengths, note = measured_lengths(tokens, old, limit, f"{given.measured}, {len(tokens):,} responses")
        notes += [note] if note else []
    else:
        why = "default: half of sampling.max_response_tokens, log-normal (--response-tokens)"
        lengths = stated_lengths(max(1.0, limit * DEFAULT_SHARE), spread, limit, why)
    tenth, ninetieth, most = (_at(lengths, share) for share in (0.1, 0.9, 1.0))
    value = f"mean {lengths.mean:,.1f} tokens, p10 {tenth:,}, p90 {ninetieth:,}, max {most:,}"
    told.append(Assumption("responses", value, lengths.source))
    return lengths


def _at(lengths: Lengths, share: float) -> int:
    return int(lengths.values[min(len(lengths.values) - 1, int(share * len(lengths.values)))])


def _draws(config: Config, given: Given, told: list[Assumption], notes: list[str]) -> tuple[PassRates, Draws]:
    sampling = config.sampling
    rates = given.rates or uniform_rates()
    most, least = sampling.responses_per_prompt, sampling.min_responses_per_prompt
    acceptance, size, kept_size = mean_acceptance(rates, most, least)
    source = rates.source if given.rates is not None or least is None else f"{rates.source}; for group sizes too"
    if sampling.filter == "off":
        acceptance, kept_size, source = 1.0, size, 'stated: sampling.filter = "off" keeps every draw'
    elif given.acceptance is not None:
        acceptance, source = given.acceptance, "stated: --acceptance"
        kept_size = kept_size if isfinite(kept_size) else size
    elif given.rates is None and given.runs:
        drawn = sum(step.metrics["sampling/draws"] for run in given.runs for step in run.steps)
        kept = sum(step.metrics.get("sampling/kept", 0.0) for run in given.runs for step in run.steps)
        steps = sum(len(run.steps) for run in given.runs)
        acceptance = (kept - steps) / (drawn - steps) if drawn > steps else kept / drawn
        source = f"{given.measured}: (kept - 1) / (draws - 1) over {steps} steps"
        sizes = {run.config.sampling.responses_per_prompt for run in given.runs}
        if sizes != {most}:
            notes.append(f"acceptance was measured at groups of {sorted(sizes)}, not {most}; --pass-rates would tell")
    elif sampling.filter == "nonzero_std":
        notes.append('sampling.filter = "nonzero_std" may keep more draws than pass rates tell')
    told.append(Assumption("acceptance", f"{acceptance:.2%} of draws", source))
    draws = plan_draws(sampling, acceptance, size, kept_size)
    if draws.exhausted >= 0.01:
        notes.append(
            f"a step runs out of draws with probability {draws.exhausted:.1%}: {draws.most:,} at most (max_rounds x "
            f"gen_prompts) fill {sampling.prompts_per_step:,} only over an acceptance of {draws.least_acceptance:.2%}"
        )
    return rates, draws


def _training(config: Config, done: Work, known: Pace) -> Training:
    logprobs, updates = done.seconds(known.learn, config.train.updates_per_step)
    return Training(logprobs=logprobs, updates=updates, sync=known.learn.sync, other=known.learn.other)


def _timings(
    config: Config,
    layout: Layout,
    given: Given,
    known: Pace,
    rates: PassRates,
    draws: Draws,
    lengths: Lengths,
    prompt: float,
    training: Training,
) -> list[Timing]:
    fixed = draws.acceptance if given.rates is None or given.acceptance is not None else None
    fixed = 1.0 if config.sampling.filter == "off" else fixed
    return timings(
        config.sampling,
        layout,
        known.decode,
        known.slots,
        prompt,
        training,
        lambda number: DrawSource(rates, config.sampling, lengths, fixed, given.seed + number),
        grade=known.learn.grade,
        expected=draws.made * draws.size,
    )


def _caveats(config: Config, given: Given) -> list[str]:
    """What the plan does not follow the configuration in, and runs that were measured under another."""
    found = []
    if config.sampling.surplus == "carry":
        found.append('sampling.surplus = "carry" is planned as "discard": what is carried saves draws')
    if config.sampling.skip_solved_after is not None:
        found.append("sampling.skip_solved_after is not planned: fewer draws may be all right than the pass rates say")
    for kind, built_in in ((config.engine.kind, ("torch", "vllm")), (config.learner.kind, ("torch", "fsdp"))):
        if kind not in built_in:
            found.append(f'"{kind}" is planned as "{built_in[0]}"')
    for run in given.runs:
        for key, own, other in (
            ("model.path", config.model.path, run.config.model.path),
            ("engine.kind", config.engine.kind, run.config.engine.kind),
            ("learner.kind", config.learner.kind, run.config.learner.kind),
            ("model.dtype", config.model.dtype, run.config.model.dtype),
        ):
            if own != other:
                found.append(f'rates are of another {key}: {run.name} has "{other}", this is "{own}"')
    return found


def _idle(layout: Layout) -> list[str]:
    if not layout.idle:
        return []
    return [
        f'{layout.idle} of {layout.gpus} devices are idle: {layout.note}; cluster.kind="ray" with '
        "cluster.learner_ranks and cluster.engines uses more"
    ]
