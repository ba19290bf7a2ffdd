"""Spans and `dapo train --profile`."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

import helpers_run as helpers
from dapo import spans
from dapo.run.profile import FILE, MODEL, NAMES

ALWAYS = {"decode", "prefill", "choose", "schedule", "forward", "backward", "optimiser", "grading", "sync", "writing"}


def test_a_span_has_its_own_time_alone() -> None:
    """Time in an inner span is not counted twice; a failure inside ends both."""
    recorder = spans.Recorder()

    def work() -> None:
        with recorder.span("outer"):
            time.sleep(0.02)
            for _ in range(2):
                with recorder.span("inner"):
                    time.sleep(0.03)
            raise KeyError

    start = time.perf_counter()
    with pytest.raises(KeyError):
        work()
    whole = time.perf_counter() - start
    found = recorder.take()
    assert {name: calls for name, (_, calls) in found.items()} == {"outer": 1, "inner": 2}
    assert 0.02 <= found["outer"][0] < 0.05
    assert found["inner"][0] >= 0.06
    assert sum(seconds for seconds, _ in found.values()) <= whole
    assert recorder.take() == {}


def test_a_whole_span_keeps_what_is_inside() -> None:
    """Nested ones of both kinds; after it, also after a failure, spans are their own again."""
    recorder = spans.Recorder()

    def work() -> None:
        with recorder.span("credit", whole=True), recorder.span("forward"), recorder.span("inner", whole=True):
            time.sleep(0.02)
            raise KeyError

    for _ in range(2):
        with recorder.span("update"), pytest.raises(KeyError):
            work()
        with recorder.span("forward"):
            time.sleep(0.01)
    found = recorder.take()
    assert {name: calls for name, (_, calls) in found.items()} == {"credit": 2, "update": 2, "forward": 2}
    assert found["credit"][0] >= 0.04
    assert found["forward"][0] >= 0.02
    assert found["update"][0] < 0.01


def test_spans_cost_nothing_and_record_nothing_unless_started() -> None:
    """The default; and other threads are left out."""
    with spans.span("x"):
        pass
    recorder = spans.start()
    try:
        thread = threading.Thread(target=lambda: [None for _ in [0] if spans.span("other").__enter__() is None])
        thread.start()
        thread.join()
        with spans.span("mine"):
            pass
        assert set(recorder.take()) == {"mine"}
    finally:
        spans.stop()
    with spans.span("x"):
        pass
    assert recorder.take() == {}


def test_a_device_is_waited_for() -> None:
    """At both ends, so that a span holds what it started and nothing from before."""
    calls: list[int] = []
    recorder = spans.Recorder(lambda: calls.append(1))
    with recorder.span("x"):
        pass
    assert len(calls) == 2


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile can't be written: the run stops, names the file, and can be resumed."""
    monkeypatch.setattr("dapo.run.profile.FILE", "/dev/full")
    recipe = helpers.write_recipe(tmp_path)
    code, _, err = helpers.quiet_dapo("train", recipe, "--profile", "--output-dir", tmp_path / "run")
    assert code == 3, err
    assert "/dev/full" in err
    assert "Traceback" not in err
    monkeypatch.undo()
    code, _, err = helpers.quiet_dapo("train", "--resume", tmp_path / "run")
    assert code == 0, err


def test_profile_of_a_run(tmp_path: Path) -> None:
    """A line a step whose spans fit into the step, known names only, a table at the end, and the same training."""
    recipe = helpers.write_recipe(tmp_path)
    code, _, err = helpers.quiet_dapo("train", recipe, "--profile", "--output-dir", tmp_path / "run")
    assert code == 0, err
    assert "model arithmetic" in err
    assert "between phases" in err
    lines = [json.loads(line) for line in (tmp_path / "run" / FILE).read_text().splitlines()]
    steps = [row for row in helpers.metrics(tmp_path / "run") if row["step"] > 0]
    assert [line["step"] for line in lines] == [row["step"] for row in steps]
    for line in lines:
        assert set(line["spans"]) <= set(NAMES)
        assert set(line["spans"]) >= ALWAYS
        assert sum(part["seconds"] for part in line["spans"].values()) <= line["seconds"]
        assert all(part["calls"] > 0 for part in line["spans"].values())
    assert set(MODEL) <= set(NAMES)
    code, _, err = helpers.quiet_dapo("train", recipe, "--output-dir", tmp_path / "plain")
    assert code == 0, err
    assert not (tmp_path / "plain" / FILE).exists()
    plain, profiled = (helpers.weights_at(tmp_path / name, int(steps[-1]["step"])) for name in ("plain", "run"))
    assert helpers.largest_difference(plain, profiled) == 0
