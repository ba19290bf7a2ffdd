"""An engine that never stops: draws are in flight across updates, and take new weights between two tokens.

Draws are admitted, graded and cut in draw order, as everywhere. Nothing is dropped for being late; staleness is
bounded where draws are admitted. A draw admitted under version v, with P groups before it that are kept or may
still be, is trained on in step f + floor(P / N) at the latest, f being the next step to be filled. That step starts
from version f + floor(P / N) - 1, so that no token of the draw is older than

    f + floor(P / N) - 1 - v <= pipeline.max_staleness

versions, and a draw for which this does not hold has to wait. What is sampled depends on when new weights arrive:
two runs of one seed differ. Every token's version is on record.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from dapo.config.schema import Config
from dapo.errors import Interrupted
from dapo.flight import Flight
from dapo.grading import GroupGrader
from dapo.pipeline.base import Cores, Stopped, never
from dapo.rollout.base import RolloutEngine
from dapo.sampling import (
    Places,
    PromptSource,
    block_size,
    check_errors,
    group_size,
    keep_mask,
    rollout_params,
    why_short,
)
from dapo.types import UNFINISHED, Collected, FinishedDraw, Group, Prompt, TrainState

LOOK_SECONDS = 0.2  # between two looks at whether a run should stop


class Stream:
    """See Supply: pipeline.swap = "in_flight".

    One thread samples and grades. `_changed` guards what it shares with the loop; `_engine_lock` is held around
    every use of the engine, and `_free` lets the loop come first.

    Args:
        config, engine, grader, prompt: see Collector.
        cores: see Cores.
    """

    def __init__(
        self,
        config: Config,
        engine: RolloutEngine,
        grader: GroupGrader,
        prompt: PromptSource,
        cores: Cores | None = None,
    ) -> None:
        self._config, self._grader, self._prompt, self._cores = config, grader, prompt, cores or Cores()
        self._flight = Flight(engine, rollout_params(config), config.engine.reruns)
        self._changed = threading.Condition()
        self._engine_lock, self._free = threading.Lock(), threading.Event()
        self._free.set()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._closing = self._draining = False
        self._version = 0
        self._formed = 0  # the last step whose batch was made
        self._prompts: dict[int, Prompt] = {}  # of draws that are not graded yet
        self._held: dict[int, FinishedDraw] = {}  # finished, waiting for lower draws to be graded
        self._queue: deque[tuple[Group, bool, float]] = deque()  # graded: (group, whether it is kept, when)
        self._carried_in = 0
        self._before: Mapping[str, float] = {}  # the account of the filling so far, of a run that is gone on with
        self._base = self._graded = self._graded_at_cut = 0
        self._recent: deque[Group] = deque(maxlen=block_size(config.sampling))  # the last round's worth, for errors
        self._lost = self._lost_at_cut = (0, 0)  # failures and tokens of the flight
        self._poll_s = self._grade_s = 0.0  # of this filling
        self._learner_wait_s = self._engine_wait_s = 0.0
        self._age_s = 0.0

    # --- the seam -------------------------------------------------------------------------------

    def __enter__(self) -> Stream:
        self._cores.take()
        return self

    def __exit__(self, *error: object) -> None:
        """What is in flight is given up."""
        self._closing = True
        if self._thread is not None:
            self._free.set()
            with self._changed:
                self._changed.notify_all()
            self._thread.join()
            self._flight.cancel()
        self._cores.give_back()

    def collect(self, state: TrainState, stopped: Stopped) -> Collected:
        """See Supply."""
        self._open(state, formed=state.step)
        start = time.perf_counter()
        with self._changed:
            while not (self._full() or self._exhausted()):
                self._raise_error()
                if stopped():
                    raise Interrupted("sampling was given up before its batch was full")
                self._changed.wait(LOOK_SECONDS)
            self._learner_wait_s += time.perf_counter() - start
            return self._cut()

    def proceed(self, state: TrainState, stopped: Stopped) -> None:
        """See Supply. What goes on after an update of the step waits for its end: its weights are of no version."""
        if self._thread is None and state.pending is not None and state.pending.updates:
            return
        self._open(state, formed=state.step + 1)
        with self._changed:
            self._places.look(replace(state, step=self._formed))
            self._history = state.history

    def settle(self, state: TrainState) -> TrainState:
        """See Supply: groups graded since the cut. Draws that are not graded are drawn again on resume."""
        if self._thread is None:
            return state
        with self._changed:
            self._raise_error()
            return replace(state, ahead=self._collected(kept=(), cut=0, carried=0, short=""))

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """See Supply."""
        self._free.clear()
        with self._engine_lock:
            try:
                yield
            finally:
                self._free.set()

    def published(self, version: int) -> None:
        """See Supply."""
        with self._changed:
            self._version = version
            self._changed.notify_all()

    @contextmanager
    def quiet(self, stopped: Stopped = never) -> Iterator[None]:
        """See Supply. Draws in flight are finished first, and none are started."""
        try:
            with self._changed:
                self._draining = True
                while self._thread is not None and self._prompts:
                    self._raise_error()
                    if stopped():
                        raise Interrupted("the evaluation was given up")
                    self._changed.wait(LOOK_SECONDS)
            with self.exclusive():
                yield
        finally:
            with self._changed:
                self._draining = False
                self._changed.notify_all()

    def metrics(self) -> dict[str, float]:
        """See Supply."""
        with self._changed:
            found = {
                "pipeline/learner_wait_s": self._learner_wait_s,
                "pipeline/engine_wait_s": self._engine_wait_s,
                "pipeline/batch_age_s": self._age_s,
            }
            self._learner_wait_s = self._engine_wait_s = 0.0
        return found

    # --- the thread -----------------------------------------------------------------------------

    def _open(self, state: TrainState, formed: int) -> None:
        """Starts where a state stands; nothing where it runs already."""
        if self._thread is not None:
            return
        ahead = state.ahead
        groups = state.carried if ahead is None else ahead.groups
        if ahead is not None:
            self._before, self._carried_in = ahead.unfinished, ahead.carried_in
            state = replace(state, next_draw=ahead.next_draw, next_place=ahead.next_place)
        else:
            self._before = {name: state.unfinished.get(name, 0) for name in UNFINISHED}
            self._carried_in = int(self._before["carried_in"]) if state.unfinished else len(groups)
        state = replace(state, step=formed)
        self._formed, self._base = formed, state.next_draw
        self._places, self._history = Places(self._prompt, state, self._config.sampling), state.history
        now = time.perf_counter()
        self._queue.extend((group, keep_mask([group], self._config.sampling.filter)[0], now) for group in groups)
        self._thread = threading.Thread(target=self._run, name="dapo-sample", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._cores.take()
        try:
            while not self._closing:
                self._free.wait()
                start = time.perf_counter()
                with self._engine_lock:
                    self._admit()
                    finished = self._flight.poll() if self._flight else None
                spent = time.perf_counter() - start
                with self._changed:
                    self._lost = self._flight.failures, self._flight.lost_tokens
                    if finished is None:
                        self._changed.wait(LOOK_SECONDS / 4)
                        self._engine_wait_s += time.perf_counter() - start
                        continue
                    self._poll_s += spent
                self._held.update((draw.draw, draw) for draw in finished)
                self._grade_in_order()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _admit(self) -> None:
        with self._changed:
            while self._may_start() and (prompt := self._places.next()) is not None:
                draw = self._base + self._graded + len(self._prompts)
                self._prompts[draw] = prompt
                self._flight.submit(draw, prompt, group_size(self._config.sampling, self._history, prompt))

    def _may_start(self) -> bool:
        """Whether one more draw may be in flight: room in the window, and no token of it will be too old."""
        sampling, flying = self._config.sampling, len(self._prompts)
        if self._draining or self._closing or flying >= block_size(sampling):
            return False
        if len(self._queue) + flying >= sampling.max_rounds * block_size(sampling):
            return False
        before = self._kept() + flying
        step = self._formed + 1 + before // sampling.prompts_per_step
        behind = step - 1 - self._version
        return behind <= self._config.pipeline.max_staleness and step <= self._config.train.num_steps

    def _grade_in_order(self) -> None:
        while (finished := self._held.pop(self._base + self._graded, None)) is not None:
            start = time.perf_counter()
            group = self._grader.group(finished, self._prompts[finished.draw])
            kept = keep_mask([group], self._config.sampling.filter)[0]
            with self._changed:
                now = time.perf_counter()
                self._grade_s += now - start
                del self._prompts[finished.draw]
                self._graded += 1
                self._queue.append((group, kept, now))
                self._recent.append(group)
                if self._graded % block_size(self._config.sampling) == 0:
                    check_errors(tuple(self._recent), self._config)
                self._changed.notify_all()

    # --- the outcome, under `_changed` ------------------------------------------------------------

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _kept(self) -> int:
        return sum(kept for _, kept, _ in self._queue)

    def _full(self) -> bool:
        return self._kept() >= self._config.sampling.prompts_per_step

    def _exhausted(self) -> bool:
        """Nothing is in flight, and nothing more may be started."""
        if self._prompts or self._draining:
            return False
        sampling = self._config.sampling
        return bool(self._places.ended) or len(self._queue) >= sampling.max_rounds * block_size(sampling)

    def _cut(self) -> Collected:
        """Takes the groups up to the N-th kept one, or all there are."""
        wanted, entries = self._config.sampling.prompts_per_step, list(self._queue)
        places = [place for place, (_, kept, _) in enumerate(entries) if kept][:wanted]
        short, cut = "", len(entries)
        if len(places) == wanted:
            cut = places[-1] + 1
        else:
            groups = [group for group, _, _ in entries]
            short = why_short(groups, len(places), self._places.ended, self._config.sampling)
        check_errors([group for group, _, _ in entries[:cut]], self._config)
        left = len(entries) - cut
        found = self._collected(tuple(entries[place][0] for place in places), cut, left, short)
        now = time.perf_counter()
        self._age_s = sum(now - entries[place][2] for place in places) / max(1, len(places))
        self._queue = deque(entries[cut:])
        self._formed += 1
        self._carried_in, self._graded_at_cut, self._before = left, self._graded, {}
        self._poll_s = self._grade_s = 0.0
        self._lost_at_cut = self._lost
        self._changed.notify_all()
        return found

    def _collected(self, kept: tuple[Group, ...], cut: int, carried: int, short: str) -> Collected:
        before = self._before
        skipped = self._places.skipped(self._graded) - self._places.skipped(self._graded_at_cut)
        failures, lost = (now - then for now, then in zip(self._lost, self._lost_at_cut, strict=True))
        return Collected(
            kept=kept,
            groups=tuple(group for group, _, _ in self._queue),
            cut=cut,
            carried=carried,
            carried_in=self._carried_in,
            next_draw=self._base + self._graded,
            next_place=self._places.after(self._graded),
            skipped=skipped + int(before.get("skipped", 0)),
            failures=failures + int(before.get("failures", 0)),
            lost_tokens=lost + int(before.get("lost_tokens", 0)),
            rollout_seconds=self._poll_s + before.get("rollout_seconds", 0.0),
            grade_seconds=self._grade_s + before.get("grade_seconds", 0.0),
            short=short,
        )
