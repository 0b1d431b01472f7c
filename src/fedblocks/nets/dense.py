"""Dense networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Annotated

from torch import nn

from fedblocks.core.checks import checked
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Help


@checked
def mlp(
    input_shape: Sequence[int],
    classes: int,
    hidden: Annotated[
        tuple[int, ...], AtLeast(1), Help("units of each hidden layer", usual="64 to 256")
    ] = (64,),
) -> Net:
    """A multi-layer perceptron for inputs of any shape."""
    sizes = [prod(input_shape), *hidden]

    def make() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))

    return Net.of(make, input_shape=input_shape)
