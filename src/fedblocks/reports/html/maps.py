"""Maps of clients: weights and gates over rounds beside their labels, and who is like whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedblocks.core.method import Method
from fedblocks.data import Federation
from fedblocks.data.summary import IGNORE
from fedblocks.reports.groups import adjusted_rand, find_groups
from fedblocks.reports.html.figures import COLOURS, SYMBOLS, Cells, Chart, axes, plain
from fedblocks.reports.html.gather import Story
from fedblocks.reports.html.labels import is_net, readable
from fedblocks.reports.html.order import by_similarity, on_a_plane
from fedblocks.reports.html.results import client_name

Floats = npt.NDArray[np.float64]

# that a map shows at most
CLIENTS = 100
ROUNDS = 20
CLASSES = 40
BUDGET = 12_000  # numbers that all positions of one slider may have
MAPS = 6  # with a slider, in a whole report
COLOUR_BAR = {"thickness": 12, "tickfont": {"size": 11}}


@dataclass(frozen=True, eq=False)
class Numbers:
    """One small private block of the clients, or portrait of their models, over rounds."""

    method: str
    block: str
    clients: list[int]  # in the order of similarity in the last round
    rounds: list[int]
    values: Floats  # [rounds, clients, numbers]
    labels: list[str]  # of the numbers
    of: int = 0  # clients that have such a block: more than are drawn, or as many

    @property
    def title(self) -> str:
        return f"{self.block} of {self.method}"


def numbers_of(story: Story) -> list[Numbers]:
    """The blocks that can be drawn, of the first seed, at most MAPS of them."""
    drawn: list[Numbers] = []
    for name, run in story.firsts.items():
        methods = story.methods(name)
        for block, rounds in run.numbers().items():
            method = next(iter(methods.values()), None)
            if method is not None and is_net(method, block):
                continue  # the weights of a tiny net say nothing to the eye
            numbers = _numbers(name, block, rounds, method)
            if numbers is not None and len(drawn) < MAPS:
                drawn.append(numbers)
    return drawn


def map_charts(story: Story, numbers: Numbers, number: int) -> list[Chart]:
    """The block over rounds, the labels of the same clients in the same order, and the
    clients on a plane.
    """
    charts = [_heat(story, numbers, number)]
    data = story.data_of(story.firsts[numbers.method])
    if data is not None and data.task.of_classes:
        charts.append(_labels(story, data, numbers, number))
    if len(numbers.clients) > 2 and numbers.values.shape[2] > 1 and _differ(numbers):
        charts.append(_plane(story, numbers, number))
    return charts


def _differ(numbers: Numbers) -> bool:
    """Whether any two clients differ in the last round."""
    return bool(np.ptp(np.nan_to_num(numbers.values[-1]), axis=0).any())


def label_shares(federation: Federation, clients: Sequence[int]) -> tuple[Floats, list[int]]:
    """Shares of the labels among each client's training rows, [clients, classes], and
    which classes these are.
    """
    labels = federation.y.cpu().numpy()
    counts = np.zeros((len(clients), federation.classes))
    for line, client in zip(counts, clients):
        held = labels[federation.train[client]]
        line += np.bincount(held[held != IGNORE].ravel(), minlength=federation.classes)
    shown = np.sort(np.argsort(-counts.sum(0), kind="stable")[:CLASSES])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares[:, shown], shown.tolist()


def _numbers(
    name: str,
    block: str,
    rounds: Mapping[int, Mapping[int, Sequence[float]]],
    method: Method | None,
) -> Numbers | None:
    last = max(rounds)
    width = max(map(len, rounds[last].values()), default=0)
    complete = [client for client, numbers in rounds[last].items() if len(numbers) == width]
    clients = _thin(complete, CLIENTS)
    if width == 0:
        return None
    most = max(1, min(ROUNDS, BUDGET // (len(clients) * width)))
    shown = _thin(sorted(rounds), most)
    empty = [float("nan")] * width  # a client that had not taken part by then
    values = np.array(
        [[_fitting(rounds[r].get(c), empty) for c in clients] for r in shown], dtype=float
    )
    labels = [str(i) for i in range(width)]
    if method is not None:
        values, labels = readable(method, block, values, labels)
    ranked = by_similarity(np.nan_to_num(values[-1]))
    order, of = [clients[i] for i in ranked], len(rounds[last])
    return Numbers(name, block, order, shown, values[:, ranked], labels, of)


def _fitting(numbers: Sequence[float] | None, empty: list[float]) -> Sequence[float]:
    return numbers if numbers is not None and len(numbers) == len(empty) else empty


def _thin(values: list[int], most: int) -> list[int]:
    """At most so many of some values, evenly spread, the last one among them."""
    if len(values) <= most:
        return values
    return [values[i] for i in np.linspace(len(values) - 1, 0, most).round().astype(int)[::-1]]


def _heat(story: Story, numbers: Numbers, number: int) -> Chart:
    low = float(np.nanmin(numbers.values))
    high = float(np.nanmax(numbers.values))
    signed = low < 0 < high
    limit = max(-low, high)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": [plain(label) for label in numbers.labels],
        "y": _names(story, numbers),
        "z": _cells(numbers.values[-1]),
        "zmin": -limit if signed else low,
        "zmax": limit if signed else high,
        "colorscale": "RdBu" if signed else "Cividis",
        "hoverongaps": False,
        "colorbar": COLOUR_BAR,
    }
    rows: list[Cells] = [
        [client_name(story, client, story.firsts[numbers.method]), *map(float, line)]
        for client, line in zip(numbers.clients, numbers.values[-1])
    ]
    note = f"Seed {_seed(story, numbers)}; similar clients stand side by side."
    if numbers.of > len(numbers.clients):
        note += f" {len(numbers.clients)} of {numbers.of} clients are drawn."
    if "→" in numbers.labels[0]:
        note += " A gate leads from one module (layer.module) to another."
    if len(numbers.clients) > 1 and not _differ(numbers):
        note += " In the last round all clients are the same: nothing is personal here."
    if len(numbers.rounds) > 1:
        note += " Move the slider to see earlier rounds."
    steps = [
        {"label": f"round {r}", "z": _cells(z)} for r, z in zip(numbers.rounds, numbers.values)
    ]
    title = f"{numbers.title}, round by round"
    columns = ["client (last round)", *numbers.labels]
    plot = {"data": [trace], "layout": _square(numbers.clients), "steps": steps}
    return Chart.of(f"map-{number}", title, note, columns, rows, **plot)


def _labels(story: Story, federation: Federation, numbers: Numbers, number: int) -> Chart:
    shares, classes = label_shares(federation, numbers.clients)
    names = federation.about.get("class_names") or list(map(str, range(federation.classes)))
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": [names[c] for c in classes],
        "y": _names(story, numbers),
        "z": _cells(shares),
        "zmin": 0,
        "zmax": float(shares.max(initial=0.0)),
        "colorscale": "Cividis",
        "colorbar": COLOUR_BAR,
    }
    run = story.firsts[numbers.method]
    rows: list[Cells] = [
        [client_name(story, c, run), *map(float, line)] for c, line in zip(numbers.clients, shares)
    ]
    note = (
        "Shares of the labels among each client's training examples, clients in the same "
        "order as beside."
    )
    columns = ["client", *(f"label {names[c]}" for c in classes)]
    title = "Labels of the same clients"
    layout = _square(numbers.clients)
    return Chart.of(f"labels-{number}", title, note, columns, rows, data=[trace], layout=layout)


def _plane(story: Story, numbers: Numbers, number: int) -> Chart:
    vectors, run = np.nan_to_num(numbers.values[-1]), story.firsts[numbers.method]
    places, shares = on_a_plane(vectors)
    tag, groups = _groups(story.data_of(run), numbers.clients)
    note = (
        f"Clients by {numbers.title} after round {numbers.rounds[-1]}, along the two "
        f"directions of most variance"
    )
    note += f" ({', '.join(f'{share:.0%}' for share in shares)} of it)."
    if len(np.unique(places.round(4), axis=0)) < len(places):
        note += " Some have the same place."
    if tag:
        index = adjusted_rand(groups, find_groups(vectors, len(set(groups))))
        note += (
            f" Adjusted Rand index between the known groups ({tag}) and as many found ones: "
            f"{index:.2f}."
        )
    names = _names(story, numbers)
    traces = [_cloud(places, names, groups, group) for group in sorted(set(groups))]
    rows: list[Cells] = [
        [client_name(story, c, run), float(x), float(y), group if tag else None]
        for c, (x, y), group in zip(numbers.clients, places, groups)
    ]
    layout = axes("first direction", "second direction", showlegend=bool(tag))
    columns = ["client", "first direction", "second direction", "group"]
    title = "Who is like whom"
    return Chart.of(f"plane-{number}", title, note, columns, rows, data=traces, layout=layout)


def _cloud(places: Floats, names: list[str], groups: list[int], group: int) -> dict[str, Any]:
    members = [i for i, one in enumerate(groups) if one == group]
    return {
        "x": [round(float(places[i, 0]), 4) for i in members],
        "y": [round(float(places[i, 1]), 4) for i in members],
        "text": [names[i] for i in members],
        "mode": "markers",
        "name": f"group {group}",
        "marker": {
            "size": 10,
            "color": COLOURS[group % len(COLOURS)],
            "symbol": SYMBOLS[group % len(SYMBOLS)],
        },
    }


def _groups(federation: Federation | None, clients: list[int]) -> tuple[str, list[int]]:
    """The first tag that puts these clients into groups, and the group of each; no tag:
    all in one.
    """
    for tag, values in (federation.tags if federation is not None else {}).items():
        groups = [int(values[client]) for client in clients]
        if 1 < len(set(groups)) < len(clients):
            return tag, groups
    return "", [0] * len(clients)


def _names(story: Story, numbers: Numbers) -> list[str]:
    """Names for an axis, all different: the chart library would draw two clients of one
    name as one.
    """
    run, clients = story.firsts[numbers.method], numbers.clients
    names = [plain(client_name(story, client, run), 16) for client in clients]
    return [
        name if names.count(name) == 1 else f"{name} ({client})"
        for name, client in zip(names, clients)
    ]


def _cells(values: Floats) -> list[list[float | None]]:
    return [[None if np.isnan(v) else round(float(v), 3) for v in line] for line in values]


def _square(clients: list[int]) -> dict[str, Any]:
    """Tall enough for the names; the first client on top."""
    layout = axes("", "", height=min(1800, max(320, 150 + 18 * len(clients))))
    layout["xaxis"] |= {"type": "category", "tickangle": -45, "automargin": True}
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "automargin": True, "dtick": 1}
    return layout


def _seed(story: Story, numbers: Numbers) -> int:
    return story.firsts[numbers.method].result.config.seed
