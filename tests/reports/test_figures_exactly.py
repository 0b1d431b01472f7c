"""A figure as it is saved: its words, its size, its ticks, its boxes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.reports.html import publication

figures = pytest.importorskip("matplotlib.figure", reason="pip install 'fedblocks[plot]'")
TITLES = {"xaxis": {"title": {"text": "rounds &amp; hours"}}, "yaxis": {"title": {"text": "loss"}}}
LINE = {
    "name": "a", "x": [1, 2], "y": [0.1, 0.4], "mode": "lines+markers",
    "marker": {"color": "#0072B2", "symbol": "circle"}, "line": {"dash": "solid"},
}  # fmt: skip
BOX = {"type": "box", "name": "a", "y": [1.0, 2.0, 3.0], "marker": {"color": "#0072B2"}}
MAP = {
    "type": "heatmap", "x": ["0", "1"], "y": ["c"] * 40, "z": [[0.1, None]] * 40,
    "zmin": 0, "zmax": 1, "colorscale": "Cividis",
}  # fmt: skip


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """(figure, name of the file, metadata) of each that is saved."""
    every: list[Any] = []
    keep = lambda figure, path, metadata: every.append((figure, path.name, metadata))
    monkeypatch.setattr(figures.Figure, "savefig", keep)
    return every


def write(name: str, trace: dict[str, Any], layout: dict[str, Any], folder: Path) -> None:
    publication._write_chart(
        SimpleNamespace(id=name, data=[trace], layout=layout),  # type: ignore[arg-type]
        folder,
    )


def test_a_figure_has_the_words_of_its_axes_and_no_date(saved: list[Any], tmp_path: Path) -> None:
    write("cost", LINE, TITLES, tmp_path)
    (figure, first, undated), (again, second, svg) = saved
    assert figure is again and (first, second) == ("cost.pdf", "cost.svg")
    assert (undated, svg) == ({"CreationDate": None}, {"Date": None})
    assert figure.axes[0].get_xlabel() == "rounds & hours"
    assert figure.axes[0].get_ylabel() == "loss"
    assert figure.get_size_inches().tolist() == [3.4, 2.6]


@pytest.mark.parametrize(
    ("name", "whole"), [("curve-round", True), ("curve-loss", True), ("curve-bytes", False)]
)
def test_rounds_are_whole_numbers_and_costs_are_not(
    name: str, whole: bool, saved: list[Any], tmp_path: Path
) -> None:
    write(name, LINE, {}, tmp_path)
    axes = saved[0][0].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("", "")
    ticks = axes.get_xticks().tolist()
    assert all(float(tick).is_integer() for tick in ticks) is whole


def test_a_map_is_as_tall_as_its_names_need_and_other_figures_are_not(
    saved: list[Any], tmp_path: Path
) -> None:
    write("map-1", MAP, {}, tmp_path)
    write("gain", BOX, {}, tmp_path)
    heights = [figure.get_size_inches()[1] for figure, name, _ in saved if name.endswith("svg")]
    assert heights == pytest.approx([0.1 * 40 + 1.2, 2.6])
    drawn, bar = saved[0][0].axes  # a bar of colours
    (image,) = drawn.images
    assert (drawn.get_aspect(), image.get_interpolation()) == ("auto", "nearest")
    assert bar.get_ylim() == (0, 1)
    assert {label.get_fontsize() for label in drawn.get_xticklabels()} == {5.0}
    assert {label.get_rotation() for label in drawn.get_xticklabels()} == {90.0}
    assert {label.get_fontsize() for label in drawn.get_yticklabels()} == {5.0}


def test_points_stand_across_their_box_whose_whiskers_leave_nothing_out(
    saved: list[Any], tmp_path: Path
) -> None:
    write("gain", BOX, {}, tmp_path)
    axes = saved[0][0].axes[0]
    (cloud,) = [line for line in axes.lines if line.get_marker() == "."]
    assert cloud.get_xdata().tolist() == pytest.approx([0.8, 1.0, 1.2])
    assert (cloud.get_markersize(), cloud.get_alpha()) == (2, 0.6)
    (box,) = axes.patches
    xs = box.get_path().vertices[:, 0]
    assert xs.max() - xs.min() == pytest.approx(0.6)


def test_a_line_is_thin_with_small_marks() -> None:
    axes = figures.Figure().add_subplot()
    publication._lines(axes, [LINE])
    (line,) = axes.lines
    assert (line.get_linewidth(), line.get_markersize(), line.get_label()) == (1.2, 3.5, "a")
    assert axes.figure.legends == []  # of a single line
    publication._lines(axes, [LINE, {**LINE, "showlegend": False}])
    assert axes.figure.legends == []
    publication._lines(axes, [LINE, {**LINE, "name": "b"}])
    (legend,) = axes.figure.legends
    assert legend._ncols == 4 and not legend.get_frame_on()
    assert legend._outside_loc == "lower"  # under the axes, which make room
    assert legend.get_texts()[0].get_fontsize() == 6.5


def test_names_under_boxes_lean_and_end_at_their_box() -> None:
    axes = figures.Figure().add_subplot()
    publication._boxes(axes, [BOX, {**BOX, "name": "b &lt; c"}])
    labels = axes.get_xticklabels()
    assert [label.get_text() for label in labels] == ["a", "b < c"]
    assert {(label.get_rotation(), label.get_ha()) for label in labels} == {(45.0, "right")}
