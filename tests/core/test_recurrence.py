"""The LSTM of a stack of clients is torch's, client by client: outputs, last state and
gradients.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fedblocks import nets
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.recurrent_net import Unrolled, _check
from fedblocks.layers.recurrence import recurrence

CLIENTS, BATCH, STEPS, WIDTH, HIDDEN = 3, 4, 5, 6, 7
NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


@pytest.fixture
def lstms() -> list[nn.LSTM]:
    torch.manual_seed(0)
    return [nn.LSTM(WIDTH, HIDDEN, batch_first=True, dtype=torch.double) for _ in range(CLIENTS)]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(
        CLIENTS, BATCH, STEPS, WIDTH, dtype=torch.double, generator=torch.Generator().manual_seed(1)
    )


def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Uses every output, and both parts of the last state."""
    read = F.linear(x, weights["weight_ih_l0"], weights["bias_ih_l0"] + weights["bias_hh_l0"])
    zero = x.new_zeros(len(x), HIDDEN)
    outs, (h, c) = recurrence(read, weights["weight_hh_l0"], zero, zero)
    return outs.pow(3).sum() + h.sum() ** 2 + c.sin().sum()


def stacked(lstms: list[nn.LSTM]) -> dict[str, Tensor]:
    return {
        name: torch.stack([lstm.get_parameter(name).detach() for lstm in lstms]) for name in NAMES
    }


def expected(lstms: list[nn.LSTM], x: Tensor) -> dict[str, Tensor]:
    actual = []
    for lstm, own in zip(lstms, x):
        outs, (h, c) = lstm(own)
        total = outs.pow(3).sum() + h.sum() ** 2 + c.sin().sum()
        actual.append(torch.autograd.grad(total, [lstm.get_parameter(name) for name in NAMES]))
    return {name: torch.stack(gradients) for name, gradients in zip(NAMES, zip(*actual))}


def test_the_gradients_of_a_stack_are_those_of_each_client(lstms, x):
    weights = {name: value.requires_grad_() for name, value in stacked(lstms).items()}
    total = vmap(loss)(weights, x).sum()
    actual = torch.autograd.grad(total, list(weights.values()))
    for name, gradient in zip(weights, actual):
        assert torch.allclose(gradient, expected(lstms, x)[name], atol=1e-12), name


def test_gradients_can_be_taken_inside_a_client(lstms, x):
    actual = vmap(grad(loss))(stacked(lstms), x)
    for name in NAMES:
        assert torch.allclose(actual[name], expected(lstms, x)[name], atol=1e-12), name


def test_a_stack_of_copies_inside_a_client_works_too(lstms, x):
    weights = {
        name: value.expand(2, *value.shape).clone().requires_grad_()
        for name, value in stacked(lstms).items()
    }
    total = vmap(vmap(loss), in_dims=(0, None))(weights, x).sum()
    actual = torch.autograd.grad(total, list(weights.values()))
    for name, gradient in zip(weights, actual):
        assert torch.allclose(gradient, expected(lstms, x)[name].expand_as(gradient), atol=1e-12), (
            name
        )


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({}, True), ({"num_layers": 2}, False), ({"bias": False}, False),
        ({"batch_first": False}, False), ({"bidirectional": True}, False),
        ({"proj_size": 2}, False),
    ],
)  # fmt: skip
def test_only_a_plain_lstm_is_run_step_by_step(options: dict[str, Any], plain: bool) -> None:
    layer = nn.LSTM(3, 4, **{"batch_first": True, **options})
    if plain:
        _check("0", layer)
        return
    with pytest.raises(UserError, match='the LSTM "0" cannot be run step by step'):
        _check("0", layer)


def test_a_net_is_unrolled_if_it_has_one_layer_of_lstm() -> None:
    one = Unrolled.of(nets.lstm((7,), 5, units=4, embedding=3))
    assert one is not None and (one.width, one.hidden) == (3, 4)
    assert Unrolled.of(Net.of(lambda: nn.Sequential(nn.Linear(3, 4)))) is None
    with pytest.raises(UserError, match="cannot be run step by step"):
        Unrolled.of(nets.lstm((7,), 5, layers=2))
