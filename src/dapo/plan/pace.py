"""Rates of decoding and training out of what is given: measured in runs, stated, or derived from a device's figures."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dapo.config.schema import Config
from dapo.plan.given import BANDWIDTH_USE, GRADE_MS, SYNC_GB_S, UTILISATION, Assumption, Given
from dapo.plan.layout import Layout
from dapo.plan.lengths import Lengths
from dapo.plan.measured import decode_speed, learn_speed
from dapo.plan.memory import slots_that_fit, trained_weights
from dapo.plan.shapes import Shape
from dapo.plan.speed import Decode, Learn, backward_multiple, derived_decode

OPTIMISER_BYTES = 28  # AdamW on float32: weight, gradient and two moments read, weight and moments written


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """decode: of an engine that has `slots`. learn: of all ranks together."""

    decode: Decode
    learn: Learn
    slots: int


def pace(
    config: Config, shape: Shape, layout: Layout, given: Given, lengths: Lengths, prompt: float
) -> tuple[Pace | None, list[Assumption], list[str]]:
    """(rates, what they rest on, notes); None with a note that says what is missing."""
    told: list[Assumption] = []
    decode = _decode(config, shape, layout, given, lengths, prompt, told)
    learn = _learn(config, shape, layout, given, prompt, told)
    missing = [
        *([] if decode else ["--decode-tokens-per-s"]),
        *([] if learn else ["--train-tokens-per-s"]),
    ]
    if decode is None or learn is None:
        return (
            None,
            told,
            [
                f"no times: rates are not known; give {' and '.join(missing)}, or --measured RUN, or --gpu NAME (or "
                "--gpu-tflops and --gpu-bandwidth)"
            ],
        )
    tokens = prompt + lengths.mean
    slots = slots_that_fit(config, shape, layout, given.machine, tokens)
    notes = []
    if slots < config.engine.slots:
        notes.append(
            f"an engine's cache has room for {slots} sequences of {tokens:,.0f} tokens, so not all of its "
            f"{config.engine.slots} slots are used"
        )
    learn = replace(learn, grade=_grade(config, given, learn, told))
    return Pace(decode=decode, learn=learn, slots=slots), told, notes


def _decode(
    config: Config, shape: Shape, layout: Layout, given: Given, lengths: Lengths, prompt: float, told: list[Assumption]
) -> Decode | None:
    block = 8 if config.engine.kind == "torch" else 1
    if given.decode_rate is not None:
        told.append(
            Assumption(
                "decoding",
                f"{given.decode_rate:,.0f} tokens/s of an engine, at any number of rows",
                "stated: --decode-tokens-per-s",
            )
        )
        return Decode(row=1 / given.decode_rate)
    if given.runs:
        decode, how = decode_speed(given.runs)
        told.append(Assumption("decoding", how, given.measured))
        return decode
    if given.tflops is None or given.bandwidth is None:
        return None
    use, reached = given.bandwidth_use or BANDWIDTH_USE, given.utilisation or UTILISATION
    each = layout.devices_per_engine
    decode = derived_decode(
        shape,
        lengths,
        prompt,
        flops=each * given.tflops * 1e12 * reached,
        bandwidth=each * given.bandwidth * 1e9 * use,
        bytes_each=given.machine.compute_bytes,
        block=block,
    )
    words = (
        f"{decode.fixed * 1e3:.1f} ms or {decode.row * 1e6:.0f} us a row, {decode.cached * 1e9:.2f} ns a cached token"
    )
    told += [
        Assumption(
            "decode step",
            words,
            "derived: max(weights read, FLOP) + cache read",
        ),
        _used("bandwidth reached", use, given.bandwidth_use, "--bandwidth-use", f"of {given.bandwidth:g} GB/s"),
    ]
    return decode


def _learn(
    config: Config, shape: Shape, layout: Layout, given: Given, prompt: float, told: list[Assumption]
) -> Learn | None:
    measured, how = learn_speed(given.runs, shape, prompt) if given.runs else (None, "")
    if measured is not None and (grown := layout.ranks / given.runs[0].config.cluster.learner_ranks) != 1:
        measured = replace(measured, forward=measured.forward * grown, backward=measured.backward * grown)
        how += f", taken to be {grown:g} times as much on {layout.ranks} ranks"
    if given.train_rate is not None:
        multiple = backward_multiple(
            checkpointing=config.train.gradient_checkpointing, adapters=config.learner.lora_rank is not None
        )
        flops = given.train_rate * 2.0 * (shape.multiplied + shape.head) * (1 + multiple)
        told.append(
            Assumption(
                "training",
                f"{given.train_rate:,.0f} tokens/s, all ranks together",
                "stated: --train-tokens-per-s",
            )
        )
        base = measured or _beside(config, shape, layout, given, told)
        return replace(base, forward=flops, backward=flops)
    if measured is not None:
        told.append(Assumption("training", how, given.measured))
        told.append(
            Assumption(
                "beside it",
                f"optimiser {measured.optimiser:.2f} s each; sync {measured.sync:.2f} s, other {measured.other:.2f} s",
                given.measured,
            )
        )
        return measured
    if given.tflops is None:
        return None
    use = given.utilisation or UTILISATION
    flops = layout.ranks * given.tflops * 1e12 * use
    told.append(
        _used(
            "arithmetic reached",
            use,
            given.utilisation,
            "--utilisation",
            f"of {given.tflops:g} TFLOP/s, recomputation included, on {layout.ranks} ranks",
        )
    )
    return replace(_beside(config, shape, layout, given, told), forward=flops, backward=flops)


def _beside(config: Config, shape: Shape, layout: Layout, given: Given, told: list[Assumption]) -> Learn:
    """The optimiser and the way to the engines, derived."""
    optimiser = 0.0
    if given.bandwidth is not None:
        use = given.bandwidth_use or BANDWIDTH_USE
        size = OPTIMISER_BYTES * trained_weights(config, shape) / layout.ranks
        optimiser = size / (given.bandwidth * 1e9 * use)
    rate = given.sync_gb_s or SYNC_GB_S
    sync = shape.total * given.machine.compute_bytes / (rate * 1e9)
    told.append(_used("weights to the engines", rate, given.sync_gb_s, "--sync-gb-per-s", "GB/s", share=False))
    return Learn(forward=1.0, backward=1.0, optimiser=optimiser, sync=sync)


def _grade(config: Config, given: Given, learn: Learn, told: list[Assumption]) -> float:
    """Seconds of a response's grading in which the engines wait."""
    apart = config.cluster.graders
    if given.grade_ms is not None:
        seconds, source = given.grade_ms / 1e3, "stated: --grade-ms"
    elif given.runs:
        seconds, source = learn.grade, given.measured
    else:
        seconds, source = GRADE_MS / 1e3, "default: docs/grading.md has medians of 0.4 to 3 ms"
    where = f", in {apart} processes beside decoding" if apart else ", in the run's own process: engines wait"
    told.append(Assumption("grading", f"{seconds * 1e3:.2g} ms a response{where}", source))
    return 0.0 if apart else seconds


def _used(what: str, value: float, stated: float | None, flag: str, text: str, *, share: bool = True) -> Assumption:
    shown = f"{value:.0%} {text}" if share else f"{value:g} {text}"
    return Assumption(what, shown, "default: measure it" if stated is None else f"stated: {flag}")
