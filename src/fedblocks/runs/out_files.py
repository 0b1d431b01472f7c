"""Files that results are written to."""

from __future__ import annotations

from pathlib import Path

from fedblocks.core.errors import UserError


def check_out_folder(path: Path) -> None:
    """Refuse a file in a folder that does not exist."""
    if not path.parent.is_dir():
        raise UserError(
            f"cannot write {path}: there is no folder {path.parent}", "make it, or name another"
        )
