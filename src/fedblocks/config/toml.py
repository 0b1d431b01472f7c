"""TOML of any origin: what Python itself cannot hold is told as a mistake in the file."""

from __future__ import annotations

import tomllib
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
