"""Whether a folder that is watched is still the one that it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedblocks.core.errors import RunFolderError

Inode = tuple[int, int]


@dataclass(frozen=True)
class Place:
    """A folder, and what tells it from others of its name."""

    path: Path
    inode: Inode | None

    @staticmethod
    def of(path: Path) -> Place:
        """A folder as it is now."""
        return Place(path, _inode_of(path))

    def refuse_moved(self) -> None:
        """Say that the folder is gone, which is not what somebody who watches it asked for."""
        now = _inode_of(self.path)
        if self.inode is not None and now != self.inode:
            what = "moved or deleted" if now is None else "replaced by another folder"
            fix = "watch it where it is now, or move it back: its run ends in the next round"
            raise RunFolderError(f"{self.path} was {what} while it was watched", fix)


def _inode_of(path: Path) -> Inode | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino
