"""Convolutions over time, for signals [channels, steps]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from torch import nn

from fedblocks.core.checks import checked
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Help

WIDTH = 5  # steps that a convolution looks at
LEAST = 16  # steps of a signal: fewer leave nothing after two poolings


@checked
def signal_cnn(
    input_shape: Sequence[int],
    classes: int,
    channels: Annotated[
        tuple[int, int], AtLeast(1), Help("of the two convolutions", usual="16 to 64")
    ] = (16, 16),
    hidden: Annotated[int, AtLeast(1), Help("units of the dense layer", usual="64")] = 64,
) -> Net:
    """Two convolutions of 5 steps with pooling by 2, then two dense layers; 12,246 parameters for 6
    classes of 3 x 52.
    """
    if len(input_shape) != 2 or input_shape[1] < LEAST:
        raise UserError(
            f'net "signal_cnn" needs signals [channels, steps] of {LEAST} steps or more, but the '
            f"inputs are {list(input_shape)}",
            'use net.name = "cnn" for images and "mlp" for other inputs',
        )
    axes, steps = input_shape
    left = ((steps - WIDTH + 1) // 2 - WIDTH + 1) // 2  # steps after both poolings

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in zip((axes, channels[0]), channels, strict=True):
            layers += [nn.Conv1d(before, after, WIDTH), nn.ReLU(), nn.MaxPool1d(2)]
        dense = [nn.Linear(channels[1] * left, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
        return nn.Sequential(*layers, nn.Flatten(), *dense)

    return Net.of(make, input_shape=input_shape)
