"""The page in a browser: it draws without errors or requests, filters, keys and theme work, it fits 1280 pixels."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import helpers_report as synthetic
from dapo.report import live
from dapo.report.data import report_data
from dapo.report.page import packed, render
from test_report import HOSTILE, hostile  # noqa: F401  (a fixture)

CHROMIUM = shutil.which("chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
    pytest.mark.timeout(600),
]
WAIT = 60_000  # milliseconds; a slow machine draws slowly
COUNT = "#rollout-count"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    with playwright.sync_playwright() as started:
        one = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


class Seen:
    """A page and what it said, threw and asked for."""

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 900}, **context)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address, timeout=WAIT)
        self.page.wait_for_selector("html[data-ready=yes]", timeout=WAIT)

    def text(self, selector: str) -> str:
        """What an element shows."""
        return str(self.page.text_content(selector))

    def wait(self, expression: str) -> None:
        """Until it is true; asked from outside, since the page's policy forbids to compile text within."""
        until = time.monotonic() + WAIT / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < until, expression
            self.page.wait_for_timeout(50)

    def matches(self) -> int:
        """How many rollouts the filters leave."""
        return int(self.text(COUNT).split()[0].replace(",", ""))

    def width(self) -> int:
        """The width of the content, in pixels."""
        return int(self.page.evaluate("document.documentElement.scrollWidth"))

    def draw_all(self) -> None:
        """As for printing: every picture, also those out of view."""
        self.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")

    def clean(self) -> None:
        """Nothing was said, and nothing asked for but the file itself and what it holds."""
        assert self.said == []
        assert [url for url in self.asked[1:] if not url.startswith(("data:", "blob:"))] == []


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of one run, of an old one, and of several."""
    folder = tmp_path_factory.mktemp("pages")
    runs = [synthetic.synthetic_run(folder / f"seed{seed}", seed=seed) for seed in (0, 1)]
    other = synthetic.synthetic_run(folder / "longer", seed=0, wanted_steps=99)
    old = synthetic.old_run(folder / "old")
    sets = {"one": [runs[0]], "old": [old], "several": [*runs, other, old]}
    for name, paths in sets.items():
        page = render(report_data(paths), packed(live.rollout_samples(paths, 1 << 20)))
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in sets}


@pytest.fixture
def seen(browser: Any, files: dict[str, Path]) -> Iterator[Seen]:
    """The page of one run."""
    one = Seen(browser, files["one"].as_uri())
    yield one
    one.page.close()


@pytest.mark.parametrize("name", ["one", "old", "several"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_of_the_page_is_drawn_without_a_word(browser: Any, files: dict[str, Path], name: str, scheme: str) -> None:
    """No console line, no request, every picture has its curves, no scrolling sideways."""
    one = Seen(browser, files[name].as_uri(), color_scheme=scheme)
    one.draw_all()
    undrawn = one.page.evaluate(
        "[...document.querySelectorAll('.plot')].filter((p) => !p.querySelector('.scatterlayer .trace')).length"
    )
    assert undrawn == 0
    assert one.page.locator(".plot").count() > (4 if name == "old" else 40)
    assert one.width() <= 1280
    assert one.page.evaluate("document.documentElement.dataset.theme") == scheme
    one.clean()
    one.page.close()


def test_no_labels_run_out_of_their_panel(seen: Seen) -> None:
    """Texts of the flows lie inside the picture, and no panel scrolls sideways."""
    outside = seen.page.evaluate(
        """[...document.querySelectorAll('svg.flow')].flatMap((svg) => [...svg.querySelectorAll('text')]
        .filter((text) => text.getBoundingClientRect().right > svg.getBoundingClientRect().right + 1)
        .map((text) => text.textContent))"""
    )
    assert seen.page.locator("svg.flow text").count() > 8
    assert outside == []
    wide = "[...document.querySelectorAll('.panel')].filter((p) => p.scrollWidth > p.clientWidth + 1).map((p) => p.id)"
    assert seen.page.evaluate(wide) == []


@pytest.mark.parametrize(
    ("control", "value"),
    [
        ("#filter-verdict", "right"),
        ("#filter-verdict", "unparsed"),
        ("#filter-kept", "yes"),
        ("#filter-truncated", "yes"),
        ("#filter-shaded", "yes"),
        ("#filter-step-from", "10"),
        ("#filter-reward-to", "-1"),
        ("#filter-length-from", "60"),
        ("#filter-search", "therefore let"),
    ],
)
def test_each_filter_narrows_the_list(seen: Seen, control: str, value: str) -> None:
    """To what the data say it should leave; Clear brings all back."""
    whole = seen.matches()
    assert whole == 12 * 32
    if seen.page.evaluate("(id) => document.querySelector(id).tagName", control) == "SELECT":
        seen.page.select_option(control, value)
    else:
        seen.page.fill(control, value)
    wanted = {
        "right": "row.v === 'correct'", "unparsed": "row.v === 'unparsed'", "10": "row.s >= 10", "-1": "row.r <= -1",
        "60": "row.n >= 60", "therefore let": "row.t.includes('therefore let')",
        "yes": {"#filter-kept": "row.k", "#filter-truncated": "row.f", "#filter-shaded": "row.w"}.get(control),
    }[value]  # fmt: skip
    left = seen.page.evaluate(f"browser.samples[0].rows.filter((row) => {wanted}).length")
    assert 0 < left < whole
    seen.wait(f"document.querySelector('{COUNT}').textContent.startsWith('{left} match')")
    seen.page.click("text=Clear")
    assert seen.matches() == whole
    seen.clean()


def test_a_filter_that_leaves_nothing_says_so(seen: Seen) -> None:
    """And the next one works again."""
    seen.page.fill("#filter-step-from", "999")
    assert seen.matches() == 0
    assert "Nothing matches" in seen.text("#rollout-list")
    seen.page.fill("#filter-step-from", "")
    assert seen.matches() == 384


def test_the_keyboard_moves_in_the_list(seen: Seen) -> None:
    """/ goes to the search, Escape to the list; arrows, j, k, End and Home move; the chosen one stays in view."""
    chosen = "document.querySelector('#rollout-list [aria-selected=true]').id"
    seen.page.keyboard.press("/")
    assert seen.page.evaluate("document.activeElement.id") == "filter-search"
    seen.page.keyboard.type("/")
    assert seen.page.input_value("#filter-search") == "/"
    seen.page.fill("#filter-search", "")
    seen.page.keyboard.press("Escape")
    assert seen.page.evaluate("document.activeElement.id") == "rollout-list"
    seen.wait(f"document.querySelector('{COUNT}').textContent.startsWith('384 match')")
    first = seen.text("#rollout-detail h3")
    places = []
    for key in ("ArrowDown", "j", "k", "ArrowUp", "End", "Home", "PageDown"):
        seen.page.keyboard.press(key)
        places.append(int(seen.page.evaluate(chosen).removeprefix("rollout-")))
        inside = "(() => { const l = document.getElementById('rollout-list').getBoundingClientRect(), i = document.querySelector('#rollout-list [aria-selected=true]').getBoundingClientRect(); return i.top >= l.top && i.bottom <= l.bottom + 1; })()"  # noqa: E501
        assert seen.page.evaluate(inside), key
    assert places[:6] == [1, 2, 1, 0, 383, 0]
    assert places[6] > 5
    assert seen.text("#rollout-detail h3") != first
    assert seen.page.evaluate("document.getElementById('rollout-list').getAttribute('aria-activedescendant')")
    seen.clean()


def test_focus_can_be_seen_and_goes_round(seen: Seen) -> None:
    """Tab reaches the controls in the order of the page, each with an outline."""
    names = []
    for _ in range(8):
        seen.page.keyboard.press("Tab")
        names.append(seen.page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        outline = seen.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", names[-1]
    assert names[:4] == ["Skip to the report", "x-axis", "smoothing", "theme"]
    assert names[4] == "Summary"


def test_the_theme_can_be_switched(seen: Seen) -> None:
    """Page and pictures change colour; from automatic to light, dark and back."""
    ground = "getComputedStyle(document.body).backgroundColor"
    before = seen.page.evaluate(ground)
    for expected in ("light", "dark"):
        seen.page.click("#theme")
        assert seen.text("#theme") == f"Theme: {expected}"
        assert seen.page.evaluate("document.documentElement.dataset.theme") == expected
    assert seen.page.evaluate(ground) != before
    seen.draw_all()
    font = "document.querySelector('#panel-accuracy .plot')._fullLayout.font.color"
    ink = "getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()"
    assert seen.page.evaluate(font) == seen.page.evaluate(ink)
    seen.clean()


def test_choosers_of_step_axis_and_smoothing(seen: Seen) -> None:
    """Each changes what is drawn."""
    credit = "#credit-table input[type=range]"
    before = seen.text("#credit-table table")
    assert "step 12" in seen.text("#credit-table output")
    seen.page.focus(credit)
    seen.page.keyboard.press("Home")
    assert "step 4" in seen.text("#credit-table output")
    assert seen.text("#credit-table table") != before
    assert "not causal" in seen.text("#credit-table")
    flows = seen.text("#flows svg.flow")
    seen.page.focus("#flows input[type=range]")
    seen.page.keyboard.press("End")
    assert seen.text("#flows output") == "step 12"
    assert seen.text("#flows svg.flow") != flows
    seen.draw_all()
    last = "document.querySelector('#panel-entropy .plot').data.at(-1)"
    assert seen.page.evaluate(f"{last}.x.at(-1)") == 12
    seen.page.select_option("#x-axis", "device")
    seen.draw_all()
    assert seen.page.evaluate(f"{last}.x.at(-1)") == pytest.approx(12 * 31 / 3600, rel=1e-3)
    raw = seen.page.evaluate(f"{last}.y")
    seen.page.select_option("#smoothing", "5")
    seen.draw_all()
    assert seen.page.evaluate(f"{last}.y[5]") == pytest.approx(sum(raw[3:8]) / 5)
    seen.clean()


def test_tokens_are_shaded(seen: Seen) -> None:
    """By probability, ratio and clipping, where there are data; elsewhere it is said that there are none."""
    assert "no token data were kept" in seen.text("#rollout-detail")
    seen.page.select_option("#filter-shaded", "yes")
    coloured = "[...document.querySelectorAll('#rollout-detail .token')].map((t) => t.style.background)"
    found = {}
    for shade in ("probability", "ratio", "clipped", "none"):
        seen.page.select_option("#shade", shade)
        found[shade] = seen.page.evaluate(coloured)
    assert len(found["ratio"]) > 20
    assert not any(found["none"])
    row = "browser.found[browser.at].w"
    clipped = seen.page.evaluate(f"{row}.c.map((c) => c !== 0)")
    assert [bool(colour) for colour in found["clipped"]] == clipped
    assert found["probability"] != found["ratio"]
    seen.clean()


def test_the_configuration_can_be_searched(seen: Seen) -> None:
    """By key and by source; and only what differs from the default."""
    rows = "document.querySelectorAll('#settings tbody tr').length"
    whole = seen.page.evaluate(rows)
    seen.page.fill("#settings input[type=search]", "ten times the paper")
    assert seen.page.evaluate(rows) == 1
    assert "train.learning_rate" in seen.text("#settings tbody")
    seen.page.fill("#settings input[type=search]", "")
    seen.page.check("#changed-only")
    assert 0 < seen.page.evaluate(rows) < whole


def test_several_runs_share_the_pictures(browser: Any, files: dict[str, Path]) -> None:
    """Two seeds are one line with a band; the chooser changes the run of the list."""
    one = Seen(browser, files["several"].as_uri())
    assert "95% t interval over seeds" in one.text("#summary")
    assert "train.seed" in one.text("#summary")
    one.draw_all()
    traces = one.page.evaluate(
        "document.querySelector('#panel-accuracy .plot').data.map((t) => [t.fill || '', t.name || ''])"
    )
    assert sum(fill == "toself" for fill, _ in traces) == 2  # sampled and kept of the two seeds
    assert sum(bool(name) for _, name in traces) == 2 * 3
    one.page.select_option("#rollouts select.run-choice", "3")
    assert one.matches() == 24
    one.clean()
    one.page.close()


def test_hostile_text_is_text(browser: Any, hostile: Path, tmp_path: Path) -> None:  # noqa: F811
    """It runs nothing, makes no element, and stands on the page with its control characters as escapes."""
    page = render(report_data([hostile]), packed(live.rollout_samples([hostile], 1 << 20)))
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    one = Seen(browser, (tmp_path / "page.html").as_uri())
    one.draw_all()
    one.page.select_option("#filter-shaded", "yes")
    assert "<img src=x onerror=alert(2)>" in one.text("#rollout-detail pre")
    one.page.select_option("#filter-shaded", "")
    shown = one.text("#rollout-detail")
    assert r"</script><script>alert(1)</script> \x1b[31mred \u202erts\u202c \x00 \ud800" in shown
    assert HOSTILE[:34] in one.text("#summary")
    assert one.page.evaluate("document.querySelectorAll('main img, main script, main b:not(.plot b)').length") == 0
    assert "run<b>&amp;" in one.text("h1")
    assert one.width() <= 1280
    one.clean()
    one.page.close()


def test_a_live_page_follows(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is written is drawn without a reload, the chosen rollout stays; a server that goes is told of."""
    monkeypatch.setattr(live, "FRESH_S", 0.0)
    run = synthetic.old_run(tmp_path / "run")
    with live.server(live.Source([run], 1 << 20), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            one = Seen(browser, f"http://127.0.0.1:{live.port_of(server)}/")
            one.page.focus("#rollout-list")
            one.page.keyboard.press("j")
            with (run / "metrics.jsonl").open("a") as handle:
                handle.write('{"step": 4, "sampled/accuracy": 0.875, "policy/entropy": 0.5}\n')
            one.wait("document.getElementById('summary').textContent.includes('87.5%')")
            one.draw_all()
            assert one.page.evaluate("document.querySelector('#panel-accuracy .plot').data[0].x.at(-1)") == 4
            assert one.page.evaluate("document.querySelector('#rollout-list [aria-selected=true]').id") == "rollout-1"
            synthetic.write_packed(run / "rollouts/step_000004.jsonl.zst", [{"step": 4, "text": "fresh"}])
            one.page.click("text=Load new rollouts")
            one.wait(f"document.querySelector('{COUNT}').textContent.startsWith('25 match')")
            assert one.said == []
            assert {url.rsplit("/", 1)[1] for url in one.asked if url.startswith("http")} == {
                "",
                "data.json",
                "rollouts",
            }
        finally:
            server.shutdown()
            thread.join(20)
    one.wait("document.getElementById('live').textContent.includes('not reached')")
    one.page.close()
