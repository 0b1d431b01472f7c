"""TOML of any origin: what Python itself cannot hold is told as a mistake in the file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

MOST_DEPTH = 50  # tables and lists within each other
LARGEST = 2**63  # numbers below it have a place everywhere


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text, or TOMLDecodeError, whatever is wrong with it."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise tomllib.TOMLDecodeError("it is nested too deeply") from None
    except ValueError as error:  # Python's own limit on digits
        raise tomllib.TOMLDecodeError(f"a number cannot be read: {error}") from None
    _refuse_extremes(table)
    return table


def place_of_mistake(path: Path, error: tomllib.TOMLDecodeError) -> str:
    """The file with the line in which it is not TOML, where that is known."""
    line = re.search(r"at line (\d+)", str(error))
    return f"{path}:{line[1]}" if line else str(path)


def fix_of_mistake(error: tomllib.TOMLDecodeError) -> str:
    """What to write instead."""
    reason = str(error)
    if "overwrite" in reason or "twice" in reason:
        return "write each key and each table once"
    if any(words in reason for words in ("declaration", "key part", "statement", "after a key")):
        return "write tables as [name], and in them lines as name = value"
    return "quote text, and write true and false small"


def _refuse_extremes(table: dict[str, Any]) -> None:
    level: list[Any] = [table]
    for _ in range(MOST_DEPTH):
        if any(isinstance(value, int) and abs(value) >= LARGEST for value in level):
            raise tomllib.TOMLDecodeError("a whole number has more than 63 bits")
        tables = [value for value in level if isinstance(value, dict | list)]
        level = [
            child
            for value in tables
            for child in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise tomllib.TOMLDecodeError(f"it is nested more than {MOST_DEPTH} deep")
