"""dapo plan: what a run will need, before anything is bought or started. Loads no torch."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import click

from dapo.cli.show import show_notes, show_tables
from dapo.cli.words import SETTINGS, WORDS, config_of
from dapo.errors import UserError

if TYPE_CHECKING:
    from dapo.config.schema import Config
    from dapo.plan.given import Given
    from dapo.plan.memory import Machine

# GiB: Python, torch and transformers; a CUDA context and what its allocator loses
CPU_OVERHEAD, GPU_OVERHEAD = 0.7, 1.5
MOST_GPUS = 100_000


class Number(click.ParamType[float]):
    """A finite number; over 0 unless said otherwise (click's own ranges let NaN pass)."""

    name = "number"

    def __init__(self, most: float = 1e15, least: float = 1e-12) -> None:
        self.most, self.least = most, least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error for anything else."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a number", param, ctx)
        if not math.isfinite(number) or not self.least <= number <= self.most:
            wanted = "of 0 or more" if self.least == 0 else "over 0"
            self.fail(f"{value}: a number {wanted} and up to {self.most:g} is wanted", param, ctx)
        return number


AMOUNT, SHARE, ANY = Number(), Number(1.0), Number(least=0.0)
COUNT = click.IntRange(min=1)


@click.command("plan", context_settings=SETTINGS)
@WORDS
@click.option("--gpus", default=1, show_default=True, type=click.IntRange(1, MOST_GPUS), help="Devices there are.")
@click.option("--gpu-memory", type=AMOUNT, metavar="GIB", help="Memory of each.")
@click.option("--gpu", "gpu_name", metavar="NAME", help="A known device, e.g. h100: memory, speed, bandwidth.")
@click.option("--cpu", is_flag=True, help="The device is the process's own CPU (dtype auto: float32).")
@click.option("--measured", multiple=True, metavar="RUN", help="Rates, acceptance and lengths from a run; repeatable.")
@click.option("--until", type=COUNT, metavar="STEP", help="With --measured: look at no later step.")
@click.option("--pass-rates", metavar="FILE", help="Folder of dapo data rate, table with pass_rate, or histogram.")
@click.option("--acceptance", type=SHARE, help="Share of draws that is informative, in place of pass rates.")
@click.option("--response-tokens", type=AMOUNT, metavar="MEAN", help="Mean response length.")
@click.option("--response-spread", type=Number(10.0, 0.0), metavar="CV", help="Its standard deviation / mean.")
@click.option("--prompt-tokens", type=AMOUNT, metavar="MEAN", help="Mean prompt length.")
@click.option("--decode-tokens-per-s", type=AMOUNT, help="Of one engine, its slots full.")
@click.option("--train-tokens-per-s", type=AMOUNT, help="Of the learner, all ranks, forward and backward.")
@click.option("--gpu-tflops", type=AMOUNT, help="bfloat16, dense, of a device.")
@click.option("--gpu-bandwidth", type=AMOUNT, metavar="GB_S", help="Of its memory.")
@click.option("--utilisation", type=SHARE, help="Share of the TFLOP/s that is reached.  [default: 0.4]")
@click.option("--bandwidth-use", type=SHARE, help="Share of the bandwidth that is reached.  [default: 0.6]")
@click.option("--grade-ms", type=ANY, help="Grading of a response.  [default: 1, or as measured]")
@click.option("--sync-gb-per-s", type=AMOUNT, help="Weights on their way to the engines.  [default: 10]")
@click.option("--price", type=ANY, help="Of a device for an hour.")
@click.option("--overhead-gib", type=ANY, help="Memory taken before anything is loaded.")
@click.option("--params", type=COUNT, help="Weights of the model, by hand; so each of the following.")
@click.option("--layers", type=COUNT)
@click.option("--hidden", type=COUNT)
@click.option("--intermediate", type=COUNT)
@click.option("--heads", type=COUNT)
@click.option("--kv-heads", type=COUNT)
@click.option("--head-dim", type=COUNT)
@click.option("--vocabulary", type=COUNT)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**32), help="Of the simulated draws.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def plan(words: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Say what a run will need: memory, draws, time, money. Nothing is loaded, bought or started.

    \b
    dapo plan math-7b-8gpu --gpus 8 --gpu h100 --price 2.5
    dapo plan quickstart --cpu --gpu-memory 16 --measured RUN sampling.prompts_per_step=32
    dapo plan mine.toml --gpu-memory 24 --pass-rates data/rated --gpu-tflops 165 --gpu-bandwidth 1008

    Every figure that it rests on is printed with where it comes from: measured, stated, derived, default.
    """
    from dapo.plan.models import find_shape
    from dapo.plan.planning import make_plan
    from dapo.plan.tables import plain, plan_tables, verdict

    config = config_of(words)
    dimensions = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary")
    stated = {name: options[name] for name in dimensions if options[name] is not None}
    if options["params"] is not None:
        stated["weights"] = options["params"]
    shape = find_shape(config.model, stated)
    made = make_plan(config, shape, given_of(config, options))
    if as_json:
        click.echo(json.dumps(plain(made), indent=2, ensure_ascii=False, allow_nan=False))
        return
    show_tables(plan_tables(made))
    show_notes(verdict(made))


def given_of(config: Config, options: dict[str, Any]) -> Given:
    """What the options say, with the files that they name. Raises UserError."""
    from dapo.plan.devices import device
    from dapo.plan.given import Given
    from dapo.plan.measured import read_run
    from dapo.plan.rates_file import read_pass_rates

    known = None if options["gpu_name"] is None else device(options["gpu_name"])
    if options["pass_rates"] is not None and options["acceptance"] is not None:
        raise UserError("--pass-rates and --acceptance say the same thing twice; give one of them")
    if options["until"] is not None and not options["measured"]:
        raise UserError("--until goes with --measured")
    if known is not None and options["cpu"]:
        raise UserError("--gpu and --cpu exclude each other; give one of them")
    column = config.data.rating_column
    rates = options["pass_rates"]
    return Given(
        gpus=options["gpus"],
        machine=machine_of(config, options, None if known is None else known.gib),
        price=options["price"],
        tflops=options["gpu_tflops"] or (None if known is None else known.tflops),
        bandwidth=options["gpu_bandwidth"] or (None if known is None else known.bandwidth),
        utilisation=options["utilisation"],
        bandwidth_use=options["bandwidth_use"],
        decode_rate=options["decode_tokens_per_s"],
        train_rate=options["train_tokens_per_s"],
        response=options["response_tokens"],
        spread=options["response_spread"],
        prompt=options["prompt_tokens"],
        grade_ms=options["grade_ms"],
        sync_gb_s=options["sync_gb_per_s"],
        acceptance=options["acceptance"],
        rates=None if rates is None else read_pass_rates(rates, *([] if column is None else [column])),
        runs=tuple(read_run(name, options["until"]) for name in options["measured"]),
        seed=options["seed"],
    )


def machine_of(config: Config, options: dict[str, Any], known: float | None) -> Machine:
    """The device. Raises UserError without its memory."""
    from dapo.plan.memory import Machine

    gib = options["gpu_memory"] or known
    if gib is None:
        raise UserError("--gpu-memory: say how many GiB a device has, or name it with --gpu")
    cpu = options["cpu"] or config.model.device == "cpu"
    wide = config.model.dtype == "float32" or (config.model.dtype == "auto" and cpu)
    overhead = options["overhead_gib"]
    if overhead is None:
        overhead = CPU_OVERHEAD if cpu else GPU_OVERHEAD
    return Machine(gib=gib, compute_bytes=4 if wide else 2, overhead=overhead, cpu=cpu)
