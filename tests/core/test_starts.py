"""How the slots of a pool start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedblocks.core.blocks import Pool
from fedblocks.core.net import Net
from fedblocks.core.random import derive
from fedblocks.core.starts import Alike, Common, Independent
from fedblocks.core.state import initial_slots

SEED = 4


def wide_net() -> Net:
    """So many numbers in each layer that their standard deviation is known to about a percent."""
    return Net.of(lambda: nn.Sequential(nn.Linear(80, 90), nn.ReLU(), nn.Linear(90, 70)))


def initialisation(net: Net, number: int) -> dict[str, torch.Tensor]:
    return net.init(derive(SEED, "init", number))


def test_independent_slots_are_the_initialisations_by_number() -> None:
    net = wide_net()
    slots = initial_slots(Pool(net.whole, 3, start=Independent()), 0, SEED)
    for number in range(3):
        for name, value in initialisation(net, number).items():
            assert torch.equal(slots[name][number], value)


def test_alike_slots_are_all_initialisation_0() -> None:
    net = wide_net()
    slots = initial_slots(Pool(net.whole, 3, start=Alike()), 0, SEED)
    for name, value in initialisation(net, 0).items():
        assert torch.equal(slots[name], value.expand(3, *value.shape))


def test_a_pool_starts_independently_unless_it_says_otherwise() -> None:
    assert Pool(wide_net().whole, 2).start == Independent()


@pytest.mark.parametrize("size", [2, 5, 20])
def test_an_even_mixture_of_common_slots_is_initialisation_0(size: int) -> None:
    net = wide_net()
    slots = initial_slots(Pool(net.whole, size, start=Common(0.3)), 0, SEED)
    for name, value in initialisation(net, 0).items():
        torch.testing.assert_close(slots[name].mean(0), value, rtol=0, atol=1e-7)


@pytest.mark.parametrize("size", [2, 5, 20])
@pytest.mark.parametrize("apart", [0.1, 1.0])
def test_common_slots_are_as_far_apart_as_they_are_told_to_be(apart: float, size: int) -> None:
    """A draw less the mean of `size` draws has sqrt(1 - 1 / size) of its standard deviation."""
    net = wide_net()
    slots = initial_slots(Pool(net.whole, size, start=Common(apart)), 0, SEED)
    for name in ("0.weight", "2.weight"):
        one = initialisation(net, 0)[name]
        difference = (slots[name] - one).std() / one.std()
        assert float(difference) == pytest.approx(apart * (1 - 1 / size) ** 0.5, rel=0.03)


def test_a_single_common_slot_is_initialisation_0_to_the_bit() -> None:
    net = wide_net()
    slots = initial_slots(Pool(net.whole, 1, start=Common()), 0, SEED)
    for name, value in initialisation(net, 0).items():
        assert torch.equal(slots[name][0], value)
