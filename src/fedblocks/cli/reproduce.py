"""`fedblocks reproduce`: published tables and figures beside our own numbers."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedblocks.cli.output import AsJson, clean, console, say, show_json, stoppable
from fedblocks.cli.recipe_tables import default_seeds, show_list, show_results
from fedblocks.core.errors import DataError, UserError, count_of

if TYPE_CHECKING:
    from fedblocks.recipes.recipe import Cell, Recipe

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME", help="Table or figure, e.g. pfedmb-table2; with --merge: result files."
    ),
]
Cells = Annotated[
    str | None,
    typer.Option(
        "--cells", metavar="PATTERN", help='Only cells that match, e.g. "c10-2class-50/*".'
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option("--seeds", min=1, help="Seeds of each cell; default: 3, with --quick 1 to 3."),
]
Budget = Annotated[
    str | None,
    typer.Option("--budget", metavar="TIME", help="Stop after this time, e.g. 540s, 9m or 1h."),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Run a scaled-down variant: minutes on 2 CPU cores.")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Worker processes; default: one for each core or GPU."),
]
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of runs/ and results/.")]
FullGrid = Annotated[
    bool, typer.Option("--full-grid", help="Train all candidates in full, not only the best.")
]
Tidy = Annotated[
    bool,
    typer.Option(
        "--tidy",
        help="Delete the runs that only chose values once a cell is done; scores are kept.",
    ),
]
Merge = Annotated[
    bool, typer.Option("--merge", help="Merge result files of other machines into results/.")
]
Listed = Annotated[
    bool, typer.Option("--list", help="List tables and figures with data sets and estimated cost.")
]

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def reproduce(
    names: Names = None,
    cells: Cells = None,
    seeds: Seeds = None,
    budget: Budget = None,
    quick: Quick = False,
    jobs: Jobs = None,
    out: Out = Path(),
    full_grid: FullGrid = False,
    tidy: Tidy = False,
    merge: Merge = False,
    listed: Listed = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce a published table or figure.

    Run it again to continue after a stop.
    """

    def action() -> None:
        if listed:
            show_list(quick, seeds, as_json)
            return
        if merge:
            _merge([Path(name) for name in names or []], out, as_json)
            return
        if not names or len(names) > 1:
            wrong = "say which table or figure, one at a time"
            raise UserError(wrong, "fedblocks reproduce --list shows all")
        deadline = time.monotonic() + seconds_of(budget) if budget is not None else None
        workers = jobs or default_jobs()
        asked = _Asked(cells, seeds, quick, workers, out, deadline, full_grid, tidy)
        tables = _carry_out(names[0], asked, as_json)
        if as_json:
            show_json(tables)

    stoppable(action)


def seconds_of(text: str) -> float:
    """Seconds of a time such as 540s, 9m or 1.5h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise UserError(f'--budget "{text}" is not a time', "write 540s, 9m or 1h")
    return float(match[1]) * UNITS[match[2]]


def has_gpu() -> bool:
    """Whether runs can be lanes of one."""
    import torch

    return torch.cuda.is_available()


def default_jobs() -> int:
    """Worker processes: one for each GPU, else for each core."""
    import torch

    return torch.cuda.device_count() or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class _Asked:
    """What the command line asks for."""

    cells: str | None
    seeds: int | None
    quick: bool
    jobs: int
    out: Path
    deadline: float | None
    full_grid: bool
    tidy: bool


def _carry_out(name: str, asked: _Asked, as_json: bool) -> list[dict[str, Any]]:
    """The recipe and, with --quick, those that stand in for cells whose data are
    missing; each under its own name.
    """
    from fedblocks.recipes import RECIPES, recipe_named
    from fedblocks.recipes.presence import missing, stand_ins
    from fedblocks.recipes.running.reproduction import choose_cells

    recipe = recipe_named(name)
    cells = choose_cells(recipe, asked.cells, asked.quick)
    absent = {data: fix for cell in cells for data, fix in missing(cell).items()}
    others = stand_ins(recipe, set(absent), RECIPES)
    _refuse_nothing(recipe, cells, absent, [other.name for other in others], asked.quick)
    tables = [_table(recipe, cells, others, asked, as_json)]
    if asked.quick:
        tables += [
            _table(other, choose_cells(other, None, True), [], asked, as_json) for other in others
        ]
    return tables


def _table(
    recipe: Recipe, cells: Sequence[Cell], others: Sequence[Recipe], asked: _Asked, as_json: bool
) -> dict[str, Any]:
    """Carry out some cells of one recipe and show them."""
    from fedblocks.recipes.running.reproduce import carry_out
    from fedblocks.recipes.running.reproduction import Reproduction
    from fedblocks.recipes.running.results import Results
    from fedblocks.recipes.show import rows_of

    results = Results.open(asked.out / "results", recipe, asked.quick)
    seeds = asked.seeds or default_seeds(recipe, asked.quick)
    todo = Reproduction(
        cells,
        results,
        seeds,
        runs=asked.out / "runs" / "reproduce",
        jobs=asked.jobs,
        deadline=asked.deadline,
        full_grid=asked.full_grid,
        lanes=has_gpu(),
        tidy=asked.tidy,
    )
    done = carry_out(todo, lambda text: console(sys.stderr).print(clean(text), soft_wrap=True))
    rows = rows_of(results, cells, seeds, others)
    if not as_json:
        show_results(recipe, rows, results.path, done, asked.quick)
    return {
        "name": recipe.name,
        "stand_in_for": recipe.stand_in_for,
        "finished": done,
        "file": str(results.path),
        "cells": rows,
    }


def _refuse_nothing(
    recipe: Recipe,
    cells: Sequence[Cell],
    absent: dict[str, str],
    others: Sequence[str],
    quick: bool,
) -> None:
    """Say which files to put where if no cell can be run."""
    if any(not set(cell.data_sets) & set(absent) for cell in cells) or (quick and others):
        return
    fix = "\n".join(absent.values())
    instead = f"\nor run a stand-in: fedblocks reproduce {others[0]}" if others else ""
    raise DataError(f"{recipe.name} needs the files of {', '.join(absent)}", f"{fix}{instead}")


def _merge(files: list[Path], out: Path, as_json: bool) -> None:
    from fedblocks.recipes.running.merging import merge

    if not files:
        raise UserError("say which files to merge", "fedblocks reproduce --merge FILE FILE")
    results = merge(files, out / "results")
    if as_json:
        show_json(
            {"name": results.recipe.name, "file": str(results.path), "cells": len(results.cells)}
        )
    else:
        verb = "is" if len(results.cells) == 1 else "are"
        cells = f"{count_of(len(results.cells), 'cell')} of {results.recipe.name}"
        say(f"{cells} {verb} in {results.path}.")
