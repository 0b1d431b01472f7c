"""Choosing values by successive halving, as lanes of one or one after the other."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.recipes.measures import MEASURES
from fedblocks.recipes.recipe import Cell
from fedblocks.recipes.running.halving import Rung, best_first, cost, rungs
from fedblocks.recipes.running.longer import lengthen
from fedblocks.recipes.running.reproduce import carry_out
from fedblocks.recipes.running.reproduction import Reproduction
from fedblocks.recipes.running.task import CellTask
from fedblocks.recipes.running.worker import answers
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.run import resume, run

from .conftest import DIGITS, asked, tiny

RATES = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1e12)
LONG = {**DIGITS, "rounds": 10, "engine": "vectorised", "evaluation": {"every": 10}}


def cell(**more: Any) -> Cell:
    return Cell("digits/fedavg", LONG, grid={"method.lr": RATES}, **more)


def entry_of(reproduction: Reproduction) -> dict[str, Any]:
    actual: dict[str, Any] = json.loads(reproduction.results.path.read_text())["cells"][
        "digits/fedavg"
    ]
    return actual


def test_twelve_tries_have_a_fifth_of_the_rounds_the_best_four_half_of_them_and_the_best_all() -> (
    None
):
    assert rungs(12, 500, full_grid=False) == [Rung(100, 12), Rung(250, 4), Rung(500, 1)]
    assert rungs(6, 199, full_grid=False) == [Rung(40, 6), Rung(100, 2), Rung(199, 1)]
    assert rungs(12, 500, full_grid=True) == [Rung(500, 12)]
    # few tries, or few rounds, are not worth it
    assert rungs(3, 500, full_grid=False) == [Rung(500, 3)]
    assert rungs(12, 9, full_grid=False) == [Rung(9, 12)]
    assert cost(rungs(12, 500, False)) == pytest.approx(12 * 0.2 + 4 * 0.3 + 1 * 0.5)


def test_the_first_of_equal_scores_is_the_best_and_what_is_no_number_the_worst() -> None:
    assert best_first([1.0, float("nan"), 3.0, 3.0, 0.0]) == [2, 3, 0, 4, 1]


def shrinking(run: RunResult, part: str) -> dict[str, float]:
    """The larger the learning rate the better, but after half of the rounds the smaller
    one wins.
    """
    rate = run.config.method.table["lr"]
    return {"value": rate if run.rounds < 5 else -rate}


def test_every_rung_is_scored_on_validation_data_and_stored_with_its_rounds(
    tmp_path: Path, jobs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MEASURES, "shrinking", shrinking)
    reproduction = asked(tiny(cell(measure={"name": "shrinking"})), tmp_path, seeds=2)
    assert carry_out(reproduction)
    entry = entry_of(reproduction)
    tried = [(one["rounds"], one["values"]["method.lr"]) for one in entry["tuning"]]
    assert tried == [
        *((2, rate) for rate in RATES),
        *((5, rate) for rate in reversed(RATES[8:])),
        (10, 0.5),
    ]
    assert entry["chosen"] == {"method.lr": 0.5} and set(entry["seeds"]) == {"0", "1"}
    assert {job["part"] for job in jobs[:16]} == {"validation"}
    # nothing is stored in between
    assert {job["config"]["checkpoint"]["every"] for job in jobs} == {10}


def humped(run: RunResult, part: str) -> dict[str, float]:
    """Better until half of the rounds, worse afterwards; best with a learning rate of 0.5."""
    return {"value": -abs(run.config.method.table["lr"] - 0.5) - abs(run.rounds - 5)}


def test_the_rounds_of_a_rung_are_chosen_with_the_values_where_a_cell_trains_until_it_converges(
    tmp_path: Path, jobs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MEASURES, "humped", humped)
    reproduction = asked(
        tiny(cell(measure={"name": "humped"}, until_convergence=True)), tmp_path, seeds=2
    )
    assert carry_out(reproduction)
    entry = entry_of(reproduction)
    assert entry["chosen"] == {"method.lr": 0.5, "rounds": 5}
    assert [one["value"] for one in entry["seeds"].values()] == [0.0, 0.0]  # 5 rounds, rate 0.5
    assert [one["rounds"] for one in entry["tuning"]] == [2] * 12 + [5] * 4 + [10]
    # the last rung has a say, so no seed is run before it
    assert [job["part"] for job in jobs] == ["validation"] * 17 + ["test"] * 2
    assert not any(reproduction.due(one) for one in reproduction.cells)


def test_all_rounds_are_chosen_where_more_are_better(tmp_path: Path, jobs: list[Any]) -> None:
    reproduction = asked(tiny(cell(until_convergence=True)), tmp_path, seeds=1, full_grid=True)
    assert carry_out(reproduction)
    assert entry_of(reproduction)["chosen"]["rounds"] == 10  # the only length that was tried


def test_the_full_grid_and_the_rungs_are_kept_side_by_side(tmp_path: Path, jobs: list[Any]) -> None:
    carry_out(asked(tiny(cell()), tmp_path, seeds=1))
    again = asked(tiny(cell()), tmp_path, seeds=1, full_grid=True)
    assert carry_out(again)
    counts = [one["rounds"] for one in entry_of(again)["tuning"]]
    assert (counts.count(2), counts.count(5), counts.count(10)) == (12, 4, 12)
    folders = len(list((tmp_path / "runs").iterdir()))
    assert (
        carry_out(asked(tiny(cell()), tmp_path, seeds=1))
        and len(list((tmp_path / "runs").iterdir())) == folders
    )


def test_lanes_give_the_numbers_of_runs_one_after_the_other_and_say_how_many_they_were(
    tmp_path: Path, jobs: list[Any]
) -> None:
    recipe = tiny(cell(measure={"name": "fine_tuned_accuracy"}))
    alone = asked(recipe, tmp_path / "alone", seeds=3)
    together = asked(recipe, tmp_path / "together", seeds=3, lanes=True)
    assert carry_out(alone) and carry_out(together)
    one, other = entry_of(alone), entry_of(together)
    assert one["chosen"] == other["chosen"]
    scores = [
        [(t["rounds"], t["values"], t["validation"]) for t in entry["tuning"]]
        for entry in (one, other)
    ]
    assert scores[0] == scores[1] and len(scores[0]) == 17
    assert [s["value"] for s in one["seeds"].values()] == [
        s["value"] for s in other["seeds"].values()
    ]
    # the last went on from there beside runs of other seeds, which began
    assert [t["lanes"] for t in other["tuning"]] == [12] * 12 + [4] * 4 + [3]
    assert {t["lanes"] for t in one["tuning"]} == {1}


def test_numbers_say_where_and_by_what_they_were_made(tmp_path: Path, jobs: list[Any]) -> None:
    reproduction = asked(tiny(cell()), tmp_path, seeds=1, lanes=True)
    carry_out(reproduction)
    entry = entry_of(reproduction)
    for one in (*entry["tuning"], *entry["seeds"].values()):
        assert (
            one["device"] == "cpu"
            and one["torch"] == torch.__version__
            and len(one["partition"]) == 64
        )
        assert one["code"] and one["seconds"] >= 0


def test_lanes_stop_at_the_budget_and_go_on_to_the_same_numbers(
    tmp_path: Path, jobs: list[Any]
) -> None:
    whole = asked(tiny(cell()), tmp_path / "whole", seeds=1, lanes=True)
    assert carry_out(whole)
    stopped = asked(tiny(cell()), tmp_path / "stopped", seeds=1, lanes=True)
    tasks = stopped.due(stopped.cells[0])
    assert answers(batch(tasks, -1.0)) == [{"stopped": True}] * 12
    for task in tasks:
        assert (load_run(task.folder).status, load_run(task.folder).rounds) == ("interrupted", 1)
    assert carry_out(stopped)
    assert [t["validation"] for t in entry_of(whole)["tuning"]] == [
        t["validation"] for t in entry_of(stopped)["tuning"]
    ]
    assert all(load_run(task.folder).rounds == 2 for task in tasks)


def batch(tasks: list[CellTask], seconds: float | None) -> dict[str, Any]:
    return {"jobs": [task.job() for task in tasks], "seconds": seconds, "lanes": True}


def test_a_job_that_cannot_be_run_is_an_error_of_its_own_among_lanes(
    tmp_path: Path, jobs: list[Any]
) -> None:
    reproduction = asked(tiny(cell()), tmp_path, seeds=1, lanes=True)
    three = batch(reproduction.due(reproduction.cells[0])[:3], None)
    three["jobs"][1]["config"] = {**three["jobs"][1]["config"], "cohort": {"size": 4000}}
    actual = answers(three)
    assert "4000 clients" in actual[1]["error"] and [actual[k]["lanes"] for k in (0, 2)] == [2, 2]


def test_a_run_that_was_lengthened_ends_as_one_of_all_rounds(tmp_path: Path) -> None:
    for every in (10, 2):
        table = {
            **LONG,
            "evaluation": {"every": every},
            "method": {"name": "fedper", "lr": 0.1, "batch_size": 64},
        }
        run(Config.of({**table, "rounds": 5}), tmp_path / f"short-{every}")
        lengthen(tmp_path / f"short-{every}", tmp_path / f"long-{every}", Config.of(table))
        one, other = (
            resume(tmp_path / f"long-{every}"),
            run(Config.of(table), tmp_path / f"fresh-{every}"),
        )
        assert (one.status, one.rounds, one.config) == ("finished", 10, other.config)
        evaluated = [rounds_evaluated(folder) for folder in (one.folder, other.folder)]
        assert evaluated[0] == evaluated[1]
        mine, expected = one.state(), other.state()
        for block, params in expected.server.items():
            assert all(torch.equal(mine.server[block][key], value) for key, value in params.items())
        assert mine.private.keys() == expected.private.keys() != set()


def rounds_evaluated(folder: Path) -> list[Any]:
    from fedblocks.runs.storage.folder import RunFolder

    with RunFolder.open(folder) as opened:
        return opened.store.rows("SELECT round, part, view, accuracy FROM means ORDER BY 1, 2, 3")


def test_a_run_is_not_lengthened_from_one_that_differs_or_is_not_finished(tmp_path: Path) -> None:
    run(Config.of({**LONG, "rounds": 3, "seed": 1}), tmp_path / "other")
    lengthen(tmp_path / "other", tmp_path / "long", Config.of(LONG))
    lengthen(tmp_path / "nowhere", tmp_path / "long", Config.of(LONG))
    assert not (tmp_path / "long").exists()
