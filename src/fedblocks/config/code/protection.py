"""Keeps runs safe from code that a command reads: a script may begin by removing the very folder
that the command is about to go on with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from fedblocks.core.errors import RunFolderError

_MARKS = ("config.toml", "run.sqlite")  # both are in the folder of every run
# what Python calls the removals that it announces, and where the path stands among its arguments
_REMOVALS = {"shutil.rmtree": 0, "os.remove": 0, "os.rmdir": 0, "os.rename": 0, "shutil.move": 0}


class _Protection:
    """Whether code is being read."""

    active = False


@contextmanager
def protected_runs(source: str) -> Iterator[None]:
    """Code that runs in here can remove no run."""
    _watch_removals()
    _Protection.active = True
    try:
        yield
    except _Removal as error:
        folder = error.args[0]
        raise RunFolderError(
            f"--code {source} would remove {folder}, which holds a run; nothing was removed",
            "everything in the file but its first call of run or compare is done when it is read: "
            "take the line that removes the folder out, or go on in Python with fedblocks.resume",
        ) from error
    finally:
        _Protection.active = False


class _Removal(BaseException):
    """Ends the reading of a file; no handler of the file's own should catch it."""


@cache
def _watch_removals() -> None:
    """Once for a process: Python has no way to take a hook out again."""
    sys.addaudithook(_refuse_removal)


def _refuse_removal(event: str, arguments: tuple[Any, ...]) -> None:
    if not _Protection.active or event not in _REMOVALS:
        return
    path = arguments[_REMOVALS[event]]
    if isinstance(path, str | bytes | os.PathLike):
        _Protection.active = False  # looking must not be watched
        folder = _run_at(Path(os.fsdecode(path)))
        _Protection.active = True
        if folder is not None:
            raise _Removal(folder)


def _run_at(path: Path) -> Path | None:
    """A run that is in this folder, or that this file is a part of."""
    inside = (mark.parent for mark in path.rglob(_MARKS[0])) if path.is_dir() else iter(())
    folders = (*inside, path, *path.parents)
    return next((folder for folder in folders if _is_run(folder)), None)


def _is_run(folder: Path) -> bool:
    return all((folder / mark).is_file() for mark in _MARKS)
