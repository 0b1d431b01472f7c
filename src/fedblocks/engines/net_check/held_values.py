"""Every value that can be reached from the attributes of a module's parts and is no parameter,
buffer or layer of it: no client owns such values, and no run stores them.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from datetime import date, timedelta
from enum import Enum
from functools import partial
from hashlib import blake2b
from itertools import count
from numbers import Number
from pathlib import Path
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedblocks.core.own_code import is_library
from fedblocks.engines.net_check.kept_state import is_filled, is_own

_INTERNAL = {name for name in vars(nn.Module()) if not name.endswith("hooks")}
_SHOWS_ITSELF = (
    *(type(None), Number, np.generic, str, bytes, bytearray, Enum, date, timedelta, count),
    *(torch.dtype, torch.device),
)
Held = Mapping[str, Hashable]  # path -> something by which the value there is known again


def held_values(module: nn.Module) -> Held:
    """What a module's parts hold now, by its path: `layer.h['steps'][0]`."""
    registered = (*module.modules(), *module.parameters(), *module.buffers())
    seen = {id(one) for one in registered}
    waiting = [
        (f"{path}.{name}".lstrip("."), value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in _INTERNAL
    ]
    held: dict[str, Hashable] = {}
    waiting.reverse()  # the first is taken from the end
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, _SHOWS_ITSELF):
            held[place] = type(value).__name__, repr(value)
        elif id(value) not in seen:
            seen.add(id(value))
            if (print_ := _print(value)) is not None:
                held[place] = print_
            waiting += [(f"{place}{where}", one) for where, one in _inside(value)][::-1]
    return held


def _print(value: Any) -> Hashable:
    """Something by which a value is known again, without what is inside it; None: nothing."""
    if isinstance(value, Tensor):
        return _print_of_tensor(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return str(value.dtype), value.shape, _digest(value.tobytes())
    if isinstance(value, list | tuple | deque):
        return len(value)
    if isinstance(value, set | frozenset):  # in no order
        return len(value), frozenset(repr(one) for one in value if _is_plain(one))
    if isinstance(value, torch.Generator):
        return _print_of_tensor(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state(legacy=False))
    return repr(value.getstate()) if isinstance(value, random.Random) else None


def _print_of_tensor(value: Tensor) -> Hashable:
    try:
        numbers = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        content = _digest(numbers.flatten().view(torch.uint8).numpy().tobytes())
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, or without a storage
        return None
    return str(value.dtype), tuple(value.shape), content


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value is made of, and where in it that is."""
    if isinstance(value, dict):
        for number, (key, item) in enumerate(value.items()):
            yield (f"[{key!r}]" if _is_plain(key) else f"[key {number}]"), item
    elif isinstance(value, list | tuple | deque):
        yield from ((f"[{number}]", one) for number, one in enumerate(value))
    elif isinstance(value, np.ndarray) and value.dtype == object:
        yield from ((f".flat[{number}]", one) for number, one in enumerate(value.flat))
    elif isinstance(value, partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, FunctionType) and is_own(value):
        yield from _around(value)
    if isinstance(value, nn.Module | SimpleNamespace) or _is_of_own_class(value):
        yield from ((f".{name}", one) for name, one in _attributes(value).items())


def _around(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function has in its closure, its default arguments and its attributes."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    yield from ((f" ({name})", cell.cell_contents) for name, cell in cells if is_filled(cell))
    yield " (defaults)", function.__defaults__ or ()
    yield " (defaults)", function.__kwdefaults__ or {}
    yield from ((f".{name}", one) for name, one in vars(function).items())


def _attributes(value: Any) -> dict[str, Any]:
    names: list[str] = []
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    names = [name for name in names if hasattr(value, name)]
    return {name: getattr(value, name) for name in names if not name.startswith("__")} | {
        **getattr(value, "__dict__", {})
    }


def _is_of_own_class(value: Any) -> bool:
    """Whether somebody wrote its class himself: what objects of packages hold changes by the
    clock, in other threads, or leads everywhere.
    """
    module = type(value).__module__
    if module.partition(".")[0] in sys.stdlib_module_names:  # so is a class, as an object
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not is_library(Path(file))


def _is_plain(value: Any) -> bool:
    """Whether its text says what it is, without an address."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _SHOWS_ITSELF)
