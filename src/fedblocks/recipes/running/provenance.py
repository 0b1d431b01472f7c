"""Which code made a number: the version, and the commit if the package lies in a checkout. Nothing is executed."""

from __future__ import annotations

import os
import re
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

COMMIT = "FEDBLOCKS_COMMIT"  # environment variable: the commit of a copy that has no .git
ROOT = Path(__file__).resolve().parents[3]  # of src/fedblocks/recipes, if the package lies in a checkout
_NAME = re.compile(r"[0-9a-f]{40}")


@cache
def code_version() -> str:
    """The version of fedblocks, and after a plus sign the first 12 digits of the commit where it is known."""
    name = commit()
    return f"{_version()}+{name[:12]}" if name else _version()


def _version() -> str:
    """Of the package, or of the checkout that it is imported from without being installed."""
    try:
        return metadata.version("fedblocks")
    except metadata.PackageNotFoundError:
        pass
    try:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return str(project["version"]) if project["name"] == "fedblocks" else "unknown"
    except (OSError, ValueError, KeyError):
        return "unknown"


def commit(root: Path = ROOT) -> str | None:
    """The commit that the package's own checkout stands at, or what the environment says."""
    named = os.environ.get(COMMIT, "").strip().lower()
    if re.fullmatch(r"[0-9a-f]{7,40}", named):
        return named
    try:
        return _head(root)
    except (OSError, ValueError):
        return None


def _head(root: Path) -> str | None:
    """What HEAD names, read as text: git itself would obey settings of whoever made the checkout."""
    if not (root / "src" / "fedblocks" / "__init__.py").is_file():
        return None
    git = root / ".git"
    if git.is_file():  # a further work tree says where its folder is
        git = root / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return head if _NAME.fullmatch(head) else None
    shared = git / "commondir"
    home = git / shared.read_text(encoding="utf-8").strip() if shared.is_file() else git
    return _reference(home, head.removeprefix("ref:").strip())


def _reference(home: Path, name: str) -> str | None:
    if not re.fullmatch(r"refs/[\w./-]+", name) or ".." in name:
        return None
    if (home / name).is_file():
        text = (home / name).read_text(encoding="utf-8").strip()
        return text if _NAME.fullmatch(text) else None
    for line in (home / "packed-refs").read_text(encoding="utf-8").splitlines():
        commit, _, packed = line.partition(" ")
        if packed == name and _NAME.fullmatch(commit):
            return commit
    return None
