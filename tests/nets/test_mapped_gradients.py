"""What fused layers do on the way back, written in plain operations for second derivatives, is what
autograd finds; the kernels themselves are tested on a GPU.
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


def test_attention_is_not_fused_on_a_cpu() -> None:
    query = torch.zeros(2, 3, 5, 4)
    assert not can_fuse(query, query, query)


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
