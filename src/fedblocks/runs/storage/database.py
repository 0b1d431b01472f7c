"""How the SQLite file of a run is opened, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedblocks.core.errors import RunFolderError
from fedblocks.core.full_disks import FULL, free_on, is_full

# a plain error: a query of ours met other tables than those that we make
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
RESTORE = (
    "restore the file from a copy, or start the run again in a new folder: without its "
    "record it cannot go on"
)


WAIT = 30.0  # seconds, for another process that writes or tidies up


def connect(path: Path) -> sqlite3.Connection:
    """A connection to an existing file; one that only reads where the folder cannot be written."""
    mode = "rw"
    if not os.access(path.parent, os.W_OK):
        # WAL wants side files
        mode = "ro" if path.with_name(path.name + "-wal").exists() else "ro&immutable=1"
    db = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=WAIT, isolation_level=None
    )
    db.execute("PRAGMA synchronous = FULL")  # on the disk before the checkpoint of the round is
    db.execute("PRAGMA foreign_keys = ON")
    return db


def fold(db: sqlite3.Connection) -> None:
    """Move what was committed from the side file into the record itself: SQLite drops what stands
    in a damaged side file without a word. Where somebody reads, the next commit's turn will do.
    """
    db.execute("PRAGMA busy_timeout = 0")
    try:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        db.execute(f"PRAGMA busy_timeout = {WAIT * 1000:.0f}")


@contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the disk into errors that say what to do."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise  # a mistake of the program, not of the disk
    except UnicodeDecodeError as error:
        raise RunFolderError(f"the record {path} is damaged: {error}", RESTORE) from error
    except (sqlite3.DatabaseError, OSError) as error:
        # the lowest byte is the kind of error
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE:
            raise RunFolderError(f"the record {path} is damaged: {error}", RESTORE) from error
        fix = "check that the disk has space and the folder can be written, then resume"
        reason = f"{error} ({free_on(path)})" if _means_full(error, path) else str(error)
        raise RunFolderError(f"cannot use the record {path}: {reason}", fix) from error


def _means_full(error: Exception, path: Path) -> bool:
    """Whether there is no room: SQLite calls it an error of the disk, too, in its side files."""
    is_full_now = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    return is_full_now or getattr(error, "errno", None) in FULL or is_full(path)
