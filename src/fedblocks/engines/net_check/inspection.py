"""What a module's code is and what its attributes hold."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from types import FunctionType
from typing import Any

from torch import Tensor, nn

_INTERNAL = set(vars(nn.Module()))  # where torch keeps what is registered


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Numbers, texts and lengths of lists that a module's parts hold."""
    attributes: dict[str, Any] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, bool | int | float | str) and name != "training":
                attributes[f"{path}.{name}".lstrip(".")] = value
            elif isinstance(value, list) and not name.startswith("_"):
                attributes[f"{path}.{name}".lstrip(".")] = len(value)
    return attributes


def loose_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Tensors in attributes, lists and dictionaries that are neither parameters nor buffers."""
    known = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    loose: dict[str, Tensor] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in _INTERNAL:
                for place, tensor in _tensors_in(value, f"{path}.{name}".lstrip(".")):
                    if id(tensor) not in known:
                        loose[place] = tensor
    return loose


def _tensors_in(value: Any, place: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, nn.Module):
        for name, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield f"{place}.{name}", tensor
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _tensors_in(item, f"{place}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors_in(item, f"{place}[{key!r}]")


def code_of(module: nn.Module) -> Iterator[Hashable]:
    """What decides how a module computes: layers, tensors and hooks, their code and settings."""
    yield repr(module)
    yield tuple(plain_attributes(module).items())
    yield repr(loose_tensors(module))
    yield tuple((name, value.shape) for name, value in module.named_parameters())
    yield tuple((name, value.shape) for name, value in module.named_buffers())
    for part in module.modules():
        yield type(part).__module__, type(part).__qualname__, *_functions_of(part)


def _functions_of(part: nn.Module) -> Iterator[Hashable]:
    """The methods of its class and of those above it, its own functions and its hooks."""
    for kind in type(part).__mro__:
        if kind is nn.Module:
            break
        for function in vars(kind).values():
            if isinstance(function, FunctionType):
                yield _code(function)
    for value in vars(part).values():
        if callable(value) and not isinstance(value, nn.Module | Tensor):
            yield _code(value)
    for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks):
        for hook in hooks.values():
            yield _code(hook)


def _code(function: Any) -> Hashable:
    """A function by what it does and what it closes over."""
    cells = getattr(function, "__closure__", None) or ()
    contents = repr([cell.cell_contents for cell in cells])
    return getattr(function, "__code__", repr(function)), contents
