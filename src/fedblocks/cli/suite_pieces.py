"""`fedblocks suite --plan` and `--merge`: the suite in pieces, on machines that are borrowed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedblocks.cli.output import say, show_json, show_table
from fedblocks.core.errors import UserError, count_of

if TYPE_CHECKING:
    from fedblocks.recipes.suite.planning import MissingRow
    from fedblocks.recipes.suite.trial import SuiteTrial

HEADINGS = {
    "bed": "bed",
    "rows": "rows",
    "methods": "methods",
    "runs": "runs",
    "minutes": "minutes of a core",
}


def show_plan(
    trial: SuiteTrial, seconds: float | None, words: Sequence[str], as_json: bool
) -> None:
    """What is missing, in the order in which it is run, and what fits in a budget; `words` are the
    options of the plan.
    """
    from fedblocks.recipes.suite.planning import fitting_rows, missing_rows

    rows = missing_rows(trial)
    ready = [row for row in rows if row.has_data]
    fits = ready if seconds is None else fitting_rows(ready, seconds, trial.jobs)
    minutes = sum(row.seconds for row in rows) / 60 / trial.jobs
    if as_json:
        table = {"rows": [asdict(row) for row in rows], "minutes": minutes, "jobs": trial.jobs}
        show_json({**table, "fits": [asdict(row) for row in fits]})
        return
    if not rows:
        say(f"Nothing is missing: {count_of(trial.seeds, 'seed')} of all rows are there.")
        return
    show_table(HEADINGS, [_line(own) for own in _groups(rows)])
    workers = count_of(trial.jobs, "worker")
    say(f"Missing: {count_of(len(rows), 'row')}, about {minutes:.0f} minutes on {workers}.")
    if seconds is not None:
        say(f"{seconds / 60:g} minutes on {workers}: the first {len(fits)} whose data are there.")
    for own in _groups(fits)[:1]:
        say(f"Next: {_command(own, words)}")


def _groups(rows: Sequence[MissingRow]) -> list[list[MissingRow]]:
    """Rows of one bed and kind together, in their order."""
    groups: dict[tuple[str, bool], list[MissingRow]] = {}
    for row in rows:
        groups.setdefault((row.bed, row.is_tuned), []).append(row)
    return list(groups.values())


def _line(rows: Sequence[MissingRow]) -> dict[str, Any]:
    first = rows[0]
    return {
        "bed": first.bed + ("" if first.has_data else " (data absent)"),
        "rows": f"{len(rows)} {'tuned' if first.is_tuned else 'with defaults'}",
        "methods": ", ".join(row.method for row in rows),
        "runs": f"{sum(row.runs for row in rows):.0f}",
        "minutes": f"{sum(row.seconds for row in rows) / 60:.1f}",
    }


def _command(rows: Sequence[MissingRow], words: Sequence[str]) -> str:
    names = [row.method for row in rows]
    tuned = ["--tuned"] * rows[0].is_tuned
    return shlex.join(["fedblocks", "suite", *names, "--beds", rows[0].bed, *tuned, *words])


def merge_files(files: Sequence[Path], out: Path, as_json: bool) -> None:
    """Join results of several machines into the folder's, and say what is there now."""
    from fedblocks.recipes.suite.merging import merge_suite

    if not files:
        raise UserError("say which files to merge", "fedblocks suite --merge FILE FILE")
    every = merge_suite(files, out / "results")
    if as_json:
        show_json([{"file": str(one.path), "cells": len(one.cells)} for one in every])
        return
    for one in every:
        say(f"{count_of(len(one.cells), 'row')} of {one.recipe.name} in {one.path}.")
