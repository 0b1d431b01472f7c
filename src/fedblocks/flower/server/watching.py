"""Watch a run of a real federation through its folder: report rounds and notes as they
are written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedblocks.core.errors import UserError, error_of
from fedblocks.runs.progress import OnNote, OnRound, RoundDone
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import Note
from fedblocks.runs.storage.store import RunStore

# under which the folder of a run keeps the exit code of the error that ended it
EXIT_CODE = "exit-code"
LOOK = 0.3  # seconds between two looks at the record


def watch(
    path: Path, on_round: OnRound, on_note: OnNote, tend: Callable[[], object], command: str
) -> RunResult:
    """Report rounds and notes until the run is over; `tend` is called all the while,
    and may raise. A run that failed is continued by `command`.
    """
    reported = _Reported(load_run(path).config.rounds)
    with RunFolder.open(path) as folder:
        if folder.store.meta("status") != "finished":
            reported.skip(folder.store, on_note)
    while True:
        with RunFolder.open(path) as folder:
            status = folder.store.meta("status")
            code = int(folder.store.meta(EXIT_CODE) or UserError.exit_code)
            reported.tell(folder.store, on_round, on_note, status in ("finished", "failed"))
        if status == "finished":
            return load_run(path)
        if status == "failed":
            message = reported.last or "the run failed"
            raise error_of(code, message, f"correct that, then: {command}")
        tend()
        time.sleep(LOOK)


class _Reported:
    """What has been reported already."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.done = 0  # rounds
        self.notes = 0  # number of the last one
        self.last = ""  # warning

    def skip(self, store: RunStore, on_note: OnNote) -> None:
        """Skip the rounds and notes from before the run was continued."""
        if done := store.last_round():
            self.done = done
            notes = store.rows("SELECT rowid FROM notes")
            self.notes = max((row["rowid"] for row in notes), default=0)
            on_note(Note(f"going on after round {done}"))

    def tell(self, store: RunStore, on_round: OnRound, on_note: OnNote, over: bool) -> None:
        new = "SELECT rowid, level, text FROM notes WHERE rowid > ? ORDER BY rowid"
        for row in store.rows(new, self.notes):
            self.notes = row["rowid"]
            if row["level"] == "warning":
                self.last = row["text"]
            on_note(Note(row["text"], row["level"]))
        for row in store.rows("SELECT * FROM rounds WHERE round > ? ORDER BY round", self.done):
            newest = row["round"] == store.last_round()
            if newest and not over:
                return  # its scores come with the next message
            self.done = row["round"]
            on_round(_done(store, row, self.rounds))


def _done(store: RunStore, row: dict[str, Any], rounds: int) -> RoundDone:
    means = store.rows(
        "SELECT part, accuracy FROM means WHERE round = ? AND view = 'personal'", row["round"]
    )
    refused = store.rows(
        "SELECT COUNT(DISTINCT client) AS n FROM refusals WHERE round = ?", row["round"]
    )[0]["n"]
    return RoundDone(
        round=row["round"],
        rounds=rounds,
        clients=row["clients"],
        seconds=row["seconds"],
        bytes_down=row["bytes_down"],
        bytes_up=row["bytes_up"],
        refused=refused,
        scores={mean["part"]: mean["accuracy"] for mean in means},
        metric=store.metric(),
    )
