"""Options as annotations describe them, and whether a value is right."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, cached_property
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from fedblocks.core.errors import nearest
from fedblocks.core.option_types import fits, in_words, members
from fedblocks.core.options import Help, Length, Limit

REQUIRED = inspect.Parameter.empty
LONG_RUN = 1_000_000  # rounds


@dataclass(frozen=True)
class Option:
    """One thing that can be chosen."""

    name: str
    kind: Any  # its type
    marks: tuple[Any, ...]  # what its annotation says besides
    default: Any  # None: nothing; REQUIRED: there is none

    @property
    def about(self) -> str:
        """What it is, in a line."""
        return next((mark.about for mark in self.marks if isinstance(mark, Help)), "")

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        return tuple(mark for mark in self.marks if isinstance(mark, Limit))

    @property
    def length(self) -> Length | None:
        return next((mark for mark in self.marks if isinstance(mark, Length)), None)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The words that it may be, where they are listed."""
        return tuple(
            word
            for kind in members(self.kind)
            if get_origin(kind) is Literal
            for word in get_args(kind)
        )

    @property
    def is_numeric(self) -> bool:
        """Whether it is a number, or numbers, so that limits mean something."""
        return any(
            kind in (int, float) for one in members(self.kind) for kind in (one, *get_args(one))
        )

    @property
    def words(self) -> str:
        """What may be given, for people."""
        length = f" of {self.length.words}" if self.length else ""
        return self._kind + length + (f", {self._range}" if self.limits else "")

    @property
    def _kind(self) -> str:
        return " or ".join(
            dict.fromkeys(in_words(one) for one in members(self.kind) if one is not type(None))
        )

    @property
    def _usual(self) -> str:
        return next(
            (mark.usual for mark in self.marks if isinstance(mark, Help) and mark.usual), ""
        )

    @property
    def _range(self) -> str:
        return " and ".join(limit.words for limit in self.limits)

    def wrong(self, value: Any) -> tuple[str, str] | None:
        """Why a value is not right, and what to give instead; None if it is right."""
        why = self._why_not(value)
        if why is None:
            return None
        if self.choices and isinstance(value, str) and not self.is_numeric:
            return why, nearest(value, map(str, self.choices))
        usual = f", e.g. {self._usual}" if self._usual else ""
        return why, f"give {self.words}{usual}" + (f" ({self.about})" if self.about else "")

    def _why_not(self, value: Any) -> str | None:
        if not fits(self.kind, value):
            return f"must be {self._kind}"
        if self.length and isinstance(value, list | tuple) and not self.length.holds(len(value)):
            return f"must have {self.length.words}"
        numbers = _numbers(value) if self.is_numeric else []
        if not all(isinstance(number, Integral) or math.isfinite(number) for number in numbers):
            return "must be finite"
        if not all(limit.holds(number) for limit in self.limits for number in numbers):
            always = " in every round" if callable(value) else ""
            return f"must be {self._range}{always}"
        return None


def options_of(target: Any) -> Mapping[str, Option]:
    """The fields of a dataclass, or the parameters of a function."""
    return _read(target)


@cache
def _read(target: Any) -> Mapping[str, Option]:
    hints = _hints(target)
    if is_dataclass(target):
        defaults = {f.name: _default_of(f) for f in fields(target) if f.init}
    else:
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        defaults = {
            p.name: p.default
            for p in inspect.signature(target).parameters.values()
            if p.kind not in variable
        }
    return {
        name: Option(name, *_split(hints.get(name, Any)), default)
        for name, default in defaults.items()
    }


def _numbers(value: Any) -> list[Any]:
    """The numbers that limits hold for: of a schedule, its values at the rounds where
    it turns, or its first.
    """
    if isinstance(value, list | tuple):
        return [number for one in value for number in _numbers(one)]
    if callable(value):
        # of a long run, if it goes over the whole of one: a short one may have no room for it
        schedule = value.over(LONG_RUN) if getattr(value, "is_open", False) else value
        return [float(schedule(round)) for round in getattr(schedule, "turns", (0,))]
    return [value] if isinstance(value, Real) and not isinstance(value, bool) else []


def _split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type and its marks."""
    return (hint.__origin__, hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())


def _default_of(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return REQUIRED if field.default is MISSING else field.default


def _hints(target: Any) -> dict[str, Any]:
    """Types by name; one that cannot be looked up at run time, as inside a function, is
    anything.
    """
    try:
        return get_type_hints(target, include_extras=True)
    except NameError:
        parts = reversed(target.__mro__) if isinstance(target, type) else (target,)
        return {
            name: _hint(part, text)
            for part in parts
            for name, text in inspect.get_annotations(part).items()
        }


def _hint(part: Any, text: Any) -> Any:
    alone = type("alone", (), {"__annotations__": {"it": text}, "__module__": part.__module__})
    try:
        return get_type_hints(alone, include_extras=True)["it"]
    except NameError:
        return Any
