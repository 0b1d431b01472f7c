"""Buffers made from the numbers that parameters start with. Every run draws its parameters anew
from its seed, and buffers are constants of the net: a copy of the first weights, or a mask of them,
would be that of other weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedblocks.core.errors import NetError
from fedblocks.core.outside_modules import DRAWN_ANEW, make_module, seeded

Make = Callable[[], nn.Module]


class Origins(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes, while a module is made, of which draws each tensor is made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = count()
        self.of: defaultdict[int, set[int]] = defaultdict(set)  # by storage
        self.held: list[Any] = []  # storages, whose numbers are not used again

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler for that, which takes seconds in every process."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        draws: set[int] = set()
        for tensor in _tensors((args, kwargs)):
            draws |= self.of.get(_storage(tensor), set())
        if torch.Tag.nondeterministic_seeded in func.tags:
            draws.add(next(self.numbers))
        if draws:
            for tensor in _tensors(output):
                self.note(tensor, draws)
        return output

    def note(self, tensor: Tensor, draws: set[int]) -> None:
        """A tensor is made of these draws, too."""
        with suppress(RuntimeError, NotImplementedError):  # one without a storage
            self.held.append(tensor.untyped_storage())
            self.of[_storage(tensor)] |= draws

    def common(self, module: nn.Module) -> dict[str, str]:
        """Buffers of a module -> a parameter that is made of the same draw."""
        common: dict[str, str] = {}
        for name, buffer in module.named_buffers():
            if _is_of_spectral_norm(module, name):  # another check says what that does
                continue
            draws = self.of.get(_storage(buffer), set())
            for other, parameter in module.named_parameters() if draws else ():
                if draws & self.of.get(_storage(parameter), set()):
                    common.setdefault(name, other)
        return common


def traced_module(make: Make) -> tuple[nn.Module, dict[str, str]]:
    """A module, and its buffers that are made of the draw of a parameter, with that."""
    with Origins() as origins:
        module = make_module(make)
    return module, origins.common(module)


def refuse_common_draws(
    make: Make, module: nn.Module, common: Mapping[str, str], own: Collection[str]
) -> None:
    """Refuse a buffer that another seed would make otherwise, from the draw of a parameter; `own`
    are the tensors of a client, which a seed draws together.
    """
    constants = {name: parameter for name, parameter in common.items() if name not in own}
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
                f"{DRAWN_ANEW[0]}",
                DRAWN_ANEW[1],
            )


def _is_of_spectral_norm(module: nn.Module, name: str) -> bool:
    """Whether a buffer is one of the two vectors that torch keeps beside a weight."""
    owner = module.get_submodule(name.rpartition(".")[0])
    return type(owner).__module__.startswith("torch.") and name.endswith(("_u", "_v"))


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
