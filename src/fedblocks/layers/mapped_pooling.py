"""A convolution, the max pooling behind it and a rectifier as one launch for all
clients of a stack.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.kernels.cuda import narrow
from fedblocks.kernels.triton.convolution import gradients
from fedblocks.kernels.triton.pooling import MaxPool, unpooled, won
from fedblocks.layers.dense import stacked
from fedblocks.layers.mapped_convolution import (
    ClientGradients,
    StackedGradients,
    dims_of,
    second_gradients,
)


class _Pooled(torch.autograd.Function):
    """Common to the function of one client and that of a stack."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, bias, ctx.pad, _ = inputs
        ctx.has_bias = bias is not None
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], x, w)

    @classmethod
    def keep_wanted(cls, ctx, grads):
        """Replace gradients that autograd did not ask for by None."""
        asked = (*ctx.needs_input_grad[:2], ctx.has_bias)
        return (
            *(grad if needed else None for grad, needed in zip(grads, asked, strict=True)),
            None,
            None,
        )


class _StackedPool(_Pooled):
    """Of a stack of clients; a further dimension of copies is folded into the clients."""

    @staticmethod
    def forward(x, w, bias, pad, rectified):
        return narrow.forward(x, w, bias, narrow.Shape.of(x, w, pad, pooled=True), rectified)

    @staticmethod
    def backward(ctx, dy, unused):
        winner, x, w = ctx.saved_tensors
        return _StackedPool.keep_wanted(
            ctx, gradients(dy, x, w, (ctx.pad, 1), ctx.needs_input_grad[:2], winner)
        )

    @staticmethod
    def vmap(info, in_dims, x, w, bias, pad, rectified):
        full = [
            stacked(t, d, info.batch_size) for t, d in zip((x, w, bias), in_dims[:3], strict=True)
        ]
        y, winner = _StackedPool.apply(
            *(None if t is None else t.flatten(0, 1) for t in full), pad, rectified
        )
        return (y.unflatten(0, full[1].shape[:2]), winner.unflatten(0, full[1].shape[:2])), (0, 0)


class ClientPooling(_Pooled):
    """Of one client; one launch for all of them when it is mapped."""

    @staticmethod
    def forward(x, w, bias, pad, rectified):
        y, winner = MaxPool.forward(F.conv2d(x, w, bias, padding=pad), 2)
        if rectified:
            winner.masked_fill_(y <= 0, -1)
        return y.relu() if rectified else y, winner

    @staticmethod
    def backward(ctx, dy, unused):
        winner, x, w = ctx.saved_tensors
        wanted = tuple(ctx.needs_input_grad[:2])
        return ClientPooling.keep_wanted(
            ctx, PooledGradients.apply(dy, winner, x, w, ctx.pad, wanted)
        )

    @staticmethod
    def vmap(info, in_dims, x, w, bias, pad, rectified):
        full = [
            stacked(t, d, info.batch_size) for t, d in zip((x, w, bias), in_dims[:3], strict=True)
        ]
        return _StackedPool.apply(*full, pad, rectified), (0, 0)


class PooledGradients(torch.autograd.Function):
    """The way back, which can be mapped itself, as when a method takes gradients inside
    a client.
    """

    @staticmethod
    def forward(dy, winner, x, w, pad, wanted):
        return ClientGradients.forward(
            unpooled(dy, winner, _outputs(x, w, pad), 2), x, w, (pad, 1), wanted
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:4])
        ctx.pad, ctx.wanted = inputs[4:]

    @staticmethod
    def backward(ctx, *slopes):
        dy, winner, x, w = ctx.saved_tensors
        full = unpooled(dy, winner, _outputs(x, w, ctx.pad), 2)
        slope, of_x, of_w = second_gradients(full, x, w, slopes, (ctx.pad, 1), ctx.wanted)
        return won(slope, winner, 2), None, of_x, of_w, None, None

    @staticmethod
    def vmap(info, in_dims, dy, winner, x, w, pad, wanted):
        tensors = zip((dy, winner, x, w), in_dims[:4], strict=True)
        dy, winner, x, w = (stacked(t, d, info.batch_size) for t, d in tensors)
        return StackedGradients.apply(dy, x, w, winner, (pad, 1), wanted), dims_of(wanted)


def _outputs(x: Tensor, w: Tensor, pad: int) -> tuple[int, int]:
    return narrow.Shape.of(x, w, pad).outputs


def convolve_and_pool(
    x: Tensor, w: Tensor, bias: Tensor | None, pad: int, rectified: bool
) -> Tensor | None:
    """[batch, in, h, w] of a client -> [batch, out, h' // 2, w' // 2]; None if no
    kernel fits these sizes.
    """
    if not narrow.Shape.of(x, w, pad, pooled=True).fits():
        return None
    y: Tensor = ClientPooling.apply(x, w, bias, pad, rectified)[0]
    return y
