"""dapo report: what its data say of a run, what it does to hostile text, what it leaves out, and its mistakes."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

import helpers_report as synthetic
import helpers_run as helpers
from dapo.errors import UserError
from dapo.metric_table import definition
from dapo.report import curves, flow, live
from dapo.report.data import report_data
from dapo.report.page import as_json, packed, render
from dapo.report.panels import catalogue, drawn
from dapo.report.read import Files, number
from dapo.report.rollouts import evenly, sample, water_level
from dapo.report.settings import seed_groups
from dapo.report.tokens import spread

HOSTILE = "</script><script>alert(1)</script> \x1b[31mred \u202erts\u202c \x00 \ud800 <!-- <b>bold</b> &lt;"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run; only read here."""
    return synthetic.synthetic_run(tmp_path_factory.mktemp("report") / "whole")


@pytest.fixture(scope="module")
def data(run: Path) -> dict[str, Any]:
    """What the page is given of it."""
    return report_data([run])


def unpacked(text: str) -> Any:
    """What the page makes of packed data."""
    return json.loads(zlib.decompress(base64.b64decode(text)))


def inline(page: str, name: str) -> str:
    """The content of a data element of the page."""
    found = re.search(f'<script type="[^"]*" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


# --- curves ---------------------------------------------------------------------------------------------


def test_curves_are_columns_with_gaps() -> None:
    """A metric that a step lacks, or that is no number, is a gap; a step written twice is its later line."""
    rows = [
        {"step": 1, "a": 1},
        {"step": 2, "a": None, "b": 5.0},
        {"step": 2, "a": 3.0},
        {"step": 3, "a": "x", "b": True},
    ]
    found = curves.columns(rows)
    assert found == {"steps": [1, 2, 3], "width": 1, "values": {"a": [1.0, 3.0, None]}, "low": {}, "high": {}}


def test_bins_hold_mean_least_and_greatest() -> None:
    """Each bin is drawn at its last step; the last bin may be short."""
    found = curves.columns([{"step": s, "a": float(s)} for s in range(1, 6)], width=2)
    assert found["steps"] == [2, 4, 5]
    assert found["values"]["a"] == [1.5, 3.5, 5.0]
    assert (found["low"]["a"], found["high"]["a"]) == ([1.0, 3.0, 5.0], [2.0, 4.0, 5.0])


@pytest.mark.parametrize(("last", "width"), [(1, 1), (1500, 1), (1501, 2), (3000, 2), (100_000, 67)])
def test_no_curve_has_more_points_than_can_be_drawn(last: int, width: int) -> None:
    """Bins are as narrow as they can be."""
    assert curves.width_of_bins(last) == width
    assert math.ceil(last / width) <= curves.MAX_POINTS


def test_a_band_is_the_t_interval_over_seeds() -> None:
    """By hand: 0.2, 0.3, 0.4 have mean 0.3 and s = 0.1; t(0.975, 2) = 4.302653; half = 4.302653 * 0.1 / sqrt(3)."""
    runs = [
        curves.columns([{"step": 1, "a": v}, *([{"step": 2, "a": v}] if v > 0.25 else [])]) for v in (0.2, 0.3, 0.4)
    ]
    found = curves.band(runs)
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert found["values"]["a"][0] == pytest.approx(0.3)
    assert found["low"]["a"][0] == pytest.approx(0.3 - half, abs=1e-5)
    assert found["high"]["a"][0] == pytest.approx(0.3 + half, abs=1e-5)
    assert found["runs"] == [3, 2]  # the second step is that of two runs: t(0.975, 1) = 12.7062, s = 0.1 / sqrt(2)
    assert found["high"]["a"][1] == pytest.approx(0.35 + 12.7062 * 0.1 / 2, abs=1e-4)


def test_one_run_at_a_step_has_no_interval() -> None:
    """The mean goes on, without a band."""
    runs = [curves.columns([{"step": s, "a": 1.0} for s in steps]) for steps in ((1,), (1, 2))]
    found = curves.band(runs)
    assert found["values"]["a"] == [1.0, 1.0]
    assert found["low"]["a"] == [1.0, None]


# --- several runs ----------------------------------------------------------------------------------------


def test_runs_that_differ_in_their_seed_are_one_line(tmp_path: Path) -> None:
    """Another setting stands alone, and so does a seed that is there already."""
    paths = [synthetic.synthetic_run(tmp_path / f"seed{seed}", seed=seed) for seed in (0, 1, 2)]
    other = synthetic.synthetic_run(tmp_path / "longer", seed=0, wanted_steps=99)
    twin = shutil.copytree(paths[0], tmp_path / "twin")
    found = report_data([*paths, other, twin])["groups"]
    assert [one["runs"] for one in found] == [[0, 1, 2], [3], [4]]
    assert "95% t interval over seeds" in found[0]["note"]
    assert "0, 1, 2" in found[0]["note"]
    assert found[1]["curves"] is None
    assert "no band" in found[1]["note"]
    values = [report_data([path])["runs"][0]["curves"]["values"]["grad/norm"][0] for path in paths]
    assert found[0]["curves"]["values"]["grad/norm"][0] == pytest.approx(sum(values) / 3, rel=1e-4)


def test_different_code_under_one_line_is_told(tmp_path: Path) -> None:
    """The band would hold more than luck of the seed."""
    paths = [synthetic.synthetic_run(tmp_path / f"seed{seed}", seed=seed) for seed in (0, 1)]
    synthetic.write_json(paths[1] / "manifest.json", {"digests": {"code": "other"}})
    assert "different code" in report_data(paths)["groups"][0]["note"]


def test_names_and_sources_do_not_part_seeds() -> None:
    """Only settings do; a run without a configuration stands alone."""
    one, other = synthetic.config_tree(0, 5), synthetic.config_tree(1, 5)
    other |= {"name": "else", "provenance": {}}
    assert seed_groups([one, {}, other, {}]) == [[0, 2], [1], [3]]


def test_equal_folder_names_are_told_apart(tmp_path: Path) -> None:
    """By what lies above them."""
    paths = [synthetic.old_run(tmp_path / name / "run") for name in ("a", "b")]
    assert [run["label"] for run in report_data(paths)["runs"]] == ["a/run", "b/run"]


# --- the parts of a whole run ------------------------------------------------------------------------------


def test_every_panel_of_the_catalogue_has_curves(data: dict[str, Any]) -> None:
    """The synthetic run has all metrics of the contract; a panel without any would be a misspelt name."""
    panels = {panel["id"] for section in data["sections"] for panel in section["panel"]}
    assert panels == {panel["id"] for section in catalogue()["section"] for panel in section.get("panel", [])}
    assert len(data["joint"]) == len(catalogue()["joint"]["rows"])


def test_every_name_of_the_catalogue_is_a_metric() -> None:
    """A curve of a name that no run writes would never be drawn; nor does the synthetic run make up names."""
    text = (Path(curves.__file__).parent / "page" / "panels.toml").read_text(encoding="utf-8")
    named = set(re.findall(r'"([a-z]+/[a-z0-9_]+)"', text))
    assert len(named) > 60
    assert [name for name in sorted(named) if definition(name) is None] == []


def test_panels_leave_out_what_is_not_there() -> None:
    """A panel keeps the curves that it has, and goes when it has none."""
    found = {panel["id"]: panel for section in drawn(["kept/accuracy"]) for panel in section["panel"]}
    assert list(found) == ["accuracy"]
    assert [curve[0] for curve in found["accuracy"]["curves"]] == ["kept/accuracy"]


def test_roles_are_colours_of_the_page() -> None:
    """A role without a colour would be drawn in black."""
    style = (Path(curves.__file__).parent / "page" / "page.css").read_text(encoding="utf-8")
    roles = {c[2] for s in catalogue()["section"] for p in s.get("panel", []) for c in p["curves"]}
    roles |= {row[3] for row in catalogue()["joint"]["rows"]}
    assert roles
    for role in roles:
        assert style.count(f"--c-{role}:") == 2, role  # light and dark


def test_the_ledger_balances(data: dict[str, Any]) -> None:
    """What comes into a node leaves it, in draws and in tokens, for the run and for each step."""
    flows = data["runs"][0]["flow"]
    assert len(flows["steps"]) == 12
    for one in [flows["total"], *flows["steps"]]:
        for links in (one["draws"], one["tokens"]):
            for node in ("graded, up to the cut", "sampled tokens"):
                into = sum(count for _, to, count in links if to == node)
                assert into == pytest.approx(sum(count for origin, _, count in links if origin == node))


def test_flows_by_hand() -> None:
    """28 draws of which 16 are kept, 10 all right, 2 all wrong, 4 past the cut; 2432 tokens, 1303 kept, 100 lost."""
    counts = {
        "sampling/draws": 28.0, "sampling/kept": 16.0, "sampling/all_right_draws": 10.0,
        "sampling/all_wrong_draws": 2.0, "sampling/surplus_draws": 4.0, "tokens/generated": 2432.0,
        "tokens/kept": 1303.0, "tokens/wasted": 1129.0, "tokens/lost": 100.0,
    }  # fmt: skip
    found = flow.flows(counts)
    assert {to: count for _, to, count in found["draws"]} == {
        "graded, up to the cut": 28, "surplus, past the cut": 4, "kept": 16, "all right": 10, "all wrong": 2,
    }  # fmt: skip
    assert ("sampled tokens", "wasted: graded, dropped", 1029.0) in found["tokens"]


def test_without_a_filter_no_draw_is_called_dropped() -> None:
    """All groups are kept, the uniform ones too."""
    counts = {"sampling/draws": 4.0, "sampling/kept": 4.0, "sampling/all_right_draws": 3.0}
    assert flow.flows(counts)["draws"] == [
        ("new draws", "graded, up to the cut", 4.0),
        ("graded, up to the cut", "kept", 4.0),
    ]


def test_the_credit_table(run: Path, data: dict[str, Any]) -> None:
    """Its shares are the file's and add up to 1; buckets that do not exist are no zeros."""
    table = data["runs"][0]["credit"][-1]
    content = json.loads((run / "credit" / f"step_{table['step']:06d}.json").read_text())
    assert table["step"] == 12
    assert table["quartiles"] == [180, 320, 540]
    cells = {(row["label"], q): cell for row in table["rows"] for q, cell in enumerate(row["cells"])}
    assert cells["right, truncated, A > 0", 0] is None
    assert sum(cell[0] for cell in cells.values() if cell) == pytest.approx(1.0, abs=1e-3)
    wanted = next(b for b in content["buckets"] if (b["length"], b["right"], b["truncated"]) == (2, True, False))
    share = data["credit_figures"].index("share")
    assert cells["right, A > 0", 2][share] == pytest.approx(wanted["share"], rel=1e-3)


def test_evaluations(data: dict[str, Any]) -> None:
    """Lines of pass@k over steps, and the paired change with its interval."""
    one = data["runs"][0]["evaluations"]["holdout"]
    assert list(one["lines"]) == ["pass@1", "pass@2", "pass@4", "maj@4"]
    assert one["lines"]["pass@1"][0] == [0, 4, 8, 12]
    change = one["change"]
    assert change["difference"] == pytest.approx(one["last"]["accuracy"] - one["first"]["accuracy"])
    assert change["low"] < change["difference"] < change["high"]
    assert "a gain beyond noise" in data["runs"][0]["summary"]["verdict"]


def test_the_summary(data: dict[str, Any]) -> None:
    """Figures, findings and alerts are those of the files."""
    head = data["runs"][0]["summary"]
    cards = {card["label"]: card["value"] for card in head["cards"]}
    assert cards["Steps"] == "12"
    assert (cards["Findings"], cards["Alerts"]) == ("1", "1")
    assert (
        head["checks"][0].items() >= {"step": 2, "check": "gap", "value": 0.02, "bound": 0.01, "action": "warn"}.items()
    )
    assert any("1 alert," in line for line in head["warnings"])
    assert head["missing"] == []


def test_a_change_within_noise_is_not_called_a_gain(tmp_path: Path) -> None:
    """Two evaluations with the same figures."""
    run = synthetic.synthetic_run(tmp_path / "run")
    content = json.loads((run / "eval/step_000000.json").read_text())
    for file in (run / "eval").iterdir():
        synthetic.write_json(file, content)
    assert "not told apart from no change" in report_data([run])["runs"][0]["summary"]["verdict"]


def test_settings_have_their_sources(data: dict[str, Any]) -> None:
    """As the run's configuration says them; the place it ran in is nobody's business."""
    rows = {one["key"]: one for one in data["runs"][0]["settings"]}
    assert rows["algorithm.clip_high"]["source"] == "paper: section 4.1"
    assert rows["train.learning_rate"]["source"].startswith("chosen: ten times")
    assert rows["train.learning_rate"]["changed"]
    assert not rows["train.betas"]["changed"]
    assert "/secret/place" not in json.dumps(data)


def test_a_configuration_of_another_version_is_shown_bare(tmp_path: Path) -> None:
    """Without sources, and with a note."""
    run = synthetic.old_run(tmp_path / "run")
    synthetic.write_json(run / "config.resolved.json", {"name": "x", "train": {"no_such_key": 3, "seed": 1}})
    found = report_data([run])["runs"][0]
    assert {"key": "train.no_such_key", "value": "3"}.items() <= found["settings"][1].items()
    assert any("another version" in note for note in found["notes"])


# --- what is torn, damaged or missing ------------------------------------------------------------------------


def test_an_old_run_says_what_it_lacks(tmp_path: Path) -> None:
    """No evaluation, no credit, no checks: named, and the rest is shown."""
    found = report_data([synthetic.old_run(tmp_path / "run")])["runs"][0]
    missing = "\n".join(found["summary"]["missing"])
    assert "credit tables" in missing
    assert "evaluations" in missing
    assert "alerts.jsonl" in missing
    assert "Gradient norm" in missing
    assert found["flow"]["total"] == {"draws": [], "tokens": []}
    assert found["notes"] == []
    assert [row["a"] for row in sample(Files(tmp_path / "run"))["rows"]] == [None] * 24


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    """A configuration and nothing else."""
    (tmp_path / "run").mkdir()
    synthetic.write_json(tmp_path / "run/config.resolved.json", synthetic.config_tree(0, 5))
    code, out, _ = helpers.quiet_dapo("report", tmp_path / "run")
    assert (code, out.strip()) == (0, str(tmp_path / "run" / "report.html"))
    assert "No step has been finished" in json.dumps(report_data([tmp_path / "run"]))


def test_torn_and_damaged_files_are_left_out(tmp_path: Path) -> None:
    """A torn last line without a word, all else with a note."""
    run = synthetic.synthetic_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as handle:
        handle.write('not json\n{"step": "seven"}\n{"step": 13, "sampled/acc')
    (run / "manifest.json").write_text("{")
    (run / "credit/step_000004.json").write_text("[1, 2]")
    (run / "credit/step_000008.json").write_text('{"buckets": [3, {"length": 9}, {"length": 1}], "matched": 4}')
    (run / "eval/step_000004.json").write_text('{"step": 4, "accuracy": 0.5}')
    packed_file = run / "rollouts/step_000003.jsonl.zst"
    packed_file.write_bytes(packed_file.read_bytes()[:-20])
    (run / "tokens/step_000004.jsonl.zst").write_bytes(b"")
    (run / "rollouts/step_000005.jsonl.zst.tmp").write_bytes(b"half")
    found = report_data([run])["runs"][0]
    assert found["curves"]["steps"] == list(range(1, 13))
    assert "metrics.jsonl: 2 damaged lines, left out" in found["notes"]
    assert "manifest.json: damaged, left out" in found["notes"]
    assert "eval/: 1 evaluations of an older layout, left out" in found["notes"]
    files = Files(run)
    assert {row["s"] for row in sample(files)["rows"]} == set(range(1, 13)) - {3}
    assert "rollouts/step_000003.jsonl.zst: damaged, left out" in files.notes


@pytest.mark.parametrize(
    "value",
    [None, True, "1", [1], float("nan"), float("inf"), 10**400],
    ids=["none", "bool", "text", "list", "nan", "infinity", "huge"],
)
def test_only_finite_numbers_are_numbers(value: Any) -> None:
    """Whatever a file may hold."""
    assert number(value) is None


# --- rollouts -------------------------------------------------------------------------------------------------


def test_all_rollouts_where_they_fit(run: Path) -> None:
    """With what the page shows of each, and token data where there are any."""
    found = sample(Files(run))
    assert (found["shown"], found["total"]) == (12 * 32, 12 * 32)
    shaded = [row for row in found["rows"] if "w" in row]
    assert {row["s"] for row in shaded} == {4, 8, 12}
    for row in shaded:
        assert row["k"]
        assert {len(row["w"][name]) for name in "tprc"} == {len(row["w"]["t"])}
        assert "".join(row["w"]["t"]).strip() == row["t"]
        assert all(0 <= p <= 1 for p in row["w"]["p"])
    one = found["rows"][0]
    assert found["prompts"][one["p"]][1].startswith("<|user|>")


def test_the_sample_keeps_to_its_budget_and_leaves_out_no_step(tmp_path: Path) -> None:
    """And is the same each time; its rows are not the first of each file."""
    size = synthetic.Size(steps=20, rollouts=64, characters=600, every=5)
    run = synthetic.synthetic_run(tmp_path / "run", size=size)
    budget = 200_000
    found = sample(Files(run), budget)
    assert found == sample(Files(run), budget)
    assert found["total"] == 20 * 64
    assert 20 <= found["shown"] < found["total"]
    assert {row["s"] for row in found["rows"]} == set(range(1, 21))
    bare = [{name: value for name, value in row.items() if name != "w"} for row in found["rows"]]
    assert len(json.dumps(bare)) < 1.1 * budget
    assert len({(row["d"] % 1000, row["g"]) for row in found["rows"]}) > 30
    accuracy = [
        sum(row["v"] == "correct" for row in rows) / len(rows) for rows in (found["rows"], sample(Files(run))["rows"])
    ]
    assert accuracy[0] == pytest.approx(accuracy[1], abs=0.15)


def test_a_budget_of_nothing_leaves_a_row_a_step(run: Path) -> None:
    """A step that is not there could not be asked about."""
    rows = sample(Files(run), 0)["rows"]
    assert {row["s"] for row in rows} == set(range(1, 13))


def test_long_texts_are_cut_in_the_middle(tmp_path: Path) -> None:
    """With the number of characters that are left out, and both ends."""
    run = synthetic.old_run(tmp_path / "run", steps=1)
    row = {"step": 1, "draw": 0, "g": 0, "text": "a" * 90_000 + "end", "tokens": 5, "verdict": "wrong"}
    synthetic.write_packed(run / "rollouts/step_000001.jsonl.zst", [row])
    (shown,) = sample(Files(run))["rows"]
    assert shown["t"].startswith("aaa")
    assert shown["t"].endswith("end")
    assert len(shown["t"]) < 25_000
    assert shown["c"] > 60_000


def test_odd_rows_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    """A row of an unknown writer must not end the report."""
    run = synthetic.old_run(tmp_path / "run", steps=1)
    odd = [
        {"step": 1},
        {"step": 1, "draw": [1], "g": {}, "text": 7, "reward": "high", "parts": 3, "extracted": {"a": 1}},
    ]
    synthetic.write_packed(run / "rollouts/step_000001.jsonl.zst", odd)
    rows = sample(Files(run))["rows"]
    assert [row["t"] for row in rows] == ["", "7"]
    assert rows[1]["r"] is None


def test_token_lists_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    """Shading with shifted tokens would be a lie."""
    run = synthetic.synthetic_run(tmp_path / "run")
    row = {"step": 4, "draw": 4000, "g": 0, "tokens": ["a", "b"], "logprobs": [0.0], "ratios": [1.0], "clipped": [0]}
    synthetic.write_packed(run / "tokens/step_000004.jsonl.zst", [row])
    files = Files(run)
    assert not [r for r in sample(files)["rows"] if "w" in r and r["s"] == 4]
    assert any("do not fit" in note for note in files.notes)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 64, 65])
