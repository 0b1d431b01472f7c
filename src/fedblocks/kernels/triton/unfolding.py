"""Inputs of a convolution laid out for one matrix product a client (Triton, CUDA).

For small images only: the kernels that gather inputs by themselves read those in small pieces, and
what is written here grows with the number of pixels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedblocks.kernels.cuda.narrow import Shape

_PIECE = 1024  # outputs that are unfolded together


@triton.jit
def _columns(
    x,
    y,
    group_stride,
    B,
    C,
    H,
    W,
    OH,
    OW,
    PAD: tl.constexpr,
    STRIDE: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    PIECE: tl.constexpr,
):
    """The inputs that one weight meets, over the outputs of all examples."""
    g, k = tl.program_id(2).to(tl.int64), tl.program_id(1)
    m = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    P, M = OH * OW, B * OH * OW
    c, q = k // (KH * KW), k % (KH * KW)
    b, r = m // P, m % P
    iy, ix = r // OW * STRIDE - PAD + q // KW, r % OW * STRIDE - PAD + q % KW
    inside = (m < M) & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
    value = tl.load(
        x + g * group_stride + (b * C + c) * H * W + iy * W + ix, mask=inside, other=0.0
    )
    tl.store(y + (g * C * KH * KW + k) * M + m, value, mask=m < M)


def unfold(x: Tensor, shape: Shape) -> Tensor:
    """[clients, in * kernel * kernel, batch * h' * w']: what each weight meets."""
    G, B, C, H, W = x.shape
    KS, (OH, OW) = shape.kernel, shape.outputs
    K, M = C * KS * KS, B * OH * OW
    y = torch.empty(G, K, M, device=x.device, dtype=x.dtype)
    sizes = (x.stride(0), B, C, H, W, OH, OW)
    cube = (triton.cdiv(M, _PIECE), K, G)
    _columns[cube](x, y, *sizes, shape.pad, shape.stride, KS, KS, _PIECE)
    return y
