"""Group normalisation of many clients in one launch, each with its own scales and shifts.

Torch's operation has one scale for all examples; mapped over clients it is done without, and scales
and shifts follow as further passes over the memory. Here a program holds one group of one example.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 16384  # numbers of a group, which a program holds at once


@triton.jit
def _forward(
    x,
    w,
    b,
    y,
    B,
    GROUPS,
    P,
    eps,
    CHANNELS: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # a client, an example, a group
    c, p = tl.arange(0, BC), tl.arange(0, BP)
    real = (c < CHANNELS)[:, None] & (p < P)[None, :]
    at = (row * CHANNELS + c)[:, None] * P + p[None, :]
    value = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    count = CHANNELS * P
    mean = tl.sum(tl.sum(value, 1), 0) / count
    off = tl.where(real, value - mean, 0.0)
    spread = tl.sqrt(tl.sum(tl.sum(off * off, 1), 0) / count + eps)
    own = (row // (GROUPS * B) * GROUPS + row % GROUPS) * CHANNELS + c
    scale = tl.load(w + own, mask=c < CHANNELS, other=0.0)
    shift = tl.load(b + own, mask=c < CHANNELS, other=0.0)
    tl.store(y + at, off / spread * scale[:, None] + shift[:, None], mask=real)


@triton.jit
def _backward(
    dy,
    x,
    w,
    dx,
    dw,
    db,
    B,
    GROUPS,
    P,
    eps,
    CHANNELS: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    c, p = tl.arange(0, BC), tl.arange(0, BP)
    real = (c < CHANNELS)[:, None] & (p < P)[None, :]
    at = (row * CHANNELS + c)[:, None] * P + p[None, :]
    value = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    slope = tl.load(dy + at, mask=real, other=0.0).to(tl.float32)
    count = CHANNELS * P
    mean = tl.sum(tl.sum(value, 1), 0) / count
    off = tl.where(real, value - mean, 0.0)
    spread = tl.sqrt(tl.sum(tl.sum(off * off, 1), 0) / count + eps)
    normal = off / spread
    own = (row // (GROUPS * B) * GROUPS + row % GROUPS) * CHANNELS + c
    scale = tl.load(w + own, mask=c < CHANNELS, other=0.0)
    of_scale, of_shift = tl.sum(slope * normal, 1), tl.sum(slope, 1)
    tl.store(dw + row * CHANNELS + c, of_scale, mask=c < CHANNELS)
    tl.store(db + row * CHANNELS + c, of_shift, mask=c < CHANNELS)
    along = tl.sum(of_scale * scale, 0) / count
    level = tl.sum(of_shift * scale, 0) / count
    tl.store(dx + at, (slope * scale[:, None] - level - normal * along) / spread, mask=real)


def forward(x: Tensor, w: Tensor, b: Tensor, groups: int, eps: float) -> Tensor:
    """[clients, batch, channels, ...] with scales and shifts [clients, channels]."""
    x = x.contiguous()
    y = torch.empty_like(x)
    sizes, blocks, warps = _sizes(x, groups, eps)
    _forward[(_rows(x, groups),)](
        x, w.contiguous(), b.contiguous(), y, *sizes, *blocks, num_warps=warps
    )
    return y


def gradients(
    dy: Tensor, x: Tensor, w: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of inputs, scales and shifts."""
    dy, x = dy.contiguous(), x.contiguous()
    dx = torch.empty_like(x)
    dw, db = (torch.empty(x.shape[:3], device=x.device, dtype=w.dtype) for _ in range(2))
    sizes, blocks, warps = _sizes(x, groups, eps)
    _backward[(_rows(x, groups),)](
        dy, x, w.contiguous(), dx, dw, db, *sizes, *blocks, num_warps=warps
    )
    return dx, dw.sum(1), db.sum(1)


def fits(shape: torch.Size, groups: int) -> bool:
    """Whether a program can hold a group: [batch, channels, ...] of a client."""
    channels, pixels = shape[1] // groups, shape[2:].numel()
    held = triton.next_power_of_2(max(1, channels)) * triton.next_power_of_2(max(1, pixels))
    return held <= MOST and shape.numel() > 0


def _rows(x: Tensor, groups: int) -> int:
    return x.shape[0] * x.shape[1] * groups


def _sizes(
    x: Tensor, groups: int, eps: float
) -> tuple[tuple[int, int, int, float], tuple[int, int, int], int]:
    """Sizes, blocks, and how many warps keep about sixteen numbers in each thread."""
    channels, pixels = x.shape[2] // groups, x.shape[3:].numel()
    blocks = (triton.next_power_of_2(channels), triton.next_power_of_2(pixels))
    warps = min(16, max(1, blocks[0] * blocks[1] // 512))
    return (x.shape[1], groups, pixels, eps), (channels, *blocks), warps
