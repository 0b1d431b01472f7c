"""Errors of the disk in words: what could not be written, how much room there is, what to do."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedblocks.core.errors import RunFolderError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
LITTLE = 2**20  # bytes that are free on a disk on which nothing can be relied on to be written


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk says while something is written into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> RunFolderError:
    """Return the error for a file or folder that could not be written."""
    fix = "make it writable"
    if error.errno in FULL:
        fix = "free space on that disk, then do it again: what was stored before is unharmed"
    return RunFolderError(f"cannot write {path}: {reason_of(error, path)}", fix)


def reason_of(error: OSError, path: Path) -> str:
    """What the disk says, and how much is free where it is full."""
    reason = error.strerror or str(error)
    return f"{reason} ({free_on(path)})" if error.errno in FULL else reason


def is_full(path: Path) -> bool:
    """Whether there is next to no room on the disk of a path."""
    free = _free(path)
    return free is not None and free < LITTLE


def free_on(path: Path) -> str:
    """Such as `0.1 MB are free`; a quota may leave less."""
    free = _free(path)
    return "what is free is not known" if free is None else f"{free / 1e6:.1f} MB are free"


def _free(path: Path) -> int | None:
    for place in (path, *path.absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return None
