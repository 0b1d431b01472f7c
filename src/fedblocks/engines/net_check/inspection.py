"""What a module's code is and what its attributes hold."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from torch import Tensor, nn

from fedblocks.engines.net_check.known_again import key_of

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
    yield key_of(module)
