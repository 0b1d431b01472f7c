"""A dense layer of one client or a stack of them, with gradients laid out in memory as the weights
are.

Left to itself, autograd hands back transposed weight gradients, and the optimizer's step pays for
that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedblocks.core.precision import as_factors


class Dense(torch.autograd.Function):
    """[..., batch, in] times the transpose of [..., out, in], plus [..., out]."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return multiply(x, weight.mT, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias = inputs
        needs_x, needs_weight, _ = ctx.needs_input_grad
        # inputs of weights at rest are not kept: most of the memory of a frozen net
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        product = Product.apply if slope.is_cuda else torch.matmul
        d_x = product(slope, weight) if ctx.needs_input_grad[0] else None
        d_weight = product(slope.mT, x) if ctx.needs_input_grad[1] else None
        return d_x, d_weight, slope.sum(-2) if ctx.has_bias else None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor | None
    ) -> tuple[Tensor, int]:
        x, weight, bias = inputs
        shared = in_dims[1] is None and in_dims[2] is None and in_dims[0] is not None
        if shared and weight is not None and weight.dim() == 2:
            # weights that clients have in common: their rows are one batch
            rows = stacked(x, in_dims[0], info.batch_size)
            y = Dense.apply(rows.flatten(0, 1), weight, bias)  # type: ignore[no-untyped-call,union-attr]
            return y.unflatten(0, rows.shape[:2]), 0  # type: ignore[union-attr]
        full = [stacked(t, dim, info.batch_size) for t, dim in zip(inputs, in_dims, strict=True)]
        return Dense.apply(*full), 0  # type: ignore[no-untyped-call]


class Product(torch.autograd.Function):
    """[..., rows, depth] times [..., depth, columns], in one launch for all clients of a stack."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return multiply(a, b, None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        d_a = Product.apply(slope, b.mT) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        d_b = Product.apply(a.mT, slope) if ctx.needs_input_grad[1] else None  # type: ignore[no-untyped-call]
        return d_a, d_b

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor
    ) -> tuple[Tensor, int]:
        first, second = (stacked(t, d, info.batch_size) for t, d in zip((a, b), in_dims))
        if in_dims[1] is None and b.dim() == 2 and first is not None:
            y = Product.apply(first.flatten(0, 1), b)  # type: ignore[no-untyped-call]
            return y.unflatten(0, first.shape[:2]), 0
        return Product.apply(first, second), 0  # type: ignore[no-untyped-call]


def multiply(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """[..., rows, depth] times [..., depth, columns], plus [..., columns]."""
    if a.is_cuda and a.shape[:-2] == b.shape[:-2]:
        from fedblocks.kernels.triton import product  # Triton comes with torch's GPU builds only

        first, second = (t.reshape(-1, *t.shape[-2:]) for t in (a, b))
        if product.pays(first, second):
            shifts = None if bias is None else bias.reshape(len(first), -1)
            y = product.multiply(first, second, shifts)
            return y.view(*a.shape[:-1], b.shape[-1])
    if bias is None:
        return a @ b
    if a.dim() == 2:
        return torch.addmm(bias, a, b)  # one pass over the result, not two
    if a.dim() == 3:
        return torch.baddbmm(bias.unsqueeze(-2), a, b)
    return a @ b + bias.unsqueeze(-2)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What `F.linear` gives, for any number of dimensions."""
    x, weight, bias = as_factors(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])  # one row of a single example, too
    y: Tensor = Dense.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], -1)


def stacked(t: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """A tensor with the clients first; one that they share is a view."""
    if t is None:
        return None
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
