"""Files of a few bytes that somebody named: configurations, keys, certificates, code. In their
place may be a pipe, whose reader waits for ever, a device, which never ends, or gigabytes.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedblocks.core.errors import UserError
from fedblocks.core.special_files import special_kind

MOST_BYTES = 2 * 2**20  # of a text; what Python makes of it takes up to a hundred times


def read_small(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file; OSError or ValueError if it cannot be read, is none, or is too
    large.
    """
    if kind := special_kind(path):  # unopened: a device may do something then
        raise ValueError(f"it is {kind}, not a plain file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode  # what was opened: another thing may be there by now
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "something else"
            raise ValueError(f"it is {kind}, not a plain file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(descriptor)
    refuse_large(content, most)
    return content


def refuse_large(content: bytes, most: int = MOST_BYTES) -> None:
    """Refuse what `read_small` would not read."""
    if len(content) > most:
        size = f"{most // 2**20} MiB" if most >= 2**20 else f"{most} bytes"
        raise ValueError(f"it has more than {size}")


def is_file(path: Path) -> bool:
    """Whether a file is there, as far as this user may know."""
    try:
        return path.is_file()
    except OSError:
        return False


def need_content(path: Path, fix: str, most: int = MOST_BYTES) -> bytes:
    """The content of a file that a command cannot do without."""
    try:
        return read_small(path, most)
    except (OSError, ValueError) as error:
        if isinstance(error, PermissionError):
            fix = f"run this as the user that it belongs to, or {fix}"
        raise UserError(f"cannot read {path}: {cause_of_failure(error)}", fix) from error


def cause_of_failure(error: OSError | ValueError) -> str:
    """Why a file cannot be read, for people: without the number and the name of the file."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
