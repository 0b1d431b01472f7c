"""Carry out a recipe: choose values on validation data, run the seeds, go on where the last call stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from fedblocks.core.errors import Interrupted, UserError, nearest
from fedblocks.recipes.crew import Crew
from fedblocks.recipes.presence import missing
from fedblocks.recipes.recipe import Cell, Recipe, Values, merged
from fedblocks.recipes.results import Results
from fedblocks.recipes.worker import Answer
from fedblocks.runs.config import Config
from fedblocks.runs.options import Table
from fedblocks.runs.source import Source

LEAST = 1.0  # seconds that must be left to start another run


@dataclass(frozen=True, eq=False)
class Task:
    """One run and what is read off it."""

    cell: Cell
    values: Values  # tried, or chosen
    seed: int
    part: Literal["validation", "test"]  # validation: the run helps to choose; test: its number goes to the table
    config: Table  # no default left open
    folder: Path  # of the run, named by its configuration: equal ones share it

    @property
    def measure(self) -> Table:
        """What is read off the run."""
        return self.cell.measure if self.part == "test" else self.cell.choose_by or self.cell.measure

    @property
    def key(self) -> str:
        """What the numbers depend on: configuration, measure and part."""
        return digest([self.config, self.measure, self.part])

    def job(self, seconds: float | None) -> dict[str, Any]:
        """The task for a worker."""
        told = {"folder": str(self.folder), "config": self.config, "measure": self.measure, "part": self.part}
        return {**told, "seconds": seconds}

    def __str__(self) -> str:
        what = f"seed {self.seed}" if self.part == "test" else ", ".join(f"{k} {v}" for k, v in self.values.items())
        return f"{self.cell.key}, {what}"


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What was asked for, and what there is so far."""

    cells: Sequence[Cell]
    results: Results
    seeds: int
    runs: Path  # the folder of all runs
    jobs: int = 1
    deadline: float | None = None  # of time.monotonic
    failed: set[str] = field(default_factory=set)  # keys of cells; they are not tried again in this call

    def due(self, cell: Cell) -> list[Task]:
        """What to do next for a cell: combinations that were not tried yet, else seeds that were not run yet."""
        if cell.key in self.failed:
            return []
        points = cell.points(self.results.quick)
        tried = [self._task(cell, values, 0, "validation") for values in points] if len(points) > 1 else []
        scores = {task.key: self.results.score(cell, task.key) for task in tried}
        if None in scores.values():
            self.results.keep(cell, set(scores), set())
            return [task for task in tried if scores[task.key] is None]
        chosen = max(tried, key=lambda task: scores[task.key] or 0.0).values if tried else points[0]
        seeds = sorted({*range(self.seeds), *self.results.seeds(cell)})
        runs = [self._task(cell, chosen, seed, "test") for seed in seeds]
        self.results.keep(cell, set(scores), {task.key for task in runs})
        return [
            task for task in runs if self.results.seed(cell, task.seed, task.key) is None and task.seed < self.seeds
        ]

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

    def _task(self, cell: Cell, values: Values, seed: int, part: Literal["validation", "test"]) -> Task:
        table = cell.table(values, seed, self.results.quick, tuning=part == "validation")
        resolved = Config.of(merged({"threads": 1}, table), Source(f"recipe cell {cell.key}")).resolved()
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
    crew, running = Crew(asked.jobs), dict[Future[Answer], Task]()
    with ThreadPoolExecutor(asked.jobs) as pool:
        try:
            while ready or running:
                _start(asked, crew, pool, ready, running)
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    task = running.pop(done)
                    asked.record(task, done.result())
                    tell(_line(task, done.result()))
                    _continue(asked, task, ready, running)
        except KeyboardInterrupt as error:
            raise Interrupted("stopped; every whole round is stored", "the same command goes on from there") from error
        finally:
            crew.close()
    return not any(asked.due(cell) for cell in cells)


def _start(
    asked: Reproduction, crew: Crew, pool: ThreadPoolExecutor, ready: list[Task], running: dict[Future[Answer], Task]
) -> None:
    """Give free workers something to do; tasks that share a run wait for each other."""
    while len(running) < asked.jobs:
        busy = {task.folder for task in running.values()}
        left = asked.seconds_left()
        task = next((task for task in ready if task.folder not in busy), None)
        if task is None or (left is not None and left < LEAST):
            if not running:
                ready.clear()
            return
        ready.remove(task)
        running[pool.submit(crew.work, task.job(left))] = task


def _continue(asked: Reproduction, task: Task, ready: list[Task], running: dict[Future[Answer], Task]) -> None:
    """When all combinations of a cell were tried, its seeds come next."""
    if task.cell.key in asked.failed:
        ready[:] = [other for other in ready if other.cell is not task.cell]
    elif task.part == "validation" and not any(t.cell is task.cell for t in (*ready, *running.values())):
        ready[:0] = [due for due in asked.due(task.cell) if due.part == "test"]


def _line(task: Task, answer: Answer) -> str:
    if "error" in answer:
        return f"{task}: failed: {answer['error']}"
    if "stopped" in answer:
        return f"{task}: stopped at the budget"
    where = " on validation data" if task.part == "validation" else ""
    return f"{task}: {answer['numbers']['value']:.2f}{where} ({answer['seconds']:.0f} s)"


def digest(value: Any) -> str:
    """A short name for plain values: equal ones have equal names."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
