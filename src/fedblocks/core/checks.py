"""Options as annotations describe them, and whether a value is right; records and
functions that check themselves.
"""

from __future__ import annotations

import inspect
import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, cached_property, wraps
from numbers import Integral, Real
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from fedblocks.core.errors import NetError, UserError, nearest
from fedblocks.core.options import Conflict, Help, Length, Limit

REQUIRED = inspect.Parameter.empty

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_LONG = 100  # characters of a value that a message has
_PLURALS = {int: "whole numbers", float: "numbers", bool: "true or false", str: "texts"}

P = ParamSpec("P")
T = TypeVar("T")


class OptionError(UserError):
    """A wrong option, and what is wrong with it."""

    def __init__(self, message: str, fix: str = "", option: str = "", why: str = "") -> None:
        super().__init__(message, fix)
        self.option, self.why = option, why


class NetOptionError(OptionError, NetError):
    """An option that does not fit the net."""


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
            dict.fromkeys(_in_words(one) for one in members(self.kind) if one is not type(None))
        )

    @property
    def _range(self) -> str:
        return " and ".join(limit.words for limit in self.limits)

    def wrong(self, value: Any) -> tuple[str, str] | None:
        """Why a value is not right, and what to give instead; None if it is right."""
        why = self._why_not(value)
        if why is None:
            return None
        if self.choices and isinstance(value, str):
            return why, nearest(value, map(str, self.choices))
        usual = next(
            (
                f", e.g. {mark.usual}"
                for mark in self.marks
                if isinstance(mark, Help) and mark.usual
            ),
            "",
        )
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


def members(kind: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def fits(kind: Any, value: Any) -> bool:
    """Whether a value is of a type; of types that are not plain, other code says what it takes."""
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind in (bool, str):
        return isinstance(value, kind)
    if kind in (None, type(None)):
        return value is None
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(one, value) for one in inner)
    if origin is Literal:
        return any(value == word and type(value) is type(word) for word in inner)
    if origin in (tuple, list, Sequence):
        return isinstance(value, list | tuple) and _items_fit(kind, value)
    if _is_role(kind):
        return isinstance(value, kind) and not isinstance(value, type)
    return True


def shown(value: Any) -> str:
    """A value as a configuration has it, if that can be; a long one is cut."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


class Checked:
    """A frozen dataclass whose options are checked when it is made, whatever
    `__post_init__` a subclass has.
    """

    def __init_subclass__(cls, **others: Any) -> None:
        super().__init_subclass__(**others)
        own = cls.__dict__.get("__post_init__")
        if own is not None:
            setattr(cls, "__post_init__", _after_the_checks(own))  # noqa: B010 - mypy knows it as a method

    def __post_init__(self) -> None:
        _check_record(self)

    def conflicts(self) -> list[Conflict]:
        """Options that do not go together, or not with the net; asked when each alone is right."""
        return []


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """A function that refuses wrong values of the options that its signature describes."""
    signature = inspect.signature(function)

    @wraps(function)
    def careful(*args: P.args, **named: P.kwargs) -> T:
        known = {name: option for name, option in options_of(function).items() if option.marks}
        for name, value in signature.bind(*args, **named).arguments.items():
            if name in known:
                _check(function.__name__, known[name], value)
        return function(*args, **named)

    return careful


def _after_the_checks(own: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(own)
    def both(self: Any) -> None:
        _check_record(self)
        own(self)

    return both


def _check_record(record: Checked) -> None:
    owner = type(record).__name__
    for name, option in options_of(type(record)).items():
        _check(owner, option, getattr(record, name))
    for conflict in record.conflicts():
        value = getattr(record, conflict.option)
        error = NetOptionError if conflict.with_net else OptionError
        raise error(
            f"{owner}.{conflict.option} = {shown(value)}: {conflict.why}",
            conflict.fix,
            conflict.option,
            conflict.why,
        )


def _check(owner: str, option: Option, value: Any) -> None:
    if problem := option.wrong(value):
        why, fix = problem
        raise OptionError(f"{owner}.{option.name} = {shown(value)}: {why}", fix, option.name, why)


def _numbers(value: Any) -> list[Any]:
    """The numbers that limits hold for: of a schedule, its values at the rounds where
    it turns, or its first.
    """
    if isinstance(value, list | tuple):
        return [number for one in value for number in _numbers(one)]
    if callable(value):
        return [float(value(round)) for round in getattr(value, "turns", (0,))]
    return [value] if isinstance(value, Real) and not isinstance(value, bool) else []


def _items_fit(kind: Any, value: Sequence[Any]) -> bool:
    inner = get_args(kind)
    if get_origin(kind) is tuple and Ellipsis not in inner:
        return len(value) == len(inner) and all(map(fits, inner, value))
    return all(fits(inner[0], one) for one in value)


def _in_words(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    origin, inner = get_origin(kind), [one for one in get_args(kind) if one is not Ellipsis]
    if origin is Literal:
        return " or ".join(shown(word) for word in inner)
    if _is_role(kind):
        name = kind.__name__.lower()
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
    if origin not in (tuple, list, Sequence) or not inner:
        return "a value or a list"
    if inner[0] not in _PLURALS:
        return f"a list of {_in_words(inner[0])}"
    number = f"{len(inner)} " if origin is tuple and Ellipsis not in get_args(kind) else ""
    return f"a list of {number}{_PLURALS[inner[0]]}"


def _is_role(kind: Any) -> bool:
    """Schedules and optimizers: whatever has their functions."""
    return isinstance(kind, type) and getattr(kind, "_is_runtime_protocol", False)


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
