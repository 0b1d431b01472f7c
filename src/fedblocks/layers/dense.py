"""A dense layer of one client or a stack of them, with gradients laid out in memory as the weights
are.

Left to itself, autograd hands back transposed weight gradients, and the optimizer's step pays for
that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Dense(torch.autograd.Function):
    """[..., batch, in] times the transpose of [..., out, in], plus [..., out]."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return x @ weight.mT
        if x.dim() == 3:
            return torch.baddbmm(bias.unsqueeze(-2), x, weight.mT)
        return x @ weight.mT + bias.unsqueeze(-2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias = inputs
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        d_x = slope @ weight if ctx.needs_input_grad[0] else None
        d_weight = slope.mT @ x if ctx.needs_input_grad[1] else None
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


def dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What `F.linear` gives, for any number of dimensions."""
    rows = x.reshape(-1, x.shape[-1])  # one row of a single example, too
    y: Tensor = Dense.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], -1)


def stacked(t: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """A tensor with the clients first; one that they share is a view."""
    if t is None:
        return None
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
