"""Torch's fused attention for a stack of clients, folded into its batch: no table of all queries
and keys is written to memory.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.layers.dense import stacked

_WIDE = 16  # bytes that the kernels load at once
_KINDS = (torch.float32, torch.bfloat16)
_ROW = 16  # numbers that a row of a mask is a multiple of, in memory
Bias = Tensor | None  # added to the scores: 0, or -inf where a query must not look


def can_fuse(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the kernels take these: examples x heads x steps x features, features in sixteen
    bytes; single or half precision on a GPU, single precision and equal features on a CPU.
    """
    dtype = query.dtype
    alike = dtype in _KINDS and key.dtype == value.dtype == dtype
    equal = dtype == torch.float32 and query.shape[-1] == value.shape[-1]
    here = query.is_cuda or (query.is_cpu and equal)
    plain = alike and here and all(t.dim() == 4 for t in (query, key, value))
    even = all(t.shape[-1] * t.element_size() % _WIDE == 0 for t in (query, value))
    return plain and even and query.shape[:2] == key.shape[:2] == value.shape[:2]


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Bias = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """[examples, heads, steps, features] of a client, or of all when it is mapped; the bias gets
    no gradient.
    """
    factor = scale or 1 / math.sqrt(query.shape[-1])
    if bias is None:
        y: Tensor = ClientAttention.apply(query, key, value, None, is_causal, factor)[0]
        return y
    idle = idle_queries(bias)
    whole = bias.masked_fill(idle, 0).expand(*query.shape[:3], key.shape[-2])
    y = ClientAttention.apply(query, key, value, whole, is_causal, factor)[0]
    return y.masked_fill(idle, 0)


def idle_queries(bias: Tensor) -> Tensor:
    """Those that may look nowhere, as in examples that fill up a batch: [..., queries, 1]. They
    get zeros, as torch gives them.
    """
    return (bias == -math.inf).all(-1, keepdim=True)


class _Attention(torch.autograd.Function):
    """Common to the attention of one client and that of a stack."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.is_causal, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, *output)


class StackedAttention(_Attention):
    """Of a stack of clients; a further dimension of copies is folded into the clients."""

    @staticmethod
    def forward(query, key, value, bias, is_causal, scale):
        clients = len(query)
        y, logs = _attend(*map(_fold, (query, key, value, bias)), is_causal, scale)
        return y.unflatten(0, (clients, -1)), logs.unflatten(0, (clients, -1))

    @staticmethod
    def backward(ctx, dy, unused):
        grads = _stacked_gradients(dy, *ctx.saved_tensors, ctx.is_causal, ctx.scale)
        return *grads, None, None, None

    @staticmethod
    def vmap(info, in_dims, query, key, value, bias, is_causal, scale):
        full = _full(info, in_dims, query, key, value, bias)
        outputs = StackedAttention.apply(*map(_fold, full), is_causal, scale)
        return tuple(t.unflatten(0, full[0].shape[:2]) for t in outputs), (0, 0)


class ClientAttention(_Attention):
    """Of one client; one launch for all of them when it is mapped."""

    @staticmethod
    def forward(query, key, value, bias, is_causal, scale):
        return _attend(query, key, value, bias, is_causal, scale)

    @staticmethod
    def backward(ctx, dy, unused):
        grads = AttentionGradients.apply(dy, *ctx.saved_tensors, ctx.is_causal, ctx.scale)
        return *grads, None, None, None

    @staticmethod
    def vmap(info, in_dims, query, key, value, bias, is_causal, scale):
        full = _full(info, in_dims, query, key, value, bias)
        return StackedAttention.apply(*full, is_causal, scale), (0, 0)


class AttentionGradients(torch.autograd.Function):
    """The way back, which can be mapped itself; its own way back is that of plain operations."""

    @staticmethod
    def forward(dy, query, key, value, bias, y, logs, is_causal, scale):
        return _gradients(dy, (query, key, value, bias, y, logs), is_causal, scale)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:5])
        ctx.is_causal, ctx.scale = inputs[7:]

    @staticmethod
    def backward(ctx, *slopes):
        *tensors, bias = ctx.saved_tensors

        def again(dy: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
            return _plain_gradients(dy, inputs, bias, ctx.is_causal, ctx.scale)

        # outputs and sums of the forward pass follow from the inputs, which are followed here
        _, pull = torch.func.vjp(again, *tensors)
        return *pull(slopes), *[None] * 5

    @staticmethod
    def vmap(info, in_dims, *inputs):
        full = _full(info, in_dims, *inputs[:7])
        return StackedAttentionGradients.apply(*full, *inputs[7:]), (0, 0, 0)


class StackedAttentionGradients(torch.autograd.Function):
    """Of a stack of clients; a further dimension of copies is folded into the clients."""

    @staticmethod
    def forward(*inputs):
        return _stacked_gradients(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, *inputs):
        full = _full(info, in_dims, *inputs[:7])
        grads = StackedAttentionGradients.apply(*map(_fold, full), *inputs[7:])
        return tuple(grad.unflatten(0, full[0].shape[:2]) for grad in grads), (0, 0, 0)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Bias, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Outputs, and the logarithm of each query's sum, which the way back needs."""
    if not query.is_cuda:
        y, logs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=bias, scale=scale
        )
        return y, logs
    y, logs, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, _aligned(bias), True, 0.0, is_causal, scale=scale
    )
    return y, logs


def _gradients(
    dy: Tensor, saved: tuple[Any, ...], is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, bias, y, logs = saved
    if not query.is_cuda:
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dy, query, key, value, y, logs, 0.0, is_causal, attn_mask=bias, scale=scale
        )
        return dq, dk, dv
    no_noise = torch.zeros((), dtype=torch.int64, device=query.device)
    tensors = (dy, query, key, value, _aligned(bias), y, logs, no_noise, no_noise)
    wanted = [True, True, True, False]
    dq, dk, dv, _ = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        *tensors, 0.0, wanted, is_causal, scale=scale
    )
    return dq, dk, dv


def _stacked_gradients(dy: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *saved, is_causal, scale = rest
    grads = _gradients(dy.flatten(0, 1), tuple(map(_fold, saved)), is_causal, scale)
    return tuple(grad.unflatten(0, (len(dy), -1)) for grad in grads)


def _plain_gradients(
    dy: Tensor, inputs: tuple[Tensor, Tensor, Tensor], bias: Bias, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of one client, in operations that autograd knows."""
    query, key, value = inputs
    scores = query @ key.mT * scale
    if bias is not None:
        scores = scores + bias
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    weights = scores.softmax(-1)
    of_weights = dy @ value.mT
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * scale
    return of_scores @ key, of_scores.mT @ query, weights.mT @ dy


def _aligned(bias: Bias) -> Bias:
    """The same numbers, in rows whose beginnings the kernels can load from."""
    if bias is None:
        return None
    keys = bias.shape[-1]
    return F.pad(bias, (0, -keys % _ROW))[..., :keys]


def _fold(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.flatten(0, 1)


def _full(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor | None) -> list[Any]:
    dims = in_dims[: len(tensors)]
    return [stacked(t, d, info.batch_size) for t, d in zip(tensors, dims, strict=True)]
