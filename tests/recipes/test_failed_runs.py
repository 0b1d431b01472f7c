"""What went wrong with a run stays known until that run has its number."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedblocks.recipes import RECIPES
from fedblocks.recipes.recipe import Cell, Recipe
from fedblocks.recipes.running.merging import merge
from fedblocks.recipes.running.reproduction import Reproduction
from fedblocks.recipes.running.results import ORIGIN
from fedblocks.recipes.running.results_file import Entry
from fedblocks.recipes.suite.scores import read_runs, score_of

from .conftest import DIGITS, asked, tiny

ANSWER: dict[str, Any] = {
    **dict.fromkeys(ORIGIN, ""),
    "seconds": 1.0,
    "numbers": {"value": 50.0},
    "rounds": 2,
}
ONE = Cell("digits/fedavg", DIGITS)
WRONG = pytest.mark.parametrize(
    ("answer", "kind"), [({"error": "it diverged"}, "error"), ({"killed": 9}, "killed")]
)


def entry_of(reproduction: Reproduction) -> Entry:
    """The only cell as it is stored."""
    cells: dict[str, Entry] = json.loads(reproduction.results.path.read_text())["cells"]
    (entry,) = cells.values()
    return entry


@WRONG
def test_a_seed_that_failed_is_forgiven_by_its_own_number_only(
    answer: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    reproduction = asked(tiny(ONE), tmp_path, seeds=2)
    first, second = reproduction.due(ONE)
    reproduction.record(first, answer)
    reproduction.record(second, ANSWER)  # two workers: it was under way
    assert "seed 0" in entry_of(reproduction)[kind]
    reproduction.record(first, ANSWER)
    assert set(entry_of(reproduction)) == {"published", "measure", "tuning", "seeds", "chosen"}


@WRONG
def test_a_try_that_failed_is_forgiven_by_its_own_number_or_by_any_seed(
    answer: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    reproduction = asked(tiny(), tmp_path, seeds=1)
    (cell,) = reproduction.cells
    first, second = reproduction.due(cell)
    reproduction.record(first, answer)
    reproduction.record(second, ANSWER)
    assert "method.lr 0.001" in entry_of(reproduction)[kind]
    reproduction.record(first, ANSWER)
    assert kind not in entry_of(reproduction)
    reproduction.record(second, answer)
    again = asked(tiny(), tmp_path, seeds=1)
    (seed,) = again.due(cell)
    again.record(seed, ANSWER)
    assert kind not in entry_of(again)


def test_an_error_of_an_older_file_is_forgiven_by_a_seed(tmp_path: Path) -> None:
    reproduction = asked(tiny(ONE), tmp_path, seeds=1)
    (task,) = reproduction.due(ONE)
    reproduction.results.cells[ONE.key]["error"] = "it diverged"
    reproduction.record(task, ANSWER)
    assert "error" not in entry_of(reproduction)


@pytest.mark.parametrize("later", [2, 1])
def test_a_merged_cell_is_failed_until_somebody_ran_the_seed_that_failed(
    later: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(ONE)
    monkeypatch.setitem(RECIPES, "tiny", lambda: recipe)
    files = [made(recipe, tmp_path / name, one) for name, one in (("here", 0), ("there", later))]
    failing = asked(recipe, tmp_path / "failing", seeds=2)
    failing.record(failing.due(ONE)[1], {"error": "it diverged"})
    merge([*files, failing.results.path], tmp_path / "all")
    stored = json.loads((tmp_path / "all" / "tiny.json").read_text())["cells"][ONE.key]
    assert set(stored["seeds"]) == {"0", str(later)}
    assert ("error" in stored) == (later == 2)


def made(recipe: Recipe, folder: Path, seed: int) -> Path:
    """Results of one seed, as another machine may have them."""
    reproduction = asked(recipe, folder, seeds=seed + 1)
    reproduction.record(reproduction.due(ONE)[seed], ANSWER)
    return reproduction.results.path


def test_a_method_that_failed_with_one_seed_counts_as_local_with_all() -> None:
    run = {"new": "", "bytes": 1, "seconds": 1.0, "partition": "same"}
    mine = {str(seed): {**run, "test": "0:9/10"} for seed in (0, 2)}
    local = {str(seed): {**run, "test": "0:5/10"} for seed in range(3)}
    cells = {
        "bed/mine": {"seeds": mine, "error": "it diverged", "error_run": "seed 1"},
        "bed/local": {"seeds": local},
    }
    score = score_of("mine", read_runs("bed", [{"cells": cells}]))
    assert score is not None and score["error"] == "it diverged"
    assert (score["mean"], score["seeds"]) == (0.5, 3)
