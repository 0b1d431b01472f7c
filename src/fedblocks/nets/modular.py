"""Pools of modules for FedMN, and the plain nets of its communication figure.

Any net makes a pool: `FedMN(net, modules=(2, 2, 2))` takes it as the encoder. To choose more, make
the path yourself: `modular(net, widths=(512, 256))`, or `ModularNet([encoder, block, output],
summary)` from functions that make modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fedblocks.core.checks import checked
from fedblocks.core.errors import UserError
from fedblocks.core.modular_net import ModularNet, modular, started_from
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Below, Help
from fedblocks.nets.dense import mlp

__all__ = ["ModularNet", "figure_mlp", "figure_pools", "modular", "modular_mlp", "started_from"]


@checked
def modular_mlp(
    input_shape: Sequence[int],
    classes: int,
    layers: Annotated[
        int, AtLeast(2), Help("of modules: encoder, middle blocks, output", usual="3")
    ] = 3,
    width: Annotated[
        int, AtLeast(1), Help("units of the encoder and of each middle block", usual="256")
    ] = 256,
    dropout: Annotated[float, AtLeast(0), Below(1), Help("in middle blocks", usual="0.5")] = 0.5,
) -> ModularNet:
    """One path of dense modules, each of one layer, and a router of one layer: FedMN's
    communication figure.
    """
    return modular(mlp(input_shape, classes, hidden=()), [width] * (layers - 1), dropout)


@checked
def figure_mlp(
    input_shape: Sequence[int],
    classes: int,
    layers: Annotated[
        int, AtLeast(1), Help("dense layers in all", usual="8, 9 and 10 in the figure")
    ] = 8,
    width: Annotated[int, AtLeast(1), Help("units of each hidden layer", usual="256")] = 256,
) -> Net:
    """The perceptron that FedAvg trains in FedMN's communication figure."""
    return mlp(input_shape, classes, hidden=(width,) * (layers - 1))


def figure_pools(blocks: int) -> list[tuple[int, int, int]]:
    """FedMN's pools in that figure: one encoder, and at least two modules in each of
    two more layers.
    """
    if blocks < 5:
        raise UserError(
            f"{blocks} blocks are too few for the figure's pools",
            "8, 9 and 10 are those of the figure",
        )
    return [(1, middle, blocks - 1 - middle) for middle in range(2, blocks - 2)]
