"""The numbers of a record, such as an optimizer or a method: read, and put in their place where
the clients of a stack have numbers of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any, TypeVar

Record = TypeVar("Record")


def numbers_of(record: Any) -> dict[str, float]:
    """Every fraction in a record by its path: `momentum`, `betas.0`, `base.momentum`."""
    numbers: dict[str, float] = {}
    for name, value in _entries(record):
        if isinstance(value, float):
            numbers[name] = value
        elif _is_nested(value):
            numbers |= {f"{name}.{path}": number for path, number in numbers_of(value).items()}
    return numbers


def structure_of(record: Any) -> Any:
    """All of a record but its numbers."""
    if isinstance(record, float):
        return float
    if not _is_nested(record):
        return record
    return type(record), [(name, structure_of(value)) for name, value in _entries(record)]


def with_numbers(record: Record, numbers: Mapping[str, Any]) -> Record:
    """The same record with other numbers at some paths. They are not checked: a tensor
    may have one for each client.
    """
    own: Any = list(record) if isinstance(record, tuple) else copy.copy(record)
    for path, number in numbers.items():
        name, _, rest = path.partition(".")
        if isinstance(record, tuple):
            own[int(name)] = number
        else:
            value = with_numbers(getattr(own, name), {rest: number}) if rest else number
            object.__setattr__(own, name, value)  # records are frozen, and this one is new
    return type(record)(own) if isinstance(record, tuple) else own


def holds_values(function: Callable[..., Any]) -> bool:
    """Whether a function may hold values from where it was made, as a lambda or a partial can."""
    if not isinstance(function, FunctionType):
        return True
    return bool(function.__closure__ or function.__defaults__ or function.__kwdefaults__)


def _entries(record: Any) -> list[tuple[str, Any]]:
    if isinstance(record, tuple):
        return [(str(place), value) for place, value in enumerate(record)]
    return [(field.name, getattr(record, field.name)) for field in fields(record)]


def _is_nested(value: Any) -> bool:
    return isinstance(value, tuple) or (is_dataclass(value) and not isinstance(value, type))
