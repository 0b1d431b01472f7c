"""Which code made a number: the version, and the commit if the package lies in a
checkout. Nothing is executed.
"""

from __future__ import annotations

import os
import re
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

from fedblocks.runs.storage.checkout import commit_at

COMMIT = "FEDBLOCKS_COMMIT"  # environment variable: the commit of a copy that has no .git
# of the checkout, if the package lies in one: ROOT/src/fedblocks/recipes/running/provenance.py
ROOT = Path(__file__).resolve().parents[4]


@cache
def code_version() -> str:
    """The version of fedblocks, and after a plus sign the first 12 digits of the commit
    where it is known.
    """
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
    """Return the commit that the package's own checkout stands at, or the one that the
    environment names.
    """
    named = os.environ.get(COMMIT, "").strip().lower()
    if re.fullmatch(r"[0-9a-f]{7,40}", named):
        return named
    is_ours = (root / "src" / "fedblocks" / "__init__.py").is_file()
    return commit_at(root) if is_ours else None
