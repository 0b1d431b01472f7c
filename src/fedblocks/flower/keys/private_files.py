"""Files and folders that are their owner's alone, from the moment that they are made."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedblocks.core.errors import UserError

FOLDER, SECRET, PUBLIC = 0o700, 0o600, 0o644
OTHERS = 0o077  # the bits that let a group, or everybody, in


def private_folder(path: Path) -> Path:
    """A folder that nobody but its owner looks into, made if it is not there."""
    path.mkdir(parents=True, exist_ok=True, mode=FOLDER)
    path.chmod(FOLDER)
    return path


def write_private(path: Path, content: bytes, mode: int = SECRET) -> None:
    """Write a file so that a reader, or a kill, meets the old content or the new; nobody else reads it meanwhile."""
    draft = path.with_name(f".{path.name}.tmp")
    draft.unlink(missing_ok=True)  # what a kill left, whose mode may be another
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & ~OTHERS)
    with open(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    os.replace(draft, path)


def refuse_open(path: Path, fix: str) -> None:
    """A secret that others can read is none: say so before it is used."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", fix) from error
    if mode & OTHERS:
        message = f"others on this machine can read {path} (mode {mode:04o})"
        raise UserError(message, f"chmod 600 {path}; if others have accounts here: {fix}")


def refuse_filled(folder: Path) -> None:
    """A folder in which something lies is somebody's."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there and not empty", "name another folder, or move what lies there away")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time changes what stands in a folder; the system ends the lock with the process."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, SECRET)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
