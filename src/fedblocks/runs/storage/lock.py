"""The lock of a run folder: which process writes the run, and the last round that it recorded."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from fedblocks.core.errors import RunFolderError
from fedblocks.runs.storage.environment import alive, start_time
from fedblocks.runs.storage.links import open_for_locking

LOCK = "run.lock"
MOST = 100  # bytes that are read
ORPHANS = 10.0  # seconds to wait for processes of a writer that is gone


def take_lock(path: Path) -> int:
    """The descriptor of the locked file; the system drops the lock when the process
    ends, however it ends.
    """
    try:
        lock = open_for_locking(path / LOCK)
    except OSError as error:
        raise RunFolderError(
            f"cannot write the run folder {path}: {error.strerror}",
            "make it writable, or copy the run elsewhere",
        ) from error
    if not _locked(lock, path):
        os.close(lock)
        writer = writer_of(path)
        raise RunFolderError(
            f"{path} is being written by "
            f"{'another process' if writer is None else f'process {writer}'}",
            "wait until it ends or stop it, then resume",
        )
    os.truncate(lock, 0)
    os.pwrite(lock, _text(), 0)
    return lock


def _locked(lock: int, path: Path) -> bool:
    """Whether the file is locked now. Processes that a dead writer has forked hold its lock until
    they notice that it is gone, and are waited for.
    """
    until = time.monotonic() + ORPHANS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if writer_of(path) is not None or time.monotonic() >= until:
                return False
            time.sleep(0.02)
        else:
            return True


def note_round(lock: int, round: int) -> None:
    """Note the last round that was recorded, for whoever finds a record without it."""
    os.pwrite(lock, _text(round), 0)


def writer_of(path: Path) -> int | None:
    """The process that writes the run, if it is alive; one with the same id that
    started later is another.
    """
    pid, start, _ = _read(path)
    return pid if pid and alive(pid) and start_time(pid) == start else None


def noted_round(path: Path) -> int:
    """The last round that the writer recorded, as it noted itself; 0: it has closed the record,
    or has noted none.
    """
    return _read(path)[2]


def _text(*rounds: int) -> bytes:
    words = (os.getpid(), start_time(os.getpid()) or "-", *rounds)
    return (" ".join(map(str, words)) + "\n").encode()


def _read(path: Path) -> tuple[int, str, int]:
    """Process, its start, and the round that it noted; zeros where the file says nothing."""
    if not (path / LOCK).is_file():  # a pipe would keep its reader waiting
        return 0, "", 0
    try:
        with (path / LOCK).open("rb") as file:
            words = file.read(MOST).decode("ascii").partition("\n")[0].split(" ")
        pid, start = int(words[0]), words[1].replace("-", "")
        return pid, start, int(words[2]) if len(words) > 2 else 0
    except (OSError, ValueError, IndexError):
        return 0, "", 0
