"""Max pooling over windows side by side: which pixel won is kept in a byte, and the way
back writes each once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _forward(x, y, winner, H, W, OH, OW, count, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = i < count
    plane, r = i // (OH * OW), i % (OH * OW)
    corner = x + plane * H * W + r // OW * SIZE * W + r % OW * SIZE
    best = tl.load(corner, mask=real, other=0.0).to(tl.float32)
    which = tl.zeros((BLOCK,), dtype=tl.int8)
    for k in tl.static_range(1, SIZE * SIZE):
        value = tl.load(corner + k // SIZE * W + k % SIZE, mask=real, other=0.0).to(tl.float32)
        # the first of equals wins, and what is no number goes through
        larger = (value > best) | (value != value)
        best = tl.where(larger, value, best)
        which = tl.where(larger, k, which).to(tl.int8)
    tl.store(y + i, best, mask=real)
    tl.store(winner + i, which, mask=real)


@triton.jit
def _backward(dy, winner, dx, H, W, OH, OW, count, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = i < count
    plane, r = i // (H * W), i % (H * W)
    iy, ix = r // W, r % W
    inside = real & (iy < OH * SIZE) & (ix < OW * SIZE)
    at = plane * OH * OW + iy // SIZE * OW + ix // SIZE
    mine = tl.load(winner + at, mask=inside, other=-1) == iy % SIZE * SIZE + ix % SIZE
    tl.store(dx + i, tl.load(dy + at, mask=inside & mine, other=0.0), mask=real)


class MaxPool(torch.autograd.Function):
    """[..., h, w] -> [..., h // size, w // size]."""

    @staticmethod
    def forward(x, size):
        x = x.contiguous()
        H, W = x.shape[-2:]
        y = torch.empty(*x.shape[:-2], H // size, W // size, device=x.device, dtype=x.dtype)
        winner = torch.empty(y.shape, device=x.device, dtype=torch.int8)
        grid = (triton.cdiv(y.numel(), _BLOCK),)
        _forward[grid](x, y, winner, H, W, *y.shape[-2:], y.numel(), size, _BLOCK)
        return y, winner

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.size = inputs
        ctx.shape = x.shape
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, dy, unused):
        return Unpooled.apply(dy, ctx.saved_tensors[0], ctx.shape[-2:], ctx.size), None

    @staticmethod
    def vmap(info, in_dims, x, size):
        return MaxPool.apply(x.movedim(in_dims[0], 0), size), (0, 0)


class Unpooled(torch.autograd.Function):
    """The way back, which can be mapped itself, as when a method takes gradients inside
    a client.
    """

    @staticmethod
    def forward(dy, winner, shape, size):
        dy = dy.contiguous()
        dx = torch.empty(*dy.shape[:-2], *shape, device=dy.device, dtype=dy.dtype)
        grid = (triton.cdiv(dx.numel(), _BLOCK),)
        _backward[grid](dy, winner, dx, *shape, *dy.shape[-2:], dx.numel(), size, _BLOCK)
        return dx

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])
        ctx.size = inputs[3]

    @staticmethod
    def backward(ctx, ddx):
        return won(ddx, ctx.saved_tensors[0], ctx.size), None, None, None

    @staticmethod
    def vmap(info, in_dims, dy, winner, shape, size):
        full = [
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip((dy, winner), in_dims[:2], strict=True)
        ]
        return Unpooled.apply(full[0], full[1].contiguous(), shape, size), 0


def max_pool(x: Tensor, size: int) -> Tensor:
    """Max pooling with windows of size x size, side by side."""
    largest: Tensor = MaxPool.apply(x, size)[0]
    return largest


def unpooled(dy: Tensor, winner: Tensor, shape: tuple[int, int], size: int) -> Tensor:
    """The way back: each slope at the place of the pixel that won its window, zero elsewhere."""
    slopes: Tensor = Unpooled.apply(dy, winner, shape, size)
    return slopes


def won(values: Tensor, winner: Tensor, size: int) -> Tensor:
    """The values [..., h, w] of the pixels that won [..., h // size, w // size]; zero
    where none did.
    """
    height, width = (count * size for count in winner.shape[-2:])
    rows = values[..., :height, :width].unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
    windows = rows.transpose(-3, -2).flatten(-2)  # [..., h, w, size * size]
    winners = windows.gather(-1, winner.clamp(min=0).long()[..., None])[..., 0]
    return torch.where(winner >= 0, winners, 0)
