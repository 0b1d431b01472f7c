"""What a run says of where its nets start, and of layers that got no adapter."""

from __future__ import annotations

from collections.abc import Iterable

from fedblocks.core.lora import LoraNet
from fedblocks.core.net import Net
from fedblocks.engines.net_check.seeding import (
    ANEW,
    ANEW_BASE,
    IGNORES_SEED,
    ignores_seed,
    looks_trained,
    unused_module,
)
from fedblocks.runs.storage.record import Note


def start_notes(nets: Iterable[Net]) -> list[Note]:
    """A warning of a module that no seed changes; of weights that are not used a note, or a warning
    where they seem to be trained, or would be a base, which nobody trains.
    """
    notes: dict[str, Note] = {}
    for net in nets:
        if ignores_seed(net):
            notes[IGNORES_SEED] = Note(IGNORES_SEED, "warning")
        if isinstance(net, LoraNet) and net.left_out:
            names = ", ".join(f'"{path}"' for path in net.left_out)
            text = f'targets = "all" leaves out {names}: other layers have the same tensors'
            notes[text] = Note(text)
        module = unused_module(net)
        if module is not None and net.base:
            notes[ANEW_BASE] = Note(ANEW_BASE, "warning")
        elif module is not None:
            notes[ANEW] = Note(ANEW, "warning" if looks_trained(module) else "info")
    return list(notes.values())
