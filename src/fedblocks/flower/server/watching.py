"""Watch a run of a real federation through its folder: report rounds and notes as they
are written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedblocks.core.errors import UserError, error_of
from fedblocks.core.full_disks import free_on, is_full
from fedblocks.runs.progress import OnNote, OnRound, RoundDone
from fedblocks.runs.result import RunResult, load_run, stored_config
from fedblocks.runs.scored import read_scored
from fedblocks.runs.storage.folder import RunFolder, moved_error, place_of
from fedblocks.runs.storage.record import Note
from fedblocks.runs.storage.store import RunStore

# under which the folder of a run keeps the exit code of the error that ended it
EXIT_CODE = "exit-code"
EXIT_FIX = "exit-fix"  # and what to do about it
STOPPED = "stopped: "  # how the note of such an error begins
LOOK = 0.3  # seconds between two looks at the record


def note_failure(store: RunStore, error: Exception) -> None:
    """Write why a run ends, for whoever watches it or reads its record."""
    message = error.message if isinstance(error, UserError) else str(error)
    store.note(f"{STOPPED}{message}", "warning")
    code = getattr(error, "exit_code", UserError.exit_code)
    fix = error.fix if isinstance(error, UserError) else ""
    store.write_facts({EXIT_CODE: str(code), EXIT_FIX: fix})


def watch(
    path: Path,
    on_round: OnRound,
    on_note: OnNote,
    tend: Callable[[], object],
    command: str,
    after: int = 0,
) -> RunResult:
    """Report rounds and notes until the run is over, which goes on `after` a round; `tend` is
    called all the while, and may raise. A run that failed is continued by `command`.
    """
    with RunFolder.open(path) as folder:
        place = folder.place
        reported = _Reported(stored_config(folder).rounds)
        if folder.store.meta("status") != "finished":
            reported.skip(folder.store, after, on_note)
    while True:
        if place_of(path) != place:
            raise moved_error(path, command)
        with RunFolder.open(path) as folder:
            status = folder.store.meta("status")
            code = int(folder.store.meta(EXIT_CODE) or UserError.exit_code)
            fix = folder.store.meta(EXIT_FIX) or "correct that"
            reported.tell(folder.store, on_round, on_note, status in ("finished", "failed"))
        if status == "finished":
            return load_run(path)
        if status == "failed":
            raise error_of(code, reported.stopped or "the run failed", f"{fix}; then: {command}")
        reported.tell_of_full_disk(path, on_note)
        tend()
        time.sleep(LOOK)


class _Reported:
    """What has been reported already."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.done = 0  # rounds
        self.before = ""  # when the last round began that is not to be reported
        self.notes = 0  # number of the last one
        self.stopped = ""  # why the run ended
        self.is_full = False  # the run's disk

    def skip(self, store: RunStore, after: int, on_note: OnNote) -> None:
        """Skip the rounds and notes from before the run was continued."""
        if store.last_round():
            self.done = after
            self.before = store.rows("SELECT MAX(started_at) AS last FROM rounds")[0]["last"]
            notes = store.rows("SELECT rowid FROM notes")
            self.notes = max((row["rowid"] for row in notes), default=0)
        if after:
            on_note(Note(f"going on after round {after}"))

    def tell(self, store: RunStore, on_round: OnRound, on_note: OnNote, over: bool) -> None:
        new = "SELECT rowid, level, text FROM notes WHERE rowid > ? ORDER BY rowid"
        notes = store.rows(new, self.notes)
        # of a later round: what is known of the one before comes first
        if any(row["level"] == "warning" for row in notes):
            self._tell_rounds(store, on_round, lambda round: over or _has_scores(store, round))
        for row in notes:
            self.notes = row["rowid"]
            if row["text"].startswith(STOPPED) and row["level"] == "warning":
                self.stopped = row["text"].removeprefix(STOPPED)  # said by the error that follows
            else:
                on_note(Note(row["text"], row["level"]))
        self._tell_rounds(store, on_round, lambda round: over)

    def _tell_rounds(
        self, store: RunStore, on_round: OnRound, is_whole: Callable[[int], bool]
    ) -> None:
        """Tell of new rounds; of the newest only if it is whole: its scores come with the next
        message.
        """
        new = "SELECT * FROM rounds WHERE round > ? AND started_at > ? ORDER BY round"
        for row in store.rows(new, self.done, self.before):
            if row["round"] == store.last_round() and not is_whole(row["round"]):
                return
            self.done = row["round"]
            on_round(_done(store, row, self.rounds))

    def tell_of_full_disk(self, path: Path, on_note: OnNote) -> None:
        """Tell once: the run cannot write that itself."""
        full = is_full(path)
        if full and not self.is_full:
            text = (
                f"the disk of {path} is full ({free_on(path)}); make room: the run goes on, or "
                f"ends and says how to continue it"
            )
            on_note(Note(text, "warning"))
        self.is_full = full


def _has_scores(store: RunStore, round: int) -> bool:
    return bool(store.rows("SELECT 1 FROM means WHERE round = ? AND view = 'personal'", round))


def _done(store: RunStore, row: dict[str, Any], rounds: int) -> RoundDone:
    means = store.rows(
        "SELECT part, accuracy, clients FROM means WHERE round = ? AND view = 'personal'",
        row["round"],
    )
    refused = store.rows(
        "SELECT COUNT(DISTINCT client) AS n FROM refusals WHERE round = ?", row["round"]
    )[0]["n"]
    scored, population = read_scored(store, row["round"])
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
        counted={mean["part"]: mean["clients"] for mean in means},
        scored=scored,
        population=population,
    )
