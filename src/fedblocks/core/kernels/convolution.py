"""Convolutions of many clients in one launch (Triton, CUDA): every client has its own weights.

cuDNN launches one kernel a client for a grouped convolution. These serve the whole stack at once: few filters by direct
multiplication, more by matrix products whose inputs are split in three (error below plain single precision).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_FEW = 8  # output channels up to which direct multiplication beats matrix products padded to 16


@triton.jit
def _direct(
    x, w, bias, y, group_stride, B, C, H, W, F, OH, OW,
    PAD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    g = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    P, K = OH * OW, C * KH * KW
    b, r = m // P, m % P
    oy, ox = r // OW, r % OW
    real = m < B * P
    corner = x + g * group_stride + b * C * H * W + (oy - PAD) * W + (ox - PAD)
    acc = tl.zeros((BN, BM), dtype=tl.float32)
    for c in range(0, C):
        for ky in tl.static_range(KH):
            for kx in tl.static_range(KW):
                inside = real
                if PAD > 0:
                    iy, ix = oy + (ky - PAD), ox + (kx - PAD)
                    inside = real & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
                a = tl.load(corner + c * H * W + ky * W + kx, mask=inside, other=0.0)
                k = tl.load(w + g * F * K + n * K + (c * KH + ky) * KW + kx, mask=n < F, other=0.0)
                acc += k[:, None] * a[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + g * F + n, mask=n < F, other=0.0)[:, None]
    where = y + g * B * F * P + b[None, :] * F * P + n[:, None] * P + r[None, :]
    tl.store(where, acc, mask=real[None, :] & (n < F)[:, None])


@triton.jit
def _product(
    x, w, bias, y, group_stride, B, C, H, W, F, OH, OW,
    PAD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    g = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    P, K = OH * OW, C * KH * KW
    b, r = m // P, m % P
    oy, ox = r // OW, r % OW
    real = m < B * P
    corner = x + g * group_stride + b * C * H * W + (oy - PAD) * W + (ox - PAD)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        c, q = k // (KH * KW), k % (KH * KW)
        ky, kx = q // KW, q % KW
        inside = real[:, None] & (k < K)[None, :]
        if PAD > 0:
            iy, ix = oy[:, None] + (ky - PAD)[None, :], ox[:, None] + (kx - PAD)[None, :]
            inside = inside & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
        a = tl.load(corner[:, None] + (c * H * W + ky * W + kx)[None, :], mask=inside, other=0.0)
        weights = w + g * F * K + n[None, :] * K + k[:, None]
        kernel = tl.load(weights, mask=(k < K)[:, None] & (n < F)[None, :], other=0.0)
        acc = tl.dot(a, kernel, acc, input_precision=PRECISION)
    if HAS_BIAS:
        acc += tl.load(bias + g * F + n, mask=n < F, other=0.0)[None, :]
    where = y + g * B * F * P + b[:, None] * F * P + n[None, :] * P + r[:, None]
    tl.store(where, acc, mask=real[:, None] & (n < F)[None, :])


@triton.jit
def _weight_gradient(
    x, dy, dw, group_stride, B, C, H, W, F, OH, OW, SPLITS,
    PAD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
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
        oy, ox = r // OW, r % OW
        corner = x + g * group_stride + b * C * H * W + (oy - PAD) * W + (ox - PAD)
        inside = real[:, None] & (k < K)[None, :]
        if PAD > 0:
            iy, ix = oy[:, None] + (ky - PAD)[None, :], ox[:, None] + (kx - PAD)[None, :]
            inside = inside & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
        a = tl.load(corner[:, None] + offset[None, :], mask=inside, other=0.0)
        slope = dy + g * B * F * P + (b * F * P + r)[None, :] + n[:, None] * P
        d = tl.load(slope, mask=real[None, :] & (n < F)[:, None], other=0.0)
        acc = tl.dot(d, a, acc, input_precision=PRECISION)
    where = dw + ((split * tl.num_programs(2) + g) * F + n[:, None]) * K + k[None, :]
    tl.store(where, acc, mask=(n < F)[:, None] & (k < K)[None, :])


@triton.jit
def _few_filters_gradient(
    x, dy, dw, group_stride, B, C, H, W, F, OH, OW,
    PAD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One row of a filter and BM positions, over all images: the sums stay in registers until the end."""
    part, g = tl.program_id(0), tl.program_id(2).to(tl.int64)
    P, K = OH * OW, C * KH * KW
    c, ky = tl.program_id(1) // KH, tl.program_id(1) % KH
    n, r = tl.arange(0, BN), part * BM + tl.arange(0, BM)
    iy, ix = r // OW + (ky - PAD), r % OW - PAD
    real = r < P
    if PAD > 0:
        real = real & (iy >= 0) & (iy < H)
    pixel = x + g * group_stride + c * H * W + iy * W + ix
    slope = dy + g * B * F * P + n[:, None] * P + r[None, :]
    known = (r < P)[None, :] & (n < F)[:, None]
    sum0 = tl.zeros((BN, BM), dtype=tl.float32)
    sum1, sum2, sum3, sum4 = sum0, sum0, sum0, sum0
    for b in range(0, B):
        d = tl.load(slope + b * F * P, mask=known, other=0.0)
        at = pixel + b * C * H * W
        sum0 += d * tl.load(at, mask=real & (ix >= 0) & (ix < W), other=0.0)[None, :]
        if KW > 1:
            sum1 += d * tl.load(at + 1, mask=real & (ix + 1 >= 0) & (ix + 1 < W), other=0.0)[None, :]
        if KW > 2:
            sum2 += d * tl.load(at + 2, mask=real & (ix + 2 >= 0) & (ix + 2 < W), other=0.0)[None, :]
        if KW > 3:
            sum3 += d * tl.load(at + 3, mask=real & (ix + 3 >= 0) & (ix + 3 < W), other=0.0)[None, :]
        if KW > 4:
            sum4 += d * tl.load(at + 4, mask=real & (ix + 4 >= 0) & (ix + 4 < W), other=0.0)[None, :]
    where = dw + ((part * tl.num_programs(2) + g) * F + n) * K + tl.program_id(1) * KW
    tl.store(where, tl.sum(sum0, 1), mask=n < F)
    if KW > 1:
        tl.store(where + 1, tl.sum(sum1, 1), mask=n < F)
    if KW > 2:
        tl.store(where + 2, tl.sum(sum2, 1), mask=n < F)
    if KW > 3:
        tl.store(where + 3, tl.sum(sum3, 1), mask=n < F)
    if KW > 4:
        tl.store(where + 4, tl.sum(sum4, 1), mask=n < F)


