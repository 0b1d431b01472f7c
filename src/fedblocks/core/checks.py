"""Records and functions that check their own options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from fedblocks.core.errors import NetError, UserError
from fedblocks.core.introspection import Option, options_of
from fedblocks.core.option_types import show
from fedblocks.core.options import Conflict

P = ParamSpec("P")
T = TypeVar("T")


class OptionError(UserError):
    """A wrong option, and what is wrong with it."""

    def __init__(self, message: str, fix: str = "", option: str = "", why: str = "") -> None:
        super().__init__(message, fix)
        self.option, self.why = option, why


class NetOptionError(OptionError, NetError):
    """An option that does not fit the net."""


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
            f"{owner}.{conflict.option} = {show(value)}: {conflict.why}",
            conflict.fix,
            conflict.option,
            conflict.why,
        )


def _check(owner: str, option: Option, value: Any) -> None:
    if problem := option.wrong(value):
        why, fix = problem
        raise OptionError(f"{owner}.{option.name} = {show(value)}: {why}", fix, option.name, why)
