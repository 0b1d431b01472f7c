"""Half precision: while it is asked for, nets in training multiply bfloat16 numbers.

Parameters, losses, gradients, the server's side and every evaluation stay in single precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from fedblocks.core.errors import UserError
from fedblocks.core.mode import current

# functions of torch by name, as it sorts them itself: those that round their factors, and those
# whose sums need more digits
_ROUNDED = (
    "linear bilinear matmul __matmul__ __rmatmul__ mm bmm mv addmm addmv addbmm baddbmm einsum "
    "tensordot conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
    "scaled_dot_product_attention"
)
_WHOLE = (
    "softmax log_softmax softmin softplus layer_norm group_norm instance_norm batch_norm rms_norm "
    "norm normalize cosine_similarity exp expm1 log log1p log2 log10 pow rsqrt reciprocal sum prod "
    "cumsum cumprod logsumexp"
)
_PRODUCTS, _SUMS = {*_ROUNDED.split()}, {*_WHOLE.split()}

_wanted: ContextVar[bool] = ContextVar("half precision", default=False)


@contextmanager
def half_precision(wanted: bool) -> Iterator[None]:
    """Train in half precision or not, and as before afterwards."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def refuse_half(dtypes: Sequence[torch.dtype], device: torch.device) -> None:
    """Refuse nets and devices for which half precision means nothing."""
    other = next((dtype for dtype in dtypes if dtype != torch.float32), None)
    if other is not None:
        kind = str(other).removeprefix("torch.")
        raise UserError(
            f'precision = "bf16" is for nets of float32 numbers, and this one has {kind}',
            'use precision = "float32", or a net of float32 numbers',
        )
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name(device)
        raise UserError(
            f'precision = "bf16", but {name} does not multiply bfloat16 numbers',
            'use precision = "float32", or a GPU of compute capability 8.0 or more',
        )


def refuse_half_parameters(dtype: torch.dtype) -> None:
    """Refuse nets whose parameters themselves have few digits."""
    info = torch.finfo(dtype)
    if info.bits < 32:
        kind = str(dtype).removeprefix("torch.")
        raise UserError(
            f"the parameters of the net are {kind}: a step below 1/{round(2 / info.eps)} of a "
            "parameter would be lost, and so would a client's share in a mean",
            'leave Net.of(dtype=...) at float32; precision = "bf16" makes its products faster',
        )


def wants_half() -> bool:
    """Whether half precision is asked for."""
    return _wanted.get()


def is_half() -> bool:
    """Whether the pass that is running is one in half precision."""
    return _wanted.get() and current().training


def call_in_half(call: Callable[..., Any], *inputs: Tensor) -> Any:
    """What a module gives, its products in half precision; its results are single again."""
    with HalfProducts() if current().mapped else _autocast(inputs[0].device):
        return tree_map_only(Tensor, to_single, call(*inputs))


def _autocast(device: torch.device, wanted: bool = True) -> AbstractContextManager[Any]:
    # not keeping rounded weights: a recorded step must round them itself
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted, cache_enabled=False)


class HalfProducts(TorchFunctionMode):
    """What `torch.autocast` does, which does nothing inside `vmap`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if is_half() and (name in _PRODUCTS or name in _SUMS):
            cast = to_half if name in _PRODUCTS else to_single
            args, kwargs = tree_map_only(Tensor, cast, (args, kwargs))
        return func(*args, **kwargs)


def to_half(tensor: Tensor) -> Tensor:
    """A tensor of single precision in half precision; others as they are."""
    return tensor.bfloat16() if tensor.dtype == torch.float32 else tensor


def to_single(tensor: Tensor) -> Tensor:
    """A tensor of half precision in single precision; others as they are."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def as_factors(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Factors of a product of our own, rounded where those of torch's products are."""
    return tuple(t if t is None else to_half(t) for t in tensors) if is_half() else tensors


@contextmanager
def single_precision(device: torch.device) -> Iterator[None]:
    """Round no factors, for layers that stay in single precision."""
    with half_precision(False), _autocast(device, wanted=False):
        yield
