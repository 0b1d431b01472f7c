"""What workers and results do besides their numbers: how long one is waited for, and what an old
error becomes.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.recipes import recipe_named
from fedblocks.recipes.recipe import Cell
from fedblocks.recipes.running import process_pool
from fedblocks.recipes.running.process_pool import GRACE, ProcessPool, WorkerProcess
from fedblocks.recipes.running.reproduce import _company
from fedblocks.recipes.running.results import ORIGIN, Results
from fedblocks.recipes.show import rows_of

from .conftest import DIGITS, asked, tiny


@pytest.mark.parametrize("seconds", [None, 100.0])
def test_a_worker_is_waited_for_a_little_longer_than_it_may_take(
    seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Timer:
        def __init__(self, interval: float, _: object) -> None:
            waited.append(interval)
            self.daemon = False
            timers.append(self)

        def start(self) -> None:
            self.is_going = True

        def cancel(self) -> None:
            self.is_going = False

    timers: list[Timer] = []
    monkeypatch.setattr(process_pool.threading, "Timer", Timer)
    monkeypatch.setattr(process_pool, "_ask", lambda process, text: json.dumps([json.loads(text)]))
    worker = WorkerProcess()
    monkeypatch.setattr(worker, "_running_process", lambda: None)
    batch: Any = {"jobs": [1], "seconds": seconds}
    assert worker.work(batch) == [batch]
    assert waited == [process_pool.threading.TIMEOUT_MAX if seconds is None else seconds + GRACE]
    assert timers[0].daemon and not timers[0].is_going


def test_a_worker_that_has_answered_takes_the_next_batch() -> None:
    pool = ProcessPool(1)
    (worker,) = pool._workers
    asked: list[int] = []
    worker.work = lambda batch: asked.append(batch) or [batch]  # type: ignore[method-assign]
    assert [pool.work(number) for number in (1, 2)] == [[1], [2]]  # type: ignore[arg-type]
    worker.work = lambda _: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        pool.work(3)  # type: ignore[arg-type]
    assert pool._free.qsize() == 1


@pytest.mark.parametrize("how", ["add_seed", "add_tuned"])
def test_a_number_takes_the_place_of_an_old_error(how: str, tmp_path: Path) -> None:
    recipe = recipe_named("pfedmb-table2")
    cell = recipe.cells[0]
    results = Results(tmp_path / "r.json", recipe, True, {})
    run = "key" if how == "add_tuned" else "seed 0"
    results.note_killed(cell, run, "killed (signal 9)")
    results.fail(cell, run, "no memory")
    stored = json.loads(results.path.read_text())["cells"][cell.key]
    assert stored["error"] == "no memory" and "killed" not in stored  # what it did when tried again
    answer: Any = dict.fromkeys(ORIGIN, "") | {"numbers": {"value": 0.5}, "rounds": 3}
    first = () if how == "add_tuned" else (0,)
    getattr(results, how)(cell, *first, {"method.lr": 0.1}, "key", answer)
    stored = json.loads(results.path.read_text())["cells"][cell.key]
    assert "error" not in stored
    if how == "add_seed":
        assert stored["chosen"] == {"method.lr": 0.1} and stored["seeds"]["0"]["value"] == 0.5
        assert results.seeds(cell) == [0] and results.seed(cell, 0, "key")
        assert results.seed(cell, 0, "other") is None
    else:
        assert results.score(cell, "key") == 0.5 and results.score(cell, "other") is None
    results.keep(cell, {"key"}, set())
    assert results.seeds(cell) == [] and bool(results._entry(cell)["tuning"]) == (
        how == "add_tuned"
    )


def test_a_batch_has_sixteen_runs_at_most_and_all_that_is_read_off_them() -> None:
    crew: Any = SimpleNamespace(retried=set())
    tasks: Any = [SimpleNamespace(folder=Path(str(n % 18)), kind="alike") for n in range(36)]
    chosen = _company(crew, tasks)
    assert chosen == [*tasks[:16], *tasks[18:34]]
    for task in (tasks[0], tasks[18]):  # two measures of one run
        task.kind = "odd"
    assert _company(crew, tasks) == [tasks[0], tasks[18]]


def test_a_try_is_named_by_its_values_and_one_without_any_as_the_defaults(tmp_path: Path) -> None:
    cell = Cell("digits/fedavg", DIGITS, settings=({}, {"method.lr": 0.5}))
    names = [str(task) for task in asked(tiny(cell), tmp_path).due(cell)]
    assert names == [f"digits/fedavg, {what}, 2 rounds" for what in ("defaults", "method.lr 0.5")]


def test_a_curve_is_that_of_the_first_seed_whichever_ended_first(tmp_path: Path) -> None:
    recipe = tiny()
    origin = {"seconds": 1.0, "key": "k"}
    seeds = {
        seed: {"value": value, "rounds": [1], "accuracy": [value], **origin}
        for seed, value in (("10", 7.0), ("2", 8.0), ("9", 9.0))
    }
    entry = {"published": None, "tuning": [], "seeds": seeds}
    results = Results(tmp_path / "tiny.json", recipe, False, {"digits/fedavg": entry})
    (row,) = rows_of(results, recipe.cells, 3)
    assert row["curve"] == {"rounds": [1], "accuracy": [8.0]} and row["state"] == "done"
    entry["seeds"] = {}
    (row,) = rows_of(results, recipe.cells, 3)
    assert row["curve"] == {}
