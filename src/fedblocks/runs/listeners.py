"""Functions that a run tells what happens: whether they can be called, before it begins."""

from __future__ import annotations

from typing import Any

from fedblocks.core.errors import UserError, a_kind
from fedblocks.core.own_code import own_name, takes


def check_listeners(**listeners: Any) -> None:
    """Refuse a listener that is no function of one argument."""
    for role, listener in listeners.items():
        if listener is not None and not (callable(listener) and takes(listener, 1)):
            what = own_name(listener) if callable(listener) else a_kind(listener)
            example = "note" if role == "on_note" else "done"
            raise UserError(
                f"{role}: {what} is no function of one argument",
                f"write def listener({example}): ...",
            )
