"""The recipes: what they name, the numbers they carry, and that every cell of them is a
sound configuration.
"""

import pytest

from fedblocks.config.model import Config
from fedblocks.recipes import RECIPES, recipe_named
from fedblocks.recipes.recipe import Cell, merge_tables
from fedblocks.recipes.show import verdict

from .conftest import DIGITS

PUBLISHED = [
    *(
        "pfedmb-table1",
        "pfedmb-table2",
        "pfedmb-table3",
        "pfedmb-figure3",
        "pfedmb-figure4",
        "pfedmb-figure5",
    ),
    *("fedmn-table2", "fedmn-figure2", "flow-table1", "flow-figure1"),
    *("modfl-table1", "modfl-table2", "modfl-figure5", "modfl-figure6", "modfl-figure7"),
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_table_and_figure_has_a_recipe_that_is_no_stand_in(name: str) -> None:
    recipe = recipe_named(name)
    assert recipe.name == name and recipe.stand_in_for is None
    assert len({cell.key for cell in recipe.cells}) == len(recipe.cells)
    assert any(cell.in_quick for cell in recipe.cells) and recipe.notes


def test_published_numbers_are_those_of_the_papers() -> None:
    table2 = {cell.key: cell.published for cell in recipe_named("pfedmb-table2").cells}
    assert (
        len(table2) == 6 * (9 + 1) and None not in table2.values()
    )  # nine methods, one of them from two starts
    assert table2["c10-2class-50/pfedmb"] == table2["c10-2class-50/pfedmb-common"] == 86.73
    assert table2["c10-2class-15/pfedmb"] == 90.69 and table2["c100-20class-15/pfedme"] == 45.57
    assert table2["c10-dir-50/local"] == 61.27 and table2["c10-2class-15/fedamp"] == 90.73
    fedmn = {cell.key: cell.published for cell in recipe_named("fedmn-table2").cells}
    assert (
        len(fedmn) == 4 * 8
        and fedmn["cifar10/fedmn"] == 83.4
        and fedmn["femnist/fedavg_ft"] == 75.3
    )
    branches = {cell.key: cell.published for cell in recipe_named("pfedmb-table3").cells}
    assert branches["c10-2class-50/pfedmb"] == 10 and branches["c100-20class-15/pfedmb"] is None


@pytest.mark.parametrize("name", RECIPES)
def test_every_cell_is_a_sound_configuration_full_and_quick(name: str) -> None:
    for cell in recipe_named(name).cells:
        Config.of(cell.table(cell.points()[0], seed=1))
        Config.of(cell.table(cell.points()[-1], tuning=True))
        if cell.in_quick:
            quick = Config.of(cell.table(cell.points(True)[-1], quick=True))
            assert quick.rounds <= 20


@pytest.mark.parametrize("name", ["pfedmb-table2", "fedmn-table2"])
def test_every_method_of_a_table_has_the_same_tuning_budget(name: str) -> None:
    cells = recipe_named(name).cells
    assert (
        len({len(cell.points()) for cell in cells}) == 1
        and len({len(cell.points(True)) for cell in cells}) == 1
    )


@pytest.mark.parametrize("name", [n for n in RECIPES if recipe_named(n).stand_in_for])
def test_a_stand_in_has_a_name_settings_and_numbers_of_its_own(name: str) -> None:
    stand_in = recipe_named(name)
    original = recipe_named(stand_in.stand_in_for or "")
    assert name != original.name and original.stand_in_for is None and stand_in.instead_of
    assert all(cell.published is None for cell in stand_in.cells)
    assert not set(stand_in.instead_of) - set(original.data)


def test_a_larger_grid_is_drawn_from_and_always_the_same_way() -> None:
    cell = Cell(
        "a/b", DIGITS, grid={"method.lr": tuple(range(1, 11)), "method.epochs": (1, 2, 3)}, tries=5
    )
    points = cell.points()
    assert len(points) == 5 and points == cell.points()
    assert len({(p["method.lr"], p["method.epochs"]) for p in points}) == 5
    assert Cell("a/b", DIGITS).points() == [{}]


def test_merging_goes_into_tables_and_replaces_those_that_name_something_else() -> None:
    first = {"net": {"name": "mlp", "hidden": [8]}, "method": {"lr": 0.1, "epochs": 2}}
    changed = merge_tables(first, {"net": {"name": "lenet"}, "method": {"lr": None, "epochs": 5}})
    assert changed == {"net": {"name": "lenet"}, "method": {"epochs": 5}}
    assert merge_tables(first, {"net": {"name": "mlp", "depth": 1}})["net"] == {
        "name": "mlp",
        "hidden": [8],
        "depth": 1,
    }
    assert first == {"net": {"name": "mlp", "hidden": [8]}, "method": {"lr": 0.1, "epochs": 2}}


def test_a_run_gets_its_seed_and_a_partition_of_its_own() -> None:
    with_seed = merge_tables(DIGITS, {"data": {"seed": 100}})
    table = Cell("a/b", with_seed).table({"method.optimizer.momentum": 0.9}, seed=2)
    assert (table["seed"], table["data"]["seed"]) == (2, 102)
    assert table["method"]["optimizer"] == {"momentum": 0.9} and table["method"]["lr"] == 0.1
    assert Cell("a/b", with_seed, same_data=True).table({}, seed=2)["data"]["seed"] == 100


@pytest.mark.parametrize(
    ("gap", "half", "quick", "said"),
    [
        (0.5, 0.6, False, "within noise"),
        (-0.7, 0.6, False, "below"),
        (0.7, 0.6, False, "above"),
        (0.7, None, False, "1 seed: noise unknown"),
        (0.1, 0.6, True, "scaled down, not comparable"),
        (None, 0.6, False, ""),
    ],
)
def test_the_verdict_asks_whether_the_published_number_lies_in_our_interval(
    gap: float | None, half: float | None, quick: bool, said: str
) -> None:
    assert verdict(gap, half, quick) == said