def test_steps_take_turns(count: int) -> None:
    """Each once, and early ones are far apart."""
    steps = list(range(100, 100 + count))
    found = list(spread(steps))
    assert sorted(found) == steps
    if count > 3:
        assert abs(found[2] - (100 + (count - 1) / 2)) <= 1


@pytest.mark.parametrize(("sizes", "budget"), [([5, 5, 5], 100), ([100, 1, 1], 30), ([7] * 10, 33), ([], 10)], ids=repr)
def test_the_level_fills_the_budget(sizes: list[int], budget: int) -> None:
    """sum(min(size, level)) is the budget, but for what an integer leaves, or all there is."""
    level = water_level(sizes, budget)
    spent = sum(min(size, level) for size in sizes)
    assert spent <= budget
    assert spent == sum(sizes) or spent > budget - len(sizes)


def test_evenly_keeps_both_ends() -> None:
    """However many steps there are."""
    found = evenly(list(range(1, 10_001)), 4000)
    assert (found[0], found[-1], len(set(found))) == (1, 10_000, 4000)


# --- the page -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose every text is out to break the page."""
    run = synthetic.synthetic_run(
        tmp_path_factory.mktemp("hostile") / "run<b>&amp;", size=synthetic.Size(steps=4, rollouts=8)
    )
    texts = dict.fromkeys(("text", "prompt", "question", "answer", "extracted", "stage", "verdict"), HOSTILE)
    for step in range(1, 5):
        rows = synthetic.step_rollouts(step, 0.5, synthetic.Size(rollouts=8), random.Random(step))
        written = "".join(json.dumps(row | texts) + "\n" for row in rows).encode()
        synthetic.write_packed(run / f"rollouts/step_{step:06d}.jsonl.zst", [])
        (run / f"rollouts/step_{step:06d}.jsonl.zst").write_bytes(zstandard.compress(written))
    pieces = [HOSTILE, "<img src=x onerror=alert(2)>"]
    token = {
        "step": 4,
        "draw": 4000,
        "g": 0,
        "tokens": pieces,
        "logprobs": [0.0, -1],
        "ratios": [1, 2],
        "clipped": [0, 1],
    }
    (run / "tokens/step_000004.jsonl.zst").write_bytes(zstandard.compress(json.dumps(token).encode() + b"\n"))
    finding = {"step": 1, "check": HOSTILE, "message": HOSTILE, "value": 1, "bound": HOSTILE, "action": HOSTILE}
    synthetic.write_lines(run / "checks.jsonl", [finding])
    synthetic.write_lines(run / "alerts.jsonl", [finding | {"alert": HOSTILE, "metric": HOSTILE, "advice": HOSTILE}])
    synthetic.write_lines(run / "metrics.jsonl", [{"step": 1, HOSTILE: 1.0, "sampled/accuracy": 0.5}])
    synthetic.write_json(run / "manifest.json", {HOSTILE: HOSTILE})
    return run


