"""What came out of a recipe so far, in one JSON file that is never half written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fedblocks.core.errors import RunFolderError
from fedblocks.recipes.recipe import Cell, Recipe, Values
from fedblocks.recipes.running.results_file import Entry, read_results
from fedblocks.runs.storage.environment import environment
from fedblocks.runs.storage.folder import write_atomically

# what is to be known of every number
ORIGIN = ("seconds", "partition", "lanes", "device", "processor", "torch", "code")
WARNING = "warning"  # of a number: what the end of its run warned of, if it did
_environment = cache(environment)  # the same in all of a process


@dataclass
class Results:
    """The cells of one recipe with their numbers; `save` after every change."""

    path: Path
    recipe: Recipe
    quick: bool
    cells: dict[str, Entry]
    # key of a cell -> seeds whose numbers other settings than those of today gave
    stale: dict[str, list[str]] = field(default_factory=dict)

    @staticmethod
    def open(folder: Path, recipe: Recipe, quick: bool) -> Results:
        """What the file of a recipe holds, if there is one."""
        path = folder / f"{recipe.name}{'-quick' if quick else ''}.json"
        if not path.exists():
            return Results(path, recipe, quick, {})
        fix = "move it away, or choose another --out"
        cells: dict[str, Entry] = read_results(path, ("cells",), fix)["cells"]
        return Results(path, recipe, quick, cells)

    def stored(self, cell: Cell) -> Entry | None:
        """What there is of a cell; None: nothing was ever run."""
        return self.cells.get(cell.key)

    def score(self, cell: Cell, key: str) -> float | None:
        """What one combination of values reached on validation data, if it was tried
        with exactly this job.
        """
        tries = self._entry(cell)["tuning"]
        return next((entry["validation"] for entry in tries if entry["key"] == key), None)

    def seed(self, cell: Cell, seed: int, key: str) -> Entry | None:
        """The numbers of one seed, if they are those of exactly this job."""
        entry: Entry | None = self._entry(cell)["seeds"].get(str(seed))
        return entry if entry is not None and entry["key"] == key else None

    def add_tuned(self, cell: Cell, values: Values, key: str, answer: Entry) -> None:
        """One combination of values was tried."""
        score = {
            "values": values,
            "rounds": answer["rounds"],
            "validation": answer["numbers"]["value"],
        }
        entry = self._entry(cell)
        entry["tuning"].append({**score, **_origin(answer), "key": key})
        forgive(entry)
        self.save()

    def add_seed(self, cell: Cell, seed: int, values: Values, key: str, answer: Entry) -> None:
        """A run with the chosen values is done."""
        entry = self._entry(cell)
        entry["chosen"] = values
        entry["seeds"][str(seed)] = {**answer["numbers"], **_origin(answer), "key": key}
        forgive(entry)
        self.save()

    def seeds(self, cell: Cell) -> list[int]:
        """The seeds that have numbers."""
        return [int(seed) for seed in self._entry(cell)["seeds"]]

    def keep(self, cell: Cell, tried: set[str], run: set[str]) -> None:
        """Forget what other settings than those of today gave; both are keys of jobs."""
        entry = self._entry(cell)
        stale = [seed for seed, one in entry["seeds"].items() if one["key"] not in run]
        if stale:
            self.stale[cell.key] = stale
        entry["tuning"] = [one for one in entry["tuning"] if one["key"] in tried]
        entry["seeds"] = {seed: one for seed, one in entry["seeds"].items() if one["key"] in run}

    def drop_stale(self) -> list[str]:
        """Write the files without what was forgotten; and say of what."""
        if self.stale:
            self.save()
        return [
            f"{key}, seed {', '.join(seeds)}: stale: other settings than those of today gave it"
            for key, seeds in self.stale.items()
        ]

    def fail(self, cell: Cell, run: str, message: str) -> None:
        """A run of this cell failed."""
        entry = self._entry(cell)
        for key in ("killed", "killed_run"):
            entry.pop(key, None)
        entry |= {"error": message, "error_run": run}
        self.save()

    def note_killed(self, cell: Cell, run: str, message: str) -> None:
        """A worker was killed from outside, which says nothing about the cell."""
        self._entry(cell).update(killed=message, killed_run=run)
        self.save()

    def save(self) -> None:
        """Write the file, all of it or nothing."""
        about = self.recipe
        order = [cell.key for cell in about.cells if cell.key in self.cells]
        table: Entry = {
            "recipe": about.name,
            "title": about.title,
            "paper": about.paper,
            "shape": about.shape,
            "unit": about.unit,
            "quick": self.quick,
            "stand_in_for": about.stand_in_for,
            "notes": list(about.notes),
            **self._made_with(),
            "cells": {key: self.cells[key] for key in order},
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps(table, indent=1) + "\n")
        except OSError as error:
            raise RunFolderError(
                f"cannot write {self.path}: {error.strerror or error}", "choose another --out"
            ) from error

    def _made_with(self) -> Entry:
        """Versions and devices that made the numbers: this process may have merged them only."""
        entries = self.cells.values()
        numbers = [one for e in entries for one in (*e["tuning"], *e["seeds"].values())]
        here = _environment()
        own = {"code": here["versions"]["fedblocks"], "torch": here["versions"]["torch"]}
        own["device"] = here["devices"][0]
        codes, torches, devices = (
            list(dict.fromkeys(one[key] for one in numbers if key in one)) or [own[key]]
            for key in ("code", "torch", "device")
        )
        versions = dict.fromkeys(code.partition("+")[0] for code in codes)
        return {
            "versions": {"fedblocks": " and ".join(versions), "torch": " and ".join(torches)},
            "devices": devices,
        }

    def _entry(self, cell: Cell) -> Entry:
        empty: Entry = {
            "published": cell.published,
            "measure": cell.measure,
            "tuning": [],
            "seeds": {},
        }
        return self.cells.setdefault(cell.key, empty)


def forgive(entry: Entry) -> None:
    """What went wrong counts no more once the run that it happened to has its number; numbers of
    other runs say nothing about it.
    """
    for kind in ("error", "killed"):
        if _has_number(entry, entry.get(f"{kind}_run")):
            entry.pop(kind, None)
            entry.pop(f"{kind}_run", None)


def _has_number(entry: Entry, run: str | None) -> bool:
    """Whether a seed is done; or a try, which every seed comes after."""
    if run in {f"seed {seed}" for seed in entry["seeds"]}:
        return True
    is_seed = run is not None and run.startswith("seed ")  # files of before do not say which run
    return (not is_seed and bool(entry["seeds"])) or run in {one["key"] for one in entry["tuning"]}


def _origin(answer: Entry) -> Entry:
    """What is to be known of a number: what it cost, which data, where and by which
    code it was made.
    """
    warned = {WARNING: answer[WARNING]} if WARNING in answer else {}
    return {**{key: answer[key] for key in ORIGIN}, **warned}
