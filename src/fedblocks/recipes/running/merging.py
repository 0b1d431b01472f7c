"""Results of one recipe from several machines as one: what one of them has done the
others need not do again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedblocks.core.errors import UserError
from fedblocks.recipes import recipe_named
from fedblocks.recipes.running.results import ORIGIN, WARNING, Results, forgive
from fedblocks.recipes.running.results_file import FILES, Entry, read_results

NOTHING: Entry = {"tuning": [], "seeds": {}}
APART = "keep them in folders of their own (--out)"


def merge(files: Sequence[Path], folder: Path) -> Results:
    """Join results files, and the one that is in the folder already, into the folder's."""
    results = join(files, folder)
    results.save()
    return results


def join(files: Sequence[Path], folder: Path) -> Results:
    """The same without writing it; whatever contradicts something else is refused by its name."""
    names = ("recipe", "quick", "cells")
    contents = [(path, read_results(path, names, FILES)) for path in files]
    recipes = {(one["recipe"], one["quick"]) for _, one in contents}
    if len(recipes) > 1:
        lines = [f"{p}: {one['recipe']}{' --quick' if one['quick'] else ''}" for p, one in contents]
        message = f"these are results of different recipes ({', '.join(lines)})"
        raise UserError(message, "merge those of one recipe at a time")
    name, quick = recipes.pop()
    results = Results.open(folder, recipe_named(name), quick)
    sources: dict[tuple[str, str], Path] = {}  # cell, key of a number -> where it came from
    for key, entry in results.cells.items():
        _note(sources, key, entry, results.path)
    conflicts: list[str] = []
    for path, one in contents:
        for key, entry in one["cells"].items():
            against = _conflicts(results.cells.get(key, NOTHING), key, entry, sources, path)
            conflicts += against
            if not against:
                _join(results.cells, key, entry)
            _note(sources, key, entry, path)
    if conflicts:
        raise UserError("\n".join(conflicts), APART)
    return results


def _conflicts(
    mine: Entry,
    key: str,
    other: Entry,
    sources: dict[tuple[str, str], Path],
    path: Path,
) -> list[str]:
    """The numbers that two files contradict each other in."""
    known = _numbers(mine)
    unlike = [
        f"{sources[key, name]} and {path} have other numbers for the same run of {key} ({name})"
        for name, number in _numbers(other).items()
        if name in known and _plain(known[name]) != _plain(number)
    ]
    seeds = [
        (seed, mine["seeds"][seed]["key"], one["key"])
        for seed, one in other["seeds"].items()
        if seed in mine["seeds"]
    ]
    return unlike + [
        f"{sources[key, name]} and {path} ran seed {seed} of {key} with other settings"
        for seed, name, own in seeds
        if name != own
    ]


def _join(cells: dict[str, Entry], key: str, other: Entry) -> None:
    if key not in cells:
        cells[key] = other
        return
    mine = cells[key]
    tried = {one["key"] for one in mine["tuning"]}
    mine["tuning"] += [one for one in other["tuning"] if one["key"] not in tried]
    for seed, one in other["seeds"].items():
        mine["seeds"].setdefault(seed, one)
    if other["seeds"]:
        mine["chosen"] = other["chosen"]
    if not mine.keys() & {"error", "killed"}:
        mine |= {name: other[name] for name in other if name.startswith(("error", "killed"))}
    forgive(mine)


def _numbers(entry: Entry) -> dict[str, Entry]:
    """All numbers of a cell by the keys of their jobs."""
    return {one["key"]: one for one in (*entry["tuning"], *entry["seeds"].values())}


def _plain(number: Entry) -> Entry:
    """What must be the same on every machine."""
    aside = {*ORIGIN, WARNING} - {"partition"}
    return {key: value for key, value in number.items() if key not in aside}


def _note(sources: dict[tuple[str, str], Path], key: str, entry: Entry, path: Path) -> None:
    for name in _numbers(entry):
        sources.setdefault((key, name), path)
