"""What of the suite is missing, in the order in which it is run, and how long it may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from fedblocks.recipes.recipe import Cell
from fedblocks.recipes.running.halving import Rung, cost
from fedblocks.recipes.running.reproduction import Reproduction
from fedblocks.recipes.suite.beds import SuiteBed
from fedblocks.recipes.suite.entrants import TUNED
from fedblocks.recipes.suite.trial import SuiteTrial, absent_beds, files_of, reproduction_of

Seconds = Mapping[tuple[str, str], float]  # bed and method -> of one run


@dataclass(frozen=True)
class MissingRow:
    """A row of the suite that is not whole."""

    bed: str
    method: str
    is_tuned: bool
    seeds: int  # that are missing
    runs: float  # in full, that the missing seeds and tries amount to
    seconds: float  # of one core, about
    has_data: bool  # whether the bed's data are there


def missing_rows(trial: SuiteTrial) -> list[MissingRow]:
    """The rows that are not whole, those first that give the page most; nothing is written."""
    absent = absent_beds(trial.beds)
    todo = reproduction_of(trial)
    seconds = stored_seconds(files_of(trial))
    beds = {bed.name: bed for bed in trial.beds}
    rows: list[MissingRow] = []
    for cell in trial.cells_on(trial.beds):
        bed, method = beds[cell.setting], cell.point.removesuffix(TUNED)
        seeds, runs = missing_runs(cell, todo)
        cost_of_it = runs * estimate(bed, method, seconds)
        is_tuned = cell.key.endswith(TUNED)
        row = MissingRow(
            bed.name, method, is_tuned, seeds, runs, cost_of_it, bed.name not in absent
        )
        rows += [row] * (runs > 0)
    return rows


def missing_runs(cell: Cell, todo: Reproduction) -> tuple[int, float]:
    """Seeds of a cell that are missing; and with its tries, how many runs in full that is."""
    entry = todo.results.stored(cell)
    steps = todo.rungs(cell) if len(cell.points()) > 1 else []
    if entry is None:
        return todo.seeds, todo.seeds + cost(steps)
    if not todo.due(cell):
        return 0, 0.0
    seeds = todo.seeds - sum(int(seed) < todo.seeds for seed in entry["seeds"])
    tries = cost(steps) - sum(_share(one["rounds"], steps) for one in entry["tuning"])
    return seeds, seeds + max(tries, 0.0)


def _share(rounds: int, steps: Sequence[Rung]) -> float:
    """Of a run in full, what a try costs that goes on from the rung before."""
    before = max((rung.rounds for rung in steps if rung.rounds < rounds), default=0)
    return (rounds - before) / steps[-1].rounds


def stored_seconds(files: Sequence[Mapping[str, Any]]) -> Seconds:
    """How long runs took that are stored, with defaults and tuned."""
    every: dict[tuple[str, str], list[float]] = {}
    for one in files:
        for key, entry in one["cells"].items():
            bed, _, method = key.removesuffix(TUNED).partition("/")
            own = [run["seconds"] for run in entry["seeds"].values()]
            every.setdefault((bed, method), []).extend(own)
    return {name: fmean(own) for name, own in every.items() if own}


def estimate(bed: SuiteBed, method: str, seconds: Seconds) -> float:
    """Of one run: as stored; else as FedAvg takes on this bed, times what the method takes of
    FedAvg's time on other beds; a method without any stored time is like the median one.
    """
    if (bed.name, method) in seconds:
        return seconds[bed.name, method]
    base = seconds.get((bed.name, "fedavg"), bed.seconds)
    factors = {
        name: time / seconds[name[0], "fedavg"]
        for name, time in seconds.items()
        if seconds.get((name[0], "fedavg"))
    }
    own = [factor for (_, other), factor in factors.items() if other == method]
    return base * (median(own) if own else median(factors.values()) if factors else 1.0)


def fitting_rows(rows: Sequence[MissingRow], seconds: float, jobs: int) -> list[MissingRow]:
    """The first rows that so many workers can finish in a time."""
    left = seconds * jobs
    chosen: list[MissingRow] = []
    for row in rows:
        left -= row.seconds
        if left < 0:
            break
        chosen.append(row)
    return chosen
