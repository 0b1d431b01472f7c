"""Deleting runs that only chose values, which may fill a disk: their scores are in the results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

from fedblocks.config.options import Table
from fedblocks.core.errors import UserError
from fedblocks.recipes.running.results_file import Entry, read_results
from fedblocks.recipes.running.task import CellTask, number_key
from fedblocks.runs.storage.lock import writer_of


def delete_tries(tries: Iterable[CellTask], results: Path) -> None:
    """Delete the runs of some tries, but none that stands in a table of a folder of results, and
    none that a process is writing.
    """
    in_tables = _runs_in_tables(results)
    for task in tries:
        # under its name there is a whole run or none, wherever a kill comes
        gone = task.folder.with_name(f".{task.folder.name}.deleted")
        if task.folder.exists() and not _is_needed(task, in_tables):
            rmtree(gone, ignore_errors=True)
            os.replace(task.folder, gone)
        rmtree(gone, ignore_errors=True)


def _is_needed(task: CellTask, in_tables: Sequence[tuple[Table, set[str]]]) -> bool:
    is_in_table = any(
        number_key(task.config, measure, "test") in keys for measure, keys in in_tables
    )
    return is_in_table or writer_of(task.folder) is not None


def _runs_in_tables(results: Path) -> list[tuple[Table, set[str]]]:
    """What was measured, and the keys of the runs that gave it, in whatever table."""
    by_measure: dict[str, set[str]] = {}
    for entry in (entry for path in results.glob("*.json") for entry in _entries(path)):
        keys = by_measure.setdefault(json.dumps(entry.get("measure", {})), set())
        keys |= {one["key"] for one in entry["seeds"].values()}
    return [(json.loads(measure), keys) for measure, keys in by_measure.items()]


def _entries(path: Path) -> list[Entry]:
    """The cells of a file; none of one that has no results of tables."""
    with suppress(UserError):
        return list(read_results(path, ("cells",), "")["cells"].values())
    return []
