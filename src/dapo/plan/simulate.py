"""A step's sampling as events: draws, slots, decode steps, grading in draw order, the cut.

An engine decodes one token in each occupied slot a step; a finished response leaves at once and a waiting one
enters, a draw's first after its prompt's prefill, which stops the engine meanwhile. Draws are submitted and
taken as `sampling.Collector` does it, by counts of draws and of grades in draw order, never by the clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt

from dapo.config.schema import SamplingConfig
from dapo.plan.speed import Decode


@dataclass(frozen=True, slots=True)
class SimDraw:
    """Response lengths of a draw, whether it is informative, and what its grading takes, in seconds."""

    lengths: tuple[int, ...]
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What one filling took.

    seconds: to the cut, grading included. grading: the part of it that graded. draws: M. started: with those past it.
    full: whether N were kept. tokens: decoded in all. kept_tokens: of kept draws. taken_tokens: of draws up to the cut.
    used: share of slots x time that was occupied.
    """

    seconds: float
    grading: float
    draws: int
    started: int
    kept: int
    full: bool
    tokens: float
    kept_tokens: int
    taken_tokens: int
    used: float
    full_at: tuple[float, ...]

    @property
    def past_cut(self) -> float:
        """Tokens of draws that nobody takes."""
        return max(0.0, self.tokens - self.taken_tokens)


def allowed(sampling: SamplingConfig, *, started: int, graded: int, kept: int, wanted: int) -> int:
    """Draws that may have been started: `sampling.draws_allowed` without torch; the tests hold one to the other."""
    size = sampling.gen_prompts or sampling.prompts_per_step
    limit = sampling.max_rounds * size * ceil(wanted / sampling.prompts_per_step)
    if kept >= wanted:
        return started
    if sampling.schedule == "rounds":
        return started + size if graded == started < limit else started
    if sampling.filter == "off":
        limit = min(limit, wanted)
    return max(started, min(graded + size, limit))


class SimEngine:
    """One engine: slots, a clock, a counter of decode steps."""

    def __init__(self, decode: Decode, slots: int, prompt: float) -> None:
        self._decode, self._slots, self._prompt = decode, slots, prompt
        self._waiting: deque[tuple[int, int]] = deque()  # draw, length
        self._active: list[tuple[int, int, int]] = []  # a heap of: last step, draw, length
        self._prefilled = -1
        self._step = 0
        self._cached = 0.0
        self.clock = 0.0
        self.tokens = 0.0
        self.occupied = 0.0  # slots x seconds
        self.outstanding = 0

    def submit(self, draw: int, lengths: Sequence[int], now: float) -> list[int]:
        """Takes a draw; returns draws of responses that end with their first token."""
        self._waiting.extend((draw, length) for length in lengths)
        self.outstanding += len(lengths)
        if len(self._active) >= self._slots:
            return []
        self._advance(now)
        return self._admit()

    def next_event(self) -> float:
        """When the next response ends."""
        if not self._active:
            return inf
        steps = self._active[0][0] - self._step
        return self.clock + self._decode.seconds(len(self._active), self._cached, steps)

    def run(self) -> list[int]:
        """Goes on to the next end; returns the draw of each response that ended."""
        self._decode_steps(self._active[0][0] - self._step)
        ended = []
        while self._active and self._active[0][0] <= self._step:
            _, draw, length = heapq.heappop(self._active)
            self._cached -= self._prompt + length
            ended.append(draw)
        self.outstanding -= len(ended)
        return ended + self._admit()

    def stop(self, now: float) -> None:
        """What is in flight is decoded up to now, and given up."""
        self._advance(now)

    def _admit(self) -> list[int]:
        ended = []
        while self._waiting and len(self._active) < self._slots:
            draw, length = self._waiting.popleft()
            if draw != self._prefilled:
                self._prefilled = draw
                self.occupied += len(self._active) * self._decode.prefill
                self.clock += self._decode.prefill
            self.tokens += 1
            if length <= 1:
                ended.append(draw)
                self.outstanding -= 1
                continue
            self._cached += self._prompt + 1
            heapq.heappush(self._active, (self._step + length - 1, draw, length))
        return ended

    def _decode_steps(self, steps: int) -> None:
        rows = len(self._active)
        seconds = self._decode.seconds(rows, self._cached, steps)
        self.clock += seconds
        self.occupied += rows * seconds
        self._step += steps
        self._cached += rows * steps
        self.tokens += rows * steps

    def _advance(self, now: float) -> None:
        """To the first step's end at `now` or later, never past the next end."""
        if not self._active:
            self.clock = max(self.clock, now)
            return
        if now <= self.clock:
            return
        rows = len(self._active)
        bend = self._decode.cached * rows / 2  # seconds(k) = first k + bend k (k - 1)
        first = self._decode.seconds(rows, self._cached, 1)
        wanted, most = now - self.clock, self._active[0][0] - self._step
        if bend > 0:
            linear = first - bend
            steps = (sqrt(linear * linear + 4 * bend * wanted) - linear) / (2 * bend)
        else:
            steps = wanted / first if first else most
        self._decode_steps(max(0, min(most, ceil(steps - 1e-9))))


