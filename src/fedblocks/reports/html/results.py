"""Charts of results: curves, distributions over clients, gains over Local, costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fedblocks.reports.html.figures import Cells, Chart, Look, axes, plain, quantile, rgba
from fedblocks.reports.html.gather import Facts, Point, Story
from fedblocks.reports.student import half_width
from fedblocks.runs.storage.main_metric import MainMetric

POINTS = 500  # more clients than this are drawn as a box without points
# of all boxes of a chart, and 100 evaluations of a curve; more are thinned out evenly
VALUES = 6_000
QUANTILES = {
    "lowest": 0.0,
    "lower quarter": 0.25,
    "median": 0.5,
    "upper quarter": 0.75,
    "highest": 1.0,
}
DECILE = "bottom decile"  # what a tenth of the clients do worse than, whichever way worse is
Axis = Literal["round", "megabytes", "seconds"]
What = Literal["score", "loss"]


def result_charts(story: Story) -> list[Chart]:
    """All of them, less those that there is nothing to draw for."""
    titles: list[tuple[Axis, str, str]] = [
        ("round", "{} over rounds", "round"),
        ("megabytes", "{} against communication", "megabytes both ways, all clients"),
        ("seconds", "{} against time", "seconds, evaluations included, warm-up left out"),
    ]
    name = _capital(_metric(story).name)
    curves = [_curves(story, axis, title.format(name), words) for axis, title, words in titles]
    curves.append(_curves(story, "round", "Loss over rounds", "round", of="loss"))
    return [chart for chart in (*curves, _distribution(story), _gain(story)) if chart.data]


def worst_clients(story: Story, most: int = 5) -> list[Cells]:
    """The clients that do worst under each method: method, seed, client, main metric, Local's."""
    sign = _metric(story).sign
    rows: list[Cells] = []
    for name, by_seed in story.runs.items():
        ranked = [
            (sign * value, seed, client)
            for seed, run in by_seed.items()
            for client, value in run.scores.items()
        ]
        for height, seed, client in sorted(ranked)[:most]:
            local = _local(story, seed).get(client) if name != "local" else None
            called = client_name(story, client, by_seed[seed])
            rows.append([name, seed, called, sign * height, local])
    return rows


def client_name(story: Story, client: int, run: Facts) -> str:
    """A client's name in the record of its run or in the data, or its number."""
    recorded = run.names.get(client)
    if recorded is not None:
        return recorded
    data = story.data_of(run)
    is_known = data is not None and client < data.clients
    return str(data.names[client]) if data is not None and is_known else f"client {client}"


def _curves(story: Story, axis: Axis, title: str, words: str, of: What = "score") -> Chart:
    what = _metric(story).name if of == "score" else of
    share = what == "accuracy"
    traces: list[dict[str, Any]] = []
    rows: list[Cells] = []
    for index, (name, by_seed) in enumerate(story.runs.items()):
        line = _line(by_seed, axis, of)
        traces += _traces(plain(name), line, Look.number(index), share) if line else []
        several = len(by_seed) > 1
        rows += [[name, _exact(x, axis), y, half if several else None] for x, y, half in line]
    many = max((len(by_seed) for by_seed in story.runs.values()), default=0)
    note = f"Mean of {_part(story)} {what} over clients"
    band = f" and {many} seeds; the band is a 95 % interval over seeds"
    band += ", cut at 0 and 1." if share else "."
    note += band if many > 1 else "."
    if any(_differ_in_rounds(by_seed) for by_seed in story.runs.values()):
        note += " A line ends where the first of its seeds does."
    columns = ["method", axis, what, "± over seeds"]
    layout = axes(words, what)
    id = f"curve-{axis}" if of == "score" else f"curve-{of}"
    return Chart.of(id, title, note, columns, rows, data=traces, layout=layout)


def _differ_in_rounds(by_seed: Mapping[int, Facts]) -> bool:
    return len({run.curve[-1].round for run in by_seed.values() if run.curve}) > 1


def _exact(x: float, axis: Axis) -> float:
    return round(x) if axis == "round" else x


