"""Convolutions of a stack of clients by torch alone, every client a group: right, and slow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def convolve_in_groups(
    x: Tensor, w: Tensor, bias: Tensor | None, outputs: tuple[int, int], ways: tuple[int, int, int]
) -> Tensor:
    """[clients, batch, in, h, w] and [clients, out, in, kernel, kernel] -> [clients, batch, out,
    *outputs]; `ways` are padding, stride, and how far inputs lie apart.
    """
    pad, stride, apart = ways
    clients, kernel = len(x), w.shape[-1]
    if apart > 1:
        # zeros between the inputs, and as many around them as the outputs need
        size = [side + kernel - 1 for side in outputs]
        wide = x.new_zeros(*x.shape[:3], *size)
        down, across = (slice(pad, pad + (side - 1) * apart + 1, apart) for side in x.shape[-2:])
        wide[..., down, across] = x
        x, pad = wide, 0
    shifts = None if bias is None else bias.flatten()
    y = F.conv2d(_side_by_side(x), w.flatten(0, 1), shifts, stride, pad, groups=clients)
    stacked: Tensor = y.unflatten(1, (clients, -1)).transpose(0, 1)
    return stacked


def weight_gradient_in_groups(x: Tensor, dy: Tensor, kernel: int, ways: tuple[int, int]) -> Tensor:
    """[clients, out, in, kernel, kernel]; `ways` are padding and stride."""
    clients, channels, filters = len(x), x.shape[2], dy.shape[2]
    (pads, strides), ones, none = ([way, way] for way in ways), [1, 1], [0, 0]
    weights = x.new_empty(clients * filters, channels, kernel, kernel)  # for their shape
    tensors = (_side_by_side(dy), _side_by_side(x), weights)
    _, dw, _ = torch.ops.aten.convolution_backward(
        *tensors, None, strides, pads, ones, False, none, clients, [False, True, False]
    )
    gradient: Tensor = dw.unflatten(0, (clients, filters))
    return gradient


def _side_by_side(x: Tensor) -> Tensor:
    """[clients, batch, channels, h, w] -> [batch, clients * channels, h, w]."""
    return x.transpose(0, 1).flatten(1, 2)
