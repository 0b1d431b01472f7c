"""Watches the forward pass of a user's module: noise is drawn from keys, and buffers
are not written to.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedblocks.core.errors import NetError
from fedblocks.core.mode import current
from fedblocks.layers.attention import attention
from fedblocks.layers.embedding import TABLES
from fedblocks.layers.noise import KEYED, check_noise

# names of functions that change their first argument
_WRITES = re.compile(r"(?!__).*[^_]_|__i[a-z]+__|__setitem__")
# functions that engines cannot use as they are
_OURS = {**KEYED, **TABLES}
_KNOWN = ("torch.nn.", "fedblocks.")  # where layers come from that are known to need no guard


class Constant(NamedTuple):
    """A buffer that is the same for all clients and rounds."""

    name: str
    owner: dict[str, Any]  # where its module keeps it
    key: str
    value: Tensor
    before: Tensor  # a copy
    version: int  # how often it was written to


def needs_guard(module: nn.Module, constants: list[str]) -> bool:
    """Whether a module has code that nobody here has read, or buffers that it may write to."""
    others = any(not type(part).__module__.startswith(_KNOWN) for part in module.modules())
    return others or bool(constants) or any(_has_hooks(part) for part in module.modules())


def _has_hooks(part: nn.Module) -> bool:
    forward = part._forward_hooks or part._forward_pre_hooks
    return bool(forward or part._backward_hooks or part._backward_pre_hooks)


class Guard(TorchFunctionMode):
    """Stands around every forward pass of one module."""

    def __init__(self, module: nn.Module, constants: list[str]) -> None:
        super().__init__()
        self.constants = [_constant(module, name) for name in constants]
        self.storages = {one.value.untyped_storage()._cdata: one.name for one in self.constants}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = _OURS.get(func)
        if ours is not None:
            return ours(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention and _is_ours(args, kwargs or {}):
            return attention(*args, **(kwargs or {}))
        check_noise(func, args, kwargs or {})
        if self.storages:
            self._check_write(*_written(func.__name__, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        written = [one for one in self.constants if one.owner[one.key] is not one.value]
        for one in written:
            one.owner[one.key] = one.value
        written += [one for one in self.constants if one.value._version != one.version]
        self.constants = [_restored(one) for one in self.constants]
        if written and error is None:
            _refuse(written[0].name)

    def _check_write(self, *written: Any) -> None:
        """Refuse to change a constant: what vmap says to that names nothing."""
        tensors = [t for one in written for t in (one if isinstance(one, tuple | list) else (one,))]
        for tensor in tensors:
            # no tensor, or one without a storage
            with suppress(AttributeError, NotImplementedError, RuntimeError):
                name = self.storages.get(tensor.untyped_storage()._cdata)
                if name is not None:
                    _refuse(name)


def _is_ours(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether torch's fused attention cannot serve: it cannot be mapped, nor its noise repeated."""
    return current().mapped or (kwargs.get("dropout_p") or (*args[4:5], 0.0)[0]) > 0


def _written(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What a function of torch is about to change."""
    if name == "batch_norm" and kwargs.get("training"):
        return tuple(args[1:3])
    return (*(args[:1] if _WRITES.fullmatch(name) else ()), kwargs.get("out"))


def _constant(module: nn.Module, name: str) -> Constant:
    path, _, key = name.rpartition(".")
    owner: dict[str, Any] = module.get_submodule(path)._buffers
    return Constant(name, owner, key, owner[key], owner[key].clone(), owner[key]._version)


def _restored(one: Constant) -> Constant:
    if one.value._version == one.version:
        return one
    one.value.copy_(one.before)
    return one._replace(version=one.value._version)


def _refuse(name: str) -> None:
    raise NetError(
        f'the module writes to its buffer "{name}" in its forward pass: clients would share what '
        "it holds",
        "compute it from the inputs, or use nn.BatchNorm, whose running statistics belong to "
        "each client",
    )
