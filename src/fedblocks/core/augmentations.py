"""Another look at the inputs of a training step, made on their device; evaluation sees none of it.

Noise is a function of the step's key and of a row's place in the batch, so that engines, lanes and
resumed runs draw the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.checks import Checked
from fedblocks.core.errors import UserError
from fedblocks.core.options import AnyNumber, AtLeast, AtMost, Help
from fedblocks.core.own_code import line_of, own_name, takes
from fedblocks.core.random import fold, uniform

__all__ = ["AUGMENTATIONS", "Augmentation", "Crop", "Draws", "Flip", "Jitter", "Noise", "Scale"]

STREAM = 1 << 23  # a number of noise streams that layers and methods do not reach


class Draws:
    """Random numbers for the rows of one batch of one client; every call draws others."""

    def __init__(self, key: Tensor, rows: int) -> None:
        self._key, self._rows, self._count = key, rows, 0

    def uniform(self, *shape: int) -> Tensor:
        """Between 0 and 1: [batch, *shape]."""
        self._count += 1
        return uniform(fold(self._key, self._count), (self._rows, *shape))

    def normal(self, *shape: int) -> Tensor:
        """Of mean 0 and spread 1, by Box and Muller: [batch, *shape]."""
        radius, angle = self.uniform(*shape), self.uniform(*shape)
        return torch.sqrt(-2 * torch.log(radius)) * torch.cos(2 * math.pi * angle)

    def integers(self, count: int, *shape: int) -> Tensor:
        """Whole numbers from 0 to count - 1: [batch, *shape]."""
        return (self.uniform(*shape) * count).long()


@runtime_checkable
class Augmentation(Protocol):
    """Changes the inputs of one client's batch, [batch, ...], to others of the same shape, by the
    tensor functions of torch alone; all chance is in `draws`.
    """

    def __call__(self, x: Tensor, draws: Draws) -> Tensor: ...


@dataclass(frozen=True)
class Crop(Checked):
    """Images moved by up to `padding` pixels each way, what comes in filled with `fill`."""

    padding: Annotated[int, AtLeast(1), Help("pixels", usual="4")]
    fill: Annotated[float, AnyNumber(), Help("of pixels from outside")] = 0.0

    def __call__(self, x: Tensor, draws: Draws) -> Tensor:
        _check_images(x)
        wide = F.pad(x, (self.padding,) * 4, value=self.fill)
        for dim in (-2, -1):  # height, width
            first = draws.integers(2 * self.padding + 1)  # [batch]
            where = first[:, None] + torch.arange(x.shape[dim], device=x.device)  # [batch, size]
            shape = [1] * x.dim()
            shape[0], shape[dim] = where.shape[0], where.shape[1]
            sizes = list(wide.shape)
            sizes[dim] = x.shape[dim]
            wide = wide.gather(dim, where.view(shape).expand(sizes))
        return wide


@dataclass(frozen=True)
class Flip(Checked):
    """Images mirrored left to right, by chance."""

    chance: Annotated[float, AtLeast(0), AtMost(1), Help("share of images")] = 0.5

    def __call__(self, x: Tensor, draws: Draws) -> Tensor:
        _check_images(x)
        return torch.where(_each_row(draws.uniform() < self.chance, x), x.flip(-1), x)


@dataclass(frozen=True)
class Jitter(Checked):
    """Images of another brightness and contrast: times a factor, then spread around their mean by
    another one, each drawn evenly from 1 - b to 1 + b. Values are not clipped.
    """

    brightness: Annotated[float, AtLeast(0), AtMost(1), Help("b of the brightness")] = 0.2
    contrast: Annotated[float, AtLeast(0), AtMost(1), Help("b of the contrast")] = 0.2

    def __call__(self, x: Tensor, draws: Draws) -> Tensor:
        x = x * self._factor(self.brightness, x, draws)
        mean = x.mean(tuple(range(1, x.dim())), keepdim=True)  # [batch, 1, ...]
        return mean + (x - mean) * self._factor(self.contrast, x, draws)

    @staticmethod
    def _factor(most: float, x: Tensor, draws: Draws) -> Tensor:
        return _each_row(1 + most * (2 * draws.uniform() - 1), x).to(x.dtype)


@dataclass(frozen=True)
class Noise(Checked):
    """Normal noise on every number of images or signals."""

    spread: Annotated[float, AtLeast(0), Help("standard deviation")] = 0.1

    def __call__(self, x: Tensor, draws: Draws) -> Tensor:
        return x + self.spread * draws.normal(*x.shape[1:]).to(x.dtype)


@dataclass(frozen=True)
class Scale(Checked):
    """Signals times a normal factor of mean 1, one for each example and channel (its first
    dimension; where it has only one, one for each example).
    """

    spread: Annotated[float, AtLeast(0), Help("standard deviation of the factor")] = 0.1

    def __call__(self, x: Tensor, draws: Draws) -> Tensor:
        channels = x.shape[1] if x.dim() > 2 else 1
        factor = 1 + self.spread * draws.normal(channels)  # [batch, channels]
        return x * factor.to(x.dtype).view(len(x), channels, *[1] * (x.dim() - 2))


# `{name = ...}` in the list `augment` of a method -> what it makes
AUGMENTATIONS: dict[str, Callable[..., Any]] = {
    "crop": Crop,
    "flip": Flip,
    "jitter": Jitter,
    "noise": Noise,
    "scale": Scale,
}


def augment_batch(augment: Sequence[Augmentation], x: Tensor, key: Tensor) -> Tensor:
    """A batch of one client after all augmentations in turn; `key` is the step's."""
    stream = fold(key, STREAM)
    for place, change in enumerate(augment):
        x = change(x, Draws(fold(stream, place), len(x)))
    return x


def try_augmentations(augment: Sequence[Augmentation], x: Tensor) -> None:
    """Refuse augmentations that do not fit the data, by what they make of two examples."""
    key = torch.zeros((), dtype=torch.long, device=x.device)
    for change in augment:
        name = own_name(change)
        if not takes(change, 2):
            message = f"augment: {name} is no function of two, inputs and draws"
            raise UserError(message, "write def augment(x, draws): ..., also if it draws nothing")
        inputs = f"inputs of shape {list(x.shape[1:])} ({str(x.dtype).removeprefix('torch.')})"
        try:
            result, again = (change(x[:2], Draws(key, len(x[:2]))) for _ in range(2))
        except Exception as error:  # whatever other people's code does
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            message = f"augment: {name} cannot take {inputs}: {reason}{line_of(error)}"
            raise UserError(message, "correct it, or choose another for such inputs") from error
        if not isinstance(result, Tensor) or result.shape != x[:2].shape or result.dtype != x.dtype:
            message = f"augment: {name} makes something else of {inputs}"
            raise UserError(message, "return a tensor of the same shape and type")
        if result.is_floating_point() and not result.isfinite().all() and x[:2].isfinite().all():
            message = f"augment: {name} makes inputs that are no finite numbers"
            raise UserError(message, "correct it")
        if not torch.equal(result, again):
            message = f"augment: {name} draws noise that no engine could repeat"
            raise UserError(message, "draw all numbers from its second argument, `draws`")


def _check_images(x: Tensor) -> None:
    if x.dim() < 3:
        message = f"examples of shape {list(x.shape[1:])} have no height and width"
        raise UserError(message, "use noise or scale for signals and numbers")


def _each_row(values: Tensor, x: Tensor) -> Tensor:
    """A number for each row, shaped to go with all numbers of the row."""
    return values.view(-1, *[1] * (x.dim() - 1))
