"""The numbers in which lanes differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from typing import Any

from fedblocks.core.introspection import options_of
from fedblocks.core.method import Method
from fedblocks.core.numbers import numbers_of
from fedblocks.core.option_types import members
from fedblocks.core.schedules import Schedule, at


def differing_numbers(records: Sequence[Any]) -> dict[str, list[float]]:
    """The numbers of records of one structure that are not the same in all: path -> one of each."""
    if not is_dataclass(records[0]):
        return {}
    numbers = [numbers_of(record) for record in records]
    by_path = {path: [own[path] for own in numbers] for path in numbers[0]}
    return {path: own for path, own in by_path.items() if len(set(own)) > 1}


def differing_options(lanes: Sequence[tuple[Method, int]]) -> dict[str, list[float]]:
    """The numbers of methods in their rounds where lanes differ: path of an option -> one of
    each lane.
    """
    differing: dict[str, list[float]] = {}
    rounds = [round for _, round in lanes]
    for name in number_options(type(lanes[0][0])):
        values = [getattr(method, name) for method, _ in lanes]
        if _differ(values) or (callable(values[0]) and len(set(rounds)) > 1):
            differing[name] = [
                at(value, round) for value, round in zip(values, rounds, strict=True)
            ]
    optimizers = differing_numbers([method.optimizer for method, _ in lanes])
    return differing | {f"optimizer.{path}": own for path, own in optimizers.items()}


def number_options(kind: type[Method]) -> list[str]:
    """The options of a method that may be numbers, or schedules of numbers."""
    return [name for name, option in options_of(kind).items() if float in members(option.kind)]


def is_number(value: Any) -> bool:
    """Whether a value of such an option is one: not, for example, nothing."""
    return isinstance(value, int | float | Schedule) and not isinstance(value, bool)


def kept_beside(method: Method) -> list[str]:
    """What a method keeps besides its options and what is cached: it may be made from an option,
    and would be the first lane's for all.
    """
    known = {*options_of(type(method)), *_cached(type(method))}
    return [name for name in vars(method) if name not in known]


def read_once(method: Method) -> dict[str, list[str]]:
    """Options that something cached is made from, and what that is: it is made once for a method,
    so clients cannot have options of their own there.
    """
    used: dict[str, list[str]] = {}
    for name in _cached(type(method)):
        for option in _options_read(method, name):
            used.setdefault(option, []).append(name)
    return used


def _cached(kind: type[Method]) -> Iterator[str]:
    for part in kind.__mro__:
        yield from (name for name, own in vars(part).items() if isinstance(own, cached_property))


def _options_read(method: Method, name: str) -> set[str]:
    """The options that a cached property reads, itself or through others."""
    options, read = set(options_of(type(method))) - {"net"}, set()

    class Observed(type(method)):  # type: ignore[misc]
        def __getattribute__(self, attribute: str) -> Any:
            if attribute in options:
                read.add(attribute)
            return super().__getattribute__(attribute)

    observed = object.__new__(Observed)
    for option in (*options, "net"):
        object.__setattr__(observed, option, getattr(method, option))
    getattr(observed, name)
    return read


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values[1:])
