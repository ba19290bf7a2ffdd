"""Alerts: faults are told in time, noise is not, each is told once, and a resume tells the same."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import helpers_run as helpers
from dapo import build
from dapo.alerts import RULES, Alert, Condition, Rule, Watch, alerts
from dapo.alerts.measures import EARLY, LONGEST, MEASURES, Series
from dapo.alerts.page import BEGIN, END, page_with_rules
from dapo.config.keys import all_keys
from dapo.config.schema import Config
from dapo.errors import UserError
from dapo.run.directory import RunDirectory

ROOT = Path(__file__).parents[1]


def _simulator() -> ModuleType:
    """benchmarks/alerts.py as a module."""
    spec = importlib.util.spec_from_file_location("simulated_runs", ROOT / "benchmarks" / "alerts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulated_runs"] = module
    spec.loader.exec_module(module)
    return module


runs = _simulator()
CONFIG: Config = runs.config()
MEDIUM = runs.SIZES["medium (64 x 8)"]
SMALL = runs.SIZES["small (16 x 8)"]


def told(
    lines: list[dict[str, Any]], rules: tuple[Rule, ...] = RULES, config: Config = CONFIG
) -> list[tuple[int, str]]:
    """(number of the line from 0, alert) of all that is told."""
    watch = Watch(config, rules)
    return [(number, found.alert) for number, line in enumerate(lines) for found in watch.feed(line)]


def rule(metric: str = "a", *, steady: int = 2, **condition: Any) -> Rule:
    """One rule with one condition: by default, the last value is at least 1; it ends under 0.5."""
    words = {"measure": "level", "window": 1, "bound": 1.0, "clear": 0.5, "why": "a test", **condition}
    return Rule(alert="x", metric=metric, conditions=(Condition(**words),), steady=steady, means="m", advice="a")


# --- noise and faults -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", list(runs.SIZES), ids=lambda name: name.split()[0])
def test_quiet_runs_are_quiet(size: str) -> None:
    """Over 4000 steps at each size at most one alert; benchmarks/alerts.py gives the rate over more."""
    rings = [runs.quiet_rings(runs.SIZES[size], 1000, seed) for seed in range(1000, 1004)]
    assert sum(found.total() for found in rings) <= 1, rings


@pytest.mark.parametrize("alert", [*runs.FAULTS, "accuracy-flat"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fault_is_told_in_time(alert: str, seed: int) -> None:
    """Within the number of steps that stands beside the fault."""
    within = runs.FAULTS[alert][1] if alert in runs.FAULTS else runs.FLAT_WITHIN
    delay = runs.delay(alert, MEDIUM, seed)
    assert delay is not None
    assert 0 < delay <= within


def test_every_rule_has_a_fault_that_it_is_for() -> None:
    """So none of them can be one that never rings."""
    assert {found.alert for found in RULES} == {*runs.FAULTS, "accuracy-flat"}
    assert len({found.alert for found in RULES}) == len(RULES)


# --- told once ------------------------------------------------------------------------------------


def test_told_when_it_begins_and_again_after_it_has_ended() -> None:
    """Twice in a row to begin, twice in a row under `clear` to end; what lies between changes nothing."""
    values = [1, 0, 1, 1, 1, 0.7, 0.7, 0.7, 1, 1, 0.2, 1, 1, 0.2, 0.2, 1, 1, 1]
    assert told([{"a": value} for value in values], (rule(),)) == [(3, "x"), (16, "x")]


def test_noise_around_a_bound_rings_once() -> None:
    """It is told, and not again at every crossing."""
    values = [1 + 0.1 * math.sin(7 * n) for n in range(200)]
    assert len(told([{"a": value} for value in values], (rule(),))) == 1


def test_no_value_changes_nothing() -> None:
    """Steps without the metric, or with null, NaN, an infinity, a word or a truth, are not there."""
    gaps: list[Any] = [{}, {"a": None}, {"a": math.nan}, {"a": math.inf}, {"a": "1"}, {"a": True}, {"b": 9.0}]
    plain = [{"a": 1.0}, {"a": 1.0}, {"a": 0.0}, {"a": 0.0}, {"a": 1.0}, {"a": 1.0}]
    assert [alert for _, alert in told(plain, (rule(),))] == ["x", "x"]
    gapped = [line for one in plain for line in (*gaps, one, *gaps)]
    assert [alert for _, alert in told(gapped, (rule(),))] == ["x", "x"]


def test_nothing_is_told_of_an_empty_or_short_run() -> None:
    """Lines of older runs that have none of the metrics, too."""
    assert alerts([], CONFIG) == []
    assert alerts([{"step": 0, "eval/accuracy": 0.1}], CONFIG) == []
    assert told([{"step": n, "loss/policy": 1.0} for n in range(300)]) == []


def test_evaluation_sets_are_told_apart() -> None:
    """Each set has its own alert; other figures of evaluations have none."""
    found = rule("eval/*accuracy", steady=1)
    lines = [{"eval/b/accuracy": 1.0, "eval/a/accuracy": 1.0, "eval/accuracy": 1.0, "eval/a/pass_at_k": 1.0}]
    watch = Watch(CONFIG, (found,))
    assert [one.metric for one in watch.feed(lines[0])] == ["eval/a/accuracy", "eval/accuracy", "eval/b/accuracy"]
    assert watch.feed(lines[0]) == []


def test_an_alert_says_what_and_what_to_do() -> None:
    """In one line each, with its figures."""
    lines = list(runs.faulty_run("grading-timeouts", SMALL, 0))
    watch = Watch(CONFIG)
    (found,) = [one for line in lines for one in watch.feed(line) if one.alert == "grading-timeouts"]
    assert found.metric == "sampled/timeout_fraction"
    assert 0.05 <= found.value < 0.2
    assert f"{found.value:.1%} of the responses" in found.message
    assert "reward.symbolic_limit_s" in found.advice
    assert "\n" not in found.message + found.advice


# --- a function of the lines alone ----------------------------------------------------------------


def _broken_run() -> list[dict[str, Any]]:
    """A run with several faults, as it stands in metrics.jsonl."""
    lines = []
    for step, line in enumerate(runs.quiet_run(SMALL, 400, 5), start=1):
        for alert in ("entropy-collapse", "grading-timeouts", "all-wrong", "gradient-spike", "evaluation-falls"):
            runs.FAULTS[alert][0](line, step)
        lines.append(json.loads(json.dumps({"step": step, **line})))
    return lines


def test_a_resume_tells_what_was_not_told_yet() -> None:
    """Stopped after any line, replayed, gone on: the same alerts at the same steps."""
    lines = _broken_run()
    whole = told(lines)
    assert len(whole) >= 5
    for stop in {0, 1, 57, *(n + shift for n, _ in whole[:6] for shift in (0, 1)), len(lines) - 1}:
        watch = Watch(CONFIG)
        watch.replay(lines[:stop])
        rest = [(n, found.alert) for n, line in enumerate(lines[stop:], start=stop) for found in watch.feed(line)]
        assert rest == [(n, alert) for n, alert in whole if n >= stop]


def test_the_function_and_the_watch_are_one() -> None:
    """`alerts` of a history is what the last line of it brought."""
    lines = _broken_run()
    watch = Watch(CONFIG)
    for n, line in enumerate(lines, start=1):
        found = watch.feed(line)
        if found or n % 50 == 0:
            assert alerts(lines[:n], CONFIG) == found


ODD = (0.0, 10**400, 1e308, -1e308, 5e-324)
NUMBERS = st.one_of(st.none(), st.floats(width=64), st.integers(-3, 3), st.sampled_from(ODD))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from([r.metric.replace("*", "") for r in RULES]), NUMBERS), max_size=130))
def test_no_line_breaks_it(lines: list[dict[str, Any]]) -> None:
    """Whatever numbers a run writes: figures are numbers, words can be made, and the end is the replayed end."""
    watch = Watch(CONFIG)
    found = [one for line in lines for one in watch.feed(line)]
    assert all(math.isfinite(one.value) and one.message for one in found)
    for one in found:
        json.dumps(asdict(one), allow_nan=False)


def test_it_holds_no_more_of_a_long_run() -> None:
    """A bounded number of values of each metric."""
    watch = Watch(CONFIG)
    for line in runs.quiet_run(SMALL, 3 * LONGEST, 0):
        watch.feed(line | {f"other/{n}": 1.0 for n in range(50)})
    assert all(len(series.recent) <= LONGEST and len(series.early) <= EARLY for series in watch._series.values())
    assert len(watch._series) < 30


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", RULES, ids=lambda found: found.alert)
def test_a_rule_is_whole(found: Rule) -> None:
    """Known measures, `clear` on the calm side of the bound, words on one line, reasons for every bound."""
    for condition in found.conditions:
        assert condition.measure in MEASURES
        assert condition.window <= LONGEST
        assert condition.clear <= condition.bound if condition.over else condition.clear >= condition.bound
        assert condition.why
        assert not (condition.begins(condition.bound) and condition.ends(condition.bound))
    words = found.means.format(value=0.5, last=0.5)
    assert words
    assert "\n" not in words + found.advice
    assert found.where or found.applies(CONFIG)


@pytest.mark.parametrize("found", RULES, ids=lambda found: found.alert)
def test_the_advice_names_knobs_that_exist(found: Rule) -> None:
    """Every dotted name is a configuration key or a file."""
    keys = set(all_keys())
    named = re.findall(r"\b[a-z]+(?:\.[a-z_]+)+\b", f"{found.advice} {found.means}")
    assert set(named) - keys - {"log.txt"} == set()
    assert {c.unit for c in found.conditions} - {""} <= keys


@pytest.mark.parametrize(
    ("key", "value", "gone"),
    [
        ("objective", "gspo", {"clip-high", "clip-low", "clip-never"}),
        ("objective", "kl_cov", {"clip-high", "clip-low", "clip-never"}),
        ("clip", None, {"clip-never"}),
    ],
    ids=["gspo", "kl_cov", "no-clip"],
)
def test_rules_that_do_not_apply(key: str, value: str | None, gone: set[str]) -> None:
    """Where a figure means something else."""
    change = {"clip_high": value, "clip_low": value} if key == "clip" else {key: value}
    config = CONFIG.model_copy(update={"algorithm": CONFIG.algorithm.model_copy(update=change)})
    assert {found.alert for found in RULES} - {found.alert for found in Watch(config).rules} == gone


def test_a_unit_that_is_off_is_no_bound() -> None:
    """Without train.max_grad_norm nothing is clipped."""
    found = rule("grad/norm", steady=1, unit="train.max_grad_norm")
    off = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"max_grad_norm": None})})
    half = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"max_grad_norm": 0.5})})
    line = {"grad/norm": 0.75}
    assert [told([line], (found,), config) for config in (CONFIG, off, half)] == [[], [], [(0, "x")]]


def test_the_page_is_what_the_table_makes() -> None:
    """`python -m dapo.alerts.page docs/alerts.md` was run."""
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    assert page_with_rules(page) == page
    assert all(f"\n## {found.alert}\n" in page for found in RULES)
    assert "{" not in page[page.index(BEGIN) : page.index(END)]


@pytest.mark.parametrize("text", ["nothing", f"{END} {BEGIN}", BEGIN], ids=["none", "turned", "half"])
def test_a_page_without_markers(text: str) -> None:
    """One line that names them."""
    with pytest.raises(UserError, match="the page needs the lines"):
        page_with_rules(text)


# --- measures, by hand ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measure", "values", "window", "wanted"),
    [
        ("level", [9, 1, 5, 3], 3, 3),
        ("level", [9, 1], 3, None),
        ("peak", [9, 1, 5], 2, 5),
        ("total", [9, 1, 5], 2, 6),
        ("total", [9], 2, 9),
        ("total", [], 2, None),
        ("to_early", [2.0] * EARLY + [1, 3, 7], 3, 1.5),
        ("to_early", [2.0] * EARLY + [1, 3], 3, None),
        ("to_early", [0.0] * EARLY + [1, 3, 7], 3, None),
        ("growth", [1, 2, 3, 4, 8, 8], 2, 3.2),
        ("growth", [1, 2, 3, 4, 8], 2, None),
        ("spike", [1, 2, 4, 8], 3, 4),
        ("spike", [2, 4, 8], 3, None),
        ("gain", [1, 1, 5, 5, 5, 5, 4, 4], 8, 3),
        ("highest_gain", [1, 1, 5, 5, 5, 5, 4, 4], 8, 3),
        ("highest_gain", [0, 2, 5, 5, 5, 5, 4, 4], 8, 3 + 2 * math.sqrt(math.pi / 2 * 1.4826**2 / 2)),
        ("sure_fall", [1, 1, 1, 1, 1, 1, 0, 0, 0], 3, 1),
        ("sure_fall", [1, 1, 1, 0, 0], 3, None),
        ("sure_fall", [1, 2, 1, 2, 1, 0], 3, -3 * 1.4826 / math.sqrt(2)),
    ],
)  # fmt: skip
def test_measures(measure: str, values: list[float], window: int, wanted: float | None) -> None:
    """Against figures worked out by hand."""
    series = Series()
    for value in values:
        series.add(value)
    found = MEASURES[measure][0](series, window)
    assert found == (None if wanted is None else pytest.approx(wanted))


# --- in a run -------------------------------------------------------------------------------------

RINGING = Rule(
    alert="kept", metric="sampling/kept", means="kept {value:.0f}", advice="nothing", steady=2,
    conditions=(Condition(measure="level", window=1, bound=0.0, clear=0.0, why="a test"),),
)  # fmt: skip
SAVING = ("checkpoint.every=1", "checkpoint.keep_last=9", "train.num_steps=4")


@pytest.fixture
def ringing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that watch for RINGING alone."""
    watch: Callable[..., Watch] = Watch
    monkeypatch.setattr(build, "Watch", lambda config: watch(config, (RINGING,)))


