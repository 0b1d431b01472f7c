"""Every number of a report, worked out a second time from what was put on record."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks import Config
from fedblocks.core.errors import DataError
from fedblocks.reports.html.facts import facts_of
from fedblocks.reports.html.figures import Chart
from fedblocks.reports.html.gather import Story, _methods, gather
from fedblocks.reports.html.maps import Numbers, _numbers, _thin, map_charts, numbers_of
from fedblocks.reports.html.results import result_charts
from fedblocks.runs.federations import federation_of
from fedblocks.runs.storage.folder import RunFolder
from tests.reports import stories
from tests.reports.stories import CLIENTS, EVALUATED, METHODS, SEEDS, accuracy, logits

LAST = EVALUATED[-1]
STUDENT = 12.7062  # scipy.stats.t.ppf(0.975, 1): the quantile for two seeds


@pytest.fixture(scope="module")
def facts(story: Story) -> dict[str, Any]:
    return facts_of(story)


@pytest.fixture(scope="module")
def charts(story: Story) -> dict[str, Chart]:
    (numbers,) = numbers_of(story)
    return {chart.id: chart for chart in (*result_charts(story), *map_charts(story, numbers, 1))}


def mean(values: Any) -> float:
    return float(np.mean(list(values)))


def test_a_curve_has_the_mean_over_clients_and_seeds_and_students_interval(
    charts: dict[str, Chart],
) -> None:
    rows = []
    for method in METHODS:
        for number in EVALUATED:
            seeds = [mean(accuracy(method, seed, number).values()) for seed in SEEDS]
            half = STUDENT * np.std(seeds, ddof=1) / math.sqrt(2)
            rows.append([method, number, mean(seeds), half])
    actual = charts["curve-round"].rows
    assert [row[:2] for row in actual] == [row[:2] for row in rows]
    assert all(isinstance(row[1], int) for row in actual)
    for got, wanted in zip(actual, rows):
        assert got[2:] == pytest.approx(wanted[2:], rel=1e-3)


def test_a_curve_against_costs_adds_up_the_rounds_until_then(charts: dict[str, Chart]) -> None:
    # 6 clients: 1.4 MB of the body and a quarter of the head, both ways
    each = CLIENTS * (1.4 + 0.35)
    for method in METHODS:
        sent = [0.0 if method == "local" else each * number for number in EVALUATED]
        megabytes = [row[1] for row in charts["curve-megabytes"].rows if row[0] == method]
        assert megabytes == pytest.approx(sent)
        taken = [row[1] for row in charts["curve-seconds"].rows if row[0] == method]
        assert taken == [1 + 3, 2 * (1 + 3)]  # typical rounds: without the 9 s of warm-up


def test_the_line_and_the_band_of_a_curve_are_those_of_its_table(charts: dict[str, Chart]) -> None:
    for axis in ("round", "megabytes", "seconds"):
        chart = charts[f"curve-{axis}"]
        lines = [trace for trace in chart.data if "name" in trace]
        bands = [trace for trace in chart.data if "name" not in trace]
        assert [line["name"] for line in lines] == list(METHODS)
        for line, band in zip(lines, bands, strict=True):
            _, x, y, half = zip(*(row for row in chart.rows if row[0] == line["name"]))
            assert line["x"] == pytest.approx(x, abs=1e-5)
            assert line["y"] == pytest.approx(y, abs=1e-5)
            above, below = np.clip(np.add(y, half), 0, 1), np.clip(np.subtract(y, half), 0, 1)
            assert band["x"] == pytest.approx([*x, *x[::-1]], abs=1e-5)
            assert band["y"] == pytest.approx([*above, *below[::-1]], abs=2e-5)
            assert band["legendgroup"] == line["legendgroup"] == line["name"]


def quantiles(values: list[float]) -> list[float]:
    """The value that a share of the others stays below; the last for all of them."""
    ranked, many = sorted(values), len(values)
    places = [0, many // 10, many // 4, many // 2, 3 * many // 4, many - 1]
    return [ranked[place] for place in places]


def test_boxes_hold_all_clients_of_all_seeds(charts: dict[str, Chart]) -> None:
    chart = charts["distribution"]
    assert [row[0] for row in chart.rows] == [box["name"] for box in chart.data] == list(METHODS)
    for row, box in zip(chart.rows, chart.data):
        values = [v for seed in SEEDS for v in accuracy(row[0], seed, LAST).values()]
        assert row[1:] == pytest.approx([11, mean(values), *quantiles(values)])
        assert box["y"] == pytest.approx(values, abs=1e-4) and box["boxpoints"] == "all"


def test_the_gain_is_over_local_of_the_same_seed_and_client(charts: dict[str, Chart]) -> None:
    chart = charts["gain"]
    others = [method for method in METHODS if method != "local"]
    assert [row[0] for row in chart.rows] == [box["name"] for box in chart.data] == others
    for row, box in zip(chart.rows, chart.data):
        gains = []
        for seed in SEEDS:
            alone = accuracy("local", seed, LAST)
            gains += [v - alone[c] for c, v in accuracy(row[0], seed, LAST).items()]
        below = sum(gain < 0 for gain in gains) / len(gains)
        assert 0 < below < 1
        assert row[1:] == pytest.approx([11, mean(gains), *quantiles(gains), below])
        assert box["y"] == pytest.approx(gains, abs=1e-4)


def test_the_five_worst_clients_of_each_method_stand_beside_local(facts: dict[str, Any]) -> None:
    rows: list[list[Any]] = []
    for method in METHODS:
        every = [(v, s, c) for s in SEEDS for c, v in accuracy(method, s, LAST).items()]
        for value, seed, client in sorted(every)[:5]:
            alone = accuracy("local", seed, LAST)[client] if method != "local" else None
            rows.append([method, seed, f"client-{client}", value, alone])
    assert facts["worst"] == rows


def test_the_leaderboard_is_sorted_and_has_all_columns(facts: dict[str, Any]) -> None:
    rows = facts["leaderboard"]
    assert [row["mean"] for row in rows] == sorted((row["mean"] for row in rows), reverse=True)
    for row in rows:
        method = row["name"]
        finals = [list(accuracy(method, seed, LAST).values()) for seed in SEEDS]
        assert row["mean"] == pytest.approx(mean(map(mean, finals)))
        assert row["worst"] == pytest.approx(mean(map(min, finals)))
        assert row["megabytes"] == pytest.approx(0 if method == "local" else 6 * 1.75 * 4)
        assert row["seconds"] == 8.0 and row["total_seconds"] == 8.0 + 2 * 9.0
        assert row["seeds"] == 2 and row["lanes"] == 1
    assert facts["verdict"] == "not enough seeds for a verdict: 2 of at least 6"
    assert facts["has_local"] and facts["data_known"] and facts["problems"] == []


def test_traffic_is_in_megabytes_of_each_block_of_the_first_seed(facts: dict[str, Any]) -> None:
    # 6 clients, 4 rounds: 24 MB down and 9.6 MB up of the body, a quarter of the head
    sent = [["body", 24.0, 9.6], ["head", 6.0, 2.4]]
    assert facts["traffic"] == [[method, *row] for method in ("fedavg", "pfedmb") for row in sent]


def test_refusals_and_notes_are_counted_by_method_and_listed(facts: dict[str, Any]) -> None:
    assert facts["refused"] == [["pfedmb", "too late", 4]]
    assert facts["refusals"] == [
        ["pfedmb", seed, number, f"client-{number}", "too late", "by 2 s"]
        for seed in SEEDS
        for number in (3, 4)
    ]
    said = "the engine is sequential"
    assert facts["notes"] == [[method, "info", said, 4] for method in METHODS]


def test_it_says_on_what_and_with_what_it_was_run(facts: dict[str, Any], story: Story) -> None:
    assert facts["title"] == "all"
    assert facts["environment"] == {
        "python": "3",
        "packages": "numpy 1, torch 2",
        "cores": "0, 3",
        "gpu": "-",
    }
    assert facts["environments"] == 2 and facts["command"] == "fedblocks run 'a b'"
    hashes = {seed: story.runs["local"][seed].partition for seed in SEEDS}
    assert facts["partitions"] == sorted(hashes.items())
    assert 'name = "fedavg"' in facts["config"] and "seed = 3" in facts["config"]
    lines = facts["again"].splitlines()
    assert len(lines) == 6
    assert lines[0] == f"fedblocks run {story.folder}/fedavg-3/config.toml --out NEW_fedavg-3"


def weights(number: int, client: int) -> np.ndarray[Any, Any]:
    """What softmax makes of the logits of each layer."""
    powers = np.exp(np.array(logits(number, client)).reshape(2, 4))
    return (powers / powers.sum(1, keepdims=True)).ravel()


def test_a_map_has_the_weights_of_each_client_in_each_round(charts: dict[str, Chart]) -> None:
    chart = charts["map-1"]
    clients = [int(row[0].removeprefix("client-")) for row in chart.rows]
    assert sorted(clients) == list(range(CLIENTS))
    assert [abs(a - b) for a, b in zip(clients[::2], clients[1::2])] == [3, 3, 3]  # alike
    names = [f"layer {i}, branch {j}" for i in range(2) for j in range(4)]
    assert chart.columns == ["client (last round)", *names] and chart.data[0]["x"] == names
    for row, client in zip(chart.rows, clients):
        assert row[1:] == pytest.approx(weights(LAST, client).tolist())
    assert [step["label"] for step in chart.steps] == ["round 2", "round 4"]
    for step, number in zip(chart.steps, EVALUATED):
        wanted = np.array([weights(number, client) for client in clients])
        assert np.array(step["z"]) == pytest.approx(wanted, abs=6e-4)
    (trace,) = chart.data
    assert trace["z"] == chart.steps[-1]["z"]
    assert trace["zmin"] == pytest.approx(min(weights(4, 5))) and trace["colorscale"] == "Cividis"
    assert trace["zmax"] == pytest.approx(max(weights(4, 5)))
    assert "nothing is personal" not in chart.note and chart.note.startswith("Seed 3;")


def test_labels_beside_a_map_are_shares_of_training_examples(
    charts: dict[str, Chart], story: Story
) -> None:
    chart = charts["labels-1"]
    data = federation_of(story.runs["local"][3].result.config)
    assert [row[0] for row in chart.rows] == [row[0] for row in charts["map-1"].rows]
    for row, cells in zip(chart.rows, chart.data[0]["z"]):
        held = data.y.numpy()[data.train[int(row[0].removeprefix("client-"))]]
        shares = [float((held == label).mean()) for label in range(10)]
        assert row[1:] == pytest.approx(shares) and cells == pytest.approx(shares, abs=6e-4)
    highest = max(max(row[1:]) for row in chart.rows)
    assert (chart.data[0]["zmin"], chart.data[0]["zmax"]) == (0, pytest.approx(highest))
    assert chart.columns == ["client", *(f"label {c}" for c in range(10))]


def test_the_plane_keeps_who_is_like_whom_and_shows_the_known_groups(
    charts: dict[str, Chart], story: Story
) -> None:
    chart = charts["plane-1"]
    clients = [int(row[0].removeprefix("client-")) for row in chart.rows]
    vectors = np.array([weights(LAST, client) for client in clients])
    places = np.array([row[1:3] for row in chart.rows])
    gaps, shown = (np.linalg.norm(v[:, None] - v[None], axis=-1) for v in (vectors, places))
    assert shown == pytest.approx(gaps, abs=0.02)  # three favourites lie in a plane, nearly
    assert story.federation is not None
    groups = [int(story.federation.tags["group"][client]) for client in clients]
    assert [row[3] for row in chart.rows] == groups
    assert [cloud["name"] for cloud in chart.data] == [f"group {g}" for g in sorted({*groups})]
    for cloud, group in zip(chart.data, sorted({*groups})):
        mine = [row for row in chart.rows if row[3] == group]
        assert cloud["text"] == [row[0] for row in mine]
        assert cloud["x"] == pytest.approx([row[1] for row in mine], abs=1e-4)
        assert cloud["y"] == pytest.approx([row[2] for row in mine], abs=1e-4)
    assert "Some have the same place" not in chart.note and chart.layout["showlegend"]
    variances = np.linalg.svd(vectors - vectors.mean(0), compute_uv=False) ** 2
    first, second = variances[:2] / variances.sum()
    assert f"({first:.0%}, {second:.0%} of it)" in chart.note


def test_two_runs_of_a_seed_on_other_data_have_no_common_report(tmp_path: Path) -> None:
    for method in ("local", "fedavg"):
        stories.write_run(tmp_path / method, method, 3)
    with RunFolder.open(tmp_path / "fedavg") as folder:
        folder.claim()
        folder.store.set_meta("federation", "another")
    with pytest.raises(DataError, match="the same seed but not the same data"):
        gather(tmp_path)


def block(values: list[list[float]], rounds: list[int] | None = None) -> Numbers:
    """A block of pFedMB's clients in its last round, or the same in each of several."""
    table = np.array([values] * len(rounds or [2]))
    labels = [f"number {i}" for i in range(table.shape[2])]
    return Numbers("pfedmb", "gate", list(range(len(values))), rounds or [2], table, labels)


