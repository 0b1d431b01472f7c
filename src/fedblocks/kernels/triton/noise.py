"""Keyed noise in one launch: the same numbers as `core.random`, which takes two dozen
small operations for them.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _mix(z, FIRST: tl.constexpr, SECOND: tl.constexpr):
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * FIRST
    return (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * SECOND


@triton.jit
def _scramble(z, FIRST: tl.constexpr, SECOND: tl.constexpr):
    z = _mix(z, FIRST, SECOND)
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@triton.jit
def _fold(
    keys,
    numbers,
    extra,
    out,
    count,
    STRIDE: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = tl.zeros((BLOCK,), dtype=tl.int64) + extra
    if STRIDE >= 0:
        number += tl.load(numbers + i * STRIDE, mask=i < count, other=0)
    key = tl.load(keys + i, mask=i < count, other=0)
    tl.store(out + i, _scramble(key + (number + 1) * SECOND, FIRST, SECOND), mask=i < count)


@triton.jit
def _uniform(
    keys,
    out,
    count,
    STEP: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(keys + row) + (i.to(tl.int64) + 1) * STEP
    bits = (_mix(_scramble(z, FIRST, SECOND), FIRST, SECOND) >> 41) & 0x7FFFFF
    tl.store(out + row * count + i, (bits.to(tl.float32) + 0.5) / 8388608.0, mask=i < count)


class Fold(torch.autograd.Function):
    """Keys [...] and a number, or a tensor [] or [...] of them -> keys [...]."""

    @staticmethod
    def forward(key, number, first, second):
        alike = isinstance(number, int) or number.dim() == 0
        if not alike:
            key = key.expand(torch.broadcast_shapes(key.shape, number.shape))
        key = key.contiguous()
        out = torch.empty_like(key)
        grid = (triton.cdiv(key.numel(), _BLOCK),)
        if isinstance(number, int):
            _fold[grid](key, key, number, out, key.numel(), -1, first, second, _BLOCK)
        elif alike:
            _fold[grid](key, number, 0, out, key.numel(), 0, first, second, _BLOCK)
        else:
            numbers = number.expand_as(key).contiguous()
            _fold[grid](key, numbers, 0, out, key.numel(), 1, first, second, _BLOCK)
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info, in_dims, key, number, first, second):
        if in_dims[0] is None:
            key = key.expand(info.batch_size, *key.shape)
        else:
            key = key.movedim(in_dims[0], 0)
        if in_dims[1] is not None:
            number = number.movedim(in_dims[1], 0)
            number = number.view(*number.shape, *[1] * (key.dim() - number.dim()))
        return Fold.apply(key, number, first, second), 0


class Uniform(torch.autograd.Function):
    """Keys [...] -> numbers in (0, 1), [..., *shape]."""

    @staticmethod
    def forward(key, shape, step, first, second):
        key, count = key.contiguous(), math.prod(shape)
        out = torch.empty((*key.shape, *shape), device=key.device, dtype=torch.float32)
        _uniform[triton.cdiv(count, _BLOCK), key.numel()](
            key, out, count, step, first, second, _BLOCK
        )
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info, in_dims, key, shape, step, first, second):
        return Uniform.apply(key.movedim(in_dims[0], 0), shape, step, first, second), 0


def fold(key: Tensor, number: int | Tensor, first: int, second: int) -> Tensor:
    keys: Tensor = Fold.apply(key, number, first, second)
    return keys


def uniform(key: Tensor, shape: tuple[int, ...], step: int, first: int, second: int) -> Tensor:
    numbers: Tensor = Uniform.apply(key, shape, step, first, second)
    return numbers