def fill(
    sampling: SamplingConfig,
    engines: Sequence[SimEngine],
    draw: Callable[[], SimDraw],
    *,
    grade: float,
    slots: int,
    wanted: int = 0,
) -> Filling:
    """One filling of a batch, from an idle engine to the cut.

    Args:
        sampling: schedule, N, window, bound.
        engines: idle ones; each draw goes to the one with the fewest responses outstanding.
        draw: gives the next draw.
        grade: seconds of a response's grading, during which the engines wait.
        slots: of all engines together, for `used`.
        wanted: kept draws to go on to, in place of N; `full_at` has the time of each N-th.
    """
    return _Simulation(sampling, engines, draw, grade, slots, wanted or sampling.prompts_per_step).run()


class _Simulation:
    def __init__(
        self,
        sampling: SamplingConfig,
        engines: Sequence[SimEngine],
        draw: Callable[[], SimDraw],
        grade: float,
        slots: int,
        wanted: int,
    ) -> None:
        self._sampling, self._engines, self._draw = sampling, engines, draw
        self._grade, self._slots, self._wanted = grade, slots, wanted
        self._draws: list[SimDraw] = []
        self._left: list[int] = []  # responses of each draw still to come
        self._graded = self._kept = self._cut = 0
        self._grading = 0.0
        self._now = 0.0  # of the engines, which stand still while grading goes on
        self._events: list[tuple[float, int]] = []  # a heap of: next end, engine; one that has changed is put in again
        self._full_at: list[float] = []

    def run(self) -> Filling:
        self._start()
        while not self._done():
            engine = self._next()
            if engine is None:
                break
            ended = self._engines[engine].run()
            self._expect(engine)
            self._now = max(self._now, self._engines[engine].clock)
            self._collect(ended)
        return self._filling()

    def _expect(self, engine: int) -> None:
        when = self._engines[engine].next_event()
        if when < inf:
            heapq.heappush(self._events, (when, engine))

    def _next(self) -> int | None:
        """The engine whose next end comes first; None where nothing is decoded."""
        while self._events:
            when, engine = heapq.heappop(self._events)
            if when == self._engines[engine].next_event():
                return engine
        return None

    def _done(self) -> bool:
        if self._kept < self._wanted:
            return False
        return self._sampling.schedule == "streaming" or self._graded == len(self._draws)

    def _start(self) -> None:
        before = -1
        while before != len(self._draws):
            before = len(self._draws)
            most = allowed(self._sampling, started=before, graded=self._graded, kept=self._kept, wanted=self._wanted)
            finished: set[int] = set()  # engines that ended a response with its first token
            for _ in range(most - before):
                one = self._draw()
                self._draws.append(one)
                self._left.append(len(one.lengths))
                place = min(range(len(self._engines)), key=lambda place: self._engines[place].outstanding)
                ended = self._engines[place].submit(len(self._draws) - 1, one.lengths, self._now)
                self._expect(place)
                for number in ended:
                    self._left[number] -= 1
                    finished.add(place)
            # Such an engine prefills into the slots it has free before anything is graded.
            self._now = max([self._now, *(self._engines[place].clock for place in finished)])
            self._take()

    def _collect(self, ended: Sequence[int]) -> None:
        for number in ended:
            self._left[number] -= 1
        if self._take():
            self._start()

    def _take(self) -> bool:
        """Grades what stands next in draw order; whether there was any."""
        before = self._graded
        while self._graded < len(self._draws) and not self._left[self._graded]:
            if self._kept >= self._wanted and self._sampling.schedule == "streaming":
                break
            one = self._draws[self._graded]
            self._grading += self._grade * len(one.lengths)
            self._graded += 1
            if one.kept and self._kept < self._wanted:
                self._kept, self._cut = self._kept + 1, self._graded
                if self._kept % self._sampling.prompts_per_step == 0:
                    self._full_at.append(self._now + self._grading)
        return self._graded > before

    def _filling(self) -> Filling:
        full = self._kept >= self._wanted
        cut = self._cut if full else self._graded
        for engine in self._engines:
            engine.stop(self._now)
        taken = self._draws[:cut]
        return Filling(
            seconds=self._now + self._grading,
            grading=self._grading,
            draws=cut,
            started=len(self._draws),
            kept=self._kept,
            full=full,
            tokens=sum(engine.tokens for engine in self._engines),
            kept_tokens=sum(sum(one.lengths) for one in taken if one.kept),
            taken_tokens=sum(sum(one.lengths) for one in taken),
            used=sum(engine.occupied for engine in self._engines)
            / max((self._now + self._grading) * self._slots, 1e-300),
            full_at=tuple(self._full_at),
        )
