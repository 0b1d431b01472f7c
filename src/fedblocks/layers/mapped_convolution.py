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
        x, w, bias, ctx.ways = inputs
        ctx.save_for_backward(x, w)
        ctx.has_bias = bias is not None

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
    def forward(x, w, bias, ways):
        return convolve(x, w, bias, *ways)

    @staticmethod
    def backward(ctx, dy):
        return _Stacked.keep_wanted(
            ctx, gradients(dy, *ctx.saved_tensors, ctx.ways, ctx.needs_input_grad[:2])
        )

    @staticmethod
    def vmap(info, in_dims, x, w, bias, ways):
        full = [
            stacked(t, d, info.batch_size) for t, d in zip((x, w, bias), in_dims[:3], strict=True)
        ]
        folded = [None if t is None else t.flatten(0, 1) for t in full]
        y = _Stacked.apply(*folded, ways)
        return y.unflatten(0, full[1].shape[:2]), 0


class ClientConvolution(_Convolution):
    """A plain convolution that becomes one launch for all clients when it is mapped over them;
    `ways` are padding and stride.
    """

    @staticmethod
    def forward(x, w, bias, ways):
        return torch.nn.functional.conv2d(x, w, bias, padding=ways[0], stride=ways[1])

    @staticmethod
    def backward(ctx, dy):
        grads = ClientGradients.apply(
            dy, *ctx.saved_tensors, ctx.ways, tuple(ctx.needs_input_grad[:2])
        )
        return ClientConvolution.keep_wanted(ctx, grads)

    @staticmethod
    def vmap(info, in_dims, x, w, bias, ways):
        full = [
            stacked(t, d, info.batch_size) for t, d in zip((x, w, bias), in_dims[:3], strict=True)
        ]
        return _Stacked.apply(*full, ways), 0


class ClientGradients(torch.autograd.Function):
    """The way back, which can be mapped itself, as when a method takes gradients inside
    a client.
    """

    @staticmethod
    def forward(dy, x, w, ways, wanted):
        (pads, strides), ones, none = ([way, way] for way in ways), [1, 1], [0, 0]
        grads = torch.ops.aten.convolution_backward(
            dy, x, w, [len(w)], strides, pads, ones, False, none, 1, [*wanted, True]
        )
        return tuple(x.new_empty(0) if grad is None else grad for grad in grads)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3])
        ctx.ways, ctx.wanted = inputs[3:]

    @staticmethod
    def backward(ctx, ddx, ddw, ddb):
        dy, x, w = ctx.saved_tensors
        return *second_gradients(dy, x, w, (ddx, ddw, ddb), ctx.ways, ctx.wanted), None, None

    @staticmethod
    def vmap(info, in_dims, dy, x, w, ways, wanted):
        full = [
            stacked(t, d, info.batch_size) for t, d in zip((dy, x, w), in_dims[:3], strict=True)
        ]
        return StackedGradients.apply(*full, None, ways, wanted), dims_of(wanted)


class StackedGradients(torch.autograd.Function):
    """The way back of a stack of clients; a further dimension of copies is folded into the
    clients.
    """

    @staticmethod
    def forward(dy, x, w, winner, ways, wanted):
        return gradients(dy, x, w, ways, wanted, winner)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, dy, x, w, winner, ways, wanted):
        tensors = zip((dy, x, w, winner), in_dims[:4], strict=True)
        full = [stacked(t, d, info.batch_size) for t, d in tensors]
        folded = [None if t is None else t.flatten(0, 1) for t in full]
        grads, dims = StackedGradients.apply(*folded, ways, wanted), dims_of(wanted)
        sizes = full[0].shape[:2]
        copies = (g if d is None else g.unflatten(0, sizes) for g, d in zip(grads, dims))
        return tuple(copies), dims


def dims_of(wanted):
    """Where the clients are in each gradient; those that are not wanted are empty."""
    return 0 if wanted[0] else None, 0 if wanted[1] else None, 0


def second_gradients(dy, x, w, slopes, ways, wanted):
    """Of dy, x and w: convolutions and gradients again, for every product of the way
    back is linear in both factors.
    """
    ddx, ddw, ddb = slopes
    slope, of_x, of_w = ddb[:, None, None].expand_as(dy), None, None
    if wanted[0]:
        slope = slope + ClientConvolution.apply(ddx, w, None, ways)
        of_w = ClientGradients.apply(dy, ddx, w, ways, (False, True))[1]
    if wanted[1]:
        slope = slope + ClientConvolution.apply(x, ddw, None, ways)
        of_x = ClientGradients.apply(dy, x, ddw, ways, (True, False))[0]
    return slope, of_x, of_w
