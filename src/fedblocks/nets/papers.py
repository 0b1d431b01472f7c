"""Convolutional networks that papers and other libraries train, layer by layer as they do."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedblocks.core.net import Net
from fedblocks.nets.convolutional import after_lenet, image_shape


def femnist_cnn(input_shape: Sequence[int], classes: int) -> Net:
    """Two convolutions of 5 x 5, two dense layers: 2,278,334 parameters for 62 classes
    of 28 x 28 characters.
    """
    colours, height, width = image_shape("femnist_cnn", input_shape, least=16)
    flat = 64 * after_lenet(height) * after_lenet(width)

    def make() -> nn.Module:
        convolutions = [nn.Conv2d(colours, 32, 5), nn.ReLU(), nn.MaxPool2d(2)]
        convolutions += [nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(
            *convolutions, nn.Flatten(), nn.Linear(flat, 2048), nn.ReLU(), nn.Linear(2048, classes)
        )

    return Net.of(make)


def emnist_cnn(input_shape: Sequence[int], classes: int) -> Net:
    """Two convolutions of 3 x 3 with dropout: 1,206,590 parameters for 62 classes of 28
    x 28 characters.
    """
    colours, flat = _after_two_convolutions("emnist_cnn", input_shape)
    return Net.of(lambda: nn.Sequential(*_with_dropout(colours, flat, classes)))


def pfl_cnn(input_shape: Sequence[int], classes: int) -> Net:
    """The same layers, started as in pfl-research's CIFAR-10 benchmark: 1,626,442
    parameters for 10 classes.
    """
    colours, flat = _after_two_convolutions("pfl_cnn", input_shape)

    def make() -> nn.Module:
        layers = _with_dropout(colours, flat, classes)
        for layer in layers:
            if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        return nn.Sequential(*layers)

    return Net.of(make)


def _after_two_convolutions(name: str, input_shape: Sequence[int]) -> tuple[int, int]:
    """Channels of the input, and numbers that two convolutions of 3 and a pooling of 2 leave."""
    colours, height, width = image_shape(name, input_shape, least=6)
    return colours, 64 * ((height - 4) // 2) * ((width - 4) // 2)


def _with_dropout(colours: int, flat: int, classes: int) -> list[nn.Module]:
    convolutions = [nn.Conv2d(colours, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()]
    dense = [nn.Linear(flat, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes)]
    return [*convolutions, nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), *dense]
