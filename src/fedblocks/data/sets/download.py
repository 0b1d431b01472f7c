"""Fetch official files, only when somebody asks for it; nothing is overwritten, and
nothing half-fetched is left.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from fedblocks.core.errors import DataError
from fedblocks.data.sets.files import CHUNK, File, FileSet, roots, verify_file, wanted


def download(files: FileSet, form: str | None = None) -> list[Path]:
    """Fetch the first source that the official site offers as whole files (or that of a
    form); files there are kept.
    """
    offered = [s for s in files.sources if all(f.url for f in s.files) and form in (None, s.form)]
    if not offered:
        raise DataError(f'"{files.folder}" cannot be fetched automatically', wanted(files))
    return [fetch(file, roots()[0] / files.folder, files.home) for file in offered[0].files]


def fetch(file: File, folder: Path, home: str) -> Path:
    """One file: into a temporary neighbour, checked, renamed."""
    target = folder / file.name
    if target.exists():
        verify_file(target, file, home)
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=folder)
    except OSError as error:
        raise DataError(
            f"cannot write to {folder}: {error.strerror}", "choose a folder that is writable"
        ) from error
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            copy(file.url, out.fileno(), home)
        check_fetched(unfinished, file, home)
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def check_fetched(path: Path, file: File, home: str) -> None:
    """Refuse what is not the official file; it is removed and was never under its name."""
    try:
        verify_file(path, file, home)
    except DataError as error:
        message = f"{file.url} did not give the official {file.name}: {error.message}"
        raise DataError(
            message, f"nothing was kept; try again, or get the file by hand; see {home}"
        ) from error


def copy(url: str, out: int, home: str) -> None:
    """All bytes behind an address; a connection that breaks is an error."""
    import urllib.request  # slow to import, and seldom needed
    from http.client import HTTPException

    try:
        with (
            urllib.request.urlopen(url, timeout=60) as stream,
            open(out, "wb", closefd=False) as target,
        ):
            shutil.copyfileobj(stream, target, CHUNK)
            expected, received = stream.headers.get("Content-Length"), target.tell()
    except (OSError, HTTPException, ValueError) as error:
        raise DataError(
            f"cannot fetch {url}: {error}", f"try again, or get the file by hand; see {home}"
        ) from error
    if expected is not None and int(expected) != received:
        raise DataError(f"{url} broke off after {received} of {expected} bytes", "try again")
