"""Nothing is read or written through a link: one in a stranger's run folder could lead to any
file of the user's, and a pipe would keep its reader waiting.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from fedblocks.core.errors import RunFolderError


def refuse_links(folder: Path, names: Collection[str] | None = None) -> None:
    """Refuse a folder with symbolic links in it; of names that are given, those links and
    whatever else is no plain file, at any depth.
    """
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if names is None and entry.is_symlink():
            raise refusal(folder / entry.name, folder)
        if names is not None and entry.name in names:
            _refuse_strange(entry, folder)


def _refuse_strange(entry: os.DirEntry[str], run: Path) -> None:
    if entry.is_symlink():
        raise refusal(Path(entry.path), run)
    if not entry.is_dir(follow_symlinks=False):
        if not entry.is_file(follow_symlinks=False):
            fix = "remove it, and bring the file back from a copy of the run"
            raise RunFolderError(f"{entry.path} is not a file", fix)
        return
    with suppress(FileNotFoundError):  # a checkpoint that is just being replaced
        for inner in sorted(os.scandir(entry.path), key=lambda inner: inner.name):
            _refuse_strange(inner, run)


def refusal(link: Path, run: Path) -> RunFolderError:
    """Return the error for a link where a file or folder of a run should be."""
    fix = f"if you trust what it leads to, copy the run without links: cp -RL {run} NEW_FOLDER"
    return RunFolderError(
        f"{link} is a link; files of a run are never read or written through links", fix
    )


def open_for_locking(path: Path) -> int:
    """Open a plain file, which is made if it is missing, and return its descriptor."""
    if path.is_symlink():
        raise refusal(path, path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunFolderError(f"{path} is not a file", "remove it")
    return descriptor


def write_new(path: Path, text: str) -> None:
    """Write a file that is new, whatever stood in its place."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
