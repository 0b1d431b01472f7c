"""What is written down when a package is loaded: defaults, limits, constants, one line each.

A number that changes by accident changes results without a word; here it has to be changed twice.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Annotated, Any, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import pytest
import torch
from pydantic import BaseModel

from fedblocks.core.options import Help

HERE = Path(__file__).parent
LONG = 60  # characters of a text that are noted: words are no numbers
MOST = 300  # characters of a line; of more, a fingerprint
FLAGS = {"init": True, "repr": True, "compare": True, "kw_only": False}  # as they mostly are
PARAMETERS = ("frozen", "eq", "order")
NOT_LOADED = ("__main__", "mapped_convolution", "mapped_pooling")  # the last two need a GPU
NOT_NOTED = ("__", "_is_", "_abc")  # what Python itself adds
ATOMS = (bool, int, float, complex, bytes, type(None), slice, torch.dtype, range)


def written(value: Any) -> str | None:
    """A value as text that is the same on every machine; None: it has no such text."""
    if isinstance(value, ATOMS):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= LONG else f"{value[:LONG]}...")
    if isinstance(value, Mapping | set | frozenset | tuple | list):
        return _of_many(value)
    if isinstance(value, Help):
        return f"usually {value.usual}" if value.usual else ""
    if isinstance(value, re.Pattern):
        return f"pattern {value.pattern!r} {value.flags}"
    if is_dataclass(value) and not isinstance(value, type):
        pairs = (f"{f.name}={written(getattr(value, f.name, None))}" for f in fields(value))
        return type(value).__name__ + _joined("()", pairs)
    name = getattr(value, "__qualname__", "")
    return name if isinstance(value, type | FunctionType) and "<" not in name else None


def _of_many(value: Any) -> str | None:
    if isinstance(value, Mapping):
        if any(callable(one) for one in value.values()):
            return None  # tests may have added to it
        return _joined("{}", (f"{written(key)}: {written(one)}" for key, one in value.items()))
    if isinstance(value, set | frozenset):
        return _joined("{}", sorted(str(written(one)) for one in value))
    return _joined("[]", (str(written(one)) for one in value))


def _joined(brackets: str, parts: Any) -> str:
    return f"{brackets[0]}{', '.join(parts)}{brackets[1]}"


def is_number(text: str | None) -> bool:
    """Whether there is a number in it, or a choice of two."""
    return re.search(r"\d|True|False", text or "") is not None


def noted_of(package: str) -> Iterator[str]:
    """The lines of a package and of all that lies in it."""
    seen: set[str] = set()  # a constant that other modules import is noted once
    for module in _modules(package):
        own = module.__name__.removeprefix("fedblocks.")
        for name, value in vars(module).items():
            if name.startswith("__") or isinstance(value, ModuleType):
                continue
            if isinstance(value, type | FunctionType):
                if value.__module__ == module.__name__:
                    yield from _of_class_or_function(f"{own}.{name}", value)
            elif name.isupper() and not isinstance(value, WeakKeyDictionary):  # what a run keeps
                lines = {line for line in _of_constant(name, value) if line not in seen}
                seen |= lines
                yield from (f"{own}.{line}" for line in lines)


def _of_constant(name: str, value: Any) -> Iterator[str]:
    """A line; of a table of named things a line each, for users and tests may add to it."""
    things = isinstance(value, Mapping) and any(is_dataclass(one) for one in value.values())
    for key, one in value.items() if things else [("", value)]:
        if is_number(text := written(one)) and not isinstance(one, type | FunctionType):
            yield f"{name}[{key}] = {text}" if things else f"{name} = {text}"


def _modules(package: str) -> Iterator[ModuleType]:
    root = importlib.import_module(package)
    yield root
    for module in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not module.name.endswith(NOT_LOADED):
            yield importlib.import_module(module.name)


def _of_class_or_function(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, FunctionType):
        yield from _of_function(name, value)
        return
    if is_dataclass(value):
        flags = (f for f in PARAMETERS if getattr(value.__dataclass_params__, f))
        yield f"{name}: dataclass {' '.join(flags)}"
        own = (f for f in fields(value) if f.name in value.__annotations__)
        noted = ((f.name, _of_field(f)) for f in own)
        yield from (f"{name}.{key}: {text}" for key, text in noted if text)
    if issubclass(value, BaseModel):
        yield f"{name}: {sorted(value.model_config.items())}"
        for key, one in value.model_fields.items():
            yield f"{name}.{key}: {one.metadata} = {one.default!r}"
    yield from _marks(name, value)
    for key, one in vars(value).items():
        if not key.startswith(NOT_NOTED) or (key == "__init__" and not is_dataclass(value)):
            yield from _of_attribute(value, name, key, one)


def _of_attribute(owner: type, name: str, key: str, value: Any) -> Iterator[str]:
    function = getattr(value, "__func__", getattr(value, "fget", value))
    if isinstance(function, FunctionType):
        if function.__module__ == owner.__module__:
            yield from _of_function(f"{name}.{key}", function)
    elif key not in getattr(owner, "__dataclass_fields__", ()) and is_number(written(value)):
        yield f"{name}.{key} = {written(value)}"


def _of_function(name: str, function: FunctionType) -> Iterator[str]:
    """Defaults and limits; nothing where all has to be given."""
    parameters = inspect.signature(function).parameters.values()
    chosen = {p.name: written(p.default) for p in parameters if p.default is not p.empty}
    if is_number(str(chosen)):
        yield f"{name}({', '.join(f'{key}={text}' for key, text in chosen.items())})"
    yield from _marks(name, function)


def _of_field(one: Field[Any]) -> str:
    """Its default, what makes it, and what it is left out of."""
    default = "" if one.default is MISSING else f"= {written(one.default)} "
    maker = "" if one.default_factory is MISSING else f"made by {_maker(one.default_factory)} "
    unusual = (
        f"{flag}={not usual}" for flag, usual in FLAGS.items() if getattr(one, flag) != usual
    )
    return f"{default}{maker}{' '.join(unusual)}"


def _maker(factory: Any) -> str:
    """Plain values are noted; a text may be drawn by lot."""
    if factory.__name__ != "<lambda>":
        return str(factory.__name__)
    value = factory()
    return (not isinstance(value, str) and written(value)) or "a function"


def _marks(name: str, value: Any) -> Iterator[str]:
    """Limits and usual values, as annotations have them."""
    try:
        hints = get_type_hints(value, include_extras=True)
    except (NameError, TypeError, AttributeError):  # names that are imported for type checkers only
        return
    own = getattr(value, "__annotations__", {})
    for key, hint in hints.items():
        if key in own and get_origin(hint) is Annotated:
            texts = [text for mark in get_args(hint)[1:] if (text := written(mark))]
            if is_number("".join(texts)):
                yield f"{name} {key}: {', '.join(texts)}"


def _brief(line: str) -> str:
    mark = sha256(line.encode()).hexdigest()[:12]
    return line.strip() if len(line) <= MOST else f"{line[:LONG]}... {mark}"


def check_noted(package: str) -> None:
    """Whether a package has the numbers that are noted beside its tests."""
    actual = sorted(_brief(line) for line in noted_of(f"fedblocks.{package}"))
    path = HERE / package / "numbers.txt"
    if not path.exists():
        path.write_text("\n".join(actual) + "\n")
        pytest.fail(f"{path.name} was written: say in the changelog what has changed")
    noted = path.read_text().splitlines()
    gone, new = sorted({*noted} - {*actual}), sorted({*actual} - {*noted})
    new = [line for line in new if "[" not in line.partition(" ")[0]]
    how = f"if that is meant, delete tests/{package}/numbers.txt, run this twice, and commit it"
    assert not gone and not new, f"gone: {gone}, new: {new}; {how}"
