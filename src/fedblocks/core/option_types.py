"""The types that options have: whether a value is of one, and what to call it."""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_PLURALS = {int: "whole numbers", float: "numbers", bool: "true or false", str: "texts"}
_LONG = 100  # characters of a value that a message has


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


def show(value: Any) -> str:
    """Write a value as a configuration has it, if that can be; a long one is cut."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def in_words(kind: Any) -> str:
    """What may be given where this type is asked for."""
    if kind in _WORDS:
        return _WORDS[kind]
    origin, inner = get_origin(kind), [one for one in get_args(kind) if one is not Ellipsis]
    if origin is Literal:
        return " or ".join(show(word) for word in inner)
    if _is_role(kind):
        name = kind.__name__.lower()
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
    if origin not in (tuple, list, Sequence) or not inner:
        return "a value or a list"
    number = f"{len(inner)} " if origin is tuple and Ellipsis not in get_args(kind) else ""
    return f"a list of {number}{' or '.join(map(_plural, members(inner[0])))}"


def _plural(kind: Any) -> str:
    if _is_role(kind):
        return f"{kind.__name__.lower()}s"
    words = _PLURALS.get(kind, in_words(kind))
    return f"lists of {rest}" if (rest := words.removeprefix("a list of ")) != words else words


def _items_fit(kind: Any, value: Sequence[Any]) -> bool:
    inner = get_args(kind)
    if get_origin(kind) is tuple and Ellipsis not in inner:
        return len(value) == len(inner) and all(map(fits, inner, value))
    return all(fits(inner[0], one) for one in value)


def _is_role(kind: Any) -> bool:
    """Schedules and optimizers: whatever has their functions."""
    return isinstance(kind, type) and getattr(kind, "_is_runtime_protocol", False)
