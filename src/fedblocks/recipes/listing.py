"""What there is to reproduce, as plain values."""

from __future__ import annotations

from typing import Any

from fedblocks.recipes.cost import seconds
from fedblocks.recipes.presence import missing
from fedblocks.recipes.recipe import Cell, Recipe


def describe(recipe: Recipe, quick: bool, seeds: int) -> dict[str, Any]:
    """A recipe with its cells, which data sets are there, and what it may cost on this
    device; an estimate.
    """
    cells = [_cell(cell, quick, seeds) for cell in recipe.cells if cell.in_quick or not quick]
    known = [cell["seconds"] for cell in cells if cell["seconds"] is not None]
    absent = {name for cell in recipe.cells for name in missing(cell)}
    return {
        "name": recipe.name,
        "title": recipe.title,
        "paper": recipe.paper,
        "shape": recipe.shape,
        "stand_in_for": recipe.stand_in_for,
        "data": {name: name not in absent for name in recipe.data},
        "seconds": sum(known) if len(known) == len(cells) else None,
        "seconds_are": "an estimate for one worker on this device, with all runs that choose "
        "values",
        "notes": list(recipe.notes),
        "cells": cells,
    }


def _cell(cell: Cell, quick: bool, seeds: int) -> dict[str, Any]:
    about = {"name": cell.key, "published": cell.published, "data": list(cell.data_sets)}
    return {**about, "ready": not missing(cell), "seconds": seconds(cell, seeds, quick)}
