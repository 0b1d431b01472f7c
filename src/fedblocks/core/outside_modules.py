"""Modules of other people: what cannot become a net is told, and where their logits are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedblocks.core.errors import NetError

Output = int | str | Callable[[Any], Tensor]  # a place in a tuple, a key or an attribute, or a function


def checked_module(make: Callable[[], nn.Module]) -> nn.Module:
    """What a function makes, if it is a module whose tensors are there from the start."""
    if not callable(make):
        raise NetError(f"a {type(make).__name__} is no module", "give an nn.Module, or a function that makes one")
    module = make()
    if not isinstance(module, nn.Module):
        raise NetError(f"the function makes a {type(module).__name__}, not a module", "return an nn.Module from it")
    tensors = [*module.named_parameters(), *module.named_buffers()]
    lazy = next((name for name, tensor in tensors if is_lazy(tensor)), None)
    if lazy is not None:
        fix = "give its size, e.g. nn.Linear(64, 10) for nn.LazyLinear(10): all tensors are made at the start"
        raise NetError(f'the layer "{lazy.rpartition(".")[0]}" is lazy: its size shows only when data come', fix)
    return module


def take_logits(result: Any, output: Output | None) -> Tensor:
    """The logits in what a module returned."""
    logits = result if output is None else _take(result, output)
    if not isinstance(logits, Tensor):
        _refuse(result, output)
    return logits


def _take(result: Any, output: Output) -> Any:
    if callable(output):
        return output(result)
    try:
        is_item = isinstance(output, int) or isinstance(result, Mapping)
        return result[output] if is_item else getattr(result, str(output))
    except (KeyError, IndexError, TypeError, AttributeError):
        return None


def _refuse(result: Any, output: Output | None) -> NoReturn:
    """Say what a module returned instead of logits, and how to say where they are."""
    if isinstance(result, Mapping):
        what, place = f"a dictionary with the keys {', '.join(map(repr, result))}", repr(next(iter(result), "logits"))
    elif isinstance(result, tuple | list):
        what, place = f"a {type(result).__name__} of {len(result)}", "0"
    else:
        tensors = [name for name, value in getattr(result, "__dict__", {}).items() if isinstance(value, Tensor)]
        what, place = f"a {type(result).__name__}", repr(next(iter(tensors), "logits"))
    with_output = "" if output is None else f", in which output={output!r} is no tensor"
    fix = f"say where the logits are: Net.of(..., output={place}), or output=a function of what the module returns"
    raise NetError(f"the module returns {what}, not a tensor of logits{with_output}", fix)
