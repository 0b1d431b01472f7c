"""Convolutions that become one launch for all clients of a stack, with gradients that
can be mapped themselves.
"""

from __future__ import annotations

import torch

from fedblocks.kernels.triton.convolution import convolve, gradients
from fedblocks.layers.dense import stacked


class _Convolution(torch.autograd.Function):
    """Common to the convolution of one client and that of a stack."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, bias, pad = inputs
        ctx.save_for_backward(x, w)
        ctx.pad, ctx.has_bias = pad, bias is not None

    @classmethod
    def keep_wanted(cls, ctx, grads):
        """Replace gradients that autograd did not ask for by None."""
        asked = (*ctx.needs_input_grad[:2], ctx.has_bias)
        return *(grad if needed else None for grad, needed in zip(grads, asked, strict=True)), None


class _Stacked(_Convolution):
    """The convolution of a stack of clients; a further dimension of copies is folded
    into the clients.
    """

    @staticmethod
    def forward(x, w, bias, pad):
        return convolve(x, w, bias, pad)

    @staticmethod
    def backward(ctx, dy):
        return _Stacked.keep_wanted(
            ctx, gradients(dy, *ctx.saved_tensors, ctx.pad, ctx.needs_input_grad[:2])
        )

    @staticmethod
    def vmap(info, in_dims, x, w, bias, pad):
        full = [
            stacked(t, d, info.batch_size) for t, d in zip((x, w, bias), in_dims[:3], strict=True)
        ]
        folded = [None if t is None else t.flatten(0, 1) for t in full]
        y = _Stacked.apply(*folded, pad)
        return y.unflatten(0, full[1].shape[:2]), 0


class ClientConvolution(_Convolution):
    """A plain convolution that becomes one launch for all clients when it is mapped over them."""

    @staticmethod
    def forward(x, w, bias, pad):
        return torch.nn.functional.conv2d(x, w, bias, padding=pad)

    @staticmethod
    def backward(ctx, dy):
        grads = ClientGradients.apply(
            dy, *ctx.saved_tensors, ctx.pad, tuple(ctx.needs_input_grad[:2])
        )
        return ClientConvolution.keep_wanted(ctx, grads)

    @staticmethod
    def vmap(info, in_dims, x, w, bias, pad):
        full = [
            stacked(t, d, info.batch_size) for t, d in zip((x, w, bias), in_dims[:3], strict=True)
        ]
        return _Stacked.apply(*full, pad), 0


class ClientGradients(torch.autograd.Function):
    """The way back, which can be mapped itself, as when a method takes gradients inside
    a client.
    """

    @staticmethod
    def forward(dy, x, w, pad, wanted):
        pads, ones, none, asked = [pad, pad], [1, 1], [0, 0], [*wanted, True]
        grads = torch.ops.aten.convolution_backward(
            dy, x, w, [len(w)], ones, pads, ones, False, none, 1, asked
        )
        return tuple(x.new_empty(0) if grad is None else grad for grad in grads)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3])
        ctx.pad, ctx.wanted = inputs[3:]

    @staticmethod
    def backward(ctx, ddx, ddw, ddb):
        dy, x, w = ctx.saved_tensors
        return *second_gradients(dy, x, w, (ddx, ddw, ddb), ctx.pad, ctx.wanted), None, None

    @staticmethod
    def vmap(info, in_dims, dy, x, w, pad, wanted):
        full = [
            stacked(t, d, info.batch_size) for t, d in zip((dy, x, w), in_dims[:3], strict=True)
        ]
        return gradients(*full, pad, wanted), (
            0 if wanted[0] else None,
            0 if wanted[1] else None,
            0,
        )


def second_gradients(dy, x, w, slopes, pad, wanted):
    """Of dy, x and w: convolutions and gradients again, for every product of the way
    back is linear in both factors.
    """
    ddx, ddw, ddb = slopes
    slope, of_x, of_w = ddb[:, None, None].expand_as(dy), None, None
    if wanted[0]:
        slope = slope + ClientConvolution.apply(ddx, w, None, pad)
        of_w = ClientGradients.apply(dy, ddx, w, pad, (False, True))[1]
    if wanted[1]:
        slope = slope + ClientConvolution.apply(x, ddw, None, pad)
        of_x = ClientGradients.apply(dy, x, ddw, pad, (True, False))[0]
    return slope, of_x, of_w
