"""One run of a recipe and what is read off it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedblocks.config.options import Table
from fedblocks.methods import METHODS
from fedblocks.recipes.recipe import Cell, Values

# validation: the run helps to choose; test: its number goes to the table
TaskPart: TypeAlias = Literal["validation", "test"]


@dataclass(frozen=True, eq=False)
class CellTask:
    """One run and what is read off it."""

    cell: Cell
    values: Values  # tried, or chosen
    seed: int
    part: TaskPart
    config: Table  # no default left open
    folder: Path  # of the run, named by its configuration: equal ones share it
    shorter: Path | None = None  # of the run of fewer rounds that this one goes on from

    @property
    def measure(self) -> Table:
        """What is read off the run."""
        to_choose = self.cell.choose_by or self.cell.measure
        return self.cell.measure if self.part == "test" else to_choose

    @property
    def chosen(self) -> Values:
        """What validation data chose: values, and rounds where they are open."""
        rounds = {"rounds": self.config["rounds"]} if self.cell.until_convergence else {}
        return {**self.values, **rounds}

    @property
    def key(self) -> str:
        """What the numbers depend on: configuration, measure and part."""
        return number_key(self.config, self.measure, self.part)

    @property
    def run(self) -> str:
        """Which run of its cell it is, in results: a seed, or the key of a try."""
        return f"seed {self.seed}" if self.part == "test" else self.key

    @property
    def kind(self) -> str:
        """What lanes of one stack have in common: all but seeds, partitions, rounds, cohorts
        and numbers of the method.
        """
        own = ("seed", "rounds", "cohort", "checkpoint")
        table = {key: value for key, value in self.config.items() if key not in own}
        data = {key: table["data"].get(key) for key in ("name", "options", "shift")}
        return digest({**table, "data": data, "method": _without_numbers(table["method"])})

    def job(self) -> dict[str, Any]:
        """The task for a worker."""
        return {
            "folder": str(self.folder),
            "config": self.config,
            "measure": self.measure,
            "part": self.part,
            "shorter": str(self.shorter) if self.shorter else None,
        }

    def __str__(self) -> str:
        if self.part == "test":
            return f"{self.cell.key}, seed {self.seed}"
        values = ", ".join(f"{name} {value}" for name, value in self.values.items())
        return f"{self.cell.key}, {values or 'defaults'}, {self.config['rounds']} rounds"


def number_key(config: Table, measure: Table, part: TaskPart) -> str:
    """A short name for a number: equal ones come from equal runs, read in the same way."""
    return digest([_without_later_options(config), measure, part])


def _without_later_options(config: Table) -> Table:
    """A configuration less the options that its method got after numbers were stored, where they
    change nothing: such numbers are still those of this configuration.
    """
    method = config["method"]
    later = METHODS[method["name"]].later_options if method["name"] in METHODS else {}
    own = {k: v for k, v in method.items() if k not in later or later[k] != v}
    return {**config, "method": own}


def _without_numbers(table: Any) -> Any:
    """A table less its fractions: those are what lanes may differ in."""
    if isinstance(table, dict):
        return {key: _without_numbers(value) for key, value in table.items()}
    return None if isinstance(table, float) else table


def digest(value: Any) -> str:
    """A short name for plain values: equal ones have equal names."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
