"""Texts of any origin: a file of a few bytes could be followed by gigabytes."""

from __future__ import annotations

from pathlib import Path

from fedblocks.core.small_files import MOST_BYTES, read_small, refuse_large

__all__ = ["MOST_BYTES", "read_text", "refuse_large"]


def read_text(path: Path) -> str:
    """The text of a file; OSError or ValueError if it cannot be read, or is too large."""
    try:
        return read_small(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
