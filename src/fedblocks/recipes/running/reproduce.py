"""Carry out a recipe: choose values on validation data, run the seeds, go on where the last call stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from fedblocks.config.model import Config
from fedblocks.config.options import Table
from fedblocks.config.sources import Source
from fedblocks.core.errors import Interrupted, UserError, nearest
from fedblocks.recipes.presence import missing
from fedblocks.recipes.recipe import Cell, Recipe, Values, merged
from fedblocks.recipes.running.halving import Rung, best_first, rungs
from fedblocks.recipes.running.process_pool import ProcessPool
from fedblocks.recipes.running.results import Results
from fedblocks.recipes.running.worker import Answer

LEAST = 1.0  # seconds that must be left to start another run
EARLIER: dict[str, Table] = {"pfedmb": {"start": "independent"}}  # options, and what was done before
LANES = 16  # runs in one batch: more would make a GPU no faster, and cells end later


@dataclass(frozen=True, eq=False)
class Task:
    """One run and what is read off it."""

    cell: Cell
    values: Values  # tried, or chosen
    seed: int
    part: Literal["validation", "test"]  # validation: the run helps to choose; test: its number goes to the table
    config: Table  # no default left open
    folder: Path  # of the run, named by its configuration: equal ones share it
    shorter: Path | None = None  # of the run of fewer rounds that this one goes on from

    @property
    def measure(self) -> Table:
        """What is read off the run."""
        return self.cell.measure if self.part == "test" else self.cell.choose_by or self.cell.measure

    @property
    def key(self) -> str:
        """What the numbers depend on: configuration, measure and part."""
        return digest([as_earlier(self.config), self.measure, self.part])

    @property
    def kind(self) -> str:
        """What lanes of one stack have in common: all but seeds, partitions and numbers of the method."""
        table = {key: value for key, value in self.config.items() if key != "seed"}
        data = {key: table["data"].get(key) for key in ("name", "options", "shift")}
        return digest({**table, "data": data, "method": _without_numbers(table["method"])})

    def job(self) -> dict[str, Any]:
        """The task for a worker."""
        table = {"folder": str(self.folder), "config": self.config, "measure": self.measure, "part": self.part}
        return {**table, "shorter": str(self.shorter) if self.shorter else None}

    def __str__(self) -> str:
        if self.part == "test":
            return f"{self.cell.key}, seed {self.seed}"
        values = ", ".join(f"{name} {value}" for name, value in self.values.items())
        return f"{self.cell.key}, {values}, {self.config['rounds']} rounds"


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What was asked for, and what there is so far."""

    cells: Sequence[Cell]
    results: Results
    seeds: int
    runs: Path  # the folder of all runs
    jobs: int = 1
    deadline: float | None = None  # of time.monotonic
    full_grid: bool = False  # whether all combinations are tried in full
    lanes: bool = False  # whether runs may be lanes of one
    failed: set[str] = field(default_factory=set)  # keys of cells; they are not tried again in this call
    tasks: dict[str, Task] = field(default_factory=dict)  # that were made so far

    def due(self, cell: Cell) -> list[Task]:
        """What to do next for a cell: combinations that were not tried yet, else seeds that were not run yet."""
        if cell.key in self.failed:
            return []
        left, steps = cell.points(self.results.quick), self.rungs(cell)
        tried: list[Task] = []
        if len(left) > 1:
            for rung in steps[:-1] or steps:  # the last of several says nothing new about which is best
                tried = [self._try(cell, values, rung, steps) for values in left[: rung.tries]]
                scores = [self.results.score(cell, task.key) for task in tried]
                if None in scores:
                    self.results.keep(cell, self._keys(cell, steps), set())
                    return [task for task, score in zip(tried, scores, strict=True) if score is None]
                left = [tried[number].values for number in best_first([score or 0.0 for score in scores])]
            tried = [self._try(cell, left[0], steps[-1], steps)]
        seeds = sorted({*range(self.seeds), *self.results.seeds(cell)})
        runs = [self._task(cell, left[0], seed, "test") for seed in seeds]
        self.results.keep(cell, self._keys(cell, steps), {task.key for task in runs})
        rest = [
            task for task in runs if self.results.seed(cell, task.seed, task.key) is None and task.seed < self.seeds
        ]
        return [task for task in tried if self.results.score(cell, task.key) is None] + rest

    def rungs(self, cell: Cell) -> list[Rung]:
        """How many combinations are tried for how many rounds; with --quick all in full, for they are few."""
        quick = self.results.quick
        rounds = cell.table({}, quick=quick, tuning=True)["rounds"]
        return rungs(len(cell.points(quick)), rounds, self.full_grid or quick)

    def _keys(self, cell: Cell, steps: Sequence[Rung]) -> set[str]:
        """Keys of all tries, be it by halving or of the full grid: numbers of the other way are kept."""
        points = cell.points(self.results.quick)
        if len(points) < 2:
            return set()
        every = {rung.rounds for rung in (*steps, *rungs(len(points), steps[-1].rounds, self.results.quick))}
        return {self._task(cell, values, 0, "validation", rounds).key for values in points for rounds in every}

    def _try(self, cell: Cell, values: Values, rung: Rung, steps: Sequence[Rung]) -> Task:
        """A combination on a rung, which goes on from the rung before."""
        below = [other.rounds for other in steps if other.rounds < rung.rounds]
        task = self._task(cell, values, 0, "validation", rung.rounds)
        if not below:
            return task
        return replace(task, shorter=self._task(cell, values, 0, "validation", below[-1]).folder)

    def record(self, task: Task, answer: Answer) -> None:
        """Store what a worker said."""
        if "error" in answer:
            self.failed.add(task.cell.key)
            self.results.fail(task.cell, f"{task}: {answer['error']}")
        elif "numbers" in answer and task.part == "validation":
            self.results.add_tuned(task.cell, task.values, task.key, answer)
        elif "numbers" in answer:
            self.results.add_seed(task.cell, task.seed, task.values, task.key, answer)

    def seconds_left(self) -> float | None:
        """Until the budget is used up; None: there is no limit."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def _task(
        self, cell: Cell, values: Values, seed: int, part: Literal["validation", "test"], rounds: int | None = None
    ) -> Task:
        name = json.dumps([cell.key, values, seed, part, rounds])
        if name not in self.tasks:
            self.tasks[name] = self._make_task(cell, values, seed, part, rounds)
        return self.tasks[name]

    def _make_task(
        self, cell: Cell, values: Values, seed: int, part: Literal["validation", "test"], rounds: int | None
    ) -> Task:
        table = merged({"threads": 1}, cell.table(values, seed, self.results.quick, tuning=part == "validation"))
        if not self.results.quick:  # what is stored in between nobody reads
            table = merged({**table, "rounds": rounds or table["rounds"]}, {"checkpoint": {"every": table["rounds"]}})
        resolved = Config.of(table, Source(f"recipe cell {cell.key}")).resolved()
        name = f"{resolved['method']['name']}-{resolved['data']['name']}-{digest(resolved)}"
        return Task(cell, values, seed, part, resolved, self.runs / name)


def chosen_cells(recipe: Recipe, patterns: str | None, quick: bool) -> list[Cell]:
    """The cells that a list of patterns such as "c10-2class-50/*,c100-*" names; default: all."""
    there = [cell for cell in recipe.cells if cell.in_quick or not quick]
    if patterns is None:
        return there
    for pattern in (asked := [text.strip() for text in patterns.split(",") if text.strip()]):
        if not any(fnmatchcase(cell.key, pattern) for cell in recipe.cells):
            raise UserError(f'{recipe.name} has no cell "{pattern}"', nearest(pattern, [c.key for c in recipe.cells]))
    return [cell for cell in recipe.cells if any(fnmatchcase(cell.key, pattern) for pattern in asked)]


def carry_out(asked: Reproduction, tell: Callable[[str], None] = lambda text: None) -> bool:
    """Do what is due, as far as the data are there and the time allows; whether everything was done."""
    cells = [cell for cell in asked.cells if not missing(cell)]
    ready = [task for cell in cells for task in asked.due(cell)]
    crew, running = ProcessPool(asked.jobs), dict[Future[list[Answer]], list[Task]]()
    with ThreadPoolExecutor(asked.jobs) as pool:
        try:
            while ready or running:
                _start(asked, crew, pool, ready, running)
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    tasks = running.pop(done)
                    for task, answer in zip(tasks, done.result(), strict=True):
                        asked.record(task, answer)
                        tell(_line(task, answer))
                    _continue(asked, tasks, done.result(), ready, running)
        except KeyboardInterrupt as error:
            raise Interrupted("stopped; every whole round is stored", "the same command goes on from there") from error
        finally:
            crew.close()
    return not any(asked.due(cell) for cell in cells)


def _start(
    asked: Reproduction,
    crew: ProcessPool,
    pool: ThreadPoolExecutor,
    ready: list[Task],
    running: dict[Future[list[Answer]], list[Task]],
) -> None:
    """Give free workers something to do; tasks that share a run wait for each other."""
    while len(running) < asked.jobs:
        busy = {task.folder for tasks in running.values() for task in tasks}
        left = asked.seconds_left()
        free = [task for task in ready if task.folder not in busy]
        if not free or (left is not None and left < LEAST):
            if not running:
                ready.clear()
            return
        tasks = _company(free) if asked.lanes else free[:1]
        for task in tasks:
            ready.remove(task)
        batch = {"jobs": [task.job() for task in tasks], "seconds": left, "lanes": asked.lanes}
        running[pool.submit(crew.work, batch)] = tasks


def _company(free: Sequence[Task]) -> list[Task]:
    """The first task and others that may be lanes beside it, of whatever cells."""
    folders = dict.fromkeys(task.folder for task in free if task.kind == free[0].kind)
    chosen = set(list(folders)[:LANES])
    return [task for task in free if task.folder in chosen]


def _continue(
    asked: Reproduction,
    tasks: Sequence[Task],
    answers: Sequence[Answer],
    ready: list[Task],
    running: Mapping[Future[list[Answer]], Sequence[Task]],
) -> None:
    """When all tasks of a cell are done, the next rung or its seeds come next."""
    ready[:] = [task for task in ready if task.cell.key not in asked.failed]
    stopped = {task.cell.key for task, answer in zip(tasks, answers, strict=True) if "numbers" not in answer}
    busy = {task.cell.key for task in ready} | {task.cell.key for others in running.values() for task in others}
    cells = {task.cell.key: task.cell for task in tasks if task.cell.key not in stopped | busy}
    ready[:0] = [due for cell in cells.values() for due in asked.due(cell)]


def _line(task: Task, answer: Answer) -> str:
    if "error" in answer:
        return f"{task}: failed: {answer['error']}"
    if "stopped" in answer:
        return f"{task}: stopped at the budget"
    where = " on validation data" if task.part == "validation" else ""
    return f"{task}: {answer['numbers']['value']:.2f}{where} ({answer['seconds']:.0f} s)"


def _without_numbers(table: Any) -> Any:
    """A table less its fractions: those are what lanes may differ in."""
    if isinstance(table, dict):
        return {key: _without_numbers(value) for key, value in table.items()}
    return None if isinstance(table, float) else table


def as_earlier(config: Table) -> Table:
    """A configuration without options that only say what was done before they existed.

    So numbers that were stored then keep their keys.
    """
    implied = EARLIER.get(config["method"]["name"], {})
    new = {key: value for key, value in config["method"].items() if implied.get(key) != value}
    return {**config, "method": new}


def digest(value: Any) -> str:
    """A short name for plain values: equal ones have equal names."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