def alert_lines(run: Path) -> list[dict[str, Any]]:
    """alerts.jsonl."""
    return [json.loads(line) for line in (run / "alerts.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.usefixtures("ringing")
def test_a_run_tells_and_counts(tmp_path: Path) -> None:
    """On the screen, in alerts.jsonl, and as a metric of the step."""
    code, _, err = helpers.quiet_dapo(
        "train", helpers.write_recipe(tmp_path), *SAVING, "--output-dir", tmp_path / "run"
    )
    assert code == 0
    wanted = {"step": 2, **asdict(Alert("kept", "sampling/kept", 4.0, "kept 4", "nothing"))}
    assert alert_lines(tmp_path / "run") == [wanted]
    assert "alert kept: kept 4. To do: nothing" in err.splitlines()
    assert [row.get("alerts/raised") for row in helpers.metrics(tmp_path / "run")] == [None, 0, 1, 0, 0]


@pytest.mark.usefixtures("ringing")
@pytest.mark.parametrize("saved", [1, 2, 3])
def test_a_resumed_run_has_each_alert_once(saved: int, tmp_path: Path) -> None:
    """What was told past the checkpoint is cut and told again; what was told before it is not."""
    run = helpers.train(tmp_path, *SAVING)
    before = alert_lines(run), [row.get("alerts/raised") for row in helpers.metrics(run)]
    for folder in (run / "checkpoints").iterdir():
        if int(folder.name.removeprefix("step_")) > saved:
            shutil.rmtree(folder)
    with (run / "alerts.jsonl").open("a", encoding="utf-8") as handle:
        handle.write('{"step": 4, "alert": "to')  # torn
    code, _, err = helpers.quiet_dapo("train", "--resume", run)
    assert code == 0
    assert (alert_lines(run), [row.get("alerts/raised") for row in helpers.metrics(run)]) == before
    assert ("alert kept" in err) == (saved < 2)


def test_a_damaged_line_of_alerts_stops_no_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing depends on it: left out, with a warning."""
    run = RunDirectory(tmp_path)
    lines = ['{"step": 1}', "nonsense", '{"step": "2"}', "[]", '{"step": 2}', '{"step": 3}']
    (tmp_path / "alerts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run.cut_after(2)
    assert (tmp_path / "alerts.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
    assert "3 damaged lines" in caplog.text
    run.cut_after(-1)
    assert (tmp_path / "alerts.jsonl").read_text() == ""
