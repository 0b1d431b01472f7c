"""Convolutions of many clients in one launch (Triton, CUDA): every client has its own weights.

cuDNN launches one kernel a client for a grouped convolution. These serve the whole stack at once:
few filters by plain multiplication (`narrow`), more by matrix products whose inputs are split in
three (error below single precision).
"""

from __future__ import annotations

from dataclasses import astuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedblocks.kernels.cuda import narrow
from fedblocks.kernels.cuda.narrow import Shape, dense
from fedblocks.kernels.grouped import convolve_in_groups, weight_gradient_in_groups
from fedblocks.kernels.triton.pooling import unpooled
from fedblocks.kernels.triton.product import batched_product
from fedblocks.kernels.triton.tiles import gradient_tiles, product_tiles
from fedblocks.kernels.triton.unfolding import unfold
from fedblocks.kernels.trust import KernelUse, run_checked

# what Triton calls them; factors of half precision are multiplied as they are
_IN_TRITON = {"tf32": "tf32", "tf32x3": "tf32x3", "bf16": "tf32"}
_UNFOLDED = 1 << 27  # numbers that unfolded inputs may be: half a gigabyte


@triton.jit
def _meeting(place, PAD: tl.constexpr, APART: tl.constexpr, SIZE: tl.constexpr):
    """The first row of a filter that meets inputs, and how many do: that and every APART-th."""
    first = (PAD + APART - place) % APART
    return first, tl.cdiv(SIZE - first, APART)