def convolve(x: Tensor, w: Tensor, bias: Tensor | None, pad: int) -> Tensor:
    """[clients, batch, in, h, w] and [clients, out, in, kh, kw] -> [clients, batch, out, h', w']."""
    (G, B, C, H, W), (F, KH, KW) = x.shape, (w.shape[1], w.shape[3], w.shape[4])
    OH, OW = H + 2 * pad - KH + 1, W + 2 * pad - KW + 1
    x, w = _dense(x), w.contiguous()
    y = torch.empty(G, B, F, OH, OW, device=x.device, dtype=x.dtype)
    sizes = (x, w, x if bias is None else bias.contiguous(), y, x.stride(0), B, C, H, W, F, OH, OW)
    if F <= _FEW:
        grid = (triton.cdiv(B * OH * OW, 512), G)
        _direct[grid](*sizes, pad, KH, KW, 512, _power(F, 1), bias is not None, num_warps=4 if pad else 2)
        return y
    block, warps = min(_power(F, 16), 64), 4 if F > 16 and C * KH * KW > 64 else 2
    cube = (triton.cdiv(B * OH * OW, 64), G, triton.cdiv(F, block))
    _product[cube](*sizes, pad, KH, KW, 64, block, 32, bias is not None, _precision(), num_warps=warps, num_stages=2)
    return y


def weight_gradient(x: Tensor, dy: Tensor, kernel: tuple[int, int], pad: int) -> Tensor:
    """[clients, out, in, kh, kw]: partial sums, then their sum. Sizes of tiles were found by trying."""
    (G, B, C, H, W), (F, OH, OW), (KH, KW) = x.shape, dy.shape[2:], kernel
    x, dy = _dense(x), dy.contiguous()
    K, M = C * KH * KW, B * OH * OW
    sizes = (x.stride(0), B, C, H, W, F, OH, OW)
    if F <= _FEW and KW <= 5:
        parts = triton.cdiv(OH * OW, 128)
        dw = torch.empty(parts, G, F, K, device=x.device, dtype=x.dtype)
        _few_filters_gradient[parts, C * KH, G](x, dy, dw, *sizes, pad, KH, KW, 128, _power(F, 1), num_warps=1)
        return dw.sum(0).view(G, F, C, KH, KW)
    small = F <= 16 or K <= 32
    rows, block, deep, warps, stages = (16, 16, 32, 1, 3) if small else (32, 32, 64, 4 if M > 2048 else 2, 2)
    parts = max(1, min(96, M // 512) if small else M // 2048)
    dw = torch.empty(parts, G, F, K, device=x.device, dtype=x.dtype)
    _weight_gradient[parts, triton.cdiv(K, deep) * triton.cdiv(F, block), G](
        x, dy, dw, *sizes, parts, pad, KH, KW, rows, block, deep, _precision(), num_warps=warps, num_stages=stages
    )
    return dw.sum(0).view(G, F, C, KH, KW)


def gradients(dy: Tensor, x: Tensor, w: Tensor, pad: int, wanted: tuple[bool, bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Of inputs, weights and biases of a stack; one that is not wanted is left empty."""
    turned = w.flip(-1, -2).transpose(1, 2)
    dx = convolve(dy, turned, None, w.shape[-1] - 1 - pad) if wanted[0] else x.new_empty(0)
    dw = weight_gradient(x, dy, (w.shape[-2], w.shape[-1]), pad) if wanted[1] else x.new_empty(0)
    return dx, dw, dy.sum((1, 3, 4))


def _dense(x: Tensor) -> Tensor:
    """Contiguous within a client; clients that share their input may share its memory."""
    return x if x.stride(0) == 0 and x[0].is_contiguous() else x.contiguous()


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def _power(number: int, least: int) -> int:
    """The next power of two."""
    return max(least, 1 << (number - 1).bit_length())
