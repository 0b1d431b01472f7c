"""Group normalisation that becomes one launch for all clients of a stack, with gradients that
can be mapped themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.kernels.triton import group_norm
from fedblocks.layers.dense import stacked


def normalise(x: Tensor, w: Tensor, b: Tensor, groups: int, eps: float) -> Tensor:
    """What `F.group_norm` gives for [batch, channels, ...] of a client; one launch if mapped."""
    apply: Callable[..., Tensor] = ClientNorm.apply
    return apply(x, w, b, groups, eps)


class _Norm(torch.autograd.Function):
    """Common to the normalisation of one client and that of a stack."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, _, *ctx.ways = inputs
        ctx.save_for_backward(x, w)


class StackedNorm(_Norm):
    """Of a stack of clients; a further dimension of copies is folded into the clients."""

    @staticmethod
    def forward(x, w, b, groups, eps):
        return group_norm.forward(x, w, b, groups, eps)

    @staticmethod
    def backward(ctx, dy):
        return *group_norm.gradients(dy, *ctx.saved_tensors, *ctx.ways), None, None

    @staticmethod
    def vmap(info, in_dims, x, w, b, groups, eps):
        full = _full(info, in_dims, x, w, b)
        y = StackedNorm.apply(*(t.flatten(0, 1) for t in full), groups, eps)
        return y.unflatten(0, full[1].shape[:2]), 0


class ClientNorm(_Norm):
    """Of one client; one launch for all of them when it is mapped."""

    @staticmethod
    def forward(x, w, b, groups, eps):
        return F.group_norm(x, groups, w, b, eps)

    @staticmethod
    def backward(ctx, dy):
        return *NormGradients.apply(dy, *ctx.saved_tensors, *ctx.ways), None, None

    @staticmethod
    def vmap(info, in_dims, x, w, b, groups, eps):
        return StackedNorm.apply(*_full(info, in_dims, x, w, b), groups, eps), 0


class NormGradients(torch.autograd.Function):
    """The way back, which can be mapped itself; its own way back is that of plain operations."""

    @staticmethod
    def forward(dy, x, w, groups, eps):
        return _plain_gradients(dy, x, w, groups, eps)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.groups, ctx.eps = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, *slopes):
        def again(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            return _plain_gradients(dy, x, w, ctx.groups, ctx.eps)

        _, pull = torch.func.vjp(again, *ctx.saved_tensors)
        return *pull(slopes), None, None

    @staticmethod
    def vmap(info, in_dims, dy, x, w, groups, eps):
        full = _full(info, in_dims, dy, x, w)
        return StackedNormGradients.apply(*full, groups, eps), (0, 0, 0)


class StackedNormGradients(torch.autograd.Function):
    """Of a stack of clients; a further dimension of copies is folded into the clients."""

    @staticmethod
    def forward(dy, x, w, groups, eps):
        return group_norm.gradients(dy, x, w, groups, eps)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, dy, x, w, groups, eps):
        full = _full(info, in_dims, dy, x, w)
        folded = StackedNormGradients.apply(*(t.flatten(0, 1) for t in full), groups, eps)
        return tuple(t.unflatten(0, full[0].shape[:2]) for t in folded), (0, 0, 0)


def _plain_gradients(
    dy: Tensor, x: Tensor, w: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of inputs, scales and shifts of one client, in operations that autograd knows."""
    rows = x.reshape(len(x), groups, -1)  # [batch, groups, channels of a group x pixels]
    off = rows - rows.mean(-1, keepdim=True)
    spread = (off.square().mean(-1, keepdim=True) + eps).sqrt()
    normal = off / spread
    slopes = dy.reshape(*x.shape[:2], -1)  # [batch, channels, pixels]
    of_scales = (normal.view(slopes.shape) * slopes).sum((0, 2))
    e = (dy * w.view(-1, *[1] * (x.dim() - 2))).reshape(rows.shape)
    along = (e * normal).mean(-1, keepdim=True)
    dx = (e - e.mean(-1, keepdim=True) - normal * along) / spread
    return dx.view(x.shape), of_scales, slopes.sum((0, 2))


def _full(info, in_dims, *tensors):
    return [stacked(t, d, info.batch_size) for t, d in zip(tensors, in_dims[:3], strict=True)]
