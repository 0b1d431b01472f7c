"""What a recipe may cost, worked out a second time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.recipes import cost, measures, recipe_named
from fedblocks.recipes.running.reproduction import choose_cells

from .conftest import DIGITS


def test_a_step_costs_the_quickest_of_three_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 104.0, 200.0, 203.2, 300.0, 305.0])  # of a batch of 32
    monkeypatch.setattr(cost.time, "process_time", lambda: next(times))
    monkeypatch.setattr(cost.torch.cuda, "is_available", lambda: False)
    measure = cost.seconds_per_example.__wrapped__
    assert measure('{"name": "mlp", "hidden": [4]}', (1, 8, 8), 10) == pytest.approx(3.2 / 32)


def test_seconds_are_examples_times_rounds_times_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(cost, "seconds_per_example", lambda *net: asked.append(net) or 0.001)
    cell: Any = SimpleNamespace(
        points=lambda quick: [{}], table=lambda point, quick: {**DIGITS, "rounds": 5}
    )
    # 1,797 digits, of which 70 % are trained on once in each of 5 rounds, with 3 seeds
    assert cost.seconds(cell, 3, False) == pytest.approx(3 * 1797 * 0.7 * 5 * 0.001)
    assert asked[0][1:] == ((1, 8, 8), 10)
    cell.table = lambda point, quick: {**DIGITS, "cohort": {"size": 0.5}}
    assert cost.seconds(cell, 1, False) == pytest.approx(1797 * 0.7 * 0.5 * 2 * 0.001)
    beds = (
        ("cifar10", {"name": "pfedmb_two_classes", "fraction": 0.5}, 60_000 * 0.5),
        ("femnist", {"name": "fedem_femnist", "share": 0.25}, 805_263 * 0.25),
    )
    for name, bed, rows in beds:
        table = {**DIGITS, "data": {"name": name, "testbed": bed}}
        cell.table = lambda point, quick, table=table: table
        assert cost.seconds(cell, 1, False) == pytest.approx(rows * 0.7 * 2 * 0.001)
    part = {**DIGITS, "data": {**DIGITS["data"], "name": "cifar10", "options": {"part": "test"}}}
    cell.table = lambda point, quick: part
    assert cost.seconds(cell, 1, False) == pytest.approx(10_000 * 0.7 * 2 * 0.001)
    cell.table = lambda point, quick: {**DIGITS, "data": {"name": "gaussian", "clients": 4}}
    assert cost.seconds(cell, 1, False) is None


def test_texts_cost_what_a_cohort_of_users_has_and_tries_their_own_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(cost, "seconds_per_example", lambda *net: asked.append(net) or 0.001)
    cell = next(c for c in recipe_named("flow-table1-shakespeare").cells if "fedavg" in c.key)
    # three learning rates for 500 rounds and two seeds for 2000, ten users of 56.7 rows in each
    rounds = 3 * 500 + 2 * 2000
    assert cost.seconds(cell, 2, False) == pytest.approx(rounds * 10 * 56.7 * 0.001)
    assert asked[0][1:] == ((20,), 10_004)
    assert cost.seconds(cell, 2, True) is None  # fewer words and users


def test_a_step_of_a_net_for_words_is_measured_on_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost.torch.cuda, "is_available", lambda: False)
    net = '{"name": "next_word", "embedding": 4, "hidden": 4, "projection": 4}'
    assert cost.seconds_per_example.__wrapped__(net, (5,), 11) > 0


@pytest.mark.parametrize(
    ("method", "times"),
    [
        ({"name": "fedavg", "epochs": 3}, 3),
        ({"name": "fedem", "epochs": 2, "components": 4}, 8),
        ({"name": "no such method", "epochs": 7}, 7),
        ({"name": "no such method"}, 1),
    ],
)
def test_passes_are_those_of_all_phases(method: dict[str, Any], times: float) -> None:
    assert cost.passes(method) == times


def test_clients_without_labels_have_no_part_in_the_mean_after_fine_tuning() -> None:
    report: Any = SimpleNamespace(
        counts={"local": {0: (1, 4, 0.0), 1: (0, 0, 0.0), 2: (3, 4, 0.0)}}
    )
    assert measures._mean_of_local(report) == {"value": 50.0}


def test_patterns_of_cells_may_have_blanks_around_them() -> None:
    cells: Any = [SimpleNamespace(key=key, in_quick=key != "b/2") for key in ("a/1", "b/1", "b/2")]
    recipe: Any = SimpleNamespace(name="r", cells=cells)
    keys = lambda patterns, quick=False: [c.key for c in choose_cells(recipe, patterns, quick)]
    assert keys(" b/* , a/1,") == ["a/1", "b/1", "b/2"]
    assert keys("b/1") == ["b/1"]
    assert keys(None) == ["a/1", "b/1", "b/2"] and keys(None, True) == ["a/1", "b/1"]
