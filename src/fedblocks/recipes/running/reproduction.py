"""What is due for the cells of a recipe: values to choose on validation data, then seeds to run."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from fedblocks.config.model import Config
from fedblocks.config.sources import Source
from fedblocks.core.errors import UserError, nearest
from fedblocks.recipes.recipe import Cell, Recipe, Values, merge_tables
from fedblocks.recipes.running.halving import Rung, best_first, rungs
from fedblocks.recipes.running.results import Results
from fedblocks.recipes.running.task import CellTask, TaskPart, digest
from fedblocks.recipes.running.tidying import delete_tries
from fedblocks.recipes.running.worker import Answer


@dataclass(frozen=True, eq=False)
class ValueChoice:
    """How far the choice of values has come."""

    untried: list[CellTask]
    values: Values | None  # chosen; None: not yet
    rounds: int | None = None  # chosen; None: all


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
    tidy: bool = False  # whether runs that only chose values are deleted once a cell is done
    # keys of cells; they are not tried again in this call
    failed: set[str] = field(default_factory=set)
    killed: set[str] = field(default_factory=set)  # keys of cells that the next call takes up again
    retried: set[Path] = field(default_factory=set)  # folders of runs whose worker was killed once
    tasks: dict[str, CellTask] = field(default_factory=dict)  # that were made so far

    def due(self, cell: Cell) -> list[CellTask]:
        """What to do next for a cell: combinations that were not tried yet, else seeds
        that were not run yet.
        """
        if cell.key in self.failed | self.killed:
            return []
        steps = self.rungs(cell)
        search = self._search(cell, steps)
        if search.values is None:
            self.results.keep(cell, self._keys(cell, steps), set())
            return search.untried
        seeds = sorted({*range(self.seeds), *self.results.seeds(cell)})
        runs = [self._task(cell, search.values, seed, "test", search.rounds) for seed in seeds]
        self.results.keep(cell, self._keys(cell, steps), {task.key for task in runs})
        asked = [task for task in runs if task.seed < self.seeds]
        unrun = [task for task in asked if self.results.seed(cell, task.seed, task.key) is None]
        return search.untried + unrun

    def _search(self, cell: Cell, steps: Sequence[Rung]) -> ValueChoice:
        """How far the choice of values has come, rung by rung."""
        left = cell.points(self.results.quick)
        if len(left) < 2:
            return ValueChoice([], left[0])
        scored: list[tuple[CellTask, float]] = []
        for rung in steps:
            tried = [self._try(cell, values, rung, steps) for values in left[: rung.tries]]
            scores = [self.results.score(cell, task.key) for task in tried]
            pairs = list(zip(tried, scores, strict=True))
            if untried := [task for task, score in pairs if score is None]:
                # the last of several rungs says nothing new about which values are best
                is_known = len(steps) > 1 and rung == steps[-1] and not cell.until_convergence
                return ValueChoice(untried, left[0] if is_known else None)
            scored += [(task, score) for task, score in pairs if score is not None]
            left = [tried[number].values for number in best_first([s or 0.0 for s in scores])]
        if not cell.until_convergence:
            return ValueChoice([], left[0])
        best = scored[best_first([score for _, score in scored])[0]][0]
        return ValueChoice([], best.values, best.config["rounds"])

    def rungs(self, cell: Cell) -> list[Rung]:
        """How many combinations are tried for how many rounds; with --quick all in
        full, for they are few.
        """
        quick = self.results.quick
        rounds = cell.table({}, quick=quick, tuning=True)["rounds"]
        return rungs(len(cell.points(quick)), rounds, self.full_grid or quick)

    def _keys(self, cell: Cell, steps: Sequence[Rung]) -> set[str]:
        """Keys of all tries, be it by halving or of the full grid: numbers of the other
        way are kept.
        """
        points = cell.points(self.results.quick)
        if len(points) < 2:
            return set()
        by_halving = rungs(len(points), steps[-1].rounds, self.results.quick)
        lengths = {rung.rounds for rung in (*steps, *by_halving)}
        tries = [(values, rounds) for values in points for rounds in lengths]
        return {self._task(cell, values, 0, "validation", rounds).key for values, rounds in tries}

    def _try(self, cell: Cell, values: Values, rung: Rung, steps: Sequence[Rung]) -> CellTask:
        """A combination on a rung, which goes on from the rung before."""
        below = [other.rounds for other in steps if other.rounds < rung.rounds]
        task = self._task(cell, values, 0, "validation", rung.rounds)
        if not below:
            return task
        return replace(task, shorter=self._task(cell, values, 0, "validation", below[-1]).folder)

    def record(self, task: CellTask, answer: Answer) -> None:
        """Store what a worker said."""
        if "killed" in answer:
            self.killed.add(task.cell.key)
            message = f"{task}: killed (signal {answer['killed']})"
            self.results.note_killed(task.cell, task.run, message)
        elif "error" in answer:
            self.failed.add(task.cell.key)
            self.results.fail(task.cell, task.run, f"{task}: {answer['error']}")
        elif "numbers" in answer and task.part == "validation":
            self.results.add_tuned(task.cell, task.values, task.key, answer)
        elif "numbers" in answer:
            self.results.add_seed(task.cell, task.seed, task.chosen, task.key, answer)

    def tidy_up(self, cell: Cell) -> None:
        """Delete the runs of a cell's tries once nothing of it is due; their scores are stored."""
        if not self.tidy or not self._is_done(cell):
            return
        tasks = [*self.tasks.values()]
        tries = [t for t in tasks if t.cell.key == cell.key and t.part == "validation"]
        folders = {task.folder for task in tries}
        # equal runs share a folder, those of other cells, too
        others = [task for task in tasks if task.folder in folders]
        kept = {t.folder for t in others if t.part == "test" or not self._is_done(t.cell)}
        spare = {task.folder: task for task in tries if task.folder not in kept}
        delete_tries(spare.values(), self.results.path.parent)

    def _is_done(self, cell: Cell) -> bool:
        """Whether a cell has all its numbers; one that failed is tried again by the next call."""
        return cell.key not in self.failed | self.killed and not self.due(cell)

    def may_retry(self, task: CellTask, answer: Answer) -> bool:
        """Whether a run is worth another try: its worker was killed for the first time."""
        if "killed" not in answer or task.folder in self.retried:
            return False
        self.retried.add(task.folder)
        return True

    def seconds_left(self) -> float | None:
        """Until the budget is used up; None: there is no limit."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def _task(
        self,
        cell: Cell,
        values: Values,
        seed: int,
        part: TaskPart,
        rounds: int | None = None,
    ) -> CellTask:
        name = json.dumps([cell.key, values, seed, part, rounds])
        if name not in self.tasks:
            self.tasks[name] = self._make_task(cell, values, seed, part, rounds)
        return self.tasks[name]

    def _make_task(
        self,
        cell: Cell,
        values: Values,
        seed: int,
        part: TaskPart,
        rounds: int | None,
    ) -> CellTask:
        own = cell.table(values, seed, self.results.quick, tuning=part == "validation")
        table = merge_tables({"threads": 1}, own)
        if not self.results.quick:  # what is stored in between nobody reads
            checkpoint = {"checkpoint": {"every": table["rounds"]}}
            table = merge_tables({**table, "rounds": rounds or table["rounds"]}, checkpoint)
        resolved = Config.of(table, Source(f"recipe cell {cell.key}")).resolved()
        name = f"{resolved['method']['name']}-{resolved['data']['name']}-{digest(resolved)}"
        return CellTask(cell, values, seed, part, resolved, self.runs / name)


def choose_cells(recipe: Recipe, patterns: str | None, quick: bool) -> list[Cell]:
    """The cells that a list of patterns such as "c10-2class-50/*,c100-*" names; default: all."""
    if patterns is None:
        return [cell for cell in recipe.cells if cell.in_quick or not quick]
    asked = [text.strip() for text in patterns.split(",") if text.strip()]
    keys = [cell.key for cell in recipe.cells]
    for pattern in asked:
        if not any(fnmatchcase(key, pattern) for key in keys):
            raise UserError(f'{recipe.name} has no cell "{pattern}"', nearest(pattern, keys))
    return [cell for cell in recipe.cells if any(fnmatchcase(cell.key, one) for one in asked)]
