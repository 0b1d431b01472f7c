"""Files and folders that are their owner's alone, from the moment that they are made."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedblocks.core.errors import UserError
from fedblocks.core.full_disks import write_error
from fedblocks.core.small_files import need_content
from fedblocks.core.special_files import special_kind

FOLDER, SECRET, PUBLIC = 0o700, 0o600, 0o644
OTHERS = 0o077  # the bits that let a group, or everybody, in


def private_folder(path: Path) -> Path:
    """Make a folder, if there is none, that only its owner may read."""
    path.mkdir(parents=True, exist_ok=True, mode=FOLDER)
    path.chmod(FOLDER)
    return path


def write_private(path: Path, content: bytes, mode: int = SECRET) -> None:
    """Write a file in one step: a reader, also after a kill, sees the old content or the new."""
    draft = path.with_name(f".{path.name}.tmp")
    draft.unlink(missing_ok=True)  # what a kill left, whose mode may be another
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & ~OTHERS)
    with open(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    os.replace(draft, path)


def open_own(path: Path, flags: int) -> int:
    """Open a file of ours for writing, which is made if it is missing; refuse what is no plain
    file: a named pipe would keep us waiting for a reader.
    """
    if kind := "a folder" if path.is_dir() else special_kind(path):
        raise UserError(f"{path} is {kind}, and a file is to be written there", "move it away")
    try:
        # without waiting: another thing may be there by now
        descriptor = os.open(path, flags | os.O_CREAT | os.O_NONBLOCK, SECRET)
    except OSError as error:
        raise write_error(path, error) from error
    os.set_blocking(descriptor, True)
    return descriptor


def read_secret(path: Path, fix: str) -> bytes:
    """The content of a private key's file; one that other users can read is refused."""
    content = need_content(path, fix)
    refuse_open(path, fix)
    return content


def refuse_open(path: Path, fix: str) -> None:
    """Refuse a secret that other users can read."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", fix) from error
    if mode & OTHERS:
        message = f"others on this machine can read {path} (mode {mode:04o})"
        raise UserError(message, f"chmod 600 {path}; if others have accounts here: {fix}")


def refuse_filled(folder: Path) -> None:
    """Refuse a folder that is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"{folder} is not empty", "name another folder, or move what lies there away"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock while it is changed; the system drops it when the process ends."""
    descriptor = open_own(folder / ".lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def hold_server_folder(folder: Path) -> Iterator[None]:
    """Hold a server's folder for this process, which writes its number there; refuse one that
    another process holds. The system lets it go when the process ends, however it does.
    """
    descriptor = open_own(folder / "server.pid", os.O_RDWR)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            number = os.read(descriptor, 20).decode("ascii", "replace").strip()
            raise UserError(
                f"a server (process {number}) already works in {folder}",
                "stop that one first, or start this one in a folder of its own",
            ) from error
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)
