"""Convolutions of more numbers than a library takes in one call: they are done in parts.

Inside `vmap`, the copies of a batch (clients, and slots of each) are folded into one call, so what
looks like a small batch may be beyond what cuDNN can count.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._C import _functorch

MOST = 2**31 - 1  # numbers of a tensor that cuDNN takes


def convolve_in_parts(
    layer: nn.Conv2d, convolve: Callable[[Tensor], Tensor], input: Tensor
) -> Tensor:
    """What a layer makes of its examples, as few calls as the limit allows: [batch, ...]."""
    if torch.compiler.is_compiling() or input.dim() != 4:
        return convolve(input)
    widest = max(math.prod(input.shape[1:]), _numbers_of_output(layer, input))
    most = MOST // max(1, widest * count_copies(input, layer.weight))
    if len(input) <= max(1, most):
        return convolve(input)
    return torch.cat([convolve(part) for part in torch.split(input, max(1, most))])


def _numbers_of_output(layer: nn.Conv2d, input: Tensor) -> int:
    """Of one example."""
    left, right, top, bottom = layer._reversed_padding_repeated_twice
    (high, wide), (down, across), (below, beside) = layer.kernel_size, layer.stride, layer.dilation
    rows = (input.shape[-2] + top + bottom - below * (high - 1) - 1) // down + 1
    columns = (input.shape[-1] + left + right - beside * (wide - 1) - 1) // across + 1
    return layer.out_channels * rows * columns


def count_copies(*tensors: Tensor) -> int:
    """How many copies of a result `vmap` makes, once for each dimension that it hides."""
    hidden: dict[int, int] = {}  # level of `vmap` -> copies
    for tensor in tensors:
        while _functorch.is_functorch_wrapped_tensor(tensor):
            inner = _functorch.get_unwrapped(tensor)
            if _functorch.is_batchedtensor(tensor):
                level, place = _functorch.maybe_get_level(tensor), _functorch.maybe_get_bdim(tensor)
                hidden[level] = inner.shape[place]
            tensor = inner
    return math.prod(hidden.values())
