"""The report in a real browser: it asks for nothing, complains of nothing, draws
everything, and can be used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedblocks import write_report

from .conftest import HOSTILE, Seen

REACHABLE = "a[href], button, input, summary, [tabindex='0']"
OPEN = "document.querySelectorAll('details').forEach((d) => { d.open = true; })"


@pytest.fixture(scope="module")
def report(seen: Seen, comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """The page of the report; a test that changes how it looks changes it back."""
    pytest.importorskip("plotly", reason="reports need plotly: pip install 'fedblocks[report]'")
    seen.goto(write_report(comparison, tmp_path_factory.mktemp("report") / "r.html").as_uri())
    return seen


def drawn(page: Any) -> dict[str, int]:
    """How many marks each chart has: lines, points, boxes, maps."""
    marks = ".scatterlayer .trace, .boxlayer .trace, .heatmaplayer image, .heatmaplayer path"
    count = f"(c) => [c.id, c.querySelectorAll('{marks}').length]"
    actual: dict[str, int] = page.evaluate(
        f"Object.fromEntries([...document.querySelectorAll('.chart')].map({count}))"
    )
    return actual


def colour(page: Any, selector: str, name: str) -> str:
    actual: str = page.evaluate(
        "([s, n]) => getComputedStyle(document.querySelector(s))[n]", [selector, name]
    )
    return actual


def test_it_opens_alone_and_draws_every_chart(report: Seen) -> None:
    charts = drawn(report.page)
    assert {
        "curve-round",
        "curve-megabytes",
        "curve-seconds",
        "curve-loss",
        "distribution",
        "gain",
        "plane-1",
    } <= charts.keys()
    assert {
        f"map-{i}" for i in range(1, 5)
    } <= charts.keys()  # pFedMB's alphas, IFCA's choice, FedMN's gates, Flow's route
    assert min(charts.values()) > 0
    report.picture("report-light")
    assert report.errors == []
    own = report.page.url
    assert [
        url for url in report.requests if url != own and not url.startswith(("data:", "blob:"))
    ] == []


def test_hostile_names_are_text(report: Seen) -> None:
    assert report.dialogs == [] and report.page.evaluate("window.hacked") is None
    assert report.page.locator("h1").inner_text() == "<img src=x onerror=alert(3)>"
    assert HOSTILE in report.page.locator("#worst").inner_text()
    assert report.page.locator("main img").count() == 0


def test_the_slider_shows_earlier_rounds_by_keyboard(report: Seen) -> None:
    slider, message = (
        report.page.locator("input[data-chart=map-1]"),
        report.page.locator("label:has([data-chart=map-1]) output"),
    )
    values = "document.getElementById('map-1').data[0].z"
    last = report.page.evaluate(values)
    assert message.inner_text() == "round 3"
    slider.focus()
    report.page.keyboard.press("ArrowLeft")
    assert message.inner_text() == "round 2" and report.page.evaluate(values) != last
    report.page.keyboard.press("End")
    assert message.inner_text() == "round 3" and report.page.evaluate(values) == last


def test_the_theme_switches_page_and_charts(report: Seen) -> None:
    text = "#curve-round .xtitle"
    before = colour(report.page, "body", "backgroundColor"), colour(report.page, text, "fill")
    report.page.locator("#theme").press("Enter")
    after = colour(report.page, "body", "backgroundColor"), colour(report.page, text, "fill")
    assert (
        before[0] == "rgb(255, 255, 255)"
        and after[0] == "rgb(20, 23, 28)"
        and before[1] != after[1]
    )
    report.picture("report-dark")
    report.page.locator("#theme").press("Enter")
    assert colour(report.page, "body", "backgroundColor") == before[0]


def test_it_follows_the_theme_of_the_system(report: Seen) -> None:
    report.page.evaluate("delete document.documentElement.dataset.theme")
    report.page.emulate_media(color_scheme="dark")
    assert colour(report.page, "body", "backgroundColor") == "rgb(20, 23, 28)"
    report.page.emulate_media(color_scheme="light")


def test_the_keyboard_reaches_everything(report: Seen) -> None:
    report.page.evaluate(OPEN)
    shown = f'[...document.querySelectorAll("{REACHABLE}")].filter((e) => e.checkVisibility())'
    wanted = report.page.evaluate(f"{shown}.map((e, i) => (e.dataset.n = i, i))")
    reached: set[int] = set()
    for _ in range(len(wanted) + 20):
        report.page.keyboard.press("Tab")
        reached.add(report.page.evaluate("Number(document.activeElement.dataset.n ?? -1)"))
    assert set(wanted) <= reached
    report.page.evaluate(OPEN.replace("true", "false"))


def test_a_table_opens_behind_every_chart_by_keyboard(report: Seen) -> None:
    figures = report.page.locator("figure")
    assert figures.count() == figures.locator("details table").count() > 10
    first = report.page.locator("figure summary").first
    first.press("Enter")
    assert report.page.locator("figure details").first.locator("td").first.is_visible()


def test_it_prints_in_black_on_white_with_whole_tables(report: Seen) -> None:
    report.page.locator("#theme").click()  # dark
    report.page.emulate_media(media="print")
    assert colour(report.page, "body", "backgroundColor") == "rgb(255, 255, 255)"
    assert (
        not report.page.locator("nav").is_visible()
        and not report.page.locator("#theme").is_visible()
    )
    assert colour(report.page, ".scroll", "maxHeight") == "none"
    report.page.emulate_media(media="screen")
    report.page.locator("#theme").click()


def test_it_fits_a_narrow_screen(report: Seen) -> None:
    report.page.set_viewport_size({"width": 390, "height": 800})
    report.until("document.documentElement.scrollWidth <= 390")  # once the charts are drawn anew
    report.picture("report-narrow")
