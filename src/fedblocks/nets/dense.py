"""Dense networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net


def mlp(
    input_shape: Sequence[int],
    classes: int,
    hidden: tuple[int, ...] = (64,),  # units of each hidden layer
) -> Net:
    """A multi-layer perceptron for inputs of any shape."""
    if any(units < 1 for units in hidden):
        raise UserError(f"hidden = {list(hidden)} must be above 0", "64 to 256 units are usual")
    sizes = [prod(input_shape), *hidden]

    def make() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))

    return Net.of(make, input_shape=input_shape)
