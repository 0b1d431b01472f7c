"""Which cells can be run with the data that are there, and which recipes stand in for
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedblocks.data.sets import SETS, describe_set
from fedblocks.data.sets.files import StoredSet
from fedblocks.recipes.recipe import Cell, Recipe


def missing(cell: Cell) -> dict[str, str]:
    """The data sets that a cell lacks: name -> which files to put where."""
    fixes: dict[str, str] = {}
    for name in cell.data_sets:
        stored = SETS.get(name)
        if not isinstance(stored, StoredSet):
            continue  # made by a function, no files
        about = describe_set(stored)
        if not about["found"]:
            fixes[name] = about["fix"]
        elif cell.official and about["form"] == "compact":
            fixes[name] = (
                f"the compact file holds a part only; get the official files, see {about['home']}"
            )
    return fixes


def stand_ins(
    recipe: Recipe, absent: set[str], recipes: Mapping[str, Callable[[], Recipe]]
) -> list[Recipe]:
    """The recipes that make do without some data sets that this one needs, as far as
    their own data are there.
    """
    others = [make() for make in recipes.values()]
    own = [other for other in others if other.stand_in_for == recipe.name]
    fitting = [other for other in own if absent & set(other.instead_of)]
    return [other for other in fitting if not all(missing(cell) for cell in other.cells)]
