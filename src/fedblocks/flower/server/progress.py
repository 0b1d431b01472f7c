"""The server's progress on disk, from which it goes on after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedblocks.core.errors import CheckpointError
from fedblocks.flower.server.side import Progress, ServerSide
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.states import shared_tree, state_of


def save(folder: Path, progress: Progress) -> None:
    """Store what the server keeps after a round; the last two rounds stay."""
    kept = {str(client): rounds for client, rounds in progress.kept.items()}
    checkpoint.save(
        folder, progress.state.round, {**shared_tree(progress.state), "kept": kept}, {}, None
    )


class Stored(NamedTuple):
    """The progress that is gone on from, and why newer ones are not."""

    progress: Progress
    skipped: Sequence[str]


def load(folder: Path, side: ServerSide, recorded: int | None = None) -> Stored:
    """Read the progress that was stored last, of a round on record where those are known; without
    one, return the start.
    """
    start = side.start()
    if not checkpoint.has_checkpoints(folder):
        return Stored(start, [])
    loaded = checkpoint.load(folder, recorded)
    state = state_of(loaded, side.device)
    if state.server.keys() != start.state.server.keys():
        fix = "use the version of the program, and of the method, that started the run"
        raise CheckpointError(
            f"the checkpoint of round {loaded.round} holds other blocks than the method has", fix
        )
    kept = {int(client): rounds for client, rounds in loaded.shared["kept"].items()}
    return Stored(Progress(state, kept), loaded.skipped)
