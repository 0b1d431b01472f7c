"""What it takes to repeat a published table or figure: its cells, each a configuration
and what is read off its run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, TypeAlias

from fedblocks.config.options import Table
from fedblocks.core.random import generator

# dotted key of a configuration -> value, e.g. {"method.lr": 0.1}
Values: TypeAlias = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Cell:
    """One number, or one curve, of a table or figure.

    Cells whose configurations come out equal share one run: two measures of one federation, say.
    """

    key: str  # "setting/method" or "setting/point", e.g. "c10-2class-50/pfedmb"
    # a configuration; the runner adds the number of a seed to its `seed` and its `data.seed`
    config: Table
    # a name in MEASURES, and its options
    measure: Table = field(default_factory=lambda: {"name": "mean_accuracy"})
    # None: the paper prints no number, or our copy of it lacks the number
    published: float | None = None
    # dotted key -> values to choose from
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # combinations themselves, instead of a grid
    settings: tuple[Values, ...] = ()
    # the measure that they are compared by on validation data; default: `measure`
    choose_by: Table | None = None
    # combinations that are tried, the same number for every method; of a larger grid, random ones
    tries: int = 12
    # whether the rounds of a rung of the search are chosen with the values, by the same scores
    until_convergence: bool = False
    # merged into the configuration while values are being chosen
    tuning: Table = field(default_factory=dict)
    # merged into the configuration (and after `tuning`) by --quick
    quick: Table = field(default_factory=dict)
    # instead of `grid`, by --quick
    quick_grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    in_quick: bool = True  # whether --quick has this cell at all
    # whether all seeds have one partition, as when a paper publishes its split
    same_data: bool = False
    needs: tuple[str, ...] = ()  # data sets; default: the one that the configuration names
    # whether only the official files will do, not a compact file that holds one part of them
    official: bool = False

    @property
    def setting(self) -> str:
        """What stands before the slash: data and partition."""
        return self.key.partition("/")[0]

    @property
    def point(self) -> str:
        """What stands after the slash: the method, or a point of a figure."""
        return self.key.partition("/")[2]

    @property
    def data_sets(self) -> tuple[str, ...]:
        """Names of the data sets that must be there."""
        return self.needs or (self.config["data"]["name"],)

    def points(self, quick: bool = False) -> list[Values]:
        """The combinations of values to choose from; one empty combination if there is
        nothing to choose.
        """
        if self.settings:
            return list(self.settings)
        grid = self.quick_grid if quick else self.grid
        every = [dict(zip(grid, values)) for values in product(*grid.values())]
        if len(every) <= self.tries:
            return every
        drawn = generator(0, "grid").choice(len(every), self.tries, replace=False)
        return [every[i] for i in sorted(drawn.tolist())]

    def table(
        self, values: Values, seed: int = 0, quick: bool = False, tuning: bool = False
    ) -> Table:
        """The configuration of one run."""
        config = merge_tables(self.config, self.tuning if tuning else {})
        config = merge_tables(config, self.quick if quick else {})
        for key, value in values.items():
            config = merge_tables(config, _nested(key, value))
        first = config["data"].get("seed", 0)
        data = {"seed": first if self.same_data else first + seed}
        return merge_tables(config, {"seed": config.get("seed", 0) + seed, "data": data})


@dataclass(frozen=True, eq=False)
class Recipe:
    """A published table or figure."""

    name: str  # e.g. "pfedmb-table2"; a stand-in's own name says what it is: "fedmn-table2-writers"
    title: str
    paper: str
    shape: Literal["table", "figure", "suite"]
    cells: tuple[Cell, ...]
    unit: str = "%"
    # the recipe that this one replaces where the official data cannot be had
    stand_in_for: str | None = None
    instead_of: tuple[str, ...] = ()  # the data sets that a stand-in makes do without
    quick_seeds: int = 1  # seeds that --quick runs unless told otherwise
    # what the paper left open, and what was chosen; how --quick differs
    notes: tuple[str, ...] = ()

    @property
    def data(self) -> tuple[str, ...]:
        """Names of all data sets that some cell needs."""
        return tuple(dict.fromkeys(name for cell in self.cells for name in cell.data_sets))


def merge_tables(first: Table, second: Mapping[str, Any]) -> Table:
    """Two tables as one: tables within are merged too, anything else is taken from the second.

    A table that names something else than before, such as another net, replaces the one before;
    None removes a key.
    """
    table = dict(first)
    for key, value in second.items():
        before = table.get(key)
        if value is None:
            table.pop(key, None)
        elif not isinstance(value, Mapping):
            table[key] = value
        elif isinstance(before, dict) and value.get("name") in (None, before.get("name")):
            table[key] = merge_tables(before, value)
        else:
            table[key] = dict(value)
    return table


def _nested(key: str, value: Any) -> Table:
    first, _, rest = key.partition(".")
    return {first: _nested(rest, value) if rest else value}
