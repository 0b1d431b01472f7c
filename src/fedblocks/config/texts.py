"""Texts of any origin: a file of a few bytes could be followed by gigabytes."""

from __future__ import annotations

from pathlib import Path

from fedblocks.core.special_files import special_kind

MOST_BYTES = 2 * 2**20  # of a configuration; what Python makes of it takes up to a hundred times


def read_text(path: Path) -> str:
    """The text of a file; OSError or ValueError if it cannot be read, or is too large."""
    if kind := special_kind(path):  # a pipe would keep its reader waiting
        raise ValueError(f"it is {kind}, not a plain file")
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    refuse_large(content)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error


def refuse_large(content: bytes) -> None:
    """Refuse what `read_text` would not read."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES // 2**20} MiB")
