"""Where the values of a configuration were written: a TOML file, `--set` on the command
line, or Python.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedblocks.config.texts import read_text
from fedblocks.config.toml import fix_of_mistake, parse_toml, place_of_mistake
from fedblocks.core.errors import UserError
from fedblocks.core.small_files import cause_of_failure

Key = tuple[str, ...]

_WORD = re.compile(r"[A-Za-z_][\w.:-]*")
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_KEYS = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*\[{{1,2}}\s*({_KEYS})\s*\]{{1,2}}")
_ENTRY = re.compile(rf"\s*({_KEYS})\s*=")


@dataclass(frozen=True)
class Source:
    """A name to show, and the text if there is one."""

    name: str = "config"  # a file's name, or what else to call it
    text: str = ""
    # keys that were set on the command line
    changed: frozenset[Key] = field(default_factory=frozenset)

    def place(self, path: Key) -> str:
        """`file.toml:12` of a key or of the table around it, or `--set a.b`."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.changed:
                return f"--set {'.'.join(path[:end])}"
        line = self.line(path)
        return f"{self.name}:{line}" if line else self.name

    def label(self, path: Key, value: str = "") -> str:
        """Where a key stands, its name, and its value where that is what is wrong; what was set on
        the command line is named once.
        """
        place, name = self.place(path), ".".join(path)
        equals = f" = {value}" if value else ""
        if not name or place == f"--set {name}":
            return f"{place}{equals}"
        return f"{place}: {name}{equals}"

    def line(self, path: Key) -> int | None:
        """The line of a key; where the key is not written, that of the table that
        should have it.
        """
        lines = self._lines()
        places = [path[:end] for end in range(len(path), 0, -1)]
        return next((lines[place] for place in places if place in lines), None)

    def order(self, path: Key) -> tuple[int, Key]:
        """Problems are told from the top of the file to its end."""
        return self.line(path) or 0, path

    def _lines(self) -> dict[Key, int]:
        lines: dict[Key, int] = {}
        table: Key = ()
        for number, line in enumerate(self.text.splitlines(), 1):
            if header := _HEADER.match(line):
                table = _keys(header[1])
                lines.setdefault(table, number)
            elif entry := _ENTRY.match(line):
                path = (*table, *_keys(entry[1]))
                for end in range(1, len(path) + 1):
                    lines.setdefault(path[:end], number)
        return lines


def _keys(text: str) -> Key:
    return tuple(part.strip("\"'") for part in re.findall(_PART, text))


def read_toml(path: Path) -> tuple[dict[str, Any], Source]:
    """The tables of a TOML file, and where they came from."""
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        reason = cause_of_failure(error)
        raise UserError(f"cannot read {path}: {reason}", "name a TOML file or a preset") from error
    try:
        return parse_toml(text), Source(str(path), text)
    except tomllib.TOMLDecodeError as error:
        place, fix = place_of_mistake(path, error), fix_of_mistake(error)
        raise UserError(f"{place}: this is not TOML: {error}", fix) from error


def parse_change(text: str) -> tuple[Key, Any]:
    """`method.branches=4` -> (("method", "branches"), 4); the value is TOML, a single
    word may go without quotes.
    """
    name, equals, value = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not equals or not all(path):
        raise UserError(
            f"--set {text}: this is not NAME=VALUE", "write for example --set method.branches=4"
        )
    try:
        return path, parse_toml(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError as error:
        if _WORD.fullmatch(value.strip()):
            return path, value.strip()
        fix = (
            'write numbers as 4 or 0.5, lists as [1, 2], text as "text", and quote the whole '
            "for the shell"
        )
        raise UserError(f"--set {text}: {value!r} is not a TOML value", fix) from error


def with_value(table: Any, path: Key, value: Any, done: Key = ()) -> dict[str, Any]:
    """A copy of a table with one value replaced, at any depth."""
    if not isinstance(table, dict):
        above = ".".join(done)
        raise UserError(
            f"--set {'.'.join((*done, *path))}: {above} is a value, not a table",
            f"set {above} itself",
        )
    first, *rest = path
    new = with_value(table.get(first, {}), tuple(rest), value, (*done, first)) if rest else value
    return {**table, first: new}
