"""Relative paths in a table `[data]`: they start at a folder, wherever a process was started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# words in the name of an option whose value is a place on the disk
PLACES = {"path", "paths", "file", "files", "filename", "folder", "dir", "directory"}


def start_paths_at(folder: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of data whose relative paths start at a folder."""
    options = data.get("options")
    if not isinstance(options, Mapping):
        return dict(data)
    placed = {
        name: _start_at(folder.resolve(), value)
        for name, value in options.items()
        if not PLACES.isdisjoint(name.lower().split("_"))
    }
    return {**data, "options": {**options, **placed}}


def _start_at(folder: Path, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_start_at(folder, one) for one in value]
    return str(folder / value) if isinstance(value, str) else value
