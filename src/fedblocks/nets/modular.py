"""Pools of modules for FedMN, and the plain nets of its communication figure.

Any net makes a pool: `FedMN(net, modules=(2, 2, 2))` takes it as the encoder. To choose more, make the path yourself:
`modular(net, widths=(512, 256))`, or `ModularNet([encoder, block, output], summary)` from functions that make modules.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedblocks.core.errors import UserError
from fedblocks.core.modules import ModularNet, modular, started_from
from fedblocks.core.net import Net
from fedblocks.nets.dense import mlp

__all__ = ["ModularNet", "figure_mlp", "figure_pools", "modular", "modular_mlp", "started_from"]


def modular_mlp(
    input_shape: Sequence[int],
    classes: int,
    layers: int = 3,  # of modules: encoder, middle blocks, output
    width: int = 256,  # units of the encoder and of each middle block
    dropout: float = 0.5,  # in middle blocks
) -> ModularNet:
    """One path of dense modules, each of one layer, and a router of one layer: FedMN's communication figure."""
    if layers < 2 or width < 1:
        raise UserError(f"layers = {layers}, width = {width} make no pool", "2 layers or more; 256 units are usual")
    return modular(mlp(input_shape, classes, hidden=()), [width] * (layers - 1), dropout)


def figure_mlp(
    input_shape: Sequence[int],
    classes: int,
    layers: int = 8,  # dense layers in all: 8, 9 and 10 in the figure
    width: int = 256,  # units of each hidden layer
) -> Net:
    """The perceptron that FedAvg trains in FedMN's communication figure."""
    if layers < 1:
        raise UserError(f"layers = {layers} must be at least 1", "8, 9 and 10 are those of the figure")
    return mlp(input_shape, classes, hidden=(width,) * (layers - 1))


def figure_pools(blocks: int) -> list[tuple[int, int, int]]:
    """FedMN's pools in that figure: one encoder, and at least two modules in each of two more layers."""
    if blocks < 5:
        raise UserError(f"{blocks} blocks are too few for the figure's pools", "8, 9 and 10 are those of the figure")
    return [(1, middle, blocks - 1 - middle) for middle in range(2, blocks - 2)]
