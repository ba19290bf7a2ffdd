"""Trackers can raise, hang, be slow or leave: the run neither stops nor waits, and what they lost is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from dapo.run import trackers as module
from dapo.run.trackers import CLOSE_S, QUEUED, FunctionTracker, NotInstalled, Trackers

LEAVING = (ValueError("no"), SystemExit(0), KeyboardInterrupt(), GeneratorExit(), MemoryError())


class Recorder:
    """A tracker that keeps what it is told, and does something before it."""

    prints = False

    def __init__(self, **before: Callable[..., Any]) -> None:
        self.name = "recorder"
        self.seen: list[Any] = []
        self.threads: set[int] = set()
        self._before = before

    def _do(self, what: str, *told: Any) -> None:
        self.threads.add(threading.get_ident())
        self._before.get(what, lambda *told: None)(*told)
        self.seen.append((what, *told))

    def open(self, first_step: int) -> None:
        """See Tracker."""
        self._do("open", first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See Tracker."""
        self._do("log", step, metrics)

    def close(self) -> None:
        """See Tracker."""
        self._do("close")


def raising(error: BaseException) -> Callable[..., None]:
    """A function that raises."""

    def function(*told: Any) -> None:
        raise error

    return function


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Something to hang on; opened at the end, so that no thread outlives the test."""
    event = threading.Event()
    yield event
    event.set()


def wait_until(holds: Callable[[], bool]) -> None:
    """Waits for another thread; fails after ten seconds."""
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings so far."""
    return lambda: [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def run(*trackers: Any, steps: int = 3) -> int:
    """Opens, logs steps and closes; returns the failures."""
    with Trackers(trackers) as made:
        made.start(1)
        for step in range(1, steps + 1):
            made.log(step, {"a": float(step)})
    return made.failures()


def test_all_is_told_in_order_and_from_one_thread() -> None:
    """open, every step, close; not from the thread that trains."""
    recorder = Recorder()
    assert run(recorder) == 0
    steps = [("log", step, {"a": float(step)}) for step in (1, 2, 3)]
    assert recorder.seen == [("open", 1), *steps, ("close",)]
    assert len(recorder.threads) == 1
    assert threading.get_ident() not in recorder.threads


@pytest.mark.parametrize("error", LEAVING, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", ["open", "log", "close"])
def test_whatever_a_tracker_raises_stays_there(place: str, error: BaseException, said: Callable[[], list[str]]) -> None:
    """It is said once, with its place; the tracker beside it gets everything."""
    good = Recorder()
    failures = run(Recorder(**{place: raising(error)}), good)
    first = [line for line in said() if type(error).__name__ in line]
    assert len(first) == 1
    assert "metrics.jsonl" in first[0]
    assert [told[0] for told in good.seen] == ["open", "log", "log", "log", "close"]
    assert failures == {"open": 3, "log": 3, "close": 0}[place]
    assert any("did not get 3 steps" in line for line in said()) == (failures == 3)


def test_an_error_that_cannot_be_printed(said: Callable[[], list[str]]) -> None:
    """Its type is told."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert run(Recorder(log=raising(Odd()))) == 3
    assert "Odd" in said()[0]


def test_errors_are_one_line(said: Callable[[], list[str]]) -> None:
    """Whatever is in them."""
    run(Recorder(log=raising(ValueError("a\nb\x1b[31m" + 1000 * "x"))))
    assert len(said()) == 2
    assert all("\n" not in line and "\x1b" not in line and len(line) < 500 for line in said())


def test_a_tracker_that_hangs_costs_no_time(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    """Its queue fills, further steps are counted, and the end waits CLOSE_S for it and no more."""
    monkeypatch.setattr(module, "CLOSE_S", 0.2)
    good = Recorder()
    hanging = Recorder(log=lambda *told: gate.wait())
    start = time.monotonic()
    with Trackers([hanging, good]) as made:
        made.start(1)
        made.log(1, {})
        wait_until(lambda: bool(hanging.threads) and good.seen[-1:] == [("log", 1, {})])
        time.sleep(0.05)  # the hanging one is in its first step now
        for step in range(2, QUEUED + 12):
            made.log(step, {})
            wait_until(lambda step=step: good.seen[-1] == ("log", step, {}))  # type: ignore[misc]
        assert made.failures() == 10
        assert made.failures() == 0  # each is counted once
    assert time.monotonic() - start < 10
    assert good.seen[-1] == ("close",)
    assert [f"{QUEUED} steps behind" in line for line in said()] == [True, False, False]
    assert "did not end within" in said()[1]
    assert f"did not get {QUEUED + 10} steps" in said()[2]


@pytest.mark.parametrize("place", ["open", "close"])
def test_one_that_hangs_elsewhere(place: str, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer when the run begins, or ends."""
    monkeypatch.setattr(module, "CLOSE_S", 0.2)
    start, good = time.monotonic(), Recorder()
    run(Recorder(**{place: lambda *told: gate.wait()}), good)
    assert time.monotonic() - start < 5
    assert good.seen[-1] == ("close",)


def test_the_end_waits_a_few_seconds_at_most() -> None:
    """What the page says."""
    assert CLOSE_S <= 5


def test_the_wait_is_for_all_together(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four that hang take no longer than one."""
    monkeypatch.setattr(module, "CLOSE_S", 0.5)
    start = time.monotonic()
    run(*(Recorder(log=lambda *told: gate.wait()) for _ in range(4)))
    assert time.monotonic() - start < 1.5


def test_a_tracker_that_is_slow_gets_every_step() -> None:
    """While its queue has room."""
    recorder = Recorder(log=lambda *told: time.sleep(0.01))
    assert run(recorder, steps=QUEUED // 2) == 0
    assert len(recorder.seen) == QUEUED // 2 + 2


def test_a_run_that_never_began_can_be_left() -> None:
    """An error before the trackers were opened; and twice."""
    recorder = Recorder()
    with Trackers([recorder]) as made:
        pass
    made.close()
    assert recorder.seen == []


def test_an_error_of_the_run_closes_them() -> None:
    """Every way out of the context does."""
    recorder = Recorder()
    with suppress(KeyboardInterrupt), Trackers([recorder]) as made:
        made.start(5)
        made.log(5, {})
        raise KeyboardInterrupt
    assert recorder.seen == [("open", 5), ("log", 5, {}), ("close",)]


def test_what_is_not_installed_was_told_before(said: Callable[[], list[str]]) -> None:
    """The steps it did not get are counted and told all the same."""
    assert run(Recorder(open=raising(NotInstalled("wandb is not installed")))) == 3
    assert said() == ["tracker recorder did not get 3 steps; metrics.jsonl has them"]


def test_each_gets_a_copy() -> None:
    """One that changes its metrics changes nobody's."""
    good = Recorder()
    assert run(FunctionTracker("f", lambda step, metrics: metrics.clear()), good) == 0  # type: ignore[attr-defined]
    assert good.seen[1] == ("log", 1, {"a": 1.0})


def test_functions_are_called_after_steps() -> None:
    """Not with the evaluation before the first."""
    seen = list[int]()
    with Trackers([FunctionTracker("f", lambda step, metrics: seen.append(step))]) as made:
        made.start(0)
        for step in range(3):
            made.log(step, {})
    assert seen == [1, 2]


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]) -> None:
    """The machine's limit is reached: a failed tracker like any other."""
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
    assert run(Recorder()) == 3
    assert "can't start new thread" in said()[0]
    assert "did not get 3 steps" in said()[1]


SECRETS = (
    "https://host/run?write_token=s3cr3t-value&x=1",
    "https://me:s3cr3t-value@host/",
    "Authorization: Bearer s3cr3t-value",
    "{'api_key': 's3cr3t-value'}",
    "API key s3cr3t-value".replace("s3cr3t-value", "0123456789abcdef" * 3),
    "token hf_s3cr3tvalue",
)


@pytest.mark.parametrize("text", SECRETS)
def test_keys_in_errors_are_not_printed(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither on the line nor, with -v, in the traceback."""
    caplog.set_level("INFO")
    run(Recorder(log=raising(ValueError(text))), steps=1)
    assert "***" in caplog.text
    assert not any(secret in caplog.text for secret in ("s3cr3t", "0123456789abcdef"))


def test_one_that_comes_back_after_the_end_is_silent(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    """What was queued is not sent any more, since another process may hold the run; it is closed."""
    monkeypatch.setattr(module, "CLOSE_S", 0.1)

    def late(*told: Any) -> None:
        gate.wait()
        raise ValueError("too late")

    tracker = Recorder(log=late)
    run(tracker)
    before = said()
    gate.set()
    wait_until(lambda: tracker.seen[-1] == ("close",))
    assert tracker.seen == [("open", 1), ("close",)]
    assert said() == before
