"""Figures for papers show what the charts of a report hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedblocks.reports.html import publication
from fedblocks.reports.html.figures import Chart, Look
from fedblocks.reports.html.gather import Story
from fedblocks.reports.html.page import Content
from fedblocks.reports.tables import leaderboard
from tests.reports import stories

figures = pytest.importorskip("matplotlib.figure", reason="pip install 'fedblocks[plot]'")
colours = pytest.importorskip("matplotlib.colors", reason="pip install 'fedblocks[plot]'")


@pytest.fixture(scope="module")
def charts(story: Story) -> dict[str, Chart]:
    return {chart.id: chart for chart in Content.of(story).charts}


def drawn(chart: Chart) -> Any:
    axes = figures.Figure().add_subplot()
    publication._DRAW[chart.data[0].get("type", "scatter")](axes, chart.data)
    return axes


def test_lines_and_bands_are_those_of_the_chart(charts: dict[str, Chart]) -> None:
    chart = charts["curve-round"]
    axes = drawn(chart)
    traces = [trace for trace in chart.data if "name" in trace]
    bands = [trace for trace in chart.data if "name" not in trace]
    assert len(axes.lines) == len(traces) and len(axes.patches) == len(bands)
    for line, trace in zip(axes.lines, traces):
        assert line.get_xdata().tolist() == trace["x"]
        assert line.get_ydata().tolist() == trace["y"]
        assert line.get_label() == trace["name"]
        assert line.get_color() == trace["marker"]["color"]
        assert line.get_linestyle() == {"solid": "-"}[trace["line"]["dash"]]
        assert line.get_marker() == publication.MARKERS[trace["marker"]["symbol"]]
    for patch, band in zip(axes.patches, bands):
        corners = patch.get_xy()[:-1]
        assert corners[:, 0].tolist() == band["x"] and corners[:, 1].tolist() == band["y"]
        rgba = [float(part) for part in band["fillcolor"][5:-1].split(",")]
        wanted = (*(value / 255 for value in rgba[:3]), rgba[3])
        assert patch.get_facecolor() == pytest.approx(wanted)
        assert patch.get_linewidth() == 0
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [t["name"] for t in traces]


def test_points_of_the_plane_have_no_lines_between_them(charts: dict[str, Chart]) -> None:
    axes = drawn(charts["plane-1"])
    assert {line.get_linestyle() for line in axes.lines} == {"None"}
    assert len(axes.lines) == len(charts["plane-1"].data)


def test_a_legend_is_drawn_only_for_several(charts: dict[str, Chart]) -> None:
    chart = charts["curve-round"]
    alone = SimpleNamespace(data=chart.data[:2])  # a band and its line
    assert drawn(alone).figure.legends == []  # type: ignore[arg-type]


def test_boxes_stand_in_order_with_every_client_as_a_point(charts: dict[str, Chart]) -> None:
    chart = charts["distribution"]
    axes = drawn(chart)
    assert axes.get_xticks().tolist() == [1, 2, 3]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == [trace["name"] for trace in chart.data]
    clouds = [line for line in axes.lines if line.get_marker() == "."]
    medians = [line for line in axes.lines if len(line.get_xdata()) == 2]
    for place, (cloud, trace) in enumerate(zip(clouds, chart.data, strict=True), 1):
        assert cloud.get_ydata().tolist() == trace["y"]
        assert cloud.get_xdata() == pytest.approx(
            np.linspace(place - 0.2, place + 0.2, len(trace["y"]))
        )
        assert cloud.get_color() == trace["marker"]["color"]
        middle = np.median(trace["y"])
        own = [line for line in medians if line.get_color() == trace["marker"]["color"]]
        assert any(line.get_ydata() == pytest.approx([middle, middle]) for line in own)
    for patch, trace in zip(axes.patches, chart.data, strict=True):
        assert patch.get_edgecolor() == colours.to_rgba(trace["marker"]["color"])
        assert patch.get_facecolor()[3] == 0


def test_a_single_client_stands_in_the_middle_of_its_box() -> None:
    trace = {"type": "box", "name": "a &amp; b", "y": [0.5], "marker": {"color": "#0072B2"}}
    axes = drawn(SimpleNamespace(data=[trace]))  # type: ignore[arg-type]
    (cloud,) = [line for line in axes.lines if line.get_marker() == "."]
    assert cloud.get_xdata().tolist() == [1.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a & b"]


def test_a_map_shows_the_last_round_with_its_limits(charts: dict[str, Chart]) -> None:
    (trace,) = charts["map-1"].data
    axes = drawn(charts["map-1"])
    (image,) = axes.images
    assert image.get_array().tolist() == trace["z"]
    assert image.get_clim() == (trace["zmin"], trace["zmax"])
    assert image.get_cmap().name == "cividis"
    assert [label.get_text() for label in axes.get_xticklabels()] == trace["x"]
    assert [label.get_text() for label in axes.get_yticklabels()] == trace["y"]
    assert len(axes.figure.axes) == 2  # and the bar of colours


def test_every_chart_is_written_twice_and_the_same_each_time(
    charts: dict[str, Chart], tmp_path: Path
) -> None:
    chosen = [charts[name] for name in ("curve-round", "map-1", "gain")]
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for chart in chosen:
            paths = publication._write_chart(chart, tmp_path / folder)
            assert [path.name for path in paths] == [f"{chart.id}.pdf", f"{chart.id}.svg"]
    for path in (tmp_path / "a").iterdir():
        if path.suffix == ".pdf":  # an SVG has random marks unless the style is set
            assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_page_has_no_number_where_a_loss_is_endless(charts: dict[str, Chart]) -> None:
    data = [{"y": [1.0, float("inf"), float("nan")], "name": "fedavg"}]
    endless = replace(charts["curve-round"], data=data).script_data()
    assert endless["data"] == [{"y": [1.0, None, None], "name": "fedavg"}]


def test_a_figure_replaces_a_link_of_its_name_and_what_it_leads_to_stays(
    charts: dict[str, Chart], tmp_path: Path
) -> None:
    (tmp_path / "diary").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "gain.pdf").symlink_to(tmp_path / "diary")
    publication._write_chart(charts["gain"], tmp_path / "out")
    assert (tmp_path / "diary").read_text() == "mine"
    assert (tmp_path / "out" / "gain.pdf").read_bytes().startswith(b"%PDF")


def test_a_tall_map_has_room_for_the_names_of_its_clients() -> None:
    height = lambda many: publication._height(SimpleNamespace(data=[{"y": [""] * many}]))  # type: ignore[arg-type]
    assert [height(many) for many in (0, 14, 30, 78, 200)] == pytest.approx([2.6, 2.6, 4.2, 9, 9])
    assert {*publication.MARKERS} == {Look.number(i).symbol for i in range(28)}
    assert {*publication.DASHES} == {Look.number(i).dash for i in range(28)}


def test_runs_side_by_side_are_sorted_and_compared_with_a_reference(story: Story) -> None:
    runs = {name: by[3] for name, by in story.results.items()}
    rows = leaderboard(runs, reference="local")
    assert [row["mean"] for row in rows] == sorted((row["mean"] for row in rows), reverse=True)
    alone = stories.accuracy("local", 3, 4)
    for row in rows:
        own = stories.accuracy(row["name"], 3, 4)
        values = list(own.values())
        assert row["mean"] == pytest.approx(np.mean(values)) and row["worst"] == min(values)
        assert row["std"] == pytest.approx(np.std(values))
        below = np.mean([own[c] < alone[c] for c in own])
        assert row["below_reference"] == pytest.approx(below)
        assert row["rounds"] == 4 and row["lanes"] == 1 and row["best_by_validation"] is None
        assert row["megabytes"] == pytest.approx(0 if row["name"] == "local" else 6 * 1.75 * 4)
        assert (row["seconds"], row["total_seconds"]) == (8.0, 26.0)
    assert {row["below_reference"] for row in leaderboard(runs)} == {None}
