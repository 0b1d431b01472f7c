"""Recipes for published tables and figures, and what carries them out: `fedblocks
reproduce` does no more than this.
"""

from __future__ import annotations

from collections.abc import Callable

from fedblocks.core.errors import UserError, nearest
from fedblocks.recipes.papers import fedmn, fedmn_figure, pfedmb, pfedmb_pairs
from fedblocks.recipes.papers.flow import FLOW
from fedblocks.recipes.papers.modfl import MODFL
from fedblocks.recipes.recipe import Cell, Recipe
from fedblocks.recipes.suite.entrants import suite_recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    "pfedmb-table1": pfedmb_pairs.table1,
    "pfedmb-table2": pfedmb.table2,
    "pfedmb-table3": pfedmb.table3,
    "pfedmb-figure3": pfedmb_pairs.figure3,
    "pfedmb-figure4": pfedmb_pairs.figure4,
    "pfedmb-figure5": pfedmb.figure5,
    "fedmn-table2": fedmn.table2,
    "fedmn-table2-emnist116k": fedmn.table2_emnist116k,
    "fedmn-table2-writers": fedmn.table2_writers,
    "fedmn-figure2": fedmn_figure.figure2,
    "fedmn-figure2-emnist116k": fedmn_figure.figure2_emnist116k,
    **FLOW,
    **MODFL,
}


def recipe_named(name: str) -> Recipe:
    """A recipe by its name, or the nearest names; those of the suite are made for any method."""
    if name.startswith("suite-"):
        return suite_recipe(name)
    if name not in RECIPES:
        raise UserError(f'there is no table or figure "{name}"', nearest(name, RECIPES))
    return RECIPES[name]()


__all__ = ["RECIPES", "Cell", "Recipe", "recipe_named"]
