"""Records and functions that check their own options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

from fedblocks.core.errors import NetError, UserError
from fedblocks.core.introspection import Option, options_of
from fedblocks.core.option_names import hint_for
from fedblocks.core.option_types import members, show
from fedblocks.core.options import NET, Conflict

P = ParamSpec("P")
_OBJECTS = {  # what to give where a text or a class stands instead of an object
    "Optimizer": "an optimizer, such as fedblocks.Adam() or fedblocks.SGD(momentum=0.9)",
    "Schedule": "a number, or a schedule such as fedblocks.Exponential(0.1, 0.01)",
}
T = TypeVar("T")


class OptionError(UserError):
    """A wrong option, and what is wrong with it."""

    def __init__(self, message: str, fix: str = "", option: str = "", why: str = "") -> None:
        super().__init__(message, fix)
        self.option, self.why = option, why


class NetOptionError(OptionError, NetError):
    """An option that does not fit the net."""


class UnknownOption(OptionError, TypeError):
    """An option that something does not have; a TypeError, as Python has it."""


class _OwnSignature:
    """The signature of a class's own `__init__`, which `__new__` would hide."""

    def __get__(self, record: object, owner: type) -> inspect.Signature:
        own = inspect.signature(owner.__init__)  # type: ignore[misc]
        return own.replace(parameters=list(own.parameters.values())[1:])


class Checked:
    """A frozen dataclass whose options are checked when it is made, whatever
    `__post_init__` a subclass has.
    """

    __signature__ = _OwnSignature()

    def __new__(cls, *args: Any, **named: Any) -> Self:
        known = options_of(cls)
        unknown = next((name for name in named if name not in known), None)
        if unknown is not None:
            shown = [name for name in known if name != "net"]
            fix = hint_for(unknown, shown, cls.__name__)
            raise UnknownOption(f'{cls.__name__} has no option "{unknown}"', fix, unknown)
        return super().__new__(cls)

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
        # a net has no short form
        own = "" if conflict.option == NET else f" = {show(getattr(record, conflict.option))}"
        error = NetOptionError if conflict.with_net else OptionError
        raise error(
            f"{owner}.{conflict.option}{own}: {conflict.why}",
            conflict.fix,
            conflict.option,
            conflict.why,
        )


def _check(owner: str, option: Option, value: Any) -> None:
    if problem := option.wrong(value):
        why, fix = problem
        examples = [text for kind, text in _OBJECTS.items() if _asks_for(option, kind)]
        fix = f"give {examples[0]}" if examples and isinstance(value, str | type) else fix
        raise OptionError(f"{owner}.{option.name} = {show(value)}: {why}", fix, option.name, why)


def _asks_for(option: Option, kind: str) -> bool:
    return any(getattr(one, "__name__", "") == kind for one in members(option.kind))
