"""The results of several methods at once, each in a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedblocks.recipes.recipe import Cell, Recipe, Values
from fedblocks.recipes.running.results import Results
from fedblocks.recipes.running.results_file import Entry
from fedblocks.recipes.suite.numbers import check_counts


@dataclass
class SharedResults(Results):
    """Looks like the results of one recipe; every cell is stored with the recipe that has it, and
    only the file that a number belongs to is written.
    """

    files: dict[str, Results] = field(default_factory=dict)  # key of a cell -> where it is stored

    @staticmethod
    def gather(folder: Path, recipes: Sequence[Recipe]) -> SharedResults:
        """What the files of some recipes hold."""
        every = [Results.open(folder, recipe, False) for recipe in recipes]
        for one in every:
            check_counts(one)
        own = {cell.key: one for one in every for cell in one.recipe.cells}
        return SharedResults(folder, recipes[0], False, {}, files=own)

    def add_tuned(self, cell: Cell, values: Values, key: str, answer: Entry) -> None:
        self.files[cell.key].add_tuned(cell, values, key, answer)

    def add_seed(self, cell: Cell, seed: int, values: Values, key: str, answer: Entry) -> None:
        self.files[cell.key].add_seed(cell, seed, values, key, answer)

    def fail(self, cell: Cell, run: str, message: str) -> None:
        self.files[cell.key].fail(cell, run, message)

    def stored(self, cell: Cell) -> Entry | None:
        return self.files[cell.key].stored(cell)

    def note_killed(self, cell: Cell, run: str, message: str) -> None:
        self.files[cell.key].note_killed(cell, run, message)

    def save(self) -> None:
        """Only files that lose something are written here; the others when they get a number."""
        for one in {id(self.files[key]): self.files[key] for key in self.stale}.values():
            one.save()

    def _entry(self, cell: Cell) -> Entry:
        return self.files[cell.key]._entry(cell)