def test_one_number_that_differs_is_enough_for_a_plane(story: Story) -> None:
    heat, labels, plane = map_charts(story, block([[1, 2], [1, 3], [1, 5]]), 4)
    assert [heat.id, labels.id, plane.id] == ["map-4", "labels-4", "plane-4"]
    assert "nothing is personal" not in heat.note and "slider" not in heat.note
    assert "Some have the same place" not in plane.note
    assert "after round 2" in plane.note and "100%" in plane.note


def test_clients_that_are_all_the_same_have_no_plane(story: Story) -> None:
    heat, _ = map_charts(story, block([[1, 2], [1, 2], [1, 2]], [1, 2]), 1)
    assert "all clients are the same: nothing is personal here" in heat.note
    assert "Move the slider to see earlier rounds." in heat.note
    assert len(map_charts(story, block([[1, 2], [1, 3]]), 1)) == 2  # two clients are no crowd
    assert len(map_charts(story, block([[1], [2], [3]]), 1)) == 2  # one number is no plane


def test_clients_in_one_place_are_mentioned(story: Story) -> None:
    *_, plane = map_charts(story, block([[1, 2], [1, 2], [4, 5]]), 1)
    assert "Some have the same place." in plane.note


def test_a_map_around_zero_has_two_colours_of_equal_reach(story: Story) -> None:
    heat, *_ = map_charts(story, block([[-1, 2], [0, 3], [4, -5]]), 1)
    (trace,) = heat.data
    assert (trace["zmin"], trace["zmax"], trace["colorscale"]) == (-5, 5, "RdBu")
    heat, *_ = map_charts(story, block([[0, 2], [1, 3], [4, 5]]), 1)
    (trace,) = heat.data
    assert (trace["zmin"], trace["zmax"], trace["colorscale"]) == (0, 5, "Cividis")


