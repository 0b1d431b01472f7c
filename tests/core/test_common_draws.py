"""Buffers are constants of a net: those made from the first weights are refused."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from fedblocks.core.errors import NetError
from fedblocks.core.net import Net


class Own(nn.Module):
    """A layer, and a buffer made by a function of it."""

    def __init__(self, make: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)
        with torch.no_grad():
            self.register_buffer("w0", make(self))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x)


def one_draw_for_both(own: Any) -> Tensor:
    """As an invertible layer of Glow has a permutation and two triangles from one draw."""
    p, _, u = torch.linalg.lu(torch.randn(9, 9))
    own.u = nn.Parameter(u)
    return p


MADE_OF_IT: dict[str, Callable[[Any], Tensor]] = {
    "anchor": lambda own: own.a.weight.detach().clone(),
    "scaled": lambda own: 0.5 * own.a.weight + 1,
    "mask": lambda own: (own.a.weight.abs() >= own.a.weight.abs().median()).float(),
    "length": lambda own: own.a.weight.norm(dim=1),
    "the same numbers": lambda own: own.a.weight.data,
    "an empty one, filled": lambda own: torch.empty(3, 6).copy_(own.a.weight),
    "a target": lambda own: deepcopy(own.a).weight.detach(),
    "one draw": one_draw_for_both,
}


@pytest.mark.parametrize("make", MADE_OF_IT.values(), ids=MADE_OF_IT)
def test_a_buffer_made_from_the_draw_of_a_parameter_is_refused(
    make: Callable[[Any], Tensor],
) -> None:
    with pytest.raises(NetError, match='the buffer "w0" is made from the draw of') as told:
        Net.of(lambda: Own(make))
    assert "keep_weights=True" in told.value.fix


CONSTANT: dict[str, Callable[[Any], Tensor]] = {
    "a draw of its own": lambda own: torch.randn(3, 6),
    "as large": lambda own: torch.ones_like(own.a.weight),
    "zeroed": lambda own: own.a.weight.detach().clone().zero_(),
    "the shape alone": lambda own: own.a.weight.new_full((3,), own.a.weight.shape[1]),
    "a table": lambda own: torch.linspace(0, 1, 5),
}


@pytest.mark.parametrize("make", CONSTANT.values(), ids=CONSTANT)
def test_constants_and_draws_of_their_own_stay(make: Callable[[Any], Tensor]) -> None:
    net = Net.of(lambda: Own(make))
    assert dict(net.template.named_buffers()).keys() == {"w0"}


@pytest.mark.parametrize("make", MADE_OF_IT.values(), ids=MADE_OF_IT)
def test_with_its_own_weights_a_module_may_have_such_buffers(
    make: Callable[[Any], Tensor],
) -> None:
    module = Own(make)
    net = Net.of(module, keep_weights=True)
    assert torch.equal(dict(net.template.named_buffers())["w0"], module.w0.float())
    assert torch.equal(net.init(0)["a.weight"], module.a.weight)


def test_an_instance_with_a_copy_of_its_weights_is_refused_where_these_are_drawn_anew() -> None:
    with pytest.raises(NetError, match=r'"w0" is a copy of the parameter "a\.weight"'):
        Net.of(Own(MADE_OF_IT["anchor"]))
    assert Net.of(Own(CONSTANT["as large"])).names == ["a.weight", "a.bias"]
    constant = Own(lambda own: own.a.weight.fill_(2.0).clone())  # as after a start of constants
    assert Net.of(constant).names == ["a.weight", "a.bias"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 4)), nn.Linear(4, 3)),
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 4)), nn.Linear(4, 3)),
        lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
    ],
)
def test_layers_of_torch_have_no_such_buffers(make: Callable[[], nn.Module]) -> None:
    assert Net.of(make).names


def test_looking_on_changes_no_draw() -> None:
    make = lambda: Own(CONSTANT["a draw of its own"])
    net = Net.of(make)
    torch.manual_seed(0)
    plain = make()
    assert torch.equal(dict(net.template.named_buffers())["w0"], plain.w0)
    assert torch.equal(net.template.a.weight, plain.a.weight)


class Masked(nn.Module):
    """A mask of the larger weights, kept by the layer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)
        self.a.register_buffer("mask", (self.a.weight.abs() > 0.2).float())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.a.weight * self.a.mask, self.a.bias)


def test_a_buffer_that_a_layer_of_torch_was_given_is_refused_like_others() -> None:
    with pytest.raises(NetError, match=r'the buffer "a\.mask" is made from the draw of'):
        Net.of(Masked)
