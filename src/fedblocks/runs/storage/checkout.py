"""The commit of a git checkout, read as text: git itself would execute what a
stranger's settings name.
"""

from __future__ import annotations

import re
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")  # SHA-1 or SHA-256
_BRANCH = re.compile(r"refs/[\w./-]+")
MOST_BYTES = 2**26  # of a file that is read; the packed names of a very large repository


def commit_around(folder: Path) -> str | None:
    """Return the commit of the checkout that a folder lies in, if it lies in one."""
    root = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    return None if root is None else commit_at(root)


def commit_at(root: Path) -> str | None:
    """Return the commit that a checkout stands at; None where `root` has none, or one
    that cannot be read.
    """
    try:
        git = root / ".git"
        if git.is_file():  # a further work tree says where its folder is
            git = root / _read(git).removeprefix("gitdir:").strip()
        head = _read(git / "HEAD").strip()
        if not head.startswith("ref:"):
            return head if _COMMIT.fullmatch(head) else None
        shared = git / "commondir"
        home = git / _read(shared).strip() if shared.is_file() else git
        return _commit_of_branch(home, head.removeprefix("ref:").strip())
    except (OSError, ValueError):
        return None


def _commit_of_branch(home: Path, branch: str) -> str | None:
    if not _BRANCH.fullmatch(branch) or ".." in branch:
        return None
    if (home / branch).is_file():
        name = _read(home / branch).strip()
        return name if _COMMIT.fullmatch(name) else None
    for line in _read(home / "packed-refs").splitlines():
        name, _, packed = line.partition(" ")
        if packed == branch and _COMMIT.fullmatch(name):
            return name
    return None


def _read(path: Path) -> str:
    """Read a plain file; a pipe would keep the reader waiting, and a huge file would
    fill the memory.
    """
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        raise OSError(f"{path} is not a file that git writes")
    return path.read_text(encoding="utf-8")
