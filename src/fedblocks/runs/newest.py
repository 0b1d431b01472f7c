"""The models that a run has now: those of its newest checkpoint that can be read."""

from __future__ import annotations

from pathlib import Path

from fedblocks.core.state import State
from fedblocks.runs.progress import warn_of
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.record import Note
from fedblocks.runs.storage.states import state_of


def newest_state(checkpoints: Path) -> State:
    """What a run had learned at its last checkpoint, on the CPU; newer ones that cannot be read
    are warned of.
    """
    loaded = checkpoint.load(checkpoints)
    for reason in loaded.skipped:
        text = f"passed over a checkpoint: {reason}; these are the models of round {loaded.round}"
        warn_of(Note(text, "warning"))
    return state_of(loaded, "cpu")
