"""What the command line says, and the assumptions that come of it."""

from __future__ import annotations

from dataclasses import dataclass

from dapo.plan.draws import PassRates
from dapo.plan.measured import Run
from dapo.plan.memory import Machine

UTILISATION, BANDWIDTH_USE, SYNC_GB_S, GRADE_MS = 0.4, 0.6, 10.0, 1.0
DEFAULT_SHARE, DEFAULT_SPREAD = 0.5, 0.5  # mean response and prompt in parts of their limits; spread of responses


@dataclass(frozen=True, slots=True)
class Assumption:
    """A figure that the plan rests on. source: measured: FILE, stated: FLAG, derived: FORMULA, default: WHY."""

    what: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line says. None: nothing.

    gpus, price: devices, and money for one of them for an hour. tflops, bandwidth: of a device (TFLOP/s, GB/s).
    utilisation, bandwidth_use: shares of them that are reached. decode_rate: tokens/s of one engine with its slots
    full. train_rate: tokens/s of the learner, all ranks, forward and backward. response, spread, prompt: mean
    response tokens, their standard deviation over the mean, mean prompt tokens. grade_ms: of a response. sync_gb_s:
    of weights to the engines. acceptance: of a draw, in place of rates. runs: measured. seed: of the simulation.
    """

    gpus: int
    machine: Machine
    price: float | None = None
    tflops: float | None = None
    bandwidth: float | None = None
    utilisation: float | None = None
    bandwidth_use: float | None = None
    decode_rate: float | None = None
    train_rate: float | None = None
    response: float | None = None
    spread: float | None = None
    prompt: float | None = None
    grade_ms: float | None = None
    sync_gb_s: float | None = None
    acceptance: float | None = None
    rates: PassRates | None = None
    runs: tuple[Run, ...] = ()
    seed: int = 0

    @property
    def measured(self) -> str:
        """The runs' names as a source."""
        return "measured: " + ", ".join(run.name for run in self.runs)
