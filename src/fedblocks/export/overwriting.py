"""Files that are there already are replaced only where that was asked for, and never
what was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedblocks.core.errors import UserError


def refuse_overwriting(path: Path, inputs: Sequence[Path], force: bool) -> None:
    """Refuse to write over a file that exists, unless forced, and over an input in any case; the
    files of an input folder count as well.
    """
    if not (path.exists() or path.is_symlink()):
        return
    where = path.resolve()
    if any(where == own.resolve() or own.resolve() in where.parents for own in inputs):
        raise UserError(f"{path} belongs to what is read", "choose another file")
    if path.is_dir():
        raise UserError(f"{path} is a folder", "name a file in it")
    if not force:
        raise UserError(f"{path} exists already", "choose another file, or add --force")