@triton.jit
def _product(
    x,
    w,
    bias,
    y,
    group_stride,
    B,
    C,
    H,
    W,
    F,
    OH,
    OW,
    PAD: tl.constexpr,
    STRIDE: tl.constexpr,
    APART: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Inputs lie APART pixels from each other, with zeros between them: the way back of a
    convolution with that stride. Outputs that see the same part of the filter are done together.
    """
    g = tl.program_id(1).to(tl.int64)
    height, width = tl.cdiv(OH, APART), tl.cdiv(OW, APART)
    P = height * width
    tiles = tl.cdiv(B * P, BM)
    kind = tl.program_id(0) // tiles
    m = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    b, r = m // P, m % P
    oy, ox = r // width * APART + kind // APART, r % width * APART + kind % APART
    real = (m < B * P) & (oy < OH) & (ox < OW)
    first_y, rows = _meeting(kind // APART, PAD, APART, KH)
    first_x, columns = _meeting(kind % APART, PAD, APART, KW)
    K = C * rows * columns
    # no filter reaches some outputs: nothing to add, and nothing to divide by
    taps, across = tl.maximum(rows * columns, 1), tl.maximum(columns, 1)
    # exact: nothing is left over
    top, left = (oy * STRIDE - PAD + first_y) // APART, (ox * STRIDE - PAD + first_x) // APART
    corner = x + g * group_stride + b * C * H * W + top * W + left
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        c, q = k // taps, k % taps
        ky, kx = q // across, q % across
        inside = real[:, None] & (k < K)[None, :]
        if PAD > 0 or APART > 1:
            iy, ix = top[:, None] + ky[None, :], left[:, None] + kx[None, :]
            inside = inside & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
        a = tl.load(corner[:, None] + (c * H * W + ky * W + kx)[None, :], mask=inside, other=0.0)
        at = k if APART == 1 else (c * KH + first_y + ky * APART) * KW + first_x + kx * APART
        weights = w + g * F * C * KH * KW + n[None, :] * C * KH * KW + at[:, None]
        kernel = tl.load(weights, mask=(k < K)[:, None] & (n < F)[None, :], other=0.0)
        acc = tl.dot(a, kernel, acc, input_precision=PRECISION)
    if HAS_BIAS:
        acc += tl.load(bias + g * F + n, mask=n < F, other=0.0)[None, :]
    where = y + ((g * B + b) * F * OH + oy)[:, None] * OW + ox[:, None] + n[None, :] * OH * OW
    tl.store(where, acc, mask=real[:, None] & (n < F)[None, :])


@triton.jit
def _weight_gradient(
    x,
    dy,
    dw,
    group_stride,
    B,
    C,
    H,
    W,
    F,
    OH,
    OW,
    SPLITS,
    PAD: tl.constexpr,
    STRIDE: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    split, g = tl.program_id(0), tl.program_id(2).to(tl.int64)
    P, K = OH * OW, C * KH * KW
    M = B * P
    tiles = tl.cdiv(K, BK)
    k = tl.program_id(1) % tiles * BK + tl.arange(0, BK)
    n = tl.program_id(1) // tiles * BN + tl.arange(0, BN)
    c, q = k // (KH * KW), k % (KH * KW)
    ky, kx = q // KW, q % KW
    offset = tl.where(k < K, c * H * W + ky * W + kx, 0)
    acc = tl.zeros((BN, BK), dtype=tl.float32)
    share = tl.cdiv(tl.cdiv(M, SPLITS), BM) * BM
    for m0 in range(split * share, tl.minimum((split + 1) * share, M), BM):
        m = m0 + tl.arange(0, BM)
        real = m < M
        b, r = m // P, m % P
        top, left = r // OW * STRIDE - PAD, r % OW * STRIDE - PAD
        corner = x + g * group_stride + b * C * H * W + top * W + left
        inside = real[:, None] & (k < K)[None, :]
        if PAD > 0:
            iy, ix = top[:, None] + ky[None, :], left[:, None] + kx[None, :]
            inside = inside & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
        a = tl.load(corner[:, None] + offset[None, :], mask=inside, other=0.0)
        slope = dy + g * B * F * P + (b * F * P + r)[None, :] + n[:, None] * P
        d = tl.load(slope, mask=real[None, :] & (n < F)[:, None], other=0.0)
        acc = tl.dot(d, a, acc, input_precision=PRECISION)
    where = dw + ((split * tl.num_programs(2) + g) * F + n[:, None]) * K + k[None, :]
    tl.store(where, acc, mask=(n < F)[:, None] & (k < K)[None, :])


def convolve(x: Tensor, w: Tensor, bias: Tensor | None, pad: int, stride: int = 1) -> Tensor:
    """[clients, batch, in, h, w] and [clients, out, in, kernel, kernel] -> [clients,
    batch, out, h', w'].
    """
    shape = Shape.of(x, w, pad, stride)
    if shape.fits() and x.dtype == torch.float32:
        return narrow.forward(x, w, bias, shape)[0]
    return _multiply(x, w, bias, shape.outputs, (pad, stride, 1))


def input_gradient(dy: Tensor, w: Tensor, shape: Shape) -> Tensor:
    """[clients, batch, in, h, w]: a convolution with the weights turned around."""
    turned, pad = w.flip(-1, -2).transpose(1, 2), shape.kernel - 1 - shape.pad
    if shape.stride == 1:
        return convolve(dy, turned, None, pad)
    return _multiply(dy, turned, None, (shape.height, shape.width), (pad, 1, shape.stride))


def _multiply(
    x: Tensor, w: Tensor, bias: Tensor | None, outputs: tuple[int, int], ways: tuple[int, int, int]
) -> Tensor:
    """By matrix products; `ways` are padding, stride, and how far inputs lie apart."""
    sizes = (*x.shape[1:], *w.shape[1:], *outputs, *ways, bias is not None)
    use = KernelUse("convolution", sizes, _precision(x))
    tensors = (x, w, bias)
    return run_checked(use, _launch_product, convolve_in_groups, tensors, (outputs, ways))


def _launch_product(
    x: Tensor, w: Tensor, bias: Tensor | None, outputs: tuple[int, int], ways: tuple[int, int, int]
) -> Tensor:
    G, B, C, H, W = x.shape
    F, KS = w.shape[1], w.shape[-1]
    x, w = dense(x), w.contiguous()
    y = torch.empty(G, B, F, *outputs, device=x.device, dtype=x.dtype)
    precision = _precision(x)
    tile, block, deep, warps, stages = product_tiles(F, C * KS * KS, precision)
    apart = ways[2]
    pixels = triton.cdiv(outputs[0], apart) * triton.cdiv(outputs[1], apart)
    cube = (apart**2 * triton.cdiv(B * pixels, tile), G, triton.cdiv(F, block))
    shifts = x if bias is None else bias.contiguous()
    sizes = (B, C, H, W, F, *outputs)
    arguments = (x, w, shifts, y, x.stride(0), *sizes, *ways, KS, KS, tile, block, deep)
    ways_of_dot = (bias is not None, _IN_TRITON[precision])
    _product[cube](*arguments, *ways_of_dot, num_warps=warps, num_stages=stages)
    return y


def weight_gradient(x: Tensor, dy: Tensor, shape: Shape) -> Tensor:
    """[clients, out, in, kernel, kernel]."""
    precision, pixels = _precision(x), shape.outputs[0] * shape.outputs[1]
    few = 256 if precision == "tf32x3" else 64  # pixels: gathering them reads small pieces
    launch = _unfolded_gradient if shape.filters >= 128 and few >= pixels else _summed_gradient
    use = KernelUse(launch.__name__, (x.shape[1], *astuple(shape)), precision)
    return run_checked(use, launch, _plain_gradient, (x, dy), (shape,))


def _plain_gradient(x: Tensor, dy: Tensor, shape: Shape) -> Tensor:
    return weight_gradient_in_groups(x, dy, shape.kernel, (shape.pad, shape.stride))


def _summed_gradient(x: Tensor, dy: Tensor, shape: Shape) -> Tensor:
    """Partial sums, then their sum."""
    G, B = x.shape[:2]
    F, KS = shape.filters, shape.kernel
    OH, OW = shape.outputs
    x, dy = dense(x), dy.contiguous()
    K, M = shape.channels * KS * KS, B * OH * OW
    precision = _precision(x)
    rows, block, deep, warps, stages, share = gradient_tiles(F, K, precision)
    parts = max(1, min(96, M // share))
    dw = torch.empty(parts, G, F, K, device=x.device, dtype=torch.float32)
    sizes = (B, shape.channels, shape.height, shape.width, F, OH, OW)
    blocks = (rows, block, deep, _IN_TRITON[precision])
    arguments = (x, dy, dw, x.stride(0), *sizes, parts, *(shape.pad, shape.stride), KS, KS, *blocks)
    cube = (parts, triton.cdiv(K, deep) * triton.cdiv(F, block), G)
    _weight_gradient[cube](*arguments, num_warps=warps, num_stages=stages)
    return dw.sum(0).to(x.dtype).view(G, F, shape.channels, KS, KS)


def _unfolded_gradient(x: Tensor, dy: Tensor, shape: Shape) -> Tensor:
    """The same by one matrix product a client; as many clients at once as unfolded inputs may
    take memory.
    """
    x, slopes = dense(x), dy.transpose(1, 2).flatten(2)
    K, M = shape.channels * shape.kernel**2, slopes.shape[2]
    some = max(1, _UNFOLDED // (K * M))
    pieces = zip(x.split(some), slopes.split(some), strict=True)
    dw = torch.cat([batched_product(slope, unfold(own, shape).mT) for own, slope in pieces])
    return dw.view(len(x), shape.filters, shape.channels, shape.kernel, shape.kernel)


Wanted = tuple[bool, bool]  # the gradient of inputs, and that of weights


def gradients(
    dy: Tensor,
    x: Tensor,
    w: Tensor,
    ways: tuple[int, int],
    wanted: Wanted,
    winner: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of inputs, weights and biases of a stack, through its pooling if winners are
    given; unwanted ones are empty. `ways` are padding and stride.
    """
    shape = Shape.of(x, w, *ways, winner is not None)
    none = x.new_empty(0)
    single = x.dtype == torch.float32
    if single and shape.fits() and (shape.fits_backwards() or not wanted[0]):
        dy = dy.contiguous()
        won = x.new_empty(0, dtype=torch.int8) if winner is None else winner
        dx = narrow.input_gradient(dy, won, w, shape) if wanted[0] else none
        return dx, *narrow.weight_gradient(x, dy, won, shape)
    if winner is not None:
        return gradients(unpooled(dy, winner, shape.outputs, 2), x, w, ways, wanted)
    dx = input_gradient(dy, w, shape) if wanted[0] else none
    return dx, weight_gradient(x, dy, shape) if wanted[1] else none, dy.sum((1, 3, 4))


def _precision(x: Tensor) -> str:
    if x.dtype == torch.bfloat16:
        return "bf16"
    is_rough = torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if is_rough else "tf32x3"
