"""The networks of the ModFL paper: a configuration module for each data set, one
operation module for all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from torch import nn

from fedblocks.core.checks import checked
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Help
from fedblocks.nets.convolutional import image_shape
from fedblocks.nets.corner import FirstCorner, own_inputs
from fedblocks.nets.recurrent import LastStep, Recurrent, StepsFirst

Make = Callable[[], list[nn.Module]]
Shape = tuple[int, ...]
Images = Annotated[
    Shape | None,
    AtLeast(1),
    Help("of its images, where they stand in the first corner of larger ones"),
]
Signals = Annotated[
    Shape | None,
    AtLeast(1),
    Help("of its signals, where they stand in the first corner of larger ones"),
]


@dataclass(frozen=True)
class ConvolutionLayers:
    """Convolutions of 3 x 3 with rectified units, each pooled by 2, the last if `pool_last`."""

    channels: tuple[int, ...]
    pooling: Callable[[int], nn.Module]
    pool_last: bool

    @property
    def poolings(self) -> int:
        """How often the sides of an image are halved."""
        return len(self.channels) if self.pool_last else len(self.channels) - 1

    def make(self, colours: int) -> list[nn.Module]:
        """The layers for images of so many colours."""
        layers: list[nn.Module] = []
        for number, (before, after) in enumerate(pairwise((colours, *self.channels))):
            pool = [self.pooling(2)] if number < self.poolings else []
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), *pool]
        return layers


def two_modules(configuration: Make, operation: Make, corner: Shape | None = None) -> Net:
    """A net whose head is its operation module; the two must fit together. It may work
    on a corner of its inputs.
    """
    ends = [m.out_features for m in configuration() if isinstance(m, nn.Linear)]
    begins = [m.in_features for m in operation() if isinstance(m, nn.Linear)]
    if ends and begins and ends[-1] != begins[0]:
        message = (
            f"the configuration module ends in {ends[-1]} numbers, the operation module takes "
            f"{begins[0]}"
        )
        raise UserError(message, "make the modules fit together")

    def make() -> nn.Module:
        first: dict[str, nn.Module] = {} if corner is None else {"corner": FirstCorner(corner)}
        modules = {
            "configuration": nn.Sequential(*configuration()),
            "operation": nn.Sequential(*operation()),
        }
        return nn.Sequential(OrderedDict(first | modules))

    return Net.of(make, head="operation")


@checked
def modfl_cifar(
    input_shape: Sequence[int],
    classes: int,
    pool_last: Annotated[bool, Help("the last convolution is pooled too")] = True,
    own_shape: Images = None,
) -> Net:
    """Convolutions 32-64-128 with average pooling; 659,529 parameters for 9 classes of
    32 x 32 colour images.
    """
    layers = ConvolutionLayers((32, 64, 128), nn.AvgPool2d, pool_last)
    return _images("modfl_cifar", input_shape, classes, layers, own_shape)


@checked
def modfl_stl(
    input_shape: Sequence[int],
    classes: int,
    pool_last: Annotated[bool, Help("the last convolution is pooled too")] = True,
    own_shape: Images = None,
) -> Net:
    """Convolutions 16-32-64-128 with max pooling; 1,319,081 parameters for 9 classes of
    96 x 96 colour images.
    """
    layers = ConvolutionLayers((16, 32, 64, 128), nn.MaxPool2d, pool_last)
    return _images("modfl_stl", input_shape, classes, layers, own_shape)


def _images(
    name: str,
    input_shape: Sequence[int],
    classes: int,
    layers: ConvolutionLayers,
    own_shape: Shape | None,
) -> Net:
    shape = own_inputs(name, input_shape, own_shape)
    shrink = 2**layers.poolings
    colours, height, width = image_shape(name, shape, least=shrink)
    flat = layers.channels[-1] * (height // shrink) * (width // shrink)

    def configuration() -> list[nn.Module]:
        return [*layers.make(colours), nn.Flatten(), nn.Linear(flat, 256), nn.ReLU()]

    def operation() -> list[nn.Module]:
        hidden = [nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()]
        return [*hidden, nn.Linear(64, classes)]

    return two_modules(configuration, operation, own_shape)


@checked
def modfl_hapt(
    input_shape: Sequence[int],
    classes: int,
    own_shape: Signals = None,
) -> Net:
    """LSTM 16, dense 16, then the operation module: 2,165 parameters for 5 activities
    in 6 channels.
    """
    return _signals("modfl_hapt", input_shape, classes, own_shape, units=16, dense=(16,))


@checked
def modfl_rwhar(
    input_shape: Sequence[int],
    classes: int,
    own_shape: Signals = None,
) -> Net:
    """LSTM 24, dense 32 and 16, then the operation module: 4,757 parameters for 5
    activities in 6 channels.
    """
    return _signals("modfl_rwhar", input_shape, classes, own_shape, units=24, dense=(32, 16))


@checked
def modfl_wisdm(
    input_shape: Sequence[int],
    classes: int,
    own_shape: Signals = None,
) -> Net:
    """LSTM 8, dense 16, then the operation module: 917 parameters for 5 activities in 3
    channels.
    """
    return _signals("modfl_wisdm", input_shape, classes, own_shape, units=8, dense=(16,))


def _signals(
    name: str,
    input_shape: Sequence[int],
    classes: int,
    own_shape: Shape | None,
    units: int,
    dense: tuple[int, ...],
) -> Net:
    if len(input_shape) != 2:
        message = (
            f'net "{name}" needs signals [channels, steps], but the inputs are {list(input_shape)}'
        )
        raise UserError(message, 'use net.name = "modfl_cifar" for images')
    channels = own_inputs(name, input_shape, own_shape)[0]

    def configuration() -> list[nn.Module]:
        layers: list[nn.Module] = [StepsFirst(), Recurrent(channels, units, 1), LastStep()]
        for before, after in pairwise((units, *dense)):
            layers += [nn.Linear(before, after), nn.Tanh()]
        return layers

    def operation() -> list[nn.Module]:
        return [nn.Linear(dense[-1], 16), nn.Tanh(), nn.Linear(16, classes)]

    return two_modules(configuration, operation, own_shape)
