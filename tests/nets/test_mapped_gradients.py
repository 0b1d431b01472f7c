"""What fused layers do on the way back, written in plain operations for second derivatives, is what
autograd finds; the kernels of a GPU themselves are tested there.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.mode import mode
from fedblocks.layers.attention import attention
from fedblocks.layers.mapped_attention import _aligned, _plain_gradients, can_fuse


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_way_back_of_attention_is_autograds(is_causal: bool, has_bias: bool) -> None:
    torch.manual_seed(0)
    inputs = draw(2, 3, 5, 4), draw(2, 3, 5, 4), draw(2, 3, 5, 6)
    closed = torch.tensor([False, False, True, False, True])
    bias = torch.zeros(5, dtype=torch.float64).masked_fill(closed, -math.inf) if has_bias else None
    seen = torch.ones(5, 5, dtype=torch.bool).tril() if is_causal else torch.ones(5, 5).bool()
    y = F.scaled_dot_product_attention(*inputs, seen & ~closed if has_bias else seen, scale=0.7)
    dy = torch.randn(y.shape, dtype=torch.float64)
    expected = torch.autograd.grad(y, inputs, dy)
    actual = _plain_gradients(dy, inputs, bias, is_causal, 0.7)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_rows_of_a_bias_begin_where_the_kernels_can_load_and_hold_the_same_numbers() -> None:
    bias = torch.randn(2, 3, 5, 11)
    aligned = _aligned(bias)
    assert aligned is not None and torch.equal(aligned, bias)
    assert aligned.stride(-2) % 16 == 0


def test_attention_is_fused_in_single_precision_alone() -> None:
    query = torch.zeros(2, 3, 5, 4)
    assert can_fuse(query, query, query)
    assert not can_fuse(*[query.double()] * 3)


def test_on_a_cpu_values_of_another_width_than_queries_are_not_fused() -> None:
    query = torch.zeros(2, 3, 5, 4)
    assert not can_fuse(query, query, torch.zeros(2, 3, 5, 8))


def test_attention_without_numbers_is_not_fused() -> None:
    query = torch.zeros(2, 3, 5, 4, device="meta")
    assert not can_fuse(query, query, query)


@pytest.mark.parametrize("kind", ["all", "causal", "padded"])
def test_fused_attention_of_mapped_clients_is_that_of_each_in_plain_operations(kind: str) -> None:
    torch.manual_seed(0)
    clients = [torch.randn(3, 2, 4, 5, 8) for _ in range(3)]  # [clients, examples, heads, ...]
    closed = torch.rand(3, 2, 1, 1, 5) < 0.4
    closed[0, 0] = True  # an example that fills up a batch: its queries look nowhere
    bias = torch.zeros(closed.shape).masked_fill(closed, -math.inf) if kind == "padded" else None
    slope = torch.randn(5, 8)

    def loss(query: Tensor, key: Tensor, value: Tensor, own: Tensor | None) -> Tensor:
        is_causal = kind == "causal"
        return (attention(query, key, value, own, is_causal=is_causal) * slope).sin().sum()

    with mode(training=True, mapped=True, key=None):
        of_bias = None if bias is None else 0
        slopes = torch.func.grad_and_value(loss, (0, 1, 2))
        grads, values = torch.vmap(slopes, (0, 0, 0, of_bias))(*clients, bias)
        for client in range(3):
            alone = [t[client].double().requires_grad_() for t in clients]
            own = None if bias is None else bias[client].double()
            expected = loss(*alone, own)
            torch.testing.assert_close(values[client], expected.float(), rtol=1e-5, atol=1e-5)
            for one, other in zip(grads, torch.autograd.grad(expected, alone), strict=True):
                torch.testing.assert_close(one[client], other.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_numbers", [True, False])
def test_a_query_that_may_look_nowhere_gets_zeros_and_leaves_gradients_finite(
    is_numbers: bool,
) -> None:
    torch.manual_seed(0)
    inputs = draw(2, 3, 4, 6), draw(2, 3, 5, 6), draw(2, 3, 5, 6)
    is_open = torch.rand(4, 5) < 0.5
    is_open[0], is_open[1] = False, True
    mask = torch.zeros(4, 5).masked_fill(~is_open, -math.inf).double() if is_numbers else is_open
    with mode(training=True, mapped=True, key=None):
        y = attention(*inputs, mask)
    expected = F.scaled_dot_product_attention(*inputs, is_open)
    assert not y[:, :, 0].any()
    torch.testing.assert_close(y, expected)
    slopes = zip(*(torch.autograd.grad(out.square().sum(), inputs) for out in (y, expected)))
    for one, other in slopes:
        torch.testing.assert_close(one, other)
