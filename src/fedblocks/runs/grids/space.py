"""What a search looks through: ranges of numbers and choices, as they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedblocks.core.errors import UserError

_RANGE = re.compile(r"(?P<low>[^.:]*(?:\.\d[^.:]*)?)\.\.(?P<high>[^:]+?)(?P<log>:log)?")


@dataclass(frozen=True)
class Range:
    """Numbers to search in: `0.01..1:log`, or whole ones: `2..8`."""

    low: float
    high: float
    log: bool

    def suggest(self, trial: Any, name: str) -> float:
        """A number for one trial, short enough to be written down."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return int(trial.suggest_int(name, self.low, self.high, log=self.log))
        number = float(f"{trial.suggest_float(name, self.low, self.high, log=self.log):.4g}")
        return min(max(number, self.low), self.high)

    @property
    def examples(self) -> list[str]:
        """Both ends, as they are written."""
        return [repr(self.low), repr(self.high)]


@dataclass(frozen=True)
class OneOf:
    """Values to choose from: `1|3|5`."""

    values: tuple[str, ...]  # as they are written

    def suggest(self, trial: Any, name: str) -> str:
        """One of them for one trial."""
        return str(trial.suggest_categorical(name, self.values))

    @property
    def examples(self) -> list[str]:
        """All of them."""
        return list(self.values)


Space = Mapping[str, Range | OneOf]


def parse_space(changes: Sequence[str]) -> tuple[dict[str, Range | OneOf], list[str]]:
    """What is searched for, and the changes that are the same for all trials."""
    space: dict[str, Range | OneOf] = {}
    fixed: list[str] = []
    for text in changes:
        name, _, value = text.partition("=")
        match = _RANGE.fullmatch(value.strip())
        if match is not None:
            space[name.strip()] = _range(text, match)
        elif "|" in value:
            space[name.strip()] = OneOf(tuple(part.strip() for part in value.split("|")))
        else:
            fixed.append(text)
    if not space:
        raise UserError(
            "nothing to search for",
            "give a range or a choice: --set method.lr=0.01..1:log --set net.hidden='[32]|[64]'",
        )
    return space, fixed


def _range(text: str, match: re.Match[str]) -> Range:
    try:
        low, high = (
            int(n) if re.fullmatch(r"[+-]?\d+", n) else float(n)
            for n in (match["low"], match["high"])
        )
    except ValueError as error:
        raise UserError(
            f"--set {text}: a range has two numbers", "write for example method.lr=0.01..1:log"
        ) from error
    if not low < high or (match["log"] and low <= 0):
        fix = "write the smaller number first, and with :log both above 0"
        raise UserError(f"--set {text}: there is nothing between {low} and {high}", fix)
    return Range(low, high, bool(match["log"]))
