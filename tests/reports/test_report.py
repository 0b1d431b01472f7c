"""The HTML report: what is in it, that it needs nobody, and that nothing in it can run."""

from __future__ import annotations

import json
import re
import shutil
import sys
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks import Config, Federation, RunResult, read_config, run
from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.data.federation import Parts
from fedblocks.reports.compare import compare
from fedblocks.reports.html import page, write_report
from fedblocks.reports.html.figures import Chart, Look, plain
from fedblocks.reports.html.maps import label_shares
from fedblocks.reports.html.order import by_similarity, distances, on_a_plane
from fedblocks.reports.student import half_width
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import ClientMetric, RefusalRow, RoundRecord, Snapshot, Traffic

SMALL = ["rounds=2", "data.clients=8", "method.epochs=1", "evaluation.every=1"]
needs_charts = pytest.mark.skipif(
    find_spec("plotly") is None, reason="reports need plotly: pip install 'fedblocks[report]'"
)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """The elements of a page, the text of its scripts, and all other text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.raw = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(self.raw)
        self.text = " ".join(self.words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    @property
    def charts(self) -> list[dict[str, Any]]:
        actual: list[dict[str, Any]] = json.loads(self.scripts[0])
        return actual

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compare("digits-pfedmb", ["pfedmb"], 2, tmp_path_factory.mktemp("r") / "c", SMALL).folder


@pytest.fixture(scope="module")
def shown(comparison: Path) -> Page:
    pytest.importorskip("plotly", reason="reports need plotly: pip install 'fedblocks[report]'")
    return Page(write_report(comparison))


def hostile(tmp_path: Path) -> RunResult:
    """A run of clients whose names are markup."""
    rng = np.random.Generator(np.random.PCG64(0))
    parts = [
        Parts(*((rng.normal(size=(8, 4)).astype("float32"), np.arange(8) % 2) for _ in range(3)))
        for _ in range(4)
    ]
    Federation.from_parts(parts, names=[f"{HOSTILE}{i}" for i in range(4)]).save(tmp_path / "f.npz")
    table = {"rounds": 2, "net": "mlp", "method": {"name": "pfedmb", "batch_size": 4}}
    return run(
        Config.of(
            {**table, "data": {"name": "saved", "options": {"path": str(tmp_path / "f.npz")}}}
        ),
        tmp_path / "run",
    )


def test_a_comparison_has_every_section_and_chart(shown: Page) -> None:
    for title in (
        "Leaderboard",
        "Worst clients",
        "Who shares which block",
        "Refused updates",
        "Repeat it",
    ):
        assert title in shown.text
    assert "not enough seeds for a verdict: 2 of at least 6" in shown.text
    wanted = {
        "curve-round",
        "curve-megabytes",
        "curve-seconds",
        "curve-loss",
        "distribution",
        "gain",
        "map-1",
        "labels-1",
        "plane-1",
    }
    assert {chart["id"] for chart in shown.charts} == wanted
    assert "Adjusted Rand index" in shown.text
    assert {chart["id"] for chart in shown.charts} == {
        div["id"] for div in shown.all("div") if div.get("class") == "chart"
    }


def test_every_chart_and_picture_has_a_table_behind_it(shown: Page) -> None:
    figures = re.findall(r"<figure.*?</figure>", shown.raw, re.DOTALL)
    assert len(figures) == len(shown.charts) + 4  # a picture for each method
    assert all(re.search(r"<details>.*<table>.*<td", figure, re.DOTALL) for figure in figures)


def test_the_slider_has_a_position_for_each_evaluated_round(shown: Page) -> None:
    chart = next(chart for chart in shown.charts if chart["id"] == "map-1")
    assert [step["label"] for step in chart["steps"]] == ["round 1", "round 2"]
    assert chart["steps"][-1]["z"] == chart["data"][0]["z"]
    slider = next(field for field in shown.all("input") if field["data-chart"] == "map-1")
    assert (slider["type"], slider["max"], slider["value"]) == ("range", "1", "1")
    rows = np.array(chart["data"][0]["z"]).reshape(8, 2, 4)  # [clients, layers, branches]
    assert rows.sum(-1) == pytest.approx(1.0, abs=0.01)  # branch weights, not their logits


def test_labels_stand_beside_the_map_in_the_same_order(shown: Page) -> None:
    charts = {chart["id"]: chart for chart in shown.charts}
    assert charts["labels-1"]["data"][0]["y"] == charts["map-1"]["data"][0]["y"]
    assert np.array(charts["labels-1"]["data"][0]["z"]).sum(1) == pytest.approx(1.0, abs=0.01)


def test_the_report_is_one_small_file_that_asks_nobody_for_anything(shown: Page) -> None:
    assert len(shown.raw.encode()) <= 6_000_000
    links = [
        a.get(key)
        for _, a in shown.elements
        for key in ("src", "href", "srcset", "data", "action")
        if a.get(key)
    ]
    assert all(str(link).startswith("#") for link in links)
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {
        tag for tag, _ in shown.elements
    }
    assert "url(" not in re.findall(r"<style>(.*?)</style>", shown.raw, re.DOTALL)[0]


def test_only_the_two_scripts_of_the_page_may_run_and_there_is_no_network(shown: Page) -> None:
    policy = str(
        next(
            m["content"]
            for m in shown.all("meta")
            if m.get("http-equiv") == "Content-Security-Policy"
        )
    )
    hashes = {
        f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
        for text in shown.scripts[1:]
    }
    allowed = re.findall(r"script-src ([^;]*)", policy)[0].split()
    assert set(allowed) == hashes and len(hashes) == 2
    assert policy.startswith("default-src 'none';")


def test_the_page_can_be_used_without_a_mouse(shown: Page) -> None:
    assert shown.all("html")[0]["lang"] == "en"
    assert any(link["href"] == "#main" for link in shown.all("a"))
    assert all(
        region.get("aria-label") for region in shown.all("div") if region.get("role") == "region"
    )
    ids = {attributes["id"] for _, attributes in shown.elements if attributes.get("id")}
    assert {str(link["href"])[1:] for link in shown.all("a")} <= ids
    assert not any(key.startswith("on") for _, attributes in shown.elements for key in attributes)


def test_it_says_how_to_repeat_the_runs_and_what_they_ran_on(shown: Page, comparison: Path) -> None:
    assert f"fedblocks compare {comparison}/compare.toml --out NEW_FOLDER" in shown.text
    with RunFolder.open(comparison / "runs" / "local-1") as folder:
        assert str(folder.store.meta("federation")) in shown.text
    assert "torch" in shown.text and 'name = "local"' in shown.text


@needs_charts
def test_hostile_names_are_shown_and_do_nothing(tmp_path: Path) -> None:
    result = hostile(tmp_path)
    with RunFolder.open(result.folder) as folder:
        folder.claim()
        folder.store.note(HOSTILE, "warning")
    actual = Page(write_report(result.folder, tmp_path / "r.html"))
    assert len(actual.scripts) == 3 and actual.all("img") == []
    assert HOSTILE in actual.text
    names = next(chart for chart in actual.charts if chart["id"] == "map-1")["data"][0]["y"]
    assert len(set(names)) == 4 and not any("<" in name for name in names)


@needs_charts
def test_a_single_run_has_a_report_without_a_gain_over_local(
    comparison: Path, tmp_path: Path
) -> None:
    actual = Page(write_report(comparison / "runs" / "fedavg-0", tmp_path / "a" / "one.html"))
    assert "gain" not in {chart["id"] for chart in actual.charts}
    assert "There is no Local run here" in actual.text and "not enough seeds" not in actual.text
    assert "keep no small blocks of their own" in actual.text
    assert "fedblocks run" in actual.text


@needs_charts
def test_a_folder_of_runs_has_one_report_and_two_runs_of_a_method_are_told_apart(
    comparison: Path, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        shutil.copytree(comparison / "runs" / "fedavg-0", tmp_path / "all" / name)
    actual = Page(write_report(tmp_path / "all"))
    curve = next(chart for chart in actual.charts if chart["id"] == "curve-round")
    assert [trace["name"] for trace in curve["data"]] == ["first", "second"]


@needs_charts
def test_a_report_of_runs_that_are_not_finished_says_so(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(comparison, folder)
    shutil.rmtree(folder / "runs" / "pfedmb-1")
    # no process writes it: interrupted
    for name, status in (("local-0", "failed"), ("fedavg-0", "running")):
        with RunFolder.open(folder / "runs" / name) as opened:
            opened.claim()
            opened.store.set_meta("status", status)
    (folder / "runs" / "fedavg-1" / "run.sqlite").write_bytes(b"not a record")
    actual = Page(write_report(folder))
    assert "1 of 8 runs have not begun" in actual.text
    assert "local-0 is failed: 2 of 2 rounds" in actual.text
    assert "fedavg-0 is interrupted" in actual.text
    assert "fedavg-1/run.sqlite is damaged" in actual.text


@needs_charts
def test_a_run_without_a_round_has_a_report(tmp_path: Path) -> None:
    config = read_config("digits-pfedmb", SMALL)
    with RunFolder.create(tmp_path / "r", config.resolved(), {"python": "3", "command": []}):
        actual = Page(write_report(tmp_path / "r"))
    assert "r is running: 0 of 2 rounds are on record" in actual.text
    assert "Nothing has been evaluated yet" in actual.text and actual.charts == []


@needs_charts
def test_folders_that_are_no_runs_are_refused_with_a_reason(
    tmp_path: Path, comparison: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("dear")
    (tmp_path / "begun").mkdir()
    shutil.copy(comparison / "compare.toml", tmp_path / "begun")
    cases = {
        "missing": "does not exist",
        "empty": "is empty",
        "foreign": "is not a run",
        "begun": "has begun",
    }
    for name, said in cases.items():
        with pytest.raises(RunFolderError, match=said):
            write_report(tmp_path / name, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_a_report_without_the_chart_library_says_what_to_install(
    comparison: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(UserError) as error:
        write_report(comparison)
    assert "plotly" in error.value.message and "fedblocks[report]" in error.value.fix


@needs_charts
def test_data_that_have_changed_are_not_shown_beside_the_clients(tmp_path: Path) -> None:
    result = hostile(tmp_path)
    (tmp_path / "f.npz").unlink()
    actual = Page(write_report(result.folder))
    assert "labels-1" not in {chart["id"] for chart in actual.charts}
    assert "cannot be made here" in actual.text and "client 0" not in actual.text


def big(folder: Path, clients: int, rounds: int, numbers: int) -> None:
    """A record as a large run would leave it."""
    rng = np.random.Generator(np.random.PCG64(0))
    config = read_config("digits-pfedmb", [f"rounds={rounds}"])
    with RunFolder.create(folder, config.resolved(), {"python": "3"}) as opened:
        for number in range(1, rounds + 1):
            values = rng.random((clients, numbers)).tolist()
            record = RoundRecord(
                number,
                1.0,
                clients,
                metrics=[
                    ClientMetric("test", "personal", c, float(c % 50), 50.0) for c in range(clients)
                ],
                traffic=[Traffic(c, "model", "up", 10) for c in range(clients)],
                refusals=[RefusalRow(c, "not finite", "model") for c in range(clients)],
                snapshots=[
                    Snapshot(f"gate{n}", c, values[c]) for c in range(clients) for n in range(5)
                ],
            )
            opened.store.record_round(record)
        opened.set_status("finished")


@needs_charts
def test_the_report_of_a_large_run_stays_within_its_size(tmp_path: Path) -> None:
    big(tmp_path / "big", clients=200, rounds=4, numbers=120)
    actual = Page(write_report(tmp_path / "big"))
    assert len(actual.raw.encode()) <= 6_000_000
    heat = next(chart for chart in actual.charts if chart["id"] == "map-1")
    assert len(heat["data"][0]["y"]) == 100
    assert "more rows are in the record" in actual.text and "not finite" in actual.text


@needs_charts
def test_what_would_be_too_large_loses_details(
    comparison: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "LIMIT", 1000)
    actual = Page(write_report(comparison))
    assert all(chart["steps"] == [] for chart in actual.charts) and len(actual.charts) == 9
    write_report(comparison)


def test_an_interval_over_seeds_is_students() -> None:
    scipy = pytest.importorskip(
        "scipy.stats", reason="needs scipy: pip install 'fedblocks[analysis]'"
    )
    for many in (2, 3, 6, 11, 14, 40):
        values = np.random.Generator(np.random.PCG64(many)).normal(size=many)
        low, high = scipy.t.interval(0.95, many - 1, loc=values.mean(), scale=scipy.sem(values))
        assert half_width(values.tolist()) == pytest.approx((high - low) / 2, rel=0.01)
    assert half_width([0.5]) == 0.0


def test_similar_clients_stand_side_by_side() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    hidden = rng.permutation(np.arange(30) % 3)
    vectors = 5 * np.eye(3)[hidden] + 0.1 * rng.normal(size=(30, 3))
    ordered = hidden[by_similarity(vectors)]
    assert sorted(by_similarity(vectors)) == list(range(30))
    assert (np.diff(ordered) != 0).sum() == 2  # three groups, two borders


def test_the_plane_keeps_the_distances_of_points_that_lie_in_one() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    vectors = rng.normal(size=(12, 2)) @ rng.normal(size=(2, 5))
    places, shares = on_a_plane(vectors)
    assert distances(places) == pytest.approx(distances(vectors), abs=1e-6)
    assert sum(shares) == pytest.approx(1.0)


def test_labels_are_counted_in_training_rows_only() -> None:
    x = np.zeros((6, 2), dtype="float32")
    labels = [np.array([0, 0, 1, 2]), np.array([2]), np.array([2])]
    parts = [Parts(*((x[: len(y)], y) for y in labels))]
    shares, classes = label_shares(Federation.from_parts(parts), [0])
    assert classes == [0, 1, 2] and shares.tolist() == [[0.5, 0.25, 0.25]]


def test_looks_differ_for_28_methods_and_long_tables_are_cut() -> None:
    assert len({Look.number(i) for i in range(28)}) == 28
    chart = Chart.of("a", "t", "n", ["x", "y"], [[i, i] for i in range(5000)], data=[], layout={})
    assert len(chart.rows) == 1000 and chart.more == 4000
    assert plain("<b>\x1b" + "a" * 60) == "&lt;b&gt; " + "a" * 35 + "…"
