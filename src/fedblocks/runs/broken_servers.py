"""A warning where a method's own `conclude` leaves the server without numbers: all clients would
start from NaN, and no learning rate helps.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedblocks.core.blocks import server_name
from fedblocks.core.hooks import is_own
from fedblocks.core.method import Method
from fedblocks.core.parts import Params
from fedblocks.core.state import State
from fedblocks.runs.storage.record import Note

GIVES_NAN = ".conclude gives NaN in block"  # by which the record is searched for the note


def notes_of_broken_servers(
    methods: Mapping[str, Method], before: State, after: State
) -> list[Note]:
    """A warning for each block that had numbers before the round and has NaN after it.

    What clients send is finite, or refused: in the blocks of somebody's method with a `conclude`
    of its own it comes from there.
    """
    notes = []
    for method in methods.values():
        if not is_own(method) or type(method).conclude is Method.conclude:
            continue
        for name, block in method.blocks().items():
            slots = server_name(name, block)
            if slots in after.server and _breaks(before.server[slots], after.server[slots]):
                where = f'{type(method).__name__}{GIVES_NAN} "{name}"'
                notes.append(Note(f"{where} in round {after.round}: correct it there", "warning"))
    return notes


def _breaks(before: Params, after: Params) -> bool:
    return holds_nan(after) and not holds_nan(before)


def holds_nan(slots: Params) -> bool:
    """Whether any of some tensors has a NaN."""
    return any(bool(value.isnan().any()) for value in slots.values())
