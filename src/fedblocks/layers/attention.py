"""Attention in operations that can be mapped over clients: products and a softmax, for which the
clients are a further dimension of the batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedblocks.core.mode import current
from fedblocks.core.precision import as_factors
from fedblocks.layers.dense import dense
from fedblocks.layers.fused import as_if_training
from fedblocks.layers.mapped_attention import can_fuse, fused_attention, idle_queries
from fedblocks.layers.noise import check_training, drop_out


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What `F.scaled_dot_product_attention` gives; dropout draws from the step's own key."""
    if dropout_p > 0:
        check_training("scaled_dot_product_attention with dropout")
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
    query, key, value = as_factors(query, key, value)
    certain = attn_mask is None or not attn_mask.requires_grad  # numbers may be learned
    if current().mapped and certain and dropout_p == 0 and can_fuse(query, key, value):
        closed = (
            ~attn_mask if attn_mask is not None and attn_mask.dtype == torch.bool else attn_mask
        )
        numbers = None if closed is None else _as_numbers(closed, query.dtype)
        return fused_attention(query, key, value, numbers, is_causal, scale)
    if is_causal:
        shape = (query.shape[-2], key.shape[-2])
        attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    return _weights(query, key, attn_mask, dropout_p, scale) @ value


def _weights(
    query: Tensor, key: Tensor, mask: Tensor | None, dropout: float, scale: float | None
) -> Tensor:
    """How much each query takes of each value: [..., queries, keys]."""
    scores = (query * (scale or 1 / math.sqrt(query.shape[-1]))) @ key.mT
    if mask is None:
        weights = scores.softmax(-1)
    elif mask.dtype == torch.bool:
        idle = ~mask.any(-1, keepdim=True)  # queries that may take nothing: they get zeros
        weights = scores.masked_fill(~(mask | idle), -math.inf).softmax(-1).masked_fill(idle, 0)
    else:
        idle = idle_queries(mask)
        weights = (scores + mask.masked_fill(idle, 0)).softmax(-1).masked_fill(idle, 0)
    return drop_out(weights, dropout, whole_channels=False) if dropout else weights


class Masks(NamedTuple):
    """What keeps queries from keys, true = closed, or numbers to add."""

    padding: Tensor | None  # [batch, keys]
    mask: Tensor | None  # [queries, keys], or one for each example and head
    is_causal: bool  # a hint: the mask closes what comes later, and nothing else

    def of_one(self) -> Masks:
        """For a batch of one example."""
        return self._replace(padding=None if self.padding is None else self.padding.unsqueeze(0))

    def are_certain(self) -> bool:
        """Whether no gradient is asked for: numbers may be learned."""
        return not any(t is not None and t.requires_grad for t in (self.padding, self.mask))


class MultiheadAttention(nn.MultiheadAttention):
    """Torch's fused attention for a single client; for a stack of clients, and where it has
    dropout, in plain operations.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if self.is_fused():
            with as_if_training(self):
                return super().forward(
                    query,
                    key,
                    value,
                    key_padding_mask,
                    need_weights,
                    attn_mask,
                    average_attn_weights,
                    is_causal,
                )
        masks = Masks(key_padding_mask, attn_mask, is_causal and not need_weights)
        if query.dim() == 2:
            batch = 0 if self.batch_first else 1
            one, other, third = (t.unsqueeze(batch) for t in (query, key, value))
            out, weights = self._attend(one, other, third, masks.of_one(), need_weights)
            out, weights = out.squeeze(batch), None if weights is None else weights.squeeze(0)
        else:
            out, weights = self._attend(query, key, value, masks, need_weights)
        if weights is None or not need_weights:
            return out, None
        return out, weights.mean(-3) if average_attn_weights else weights

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, masks: Masks, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs as the inputs lie, and the weights [batch, heads, queries, keys], which the
        fused form does not have.
        """
        q, k, v = self.project(query, key, value)  # [batch, steps, features]
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (self._append(t, b) for t, b in ((k, self.bias_k), (v, self.bias_v)))
        q, k, v = (self._heads(t) for t in (q, k, v))
        if self.add_zero_attn:
            k, v = (torch.cat([t, torch.zeros_like(t[..., :1, :])], -2) for t in (k, v))
        dropout = self.dropout if current().training and self.training else 0.0
        weights, fuses = None, not need_weights and dropout == 0 and masks.are_certain()
        if fuses and current().mapped and can_fuse(q, k, v):
            hint = masks.is_causal and masks.padding is None and q.shape[-2] == k.shape[-2]
            both = None if hint else self._merge(masks, q, k.shape[-2])
            y = fused_attention(q, k, v, both, is_causal=hint)
        else:
            weights = _weights(q, k, self._merge(masks, q, k.shape[-2]), dropout, None)
            y = weights @ v
        y = y.transpose(1, 2).flatten(-2)  # [batch, queries, features]
        y = dense(y, self.out_proj.weight, self.out_proj.bias)
        return y if self.batch_first else y.transpose(0, 1), weights

    def is_fused(self) -> bool:
        """Whether torch's own kernel does it."""
        return not (current().mapped or self.dropout > 0)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: [batch, steps, features]."""
        if query is key and key is value and self._qkv_same_embed_dim:
            x = query if self.batch_first else query.transpose(0, 1)
            q, k, v = dense(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
            return q, k, v
        if self._qkv_same_embed_dim:
            matrices = self.in_proj_weight.chunk(3)
        else:
            matrices = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            dense(t if self.batch_first else t.transpose(0, 1), w, b)
            for t, w, b in zip((query, key, value), matrices, biases, strict=True)
        )
        return q, k, v

    def _heads(self, t: Tensor) -> Tensor:
        """[batch, steps, features] -> [batch, heads, steps, features of a head]."""
        return t.view(*t.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _append(self, t: Tensor, last: Tensor) -> Tensor:
        return torch.cat([t, last.expand(len(t), 1, -1)], 1)

    def _merge(self, masks: Masks, query: Tensor, keys: int) -> Tensor | None:
        """Both masks as numbers to add to the scores; keys that the layer appended are open."""
        padding, mask = masks.padding, masks.mask
        if padding is None and mask is None:
            return None
        total = query.new_zeros(())
        if mask is not None:
            numbers = _as_numbers(mask, query.dtype)
            total = numbers.view(*query.shape[:2], *mask.shape[1:]) if mask.dim() == 3 else numbers
        if padding is not None:
            total = total + _as_numbers(padding, query.dtype)[:, None, None]
        return F.pad(total, (0, keys - total.shape[-1]))


def _as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as torch's layers take it, true = closed, as numbers to add."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
