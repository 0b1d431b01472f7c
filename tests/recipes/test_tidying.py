"""Runs that only chose values are deleted once their cell is done, and no others."""

import json
import os
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from fedblocks.recipes.recipe import Cell, Recipe
from fedblocks.recipes.running import tidying
from fedblocks.recipes.running.reproduce import carry_out
from fedblocks.runs.result import load_run
from fedblocks.runs.storage.lock import take_lock

from .conftest import DIGITS, asked, tiny
from .test_halving import cell

CELL = cell(until_convergence=True)
FEW = {**DIGITS, "rounds": 1}
TWO = {"method.lr": (0.01, 0.1)}
RATES = (0.001, 0.5)  # of the tiny recipe: the second one is chosen


def rates(folder: Path) -> list[float]:
    """The learning rates of all runs that are whole; nothing else is there."""
    runs = [load_run(path) for path in (folder / "runs").iterdir()]
    return sorted(run.config.method.table["lr"] for run in runs)


def test_a_run_that_stands_in_another_table_stays(tmp_path: Path, jobs: list[Any]) -> None:
    slow = {**DIGITS, "method": {**DIGITS["method"], "lr": 0.001}}
    assert carry_out(asked(tiny(Cell("digits/slow", slow), name="other"), tmp_path, seeds=1))
    (tmp_path / "results" / "speed.json").write_text("[]")  # what is no table is in nobody's way
    assert carry_out(asked(tiny(), tmp_path, seeds=1, tidy=True)) and rates(tmp_path) == [*RATES]


def test_a_run_that_somebody_is_writing_stays(tmp_path: Path, jobs: list[Any]) -> None:
    assert carry_out(asked(tiny(), tmp_path, seeds=1))
    (slow,) = (run for run in (tmp_path / "runs").iterdir() if rate_of(run) == 0.001)
    lock = take_lock(slow)
    assert carry_out(asked(tiny(), tmp_path, seeds=1, tidy=True)) and slow.exists()
    os.close(lock)


def rate_of(folder: Path) -> float:
    rate: float = load_run(folder).config.method.table["lr"]
    return rate


def test_a_stop_while_a_run_is_deleted_leaves_no_half_of_it_and_the_next_call_the_rest(
    tmp_path: Path, jobs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(folder: Path, ignore_errors: bool) -> None:
        if folder.exists():
            raise KeyboardInterrupt

    assert carry_out(asked(tiny(), tmp_path, seeds=1))
    monkeypatch.setattr(tidying, "rmtree", stop)
    with pytest.raises(KeyboardInterrupt):
        carry_out(asked(tiny(), tmp_path, seeds=1, tidy=True))
    (half,) = (tmp_path / "runs").glob(".*")
    assert [rate_of(run) for run in (tmp_path / "runs").glob("[!.]*")] == [0.5]
    monkeypatch.setattr(tidying, "rmtree", rmtree)
    assert carry_out(asked(tiny(), tmp_path, seeds=1, tidy=True)) and not half.exists()


def test_a_tidied_table_goes_on_with_more_seeds_and_with_the_full_grid(
    tmp_path: Path, jobs: list[Any]
) -> None:
    recipe: Recipe = tiny(cell())
    assert carry_out(asked(recipe, tmp_path, seeds=1, tidy=True))
    assert carry_out(asked(recipe, tmp_path, seeds=2, tidy=True))
    assert carry_out(asked(recipe, tmp_path, seeds=2, tidy=True, full_grid=True))
    (entry,) = json.loads((tmp_path / "results" / "tiny.json").read_text())["cells"].values()
    assert set(entry["seeds"]) == {"0", "1"}
    full = [one["validation"] for one in entry["tuning"] if one["rounds"] == 10]
    assert len(full) == 12 and len(entry["tuning"]) == 12 + 12 + 4


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