def test_no_text_can_leave_its_element(hostile: Path) -> None:
    """Data elements hold no <, nothing but ASCII, and JSON that gives the text back."""
    data = report_data([hostile])
    page = render(data, packed(live.rollout_samples([hostile], 1 << 20)))
    page.encode("utf-8")
    content = inline(page, "data")
    assert "<" not in content
    assert content.isascii()
    assert json.loads(content)["runs"][0]["manifest"] == [[HOSTILE, HOSTILE]]
    assert page.count("<script") - render(data, "").count("<script") == 0
    assert len(re.findall(r"<script[ >]", page.split("<noscript>")[1][: len(content)])) >= 1
    assert "alert(1)</script>" not in page


def test_model_text_is_fit_to_be_read(hostile: Path) -> None:
    """No control character, nothing that reorders a line, no lone surrogate: all as escapes."""
    (found,) = live.rollout_samples([hostile], 1 << 20)
    rows = found["rows"]
    texts = [text for row in rows for text in (row["t"], row["x"], row["e"], *row.get("w", {}).get("t", []))]
    texts += [text for prompt in found["prompts"] for text in prompt]
    assert any(r"\x1b[31mred \u202erts\u202c \x00 \ud800" in text for text in texts)
    assert any("w" in row for row in rows)
    for text in texts:
        assert not set(text) & set("\x1b\u202e\u202c\x00\ud800")


