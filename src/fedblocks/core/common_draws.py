"""Buffers made from the numbers that parameters start with. Every run draws its parameters anew
from its seed, and buffers are constants of the net: a copy of the first weights, or a mask of them,
would be that of other weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedblocks.core.errors import NetError
from fedblocks.core.outside_modules import seeded
from fedblocks.layers.replacement import statistics_of

Make = Callable[[], nn.Module]
_FIX = (
    "compute it in the forward pass from a parameter, make it a parameter, or start from the "
    "weights of one module: Net.of(MyNet(), keep_weights=True)"
)


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes, while a module is made, of which draws each tensor is made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = count()
        self.of: defaultdict[int, set[int]] = defaultdict(set)  # by storage
        self.held: list[Any] = []  # storages, whose numbers are not used again

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        draws: set[int] = set()
        for tensor in _tensors((args, kwargs)):
            draws |= self.of.get(_storage(tensor), set())
        if torch.Tag.nondeterministic_seeded in func.tags:
            draws.add(next(self.numbers))
        if draws:
            for tensor in _tensors(made):
                self.note(tensor, draws)
        return made

    def note(self, tensor: Tensor, draws: set[int]) -> None:
        """A tensor is made of these draws, too."""
        with suppress(RuntimeError, NotImplementedError):  # one without a storage
            self.held.append(tensor.untyped_storage())
            self.of[_storage(tensor)] |= draws

    def common(self, module: nn.Module) -> dict[str, str]:
        """Buffers of a module -> a parameter that is made of the same draw."""
        found: dict[str, str] = {}
        for name, buffer in module.named_buffers():
            if _is_of_torch(module, name):  # a spectral norm's: another check says what it does
                continue
            draws = self.of.get(_storage(buffer), set())
            for other, parameter in module.named_parameters() if draws else ():
                if draws & self.of.get(_storage(parameter), set()):
                    found.setdefault(name, other)
        return found


def refuse_common_draws(make: Make, module: nn.Module, common: Mapping[str, str]) -> None:
    """Refuse a buffer that another seed would make otherwise, from the draw of a parameter."""
    moved = statistics_of(module)
    constants = {name: parameter for name, parameter in common.items() if name not in moved}
    if not constants:
        return
    with seeded(1):
        other = _all_tensors(make())
    tensors = _all_tensors(module)
    drawn = {name for name, value in tensors.items() if not _is_equal(value, other.get(name))}
    for name, parameter in constants.items():
        if name in drawn and parameter in drawn:
            raise NetError(
                f'the buffer "{name}" is made from the draw of the parameter "{parameter}", but '
                "every run draws its parameters anew from its seed, and buffers stay as they are",
                _FIX,
            )


def refuse_copied_weights(module: nn.Module) -> None:
    """Refuse a buffer that is a copy of a parameter, where the parameters will be drawn anew."""
    for name, buffer in module.named_buffers():
        for other, parameter in module.named_parameters():
            if _is_copy(buffer, parameter):
                raise NetError(
                    f'the buffer "{name}" is a copy of the parameter "{other}", but every run '
                    "draws its parameters anew from its seed, and buffers stay as they are",
                    _FIX,
                )


def _is_copy(buffer: Tensor, parameter: Tensor) -> bool:
    """Whether both hold the same numbers, which are not all alike."""
    if buffer.shape != parameter.shape or not parameter.numel():
        return False
    with torch.no_grad():
        is_constant = bool((parameter == parameter.flatten()[0]).all())
        return not is_constant and torch.equal(buffer, parameter.to(buffer))


def _is_of_torch(module: nn.Module, name: str) -> bool:
    """Whether a buffer belongs to a layer of torch's own."""
    owner = module.get_submodule(name.rpartition(".")[0])
    return type(owner).__module__.startswith("torch.")


def _all_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_buffers()), **dict(module.named_parameters())}


def _is_equal(one: Tensor, other: Tensor | None) -> bool:
    return other is None or torch.equal(one, other.to(one))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    with suppress(RuntimeError, NotImplementedError):
        return int(tensor.untyped_storage()._cdata)
    return id(tensor)
