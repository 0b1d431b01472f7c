"""The models that a run has now: those of its newest checkpoint that can be read, or those of the
round that did best on validation data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fedblocks.core.errors import CheckpointError, UserError
from fedblocks.core.state import State
from fedblocks.runs.progress import warn_of
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import Note
from fedblocks.runs.storage.states import state_of

Which = Literal["last", "best"]  # checkpoint: the newest, or the best by validation


def stored_state(folder: RunFolder, which: Which = "last") -> State:
    """What a run had learned at one of its checkpoints, on the CPU."""
    if which not in ("last", "best"):
        raise UserError(f"there is no checkpoint {which!r}", 'choose "last" or "best"')
    return newest_state(folder.checkpoints) if which == "last" else best_state(folder)


def newest_state(checkpoints: Path) -> State:
    """What a run had learned at its last checkpoint, on the CPU; newer ones that cannot be read
    are warned of.
    """
    loaded = checkpoint.load(checkpoints)
    for reason in loaded.skipped:
        text = f"passed over a checkpoint: {reason}; these are the models of round {loaded.round}"
        warn_of(Note(text, "warning"))
    return state_of(loaded, "cpu")


def best_state(folder: RunFolder) -> State:
    """The same after the round that did best on validation data, whose checkpoint is kept where it
    has one; test data never choose it.
    """
    best = folder.store.best_round()
    if best is None:
        message = f"{folder.path} was not evaluated on validation data, by which the best is chosen"
        raise UserError(message, 'add "validation" to evaluation.parts, or take the last models')
    try:
        return state_of(checkpoint.load_of_round(folder.checkpoints, best), "cpu")
    except CheckpointError as error:
        fix = "store every evaluated round (checkpoint.every = evaluation.every), or take the last"
        message = f"there are no models of round {best}, the best by validation: {error.message}"
        raise CheckpointError(message, f"{fix} models") from error
