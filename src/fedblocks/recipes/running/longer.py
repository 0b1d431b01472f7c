"""A run of more rounds begins where one of fewer ended, unless a schedule depends on how many are
to come.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import tomli_w

from fedblocks.config.model import Config
from fedblocks.runs.result import load_run
from fedblocks.runs.storage.config_record import remember_config
from fedblocks.runs.storage.folder import CONFIG, STORE, write_atomically
from fedblocks.runs.storage.lock import LOCK
from fedblocks.runs.storage.store import RunStore


def lengthen(shorter: Path, path: Path, config: Config) -> None:
    """Make a run out of a finished one with fewer rounds, to be resumed; what cannot be
    one is left to begin anew.
    """
    if path.exists() or not (shorter / CONFIG).exists() or not _is_start(shorter, config):
        return
    draft = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(shorter, draft, ignore=shutil.ignore_patterns(LOCK, CONFIG, ".*"))
    _reopen(draft / STORE, config)
    write_atomically(draft / CONFIG, tomli_w.dumps(config.resolved()))
    os.replace(draft, path)


def _reopen(path: Path, config: Config) -> None:
    """A record as it would be had the run been stopped; its last round was evaluated
    only because it was the last.
    """
    with closing(RunStore(path)) as store:
        last = store.last_round() or 0
        store.upgrade()
        store.set_meta("status", "interrupted")
        remember_config(store, config.resolved())
        if last % config.evaluation.every:
            store.drop_evaluation(last)


def _is_start(shorter: Path, config: Config) -> bool:
    """Whether a run is finished and differs in the number of its rounds, and when it is
    stored, only.
    """
    before = load_run(shorter)
    mine = config.resolved()
    other = before.config.resolved()
    for table in (mine, other):
        del table["rounds"], table["checkpoint"]
    if _depends_on_length(mine):
        return False
    return before.status == "finished" and before.rounds < config.rounds and mine == other


def _depends_on_length(table: Any) -> bool:
    """Whether there is a schedule over a part of the run: its rounds are a fraction."""
    if not isinstance(table, dict):
        return False
    return isinstance(table.get("rounds"), float) or any(map(_depends_on_length, table.values()))
