"""Runs that only chose values are deleted where `--tidy` asks for it, and not before their time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedblocks.recipes.recipe import Cell
from fedblocks.recipes.running.reproduce import carry_out

from .conftest import DIGITS, asked, tiny
from .test_halving import cell

CELL = cell(until_convergence=True)
FEW = {**DIGITS, "rounds": 1}
TWO = {"method.lr": (0.01, 0.1)}


@pytest.mark.parametrize("tidy", [False, True])
def test_runs_that_chose_values_may_go_once_their_cell_is_done(
    tidy: bool, tmp_path: Path, jobs: list[Any]
) -> None:
    reproduction = asked(tiny(CELL), tmp_path, seeds=2, tidy=tidy)
    assert carry_out(reproduction)
    by_part = {
        part: {Path(job["folder"]) for job in jobs if job["part"] == part}
        for part in ("validation", "test")
    }
    tries = by_part["validation"] - by_part["test"]  # seed 0 of what was chosen was tried, too
    assert (len(by_part["validation"]), len(tries)) == (17, 16)
    assert all(folder.exists() for folder in by_part["test"])
    assert [folder.exists() for folder in tries] == [not tidy] * 16
    before = len(jobs)
    assert carry_out(asked(tiny(CELL), tmp_path, seeds=2, tidy=tidy))
    assert len(jobs) == before  # what is stored is not run again


@pytest.mark.parametrize("why", ["due", "failed", "killed"])
def test_runs_of_a_cell_that_is_not_done_stay(why: str, tmp_path: Path, jobs: list[Any]) -> None:
    reproduction = asked(tiny(CELL), tmp_path, seeds=1, tidy=True)
    (own,) = reproduction.cells
    tried = reproduction.due(own)[0]
    tried.folder.mkdir(parents=True)
    if why != "due":
        answer = {"error": "odd"} if why == "failed" else {"killed": 9}
        reproduction.record(tried, answer)
        assert reproduction.due(own) == []  # in this call
    reproduction.tidy_up(own)
    assert tried.folder.exists()


def test_a_cell_that_was_done_before_is_tidied_by_a_later_call(
    tmp_path: Path, jobs: list[Any]
) -> None:
    recipe = tiny(Cell("digits/fedavg", FEW, grid=TWO))
    assert carry_out(asked(recipe, tmp_path, seeds=1))
    tried = {Path(job["folder"]) for job in jobs if job["part"] == "validation"}
    kept = {Path(job["folder"]) for job in jobs if job["part"] == "test"}
    assert all(folder.exists() for folder in tried | kept) and len(tried - kept) == 1
    assert carry_out(asked(recipe, tmp_path, seeds=1, tidy=True))
    assert [folder.exists() for folder in tried - kept] == [False]
    assert all(folder.exists() for folder in kept)


def test_runs_that_chose_the_values_of_several_cells_go_with_the_last_of_these(
    tmp_path: Path, jobs: list[Any]
) -> None:
    """The same runs, read by different measures."""
    measures = ({"name": "mean_accuracy"}, {"name": "pooled_accuracy"})
    first, second = (Cell(f"digits/{one['name']}", FEW, measure=one, grid=TWO) for one in measures)
    reproduction = asked(tiny(first, second), tmp_path, seeds=1, tidy=True)
    tried = {task.folder for task in reproduction.due(second)}
    assert carry_out(replace(reproduction, cells=[first]))
    assert len(tried) == 2 and all(folder.exists() for folder in tried)
    assert carry_out(replace(reproduction, cells=[second]))
    assert sum(folder.exists() for folder in tried) == 1  # seed 0 of what was chosen


def test_a_cell_is_tidied_while_others_are_still_to_come(tmp_path: Path, jobs: list[Any]) -> None:
    first = Cell("digits/fedavg", FEW, grid=TWO)
    table = {**FEW, "method": {**FEW["method"], "name": "fedper"}}
    recipe = tiny(first, Cell("digits/fedper", table, grid=TWO))
    reproduction = asked(recipe, tmp_path, seeds=1, tidy=True)
    tried = {task.folder for task in reproduction.due(first)}
    left: list[int] = []

    def look(text: str) -> None:
        if text.startswith("digits/fedper"):
            left.append(sum(folder.exists() for folder in tried))

    assert carry_out(reproduction, look)
    assert left == [1] * 3  # two tries and a seed
