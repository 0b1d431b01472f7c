"""Pieces of the charts of results, each against numbers worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedblocks.reports.html import results
from fedblocks.reports.html.figures import Look
from fedblocks.reports.html.gather import Point
from fedblocks.reports.html.maps import MAPS, Numbers, _groups, _heat, _numbers, numbers_of
from fedblocks.reports.html.results import (
    _box,
    _capital,
    _gains,
    _line,
    _summarise,
    _traces,
    client_name,
    worst_clients,
)


def story(runs: dict[str, dict[int, Any]], sign: int = 1, **more: Any) -> Any:
    """As far as charts look at it."""
    metric = SimpleNamespace(name="accuracy" if sign > 0 else "mae", sign=sign)
    first = SimpleNamespace(result=SimpleNamespace(metric=metric), part="test", names={})
    known = {"first": first, "firsts": {"first": first}, "data_of": lambda run: None}
    return SimpleNamespace(runs=runs, **{**known, **more})


def scored(*values: float) -> Any:
    return SimpleNamespace(scores=dict(enumerate(values)), names={}, partition="")


def of_seed_3() -> Any:
    return SimpleNamespace(result=SimpleNamespace(config=SimpleNamespace(seed=3)), names={})


def run(*points: Point) -> Any:
    return SimpleNamespace(curve=list(points))


def test_up_to_500_clients_are_points_beside_their_box() -> None:
    look = Look.number(0)
    assert _box("a", [0.12345] * 500, look)["boxpoints"] == "all"
    many = _box("a", [0.12345] * 501, look)
    assert many["boxpoints"] == "outliers" and many["y"][0] == 0.1235


@pytest.mark.parametrize(
    ("methods", "clients", "kept"), [(1, 6000, 6000), (1, 6001, 3001), (3, 4000, 2000)]
)
def test_of_more_than_6000_values_in_a_chart_every_second_or_third_is_drawn(
    methods: int, clients: int, kept: int
) -> None:
    runs = {f"m{i}": {0: scored(*np.arange(clients) / clients)} for i in range(methods)}
    chart = results._distribution(story(runs))
    assert [len(trace["y"]) for trace in chart.data] == [kept] * methods
    assert chart.rows[0][1] == clients  # the table is of all


def test_a_curve_has_the_rounds_that_all_seeds_have_and_the_last_of_many() -> None:
    one = run(Point(1, 0.2, 9.0, 10.0, 1.0), Point(2, 0.4, None, 20.0, 2.0))
    two = run(Point(2, 0.6, 7.0, 40.0, 6.0), Point(3, 0.8, 6.0, 50.0, 7.0))
    half = 12.706 * np.sqrt(0.02) / np.sqrt(2)  # of 0.4 and 0.6
    assert _line({0: one, 1: two}, "megabytes", "score") == [
        (30.0, 0.5, pytest.approx(half)),
    ]
    assert _line({0: one, 1: two}, "seconds", "score")[0][0] == 4.0
    assert _line({0: one, 1: two}, "round", "loss") == []  # the first has no loss there
    assert _line({}, "round", "score") == []
    for many, kept in ((99, 99), (100, 50), (199, 100), (200, 67)):
        rounds = [Point(n, 0.5, 1.0, n, n) for n in range(1, many + 1)]
        line = _line({0: run(*rounds)}, "round", "score")
        assert (len(line), line[-1][0]) == (kept, many)


def test_the_band_of_a_share_ends_at_0_and_1_and_that_of_a_loss_does_not() -> None:
    line = [(1.0, 0.1, 0.25), (2.0, 0.9, 0.25)]
    band, main = _traces("a", line, Look.number(0), share=True)
    assert band["x"] == [1.0, 2.0, 2.0, 1.0] and band["y"] == [0.35, 1.0, 0.65, 0.0]
    assert (main["x"], main["y"]) == ([1.0, 2.0], [0.1, 0.9])
    free, _ = _traces("a", line, Look.number(0), share=False)
    assert free["y"] == pytest.approx([0.35, 1.15, 0.65, -0.15])
    assert len(_traces("a", [(1.0, 0.1, 0.0)], Look.number(0), share=True)) == 1


def test_a_table_has_the_decile_of_those_who_do_badly_on_their_side() -> None:
    values = [float(value) for value in range(20)]
    # name, clients, mean, lowest, decile, lower quarter, median, upper quarter, highest
    assert _summarise("a", values, 1) == ["a", 20, 9.5, 0.0, 2.0, 5.0, 10.0, 15.0, 19.0]
    assert _summarise("a", values, -1) == ["a", 20, 9.5, 0.0, 5.0, 10.0, 15.0, 17.0, 19.0]


def test_a_gain_is_over_local_and_turned_round_where_less_is_better() -> None:
    assert _gains(scored(0.5, 0.2), {0: 0.4}, 1) == pytest.approx([0.1])
    assert _gains(scored(0.5, 0.2), {0: 0.4, 1: 0.4}, -1) == pytest.approx([-0.1, 0.2])
    runs = {"local": {0: scored(0.4, 0.4)}, "a": {0: scored(0.5, 0.2)}}
    (row,) = results._gain(story(runs)).rows
    assert row[-1] == 0.5 and row[0] == "a"  # one of two is below 0
    better = results._gain(story(runs, sign=-1))
    assert better.rows[0][2] == pytest.approx(0.05)
    assert better.layout["yaxis"]["title"]["text"] == "Local's mae less this"


def test_the_worst_clients_are_those_with_the_least_score_or_the_largest_error() -> None:
    runs = {"local": {3: scored(0.7, 0.6)}, "a": {3: scored(0.5, 0.2), 4: scored(0.3)}}
    assert worst_clients(story(runs), 2) == [
        ["local", 3, "client 1", 0.6, None], ["local", 3, "client 0", 0.7, None],
        ["a", 3, "client 1", 0.2, 0.6], ["a", 4, "client 0", 0.3, None],
    ]  # fmt: skip
    assert worst_clients(story(runs, sign=-1), 1) == [
        ["local", 3, "client 0", 0.7, None],
        ["a", 3, "client 0", 0.5, 0.7],
    ]


def test_a_client_is_called_as_on_record_or_in_the_data_or_by_its_number() -> None:
    data = SimpleNamespace(clients=2, names=("ann", "bob"))
    run: Any = SimpleNamespace(names={0: "eve"})
    known: Any = SimpleNamespace(data_of=lambda asked: data if asked is run else None)
    assert [client_name(known, i, run) for i in range(3)] == ["eve", "bob", "client 2"]
    other: Any = SimpleNamespace(names={})  # of a seed with other data
    assert client_name(known, 0, other) == "client 0"


def test_short_names_are_in_capitals_and_others_begin_with_one() -> None:
    assert [_capital(name) for name in ("mae", "rmse", "log_loss", "auroc")] == [
        "MAE", "RMSE", "Log loss", "Auroc",
    ]  # fmt: skip


def test_the_first_tag_that_tells_clients_apart_and_some_alike_gives_their_groups() -> None:
    tags = {"same": [1, 1, 1, 1], "own": [0, 1, 2, 3], "kind": [5, 6, 5, 6], "more": [0, 0, 1, 1]}
    federation: Any = SimpleNamespace(tags={name: np.array(v) for name, v in tags.items()})
    assert _groups(federation, [0, 1, 2, 3]) == ("kind", [5, 6, 5, 6])
    assert _groups(federation, [3, 1, 0]) == ("kind", [6, 6, 5])
    assert _groups(federation, [0, 1]) == _groups(None, [0, 1]) == ("", [0, 0])


def test_at_most_six_maps_are_drawn_and_none_of_blocks_without_numbers() -> None:
    rounds = {1: {0: [0.1, 0.2], 1: [0.3, 0.4]}}
    blocks = {"empty": {1: {0: [], 1: []}}, **{f"b{number}": rounds for number in range(7)}}
    runs: Any = {"a": SimpleNamespace(numbers=lambda: blocks)}
    made: Any = SimpleNamespace(firsts=runs, methods=lambda name: {})
    drawn = numbers_of(made)
    assert [one.block for one in drawn] == [f"b{number}" for number in range(MAPS)] and MAPS == 6
    assert drawn[0].title == "b0 of a" and drawn[0].values.shape == (1, 2, 2)


@pytest.mark.parametrize(
    ("rounds", "clients", "width", "shown"),
    [(30, 2, 3, 20), (7, 2, 3, 7), (30, 100, 12, 10), (30, 100, 200, 1), (30, 150, 12, 10)],
)  # at most 20 rounds, and 12,000 numbers of at most 100 clients in all of them
def test_a_map_has_as_many_rounds_as_a_page_can_bear(
    rounds: int, clients: int, width: int, shown: int
) -> None:
    numbers = {r: {c: [float(c)] * width for c in range(clients)} for r in range(1, rounds + 1)}
    found = _numbers("a", "block", numbers, None)
    assert found is not None and found.values.shape == (shown, min(clients, 100), width)
    assert found.rounds[-1] == rounds and len(found.labels) == width


@pytest.mark.parametrize(
    ("rows", "alike"), [([[0.5, 0.5], [0.5, 0.5]], True), ([[0.5], [0.6]], False), ([[0.5]], False)]
)
def test_clients_that_are_all_the_same_are_told_where_there_are_several(
    rows: list[list[float]], alike: bool
) -> None:
    made = story({"a": {0: None}})
    made.firsts = {"a": of_seed_3()}
    labels = ["1.0 → 2.1", "1.1 → out"][: len(rows[0])]
    numbers = Numbers("a", "gates", list(range(len(rows))), [4], np.array([rows]), labels)
    chart = _heat(made, numbers, 2)
    assert ("In the last round all clients are the same" in chart.note) is alike
    assert chart.note.startswith("Seed 3;") and "A gate leads from one module" in chart.note
    assert chart.id == "map-2" and "Move the slider" not in chart.note  # of one round


def test_a_map_says_of_how_many_clients_it_shows_some() -> None:
    rows = {client: [0.1 * client, 1.0] for client in range(101)}
    some = {client: rows[client] for client in range(100)}
    few, many = (_numbers("a", "alpha", {4: own}, None) for own in (some, rows))
    assert few is not None and many is not None
    assert (len(few.clients), few.of) == (100, 100) and (len(many.clients), many.of) == (100, 101)
    made = story({"a": {3: scored(0.5)}})
    made.firsts = {"a": of_seed_3()}
    notes = [_heat(made, numbers, 1).note for numbers in (few, many)]
    assert "drawn" not in notes[0] and "100 of 101 clients are drawn." in notes[1]


def test_a_client_whose_block_has_another_size_is_counted_and_not_drawn() -> None:
    numbers = _numbers("a", "alpha", {4: {0: [1.0, 2.0], 1: [3.0], 2: [1.0, 0.0]}}, None)
    assert numbers is not None and (sorted(numbers.clients), numbers.of) == ([0, 2], 3)


def test_a_table_behind_boxes_says_that_it_counts_the_clients_of_every_seed() -> None:
    one, two = {"a": {3: scored(0.5, 0.7)}}, {"a": {3: scored(0.5, 0.7), 4: scored(0.1)}}
    single, both = (results._distribution(story(runs)) for runs in (one, two))
    said = "The table is of all points together, the leaderboard of means over seeds."
    assert said in both.note and said not in single.note
    assert both.columns[1] == "points" and both.rows[0][:2] == ["a", 3]


@pytest.mark.parametrize(("last", "ends"), [(4, False), (2, True)])
def test_a_line_over_seeds_that_stopped_at_other_rounds_says_where_it_ends(
    last: int, ends: bool
) -> None:
    points = [Point(number, 0.5, 1.0, float(number), float(number)) for number in (2, 4)]
    seeds = {0: run(*points), 1: run(*(point for point in points if point.round <= last))}
    chart = results._curves(story({"a": seeds}), "round", "Accuracy over rounds", "round")
    assert ("A line ends where the first of its seeds does." in chart.note) is ends
    assert [row[1] for row in chart.rows] == ([2] if ends else [2, 4])
