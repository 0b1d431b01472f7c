"""What a command needs, asked before torch is imported, which takes seconds: packages of an extra,
and a folder that is there.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fedblocks.core.errors import RunFolderError, UserError


def require_packages(what: str, extra: str, *packages: str, otherwise: str = "") -> None:
    """Refuse to go on without the packages of an extra."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        fix = f'pip install "fedblocks[{extra}]"{otherwise}'
        raise UserError(f"{what} needs the package {missing[0]}", fix)


def require_folder(path: Path) -> None:
    """Refuse the path of a run, or of several, that is not a folder."""
    if not path.is_dir():
        wrong = "is not a folder" if path.exists() else "does not exist"
        fix = "name a folder that `fedblocks run --out FOLDER` made"
        raise RunFolderError(f"{path} {wrong}", fix)


def require_for_watching() -> None:
    """Refuse to show a live page without the packages that serve it and draw it."""
    what, otherwise = "watching in a browser", ", or use --terminal"
    require_packages(what, "dashboard", "starlette", "uvicorn", otherwise=otherwise)
    require_packages(what, "report", "plotly", otherwise=otherwise)
