"""Where a run goes on: its record and its checkpoints must tell of the same rounds."""

from __future__ import annotations

from collections.abc import Sequence

from fedblocks.core.errors import RunFolderError
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.lock import LOCK, noted_round
from fedblocks.runs.storage.record import Note


def refuse_lost_rounds(folder: RunFolder) -> None:
    """Refuse a record that ends before a checkpoint, or before the round that its writer noted: a
    round is recorded before either, so the record has lost some.
    """
    # both before the record is read: the run may be going on
    stored, noted = checkpoint.newest_round(folder.checkpoints), noted_round(folder.path)
    last = folder.store.last_round() or 0
    if last < max(stored, noted):
        later = f"there is a checkpoint of round {stored}"
        if stored < noted:
            later = f"{LOCK} says that round {noted} was recorded"
        raise RunFolderError(
            f"the record {folder.store.path} has lost rounds: it ends with round {last}, and "
            f"{later}",
            f"restore {folder.store.path.name} from a copy, with {folder.store.path.name}-wal if "
            "that has one; or go on with the run, from an older checkpoint if there is one",
        )


def notes_on_skipped(round: int, skipped: Sequence[str]) -> list[Note]:
    """What is to be known of a run that goes on after `round` because newer checkpoints cannot be
    used.
    """
    if not skipped:
        return []
    notes = [Note(f"passed over a checkpoint: {reason}", "warning") for reason in skipped]
    return [*notes, Note(f"going on from round {round}", "warning")]


def notes_on_starting_anew(folder: RunFolder) -> list[Note]:
    """What is to be known of a run that goes on without any checkpoint."""
    last = folder.store.last_round()
    if last is None:
        return []
    there = "there is no checkpoint: going on from the start"
    return [Note(f"{there}, and rounds 1 to {last} are played again", "warning")]
