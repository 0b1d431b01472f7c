"""What a run says of where its nets start."""

from __future__ import annotations

from collections.abc import Iterable

from fedblocks.core.net import Net
from fedblocks.engines.net_check.seeding import (
    ANEW,
    IGNORES_SEED,
    ignores_seed,
    looks_trained,
    unused_module,
)
from fedblocks.runs.storage.record import Note


def start_notes(nets: Iterable[Net]) -> list[Note]:
    """A warning of a module that no seed changes; a note, or a warning where they seem to be
    trained, of weights that are not used.
    """
    notes: dict[str, Note] = {}
    for net in nets:
        if ignores_seed(net):
            notes[IGNORES_SEED] = Note(IGNORES_SEED, "warning")
        module = unused_module(net)
        if module is not None:
            notes[ANEW] = Note(ANEW, "warning" if looks_trained(module) else "info")
    return list(notes.values())
