"""Residual networks for images, with GroupNorm, which keeps no statistics of batches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from fedblocks.core.checks import checked
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Help, Length


class ResidualBlock(nn.Module):
    """Two convolutions, and a way past them."""

    def __init__(self, inputs: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, width)
        self.past: nn.Module = nn.Identity()
        if stride > 1 or inputs != width:
            self.past = nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(self.conv1(x)).relu()
        h = self.norm2(self.conv2(h)) + self.past(x)
        return torch.relu(h)


class MeanOverPlaces(nn.Module):
    """[batch, channels, height, width] -> [batch, channels]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


@checked
def resnet(
    input_shape: Sequence[int],
    classes: int,
    *,
    widths: Annotated[
        tuple[int, ...], AtLeast(1), Length(1), Help("channels of each stage", usual="[16, 32, 64]")
    ] = (16, 32, 64),
    blocks: Annotated[int, AtLeast(1), Help("residual blocks of each stage", usual="3")] = 3,
    groups: Annotated[int, AtLeast(1), Help("of each normalisation", usual="8")] = 8,
) -> Net:
    """A residual net after He et al. (2016), with GroupNorm; by default ResNet-20 for small
    images.
    """
    if len(input_shape) != 3:
        message = f'net "resnet" needs images, but the inputs are {list(input_shape)}'
        raise UserError(message, 'use net.name = "lstm" for tokens and signals')
    odd = [width for width in widths if width % groups]
    if odd:
        message = f"widths = {list(widths)}, but {odd[0]} channels are not {groups} equal groups"
        raise UserError(message, "choose widths that are multiples of `groups`")

    def make() -> nn.Module:
        layers: dict[str, nn.Module] = {
            "conv": nn.Conv2d(input_shape[0], widths[0], 3, padding=1, bias=False),
            "norm": nn.GroupNorm(groups, widths[0]),
            "relu": nn.ReLU(),
        }
        before = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                name = f"stage{stage + 1}_{block + 1}"
                layers[name] = ResidualBlock(before, width, stride, groups)
                before = width
        layers |= {"mean": MeanOverPlaces(), "fc": nn.Linear(before, classes)}
        return nn.Sequential(OrderedDict(layers))

    return Net.of(make, input_shape=input_shape)
