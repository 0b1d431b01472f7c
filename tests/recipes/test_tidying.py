"""Runs that only chose values are deleted once their cell is done, and no others."""

import json
import os
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

RATES = (0.001, 0.5)  # of the tiny recipe: the second one is chosen


@pytest.mark.parametrize("tidy", [False, True])
def test_runs_that_chose_values_may_go_once_their_cell_is_done(
    tidy: bool, tmp_path: Path, jobs: list[Any]
) -> None:
    reproduction = asked(tiny(cell(until_convergence=True)), tmp_path, seeds=2, tidy=tidy)
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
    assert carry_out(asked(tiny(cell(until_convergence=True)), tmp_path, seeds=2, tidy=tidy))
    assert len(jobs) == before  # what is stored is not run again


def test_runs_of_a_cell_that_is_not_done_stay(tmp_path: Path, jobs: list[Any]) -> None:
    reproduction = asked(tiny(cell()), tmp_path, seeds=1, tidy=True)
    (own,) = reproduction.cells
    tried = reproduction.due(own)[0]
    tried.folder.mkdir(parents=True)
    reproduction.tidy_up(own)
    assert tried.folder.exists()


def rates(folder: Path) -> list[float]:
    """The learning rates of all runs that are whole; nothing else is there."""
    runs = [load_run(path) for path in (folder / "runs").iterdir()]
    return sorted(run.config.method.table["lr"] for run in runs)


def test_a_cell_that_was_done_before_is_tidied_by_a_call_that_finds_nothing_to_run(
    tmp_path: Path, jobs: list[Any]
) -> None:
    assert carry_out(asked(tiny(), tmp_path, seeds=1)) and rates(tmp_path) == [*RATES]
    assert carry_out(asked(tiny(), tmp_path, seeds=1, tidy=True)) and rates(tmp_path) == [0.5]
    assert len(jobs) == 3


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
