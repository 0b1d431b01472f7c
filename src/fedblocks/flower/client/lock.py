"""One process for a client's folder: whoever comes second is refused, and writes nothing there."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedblocks.core.errors import UserError
from fedblocks.flower.keys.private_files import open_own

IN_USE = 3  # the exit code of a process that comes second


class InUseError(UserError):
    """Another process works for a client's folder."""

    def __init__(self, folder: Path) -> None:
        fix = "end that one first, or use another folder"
        super().__init__(f"another process already works for {folder}", fix)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that no other process answers for the same clients."""
    lock = open_own(folder / ".lock", os.O_RDWR)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InUseError(folder) from error
        yield
    finally:
        os.close(lock)


def refuse_held(folder: Path) -> None:
    """Refuse a folder for which a process works already."""
    with alone(folder):
        pass