def test_the_policy_lets_nothing_in(run: Path, data: dict[str, Any]) -> None:
    """Scripts by their digests alone, no connection, and no address to fetch from in the page's own part."""
    page = render(data, "")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert "unsafe" not in rules["script-src"]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert rules["script-src"] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert "connect-src 'self'" in render(data, "", live=True)
    assert not re.search(r'(?:src|href)="(?!#|data:)', page.replace(scripts[0], ""))


def test_packed_data_come_back() -> None:
    """Deflated JSON in base64."""
    assert unpacked(packed([{"t": "</script>é"}])) == [{"t": "</script>é"}]
    with pytest.raises(ValueError, match="JSON"):
        as_json(math.nan)


def test_no_page_code_makes_markup_of_text() -> None:
    """The page's code has no way to put markup into the document but elements made one by one."""
    folder = Path(curves.__file__).parent / "page"
    code = "".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.js")))
    assert len(code) > 10_000
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    ):
        assert forbidden not in code


# --- the command ----------------------------------------------------------------------------------------------


def test_the_command_writes_one_file(run: Path, tmp_path: Path) -> None:
    """Its name on stdout, its size and the sample on stderr; the run itself is not touched."""
    before = helpers.tree(run)
    code, out, err = helpers.quiet_dapo("report", run, "-o", tmp_path / "page.html")
    assert code == 0, err
    assert out.strip() == str(tmp_path / "page.html")
    assert "384 of 384 rollouts" in err
    assert helpers.tree(run) == before
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert json.loads(inline(page, "data"))["live"] is False
    assert unpacked(inline(page, "rollout-data"))[0]["shown"] == 384
    assert page.count("plotly.js v") == 1


