"""The charts of a report as figures for papers, PDF and SVG, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.reports.html.figures import Chart
from fedblocks.reports.html.gather import gather
from fedblocks.reports.html.page import Content

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Trace = dict[str, Any]

DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "cross": "P",
    "x": "X",
    "star": "*",
}
MAPS = {"RdBu": "RdBu_r", "Cividis": "cividis"}
STYLE: Any = {
    "font.size": 8,
    "figure.constrained_layout.use": True,
    "axes.grid": False,
    "pdf.fonttype": 42,  # letters stay letters, which journals ask for
    "svg.fonttype": "none",
    "svg.hashsalt": "fedblocks",  # the same figure is the same file
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}


def write_figures(folder: str | Path, out: str | Path) -> list[Path]:
    """Write every chart of a report as PDF and as SVG; maps show their last round.
    Where they were written.
    """
    try:
        import matplotlib
    except ImportError as error:
        fix = 'pip install "fedblocks[plot]"'
        raise UserError("figures need the package matplotlib", fix) from error
    charts = Content.of(gather(Path(folder))).charts
    target = Path(out)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(STYLE):
            return [path for chart in charts for path in _write_chart(chart, target)]
    except OSError as error:
        message = f"cannot write figures to {target}: {error.strerror or error}"
        raise RunFolderError(message, "choose another folder with --figures") from error


def _write_chart(chart: Chart, target: Path) -> list[Path]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    kind = chart.data[0].get("type", "scatter")
    figure = Figure(figsize=(3.4, _height(chart) if kind == "heatmap" else 2.6))
    FigureCanvasAgg(figure)  # no window, whatever the machine has
    axes = figure.add_subplot()
    _DRAW[kind](axes, chart.data)
    if chart.id in ("curve-round", "curve-loss"):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(_words(chart.layout.get("xaxis", {})))
    axes.set_ylabel(_words(chart.layout.get("yaxis", {})))
    paths = [target / f"{chart.id}.{ending}" for ending in ("pdf", "svg")]
    for path in paths:
        dated = {"CreationDate": None} if path.suffix == ".pdf" else {"Date": None}
        path.unlink(missing_ok=True)  # a link of a stranger's could lead to another file
        figure.savefig(path, metadata=dated)
    return paths


def _lines(axes: Axes, traces: list[Trace]) -> None:
    for trace in traces:
        if trace.get("fill") == "toself":
            axes.fill(trace["x"], trace["y"], color=_rgba(trace["fillcolor"]), linewidth=0)
            continue
        marker = trace["marker"]
        line = trace.get("line", {})
        style = DASHES[line.get("dash", "solid")] if "lines" in trace["mode"] else "none"
        axes.plot(
            trace["x"],
            trace["y"],
            label=_text(trace["name"]),
            color=marker["color"],
            linestyle=style,
            linewidth=1.2,
            marker=MARKERS[marker["symbol"]],
            markersize=3.5,
        )
    if len([trace for trace in traces if trace.get("showlegend", True)]) > 1:
        axes.figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=6.5)


def _boxes(axes: Axes, traces: list[Trace]) -> None:
    drawn = axes.boxplot(
        [trace["y"] for trace in traces], widths=0.6, showfliers=False, patch_artist=True
    )
    for place, trace in enumerate(traces):
        colour = trace["marker"]["color"]
        drawn["boxes"][place].set(facecolor="none", edgecolor=colour)
        drawn["medians"][place].set(color=colour)
        spread = np.linspace(-0.2, 0.2, len(trace["y"])) if len(trace["y"]) > 1 else [0.0]
        x = place + 1 + np.asarray(spread)
        axes.plot(x, trace["y"], ".", color=colour, markersize=2, alpha=0.6)
    names = [_text(trace["name"]) for trace in traces]
    axes.set_xticks(range(1, len(traces) + 1), names, rotation=45, ha="right")


def _map(axes: Axes, traces: list[Trace]) -> None:
    (trace,) = traces
    values = np.array(trace["z"], dtype=float)  # None, for no number, becomes NaN
    image = axes.imshow(
        values,
        aspect="auto",
        cmap=MAPS[trace["colorscale"]],
        vmin=trace["zmin"],
        vmax=trace["zmax"],
        interpolation="nearest",
    )
    axes.figure.colorbar(image)
    columns = [_text(label) for label in trace["x"]]
    rows = [_text(label) for label in trace["y"]]
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=5)
    axes.set_yticks(range(len(rows)), rows, fontsize=5)


_DRAW: dict[str, Callable[[Any, list[Trace]], None]] = {
    "scatter": _lines,
    "box": _boxes,
    "heatmap": _map,
}


def _height(chart: Chart) -> float:
    """Inches that the names of the clients need."""
    return float(min(9.0, max(2.6, 0.1 * len(chart.data[0]["y"]) + 1.2)))


def _words(axis: dict[str, Any]) -> str:
    return _text(axis.get("title", {}).get("text", ""))


def _text(shown: str) -> str:
    """What `plain` had escaped for the page."""
    return unescape(shown)


def _rgba(colour: str) -> tuple[float, ...]:
    parts = colour.removeprefix("rgba(").removesuffix(")").split(",")
    red, green, blue, alpha = map(float, parts)
    return red / 255, green / 255, blue / 255, alpha
