"""By what a value is known again: equal where nothing that a net may depend on is another. In
doubt, it is another each time.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Hashable, Iterator
from functools import partial
from pathlib import PurePath
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from weakref import ReferenceType

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedblocks.core.frozen_hash import content_hash
from fedblocks.engines.net_check.kept_state import is_own
from fedblocks.layers.copying import global_names

_ATOMS = (
    *(type(None), bool, int, float, complex, str, bytes, enum.Enum, range, slice, PurePath),
    *(torch.dtype, torch.device, torch.layout, np.generic, np.dtype),
)
_WRAPPED = (FunctionType, staticmethod, classmethod, property)
_CONTAINERS = (list, tuple, deque, set, frozenset, dict, Tensor, np.ndarray)
_TOLD = ("_parameters", "_buffers", "_modules", "training")  # of a module, in other ways
_HOW_IT_IS_KEPT = ("__reduce__", "__reduce_ex__")
_MOST = 1_000_000  # numbers that are looked at: to read those of a large base would take a while
_LIBRARY = ("torch.", "fedblocks.", "builtins.")


def key_of(value: Any) -> Hashable:
    """By what a value is known again."""
    try:
        return _Keys().of(value)
    except RecursionError:
        return object()


class _Keys:
    """Keys of values that may hold each other."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, Any]] = {}  # with the value, whose id is not used again

    def of(self, value: Any) -> Hashable:
        if isinstance(value, _ATOMS):
            return type(value), value
        if isinstance(value, type | ModuleType):
            return value
        if id(value) in self.seen:
            return "again", self.seen[id(value)][0]
        self._see(value)
        return type(value).__qualname__, self._of_kind(value)

    def _see(self, value: Any) -> None:
        self.seen[id(value)] = len(self.seen), value

    def _of_kind(self, value: Any) -> Hashable:
        if isinstance(value, nn.Module):
            return tuple(self._of_module(value))
        if isinstance(value, Tensor | np.ndarray):
            return _of_numbers(value)
        if isinstance(value, list | tuple | deque):
            return tuple(map(self.of, value))
        if isinstance(value, set | frozenset):
            return frozenset(map(key_of, value))
        if isinstance(value, dict):
            return tuple((self.of(key), self.of(one)) for key, one in value.items())
        return self._of_code(value)

    def _of_code(self, value: Any) -> Hashable:
        if isinstance(value, FunctionType):
            return tuple(self._of_function(value)) if is_own(value) else value
        if isinstance(value, MethodType):
            return self.of(value.__func__), self.of(value.__self__)
        if isinstance(value, BuiltinMethodType):
            return value.__name__, self.of(value.__self__)
        if isinstance(value, partial):
            return tuple(map(self.of, (value.func, value.args, value.keywords)))
        if isinstance(value, staticmethod | classmethod):
            return self.of(value.__func__)
        if isinstance(value, property):
            return self.of(value.fget)
        if isinstance(value, ReferenceType):
            return self.of(value())
        return "" if isinstance(value, RemovableHandle) else self._of_object(value)

    def _of_object(self, value: Any) -> Hashable:
        """An object by its class and its attributes, if it has nothing else."""
        kind = type(value)
        if kind is SimpleNamespace:
            return self.of(vars(value))
        if any(getattr(kind, name) is not getattr(object, name) for name in _HOW_IT_IS_KEPT):
            return object()
        try:
            state = object.__reduce_ex__(value, 2)[2:3]
        except Exception:  # it keeps something where Python cannot see it
            return object()
        return tuple(self._of_class(kind)), self.of(state)

    def _of_function(self, function: FunctionType) -> Iterator[Hashable]:
        """Its code, what it closes over, its defaults, and the global names that it uses."""
        yield function.__code__
        for cell in function.__closure__ or ():
            try:
                yield self.of(cell.cell_contents)
            except ValueError:  # it is not filled yet
                yield object()
        yield from map(self.of, (function.__defaults__, function.__kwdefaults__, vars(function)))
        for name in sorted(global_names(function.__code__)):
            yield name, self.of(function.__globals__.get(name))

    def _of_class(self, kind: type) -> Iterator[Hashable]:
        """Its methods and attributes, and those of the classes above it."""
        for one in kind.__mro__:
            if f"{one.__module__}.".startswith(_LIBRARY):
                yield one
                continue
            yield one.__module__, one.__qualname__
            for name, value in vars(one).items():
                if isinstance(value, _WRAPPED) or not name.startswith("__"):
                    yield name, self._of_class_attribute(value)

    def _of_class_attribute(self, value: Any) -> Hashable:
        if isinstance(value, (*_ATOMS, *_WRAPPED, *_CONTAINERS)):
            return self.of(value)
        return _Same(value)  # which lives as long as its class

    def _of_module(self, module: nn.Module) -> Iterator[Hashable]:
        """Layers, tensors, attributes and hooks, and the code of all; parameters without their
        numbers.
        """
        parts = list(module.modules())
        for part in parts:
            self._see(part)
        for path, part in module.named_modules(remove_duplicate=False):
            yield path, self.seen[id(part)][0], type(part).__qualname__
        for kind in dict.fromkeys(map(type, parts)):
            yield from self._of_class(kind)
        for part in parts:
            for name, value in vars(part).items():
                if name not in _TOLD:
                    is_numbered = "_hooks" in name and isinstance(value, dict)  # as no others are
                    yield name, self.of([*value.values()] if is_numbered else value)
        for tensors in (module.named_parameters, module.named_buffers):
            for name, tensor in tensors(remove_duplicate=False):
                yield name, self.of(tensor)


class _Same:
    """An object, equal to nothing but itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


def _of_numbers(value: Tensor | np.ndarray[Any, Any]) -> Hashable:
    if isinstance(value, nn.Parameter):
        return value.shape, value.dtype
    if math.prod(value.shape) > _MOST:
        return object()
    if isinstance(value, np.ndarray):
        return object() if value.dtype.hasobject else (value.shape, value.dtype, value.tobytes())
    try:
        return content_hash({"": value.detach()})
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, or without numbers
        return object()
