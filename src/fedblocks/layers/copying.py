"""Copies of modules. Python copies no functions: what a function, a weak reference or a global name
holds of a module is, in a copy of the module, still the original's.
"""

from __future__ import annotations

import copy
import dis
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from logging import Logger
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any
from weakref import ReferenceType

from torch import Tensor, nn

from fedblocks.core.errors import NetError

_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_STORES = (list, set, deque, dict)  # that a pass may fill
_METHODS = (MethodType, BuiltinMethodType, MethodWrapperType)
_CLOSED = (type, ModuleType, Tensor, Logger)  # nobody looks into them
# attributes of every module: what is copied for sure, and hooks that no pass calls
_OTHERS = ("_parameters", "_buffers", "_modules")
_OF_STATE = ("_state_dict", "_load_state_dict")
_FIX = (
    "write the function as a method of the module or of a layer, and use that (self.method): a "
    "method is copied with its module"
)
Found = Iterator[tuple[str, Any]]  # places, in words, and what is there


def copy_module(module: nn.Module, shared: Collection[Tensor] = ()) -> nn.Module:
    """A copy that has nothing in common with the module but `shared`; refused where its functions
    would still use the module.
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    copied = _copied(module, memo)
    names = _Names(module, shared)
    seen = {id(part) for part in copied.modules()}  # each is looked at by itself
    for place, value in _places(copied):
        for reached in _reached(value, seen):
            if what := names.of(reached, memo):
                raise NetError(
                    f"{place} holds {what} by a function or a reference that no copy is made of: "
                    "in the copies of the module that clients train, it would still be that of "
                    "the original",
                    _FIX,
                )
    return copied


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    try:
        return copy.deepcopy(module, memo)
    except TypeError as error:  # such as a lock or an open file
        raise NetError(
            f"the module cannot be copied: {error}{_uncopied(module)}",
            "leave it out of the module, or give the module a __getstate__ without it",
        ) from error
    except RuntimeError as error:
        raise NetError(
            f"the module cannot be copied: {str(error).partition('.')[0]}",
            "keep no computed tensor in an attribute; instead of torch.nn.utils.weight_norm use "
            "torch.nn.utils.parametrizations.weight_norm",
        ) from error


def _uncopied(module: nn.Module) -> str:
    """Where a module keeps what Python cannot copy, in words; empty: it cannot be told."""
    for place, value in _places(module):
        try:
            copy.deepcopy(value)
        except TypeError:
            return f", held by {place}"
        except RuntimeError:  # another reason
            continue
    return ""


class _Names:
    """What a module's own parts are called."""

    def __init__(self, module: nn.Module, shared: Collection[Tensor]) -> None:
        self.layers = {id(part): path for path, part in module.named_modules()}
        kept = {_storage(tensor) for tensor in shared}
        tensors = [*module.named_buffers(), *module.named_parameters()]
        named = {_storage(tensor): name for name, tensor in tensors}
        self.tensors = {key: name for key, name in named.items() if key not in kept}

    def of(self, value: Any, memo: Mapping[int, Any]) -> str:
        """What is the module's of this value; empty: nothing that has to be copied."""
        if isinstance(value, nn.Module):
            path = self.layers.get(id(value))
            return "" if path is None else f'the layer "{path}"' if path else "the module itself"
        if isinstance(value, Tensor):
            name = self.tensors.get(_storage(value))
            return f'the tensor "{name}"' if name else ""
        is_store = isinstance(value, _STORES) and memo.get(id(value), value) is not value
        return "a list or dictionary that the module fills" if is_store and _may_fill(value) else ""


def _may_fill(store: Any) -> bool:
    """Whether a pass, and no setting, is what fills a list or a dictionary."""
    return not store or any(isinstance(one, Tensor) for one in _held_by(store))


def _storage(tensor: Tensor) -> int:
    """By what tensors are known that share numbers."""
    # one without a storage, or lazy
    with suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
        return int(tensor.untyped_storage()._cdata)
    return id(tensor)


def _places(module: nn.Module) -> Found:
    """Where a module's parts keep what its passes may use."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name in _OTHERS or name.startswith(_OF_STATE):
                continue
            own = f"{path}.{name}".lstrip(".")
            where = f'the attribute "{own}"'
            if name.startswith("_") and name.endswith("_hooks"):
                hook = name.strip("_").removesuffix("s").replace("_", " ")
                where = f"the {hook} of " + (f'"{path}"' if path else "the module")
            yield where, value


def _reached(start: Any, seen: set[int]) -> Iterator[Any]:
    """An object and all that it holds, each once."""
    waiting = [start]
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            waiting.extend(_held_by(value))


def _held_by(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, _CONTAINERS):
        return value
    if isinstance(value, FunctionType):
        return _held_by_function(value)
    if isinstance(value, ReferenceType):
        return [value()]
    if isinstance(value, _CLOSED):
        return []
    if isinstance(value, _METHODS):
        return [value.__self__, getattr(value, "__func__", None)]
    own = getattr(value, "__dict__", None)
    of_partial = [value.func, value.args, value.keywords] if isinstance(value, partial) else []
    return [*of_partial, own] if isinstance(own, dict) else of_partial


def _held_by_function(function: FunctionType) -> Iterator[Any]:
    """What it closes over, its defaults, and modules and tensors by their global names."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is not filled yet
            continue
    yield function.__defaults__
    yield function.__kwdefaults__
    yield vars(function)
    for name in global_names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, nn.Module | Tensor):
            yield value


@cache
def global_names(code: CodeType) -> frozenset[str]:
    """The global names that a function and those in it look up."""
    own = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    inner = (global_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return frozenset(own).union(*inner)