def test_several_runs_are_one_page_here(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """report.html in the working directory, which neither run owns."""
    other = synthetic.old_run(tmp_path / "old")
    monkeypatch.chdir(tmp_path)
    code, out, err = helpers.quiet_dapo("report", run, other)
    assert (code, out.strip()) == (0, "report.html"), err
    assert len(json.loads(inline((tmp_path / "report.html").read_text(), "data"))["runs"]) == 2


def test_latest_is_the_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In runs/, as everywhere."""
    synthetic.old_run(tmp_path / "runs" / "one")
    monkeypatch.chdir(tmp_path)
    code, out, err = helpers.quiet_dapo("report", "latest")
    assert (code, out.strip()) == (0, "runs/one/report.html"), err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("no-such-run",), "no-such-run: no run directory"),
        (("{run}", "{run}"), "named twice"),
        (("{run}", "-o", "page.pdf"), "--output page.pdf: name an .html file"),
        (("{run}", "-o", "nowhere/page.html"), "no such folder nowhere"),
        (("{run}", "-o", "folder.html"), "is a folder"),
        (("{run}", "--live", "-o", "page.html"), "--live serves the page and writes no file"),
        (("{run}", "--port", "8000"), "--port goes with --live"),
        (("{run}", "--live", "--port", "70000"), "70000"),
        (("{run}", "--rollouts-mb", "-1"), "--rollouts-mb"),
        ((), "RUN"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_mistakes_are_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    """Exit 2, what is wrong and where."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    code, out, err = helpers.quiet_dapo("report", *(word.format(run=run) for word in words))
    assert code == 2
    assert out == ""
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err


# --- live ------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Path]]:
    """A served run: (port, folder)."""
    monkeypatch.setattr(live, "FRESH_S", 0.0)
    run = synthetic.old_run(tmp_path / "run")
    with live.server(live.Source([run], 1 << 20), 0) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield one.server_address[1], run
        one.shutdown()
        thread.join(10)
        assert not thread.is_alive()


def ask(port: int, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str, http.client.HTTPMessage]:
    """(status, text, headers) of a request to 127.0.0.1."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers


def test_the_server_follows_the_run(served: tuple[int, Path]) -> None:
    """The page, then what is new: a further step is in the data as soon as it is in the file."""
    port, run = served
    status, page, headers = ask(port, "/")
    assert status == 200
    assert headers["Cache-Control"] == "no-store"
    assert json.loads(inline(page, "data"))["live"] is True
    with (run / "metrics.jsonl").open("a") as handle:
        handle.write('{"step": 4, "sampled/accuracy": 0.9}\n')
    fresh = json.loads(ask(port, "/data.json")[1])
    assert fresh["runs"][0]["curves"]["steps"] == [1, 2, 3, 4]
    assert len(unpacked(ask(port, "/rollouts")[1])[0]["rows"]) == 24


def test_nothing_is_made_twice_while_the_run_stands_still(
    served: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is the run's; a further step, or an evaluation, is noticed."""
    port, run = served
    made = []
    monkeypatch.setattr(live, "report_data", lambda paths: made.append(1) or report_data(paths))
    for _ in range(3):
        ask(port, "/data.json")
    assert len(made) == 1
    synthetic.write_json(run / "eval/step_000003.json", synthetic.evaluation(3, 3, random.Random(0)))
    assert "holdout" in ask(port, "/data.json")[1]
    assert len(made) == 2


@pytest.mark.parametrize(
    ("path", "method", "host", "status"),
    [
        ("/", "GET", "evil.example", 403),
        ("/data.json", "GET", "evil.example:{port}", 403),
        ("/data.json", "GET", "127.0.0.1", 403),
        ("/", "GET", "localhost:{port}", 200),
        ("/", "POST", None, 501),
        ("/data.json", "HEAD", None, 501),
        ("/../config.resolved.json", "GET", None, 404),
        ("/metrics.jsonl", "GET", None, 404),
    ],
)
def test_the_server_answers_nobody_else(
    served: tuple[int, Path], path: str, method: str, host: str | None, status: int
) -> None:
    """GET of three paths, for who calls it by its own name: another site's name that was rebound is refused."""
    port, _ = served
    assert ask(port, path, method, host and host.format(port=port))[0] == status


def test_ctrl_c_ends_it_cleanly(run: Path) -> None:
    """The address on stdout, then exit 0 without a traceback; the port is free again."""
    # Where tests run in the background, SIGINT comes in ignored; a person's shell does not do that.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from dapo.cli import main; main(sys.argv[1:])"
    )
    words = [sys.executable, "-c", code, "report", str(run), "--live"]
    environment = {**os.environ, "PYTHONPATH": str(Path(curves.__file__).parents[2])}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        port = int(address.rsplit(":", 1)[1].rstrip("/"))
        assert ask(port, "/data.json")[0] == 200
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "ended"
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/data.json")


def test_a_taken_port_is_told(served: tuple[int, Path]) -> None:
    """One line with the port."""
    with pytest.raises(UserError, match=f"--port {served[0]}: can't be had"):
        live.server(live.Source([served[1]], 0), served[0])
