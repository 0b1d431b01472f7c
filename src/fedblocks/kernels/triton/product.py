"""Matrix products of many clients in one launch (Triton, CUDA), on tensor cores.

cuBLAS does products in single precision without tensor cores. Here each factor is the sum of two or
three of lower precision, whose products tensor cores do: no larger error, in less time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedblocks.kernels.trust import KernelUse, run_checked

_LEAST = (128, 64, 64)  # rows, columns and depth from which it pays
_BLOCK = (128, 64, 32)  # likewise; found by trying on an H200, as warps and stages
_WARPS, _STAGES = 8, 3


@triton.jit
def _batched(
    a,
    b,
    bias,
    y,
    M,
    N,
    K,
    a_group,
    a_row,
    a_column,
    b_group,
    b_row,
    b_column,
    bias_group,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One block of [BM, BN] of one client's product; neighbours share rows of the first factor."""
    g = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(N, BN)
    m = tl.program_id(0) // across * BM + tl.arange(0, BM)
    n = tl.program_id(0) % across * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    left = a + g * a_group + m.to(tl.int64)[:, None] * a_row + k[None, :] * a_column
    right = b + g * b_group + k[:, None] * b_row + n[None, :] * b_column
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for rest in range(K, 0, -BK):
        p = tl.load(left, mask=(m < M)[:, None] & (k < rest)[None, :], other=0.0)
        q = tl.load(right, mask=(k < rest)[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(p, q, acc, input_precision=PRECISION)
        left += BK * a_column
        right += BK * b_row
    if HAS_BIAS:
        acc += tl.load(bias + g * bias_group + n, mask=n < N, other=0.0)[None, :]
    where = y + g * M * N + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(where, acc, mask=(m < M)[:, None] & (n < N)[None, :])


def pays(a: Tensor, b: Tensor) -> bool:
    """Whether a product of [clients, rows, depth] and [clients, depth, columns] is faster here."""
    sizes = (a.shape[1], b.shape[2], a.shape[2])
    is_rough = torch.backends.cuda.matmul.allow_tf32
    large = all(size >= least for size, least in zip(sizes, _LEAST, strict=True))
    return large and not is_rough and a.dtype == b.dtype == torch.float32


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """[clients, rows, columns]: a product for each client, plus [clients, columns]."""
    a, b = _dense(a), _dense(b)
    # three products of halves need the depth side by side in memory; six of thirds do not
    precision = "tf32x3" if a.stride(2) == b.stride(1) == 1 else "bf16x6"
    lies = (a.stride(1) == 1, b.stride(1) == 1, bias is not None)
    use = KernelUse("product", (*a.shape[1:], b.shape[2], *lies), precision)
    return run_checked(use, _launch, _plain, (a, b, bias), (precision,))


def _plain(a: Tensor, b: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    return a @ b if bias is None else torch.baddbmm(bias.unsqueeze(1), a, b)


def _launch(a: Tensor, b: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    (G, M, K), N = a.shape, b.shape[2]
    y = torch.empty(G, M, N, device=a.device, dtype=a.dtype)
    rows, columns, _ = _BLOCK
    cube = (triton.cdiv(M, rows) * triton.cdiv(N, columns), G)
    shifts = a if bias is None else bias.contiguous()
    arguments = (a, b, shifts, y, M, N, K, *a.stride(), *b.stride(), shifts.stride(0), *_BLOCK)
    _batched[cube](*arguments, bias is not None, precision, num_warps=_WARPS, num_stages=_STAGES)
    return y


def _dense(t: Tensor) -> Tensor:
    """The tensor itself if its rows or columns lie side by side in memory."""
    return t if 1 in t.stride()[1:] else t.contiguous()


def batched_product(a: Tensor, b: Tensor) -> Tensor:
    """[clients, rows, columns], by whichever way is faster."""
    return multiply(a, b) if pays(a, b) else a @ b
