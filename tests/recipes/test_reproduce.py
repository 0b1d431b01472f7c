"""Carrying out a recipe: what is chosen, what is stored, and how it goes on after a stop."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedblocks.core.errors import UserError
from fedblocks.recipes import recipe_named
from fedblocks.recipes.measures import MEASURES
from fedblocks.recipes.recipe import Cell
from fedblocks.recipes.running.process_pool import ProcessPool, WorkerProcess
from fedblocks.recipes.running.reproduce import carry_out
from fedblocks.recipes.running.reproduction import choose_cells
from fedblocks.recipes.running.results import Results
from fedblocks.recipes.running.worker import answers
from fedblocks.recipes.show import rows_of
from fedblocks.runs.result import RunResult, load_run

from .conftest import DIGITS, asked, batch, tiny


def rigged(run: RunResult, part: str) -> dict[str, float]:
    """The small learning rate looks best on validation data, the large one on test data."""
    small = run.config.method.table["lr"] < 0.1
    return {"value": float(small) if part == "validation" else float(not small)}


def test_values_are_chosen_on_validation_data_and_test_data_have_no_say(
    tmp_path: Path, jobs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MEASURES, "rigged", rigged)
    recipe = tiny(
        Cell("digits/fedavg", DIGITS, {"name": "rigged"}, grid={"method.lr": (0.5, 0.001)})
    )
    assert carry_out(asked(recipe, tmp_path))
    entry = json.loads((tmp_path / "results" / "tiny.json").read_text())["cells"]["digits/fedavg"]
    assert entry["chosen"] == {"method.lr": 0.001}
    assert [(one["values"]["method.lr"], one["validation"]) for one in entry["tuning"]] == [
        (0.5, 0.0),
        (0.001, 1.0),
    ]
    # what the chosen rate has on test data
    assert [one["value"] for one in entry["seeds"].values()] == [0.0, 0.0]
    assert [job["part"] for job in jobs] == ["validation", "validation", "test", "test"]


def test_a_second_call_does_nothing_twice_and_more_seeds_add_runs(
    tmp_path: Path, jobs: list[Any]
) -> None:
    assert carry_out(asked(tiny(), tmp_path))
    stored, before = (tmp_path / "results" / "tiny.json").read_text(), len(jobs)
    assert carry_out(asked(tiny(), tmp_path))
    assert len(jobs) == before and (tmp_path / "results" / "tiny.json").read_text() == stored
    assert carry_out(asked(tiny(), tmp_path, seeds=3))
    assert [job["config"]["seed"] for job in jobs[before:]] == [2]


def test_numbers_of_pfedmb_from_before_it_had_a_start_keep_their_keys(tmp_path: Path) -> None:
    """Keys of results/pfedmb-table2.json, made at 0.1.0+513c91d, when all branches were
    independent.
    """
    before = {0: "c7ffb66d9cce", 1: "18ed280ade23", 2: "b982d19e6cb2"}
    chosen = {"method.lr": 0.1, "method.alpha_lr": 0.01, "method.branches": 2}
    reproduction = asked(recipe_named("pfedmb-table2"), tmp_path)
    cells = {cell.key: cell for cell in reproduction.cells}
    for seed, key in before.items():
        tasks = [
            reproduction._task(cells[f"c10-2class-50/{row}"], chosen, seed, "test")
            for row in ("pfedmb", "pfedmb-common")
        ]
        assert [task.config["method"]["start"] for task in tasks] == ["independent", "common"]
        assert tasks[0].key == key and tasks[1].key not in before.values()


def test_numbers_of_other_settings_are_forgotten(tmp_path: Path, jobs: list[Any]) -> None:
    carry_out(asked(tiny(), tmp_path, seeds=2))
    longer = tiny(Cell("digits/fedavg", {**DIGITS, "rounds": 3}, published=90.0))
    reproduction = asked(longer, tmp_path, seeds=1)
    assert carry_out(reproduction)
    entry = reproduction.results.cells["digits/fedavg"]
    assert (
        entry["tuning"] == [] and set(entry["seeds"]) == {"0"} and jobs[-1]["config"]["rounds"] == 3
    )


def test_seeds_differ_in_models_and_partition_unless_the_split_is_published(
    tmp_path: Path, jobs: list[Any]
) -> None:
    free, fixed = Cell("digits/free", DIGITS), Cell("digits/fixed", DIGITS, same_data=True)
    carry_out(asked(tiny(free, fixed), tmp_path))
    cells = json.loads((tmp_path / "results" / "tiny.json").read_text())["cells"]
    hashes = {
        key: [one["partition"] for one in cell["seeds"].values()] for key, cell in cells.items()
    }
    assert len(set(hashes["digits/free"])) == 2 and len(set(hashes["digits/fixed"])) == 1
    assert {job["config"]["seed"] for job in jobs} == {0, 1}


def test_equal_configurations_are_run_once_whatever_is_read_off(
    tmp_path: Path, jobs: list[Any]
) -> None:
    cells = Cell("digits/mean", DIGITS), Cell("digits/pooled", DIGITS, {"name": "pooled_accuracy"})
    carry_out(asked(tiny(*cells), tmp_path, seeds=1, jobs=2))
    assert len(jobs) == 2 and len(list((tmp_path / "runs").iterdir())) == 1


def test_the_budget_stops_after_a_round_and_the_next_call_ends_as_if_nothing_had_happened(
    tmp_path: Path, jobs: list[Any]
) -> None:
    recipe = tiny(Cell("digits/fedavg", DIGITS))
    whole = asked(recipe, tmp_path / "whole", seeds=1)
    assert carry_out(whole)
    (task,) = asked(recipe, tmp_path / "stopped", seeds=1).due(recipe.cells[0])
    assert answers(batch(task, -1.0)) == [{"stopped": True}]  # time is up when the first round ends
    assert (load_run(task.folder).status, load_run(task.folder).rounds) == ("interrupted", 1)
    again = asked(recipe, tmp_path / "stopped", seeds=1)
    assert carry_out(again)
    values = [one.results.cells["digits/fedavg"]["seeds"]["0"]["value"] for one in (whole, again)]
    assert values[0] == values[1] and load_run(task.folder).rounds == 2


def test_without_time_nothing_is_started_and_it_says_that_something_is_left(
    tmp_path: Path, jobs: list[Any]
) -> None:
    assert not carry_out(asked(tiny(), tmp_path, deadline=time.monotonic()))
    assert jobs == []


def test_a_cell_that_fails_is_recorded_and_the_others_go_on(
    tmp_path: Path, jobs: list[Any]
) -> None:
    broken = Cell("digits/broken", {**DIGITS, "data": {**DIGITS["data"], "clients": 4000}})
    reproduction = asked(tiny(broken, Cell("digits/fedavg", DIGITS)), tmp_path, seeds=1)
    assert carry_out(reproduction)
    rows = {row["name"]: row for row in rows_of(reproduction.results, reproduction.cells, 1)}
    assert (
        "4000 clients" in rows["digits/broken"]["state"] and rows["digits/broken"]["ours"] is None
    )
    assert rows["digits/fedavg"]["state"] == "done"


def test_a_worker_process_gives_the_same_numbers_as_a_run_in_this_process(tmp_path: Path) -> None:
    recipe = tiny(Cell("digits/fedavg", DIGITS))
    (task,) = asked(recipe, tmp_path / "there", seeds=1).due(recipe.cells[0])
    crew = ProcessPool(1)
    try:
        (actual,) = crew.work(batch(task, 600.0))
    finally:
        crew.close()
    (here,) = answers(
        {"jobs": [task.job() | {"folder": str(tmp_path / "here")}], "seconds": None, "lanes": False}
    )
    assert actual["numbers"] == here["numbers"] and actual["partition"] == here["partition"]


def test_a_worker_that_dies_is_an_error_of_its_job_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    worker = WorkerProcess()
    (actual,) = worker.work({"jobs": [{}], "seconds": None, "lanes": False})
    assert actual["error"] == "the worker process ended with code 1"
    worker.close()


def test_the_results_are_whole_at_every_moment(tmp_path: Path, jobs: list[Any]) -> None:
    seen = []
    path = tmp_path / "results" / "tiny.json"
    carry_out(
        asked(tiny(), tmp_path),
        lambda text: seen.append(len(json.loads(path.read_text())["cells"])),
    )
    assert len(seen) == 4 and [p.name for p in path.parent.iterdir()] == ["tiny.json"]


def test_results_that_cannot_be_read_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text("{")
    with pytest.raises(UserError, match=r"tiny.json is not a file of results: it is not JSON"):
        Results.open(tmp_path, tiny(), quick=False)
    assert (tmp_path / "tiny.json").read_text() == "{"


def test_cells_are_named_by_patterns_and_unknown_ones_bring_the_nearest() -> None:
    recipe = tiny(
        Cell("a-15/fedavg", DIGITS),
        Cell("a-50/fedavg", DIGITS),
        Cell("a-50/ditto", DIGITS, in_quick=False),
    )
    assert [cell.key for cell in choose_cells(recipe, "a-50/*", False)] == [
        "a-50/fedavg",
        "a-50/ditto",
    ]
    assert [cell.key for cell in choose_cells(recipe, None, True)] == ["a-15/fedavg", "a-50/fedavg"]
    with pytest.raises(UserError, match='did you mean "a-50/ditto"'):
        choose_cells(recipe, "a-50/dito", False)
