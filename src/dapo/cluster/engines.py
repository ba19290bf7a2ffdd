"""Several engines as one: draws are dealt out among actors, and come back as they finish."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dapo.cluster.broadcast import BroadcastLost
from dapo.cluster.broadcast_group import Underway
from dapo.cluster.engine_actor import Job, Turn
from dapo.cluster.replies import Died, receive
from dapo.cluster.session import need_ray
from dapo.cluster.weights import Published, WeightTransport
from dapo.errors import EngineError, EnginesLost
from dapo.rollout.base import RolloutEngine
from dapo.types import Finish, FinishedDraw, Prompt, Response, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # after which poll comes back even with nothing finished
TURNS = 2  # calls that an engine is given ahead, so that it goes on while their results are graded here
AHEAD = 0.25  # of an engine's slots: responses that wait in it beyond them, so that none stands empty


class Launcher(Protocol):
    """Starts and stops the actors of engines."""

    def start(self, number: int) -> Any:
        """A handle of a fresh actor for engine `number`. Raises EnginesLost when there is no place for it."""

    def stop(self, actor: Any) -> None:
        """Ends an actor, dead or alive."""


@dataclass(slots=True)
class _Seat:
    """An engine: its actor now, calls under way, and draws that it has."""

    number: int
    actor: Any
    begun: deque[Any] = field(default_factory=deque)  # replies of start and load_weights, of a replacement
    turns: deque[Any] = field(default_factory=deque)
    jobs: dict[int, Job] = field(default_factory=dict)  # by attempt

    @property
    def name(self) -> str:
        return f"engine {self.number}"

    @property
    def load(self) -> int:
        """Responses that it has to sample."""
        return sum(job.params.n for job in self.jobs.values())


class RemoteEngines:
    """See RolloutEngine: k engines in actors.

    A draw waits here until an engine has room for it, and goes to the one with the fewest responses to sample.
    Each submission has a number, so a result of a draw that was cancelled can't be taken for a later one's. An
    actor that dies is replaced, with the newest weights; its draws come back as aborted, which is how an engine
    says that they are to be run again whole.

    Args:
        launcher: starts actors.
        make: builds an engine in an actor; a function that can be imported there, or a partial of one.
        count: k.
        slots: responses that an engine samples at one time.
        transport: of weights.
        restarts: how many dead actors are replaced before EnginesLost.

    The actors start at once; `ready` waits for them.
    """

    def __init__(
        self,
        launcher: Launcher,
        make: Callable[[], RolloutEngine],
        *,
        count: int,
        slots: int,
        transport: WeightTransport,
        restarts: int = 0,
    ) -> None:
        self._launcher, self._make, self._slots = launcher, make, slots
        self.transport = transport
        self._restarts_left, self._restarts = restarts, restarts
        self._waiting: deque[Job] = deque()
        self._attempts: dict[int, int] = {}  # draw -> attempt, of every draw that was submitted and not handed out
        self._ready: list[FinishedDraw] = []
        self._newest: tuple[int, tuple[Any, ...]] | None = None  # version and parts, for replacements
        self._next_attempt = 0
        self._closed = False
        self.reproducible = False  # until `ready`
        self._seats = [_Seat(number, launcher.start(number)) for number in range(count)]
        for seat in self._seats:
            seat.begun.append(seat.actor.start.remote(make))

    def ready(self) -> None:
        """Waits until every engine is built. Raises what its factory raised; EngineError for one that died."""
        try:
            told = [receive(seat.begun.popleft(), seat.name) for seat in self._seats]
            self.reproducible = all(told)
        except Died as error:
            raise EngineError(f"an engine died while it was started ({error}): is its memory enough?") from None

    # --- the seam ---------------------------------------------------------------------------------

    def submit(self, draw: int, prompt: Prompt, params: SamplingParams) -> None:
        """See RolloutEngine. What an engine refuses is raised by a later `poll`."""
        if draw in self._attempts:
            raise EngineError(f"draw {draw} is already in flight")
        self._next_attempt += 1
        self._attempts[draw] = self._next_attempt
        self._waiting.append(Job(draw, self._next_attempt, prompt, params))

    def poll(self) -> list[FinishedDraw]:
        """See RolloutEngine."""
        if not self._attempts:
            raise EngineError("poll with nothing in flight would wait for ever")
        until = time.monotonic() + POLL_SECONDS
        self._feed()
        while not self._ready and (left := until - time.monotonic()) > 0:
            self._collect(left)
            self._feed()
        ready, self._ready = self._ready, []
        for finished in ready:
            del self._attempts[finished.draw]
        return ready

    def cancel(self, draws: Collection[int]) -> int:
        """See RolloutEngine."""
        gone = {self._attempts.pop(draw): draw for draw in set(draws) & self._attempts.keys()}
        self._waiting = deque(job for job in self._waiting if job.attempt not in gone)
        lost = sum(_tokens(finished) for finished in self._ready if finished.draw not in self._attempts)
        self._ready = [finished for finished in self._ready if finished.draw in self._attempts]
        calls = []
        for seat in self._seats:
            mine = [job.draw for attempt, job in seat.jobs.items() if attempt in gone]
            if mine:
                calls.append((seat, seat.actor, seat.actor.cancel.remote(mine)))
        for seat, actor, call in calls:
            try:
                lost += receive(call, seat.name)
            except Died as error:
                if seat.actor is actor:
                    self._replace(seat, error)
                continue
            while seat.actor is actor and seat.turns:  # they were called before, so they are done
                lost += self._take_turn(seat, quietly=True)
            for attempt in gone:
                seat.jobs.pop(attempt, None)
        return lost

    def load_weights(
        self, version: int, tensors: Iterable[tuple[str, Tensor]], *, recompute: bool | None = None
    ) -> None:
        """See RolloutEngine. All engines have the version when this returns.

        Engines that a broadcast reaches listen before anything waits for the learner, which waits for them.
        """
        ray = need_ray()
        source = getattr(tensors, "source", tensors)
        listening = self._listen(version, source, recompute) if isinstance(source, Underway) else {}
        parts = source.parts if isinstance(source, Published) else [ray.put(p) for p in self.transport.send(tensors)]
        self._newest = version, tuple(parts)
        calls = [
            (seat, seat.actor, listening.get(seat.number) or self._load(seat.actor, recompute)) for seat in self._seats
        ]
        failed = 0
        for seat, actor, call in calls:
            try:
                try:
                    receive(call, seat.name)
                except BroadcastLost as error:
                    failed += 1
                    logger.warning("%s: %s; it takes the weights from the object store", seat.name, error)
                    receive(self._load(actor, recompute), seat.name)
            except Died as error:
                failed += 1
                if seat.actor is actor:
                    self._replace(seat, error)
        if isinstance(source, Underway) and not failed:
            source.sending.confirm()

    def members(self) -> Mapping[int, Any]:
        """Actors, by their numbers, of the engines that stand: a replacement does once it is built."""
        return {seat.number: seat.actor for seat in self._seats if not seat.begun}

    def weight_samples(self) -> Iterable[tuple[str, Tensor]] | None:
        """See RolloutEngine: of every engine, one after the other."""
        found = []
        for seat, call in [(seat, seat.actor.weight_samples.remote()) for seat in self._seats]:
            try:
                samples = receive(call, seat.name)
            except Died as error:
                self._replace(seat, error)
                continue
            if samples is None:
                return None
            found += samples
        return found

    def close(self) -> None:
        """See RolloutEngine. The actors end."""
        self._waiting.clear()
        self._attempts.clear()
        self._ready.clear()
        if not self._closed:
            self._closed = True
            for seat in self._seats:
                self._launcher.stop(seat.actor)

    # --- dealing ----------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Deals waiting draws to engines that have room, and sees that every engine with draws is at work."""
        dealt: dict[int, list[Job]] = {seat.number: [] for seat in self._seats}
        while self._waiting:
            seat = min(self._seats, key=lambda seat: (seat.load, seat.number))
            job = self._waiting[0]
            if seat.jobs and seat.load + job.params.n > self._slots * (1 + AHEAD):
                break
            self._waiting.popleft()
            seat.jobs[job.attempt] = job
            dealt[seat.number].append(job)
        for seat in self._seats:
            jobs = dealt[seat.number]
            while jobs or (seat.jobs and len(seat.turns) < TURNS):
                seat.turns.append(seat.actor.turn.remote(jobs))
                jobs = []

    def _collect(self, seconds: float) -> None:
        """Waits for the first result of any engine, and takes all that there are."""
        ray = need_ray()
        calls = [seat.begun[0] if seat.begun else seat.turns[0] for seat in self._seats if seat.begun or seat.turns]
        ray.wait(calls, num_returns=1, timeout=seconds)
        for seat in self._seats:
            actor = seat.actor
            while seat.actor is actor and (seat.begun or seat.turns):
                call = seat.begun[0] if seat.begun else seat.turns[0]
                if not ray.wait([call], timeout=0)[0]:
                    break
                self._take_begun(seat) if seat.begun else self._take_turn(seat)

    def _take_begun(self, seat: _Seat) -> None:
        try:
            receive(seat.begun.popleft(), seat.name)
        except Died as error:
            self._replace(seat, error)
        except Exception as error:  # it holds no engine, or not these weights: nothing may be sampled with it
            self._replace(seat, Died(f"it could not be started: {type(error).__name__}: {error}"))

    def _take_turn(self, seat: _Seat, *, quietly: bool = False) -> int:
        """Takes the result of an engine's oldest turn; returns the tokens of cancelled draws in it.

        quietly: what the engine raised is logged, not raised.
        """
        try:
            turn: Turn = receive(seat.turns.popleft(), seat.name)
        except Died as error:
            self._replace(seat, error)
            return 0
        except Exception as error:
            if not quietly:
                raise
            logger.warning("%s failed while draws were cancelled: %s: %s", seat.name, type(error).__name__, error)
            return 0
        lost = 0
        for attempt, finished in turn.finished:
            seat.jobs.pop(attempt, None)
            if self._attempts.get(finished.draw) == attempt:
                self._ready.append(finished)
            else:
                lost += _tokens(finished)
        if turn.refused is not None and not quietly:
            raise EngineError(turn.refused)
        return lost

    # --- death ------------------------------------------------------------------------------------

    def _listen(self, version: int, source: Underway, recompute: bool | None) -> dict[int, Any]:
        """Calls of the engines that take part in a broadcast, by number."""
        receivers = source.sending.receivers
        return {
            number: actor.load_weights.remote(version, [], transport, recompute)
            for number, (actor, transport) in receivers.items()
            if self._seats[number].actor is actor
        }

    def _load(self, actor: Any, recompute: bool | None = None) -> Any:
        assert self._newest is not None
        version, parts = self._newest
        return actor.load_weights.remote(version, list(parts), self.transport, recompute)

    def _replace(self, seat: _Seat, error: Died) -> None:
        """A fresh actor takes a dead one's place, with the newest weights; its draws are aborted."""
        self._launcher.stop(seat.actor)
        aborted = [job for job in seat.jobs.values() if self._attempts.get(job.draw) == job.attempt]
        if not self._restarts_left:
            raise EnginesLost(f"{seat.name} died ({error}), and cluster.engine_restarts = {self._restarts} are used up")
        self._restarts_left -= 1
        logger.warning(
            "%s died (%s); it is replaced, and its %d draws are run again (%d restarts are left)",
            seat.name, error, len(aborted), self._restarts_left,
        )  # fmt: skip
        seat.actor = self._launcher.start(seat.number)
        seat.turns.clear()
        seat.jobs.clear()
        seat.begun = deque([seat.actor.start.remote(self._make)])
        if self._newest is not None:
            seat.begun.append(self._load(seat.actor))
        self._ready += [_aborted(job) for job in aborted]


def _tokens(finished: FinishedDraw) -> int:
    return sum(response.num_tokens for response in finished.responses)


def _aborted(job: Job) -> FinishedDraw:
    """A draw whose tokens went with the engine that had sampled them."""
    nothing = Response(
        token_ids=np.zeros(0, dtype=np.int32),
        generated=np.zeros(0, dtype=np.bool_),
        engine_logprobs=np.zeros(0, dtype=np.float32),
        finish=Finish.ABORT,
        token_versions=(),
    )
    return FinishedDraw(draw=job.draw, responses=(nothing,) * job.params.n)
