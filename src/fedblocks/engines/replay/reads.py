"""Notices that Python reads numbers of tensors: what it decides by them cannot be repeated."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import dlpack

# numbers leave torch here, or an address does by which they can be read; no kernel is called
_READS = {
    "tolist",
    "numpy",
    "__array__",
    "__dlpack__",
    "data_ptr",
    "untyped_storage",
    "_typed_storage",
    "storage",
    "share_memory_",
    "__deepcopy__",
    "__reduce_ex__",
    "__repr__",
    "__format__",
    "__bool__",
    "__complex__",
    "__float__",
    "__index__",
    "__int__",
    "item",
}
# these read the numbers of tensors in lists, and make a constant of them
_MAKE = {"tensor", "as_tensor", "asarray", "new_tensor"}
_SPLIT = "tensor_split"  # reads where to split
_GUARD = "fedblocks.layers.guard"  # asks which memory a tensor has, but not what is there
_PASSES_ON = "__torch_function__"  # what a module asks, from behind the guard
# the one way past torch's modes, by all its names
_HANDS_OUT = ((dlpack, "to_dlpack"), (torch, "to_dlpack"), (torch._C, "_to_dlpack"))


class Reads(TorchFunctionMode):
    """Sees calls of torch from Python; a `TorchDispatchMode` sees only those that call a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.noticed = False
        self._plain: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.noticed = self.noticed or _reads(getattr(func, "__name__", ""), args, kwargs)
        return func(*args, **kwargs)

    def __enter__(self) -> Reads:
        self._plain = [getattr(owner, name) for owner, name in _HANDS_OUT]
        for (owner, name), plain in zip(_HANDS_OUT, self._plain, strict=True):
            setattr(owner, name, self._noting(plain))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for (owner, name), plain in zip(_HANDS_OUT, self._plain, strict=True):
            setattr(owner, name, plain)

    def _noting(self, plain: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.noticed = True
            return plain(*args, **kwargs)

        return noted


def shows_numbers(func: Any, args: Any) -> bool:
    """Whether Python sees a number, or a shape that depends on numbers, through this operation."""
    if func is torch.ops.aten._pack_padded_sequence.default:  # by lengths; torch has no tag for it
        return True
    if func is torch.ops.aten.index.Tensor:
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return (
        torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
    )


def _reads(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name in _MAKE:
        return any(_holds_tensors(value) for value in (*args, *kwargs.values()))
    if name == _SPLIT:
        return any(isinstance(value, Tensor) for value in (*args[1:], *kwargs.values()))
    if name == "untyped_storage":
        # two calls up: whoever called torch
        caller = sys._getframe(2)
        is_guard = caller.f_globals.get("__name__") == _GUARD
        return not is_guard or caller.f_code.co_name == _PASSES_ON
    return name in _READS


def _holds_tensors(value: Any) -> bool:
    """Whether a list has a tensor in it, however deep; a tensor itself is copied by a kernel."""
    return isinstance(value, list | tuple) and any(
        isinstance(one, Tensor) or _holds_tensors(one) for one in value
    )
