"""What the other side wrote, made safe to print, to log and to store."""

from __future__ import annotations

LOGGED = 2000  # characters of a line in a log


def readable(text: str, most: int = 300) -> str:
    """Return a text on one line without control characters, and not too long."""
    return "".join(c if c.isprintable() else " " for c in text[:most])
