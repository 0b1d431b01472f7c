"""Corners of single layers: more dimensions, shares of 0 and 1, padding, first weights."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.func import grad, vmap

from fedblocks.core.errors import UserError
from fedblocks.core.mode import mode
from fedblocks.layers.dense import dense
from fedblocks.layers.noise import drop_out
from fedblocks.layers.replacement import _check_noise
from fedblocks.nets.mobilenet import _start
from fedblocks.nets.text import WordsAndBuckets


@pytest.mark.parametrize("shape", [(4,), (5, 4), (3, 5, 4), (2, 3, 5, 4)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_dense_layer_takes_inputs_of_any_dimensions(
    shape: tuple[int, ...], has_bias: bool
) -> None:
    draw = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(s, generator=draw, dtype=torch.double) for s in (shape, (6, 4), (6,)))
    ours, theirs = ([t.clone().requires_grad_() for t in (x, w, b)] for _ in range(2))
    for inputs, function in ((ours, dense), (theirs, F.linear)):
        inputs[2] = inputs[2] if has_bias else None  # type: ignore[call-overload]
        y = function(*inputs)
        assert y.shape == (*shape[:-1], 6)
        y.square().sum().backward()
    for one, other in zip(ours, theirs):
        if one is not None:
            torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("wanted", ["x", "weight"])
def test_a_dense_layer_keeps_its_inputs_only_for_weights_that_are_trained(wanted: str) -> None:
    """Inside a stack of clients, too: the doubled inputs are gone once the layer has used them."""
    kept: list[bool] = []

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        double = 2 * x
        bottom = double
        while is_functorch_wrapped_tensor(bottom):
            bottom = get_unwrapped(bottom)
        watch = weakref.ref(bottom)
        y = dense(double, weight, None)
        del double, bottom
        kept.append(watch() is not None)
        return y.square().sum()

    slope = grad(loss, ("x", "weight").index(wanted))
    vmap(slope)(torch.randn(2, 3, 4), torch.randn(2, 5, 4))
    assert kept == [wanted == "weight"]


def test_dropout_drops_nothing_or_everything_at_its_ends() -> None:
    x = torch.arange(1.0, 9.0).view(2, 4)
    with mode(training=True, mapped=False, key=torch.tensor(3)):
        assert torch.equal(drop_out(x, 0.0, False), x)
        assert torch.equal(drop_out(x, 1.0, False), torch.zeros(2, 4))


def test_first_weights_of_a_mobilenet_spread_as_its_outputs_say() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(64, 16, 3)
    _start(layer)
    assert float(layer.weight.detach().std()) == pytest.approx(math.sqrt(2 / (16 * 9)), rel=0.05)
    dense_layer = nn.Linear(400, 50)
    _start(dense_layer)
    assert float(dense_layer.weight.detach().std()) == pytest.approx(0.01, rel=0.05)
    assert not dense_layer.bias.detach().any()


def test_words_and_buckets_are_two_tables_and_padding_does_not_train() -> None:
    torch.manual_seed(0)
    table = WordsAndBuckets(rows=7, buckets=3, width=2)
    x = torch.tensor([[0, 1, 3, 4, 6]])
    known = [table.words.weight[i] for i in (0, 1, 3)]
    wanted = torch.stack([*known, table.oov.weight[0], table.oov.weight[2]])
    y = table(x)
    assert torch.equal(y[0], wanted) and not y[0, 0].any()
    y.sum().backward()
    assert table.words.weight.grad is not None and table.oov.weight.grad is not None
    assert table.words.weight.grad.tolist() == [[0, 0], [1, 1], [0, 0], [1, 1]]
    assert table.oov.weight.grad.tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (nn.AlphaDropout(), "AlphaDropout draws noise"),
        (nn.RReLU(), "RReLU draws noise"),
        (nn.FractionalMaxPool2d(2, 1), "FractionalMaxPool2d draws noise"),
        (nn.LSTM(3, 4, 2, dropout=0.5, proj_size=2), "LSTM draws noise"),
        (nn.LSTM(3, 4, 2, proj_size=2), ""),
        (nn.LSTM(3, 4, 2, dropout=0.5), ""),  # ours takes its place, and can repeat its noise
        (nn.GRU(3, 4, 2, dropout=0.5), ""),
        (nn.MultiheadAttention(4, 2, dropout=0.5), ""),
        (nn.InstanceNorm2d(3, track_running_stats=True), "keeps running statistics"),
        (nn.InstanceNorm2d(3), ""),
        (nn.BatchNorm2d(3), ""),
        (nn.SyncBatchNorm(3), "SyncBatchNorm joins the statistics"),
        (nn.Dropout(0.5), ""),
    ],
)
def test_layers_whose_noise_or_statistics_nobody_could_repeat_are_refused(
    layer: nn.Module, said: str
) -> None:
    if said:
        with pytest.raises(UserError, match=said):
            _check_noise(layer)
    else:
        _check_noise(layer)
