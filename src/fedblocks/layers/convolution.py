"""Convolutions and max pooling in a form that is fast for a stack of clients, and on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedblocks.core.mode import current
from fedblocks.core.precision import as_factors, is_half, to_single
from fedblocks.layers.large_batches import convolve_in_parts

_KINDS = (torch.float32, torch.bfloat16)  # that the kernel for pooling takes
FEW = 16  # filters that kernels multiply plainly, not on tensor cores


class MaxPool2d(nn.MaxPool2d):
    """Max pooling with torch's results, faster where windows lie side by side."""

    def forward(self, input: Tensor) -> Tensor:
        if self.is_plain() and not torch.compiler.is_exporting():
            size = _single(self.kernel_size)
            if current().mapped and input.is_cuda and input.dtype in _KINDS:
                from fedblocks.kernels.triton.pooling import max_pool

                return max_pool(input, size)
            if size == 2 and input.device.type == "cpu" and not torch.is_grad_enabled():
                return _halve(input)
        pooled: Tensor = super().forward(input)
        return pooled

    def is_plain(self) -> bool:
        """Whether the kernels can do it: square windows side by side."""
        size = _single(self.kernel_size)
        side_by_side = 0 < size <= 8 and _single(self.stride) == size
        rest = (_single(self.padding), _single(self.dilation))
        return side_by_side and rest == (0, 1) and not self.ceil_mode and not self.return_indices


class Conv2d(nn.Conv2d):
    """A convolution that serves all clients of a stack in one launch on a GPU, with the
    pooling behind it.
    """

    pools: tuple[MaxPool2d, ...] = ()  # at most one, that comes after it and is done here
    rectified: bool = False  # and a rectifier after that

    def forward(self, input: Tensor) -> Tensor:
        return convolve_in_parts(self, self._convolve, input)

    def _convolve(self, input: Tensor) -> Tensor:
        if current().mapped and input.is_cuda and self._is_single(input) and self._is_plain():
            return self._convolve_stack(input)
        return self._pool(super().forward(input))

    def _convolve_stack(self, input: Tensor) -> Tensor:
        from fedblocks.layers.mapped_convolution import ClientConvolution
        from fedblocks.layers.mapped_pooling import convolve_and_pool

        pad, stride = int(self.padding[0]), self.stride[0]
        halves = any(pool.is_plain() and _single(pool.kernel_size) == 2 for pool in self.pools)
        if halves and stride == 1:
            single = to_single(input)  # for few filters: rounding would save no time
            pooled = convolve_and_pool(single, self.weight, self.bias, pad, self.rectified)
            if pooled is not None:
                return pooled
        convolve: Callable[..., Tensor] = ClientConvolution.apply
        few = len(self.weight) <= FEW
        tensors = (to_single(input) if few else input, self.weight, self.bias)
        return self._pool(convolve(*(tensors if few else as_factors(*tensors)), (pad, stride)))

    def _is_single(self, input: Tensor) -> bool:
        """Whether weights and input are in single precision, or the input is another layer's
        result in half precision.
        """
        half = input.dtype == torch.bfloat16 and is_half()
        return self.weight.dtype == torch.float32 and (input.dtype == torch.float32 or half)

    def _pool(self, output: Tensor) -> Tensor:
        for pool in self.pools:
            output = pool(output)
        return output.relu() if self.rectified else output

    def _is_plain(self) -> bool:
        """Whether the kernels can do it: square, one group, zero padding below the filter."""
        size, pad, stride = self.kernel_size[0], self.padding[0], self.stride[0]
        square = (self.kernel_size, self.padding, self.stride) == (
            (size, size),
            (pad, pad),
            (stride, stride),
        )
        ones = (*self.dilation, self.groups) == (1, 1, 1)
        zeros = self.padding_mode == "zeros" and isinstance(pad, int) and pad < size
        return square and ones and zeros


def join_pooling(layers: nn.Sequential, shared: Collection[nn.Module] = ()) -> None:
    """Let each convolution do the pooling behind it, and the rectifier behind that; not
    one that others use, too.
    """
    _pool_first(layers)
    modules = layers._modules
    for name, second, third in zip(modules, [*modules][1:], [*[*modules][2:], None], strict=False):
        convolution, pool = modules[name], modules[second]
        if type(convolution) is Conv2d and type(pool) is MaxPool2d and convolution not in shared:
            convolution.pools = (pool,)
            modules[second] = nn.Identity()
            if third is not None and type(modules[third]) is nn.ReLU:
                convolution.rectified = True
                modules[third] = nn.Identity()


class Chain(nn.Sequential):
    """A chain inside a user's module: joined where it is called as a whole, and its
    layers as they are one by one.
    """

    joined: tuple[nn.Module, ...]

    def forward(self, input: Tensor) -> Tensor:
        for layer in self.joined:
            input = layer(input)
        return input


def join_a_copy(layers: nn.Sequential) -> None:
    """The same where somebody may call, or look at, single layers: a convolution's copy
    shares its tensors.
    """
    before = [copy.copy(layer) if type(layer) is Conv2d else layer for layer in layers]
    twin = nn.Sequential(*before)
    join_pooling(twin)
    pairs = zip(twin, before, strict=True)
    if any(one is not other or getattr(one, "pools", ()) for one, other in pairs):
        layers.__class__ = Chain
        layers.__dict__["joined"] = tuple(twin)  # not as modules: their tensors have names already


def _pool_first(layers: nn.Sequential) -> None:
    """Max pooling before the rectifier that precedes it: the same numbers and
    gradients, of a quarter of the pixels.
    """
    modules = layers._modules
    for name, after in pairwise(modules):
        if type(modules[name]) is nn.ReLU and type(modules[after]) is MaxPool2d:
            modules[name], modules[after] = modules[after], modules[name]


def _halve(x: Tensor) -> Tensor:
    """[..., h, w] -> [..., h // 2, w // 2] by whole rows; pixel by pixel, as torch does
    it, takes far longer.
    """
    height, width = (size // 2 * 2 for size in x.shape[-2:])
    left, right = x[..., :height, :width:2], x[..., :height, 1:width:2]
    columns = torch.maximum(left, right)  # [..., h, w / 2]
    return torch.maximum(columns[..., ::2, :], columns[..., 1::2, :])


def _single(size: int | tuple[int, ...]) -> int:
    """The size that holds for both directions, or -1."""
    if isinstance(size, int):
        return size
    return size[0] if len(set(size)) == 1 else -1
