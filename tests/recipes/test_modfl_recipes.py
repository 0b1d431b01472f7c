"""ModFL's recipes: published numbers are possible counts, data sets share runs, and one
data set is read off them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedblocks.config.model import Config
from fedblocks.data.federation import Federation
from fedblocks.data.sets.cyclic import side_by_side
from fedblocks.recipes import recipe_named
from fedblocks.recipes.measures import measure
from fedblocks.recipes.papers.modfl import MODFL
from fedblocks.recipes.papers.modfl_cost import side_by_side_work
from fedblocks.runs.run import run

TOTALS = {"P3": 2916, "P6": 2808, "P9": 2916, "P2": 240, "P4": 240, "P5": 200}


@pytest.mark.parametrize(("name", "cells"), [("modfl-table1", 12), ("modfl-table2", 18)])
def test_every_published_number_is_a_count_over_the_test_total(name: str, cells: int) -> None:
    actual = recipe_named(name).cells
    assert len(actual) == cells
    for cell in actual:
        total = TOTALS[cell.setting.rpartition("-")[2]]
        assert cell.published is not None
        assert abs(round(cell.published * total / 100) * 100 / total - cell.published) < 0.00501, (
            cell.key
        )


def test_full_configurations_are_the_papers() -> None:
    cells = {
        cell.key: cell.config
        for name in ("modfl-table1", "modfl-table2")
        for cell in recipe_named(name).cells
    }
    for key, rounds, batch in (("cifar-P3/modfl", 200, 16), ("wisdm-P4/fedx", 2000, 8)):
        method = cells[key]["method"]
        assert (cells[key]["rounds"], method["batch_size"], method["lr"], method["epochs"]) == (
            rounds,
            batch,
            0.001,
            1,
        )
        assert method["optimizer"] == {"name": "adam"}
    assert [cells[f"cifar-P{p}/fedx"]["method"]["name"] for p in (3, 6, 9)] == [
        "fedper",
        "fedper",
        "fedavg",
    ]
    assert [cells[f"hapt-P{p}/fedx"]["method"]["name"] for p in (2, 4, 5)] == [
        "fedper",
        "fedper",
        "fedavg",
    ]
    assert [cells[f"stl-P{p}/modfl"]["method"]["operations"] for p in (3, 6, 9)] == [9, 9, 1]


def test_all_data_sets_of_modfl_are_read_off_one_run_and_fedx_has_one_for_each() -> None:
    cells = {cell.key: cell for cell in recipe_named("modfl-table2").cells}
    modfl = [cells[f"{side}-P2/modfl"] for side in ("hapt", "rwhar", "wisdm")]
    assert modfl[0].config == modfl[1].config == modfl[2].config
    assert [cell.measure["side"] for cell in modfl] == [0, 1, 2]
    assert len({str(cells[f"{side}-P2/fedx"].config) for side in ("hapt", "rwhar", "wisdm")}) == 3


@pytest.mark.parametrize("name", [name for name in MODFL if recipe_named(name).stand_in_for])
def test_no_cell_of_a_stand_in_has_the_name_of_a_data_set_that_it_lacks(name: str) -> None:
    settings = {cell.setting.partition("-")[0] for cell in recipe_named(name).cells}
    assert not settings & {"cifar", "stl", "hapt", "rwhar", "wisdm"}


def test_a_stand_in_trains_fedx_on_cifar_exactly_as_the_original_does() -> None:
    """The images that another camera sees are left out of it, so that this one run serves both."""
    original, stand_in = (
        recipe_named(name).cells[0] for name in ("modfl-table1", "modfl-table1-camera")
    )
    for quick in (False, True):
        assert Config.of(original.table({}, quick=quick)) == Config.of(
            stand_in.table({}, quick=quick)
        )


def test_the_cost_of_a_run_is_that_of_every_data_set_in_its_own_shape() -> None:
    cells = {
        cell.key: Config.of(cell.table({}, quick=True))
        for cell in recipe_named("modfl-table1-camera").cells
    }
    both, alone = (
        side_by_side_work(cells["plain-P6/modfl"]),
        side_by_side_work(cells["camera-P6/fedx"]),
    )
    assert [(rows, shape) for rows, _, shape, _ in both] == [(900, (3, 32, 32)), (900, (3, 48, 48))]
    assert [net["name"] for _, net, *_ in both] == ["modfl_cifar", "modfl_stl"] and alone == both[
        1:
    ]


def test_the_accuracy_of_one_data_set_pools_the_examples_of_its_clients(tmp_path: Path) -> None:
    from fedblocks.data import digits
    from fedblocks.data.partitions import quantity

    x, y = digits()
    sides = {
        f"{n}": Federation.from_arrays(x[n::3], y[n::3], quantity(y[n::3], 2, seed=n))
        for n in (0, 1)
    }
    side_by_side(sides).save(tmp_path / "both.npz")
    table = {
        "rounds": 4,
        "device": "cpu",
        "data": {"name": "saved", "options": {"path": str(tmp_path / "both.npz")}},
        "net": {"name": "mlp", "hidden": [16]},
        "method": {"name": "local", "lr": 0.3},
        "evaluation": {"every": 2},
    }
    actual = run(Config.of(table), tmp_path / "run")
    own, sizes = actual.accuracies("test"), side_by_side(sides).test.sizes
    expected = 100 * sum(own[c] * sizes[c] for c in (2, 3)) / sizes[2:].sum()
    curve = measure(actual, {"name": "side_curve", "side": 1, "sides": 2})
    assert curve["value"] == pytest.approx(expected, abs=1e-3) and curve["rounds"] == [2, 4]
    assert measure(actual, {"name": "side_accuracy", "side": 1, "sides": 2}) == {
        "value": curve["value"]
    }
    assert (
        measure(actual, {"name": "side_accuracy"})["value"]
        == measure(actual, {"name": "pooled_accuracy"})["value"]
    )
