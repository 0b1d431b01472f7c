"""The server's progress on disk, from which it goes on after a crash."""

from __future__ import annotations

from pathlib import Path

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


def load(folder: Path, side: ServerSide) -> Progress:
    """Read the progress that was stored last; without one, return the start."""
    start = side.start()
    if not folder.is_dir() or not any(folder.glob("round-*")):
        return start
    loaded = checkpoint.load(folder)
    state = state_of(loaded, side.device)
    if state.server.keys() != start.state.server.keys():
        fix = "use the version of the program, and of the method, that started the run"
        raise CheckpointError(
            f"the checkpoint of round {loaded.round} holds other blocks than the method has", fix
        )
    return Progress(
        state, {int(client): rounds for client, rounds in loaded.shared["kept"].items()}
    )