def _line(by_seed: Mapping[int, Facts], axis: Axis, of: What) -> list[tuple[float, float, float]]:
    """Where each evaluation is on the axis, its mean, and half of its interval; in rounds that
    all seeds have.
    """
    curves: list[dict[int, Point]] = [
        {point.round: point for point in run.curve if getattr(point, of) is not None}
        for run in by_seed.values()
    ]
    common = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    line = []
    for round in common[:: -1 - len(common) // 100][::-1]:  # the last one is among them
        points = [curve[round] for curve in curves]
        values = [getattr(point, of) for point in points]
        x = sum(getattr(point, axis) for point in points) / len(points)
        line.append((x, sum(values) / len(values), half_width(values)))
    return line


def _traces(
    name: str, line: Sequence[tuple[float, float, float]], look: Look, share: bool
) -> list[dict[str, Any]]:
    x, y, half = ([round(point[i], 5) for point in line] for i in range(3))
    lowest, highest = (0.0, 1.0) if share else (-math.inf, math.inf)
    above = [min(highest, a + b) for a, b in zip(y, half)]
    below = [max(lowest, a - b) for a, b in zip(y, half)]
    band: dict[str, Any] = {
        "x": [*x, *reversed(x)],
        "y": [*above, *reversed(below)],
        "fill": "toself",
        "fillcolor": rgba(look.colour, 0.18),
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": name,
    }
    main = {
        "x": x,
        "y": y,
        "name": name,
        "mode": "lines+markers",
        "legendgroup": name,
        "line": {"color": look.colour, "dash": look.dash, "width": 2},
        "marker": {"symbol": look.symbol, "size": 6, "color": look.colour},
    }
    return [band, main] if any(half) else [main]


def _distribution(story: Story) -> Chart:
    by_method = {
        name: [value for run in by_seed.values() for value in run.scores.values()]
        for name, by_seed in story.runs.items()
    }
    note = (
        "A point is a client of a seed, after the last evaluation; the box holds the middle "
        "half of them."
    )
    name = _metric(story).name
    words, title = f"{_part(story)} {name}", f"{_capital(name)} of the clients"
    return _boxes(story, "distribution", title, note, words, by_method)


def _gain(story: Story) -> Chart:
    metric = _metric(story)
    sign = metric.sign
    by_method: dict[str, list[float]] = {}
    for name, by_seed in story.runs.items():
        if name != "local":
            gains = [_gains(run, _local(story, seed), sign) for seed, run in by_seed.items()]
            by_method[name] = [gain for of_seed in gains for gain in of_seed]
    note = (
        "What a client gains over training alone with the same seed; clients below 0 are "
        "worse off than alone."
    )
    words = f"{metric.name} less Local's" if sign > 0 else f"Local's {metric.name} less this"
    return _boxes(story, "gain", "Gain over Local", note, words, by_method)


def _gains(run: Facts, local: Mapping[int, float], sign: int) -> list[float]:
    return [sign * (value - local[c]) for c, value in run.scores.items() if c in local]


def _local(story: Story, seed: int) -> Mapping[int, float]:
    run = story.runs.get("local", {}).get(seed)
    return run.scores if run is not None else {}


def _boxes(
    story: Story, id: str, title: str, note: str, words: str, by_method: Mapping[str, list[float]]
) -> Chart:
    names = list(story.runs)
    traces: list[dict[str, Any]] = []
    rows: list[Cells] = []
    sign = 1 if id == "gain" else _metric(story).sign
    columns = ["method", "points", "mean", *_quantile_columns(sign)]
    if max(map(len, story.runs.values()), default=0) > 1:
        note += " The table is of all points together, the leaderboard of means over seeds."
    if id == "gain":
        columns.append("share below 0")
    for name, values in by_method.items():
        if not values:
            continue
        step = -(-len(values) * len(by_method) // VALUES)
        traces.append(_box(name, values[::step], Look.number(names.index(name))))
        rows.append(_summarise(name, values, sign))
        if id == "gain":
            rows[-1].append(sum(value < 0 for value in values) / len(values))
    layout = axes("", words, showlegend=False)
    return Chart.of(id, title, note, columns, rows, data=traces, layout=layout)


def _box(name: str, values: Sequence[float], look: Look) -> dict[str, Any]:
    return {
        "type": "box",
        "name": plain(name),
        "y": [round(value, 4) for value in values],
        "boxpoints": "all" if len(values) <= POINTS else "outliers",
        "jitter": 0.5,
        "pointpos": 0,
        "marker": {"color": look.colour, "size": 4, "opacity": 0.6},
        "line": {"color": look.colour},
        "fillcolor": rgba(look.colour, 0.15),
    }


def _quantile_columns(sign: int) -> list[str]:
    """From the lowest to the highest value; clients who do badly have high ones where less is
    better.
    """
    columns = list(QUANTILES)
    columns.insert(1 if sign > 0 else -1, DECILE)
    return columns


def _summarise(name: str, values: Sequence[float], sign: int) -> Cells:
    """A row of the table behind a box: how many, their mean and their quantiles."""
    quantiles = {column: quantile(values, share) for column, share in QUANTILES.items()}
    quantiles[DECILE] = sign * quantile([sign * value for value in values], 0.1)
    ordered = [quantiles[column] for column in _quantile_columns(sign)]
    return [name, len(values), sum(values) / len(values), *ordered]


def _metric(story: Story) -> MainMetric:
    return next(iter(story.firsts.values())).result.metric


def _capital(name: str) -> str:
    """A name at the start of a title: `Accuracy`, `MAE`."""
    return name.upper() if len(name) <= 4 else name.replace("_", " ").capitalize()


def _part(story: Story) -> str:
    return next(iter(story.firsts.values())).part
