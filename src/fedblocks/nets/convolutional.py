"""Convolutional networks for images [channels, height, width]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from torch import nn

from fedblocks.core.checks import checked
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Help


@checked
def cnn(
    input_shape: Sequence[int],
    classes: int,
    channels: Annotated[
        tuple[int, int], AtLeast(1), Help("of the two convolutions", usual="16 to 64")
    ] = (16, 32),
    hidden: Annotated[int, AtLeast(1), Help("units of the dense layer", usual="64")] = 64,
    batch_norm: Annotated[bool, Help("after each convolution")] = False,
) -> Net:
    """Two convolutions of 3 x 3 with pooling, then two dense layers; for images of 4 x
    4 pixels or more.
    """
    colours, height, width = image_shape("cnn", input_shape, least=4)

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in zip((colours, channels[0]), channels, strict=True):
            norm = [nn.BatchNorm2d(after)] if batch_norm else []
            layers += [nn.Conv2d(before, after, 3, padding=1), *norm, nn.ReLU(), nn.MaxPool2d(2)]
        flat = channels[1] * (height // 4) * (width // 4)
        return nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, classes)
        )

    return Net.of(make, input_shape=input_shape)


def lenet(input_shape: Sequence[int], classes: int) -> Net:
    """LeNet-5 with rectified units and max pooling: 62,006 parameters for 10 classes of
    32 x 32 colour images.
    """
    colours, height, width = image_shape("lenet", input_shape, least=16)
    flat = 16 * after_lenet(height) * after_lenet(width)

    def make() -> nn.Module:
        convolutions = [nn.Conv2d(colours, 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
        convolutions += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
        hidden = [nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
        return nn.Sequential(*convolutions, nn.Flatten(), *hidden, nn.Linear(84, classes))

    return Net.of(make, input_shape=input_shape)


def after_lenet(pixels: int) -> int:
    """What two convolutions of 5 and two poolings of 2 leave of a side."""
    return ((pixels - 4) // 2 - 4) // 2


def image_shape(net: str, shape: Sequence[int], least: int) -> tuple[int, int, int]:
    """Channels, height and width, or why this net cannot take such inputs."""
    if len(shape) != 3 or min(shape[1:]) < least:
        needs = f"images [channels, height, width] of {least} x {least} pixels or more"
        raise UserError(
            f'net "{net}" needs {needs}, but the inputs are {list(shape)}',
            'use net.name = "mlp" for other inputs and "cnn" for small images',
        )
    return shape[0], shape[1], shape[2]
