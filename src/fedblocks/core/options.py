"""What an option may be, said where it stands: `branches: Annotated[int, AtLeast(1), Help("of every
layer")] = 3`.

A limit holds for a number, for each number of a list, and for every value of a schedule.
`fedblocks.core.introspection` reads these marks for the checks of values, for configurations, the
JSON Schema and the documentation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Help:
    """What an option is, in a line, and values that are usual."""

    about: str
    usual: str = ""  # e.g. "2 to 10"


@dataclass(frozen=True)
class Limit:
    """What a number must be."""

    bound: float
    word: ClassVar[str]
    keyword: ClassVar[str]  # in JSON Schema
    compare: ClassVar[Callable[[float, float], bool]]

    @property
    def words(self) -> str:
        return f"{self.word} {self.bound:g}"

    def holds(self, number: float) -> bool:
        return type(self).compare(number, self.bound)


class AtLeast(Limit):
    word, keyword, compare = "at least", "minimum", operator.ge


class AtMost(Limit):
    word, keyword, compare = "at most", "maximum", operator.le


class Above(Limit):
    word, keyword, compare = "above", "exclusiveMinimum", operator.gt


class Below(Limit):
    word, keyword, compare = "below", "exclusiveMaximum", operator.lt


@dataclass(frozen=True)
class Positive(Above):
    """Above 0."""

    bound: float = 0


@dataclass(frozen=True)
class AnyNumber:
    """Every finite number will do: said, so that a missing limit is not an oversight."""


@dataclass(frozen=True)
class Length:
    """How many items a list has."""

    least: int
    most: int | None = None

    @property
    def words(self) -> str:
        if self.most is None:
            return f"at least {self.least} {'item' if self.least == 1 else 'items'}"
        return f"{self.least} to {self.most} items"

    def holds(self, count: int) -> bool:
        return self.least <= count and (self.most is None or count <= self.most)


NET = "net"  # in the place of an option: the net itself is not one for the method


@dataclass(frozen=True)
class Conflict:
    """An option that does not go with the others, or with the net."""

    option: str  # or NET
    why: str  # goes on after `Method.option = value: `
    fix: str
    with_net: bool = False  # another net may be right
