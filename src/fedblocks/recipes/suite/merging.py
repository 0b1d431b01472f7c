"""Results of the suite from several machines as one: files of any methods, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedblocks.core.errors import UserError
from fedblocks.recipes.running.merging import join
from fedblocks.recipes.running.results import Results
from fedblocks.recipes.running.results_file import read_results
from fedblocks.recipes.suite.beds import VERSION
from fedblocks.recipes.suite.manifest import manifest_hash
from fedblocks.recipes.suite.numbers import check_counts

FILES = "name files results/suite-*.json that `fedblocks suite` wrote"


def merge_suite(files: Sequence[Path], folder: Path) -> list[Results]:
    """Join results files into those of a folder, each into its method's; if any contradict each
    other nothing is written.
    """
    by_recipe: dict[str, list[Path]] = {}
    for path in files:
        by_recipe.setdefault(recipe_in(path), []).append(path)
    for name in by_recipe:
        if (folder / f"{name}.json").exists():
            recipe_in(folder / f"{name}.json")
    joined: list[Results] = []
    conflicts: list[UserError] = []
    for own in by_recipe.values():
        try:
            joined.append(join(own, folder))
        except UserError as error:
            conflicts.append(error)
    if conflicts:
        raise UserError("\n".join(one.message for one in conflicts), conflicts[0].fix)
    for results in joined:
        check_counts(results)
    for results in joined:
        results.save()
    return joined


def recipe_in(path: Path) -> str:
    """The name of the recipe that a file has results of; it must be of this suite."""
    about = read_results(path, ("recipe", "paper"), FILES)
    recipe, paper = str(about["recipe"]), str(about["paper"])
    if not recipe.startswith(f"suite-{VERSION}-"):
        raise UserError(f"{path} has results of {recipe}, not of suite {VERSION}", FILES)
    if paper.rpartition(" ")[2] != manifest_hash():
        raise UserError(f"{path} was made with another manifest ({paper})", FILES)
    return recipe
