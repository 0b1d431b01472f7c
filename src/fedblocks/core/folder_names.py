"""Names that people choose and that become folders or files."""

from __future__ import annotations

from typing import Any

from fedblocks.core.errors import UserError

LONGEST = 200  # bytes; a file system takes 255, and a name gets a number at its end


def check_folder_name(name: Any, what: str) -> str:
    """The name, if it can be that of one folder, and of none elsewhere."""
    if isinstance(name, str) and name.isprintable() and name == name.strip():
        is_short = 0 < len(name.encode()) <= LONGEST
        if is_short and not name.startswith(".") and not {*name} & {*'/\\:*?"<>|'}:
            return name
    shown = repr(name) if len(repr(name)) <= 60 else f"{repr(name)[:57]}..."
    raise UserError(
        f"{shown} cannot be the name of {what}: it becomes a folder",
        f'use a word of at most {LONGEST} bytes without / \\ : * ? " < > |, not beginning with '
        "a dot, such as fedavg-2",
    )