@pytest.mark.parametrize(
    ("many", "most", "kept"),
    [(3, 3, [0, 1, 2]), (5, 3, [0, 2, 4]), (10, 4, [0, 3, 6, 9]), (9, 2, [0, 8]), (4, 1, [3])],
)
def test_values_are_thinned_evenly_and_keep_the_last(many: int, most: int, kept: list[int]) -> None:
    assert _thin(list(range(many)), most) == kept


def test_a_client_that_came_late_has_no_numbers_before(story: Story) -> None:
    rounds = {1: {0: [1.0, 2.0]}, 2: {0: [1.0, 3.0], 1: [5.0, 6.0], 2: [7.0]}}
    numbers = _numbers("pfedmb", "gate", rounds, None)
    assert numbers is not None and numbers.labels == ["0", "1"]
    assert sorted(numbers.clients) == [0, 1] and numbers.rounds == [1, 2]
    by_client = dict(zip(numbers.clients, numbers.values.transpose(1, 0, 2).tolist()))
    assert by_client[0] == [[1, 2], [1, 3]]
    assert np.isnan(by_client[1][0]).all() and by_client[1][1] == [5, 6]
    heat, *_ = map_charts(story, numbers, 1)
    place = numbers.clients.index(1)
    assert heat.steps[0]["z"][place] == [None, None] and heat.steps[1]["z"][place] == [5.0, 6.0]
    assert _numbers("pfedmb", "gate", {1: {0: []}}, None) is None


def test_groups_that_hold_everybody_leave_nobody_to_the_method_of_all(story: Story) -> None:
    assert story.federation is not None
    table = story.first.result.config.resolved()
    ditto = {"method": {"name": "ditto"}}
    tagged = int((story.federation.tags["group"] == 1).sum())
    assert 0 < tagged < CLIENTS
    cases = (
        ({"some": {"clients": [0, 1], **ditto}}, ["all", "some"]),
        ({"every": {"clients": list(range(CLIENTS)), **ditto}}, ["every"]),
        ({"one": {"tag": "group", "value": 1, **ditto}}, ["all", "one"]),
    )
    for groups, names in cases:
        config = Config.of({**table, "groups": groups})
        methods = _methods(config, story.federation)
        assert list(methods) == names
        assert {type(methods[name]).__name__ for name in groups} == {"Ditto"}
