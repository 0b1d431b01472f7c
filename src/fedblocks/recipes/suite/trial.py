"""Carry out the suite: what was asked for, which beds can be had, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedblocks.core.errors import DataError, UserError
from fedblocks.recipes.presence import missing
from fedblocks.recipes.recipe import Cell, Recipe
from fedblocks.recipes.running.reproduce import carry_out
from fedblocks.recipes.running.reproduction import Reproduction
from fedblocks.recipes.running.results_file import read_table
from fedblocks.recipes.suite.beds import BEDS, VERSION, SuiteBed
from fedblocks.recipes.suite.entrants import HELD_OUT, TUNED, Entrant, default_cell, recipe_of
from fedblocks.recipes.suite.manifest import is_frozen, manifest_hash
from fedblocks.recipes.suite.scores import PANEL, BedRuns, Row, read_runs
from fedblocks.recipes.suite.shared_results import SharedResults
from fedblocks.recipes.suite.summary import summarise_method

Absent = dict[str, str]  # bed -> which files to put where


@dataclass(frozen=True)
class SuiteTrial:
    """What was asked for."""

    entrants: Sequence[Entrant]
    beds: Sequence[SuiteBed]
    seeds: int
    out: Path
    tuned: bool = False
    held_out: bool = False
    jobs: int = 1
    lanes: bool = False
    deadline: float | None = None  # of time.monotonic

    @property
    def present(self) -> list[SuiteBed]:
        """The beds whose data are there."""
        absent = absent_beds(self.beds)
        return [bed for bed in self.beds if bed.name not in absent]

    @property
    def everybody(self) -> list[Entrant]:
        """The entrants, after the panel that they are measured by."""
        panel = [Entrant(name) for name in PANEL]
        return [*panel, *(one for one in self.entrants if one not in panel)]

    @property
    def recipes(self) -> list[Recipe]:
        """A recipe for each of them."""
        known = {bed.name: bed for bed in self.beds} | dict(BEDS)
        return [recipe_of(one, self.held_out, known) for one in self.everybody]

    @property
    def cells(self) -> list[Cell]:
        """What is to be run, as far as the data are there."""
        return self.cells_on(self.present)

    def cells_on(self, beds: Sequence[SuiteBed]) -> list[Cell]:
        """The cells in the order that gives the page most: rows with defaults on every bed, then
        tuned ones; bed after bed, the panel first.
        """
        every = [cell for recipe in self.recipes for cell in recipe.cells]
        default = [cell for cell in every if not cell.key.endswith(TUNED)]
        tuned = [cell for cell in every if self.tuned and cell.key.endswith(TUNED)]
        return [
            cell
            for asked in (default, tuned)
            for bed in beds
            for cell in asked
            if cell.setting == bed.name
        ]

    @property
    def runs(self) -> Path:
        """The folder of all runs; foreign sources have folders of their own, since two versions of
        one method have equal configurations.
        """
        sources = "-".join(one.source for one in self.entrants if one.source)
        return self.out / "runs" / (f"suite-{sources}" if sources else "suite")


def absent_beds(beds: Iterable[SuiteBed]) -> Absent:
    """The beds whose data set is not there, and what to do about it."""
    cells = {bed.name: default_cell(Entrant("fedavg"), bed, False) for bed in beds}
    fixes = {name: missing(cell) for name, cell in cells.items()}
    return {name: "\n".join(fix.values()) for name, fix in fixes.items() if fix}


def put_to_test(trial: SuiteTrial, tell: Callable[[str], None] = lambda text: None) -> bool:
    """Run what is missing; whether everything is there now."""
    if not trial.present:
        fixes = "\n".join(absent_beds(trial.beds).values())
        raise DataError("the data of no bed that was asked for are there", fixes)
    return carry_out(reproduction_of(trial), tell)


def reproduction_of(trial: SuiteTrial) -> Reproduction:
    """What was asked for, with what there is so far."""
    return Reproduction(
        trial.cells,
        SharedResults.gather(trial.out / "results", trial.recipes),
        trial.seeds,
        runs=trial.runs,
        jobs=trial.jobs,
        deadline=trial.deadline,
        lanes=trial.lanes,
    )


def read_files(folder: Path, held_out: bool = False, manifest: str = "") -> list[dict[str, Any]]:
    """The results files of the suite in a folder; those of another manifest are refused."""
    first = f"suite-{VERSION}-"
    files: list[dict[str, Any]] = []
    for path in sorted(folder.glob(f"{first}*.json")):
        if path.name.startswith(f"{first}heldout-") != held_out:
            continue
        one = read_table(path, ("recipe", "paper"), "move it away, or choose another --out")
        if one["paper"].rpartition(" ")[2] != (manifest or manifest_hash()):
            fix = "move it away, and run the suite again"
            raise UserError(f"{path} was made with another manifest ({one['paper']})", fix)
        files.append(one)
    return files


def files_of(trial: SuiteTrial) -> list[dict[str, Any]]:
    """The results files of everybody who takes part."""
    recipes = {recipe.name: recipe for recipe in trial.recipes}
    manifest = next(iter(recipes.values())).paper.rpartition(" ")[2]
    every = read_files(trial.out / "results", trial.held_out, manifest)
    return [one for one in every if one["recipe"] in recipes]


def scores_of(trial: SuiteTrial) -> list[Row]:
    """A summary for each row of the entrants, with defaults and, if there is one, tuned."""
    files = files_of(trial)
    beds = [cut_seeds(read_runs(bed.name, files), trial.seeds) for bed in trial.present]
    rows = [one.name + row for one in trial.entrants for row in ("", TUNED)[: 1 + trial.tuned]]
    return [summarise_method(name, beds) for name in rows]


def cut_seeds(runs: BedRuns, seeds: int) -> BedRuns:
    """The runs with the first seeds only, so that all rows of a table have the same."""
    first = {
        name: {seed: run for seed, run in own.items() if seed < seeds}
        for name, own in runs.runs.items()
    }
    return replace(runs, runs=first)


def other_data(trial: SuiteTrial) -> list[str]:
    """The beds and seeds whose runs had other data than the manifest froze, such as official files
    where the suite has a compact one.
    """
    first = HELD_OUT if trial.held_out else 0
    names: dict[str, None] = {}
    for one in files_of(trial):
        for key, entry in one["cells"].items():
            bed = key.partition("/")[0]
            for seed, own in entry["seeds"].items():
                if is_frozen(bed, first + int(seed), own["partition"]) is False:
                    names[f"{bed}, seed {seed}"] = None
    return list(names)


def versions_seen(folder: Path, name: str) -> int:
    """How many sources of a foreign method have results in a folder."""
    return len(list(folder.glob(f"suite-{VERSION}-{name}-????????.json")))
