"""Pipes, sockets and devices in the place of files: a reader would wait for ever, or never end."""

from __future__ import annotations

import stat
from pathlib import Path

from fedblocks.core.errors import DataError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def special_kind(path: str | Path) -> str:
    """Return what is at a path if it is neither a file nor a folder; empty if it is one, or if
    nothing is there.
    """
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return ""
    return _KINDS.get(stat.S_IFMT(mode), "")


def missing_file(path: str | Path) -> DataError:
    """The error for a path at which nothing is."""
    fix = "check the path"
    if not Path(path).is_absolute():
        here = f"{fix}: it is looked for from the current folder, {Path.cwd()}"
        fix = f"{here}. Go to the folder that it starts from, or write the whole path"
    return DataError(f"{path} does not exist", fix)


def refuse_special(path: str | Path) -> None:
    """Refuse to open what is neither a file nor a folder, and a folder that holds such a thing."""
    inside = Path(path).rglob("*") if Path(path).is_dir() else ()
    for one in (path, *inside):
        if kind := special_kind(one):
            raise DataError(
                f"{one} is {kind}, not a file", "put a file in its place, or name another"
            )
