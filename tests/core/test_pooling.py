"""Max pooling without gradients, by whole rows: the same numbers as torch's, to the bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap

from fedblocks.layers.replacement import mappable

POOL = mappable(nn.MaxPool2d(2))


def _pixels(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("height", "width"), [(6, 8), (7, 5), (2, 3), (4, 2)])
@torch.no_grad()
def test_windows_of_two_are_pooled_as_torch_does_for_one_client_and_for_a_stack(height, width):
    x = _pixels(4, 5, 3, height, width)  # [clients, batch, colours, ...]
    expected = F.max_pool2d(x.flatten(0, 1), 2)
    assert torch.equal(POOL(x.flatten(0, 1)), expected)
    assert torch.equal(vmap(POOL)(x).flatten(0, 1), expected)


@torch.no_grad()
def test_what_is_no_number_goes_through_pooling():
    x = _pixels(1, 1, 4, 4)
    x[0, 0, 1, 2] = torch.nan
    assert POOL(x).isnan().tolist() == [[[[False, True], [False, False]]]]


def test_a_rectifier_before_pooling_may_as_well_come_after_it_to_the_bit():
    layers = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 2)]
    torch.manual_seed(0)
    plain = nn.Sequential(*layers)
    joined = mappable(plain)
    # done by the convolution
    assert [type(layer).__name__ for layer in joined[1:3]] == ["Identity", "Identity"]
    x = _pixels(9, 1, 8, 8)
    for net in (plain, joined):
        net(x).square().sum().backward()
    assert all(
        torch.equal(a.grad, b.grad)
        for a, b in zip(plain.parameters(), joined.parameters(), strict=True)
    )


ORDERS = [
    [nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.ReLU()],
    [nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Sigmoid(), nn.ReLU()],
    [nn.Conv2d(1, 3, 3), nn.Sigmoid(), nn.MaxPool2d(2)],
    [nn.Conv2d(1, 3, 3), nn.GroupNorm(3, 3), nn.ReLU(), nn.MaxPool2d(2)],
    [
        nn.Conv2d(1, 3, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(3, 2, 1),
    ],
    [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(3, stride=2)],
]


@pytest.mark.parametrize("layers", ORDERS, ids=range(len(ORDERS)))
def test_pooling_and_rectifiers_in_any_order_give_what_torch_gives(layers):
    plain = nn.Sequential(*layers)
    x = _pixels(4, 1, 12, 12)
    assert torch.equal(mappable(plain)(x), plain(x))
    assert mappable(plain).state_dict().keys() == plain.state_dict().keys()
