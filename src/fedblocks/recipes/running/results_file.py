"""A file of results as it lies there: people merge, copy and edit them, so it is checked first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from fedblocks.core.errors import UserError
from fedblocks.core.small_files import read_small

# one cell: tuning, chosen, seeds; error or killed, with error_run or killed_run
Entry = dict[str, Any]
Kind: TypeAlias = type | tuple[type, ...]
LARGEST = 2**26  # bytes of a file of results
FILES = "name files that `fedblocks reproduce` or `fedblocks suite` wrote"
ODD_CELLS = "its cells are not as `fedblocks` writes them"
# what is read of a number by all tables, and what some measures add
NEEDED: Mapping[str, Kind] = {"key": str, "seconds": (int, float)}
ADDED: Mapping[str, Kind] = {"partition": str, "test": str, "new": str, "bytes": (int, float)}


def read_results(path: Path, names: tuple[str, ...], fix: str) -> dict[str, Any]:
    """These values of a file of results, whose cells are looked at, too."""
    table = read_table(path, names, fix)
    if "cells" in names and (odd := _odd_cells(table["cells"])):
        raise _no_results(path, odd, fix)
    return {name: table[name] for name in names}


def read_table(path: Path, names: tuple[str, ...], fix: str) -> dict[str, Any]:
    """A file of results that has these values; what is none is refused in plain words."""
    try:
        table: Any = json.loads(read_small(path, LARGEST))
    except OSError as error:
        raise _no_results(path, error.strerror or str(error), fix) from error
    except ValueError as error:
        raise _no_results(path, "it is not JSON", fix) from error
    if not isinstance(table, dict):
        raise _no_results(path, "it holds no table", fix)
    for name in names:
        if name not in table:
            raise _no_results(path, f'it has no "{name}"', fix)
    return table


def _no_results(path: Path, why: str, fix: str) -> UserError:
    return UserError(f"{path} is not a file of results: {why}", fix)


def _odd_cells(cells: Any) -> str | None:
    """What about some cells is not as it is written; None: nothing."""
    try:
        for key, entry in cells.items():
            numbers = [(f"seed {int(seed)}", "value", one) for seed, one in entry["seeds"].items()]
            numbers += [("a try", "validation", one) for one in entry["tuning"]]
            for run, score, number in numbers:
                if odd := _odd_value(score, number):
                    return f"{key}, {run}: {odd}"
    except (KeyError, TypeError, ValueError, AttributeError):
        return ODD_CELLS
    return None


def _odd_value(score: str, number: Entry) -> str | None:
    """The first value of a number that is none of its kind."""
    needed: dict[str, Kind] = {score: (int, float), **NEEDED}
    kinds = needed | {name: kind for name, kind in ADDED.items() if name in number}
    for name, kind in kinds.items():
        if isinstance(number[name], bool) or not isinstance(number[name], kind):
            return f'"{name}" = {json.dumps(number[name])}'
    return None
