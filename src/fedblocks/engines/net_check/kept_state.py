"""Numbers that code keeps outside what engines know: in global names, classes, closures, default
arguments and attributes of functions. What is deeper, in files and clocks, or kept by the code of
installed packages, is not found.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from itertools import count
from logging import Logger
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

_PLAIN = (bool, int, float, str)
_CONTAINERS = (list, dict, set, deque)
_INSTALLED = ("site-packages", "dist-packages")  # folders of code that is nobody's own
_SHOWN = 50  # members of a container that are compared
State = Mapping[str, Hashable]  # what is kept where, in words
Seen = set[FunctionType]  # functions that were looked at already


def state_around(code: nn.Module | Callable[..., Any]) -> State:
    """What a module's or a function's code keeps beside its arguments."""
    seen: Seen = set()
    if not isinstance(code, nn.Module):
        return dict(_of_callable(code, seen))
    state: dict[str, Hashable] = {}
    for kind in dict.fromkeys(type(part) for part in code.modules()):
        state |= _of_class(kind, seen)
    return state


def changed_state(before: State, after: State) -> str:
    """The first thing that is another now; empty: nothing."""
    return next((name for name, value in after.items() if before.get(name) != value), "")


def _of_callable(code: Any, seen: Seen) -> Iterator[tuple[str, Hashable]]:
    while isinstance(code, partial):
        code = code.func
    if isinstance(code, MethodType):
        yield from _attributes(code.__self__, "its attribute")
        code = code.__func__
    if isinstance(code, FunctionType):
        yield from _of_function(code, seen)
        yield from _attributes(code, "its attribute")
    elif not isinstance(code, type):
        yield from _attributes(code, "its attribute")
        yield from _of_class(type(code), seen).items()


def _of_class(kind: type, seen: Seen) -> dict[str, Hashable]:
    """The attributes of a class and of those above it, and what their functions keep."""
    state: dict[str, Hashable] = {}
    for one in kind.__mro__:
        functions = [value for value in vars(one).values() if isinstance(value, FunctionType)]
        if not any(map(is_own, functions)):
            continue
        for name, value in vars(one).items():
            if isinstance(value, FunctionType):
                state |= _of_function(value, seen)
            elif not name.startswith("__") and (print_ := _print(value)) is not None:
                state[f'the class attribute "{one.__name__}.{name}"'] = print_
    return state


def _of_function(function: FunctionType, seen: Seen) -> Iterator[tuple[str, Hashable]]:
    """And of the functions that it calls by their names."""
    if function in seen or not is_own(function):
        return
    seen.add(function)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    enclosed = {name: cell.cell_contents for name, cell in cells if is_filled(cell)}
    names = {name: function.__globals__.get(name) for name in _names(function.__code__)}
    defaults = {**(function.__kwdefaults__ or {})}
    defaults |= {str(place): value for place, value in enumerate(function.__defaults__ or ())}
    for what, values in (("", names), ("", enclosed), ("a default argument of ", defaults)):
        for name, value in values.items():
            place = f'{what}"{function.__name__ if what else name}"'
            if (print_ := _print(value)) is not None:
                yield (f"{place} ({name})" if what else place), print_
                continue
            if not isinstance(value, Logger):  # it remembers which levels it shows
                yield from _attributes(value, f"{place}, attribute")
            if isinstance(value, FunctionType):
                yield from _of_function(value, seen)


def is_own(function: FunctionType) -> bool:
    """Whether a function is somebody's own, not of Python, of a package, or ours."""
    place = function.__code__.co_filename
    of_python = str(Path(os.__file__).parent), "<frozen"
    is_library = place.startswith(of_python) or any(folder in place for folder in _INSTALLED)
    return not is_library and not str(function.__module__).startswith("fedblocks.")


def _names(code: CodeType) -> set[str]:
    """The names that a function and those in it look up."""
    inner = (_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)


def _attributes(value: Any, what: str) -> Iterator[tuple[str, Hashable]]:
    """The plain ones of an object; modules and classes are looked at elsewhere."""
    if isinstance(value, type | ModuleType | Tensor):
        return
    for name, own in getattr(value, "__dict__", {}).items():
        if not name.startswith("__") and (print_ := _print(own)) is not None:
            yield f'{what} "{name}"', print_


def _print(value: Any) -> Hashable:
    """Something by which a value is known again; None: it is not looked at."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, count):
        return repr(value)
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.size <= _SHOWN else None
    if isinstance(value, _CONTAINERS):
        items = value.items() if isinstance(value, dict) else value
        plain = [repr(one) for _, one in zip(range(_SHOWN), items) if _is_plain(one)]
        return len(value), tuple(plain)
    return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, _PLAIN)


def is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asked for, not used
    except ValueError:
        return False
    return True
