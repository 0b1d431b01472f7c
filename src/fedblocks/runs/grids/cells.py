"""The runs of a comparison one by one: finished ones are taken over, others are begun or gone on
with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedblocks.config.model import Config
from fedblocks.core.errors import RunFolderError
from fedblocks.runs.progress import OnNote, OnRound
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.run import resume, run
from fedblocks.runs.sameness import check_taken_over
from fedblocks.runs.storage.folder import CONFIG, OTHER_FOLDER

Cell = tuple[str, int]  # method, seed


def take_over(cells: Mapping[Cell, tuple[Path, Config]]) -> dict[Cell, RunResult]:
    """The runs that are finished, all of the settings, data and code of today."""
    finished = {}
    for cell, (path, config) in cells.items():
        result = _begun(path, config)
        if result is not None and result.status == "finished":
            check_taken_over(path, config)
            finished[cell] = result
    return finished


def complete(
    path: Path, config: Config, on_round: OnRound | None, on_note: OnNote | None
) -> RunResult:
    """Do what is left of a run."""
    before = _begun(path, config)
    if before is None:
        return run(config, path, on_round, on_note)
    if before.status == "finished":  # beside others, just now
        return before
    return resume(path, on_round, on_note, config.ingredients)


def _begun(path: Path, config: Config) -> RunResult | None:
    """A run as it stands; none that nobody has started, and none with other settings."""
    if not (path / CONFIG).exists():
        return None
    before = load_run(path)
    if before.config != config:
        raise RunFolderError(f"{path} holds a run with other settings", OTHER_FOLDER)
    return before
